"""Keep the values of n rows in arrays, step for step.

A value has the number `step * n_rows + row`. `gather` selects numbers in any order at once: so a step costs a few array
operations, not n times as many.
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
from streamsampler.data.copying import Allocate
from streamsampler.data.info_columns import with_last_values
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.leaf_rows import Leaf
from streamsampler.data.recorder import Rollouts, refuse_actions_outside
from streamsampler.data.spaces import AnySpace, misfit, short
from streamsampler.data.trees import Array, Tree, leaves, snapshot
from streamsampler.workers.vec.batch_infos import BatchInfos
from streamsampler.workers.vec.growing_column import GrowingColumn


def children_of(space: AnySpace, path: str) -> list[tuple[str, AnySpace, Any]] | None:
    """Return path, space and key of each part of a Dict or a Tuple; None for a leaf."""
    if isinstance(space, gym_spaces.Dict):
        return [(f"{path}[{key!r}]", child, key) for key, child in space.spaces.items()]
    if isinstance(space, gym_spaces.Tuple):
        return [(f"{path}[{i}]", child, i) for i, child in enumerate(space.spaces)]
    return None


def leaves_of(space: AnySpace, path: str) -> Iterator[tuple[str, AnySpace]]:
    children = children_of(space, path)
    if children is None:
        yield path, space
    else:
        for name, child, _ in children:
            yield from leaves_of(child, name)


def nested(space: AnySpace, arrays: Iterator[Array]) -> Tree:
    if isinstance(space, gym_spaces.Dict):
        return {key: nested(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple([nested(child, arrays) for child in space.spaces])
    return next(arrays)


def values_of(space: AnySpace, value: Any, path: str, error: type[DataError]) -> Iterator[Any]:
    """Yield each leaf's part of a single value."""
    children = children_of(space, path)
    if children is None:
        yield value
        return
    if isinstance(space, gym_spaces.Dict):
        fits = isinstance(value, Mapping) and value.keys() == space.spaces.keys()
    else:
        # An array stands for the tuple of its rows: environments with several discrete parts return arrays.
        is_sequence = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
        fits = is_sequence and len(value) == len(children)
    if not fits:
        raise misfit(value, cast(Any, space), path, error)
    for name, child, key in children:
        yield from values_of(child, value[key], name, error)


_NUMBERS = "biufc"
_TYPED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)


class Columns:
    """Checked copies of a space's values, for `n_rows` rows in each step.

    Errors have the class `error`, and name a value by `path`. The first arrays are `buffers` of (steps, n_rows, ...),
    in the order of the space's leaves; None for new arrays.

    Attributes:
        n_steps: The number of steps written.
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
        self._keys: tuple[str, ...] = ()  # of a flat Dict
        if isinstance(space, gym_spaces.Dict) and len(self._leaves) == len(space.spaces):
            self._keys = tuple(space.spaces)

    def append(self, batch: Any) -> None:
        """Check a batch and write a copy of it, in the dtypes of the space, as the next step.

        A batch has leaves of (n_rows, ...), or is a sequence of n_rows values. If a single row is at fault, the error's
        `row` is its number.
        """
        if self._only is not None:
            self._only.copy(self.n_steps, self._only.checked(batch, self._n_rows))
        else:
            for leaf, values in zip(self._leaves, self._checked(batch, self._n_rows), strict=True):
                leaf.copy(self.n_steps, values)
        self.n_steps += 1

    def checked(self, batch: Any, n: int) -> list[Array]:
        """Check n values, and return each leaf of them in the dtypes of the space."""
        return list(self._checked(batch, n)) if self._only is None else [self._only.checked(batch, n)]

    def put_checked(self, step: int, rows: Any, checked: list[Array]) -> None:
        for leaf, values in zip(self._leaves, checked, strict=True):
            leaf.at(step)[rows] = values

    def extend(self, values: Tree, n: int) -> None:
        """Write n checked values, leaves of (n, ...), as the next n steps; `n_rows` is 1."""
        if self._only is not None:
            self._only.extend(self.n_steps, cast("Array", values))
        else:
            for leaf, (_, part) in zip(self._leaves, leaves(values), strict=True):
                leaf.extend(self.n_steps, part)
        self.n_steps += n

    def nested(self, parts: Iterable[Array]) -> Tree:
        return next(iter(parts)) if self._only is not None else nested(self._space, iter(parts))

    def row_batch(self, step: int) -> Tree:
        """Return the (n_rows, ...) values of a step, the next step at most: views to read, or to write to.

        A loop may write rows of exactly the leaf's shape and dtype itself; `put` is for any other. Views become invalid
        when more steps need room. To add a written next step, set `n_steps`.
        """
        if self._only is not None:
            return self._only.at(step)
        return nested(self._space, (leaf.at(step) for leaf in self._leaves))

    def put(self, step: int, row: int, value: Any) -> None:
        """Check a single value and write a copy of it to a row of a step."""
        if (only := self._only) is not None:
            only.at(step)[row] = only.converted(value)
            return
        for leaf, part in zip(self._leaves, self._parts(value), strict=True):
            leaf.at(step)[row] = leaf.converted(part)

    def _parts(self, value: Any) -> Iterable[Any]:
        if self._keys and value.__class__ is dict and len(value) == len(self._keys):
            try:
                return [value[key] for key in self._keys]  # `values_of` takes 3 µs more for three keys
            except KeyError:
                pass  # `values_of` raises the error
        return values_of(self._space, value, self._path, self._error)

    def put_converted(self, step: int, row: int, converted: list[Any]) -> None:
        for leaf, part in zip(self._leaves, converted, strict=True):
            leaf.at(step)[row] = part

    def converted(self, value: Any) -> list[Any]:
        return [leaf.converted(part) for leaf, part in zip(self._leaves, self._parts(value), strict=True)]

    def gather(self, numbers: NDArray[np.int64], allocate: Allocate | None = None) -> Tree:
        return nested(self._space, (leaf.gather(numbers, allocate) for leaf in self._leaves))

    def discard_before(self, step: int) -> None:
        """Forget the steps before this step, which becomes number 0."""
        for leaf in self._leaves:
            leaf.discard_before(step, self.n_steps)
        self.n_steps -= step

    def clear(self) -> None:
        self.n_steps = 0

    def _checked(self, batch: Any, n: int) -> Iterator[Array]:
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
    """The values of a single leaf; objects for spaces without arrays."""

    def __init__(
        self, space: AnySpace, n_rows: int, path: str, error: type[DataError], buffer: Array | None = None
    ) -> None:
        self._leaf = Leaf(space, path, error)
        self._space, self._path, self._error = space, path, error
        self._shape, self._dtype = self._leaf.shape, self._leaf.dtype
        self._copied_dtype = None if self._dtype.hasobject else self._dtype  # of batches that need no conversion
        self._is_index = isinstance(space, gym_spaces.Discrete) and self._dtype == np.int64
        super().__init__(n_rows, self._dtype, self._shape, buffer)

    def empty(self, n: int) -> Array:
        return np.empty((n, *self._shape), self._dtype)

    def checked(self, batch: Any, n: int) -> Array:
        """Check a batch of n values; return (n, ...) of the leaf's dtype, the same object if possible."""
        dtype, shape = self._dtype, (n, *self._shape)
        if batch.__class__ is np.ndarray and batch.dtype is self._copied_dtype and batch.shape == shape:
            return batch
        if dtype.hasobject:
            return self._each(sequence_of(batch, n, self._path, self._error), n)
        if batch.__class__ is not np.ndarray:
            array = self._as_array(batch)
            if array.dtype.kind not in _NUMBERS and isinstance(batch, list | tuple) and len(batch) == n:
                return self._each(batch, n)  # a value is no number, so that NumPy chose another dtype
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
        if self._dtype.hasobject:
            if isinstance(self._space, gym_spaces.Text) and not isinstance(value, str):
                raise self._error(f"{self._path} should be a str, got {short(value)}")
            return snapshot(value)
        if self._is_index:
            try:
                # Accepts all kinds of integers, and nothing else.
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
            raise self._error(f"a batch for {self._path} is no array: {reason}; got {short(batch)}") from reason


class ColumnsRecorder:
    """Records each step of n rows in columns, and gathers trajectories.

    The value of a row in a step has the number ``step * n_rows + row``.

    Attributes:
        n_rows: The number of rows.
        step: The current step.
        observations: The observations before each step.
        actions: The actions.
        agent_infos: The infos of agents that return them for all rows together.
        record_agent_info: Receives (number, info) from agents with an info for each row.
        n_begun: The number of trajectories begun.
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
        for part in (
            self.observations, self.actions, self._env_infos, self._episode_infos, self.agent_infos, self._agent_info
        ):  # fmt: skip
            part.clear()
        self.step = self.n_begun = 0

    def numbers_from(self, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of all values of trajectories, in their order; each trajectory stays in a row."""
        n_rows = self.n_rows
        numbers = np.repeat(first - (np.cumsum(lengths) - lengths) * n_rows, lengths)
        return numbers + np.arange(0, len(numbers) * n_rows, n_rows)

    def gathered(
        self, numbers: NDArray[np.int64], lengths: NDArray[np.int64], episodes: NDArray[np.int64], allocate: Allocate,
        rewards: Callable[[NDArray[np.int64]], Array], last_observations: Callable[[], Tree],
        terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], values: Mapping[int, float],
    ) -> Rollouts:  # fmt: skip
        """Return trajectories, from the numbers of their values and of their resets' infos (`episodes`).

        `values` are the agent's values of last observations, by ascending position; positions may be missing.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position.
            DataError: A trajectory has infos with a key `_x` next to a key `x`; with the same attribute.
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
            # An agent records in only a single form.
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
    """Return the list of a batch's n values; raise an error if the batch is no sequence of n values."""
    is_sequence = isinstance(batch, list | tuple) or (isinstance(batch, np.ndarray) and batch.ndim > 0)
    if not is_sequence or len(batch) != n_rows:
        raise error(f"a batch for {path} should be a sequence of {n_rows} values, got {short(batch)}")
    return list(batch)
