"""A batch of several agents: a `TrajectoryBatch` for each policy, and the episodes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.data import batch_fields
from streamsampler.data.agent_rows import OF_AGENTS, AgentRows
from streamsampler.data.assembly import GrowingBatch, Origins, assemble
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.spaces import same_spaces
from streamsampler.data.trees import Array
from streamsampler.environments.multi_agent import SpacesOfAgents

_OF_POLICIES = (
    *("values", "last_values", "advantages", "td_lambda", "vtrace", "minibatches", "padded", "mask"),
    *("next_observations", "to_torch", "to_list", "time_steps", "as_grid"),
    *("raw_observations", "raw_last_observations"),
)
"""The members of a policy's batch alone."""

_FIELDS_OF_POLICIES = "observations", "last_observations", "actions"
"""Fields hidden from users: trees without leaves, present only for files."""


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MultiAgentBatch(TrajectoryBatch[Any, Any]):
    """E episodes of several agents, sampled in PettingZoo's environments; see `streamsampler/docs/several-agents.md`.

    `batch["policy name"]` is a `TrajectoryBatch` with a trajectory for each agent and episode played by the policy,
    ordered by episode and agent, with all of a batch's methods. `batch.episodes` describes the episodes.

    The batch itself is a batch of episodes: `len(batch)`, `batch[i]`, slices, iteration, `lengths`, `seeds`, `indices`,
    `concatenate` and `save` refer to episodes. Its timesteps are environment steps, and its rewards are summed over all
    agents. It has neither observations nor actions: the error on access lists the policies' batches.

    Attributes:
        policies: The batches by name of each policy with trajectories.

    Raises:
        DataError: Fields do not fit each other.
    """

    policies: dict[str, TrajectoryBatch[Any, Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, batch in self.policies.items():
            rows = batch.agents
            if rows is None or (len(batch) and not 0 <= rows.episodes.min() <= rows.episodes.max() < len(self)):
                raise DataError(f"the trajectories of policy {name!r} should belong to episodes 0 to {len(self) - 1}")

    @property
    def n_env_steps(self) -> int:
        """The number of environment steps: T."""
        return self.n_timesteps

    @property
    def n_agent_steps(self) -> int:
        """The number of timesteps of all agents together."""
        return sum(batch.n_timesteps for batch in self.policies.values())

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes, with each agent's returns and infos."""
        return Episodes(self)

    def __getitem__(self, index: Any) -> Any:
        """Return a policy's batch by name, or episodes as in `TrajectoryBatch`."""
        if not isinstance(index, str):
            return super().__getitem__(index)
        if index not in self.policies:
            raise KeyError(
                f"policy {index!r} acted for no agent in this batch, only {', '.join(map(repr, self.policies))}"
            )
        return self.policies[index]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _OF_POLICIES and name not in _FIELDS_OF_POLICIES:
                return super().__getattr__(name)
            names = ", ".join(f"batch[{policy!r}].{name}" for policy in self.policies)
            raise AttributeError(f"a batch of several agents has no {name}: use {names}")

    def __repr__(self) -> str:
        parts = [count(len(self), "episode"), count(self.n_env_steps, "environment step")]
        parts += [f"{name!r}: {repr(batch)[len('TrajectoryBatch') :]}" for name, batch in self.policies.items()]
        return f"MultiAgentBatch({', '.join(parts)})"

    def _selected(self, rows: slice | Array, timesteps: slice | Array) -> dict[str, Any]:
        numbers = np.arange(len(self))[rows]
        return {
            **super()._selected(rows, timesteps),
            "policies": {
                name: part
                for name, batch in self.policies.items()
                if len(part := _of_episodes(batch, numbers))
            },
        }  # fmt: skip

    def _joined(self, parts: Sequence[Any]) -> Any:
        joint = super()._joined(parts) if parts else self
        firsts = np.cumsum([0, *map(len, parts)]).tolist()
        policies: dict[str, list[Any]] = {}
        for part, first in zip(parts, firsts, strict=False):
            for name, batch in part.policies.items():
                rows = batch.agents
                moved = dataclasses.replace(batch, agents=rows._replace(episodes=rows.episodes + first))
                policies.setdefault(name, []).append(moved)
        joined = {
            name: dataclasses.replace(batches[0], **batch_fields.joined_fields(batches))
            for name, batches in sorted(policies.items())
        }
        return batch_fields.replaced(joint, policies=joined)


class _RefusedField:
    """A hidden field, read only by `batch_fields.value_of`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, batch: MultiAgentBatch | None, owner: type[MultiAgentBatch]) -> NoReturn:
        raise AttributeError(self._name)  # Python then calls `__getattr__`, which raises the helpful error

    def __set__(self, batch: MultiAgentBatch, value: Any) -> None:
        vars(batch)[self._name] = value


def _refused(name: str) -> property:
    def refuse(_: MultiAgentBatch) -> NoReturn:
        raise AttributeError(name)  # Python then calls `__getattr__`, which raises the helpful error

    return property(refuse)


for _name in _OF_POLICIES:
    setattr(MultiAgentBatch, _name, _refused(_name))
for _name in _FIELDS_OF_POLICIES:
    setattr(MultiAgentBatch, _name, _RefusedField(_name))


def _of_episodes(batch: TrajectoryBatch[Any, Any], numbers: Array) -> TrajectoryBatch[Any, Any]:
    """Return the trajectories of the episodes `numbers`, renumbered in this order."""
    rows = cast("AgentRows", batch.agents)
    starts, stops = (np.searchsorted(rows.episodes, numbers, side=side) for side in ("left", "right"))
    found = [np.arange(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    index = np.concatenate([np.arange(0), *found])
    together = bool(len(index)) and bool((np.diff(index) == 1).all())
    part = batch[int(index[0]) : int(index[-1]) + 1] if together else batch[index]
    own = cast("AgentRows", part.agents)
    episodes = np.repeat(np.arange(len(numbers)), stops - starts)
    return dataclasses.replace(part, agents=own._replace(episodes=episodes))


class Episodes:
    """E episodes of a `MultiAgentBatch`.

    Args:
        batch: The batch.

    Attributes:
        agent_ids: The agents that took part in any of them.
        lengths: (E,) int64: their environment steps.
        seeds: E Python ints: `env.reset(seed=…)` with `seeds[i]` starts episode i.
        indices: (E,) int64: their trajectory indices.
        terminated: (E,) bool: whether an agent terminated in the episode's last step.
        truncated: (E,) bool: whether an agent was truncated in it, or the episode by `max_episode_length`.
        infos: Infos of the resets that belong to no agent, and metrics of hooks: a dict of (E, ...).
        env_infos: Infos of steps that belong to no agent, under their original names, such as "__common__": a dict of
            (T, ...), with a row for each environment step.
    """

    def __init__(self, batch: MultiAgentBatch) -> None:
        self._known: dict[str, Any] = batch.episode_infos.get(OF_AGENTS, {})  # type: ignore[assignment]
        self.infos = {key: value for key, value in batch.episode_infos.items() if key != OF_AGENTS}
        self.env_infos = batch.env_infos
        order = [
            agent for rows in (it.agents for it in batch.policies.values()) if rows is not None for agent in rows.known
        ]
        self.agent_ids = tuple(agent for agent in dict.fromkeys(order) if agent in self._known)
        self.lengths, self.seeds, self.indices = batch.lengths, batch.seeds, batch.indices
        self.terminated, self.truncated = batch.terminated, batch.truncated

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Episodes({count(len(self), 'episode')} of {', '.join(self.agent_ids)})"

    @cached_property
    def took_part(self) -> dict[str, NDArray[np.bool_]]:
        """By agent, (E,) bool: whether it acted in each episode."""
        return {
            agent: self._known[agent].get("_return", np.ones(len(self), dtype=np.bool_)) for agent in self.agent_ids
        }

    @cached_property
    def returns(self) -> dict[str, NDArray[np.float64]]:
        """By agent, (E,) float64: the sum of its rewards, also before its first action; NaN for episodes without it."""
        return {
            agent: np.where(self.took_part[agent], self._known[agent]["return"], np.nan) for agent in self.agent_ids
        }

    def return_of(self, agents: Sequence[str]) -> NDArray[np.float64]:
        """Return the summed return of some agents in each episode, (E,) float64.

        Args:
            agents: The agents; each took part in at least one episode, and adds 0 to the others.

        Raises:
            DataError: An agent took part in no episode, or an episode had none of the agents.
        """
        if unknown := [agent for agent in agents if agent not in self._known]:
            raise DataError(f"agent {unknown[0]!r} took part in no episode, only {', '.join(self.agent_ids)}")
        there = np.any([self.took_part[agent] for agent in agents], axis=0)
        if not there.all():
            raise DataError(f"{' and '.join(agents)} took no part in {int((~there).sum())} of {len(self)} episodes")
        return cast("NDArray[np.float64]", np.nansum([self.returns[agent] for agent in agents], axis=0))

    @property
    def reset_infos(self) -> dict[str, dict[str, Any]]:
        """By agent, a dict of (E, ...): the info of its first observation."""
        return self._infos("reset")

    @property
    def last_infos(self) -> dict[str, dict[str, Any]]:
        """By agent, a dict of (E, ...): the info of its last step."""
        return self._infos("last")

    def _infos(self, which: str) -> dict[str, dict[str, Any]]:
        return {agent: self._known[agent].get(which, {}) for agent in self.agent_ids}


def assembled(
    segments: Sequence[Segment], growing: GrowingBatch | None = None, **arguments: Any
) -> TrajectoryBatch[Any, Any]:
    """Make a batch of segments; `growing` has earlier trajectories of a single agent."""
    spaces = arguments["observation_space"], arguments["action_space"]
    if not isinstance(spaces[0], SpacesOfAgents):
        growing = growing or GrowingBatch()
        growing.append(segments)
        return growing.batch(**arguments)
    nothing = gym_spaces.Dict({})
    joint = assemble(segments, **{**arguments, "observation_space": nothing, "action_space": nothing})
    known = tuple(spaces[0].spaces)
    same = {name: arguments[name] for name in ("agent_version", "seed")}
    policies = {
        name: _policy_batch(name, list(_pieces(segments, name, known)), spaces, joint, same)
        for name in _names(segments)
    }
    fields = {item.name: getattr(joint, item.name) for item in dataclasses.fields(joint)}
    return MultiAgentBatch(**fields, policies={name: batch for name, batch in policies.items() if batch is not None})


def segments_of_policies(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return each policy's trajectories as segments of their own deliveries; empty for a single agent."""
    return [[piece.segment for piece in _pieces(segments, name)] for name in _names(segments)]


def _names(segments: Sequence[Segment]) -> list[str]:
    return sorted({it.policy for segment in segments for it in segment.delivery.rollouts.policies})


class _Piece(NamedTuple):
    """A policy's trajectories in a segment, as a segment of the policy's rollouts alone.

    `spaces` is None if the environment's spaces are fixed; for `earlier` see `PolicyRollouts`.
    """

    segment: Segment
    agents: AgentRows
    spaces: tuple[Any, Any] | None = None
    earlier: tuple[Array, Array] | None = None

    def earlier_of(self, which: int) -> Array:
        """Return the timesteps (0) or rewards (1) of its trajectories in earlier calls."""
        return np.zeros(len(self.agents.numbers)) if self.earlier is None else self.earlier[which]


def _pieces(segments: Sequence[Segment], name: str, known: tuple[str, ...] = ()) -> Iterator[_Piece]:
    deliveries: dict[int, Delivery] = {}
    first = 0
    for delivery, start, stop, _ in segments:
        for of in delivery.rollouts.policies:
            if of.policy == name:
                begin, end = np.searchsorted(of.episodes, (start, stop)).tolist()
                if end > begin:
                    own = deliveries.setdefault(
                        id(of), Delivery(delivery.worker, of.rollouts, fingerprint=delivery.fingerprint)
                    )
                    ends = np.cumsum([0, *of.rollouts.lengths.tolist()])
                    is_open = of.spaces is not None
                    rows = AgentRows(
                        of.known if is_open else known,
                        of.agents,
                        of.episodes - start + first,
                        of.env_timesteps,
                        is_open,
                    )
                    agents = rows.select(slice(ends[begin], ends[end]), slice(begin, end))
                    earlier = None if of.earlier is None else (of.earlier[0][begin:end], of.earlier[1][begin:end])
                    yield _Piece(Segment(own, begin, end, range(begin, end)), agents, of.spaces, earlier)
        first += stop - start


def _policy_batch(
    name: str, pieces: Sequence[_Piece], spaces: tuple[Any, Any], joint: TrajectoryBatch[Any, Any],
    same: Mapping[str, Any],
) -> TrajectoryBatch[Any, Any] | None:  # fmt: skip
    if (agents := AgentRows.joined(pieces)) is None:
        return None
    if agents.is_open:
        own = _reported_spaces(name, pieces)
    else:
        own = _spaces_of(name, [agents.known[number] for number in np.unique(agents.numbers).tolist()], spaces)
    episodes = agents.episodes
    return assemble(
        [piece.segment for piece in pieces],
        observation_space=own[0],
        action_space=own[1],
        seeds_of=lambda _: [joint.seeds[episode] for episode in episodes.tolist()],
        origins=Origins(joint.indices[episodes], joint.worker_numbers[episodes], joint.fingerprints),
        agents=agents,
        fragments=_fragments_of(pieces, joint, episodes),
        **same,
    )


def _fragments_of(
    pieces: Sequence[_Piece], joint: TrajectoryBatch[Any, Any], episodes: NDArray[np.int64]
) -> dict[str, Any]:
    if not joint.fragments:
        return {}
    lengths = np.concatenate([piece.earlier_of(0) for piece in pieces]).astype(np.int64)
    return {
        "continued": lengths > 0,
        "env_numbers": joint.fragments["env_numbers"][episodes],
        "earlier_lengths": lengths,
        "earlier_returns": np.concatenate([piece.earlier_of(1) for piece in pieces]).astype(np.float64),
    }


def _reported_spaces(name: str, pieces: Sequence[_Piece]) -> tuple[Any, Any]:
    first = pieces[0]
    for each in pieces[1:]:
        if not same_spaces(cast("tuple[Any, Any]", each.spaces), cast("tuple[Any, Any]", first.spaces)):
            played = " and ".join(repr(it.agents.known[0]) for it in (first, each))
            raise DataError(
                f"policy {name!r} acts for {played}, but their spaces differ: assign each its own policy with "
                "policy_of="
            )
    return cast("tuple[Any, Any]", copy.deepcopy(first.spaces))


def _spaces_of(name: str, agents: Sequence[str], spaces: tuple[Any, Any]) -> tuple[Any, Any]:
    first = spaces[0][agents[0]], spaces[1][agents[0]]
    for agent in agents[1:]:
        if not same_spaces((spaces[0][agent], spaces[1][agent]), first):
            raise DataError(
                f"policy {name!r} acts for {agents[0]!r} and {agent!r}, but their spaces differ: assign each its own "
                "policy with policy_of="
            )
    return first
