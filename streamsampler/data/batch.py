"""A batch of trajectories, and the data derived from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.data import batch_fields, trees
from streamsampler.data.batch_episodes import PADDABLE, BatchEpisodes, batch_of_episodes
from streamsampler.data.batch_estimates import BatchEstimates
from streamsampler.data.batch_fields import (
    ActionsT,
    AnyActionsT,
    AnyObservationsT,
    BatchAgents,
    ObservationsT,
    RawData,
)
from streamsampler.data.infos import take_infos
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array

_GRIDS = (
    *("observations", "next_observations", "actions", "rewards", "step_types", "episode_starts"),
    *("env_infos", "agent_infos"),
)


class BatchFragments(RawData[ObservationsT, ActionsT]):
    """The fragment members of a `TrajectoryBatch`. Whole trajectories are neither continued nor cut."""

    @property
    def continued(self) -> NDArray[np.bool_]:
        """(N,) bool: whether a trajectory began in an earlier call; its first timestep is no episode's first."""
        return self.fragments.get("continued", np.zeros(len(self.lengths), np.bool_))

    @property
    def cut(self) -> NDArray[np.bool_]:
        """(N,) bool: whether a trajectory continues in the next call; bootstrap from its `last_observations`."""
        return self.fragments.get("cut", np.zeros(len(self.lengths), np.bool_))

    @property
    def env_numbers(self) -> NDArray[np.int64]:
        """(N,) int64: the environment of each trajectory; -1 for whole trajectories, which may run in any."""
        return self.fragments.get("env_numbers", np.full(len(self.lengths), -1, np.int64))

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """(E,) float64: the undiscounted raw return of each episode ended in this batch, in order.

        Rewards of earlier calls are included, back to the episode's reset. For whole trajectories these are
        `raw_returns`.
        """
        returns = self.raw_returns + self.fragments.get("earlier_returns", 0.0)
        return returns[self.terminated | self.truncated]

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """(E,) int64: the timesteps of each episode in `episode_returns`."""
        lengths = self.lengths + self.fragments.get("earlier_lengths", 0)
        return cast("NDArray[np.int64]", lengths[self.terminated | self.truncated])

    @property
    def episode_starts(self) -> NDArray[np.bool_]:
        """(T,) bool: the first timesteps of episodes."""
        starts = np.zeros(len(self.rewards), np.bool_)
        starts[self.starts[~self.continued]] = True
        return starts

    def as_grid(self, name: Any) -> Any:
        """Return timesteps with a column for each environment of a batch of fragments.

        Args:
            name: `observations`, `next_observations`, `actions`, `rewards`, `step_types`, `episode_starts`,
                `env_infos` or `agent_infos`; or an array or tensor (T, ...), such as `batch.values` or advantages.

        Returns:
            Tree of (n_timesteps, n_envs, ...), or a dict of such; views where possible.

        Raises:
            UsageError: The field is unknown, or the array has not T rows.
            DataError: Environments are out of order or differ in timesteps: this is not a whole batch of one
                `obtain_fragments` call.
        """
        rows = self._rows_for_grid(name)
        numbers = self.env_numbers
        if len(numbers) and (numbers < 0).all():
            field = name if isinstance(name, str) else "rewards"
            raise DataError(
                f"a grid needs fragments, but this batch has {count(len(numbers), 'whole trajectory')}, of "
                f"different lengths: use a batch of obtain_fragments, or pad this one with batch.padded({field!r})"
            )
        n_envs = int(numbers.max(initial=-1)) + 1
        timesteps = np.bincount(numbers[numbers >= 0], self.lengths[numbers >= 0], n_envs).astype(np.int64)
        if not n_envs or (np.diff(numbers) < 0).any() or (numbers < 0).any() or (timesteps != timesteps[0]).any():
            raise DataError(
                "a grid needs a whole batch of obtain_fragments, with the environments in order and the same number of "
                f"timesteps for each; this one has {timesteps.tolist()} timesteps of environments 0 to {n_envs - 1}"
            )

        def grid(array: Array) -> Array:
            return np.swapaxes(array.reshape(n_envs, int(timesteps[0]), *array.shape[1:]), 0, 1)

        return trees.map_tree(grid, rows)

    def _rows_for_grid(self, name: Any) -> Any:
        """Return a field by its name, or the array passed instead."""
        if not isinstance(name, str):
            shape = getattr(name, "shape", None)
            n = len(self.rewards)
            if shape is None or tuple(shape[:1]) != (n,):
                form = f"a {type(name).__name__}" if shape is None else f"of shape {tuple(shape)}"
                raise UsageError(f"as_grid accepts the name of a field or an array of {n} rows, not {form}")
            return name
        if name not in _GRIDS:
            raise UsageError(
                f"as_grid has no field {name!r}: use {', '.join(_GRIDS)}, or an array with a row for each timestep, "
                "such as batch.as_grid(batch.values)"
            )
        return getattr(self, name)


def brackets(cls: type, types: Any) -> GenericAlias:
    """Return a class with types in brackets; unlike `Generic`, accept a single type for two variables."""
    return GenericAlias(cls, types)


Index: TypeAlias = (
    "SupportsIndex | slice | Sequence[int] | Sequence[bool] | NDArray[np.integer[Any]] | NDArray[np.bool_]"
)
"""A selection of trajectories."""


class StepType(IntEnum):
    """The place of a timestep in its trajectory.

    A last timestep has the type of its end, even if it is also the first: TERMINAL if the trajectory terminated, also
    when it was truncated in the same step; TIMEOUT if it was only truncated.
    """

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TrajectoryBatch(
    BatchFragments[ObservationsT, ActionsT],
    BatchEstimates[ObservationsT, ActionsT],
    BatchEpisodes[ObservationsT, ActionsT],
    BatchAgents[ObservationsT, ActionsT],
):
    """N whole trajectories, T timesteps in all, concatenated.

    A tree is an array, or a dict or tuple of trees where the space is a Dict or Tuple. `==` compares all data bit for
    bit, so a NaN equals the same NaN; it ignores `stats`, `worker_numbers` and `fingerprints`. `batch[i]` is a batch of
    the i-th trajectory; a slice, an array of integers or a boolean mask selects several. Positions and slices without a
    step return views of the batch's memory.

    For type checkers a batch is generic in the types of its observations and actions, arrays by default:
    `TrajectoryBatch[dict[str, NDArray[Any]]]` has a dict of observations, and an array of actions.

    Attributes:
        observation_space: The environment's.
        action_space: The environment's.
        observations: Tree of (T, *O): the observation before each action.
        last_observations: Tree of (N, *O): the true final observation of each trajectory.
        actions: Tree of (T, *A).
        rewards: (T,) float64.
        terminated: (N,) bool.
        truncated: (N,) bool; both may be true, and at least one is, except where `fragments` marks a trajectory as cut.
        env_infos: Dict of (T, ...): the infos of `env.step`; a mask `_key` marks the timesteps with `key`.
        agent_infos: Dict of (T, ...): the infos of the agent.
        episode_infos: Dict of (N, ...): the infos of `env.reset`.
        lengths: (N,) int64, at least 1 each.
        indices: (N,) int64: trajectory indices.
        seeds: N Python ints: `env.reset(seed=batch.seeds[i])` starts the i-th trajectory.
        agent_versions: (N,) int64: each trajectory's agent version.
        fragments: Empty, or for `obtain_fragments` a dict of (N,): "continued", whether the trajectory began in an
            earlier call; "cut", whether it continues in the next; "env_numbers", its environment; "earlier_lengths" and
            "earlier_returns", its episode's timesteps and sum of raw rewards in earlier calls. See `episode_returns`,
            `continued`, `cut` and `as_grid`.
        seed: The sampler's; None after joining batches of several samplers.
        stats: Accounts of the call, or None.
        worker_numbers: (N,) int64: the worker that ran each trajectory, which depends on timing. -1 if unknown, as in
            batches from files: it is not saved.
        fingerprints: The workers' fingerprints of floating-point results, such as "numpy=0c3f19d2e4aa"; a single entry
            if all agree, empty if unknown. The same seed gives the same trajectories only under equal fingerprints. Not
            saved.
        raw: The unfiltered data where observations or rewards were filtered (see
            `streamsampler/docs/hooks-and-filters.md`), else None; read them as `raw_observations`,
            `raw_last_observations` and `raw_rewards`.
        agents: The agent of each trajectory in a batch of one policy of several agents (see `MultiAgentBatch`), else
            None; read it as `agent_ids`, `episode_numbers` and `env_timesteps`.

    Raises:
        DataError: Fields do not fit each other or their spaces; the message names the field and both numbers.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(brackets)

    def __post_init__(self) -> None:
        if cast("Any", self.worker_numbers) is None:
            object.__setattr__(self, "worker_numbers", np.full(np.shape(self.lengths), -1, dtype=np.int64))
        batch_fields.check_batch(self)

    @property
    def n_trajectories(self) -> int:
        """N."""
        return len(self.lengths)

    @property
    def n_timesteps(self) -> int:
        """T."""
        return len(self.rewards)

    @property
    def agent_version(self) -> int | None:
        """The agent version of all trajectories; None if they differ, or the batch is empty."""
        versions = self.agent_versions
        return int(versions[0]) if len(versions) and (versions == versions[0]).all() else None

    def __len__(self) -> int:
        return self.n_trajectories

    def __repr__(self) -> str:
        whole = not self.fragments
        number = count(self.n_trajectories, "trajectory") if whole else f"{count(len(self), 'part')} of episodes"
        parts = [number, count(self.n_timesteps, "timestep")]
        if self.n_trajectories:
            parts.append(f"{'return' if whole else 'return of parts'} {_mean(self.raw_returns)}")
            if not whole:
                n = len(ended := self.episode_returns)
                parts.append(f"{count(n, 'episode')} ended: return {_mean(ended)}" if n else "no episode ended")
            first, last = self.agent_versions.min(), self.agent_versions.max()
            parts.append(f"agent version {first}" if first == last else f"agent versions {first} to {last}")
        return f"TrajectoryBatch({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [item.name for item in dataclasses.fields(self) if item.compare]
        return all(trees.same(batch_fields.value_of(self, name), batch_fields.value_of(other, name)) for name in names)

    @property
    def next_observations(self) -> ObservationsT:
        """Tree of (T, *O), new arrays: the observation after each action, finally the last observation."""
        ends = self.starts + self.lengths - 1

        def follow(observations: Array, last: Array) -> Array:
            following = np.empty_like(observations)
            following[:-1] = observations[1:]
            following[ends] = last
            return following

        last_leaves = (leaf for _, leaf in trees.leaves(self.last_observations))
        return trees.map_tree(lambda leaf: follow(leaf, next(last_leaves)), self.observations)

    @property
    def step_types(self) -> NDArray[np.int8]:
        """(T,) int8: a `StepType` for each timestep."""
        types = np.full(self.n_timesteps, StepType.MID, dtype=np.int8)
        types[self.episode_starts] = StepType.FIRST
        ends = self.starts + self.lengths - 1
        types[ends[self.truncated]] = StepType.TIMEOUT
        types[ends[self.terminated]] = StepType.TERMINAL
        return types

    @property
    def final_infos(self) -> dict[str, Array]:
        """Dict of (N, ...), new arrays with masks `_key`: the infos of each trajectory's last `env.step`."""
        return take_infos(self.env_infos, self.starts + self.lengths - 1)

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Return the data as PyTorch tensors, which share the batch's memory where possible.

        Needs PyTorch: `pip install torch`.

        Args:
            device: The tensors' device; None keeps them in the batch's memory, so writes to them change the batch.

        Returns:
            A dict with observations, last_observations, actions, rewards, terminated, truncated, lengths, indices,
            agent_versions, worker_numbers, env_infos, agent_infos and episode_infos, nested as in the batch, dtypes
            kept. Arrays of dtypes unknown to torch, such as objects, stay arrays.

        Raises:
            ImportError: PyTorch is not installed.
        """
        return batch_fields.tensors_of(
            {name: getattr(self, name) for name in (*batch_fields.ARRAYS, *batch_fields.INFOS)}, device
        )

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(N, L) bool: false for padding; L is the length of the longest trajectory."""
        return self.padded("mask")

    @overload
    def padded(
        self, name: Literal["observations", "next_observations"], length: int | None = None, value: Any = 0
    ) -> ObservationsT: ...
    @overload
    def padded(self, name: Literal["actions"], length: int | None = None, value: Any = 0) -> ActionsT: ...
    @overload
    def padded(self, name: Literal["rewards"], length: int | None = None, value: Any = 0) -> NDArray[np.float64]: ...
    @overload
    def padded(self, name: Literal["step_types"], length: int | None = None, value: Any = 0) -> NDArray[np.int8]: ...
    @overload
    def padded(
        self, name: Literal["env_infos", "agent_infos"], length: int | None = None, value: Any = 0
    ) -> dict[str, Array]: ...
    @overload
    def padded(self, name: Literal["mask"], length: int | None = None, value: Any = 0) -> NDArray[np.bool_]: ...
    @overload
    def padded(self, name: str, length: int | None = None, value: Any = 0) -> Any: ...

    def padded(self, name: str, length: int | None = None, value: Any = 0) -> Any:
        """Return timesteps with a row for each trajectory.

        Args:
            name: `observations`, `next_observations`, `actions`, `rewards`, `step_types`, `env_infos`, `agent_infos`,
                or `mask`.
            length: The second axis, L; by default the length of the longest trajectory.
            value: The padding after each trajectory's end (masks: False; objects: None).

        Returns:
            Tree of (N, L, ...), new arrays; for infos a dict of such, with their own masks.

        Raises:
            DataError: The field is unknown, `length` is below that of the longest trajectory, or an array's dtype
                cannot hold the value.
        """
        longest = int(self.lengths.max(initial=0))
        length = longest if length is None else length
        if length < longest:
            raise DataError(f"cannot pad to {length} timesteps: the longest trajectory has {longest}")
        if name == "mask":
            return np.arange(length) < self.lengths[:, None]
        if name not in PADDABLE:
            raise DataError(f"cannot pad {name!r}: use {', '.join(PADDABLE)} or mask")
        pad = batch_fields.padded_infos if name in batch_fields.INFOS else batch_fields.padded_tree
        return pad(getattr(self, name), self.lengths, length, value, name)

    def split(self) -> list[TrajectoryBatch[ObservationsT, ActionsT]]:
        """Return a batch for each trajectory; they share memory with this batch."""
        batch_fields.check_batch(self)  # once here (infos may have been changed), not again for each trajectory
        bounds = pairwise([0, *np.cumsum(self.lengths).tolist()])
        make = partial(_unchecked, type(self))
        return [make(**self._selected(slice(i, i + 1), slice(*bound))) for i, bound in enumerate(bounds)]

    def __iter__(self) -> Iterator[TrajectoryBatch[ObservationsT, ActionsT]]:
        return iter(self.split())

    def __getitem__(self, index: Index) -> TrajectoryBatch[ObservationsT, ActionsT]:
        if isinstance(index, str):
            raise IndexError(
                f"a batch is indexed by positions of trajectories, not by {index!r}{self._place_of(index)}"
            )
        selected = np.arange(self.n_trajectories)[cast("Any", index)]
        if selected.ndim > 1:
            raise IndexError(f"a batch has one axis, its trajectories, but the index has the shape {selected.shape}")
        selected = np.atleast_1d(selected)
        starts = self.starts[selected]
        stops = starts + self.lengths[selected]
        if isinstance(index, (int, np.integer, slice)) and len(selected) and (np.diff(selected) == 1).all():
            rows = slice(int(selected[0]), int(selected[-1]) + 1)
            return type(self)(**self._selected(rows, slice(int(starts[0]), int(stops[-1]))))
        timesteps = [np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
        return type(self)(**self._selected(selected, np.concatenate([np.arange(0), *timesteps])))

    def _place_of(self, name: str) -> str:
        """Return the end of a sentence on where data of a name are."""
        if hasattr(self, name):
            return f": use batch.{name}"
        found = [f"batch.{infos}[{name!r}]" for infos in batch_fields.INFOS if name in getattr(self, infos)]
        return f": use {' or '.join(found)}" if found else ""

    def _selected(self, rows: slice | Array, timesteps: slice | Array) -> dict[str, Any]:
        index_of = dict.fromkeys(batch_fields.PER_TRAJECTORY, rows) | dict.fromkeys(
            batch_fields.PER_TIMESTEP, timesteps
        )
        return {
            **{name: getattr(self, name) for name in ("observation_space", "action_space", "seed", "fingerprints")},
            **{name: trees.take(batch_fields.value_of(self, name), index_of[name]) for name in batch_fields.ARRAYS},
            **{name: take_infos(getattr(self, name), index_of[name]) for name in batch_fields.INFOS},
            "seeds": self.seeds[rows] if isinstance(rows, slice) else tuple(self.seeds[i] for i in rows.tolist()),
            "fragments": {name: values[rows] for name, values in self.fragments.items()},
            "raw": None if self.raw is None else self.raw.select(timesteps, rows),
            "agents": None if self.agents is None else self.agents.select(timesteps, rows),
        }

    @staticmethod
    def concatenate(
        *batches: TrajectoryBatch[AnyObservationsT, AnyActionsT]
        | Iterable[TrajectoryBatch[AnyObservationsT, AnyActionsT]],
    ) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
        """Join batches in order: the inverse of `split`.

        Args:
            batches: Batches, or an iterable of them; at least one, all with the same spaces.

        Raises:
            DataError: No batches, or their spaces differ.
        """
        parts = [batch for item in batches for batch in ([item] if isinstance(item, TrajectoryBatch) else item)]
        if not parts:
            raise DataError("concatenate needs at least one batch, got 0 batches")
        joined: TrajectoryBatch[AnyObservationsT, AnyActionsT] = parts[0]._joined(parts)
        return joined

    def _joined(self, parts: Sequence[Any]) -> Any:
        if {type(part) for part in parts} != {type(self)}:
            raise DataError("cannot join batches of one agent with batches of several agents")
        return batch_fields.replaced(self, **batch_fields.joined_fields(parts))

    @classmethod
    def from_list(
        cls, episodes: Sequence[Mapping[str, Any]], observation_space: AnySpace, action_space: AnySpace
    ) -> TrajectoryBatch[Any, Any]:
        """Make a batch of episodes given as dicts, in the format of `to_list`.

        Each needs "observations", "actions", "rewards", "terminated" and "truncated", and "last_observation" or one
        more observation than rewards. Other keys are optional: by default indices count from 0, seeds and agent
        versions are 0. An episode with "cut" need not have ended; a "continued" episode needs "earlier_length" and
        "earlier_return".

        Raises:
            UsageError: The list is empty, an episode lacks a key or has an unknown key, or a value is no integer.
            DataError: Arrays do not fit each other or the spaces, or a value does not fit its key.
        """
        batch: TrajectoryBatch[Any, Any] = batch_of_episodes(cls, episodes, observation_space, action_space)
        return batch

    def save(
        self,
        path: str | PathLike[str],
        provenance: Mapping[str, Any] | None = None,
        *,
        compress: bool = False,
        infos: bool | Iterable[str] = True,
    ) -> Path:
        """Write this batch to an `.npz` file; see `streamsampler.data.npz.save`.

        `infos=False` writes no infos, and `infos=["x", "y"]` only those of these names. `compress=True` makes a smaller
        file and takes longer.
        """
        from streamsampler.data.npz import save  # the layer above

        return save(self, path, provenance=provenance, compress=compress, infos=infos)

    @staticmethod
    def load(path: str | PathLike[str]) -> TrajectoryBatch[AnyObservationsT, AnyActionsT]:
        """Load a batch from a file; see `streamsampler.data.shards.load`."""
        from streamsampler.data.npz import load_with_header  # the layer above

        batch: TrajectoryBatch[AnyObservationsT, AnyActionsT] = load_with_header(path, batch_of_fields)[0]
        return batch


def batch_of_fields(fields: dict[str, Any]) -> TrajectoryBatch[Any, Any]:
    """Make a batch of its fields: a `MultiAgentBatch` if it has `policies`."""
    kinds = [kind for kind in TrajectoryBatch.__subclasses__() if "policies" in kind.__dataclass_fields__]
    return (kinds[0] if "policies" in fields else TrajectoryBatch)(**fields)


def _mean(returns: NDArray[np.float64]) -> str:
    spread = f" ± {returns.std(ddof=1) / np.sqrt(len(returns)):.3g} standard error" if len(returns) > 1 else ""
    return f"{returns.mean():.4g}{spread}"


def _unchecked(cls: type[Any], **fields: Any) -> Any:
    vars(batch := object.__new__(cls)).update(fields, stats=None)
    return batch
