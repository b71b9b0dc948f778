"""Record the trajectories of a native vector environment in columns, and cut them out when all have ended."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace, check_rewards, short
from streamsampler.data.trees import Tree, concatenate, leaves, map_tree, same, snapshot, take
from streamsampler.environments.updates import AnyVectorEnv, EnvUpdate, NewEnvUpdate
from streamsampler.errors import DataError, ObservationError, UsageError
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.vec.columns import Column, Columns, RowRecorder
from streamsampler.workers.vec.rows import BatchInfos, row_of

# ----------------------------------------------------------------------
# Check what a vector environment returns, and fill batches with one row for each slot.


_FINAL = ("final_obs", "final_info")


def check_infos(path: str, infos: Any) -> None:
    """Check that the infos of a vector environment are a dict.

    Raises:
        DataError: They are something else.
    """
    if not isinstance(infos, Mapping):
        raise DataError(f"{path}: the infos of a vector environment must be a dict, got {short(infos)}")


def column_of_slots(values: Any, n_slots: int, name: str, kinds: str) -> NDArray[Any]:
    """Return rewards or ends as an array with one entry for each slot.

    Raises:
        DataError: It has another shape or kind; says both.
    """
    column = np.asarray(values)
    if column.shape != (n_slots,) or column.dtype.kind not in kinds:
        raise DataError(
            f"{name} should be an array of shape {(n_slots,)}, and is {column.dtype} of shape {column.shape}"
        )
    return column


def without_final(infos: Any) -> dict[str, Any]:
    """Return infos without the final observations and infos of AutoresetMode.SAME_STEP."""
    return {key: value for key, value in infos.items() if key.removeprefix("_") not in _FINAL}


def for_env(tree: Tree) -> Any:
    """Return a batch of stored actions as a vector environment takes it: in arrays of its own, objects in a tuple."""
    if isinstance(tree, dict):
        return {key: for_env(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(for_env(child) for child in tree)
    return tuple(tree.tolist()) if tree.dtype.hasobject else tree.copy()


# ----------------------------------------------------------------------


_FLOAT64 = np.dtype(np.float64)
_EXACT = "?bBhHiIefd"  # the dtypes whose numbers a float64 holds


class NativeRecorder(RowRecorder):
    """Records the trajectories of a ticket, all slots at a time.

    Steps count on over the ticket's blocks. Each has a column of observations, those before the step, and columns of
    what was done and said then, with one value for each slot: what no trajectory is made of as well.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
        n_slots: How many slots there are.

    Attributes:
        env_infos: Infos of steps, by number.
        episode_infos: Infos of resets, by the trajectories' positions in the ticket.
        n_ended: Trajectories that have ended.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_slots: int) -> None:
        self.env_infos, self.episode_infos = BatchInfos("env_infos"), BatchInfos("episode_infos")
        super().__init__(observation_space, action_space, n_slots, self.env_infos, self.episode_infos)
        self._n_slots, self._shape = n_slots, (n_slots,)
        self._apart = Columns(observation_space, n_slots, "observation", ObservationError)
        self._rewards = Column(n_slots, _FLOAT64)
        self._last_observations: list[Tree] = []
        # What began, or ended, before one step: the slots, the step, and how they ended.
        self._begun: list[tuple[NDArray[np.int64], int]] = []
        self._ended: list[tuple[NDArray[np.int64], int, NDArray[np.bool_], NDArray[np.bool_]]] = []
        self.n_ended = 0

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        for part in (self._last_observations, self._begun, self._ended):
            part.clear()
        self.n_ended = 0

    def begin_block(self, observations: Any, silent: NDArray[np.bool_]) -> None:
        """Record what slots begin a block with; what silent ones show does not matter."""
        # After the last block's last observations, which are no step's.
        self.step = self.observations.n_steps
        _append(self.observations, observations, silent)
        self.actions.n_steps = self.step

    def record(self, observations: Any, rewards: Any, silent: NDArray[np.bool_], live: NDArray[np.bool_]) -> None:
        """Record what a step returned.

        Args:
            observations: Those after the step.
            rewards: (n_slots,) numbers.
            silent: The slots whose observations do not matter.
            live: The slots whose rewards matter.

        Raises:
            DataError: They do not fit; with the slot as `row`, if it is one slot's fault.
        """
        step = self.step
        self.step = step + 1
        _append(self.observations, observations, silent)
        if rewards.__class__ is not np.ndarray or rewards.shape != self._shape or rewards.dtype.char not in _EXACT:
            rewards = self._checked_rewards(rewards, live)
        self._rewards.copy(step, rewards)

    def _checked_rewards(self, rewards: Any, live: NDArray[np.bool_]) -> NDArray[Any]:
        column = column_of_slots(rewards, self._n_slots, "rewards", "biuf")
        try:
            check_rewards(column[live])
        except DataError as error:
            error.row = int(np.flatnonzero(live)[error.row or 0])
            raise
        return column

    def begin(self, slots: NDArray[np.int64], infos: Any) -> None:
        """Begin the ticket's next trajectories with the next step, in these slots.

        Args:
            slots: The slots.
            infos: The infos of their resets, arrays of (n_slots, ...).
        """
        if infos:
            positions = np.arange(self.n_begun, self.n_begun + len(slots))
            self.episode_infos.record(positions, infos, slots)
        self._begun.append((slots, self.step))
        self.n_begun += len(slots)

    def end(
        self, slots: NDArray[np.int64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], final: Any = None
    ) -> None:
        """End the trajectories of some slots with the last step.

        Args:
            slots: The slots.
            terminated: (n,) what the environment said of them.
            truncated: (n,) the same, or true because of a limit of the sampler's.
            final: (n_slots, ...) the last observations, where these slots begin their next trajectories in the same
                step; None where what was recorded stays.
        """
        self._ended.append((slots, self.step, terminated, truncated))
        if final is not None:
            self._last_observations.append(take(self._written_apart(final, slots), slots))
        self.n_ended += len(slots)

    def running_positions(self) -> NDArray[np.int64]:
        """Return the position in the ticket of the trajectory that each slot began last."""
        positions = np.zeros(self._n_slots, dtype=np.int64)
        position = 0
        for slots, _ in self._begun:
            positions[slots] = np.arange(position, position + len(slots))
            position += len(slots)
        return positions

    def begin_again(self, observations: Any, used: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Record the observations that slots, which were reset by themselves, go on with.

        Args:
            observations: What the reset returned.
            used: Slots that begin a trajectory.
            slots: Those and others.
        """
        apart = self._written_apart(observations, used)
        for (_, whole), (_, rows) in zip(leaves(self.observations.row_batch(self.step)), leaves(apart), strict=True):
            whole[slots] = rows[slots]

    def _written_apart(self, observations: Any, used: NDArray[np.int64]) -> Tree:
        """Return a checked copy of observations of which only those of some slots matter."""
        unused = np.ones(self._n_slots, dtype=np.bool_)
        unused[used] = False
        self._apart.clear()
        _append(self._apart, observations, unused)
        return self._apart.row_batch(0)

    def finish(self, allocate: Allocate, most: int | None = None) -> Rollouts:
        """Return the ticket's trajectories, all of which have ended, in its order.

        Args:
            allocate: Makes the arrays of what there is of each timestep.
            most: How many trajectories to give at most; None for all of them. What is wrong with those after them
                does not matter.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position in the
                ticket.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        n_slots = self._n_slots
        slots, first = _flat(self._begun)
        ended, last = _flat(self._ended)
        # A slot's trajectories end in the order in which they began.
        in_order = np.empty(len(slots), dtype=np.int64)
        in_order[np.argsort(slots, kind="stable")] = np.argsort(ended, kind="stable")
        in_order, slots, first = in_order[:most], slots[:most], first[:most]
        last = last[in_order]

        def last_observations() -> Tree:
            if self._last_observations:
                return take(concatenate(self._last_observations), in_order)
            return self.observations.gather(last * n_slots + slots)

        terminated, truncated = (np.concatenate([each[k] for each in self._ended])[in_order] for k in (2, 3))
        return self.gathered(
            first * n_slots + slots, last - first, np.arange(len(first)), allocate,
            partial(self._rewards.gather, allocate=allocate), last_observations, terminated, truncated,
        )  # fmt: skip


def _flat(events: Sequence[tuple[Any, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return slot and step of each trajectory that began, or that ended."""
    slots = [event[0] for event in events]
    return np.concatenate(slots), np.repeat([event[1] for event in events], list(map(len, slots)))


def _append(columns: Columns, batch: Any, unused: NDArray[np.bool_]) -> None:
    """Append a batch, in which it is no error whatever unused rows hold."""
    try:
        columns.append(batch)
    except DataError as error:
        holds_rows = isinstance(batch, np.ndarray) and batch.dtype == object
        if not holds_rows and (error.row is None or not unused[error.row]):
            raise
    else:
        return
    step, rows = columns.n_steps, np.flatnonzero(~unused)
    for row in rows.tolist():
        try:
            columns.put(step, row, row_of(batch, row))
        except DataError as error:
            error.row = row
            raise
    for _, leaf in leaves(columns.row_batch(step)):
        leaf[unused] = leaf[rows[0]] if len(rows) else 0
    columns.n_steps = step + 1


# ----------------------------------------------------------------------
# Check that a native vector environment uses the seeds of its resets; otherwise make it from a seed each time.


if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # which takes no parameters in older versions of Gymnasium


def using_seeds(env: AnyVectorEnv, update: EnvUpdate) -> AnyVectorEnv:
    """Return a vector environment whose beginning is a function of the seeds that it is reset with.

    It is reset twice and compared: some environments, such as EnvPool's, draw from the seed that they are made with,
    and ignore any other. Such an environment is replaced at each reset by one that its factory makes from a seed.

    Args:
        env: The environment.
        update: What made it.

    Returns:
        The environment, or one that is made again for each seed.

    Raises:
        UsageError: It ignores seeds, and nothing takes one to make it; or the update changed one that is made again.
    """
    if isinstance(env, _MadeFromSeeds):
        raise UsageError(
            f"{name_of_env(env)} is made again for each block of trajectories, because it ignores the seeds of resets, "
            "so that a change of it would be lost: pass a function that makes the environment as it is to be"
        )
    seeds = list(range(env.num_envs))
    if _begins_alike(env, seeds):
        return env
    name, seeded = name_of_env(env), None
    if isinstance(update, NewEnvUpdate) and update.with_seed(0) is not None:
        seeded = _MadeFromSeeds(env, update)
        if _begins_alike(seeded, 0):
            return seeded
    why = "reset twice with the same seeds" if seeded is None else "made twice from the same seed"
    raise UsageError(
        f"the vector environment {name} began differently when it was {why}, so that no trajectory could be run again. "
        "Where reset ignores its seed, pass a function that makes the environment from one, which is called for each "
        "block of trajectories: lambda seed=0: envpool.make(…, seed=seed)"
    )


class _MadeFromSeeds(_Wrapper):
    """Makes a new environment at each reset that has a seed."""

    def __init__(self, env: AnyVectorEnv, update: NewEnvUpdate) -> None:
        super().__init__(env)
        self._update, self._context = update, copy_context()  # which has the worker's number

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Make the environment from a seed, if there is one, and reset it."""
        if seed is not None:
            if not isinstance(seed, int):
                raise TypeError(f"one seed makes all environments, got {seed!r}")
            self.env.close()
            make: Any = self._update.with_seed(seed)
            self.env = self._context.run(make, None)
        return self.env.reset() if options is None else self.env.reset(options=options)


def _begins_alike(env: AnyVectorEnv, seeds: Any) -> bool:
    """Return whether an environment begins in the same way from the same seeds."""
    begun = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as EnvPool's, that it ignores the seed
        for _ in range(2):
            try:
                observations, _ = env.reset(seed=seeds)
            except Exception:
                if not isinstance(seeds, list):
                    return True  # no verdict: it is raised again when the first block begins
                return _begins_alike(env, seeds[0])
            begun.append(map_tree(_kept, observations))
    return same(*begun)


def _kept(observation: Any) -> Any:
    return np.array(observation) if hasattr(observation, "__array__") else snapshot(observation)
