"""Find the first difference between two runs of a trajectory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamsampler.core.words import count
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import value_of
from streamsampler.data.multi_agent import MultiAgentBatch

_SHOWN = 8
_ROUNDING = 1e-3
_IN_ORDER = "observation", "action", "reward", "end"
"""The parts of a timestep in order of time. The next observation follows the end."""


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs of a trajectory.

    Attributes:
        timestep: The timestep, from 0 on; the observation after the last action counts as the next timestep's.
        what: "observation", "action", "reward" or "end".
        path: The part of an observation or action, such as `['camera']`.
        recorded: The recorded value; for an end, a description.
        replayed: The value in the new run.
    """

    timestep: int
    what: str
    path: str
    recorded: Any
    replayed: Any

    @property
    def is_rounding(self) -> bool:
        """Whether both values are numbers so close that only rounding may differ."""
        one, other = np.asarray(self.recorded), np.asarray(self.replayed)
        if one.shape != other.shape or one.dtype.kind != "f" or other.dtype.kind != "f":
            return False
        with np.errstate(invalid="ignore", over="ignore"):
            largest = np.max(np.abs(one), initial=0.0)
            return bool(np.max(np.abs(one - other), initial=0.0) <= _ROUNDING * max(float(largest), 1e-30))

    def __str__(self) -> str:
        recorded, replayed = shown(self.recorded), shown(self.replayed)
        if recorded == replayed:
            recorded, replayed = _bits(self.recorded), _bits(self.replayed)
        return f"the {self.what}{self.path} of timestep {self.timestep}: recorded {recorded}, now {replayed}"


def shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        return str(value.item())
    if isinstance(value, np.ndarray) and value.dtype != object:
        flat = value.ravel()
        items = ", ".join(str(item) for item in flat[:_SHOWN].tolist())
        return f"[{items}{', …' if flat.size > _SHOWN else ''}] ({value.dtype})"
    return f"{value!r:.80}"


def _bits(value: Any) -> str:
    """Return a value's text with its bits."""
    array = np.asarray(value)
    return shown(value) if array.dtype == object else f"{shown(value)} with the bits {array.tobytes()[:16].hex()}"


def first_difference(
    recorded: TrajectoryBatch[Any, Any], replayed: TrajectoryBatch[Any, Any], *, prefix: bool = False
) -> Difference | None:
    """Return the first difference between a run of a trajectory and the recorded run; None if they are equal.

    Observations, actions, rewards and ends are compared, bit for bit; with several agents, those of each agent. With
    `prefix` the recorded trajectory may have been cut: then the replay may continue after its end.
    """
    found = list(_in_timesteps(recorded, replayed))
    if isinstance(recorded, MultiAgentBatch) and isinstance(replayed, MultiAgentBatch):
        found += _of_agents(recorded, replayed, prefix=prefix)
    n, n_now = len(recorded.rewards), len(replayed.rewards)
    shorter = min(n, n_now)
    goes_on = prefix and n_now > n
    if not goes_on:
        ends = _end_at(recorded, shorter), _end_at(replayed, shorter)
        if ends[0] != ends[1]:
            found.append(Difference(shorter - 1, "end", "", *ends))
    if n == n_now or goes_on:
        observations, last = (value_of(replayed, name) for name in ("observations", "last_observations"))
        following = trees.take(observations, slice(n, n + 1)) if goes_on else last
        found += _first_in(value_of(recorded, "last_observations"), following, "observation", 1, n)
    # A difference in dtype or structure counts from the first timestep on.
    return min(found, key=lambda it: (it.timestep, _IN_ORDER.index(it.what)), default=None)


def _of_agents(recorded: MultiAgentBatch, replayed: MultiAgentBatch, *, prefix: bool) -> Iterator[Difference]:
    now, before = (
        {str(one.agent_ids[0]): one for each in it.policies.values() for one in each} for it in (replayed, recorded)
    )
    all_steps = [step for one in before.values() for step in one.env_timesteps.tolist()]
    takes_turns = len(set(all_steps)) == len(all_steps)
    for agent in dict.fromkeys([*before, *now]):
        one, other = before.get(agent), now.get(agent)
        if one is None or other is None:
            first = int((one or other).env_timesteps[0])  # type: ignore[union-attr]
            if not (prefix and first >= len(recorded.rewards)):
                presence = ["missing" if it is None else "present" for it in (one, other)]
                yield Difference(first, "observation", f" of agent {agent!r}", *presence)
        elif found := first_difference(one, other, prefix=prefix and bool(one.truncated[0])):
            steps = max(one.env_timesteps, other.env_timesteps, key=len).tolist()
            steps.append(len(recorded.rewards) if takes_turns else steps[-1] + 1)
            yield replace(found, timestep=_when(found, steps), path=f"{found.path} of agent {agent!r}")


def _when(found: Difference, steps: list[int]) -> int:
    """Return the environment timestep of a difference: rewards and ends arrive before the agent's next action."""
    seen = found.what in ("observation", "action")
    return steps[found.timestep] if seen else steps[found.timestep + 1] - 1


def _in_timesteps(recorded: TrajectoryBatch[Any, Any], replayed: TrajectoryBatch[Any, Any]) -> Iterator[Difference]:
    n = min(len(recorded.rewards), len(replayed.rewards))
    for what in ("observation", "action", "reward"):
        yield from _first_in(value_of(recorded, f"{what}s"), value_of(replayed, f"{what}s"), what, n)


def _first_in(one: Any, other: Any, what: str, n: int, base: int = 0) -> Iterator[Difference]:
    """Yield the first difference of two trees in their first n rows; `base` is the timestep of row 0."""
    leaves, others = dict(trees.leaves(one)), dict(trees.leaves(other))
    if leaves.keys() != others.keys():
        path = min(leaves.keys() ^ others.keys())
        yield Difference(base, what, path, *(("present" if path in it else "missing") for it in (leaves, others)))
        return
    rows = [(row, path) for path in leaves if (row := _first_row(leaves[path][:n], others[path][:n])) is not None]
    if rows:
        row, path = min(rows, key=lambda it: it[0])
        yield Difference(base + row, what, path, leaves[path][row], others[path][row])


def _first_row(one: trees.Array, other: trees.Array) -> int | None:
    if not len(one):
        return None
    if one.dtype != other.dtype or one.shape[1:] != other.shape[1:]:
        return 0
    if one.dtype.hasobject:
        return next((row for row in range(len(one)) if not trees.same(one[row], other[row])), None)
    as_bytes = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in (one, other)]
    differ = np.flatnonzero((as_bytes[0] != as_bytes[1]).any(axis=1))
    return int(differ[0]) if len(differ) else None


def _end_at(trajectory: TrajectoryBatch[Any, Any], n: int) -> str:
    if len(trajectory.rewards) > n:
        return "it continues"
    flags = {"terminated": trajectory.terminated[0], "truncated": trajectory.truncated[0]}
    return f"it is {' and '.join(name for name, flag in flags.items() if flag)} after {count(n, 'timestep')}"
