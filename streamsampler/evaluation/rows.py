"""What an evaluation keeps of each trajectory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.errors import DataError, UsageError

__all__ = ["SUCCESS_KEYS", "ReturnOf", "Row", "SuccessMeaning", "check_return_of", "columns_of", "row_of"]

SuccessMeaning: TypeAlias = Literal["end", "once"]
"""When a trajectory succeeds: if its last timestep says so, or any of its timesteps."""

ReturnOf: TypeAlias = str | Sequence[str]
"""Whose return counts, in environments of several agents: agents, policies (all that they play), or "all"."""

SUCCESS_KEYS = ("success", "is_success")
"""The keys of infos that say so; where there are both, the first one counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """What an evaluation keeps of one trajectory.

    Attributes:
        trajectory: Its index.
        seed: Its seed.
        value: Its return: the sum of its rewards.
        length: Its timesteps.
        terminated: Whether it terminated.
        truncated: Whether it was truncated.
        success: Whether it succeeded; None if none of its infos says.
    """

    trajectory: int
    seed: int
    value: float
    length: int
    terminated: bool
    truncated: bool
    success: bool | None


def check_return_of(return_of: Any) -> tuple[str, ...] | None:
    """Return whose return counts, in environments of several agents: names; None where it was not said.

    Raises:
        UsageError: It is neither a name nor a list of names.
    """
    names = (return_of,) if isinstance(return_of, str) else return_of
    if names is None:
        return None
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"return_of is a name or a list of names: agents, policies, or 'all'; not {return_of!r:.60}")
    return tuple(names)


def row_of(
    trajectory: TrajectoryBatch[Any, Any], meaning: SuccessMeaning, return_of: tuple[str, ...] | None = None,
    policies: Collection[str] = (),
) -> Row:  # fmt: skip
    """Return what is kept of a batch of one trajectory.

    Args:
        trajectory: The batch.
        meaning: When it succeeds.
        return_of: What `check_return_of` returned.
        policies: The names of all policies.

    Raises:
        UsageError: An info of success is neither true nor false; or it is not known whose return counts.
        DataError: None of those whose return counts took part.
    """
    value, infos = float(trajectory.raw_returns[0]), [trajectory.env_infos]
    if isinstance(trajectory, MultiAgentBatch):
        team = _team(trajectory, return_of, policies)
        value = float(trajectory.episodes.return_of(team)[0])
        infos += [one.env_infos for each in trajectory.policies.values() for one in each if one.agent_ids[0] in team]
    elif return_of is not None:
        raise UsageError("return_of is for environments of several agents, and this one has one")
    said = [each for each in (_success(one, meaning) for one in infos) if each is not None]
    return Row(
        trajectory=int(trajectory.indices[0]),
        seed=trajectory.seeds[0],
        value=value,
        length=int(trajectory.lengths[0]),
        terminated=bool(trajectory.terminated[0]),
        truncated=bool(trajectory.truncated[0]),
        success=any(said) if said else None,
    )


def _team(trajectory: MultiAgentBatch, return_of: tuple[str, ...] | None, policies: Collection[str]) -> list[str]:
    """Return the agents whose returns count: those of the names given that took part, or that a policy played."""
    playing = trajectory.policies
    agents = next(iter(playing.values())).agents
    assert agents is not None
    if return_of is None and len(agents.known) > 1:
        raise UsageError(
            f"whose return counts? The agents are {', '.join(agents.known)}: pass return_of= one of them, a policy's "
            "name, a list of these for a team, or 'all'"
        )
    names = return_of or ("all",)
    if unknown := [name for name in names if name not in {*agents.known, *playing, *policies, "all"}]:
        raise UsageError(
            f"return_of names {unknown[0]!r}, and the agents are {', '.join(agents.known)}; the policies, "
            f"{', '.join(policies or playing)}"
        )
    there = trajectory.episodes.agent_ids
    of_policies = {name: each.agent_ids.tolist() for name, each in playing.items()}
    # An agent's name comes before a policy's.
    team = [
        agent for name in names for agent in there
        if name in ("all", agent) or (name not in agents.known and agent in of_policies.get(name, ()))
    ]  # fmt: skip
    if not team:
        raise DataError(
            f"none of {', '.join(names)} took part in trajectory {trajectory.indices[0]}, whose return is not known "
            f"then; there were {', '.join(there)}"
        )
    return list(dict.fromkeys(team))


def _success(infos: dict[str, Any], meaning: SuccessMeaning) -> bool | None:
    key = next((key for key in SUCCESS_KEYS if key in infos), None)
    if key is None:
        return None
    values, said = infos[key], infos.get(f"_{key}")
    if isinstance(values, dict) or values.ndim != 1:
        raise UsageError(f"the info {key!r} should be true or false in each timestep, and is {values!r:.60}")
    if said is None:
        said = np.ones(len(values), np.bool_)
    if meaning == "end":
        values, said = values[-1:], said[-1:]
    return any(_as_bool(value, key) for value in values[said].tolist())


def _as_bool(value: Any, key: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool | int | float):
        raise UsageError(f"the info {key!r} should be true or false, and is {value!r:.60}")
    return bool(value)


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows as columns, by the names of an `Evaluation`.

    Where any trajectory says whether it succeeded, one that does not say has not.
    """
    known = any(row.success is not None for row in rows)
    return {
        "returns": np.array([row.value for row in rows], np.float64),
        "lengths": np.array([row.length for row in rows], np.int64),
        "terminated": np.array([row.terminated for row in rows], np.bool_),
        "truncated": np.array([row.truncated for row in rows], np.bool_),
        "successes": np.array([bool(row.success) for row in rows], np.bool_) if known else None,
        "indices": np.array([row.trajectory for row in rows], np.int64),
        "seeds": tuple(row.seed for row in rows),
    }
