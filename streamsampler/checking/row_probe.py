"""Probe whether the rows of an agent's batches are independent."""

from __future__ import annotations

from typing import Any

from streamsampler.agents.base import (
    as_agent,
    give_spaces,
    is_row_independent,
)
from streamsampler.checking.findings import Finding
from streamsampler.core.errors import UsageError
from streamsampler.workers.logs import quiet
from streamsampler.workers.vec.agents import AgentPool

_ROWS = 8, 32


def probe_rows(agent: Any, spaces: tuple[Any, Any], env: Any) -> Finding:
    """Probe whether the rows of an agent's batches depend on one another."""
    del env
    agent = as_agent(agent)
    if not callable(getattr(agent, "get_actions", None)):
        return Finding("rows", "pass", "the agent has no get_actions: VecWorker asks it for one action at a time")
    give_spaces(agent, *spaces)
    try:
        says, conclusive = is_row_independent(agent), True
        for n_rows in _ROWS:
            pool = AgentPool(hint=False)
            pool.update(agent, None)
            with quiet():
                conclusive = pool.probe(spaces, n_rows).conclusive and conclusive
    except UsageError as error:
        what, _, advice = str(error).partition(". ")
        if getattr(agent, "row_independent", False) or "row_independent of the agent" in what:
            return Finding("rows", "failure", what, advice)
        what = "rows of batches depend on one another, or on draws: VecWorker runs in blocks"
        return Finding("rows", "pass", what)
    alone = f"each row of batches of {' and '.join(map(str, _ROWS))} depends on this row alone"
    if says:
        return Finding("rows", "pass", f"{alone}, as it says")
    if not conclusive:
        return Finding("rows", "pass", "VecWorker runs trajectories in blocks")
    return Finding(
        "rows", "pass", f"{alone}, but the agent does not say so",
        "With row_independent = True VecWorker runs trajectories in lanes, which is faster, if that holds for all "
        "parameters",
    )  # fmt: skip
