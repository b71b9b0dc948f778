"""The fields of a batch: their checks, padding, and conversion to PyTorch tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.core.extras import needed
from streamsampler.data import trees
from streamsampler.data.agent_rows import AgentRows
from streamsampler.data.infos import concatenate_infos, is_mask, validate_infos
from streamsampler.data.spaces import AnySpace, same_space, validate
from streamsampler.data.statistics import Stats
from streamsampler.data.trees import Array, Tree

# For type checkers, batches, folders and samplers are generic in the types of observations and actions, arrays by
# default: `MultiprocessingSampler[dict[str, NDArray[Any]]](agent, env)` returns batches with dicts of observations. At
# runtime the brackets mean nothing.
if TYPE_CHECKING:
    # Type checkers know this module even if it is not installed; `typing` has defaults only from Python 3.13 on.
    from typing_extensions import TypeVar

    ActionsT = TypeVar("ActionsT", covariant=True, default=Array)
    ObservationsT = TypeVar("ObservationsT", covariant=True, default=Array)
    AnyActionsT = TypeVar("AnyActionsT", default=Array)
    AnyObservationsT = TypeVar("AnyObservationsT", default=Array)
else:
    from typing import TypeVar

    ActionsT = TypeVar("ActionsT", covariant=True)
    ObservationsT = TypeVar("ObservationsT", covariant=True)
    AnyActionsT = TypeVar("AnyActionsT")
    AnyObservationsT = TypeVar("AnyObservationsT")


class RawRows(NamedTuple):
    """The observations, last observations and rewards of a filtered batch before the filters."""

    observations: Any
    last_observations: Any
    rewards: NDArray[np.float64]

    def select(self, timesteps: Any, rows: Any) -> RawRows:
        last = trees.take(self.last_observations, rows)
        return RawRows(trees.take(self.observations, timesteps), last, self.rewards[timesteps])

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> RawRows | None:
        """Concatenate raw data; None if no batch was filtered."""
        if all(it.raw is None for it in batches):
            return None
        names = ("observations", "last_observations", "rewards")
        observations, last, rewards = (trees.concatenate([raw_value_of(it, name) for it in batches]) for name in names)
        return cls(observations, last, cast("NDArray[np.float64]", rewards))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BatchFields(Generic[ObservationsT, ActionsT]):
    """The fields of a `TrajectoryBatch`, which documents them."""

    observation_space: AnySpace
    action_space: AnySpace
    observations: ObservationsT
    last_observations: ObservationsT
    actions: ActionsT
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    env_infos: dict[str, Array]
    agent_infos: dict[str, Array]
    episode_infos: dict[str, Array]
    lengths: NDArray[np.int64]
    indices: NDArray[np.int64]
    seeds: tuple[int, ...]
    agent_versions: NDArray[np.int64]
    seed: int | None
    fragments: dict[str, Array] = field(default_factory=dict)
    stats: Stats | Any = field(default=None, compare=False)
    worker_numbers: NDArray[np.int64] = field(default=cast("Any", None), compare=False)
    fingerprints: frozenset[str] = field(default=frozenset(), compare=False)
    raw: RawRows | None = None
    agents: AgentRows | None = None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(N,) int64: the timestep at which each trajectory starts."""
        return np.cumsum(self.lengths) - self.lengths


def value_of(batch: Any, name: str) -> Any:
    """Return an attribute of a batch, even if a `MultiAgentBatch` hides it from users."""
    fields = vars(batch)
    return fields[name] if name in fields else getattr(batch, name)


def raw_value_of(batch: Any, name: str) -> Any:
    return value_of(batch, name) if batch.raw is None else getattr(batch.raw, name)


def replaced(batch: Any, **changes: Any) -> Any:
    """Like `dataclasses.replace`, but also with hidden fields."""
    fields = {item.name: value_of(batch, item.name) for item in dataclasses.fields(batch)}
    return type(batch)(**{**fields, **changes})


class RawData(BatchFields[ObservationsT, ActionsT]):
    """The members of a `TrajectoryBatch` about raw and filtered data; without filters both are the same."""

    @property
    def raw_observations(self) -> Any:
        """Tree of (T, *O): the environment's observations; the agent received `observations`."""
        return raw_value_of(self, "observations")

    @property
    def raw_last_observations(self) -> Any:
        """Tree of (N, *O): the environment's last observations."""
        return raw_value_of(self, "last_observations")

    @property
    def raw_rewards(self) -> NDArray[np.float64]:
        """(T,) float64: the environment's rewards."""
        return self.rewards if self.raw is None else self.raw.rewards

    @property
    def returns(self) -> NDArray[np.float64]:
        """(N,) float64: the undiscounted sum of each trajectory's rewards, filtered if the batch is.

        `raw_returns` has the environment's. In fragments these are returns of parts of episodes; `episode_returns` has
        those of whole episodes.
        """
        return sums(self.rewards, self.lengths)

    @property
    def raw_returns(self) -> NDArray[np.float64]:
        """(N,) float64: the undiscounted sum of each trajectory's raw rewards; see `returns`."""
        return sums(self.raw_rewards, self.lengths)

    def unfiltered(self) -> Self:
        """Return the batch with raw in place of filtered data; itself if nothing was filtered."""
        if self.raw is None:
            return self
        return cast("Self", replaced(self, **self.raw._asdict(), raw=None))


class BatchAgents(BatchFields[ObservationsT, ActionsT]):
    """The members of a `TrajectoryBatch` about several agents."""

    @property
    def agent_ids(self) -> NDArray[np.str_]:
        """(N,) str: the agent of each trajectory."""
        rows = self._agent_rows()
        return np.array(rows.known, np.str_)[rows.numbers]

    @property
    def episode_numbers(self) -> NDArray[np.int64]:
        """(N,) int64: the number of each trajectory's episode in `MultiAgentBatch.episodes`."""
        return self._agent_rows().episodes

    @property
    def env_timesteps(self) -> NDArray[np.int64]:
        """(T,) int64: the environment timestep, counted from the reset, in which the agent acted."""
        return self._agent_rows().env_timesteps

    def _agent_rows(self) -> AgentRows:
        if self.agents is None:
            raise DataError(
                "only a policy's batch, batch['policy name'] of a MultiAgentBatch, has agent_ids, episode_numbers and "
                "env_timesteps"
            )
        return self.agents


def sums(rewards: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of each trajectory's rewards, (N,)."""
    starts = np.cumsum(lengths) - lengths
    return cast("NDArray[np.float64]", np.add.reduceat(rewards, starts)) if len(lengths) else np.zeros(0)


ARRAYS = (
    *("observations", "last_observations", "actions", "rewards", "terminated", "truncated"),
    *("lengths", "indices", "agent_versions", "worker_numbers"),
)
"""The fields of a batch with trees of arrays."""
INFOS = ("env_infos", "agent_infos", "episode_infos")
PER_TIMESTEP = ("observations", "actions", "rewards", "env_infos", "agent_infos")
PER_TRAJECTORY = tuple(name for name in (*ARRAYS, *INFOS) if name not in PER_TIMESTEP)


def check_batch(batch: Any) -> None:
    """Raise a `DataError` unless the fields of a `TrajectoryBatch` fit each other and their spaces."""
    n_trajectories, n_timesteps = _check_lengths(batch.lengths)
    for name in ("indices", "agent_versions", "worker_numbers"):
        _check_array(name, getattr(batch, name), (n_trajectories,), np.int64)
    for name in ("terminated", "truncated"):
        _check_array(name, getattr(batch, name), (n_trajectories,), np.bool_)
    _check_array("rewards", batch.rewards, (n_timesteps,), np.float64)
    _check_seeds(batch.seeds, n_trajectories)
    check_fragments(batch.fragments, n_trajectories)
    ended = batch.terminated | batch.truncated
    if batch.fragments:
        ended |= batch.fragments["cut"]
    if not ended.all():
        position = int(ended.argmin())
        raise DataError(f"trajectory {position} of {n_trajectories} is neither terminated nor truncated")
    validate(batch.observation_space, raw_value_of(batch, "observations"), n_timesteps, "observations")
    validate(batch.observation_space, raw_value_of(batch, "last_observations"), n_trajectories, "last_observations")
    if batch.agents is not None:
        batch.agents.check(n_trajectories, n_timesteps)
    if batch.raw is not None:
        _check_filtered(batch, n_timesteps, n_trajectories)
    validate(batch.action_space, value_of(batch, "actions"), n_timesteps, "actions")
    for name in INFOS:
        validate_infos(getattr(batch, name), n_timesteps if name in PER_TIMESTEP else n_trajectories, name)


def _check_filtered(batch: Any, n_timesteps: int, n_trajectories: int) -> None:
    """Check the numbers of rows only: a filter may change dtypes and shapes."""
    _check_array("raw_rewards", batch.raw_rewards, (n_timesteps,), np.float64)
    for name, n_rows in (("observations", n_timesteps), ("last_observations", n_trajectories)):
        for path, leaf in trees.leaves(value_of(batch, name)):
            if len(leaf) != n_rows:
                raise DataError(f"{name}{path} has {len(leaf)} rows, but should have {n_rows}")


def joined_fields(batches: Sequence[Any]) -> dict[str, Any]:
    """Return the joint fields of batches, apart from those equal in all of them."""
    check_same_spaces(batches)
    fields: dict[str, Any] = {name: trees.concatenate([value_of(it, name) for it in batches]) for name in ARRAYS}
    for name in INFOS:
        size = "n_timesteps" if name in PER_TIMESTEP else "n_trajectories"
        fields[name] = concatenate_infos([(getattr(it, name), getattr(it, size)) for it in batches], name)
    seeds = {it.seed for it in batches}
    return {
        **fields,
        "seeds": tuple(seed for it in batches for seed in it.seeds),
        "seed": seeds.pop() if len(seeds) == 1 else None,
        "fragments": joined_fragments([(it.fragments, it.n_trajectories) for it in batches]),
        "stats": None,
        "fingerprints": frozenset().union(*(it.fingerprints for it in batches)),
        "raw": RawRows.joined(batches),
        "agents": AgentRows.joined(batches),
    }


_WHOLE: dict[str, tuple[type[np.generic], Any]] = {
    "continued": (np.bool_, False),
    "cut": (np.bool_, False),
    "env_numbers": (np.int64, -1),
    "earlier_lengths": (np.int64, 0),
    "earlier_returns": (np.float64, 0.0),
}
"""The arrays of a batch's field `fragments`: their dtypes, and their values for whole trajectories."""


def check_fragments(fragments: Mapping[str, Any], n_trajectories: int) -> None:
    """Raise a `DataError` unless a batch's field `fragments` is empty or has the right arrays."""
    if not fragments:
        return
    if sorted(fragments) != sorted(_WHOLE):
        raise DataError(f"fragments should have {', '.join(_WHOLE)}, but has {', '.join(map(str, fragments))}")
    for name, (dtype, _) in _WHOLE.items():
        array = fragments[name]
        if not isinstance(array, np.ndarray) or array.shape != (n_trajectories,) or array.dtype != dtype:
            raise DataError(
                f"fragments[{name!r}] should be an array of shape ({n_trajectories},) and dtype {np.dtype(dtype)}, "
                f"not {array!r}"
            )
    earlier, continued = fragments["earlier_lengths"], fragments["continued"]
    if (wrong := (earlier > 0) != continued).any():
        position = int(wrong.argmax())
        marked = "marked" if continued[position] else "not marked"
        raise DataError(
            f"trajectory {position} has {earlier[position]} earlier timesteps, but is {marked} as continued"
        )


def joined_fragments(parts: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """Join the field `fragments` of batches, given with their numbers of trajectories; empty fields count as whole."""
    if not any(fragments for fragments, _ in parts):
        return {}
    return {
        name: np.concatenate([fragments.get(name, np.full(n, whole, dtype)) for fragments, n in parts])
        for name, (dtype, whole) in _WHOLE.items()
    }


def check_same_spaces(batches: Sequence[Any]) -> None:
    for name in ("observation_space", "action_space"):
        first = getattr(batches[0], name)
        equal = {id(first)}  # comparing two spaces takes longer than joining two batches
        for position, batch in enumerate(batches):
            space = getattr(batch, name)
            if id(space) not in equal and not same_space(space, first):
                raise DataError(f"{name} differs: {first} in batch 0, {space} in batch {position}")
            equal.add(id(space))


def _check_lengths(lengths: Any) -> tuple[int, int]:
    if not isinstance(lengths, np.ndarray) or lengths.ndim != 1:
        raise DataError(f"lengths should be an array of shape (N,), not {lengths!r}")
    _check_array("lengths", lengths, lengths.shape, np.int64)
    if len(lengths) and lengths.min() < 1:
        position = int(lengths.argmin())
        raise DataError(f"lengths[{position}] is {lengths[position]}, but a trajectory has at least 1 timestep")
    return len(lengths), int(lengths.sum())


def _check_seeds(seeds: Any, n_trajectories: int) -> None:
    if not isinstance(seeds, tuple) or not set(map(type, seeds)) <= {int}:
        raise DataError(f"seeds should be a tuple of Python ints, not {seeds!r}")
    if len(seeds) != n_trajectories:
        raise DataError(f"seeds has {len(seeds)} entries, but the batch has {n_trajectories} trajectories")


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    if not isinstance(array, np.ndarray):
        raise DataError(f"{name} should be an array of shape {shape}, not {array!r}")
    if array.shape != shape:
        raise DataError(f"{name} has the shape {array.shape}, but should have {shape}")
    if array.dtype != dtype:
        raise DataError(f"{name} has the dtype {array.dtype}, but should have {np.dtype(dtype)}")


def padded_tree(tree: Tree, lengths: NDArray[np.int64], length: int, value: Any, name: str) -> Tree:
    """Like `trees.pad`, but raise a `DataError` if a leaf's dtype cannot hold the padding."""
    for path, leaf in trees.leaves(tree, name):
        _check_filler(value, leaf.dtype, path)
    return trees.pad(tree, lengths, length, value)


def padded_infos(
    infos: Mapping[str, Any], lengths: NDArray[np.int64], length: int, value: Any, name: str
) -> dict[str, Any]:
    padded: dict[str, Any] = {}
    for key, rows in infos.items():
        if isinstance(rows, dict):
            padded[key] = padded_infos(rows, lengths, length, value, f"{name}[{key!r}]")
        else:
            filler = False if is_mask(key, infos) else value
            padded[key] = padded_tree(rows, lengths, length, filler, f"{name}[{key!r}]")
    return padded


def _check_filler(value: Any, dtype: np.dtype[Any], path: str) -> None:
    if dtype.kind not in "biuf" or value is False or (value.__class__ is int and value == 0):
        return
    try:
        with np.errstate(all="ignore"):
            filled = np.asarray(value).astype(dtype)
        held = dtype.kind == "f" or bool((filled == np.asarray(value)).all())
    except (TypeError, ValueError, OverflowError):
        held = False
    if not held:
        raise DataError(f"{path} has the dtype {dtype}, which cannot hold the padding value {value!r}")


def tensors_of(fields: Mapping[str, Tree], device: Any) -> dict[str, Any]:
    """Return trees of tensors; see `TrajectoryBatch.to_torch`."""
    torch = needed("torch", "to_torch", "torch")

    def tensor(array: Array) -> Any:
        try:
            made = torch.from_numpy(_sharable(array))
        except TypeError:  # objects, dates, and dtypes unknown to torch
            return array
        return made if device is None else made.to(device)

    return {name: trees.map_tree(tensor, tree) for name, tree in fields.items()}


def _sharable(array: Array) -> Array:
    """Return the array, or a copy if torch cannot share it."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        return array.copy()
    return array
