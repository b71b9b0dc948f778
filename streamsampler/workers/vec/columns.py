"""Keep the values of several rows, step for step: those of environments that are stepped together.

A value has the number `step * n_rows + row`. Where they have all been written, `gather` brings those that are wanted
into any order, all at once: so a step of n rows costs a few operations on arrays, not n times as many.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, repeat
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError, ObservationError
from streamsampler.data.copying import Allocate, Leaf
from streamsampler.data.info_columns import with_last_values
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts, refuse_actions_outside
from streamsampler.data.spaces import AnySpace, misfit, short
from streamsampler.data.trees import Array, Tree, leaves, snapshot
from streamsampler.workers.vec.batch_infos import BatchInfos
from streamsampler.workers.vec.growing import GrowingColumn

# ----------------------------------------------------------------------
# Walk through the parts of nested spaces, and of their values.


def children_of(space: AnySpace, path: str) -> list[tuple[str, AnySpace, Any]] | None:
    """Return path, space and key of each part of a Dict or a Tuple; None for a leaf."""
    if isinstance(space, gym_spaces.Dict):
        return [(f"{path}[{key!r}]", child, key) for key, child in space.spaces.items()]
    if isinstance(space, gym_spaces.Tuple):
        return [(f"{path}[{i}]", child, i) for i, child in enumerate(space.spaces)]
    return None


def leaves_of(space: AnySpace, path: str) -> Iterator[tuple[str, AnySpace]]:
    """Yield path and space of each leaf."""
    children = children_of(space, path)
    if children is None:
        yield path, space
    else:
        for name, child, _ in children:
            yield from leaves_of(child, name)


def nested(space: AnySpace, arrays: Iterator[Array]) -> Tree:
    """Nest arrays, one for each leaf in order, as a space does."""
    if isinstance(space, gym_spaces.Dict):
        return {key: nested(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple([nested(child, arrays) for child in space.spaces])
    return next(arrays)


def values_of(space: AnySpace, value: Any, path: str, error: type[DataError]) -> Iterator[Any]:
    """Yield what each leaf has of a single value."""
    children = children_of(space, path)
    if children is None:
        yield value
        return
    if isinstance(space, gym_spaces.Dict):
        fits = isinstance(value, Mapping) and value.keys() == space.spaces.keys()
    else:
        # An array stands for the tuple of its rows: environments of several discrete parts hand out such.
        is_sequence = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
        fits = is_sequence and len(value) == len(children)
    if not fits:
        raise misfit(value, cast(Any, space), path, error)
    for name, child, key in children:
        yield from values_of(child, value[key], name, error)


# ----------------------------------------------------------------------


_NUMBERS = "biufc"
_TYPED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)


class Columns:
    """Checked copies of the values of a space, those of `n_rows` rows at a time.

    Args:
        space: The space of a single value.
        n_rows: How many values a step has.
        path: What a value is called in errors, such as `action`.
        error: What is raised for a value that does not fit.
        buffers: Arrays of (steps, n_rows, ...) to write to, one for each leaf of the space; None for new ones.

    Attributes:
        n_steps: How many steps were written.
    """

    def __init__(
        self, space: AnySpace, n_rows: int, path: str, error: type[DataError] = DataError,
        buffers: Iterable[Array] | None = None,
    ) -> None:  # fmt: skip
        self.n_steps = 0
        self._space, self._path, self._error = space, path, error
        given = iter(buffers) if buffers is not None else repeat(None)
        self._leaves = [_LeafColumn(leaf, n_rows, name, error, next(given)) for name, leaf in leaves_of(space, path)]
        self._n_rows = n_rows
        self._only = self._leaves[0] if isinstance(space, _TYPED) else None
        self._keys: tuple[str, ...] = ()  # of a Dict without Dicts and Tuples in it
        if isinstance(space, gym_spaces.Dict) and len(self._leaves) == len(space.spaces):
            self._keys = tuple(space.spaces)

    def append(self, batch: Any) -> None:
        """Check a batch and write a copy of it, of the dtypes of the space, as the next step.

        Args:
            batch: Leaves of shape (n_rows, ...); or a sequence of n_rows values.

        Raises:
            DataError: It does not fit; says both shapes. An attribute `row` of the error tells the row, if it is one
                row's fault.
        """
        if self._only is not None:
            self._only.copy(self.n_steps, self._only.checked(batch, self._n_rows))
        else:
            for leaf, values in zip(self._leaves, self._checked(batch, self._n_rows), strict=True):
                leaf.copy(self.n_steps, values)
        self.n_steps += 1

    def checked(self, batch: Any, n: int) -> list[Array]:
        """Check n values, and return each leaf of them, of the dtypes of the space; see `append`."""
        return list(self._checked(batch, n)) if self._only is None else [self._only.checked(batch, n)]

    def put_checked(self, step: int, rows: Any, checked: list[Array]) -> None:
        """Write a copy of values that were checked to some rows of a step: to a list of them, or to a slice."""
        for leaf, values in zip(self._leaves, checked, strict=True):
            leaf.at(step)[rows] = values

    def extend(self, values: Tree, n: int) -> None:
        """Write copies of n values that were checked, leaves of (n, ...), as the next n steps; there is one row."""
        if self._only is not None:
            self._only.extend(self.n_steps, cast("Array", values))
        else:
            for leaf, (_, part) in zip(self._leaves, leaves(values), strict=True):
                leaf.extend(self.n_steps, part)
        self.n_steps += n

    def nested(self, parts: Iterable[Array]) -> Tree:
        """Nest arrays, one for each leaf in order, as the space does."""
        return next(iter(parts)) if self._only is not None else nested(self._space, iter(parts))

    def row_batch(self, step: int) -> Tree:
        """Return the (n_rows, ...) values of a step, which is at most the next one: views to read, or to write to.

        A loop may write a row itself that has just the shape and dtype of its leaf, and `put` any other. Views hold
        until room is made for more steps. Writing to the next step makes it a step: set `n_steps`.
        """
        if self._only is not None:
            return self._only.at(step)
        return nested(self._space, (leaf.at(step) for leaf in self._leaves))

    def put(self, step: int, row: int, value: Any) -> None:
        """Check a single value and write a copy of it to a row of a step.

        Raises:
            DataError: It does not fit; says both shapes.
        """
        if (only := self._only) is not None:
            only.at(step)[row] = only.converted(value)
            return
        for leaf, part in zip(self._leaves, self._parts(value), strict=True):
            leaf.at(step)[row] = leaf.converted(part)

    def _parts(self, value: Any) -> Iterable[Any]:
        """Return what each leaf has of a single value."""
        if self._keys and value.__class__ is dict and len(value) == len(self._keys):
            try:
                return [value[key] for key in self._keys]  # the way below takes 3 µs more for three of them
            except KeyError:
                pass  # which it tells of
        return values_of(self._space, value, self._path, self._error)

    def put_converted(self, step: int, row: int, converted: list[Any]) -> None:
        """Write what `converted` returned to a row of a step."""
        for leaf, part in zip(self._leaves, converted, strict=True):
            leaf.at(step)[row] = part

    def converted(self, value: Any) -> list[Any]:
        """Check a single value as `put` does, and return each leaf of it as it is stored."""
        return [leaf.converted(part) for leaf, part in zip(self._leaves, self._parts(value), strict=True)]

    def gather(self, numbers: NDArray[np.int64], allocate: Allocate | None = None) -> Tree:
        """Return the values of some numbers, in their order: a tree of (k, ...); see `GrowingColumn.gather`."""
        return nested(self._space, (leaf.gather(numbers, allocate) for leaf in self._leaves))

    def forget_before(self, step: int) -> None:
        """Forget what was written before a step, which has the number 0 then."""
        for leaf in self._leaves:
            leaf.forget_before(step, self.n_steps)
        self.n_steps -= step

    def clear(self) -> None:
        """Forget everything, and keep the memory."""
        self.n_steps = 0

    def _checked(self, batch: Any, n: int) -> Iterator[Array]:
        """Yield the values of each leaf, (n, ...): those of a batch that is nested as the space, or of n values."""
        return self._checked_part(self._space, batch, n, self._path, iter(self._leaves))

    def _checked_part(
        self, space: AnySpace, batch: Any, n: int, path: str, leaves: Iterator[_LeafColumn]
    ) -> Iterator[Array]:
        children = children_of(space, path)
        if children is None:
            yield next(leaves).checked(batch, n)
        elif isinstance(batch, Mapping if isinstance(space, gym_spaces.Dict) else tuple):
            if len(batch) != len(children) or any(
                isinstance(batch, Mapping) and key not in batch for *_, key in children
            ):
                raise misfit(batch, cast(Any, space), path, self._error)
            for name, child, key in children:
                yield from self._checked_part(child, batch[key], n, name, leaves)
        else:
            mine = list(islice(leaves, sum(1 for _ in leaves_of(space, path))))
            arrays = [leaf.empty(n) for leaf in mine]
            for row, value in enumerate(sequence_of(batch, n, path, self._error)):
                with _at_row(row):
                    parts = values_of(space, value, path, self._error)
                    for leaf, array, part in zip(mine, arrays, parts, strict=True):
                        array[row] = leaf.converted(part)
            yield from arrays


class _LeafColumn(GrowingColumn):
    """The values of one leaf of a space; objects, where its space is none of arrays."""

    def __init__(
        self, space: AnySpace, n_rows: int, path: str, error: type[DataError], buffer: Array | None = None
    ) -> None:
        self._leaf = Leaf(space, path, error)
        self._space, self._path, self._error = space, path, error
        self._shape, self._dtype = self._leaf.shape, self._leaf.dtype
        self._copied_dtype = None if self._dtype.hasobject else self._dtype  # of batches that are copied as they are
        self._is_index = isinstance(space, gym_spaces.Discrete) and self._dtype == np.int64
        super().__init__(n_rows, self._dtype, self._shape, buffer)

    def empty(self, n: int) -> Array:
        """Return an array for n values."""
        return np.empty((n, *self._shape), self._dtype)

    def checked(self, batch: Any, n: int) -> Array:
        """Check a batch of n values and return it, (n, ...) of the leaf's dtype: the same object where it is that."""
        dtype, shape = self._dtype, (n, *self._shape)
        if batch.__class__ is np.ndarray and batch.dtype is self._copied_dtype and batch.shape == shape:
            return batch
        if dtype.hasobject:
            return self._each(sequence_of(batch, n, self._path, self._error), n)
        if batch.__class__ is not np.ndarray:
            array = self._as_array(batch)
            if array.dtype.kind not in _NUMBERS and isinstance(batch, list | tuple) and len(batch) == n:
                return self._each(batch, n)  # of which one is no number; together they have become something else
            batch = array
        if batch.shape != shape:
            raise self._error(
                f"a batch of {n} has the shape {batch.shape}, and should have {shape}: "
                f"{self._path} has the shape {self._shape} in its space"
            )
        if batch.dtype == dtype:
            return batch  # type: ignore[no-any-return]
        return self._leaf.cast_rows(batch) if self._leaf.takes_floats_of(batch.dtype) else self._each(batch, n)

    def _each(self, values: Iterable[Any], n: int) -> Array:
        made = self.empty(n)
        for row, value in enumerate(values):
            with _at_row(row):
                made[row] = self.converted(value)
        return made

    def converted(self, value: Any) -> Any:
        """Return a single value as it is stored."""
        if self._dtype.hasobject:
            if isinstance(self._space, gym_spaces.Text) and not isinstance(value, str):
                raise self._error(f"{self._path} should be a str, and is {short(value)}")
            return snapshot(value)
        if self._is_index:
            try:
                # Takes what can be an index, which is every integer and nothing else.
                number = operator.index(value)
                if -(1 << 63) <= number < 1 << 63:
                    return number
            except TypeError:
                pass
        elif value.__class__ is np.ndarray and value.shape == self._shape:
            return value if value.dtype == self._dtype else self._leaf.cast(value)
        return self._leaf.convert(value)

    def _as_array(self, batch: Any) -> Array:
        try:
            return np.asarray(batch)
        except (TypeError, ValueError, RuntimeError) as reason:
            raise self._error(f"a batch for {self._path} is no array: {reason}; it is {short(batch)}") from reason


class ColumnsRecorder:
    """Records what n rows did in each step, in columns, and gathers trajectories.

    The value of a row in a step has the number ``step * n_rows + row``.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
        n_rows: How many rows.
        env_infos: Records the infos of steps.
        episode_infos: Records the infos of resets.

    Attributes:
        n_rows: The same.
        step: The step in hand.
        observations: The observations, those before each step.
        actions: The actions.
        agent_infos: The agent's infos, by number, where they come for all rows together.
        record_agent_info: Takes (number, info), where they come one by one.
        n_begun: How many trajectories began.
    """

    def __init__(
        self, observation_space: AnySpace, action_space: AnySpace, n_rows: int,
        env_infos: InfoRecorder | BatchInfos, episode_infos: InfoRecorder | BatchInfos,
    ) -> None:  # fmt: skip
        self.n_rows, self._action_space = n_rows, action_space
        self.observations = Columns(observation_space, n_rows, "observation", ObservationError)
        self.actions = Columns(action_space, n_rows, "action", ActionError)
        self._env_infos, self._episode_infos = env_infos, episode_infos
        self.agent_infos, self._agent_info = BatchInfos("agent_infos"), InfoRecorder("agent_infos")
        self.record_agent_info: Callable[[int, dict[str, Any]], None] = self._agent_info.record
        self.step = self.n_begun = 0

    def clear(self) -> None:
        """Forget everything."""
        for part in (
            self.observations, self.actions, self._env_infos, self._episode_infos, self.agent_infos, self._agent_info
        ):  # fmt: skip
            part.clear()
        self.step = self.n_begun = 0

    def numbers_from(self, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of all values of trajectories that go on in their rows, one trajectory after the other.

        Args:
            first: The number of the first value of each.
            lengths: Their timesteps.
        """
        n_rows = self.n_rows
        numbers = np.repeat(first - (np.cumsum(lengths) - lengths) * n_rows, lengths)
        return numbers + np.arange(0, len(numbers) * n_rows, n_rows)

    def gathered(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], episodes: NDArray[np.int64], allocate: Allocate,
        rewards: Callable[[NDArray[np.int64]], Array], last_observations: Callable[[], Tree],
        terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], values: Mapping[int, float],
    ) -> Rollouts:  # fmt: skip
        """Return trajectories.

        Args:
            numbers: The numbers of all their values.
            lengths: Their timesteps.
            episodes: What their resets' infos were recorded as.
            allocate: Makes the arrays of what there is of each timestep.
            rewards: Returns the rewards of numbers, in their order.
            last_observations: Returns their last observations.
            terminated: How they ended.
            truncated: How they ended.
            values: The agent's values of their last observations, as far as they were told, by position, rising.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position among them.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        stops = np.cumsum(lengths)
        actions = self.actions.gather(numbers, allocate)
        refuse_actions_outside(self._action_space, actions, lengths)

        def owners(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.searchsorted(stops, rows, side="right")

        agent_infos = self._agent_info.select(numbers, owners)
        episode_infos = self._episode_infos.select(episodes, lambda positions: positions)
        if values:
            episode_infos = with_last_values(episode_infos, list(values), list(values.values()))
        return Rollouts(
            observations=self.observations.gather(numbers, allocate),
            last_observations=last_observations(),
            actions=actions,
            rewards=rewards(numbers),
            terminated=terminated,
            truncated=truncated,
            lengths=lengths,
            env_infos=self._env_infos.select(numbers, owners),
            # An agent always uses the same of the two.
            agent_infos=agent_infos if agent_infos.columns else self.agent_infos.select(numbers, owners),
            episode_infos=episode_infos,
            has_last_values=bool(values),
        )


@contextmanager
def _at_row(row: int) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        error.row = row
        raise


def sequence_of(batch: Any, n_rows: int, path: str, error: type[DataError]) -> list[Any]:
    """Return the values of a batch that is a sequence of n values.

    Raises:
        DataError: It is none.
    """
    is_sequence = isinstance(batch, list | tuple) or (isinstance(batch, np.ndarray) and batch.ndim > 0)
    if not is_sequence or len(batch) != n_rows:
        raise error(f"a batch for {path} should be a sequence of {n_rows} values, and is {short(batch)}")
    return list(batch)
