"""Rows of environments with several agents: which agent and episode each trajectory and timestep belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.data import trees
from streamsampler.data.copying import Allocate
from streamsampler.data.info_columns import InfoColumns, join_undecided
from streamsampler.data.recorder import PolicyRollouts, Rollouts

OF_AGENTS = "(agents)"
"""The key in `episode_infos` under which each agent's own infos are stored."""


class AgentRows(NamedTuple):
    """Agents, episodes and environment timesteps of N trajectories with T timesteps in all.

    Attributes:
        known: The environment's possible agents; if it has no `possible_agents`, the agents that took part, sorted.
        numbers: (N,) int64: each trajectory's agent, as a position in `known`.
        episodes: (N,) int64: each trajectory's episode number.
        env_timesteps: (T,) int64: the environment timestep, counted from its reset, of each timestep.
        is_open: Whether any agents may take part: the environment has no `possible_agents`.
    """

    known: tuple[str, ...]
    numbers: NDArray[np.int64]
    episodes: NDArray[np.int64]
    env_timesteps: NDArray[np.int64]
    is_open: bool = False

    def select(self, timesteps: Any, rows: Any) -> AgentRows:
        selected = self._replace(
            numbers=self.numbers[rows], episodes=self.episodes[rows], env_timesteps=self.env_timesteps[timesteps]
        )
        return (
            selected._among(sorted({self.known[it] for it in selected.numbers.tolist()})) if self.is_open else selected
        )

    def _among(self, known: Sequence[str]) -> AgentRows:
        """Renumber the agents by other known agents, which include all present."""
        number_of = {agent: number for number, agent in enumerate(known)}
        numbers = np.array([number_of.get(agent, -1) for agent in self.known], np.int64)
        return self._replace(known=tuple(known), numbers=numbers[self.numbers])

    def check(self, n_trajectories: int, n_timesteps: int) -> None:
        """Raise a `DataError` unless shapes and dtypes fit."""
        lengths = (n_trajectories, n_trajectories, n_timesteps)
        for name, n in zip(ARRAYS_OF_AGENTS, lengths, strict=True):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.shape != (n,) or array.dtype != np.int64:
                raise DataError(f"agents.{name} should be an array of int64 of shape ({n},), not {array!r:.80}")
        if len(self.numbers) and not 0 <= self.numbers.min() <= self.numbers.max() < len(self.known):
            lowest, highest = self.numbers.min(), self.numbers.max()
            raise DataError(f"agents.numbers should be from 0 to {len(self.known) - 1}, not {lowest} to {highest}")

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> AgentRows | None:
        """Concatenate rows; return None if no batch has any, raise a `DataError` if only some have or agents differ."""
        each = [it.agents for it in batches]
        if all(rows is None for rows in each):
            return None
        if all(rows is not None and rows.is_open for rows in each):
            known = sorted({agent for rows in each for agent in rows.known})
            each = [rows._among(known) for rows in each]
        if len(differing := {None if rows is None else rows.known for rows in each}) > 1:
            raise DataError(f"the batches have different agents: {', '.join(map(str, differing))}")
        numbers, episodes, env_timesteps = (
            np.concatenate([getattr(rows, name) for rows in each]) for name in ARRAYS_OF_AGENTS
        )
        return cls(each[0].known, numbers, episodes, env_timesteps, each[0].is_open)


ARRAYS_OF_AGENTS = "numbers", "episodes", "env_timesteps"
"""The array fields of `AgentRows`."""
_PER_TIMESTEP = "observations", "actions", "rewards"
_PER_TRAJECTORY = "last_observations", "terminated", "truncated", "lengths"


class AgentTicketRollouts(NamedTuple):
    """An agent's trajectories in a ticket.

    Attributes:
        agent: The agent's name.
        of: For each trajectory the position of its episode in the ticket (rising), the policy, and the agent's number
            within the policy.
        rollouts: The trajectories.
        env_timesteps: (t,) int64: the environment timestep of each timestep.
        spaces: The agent's spaces if any agents may take part; else None.
        before: Each trajectory's length and return in earlier fragments of the episode.
    """

    agent: str
    of: Sequence[tuple[int, str, int]]
    rollouts: Rollouts
    env_timesteps: NDArray[np.int64]
    spaces: tuple[Any, Any] | None
    before: Sequence[tuple[Any, ...]] = ()


class _AgentTrajectory(NamedTuple):
    """A trajectory's sort key (episode, agent number) and its position in an agent's rollouts."""

    episode: int
    number: int
    position: int
    played: AgentTicketRollouts


def put_together(agents: Sequence[AgentTicketRollouts], allocate: Allocate) -> tuple[PolicyRollouts, ...]:
    of_policies: dict[str, list[_AgentTrajectory]] = {}
    for played in agents:
        for position, (episode, name, number) in enumerate(played.of):
            of_policies.setdefault(name, []).append(_AgentTrajectory(episode, number, position, played))
    return tuple(_of_policy(name, of_policies[name], allocate) for name in sorted(of_policies))


def _of_policy(name: str, trajectories: list[_AgentTrajectory], allocate: Allocate) -> PolicyRollouts:
    ordered = sorted(trajectories, key=lambda it: it[:2])
    numbers, episodes = (np.array([it[i] for it in ordered], np.int64) for i in (1, 0))
    first = ordered[0].played
    before = [it.played.before[it.position] if it.played.before else (0, 0.0) for it in ordered]
    earlier: tuple[Any, Any] | None = None
    if any(length for length, *_ in before):
        earlier = tuple(np.array([it[i] for it in before], kind) for i, kind in ((0, np.int64), (1, np.float64)))  # type: ignore[assignment]
    known: tuple[str, ...] = ()
    if first.spaces is not None:
        known = tuple(sorted({it.played.agent for it in ordered}))
        number_of = {agent: number for number, agent in enumerate(known)}
        numbers = np.array([number_of[it.played.agent] for it in ordered], np.int64)
    if len(ordered) == len(first.of) and all(
        it.played is first for it in ordered
    ):  # all trajectories of a single agent, already in order
        return PolicyRollouts(
            name, first.rollouts, numbers, episodes, first.env_timesteps, known, first.spaces, earlier
        )
    spans = [_span(it) for it in ordered]
    rows = [(it.position, it.position + 1) for it in ordered]

    def joined(name: str, bounds: Sequence[tuple[int, int]]) -> Any:
        each = [getattr(it.played.rollouts, name) for it in ordered]
        return trees.map_trees(lambda *leaves: _concatenated(leaves, bounds, allocate), *each)

    fields = {name: joined(name, spans) for name in _PER_TIMESTEP}
    fields |= {name: joined(name, rows) for name in _PER_TRAJECTORY}
    fields |= {name: _infos(ordered, name, spans) for name in ("env_infos", "agent_infos")}
    fields["episode_infos"] = _infos(ordered, "episode_infos", rows)
    env_timesteps = _concatenated([it.played.env_timesteps for it in ordered], spans, np.empty)
    return PolicyRollouts(name, Rollouts(**fields), numbers, episodes, env_timesteps, known, first.spaces, earlier)


def _concatenated(leaves: Sequence[Any], bounds: Sequence[tuple[int, int]], allocate: Allocate) -> Any:
    parts = [leaf[start:stop] for leaf, (start, stop) in zip(leaves, bounds, strict=True)]
    if parts[0].dtype.hasobject:
        return np.concatenate(parts)
    n_rows = sum(stop - start for start, stop in bounds)
    return np.concatenate(parts, out=allocate((n_rows, *parts[0].shape[1:]), parts[0].dtype))


def _span(it: _AgentTrajectory) -> tuple[int, int]:
    ends = it.played.rollouts.lengths[: it.position + 1]
    stop = int(ends.sum())
    return stop - int(ends[-1]), stop


def _infos(ordered: Sequence[_AgentTrajectory], name: str, bounds: Sequence[tuple[int, int]]) -> InfoColumns:
    """Join info columns; which dtype a column of mixed values gets is decided later, over the whole batch."""
    each = [getattr(it.played.rollouts, name) for it in ordered]
    if not any(infos.columns for infos in each):
        return InfoColumns(sum(stop - start for start, stop in bounds), {})
    return join_undecided([(infos, *it) for infos, it in zip(each, bounds, strict=True)])


def in_order(places: Sequence[tuple[Rollouts, int]], allocate: Allocate) -> Rollouts:
    """Return the environment's trajectories in order; `places` has the rollouts and the position of each."""
    first = places[0][0]
    if all(it is first for it, _ in places):  # a single environment's trajectories, already in order
        return first
    ends = {id(it): np.cumsum(it.lengths) for it, _ in places}
    rows = [(at, at + 1) for _, at in places]
    spans = [(int(ends[id(it)][at] - it.lengths[at]), int(ends[id(it)][at])) for it, at in places]

    def joined(name: str, bounds: Sequence[tuple[int, int]]) -> Any:
        return _concatenated([getattr(it, name) for it, _ in places], bounds, allocate)

    def infos(name: str, bounds: Sequence[tuple[int, int]]) -> InfoColumns:
        pieces = [(getattr(it, name), *bound) for (it, _), bound in zip(places, bounds, strict=True)]
        return join_undecided(pieces)

    return Rollouts(
        first.observations, first.last_observations, first.actions, joined("rewards", spans),
        joined("terminated", rows), joined("truncated", rows), joined("lengths", rows),
        infos("env_infos", spans), infos("agent_infos", spans), infos("episode_infos", rows),
    )  # fmt: skip
