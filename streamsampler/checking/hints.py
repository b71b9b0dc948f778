"""Suggest what may be faster than the measured ways: another form of the agent, or more rows."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from streamsampler.checking.costs import Costs
from streamsampler.core.words import count

__all__ = ["hint_of_numpy", "hint_of_rows"]

_WIDEST = 128
"""Up to this layer width NumPy runs a network faster than torch does, with any number of rows."""
_ROWS_TIMES, _MOST_ROWS = 4, 128


def hint_of_numpy(agent: Any) -> str:
    """Return the hint to run a torch network in NumPy; empty if it would not help, or is impossible."""
    if "torch" not in sys.modules:
        return ""
    from streamsampler.agents.torch import TorchAgent

    if not isinstance(agent, TorchAgent):
        return ""
    with contextlib.suppress(Exception):  # an agent without these methods was measured all the same
        if max(size for value in agent.get_param_values().values() for size in np.shape(value)) <= _WIDEST:
            return (
                "TorchAgent(…).to_numpy() runs this network in NumPy, which takes about half the time for so small a "
                f"network. Its outputs differ from torch's by up to {agent.to_numpy().largest_difference:.2g}."
            )
    return ""


def hint_of_rows(costs: Costs, n_envs: int) -> str:
    """Return the hint to use more environments per worker; empty if it would not help."""
    if not costs.batched or costs.agent <= costs.step or n_envs >= _MOST_ROWS:
        return ""
    more = min(_MOST_ROWS, _ROWS_TIMES * n_envs)
    times = costs.agent / costs.step
    return (
        f"VecWorker with {more} environments instead of {count(n_envs, 'environment')}: a call of the agent takes as "
        f"long as {times:,.0f} steps, and all environments of a worker share it."
    )
