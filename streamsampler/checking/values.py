"""Look at values that environments return: dtypes, bounds, buffers, infos, generators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.data.anomalies import AnomalyFinder
from streamsampler.data.copying import make_recorder
from streamsampler.data.spaces import AnySpace, short
from streamsampler.data.trees import same, snapshot, take
from streamsampler.errors import DataError, ObservationError
from streamsampler.workers.generators import generator_states

_CHUNK_BYTES = 1 << 24
_GENERATORS = "random", "numpy.random", "torch", "torch (on a device)"


def dtype_problems(space: AnySpace, value: Any, name: str) -> Iterator[str]:
    """Yield the leaves of a value that are no arrays, or have another dtype than their space."""
    if isinstance(space, gym_spaces.Dict) and isinstance(value, Mapping):
        for key in space.spaces.keys() & value.keys():
            yield from dtype_problems(space[key], value[key], f"{name}[{key!r}]")
    elif isinstance(space, gym_spaces.Tuple) and isinstance(value, tuple | list):
        for position, (child, part) in enumerate(zip(space.spaces, value, strict=False)):
            yield from dtype_problems(child, part, f"{name}[{position}]")
    elif isinstance(space, gym_spaces.Box | gym_spaces.MultiBinary | gym_spaces.MultiDiscrete):
        if not isinstance(value, np.ndarray | np.generic):
            yield f"{name} is a {type(value).__name__}, and its space has arrays of {space.dtype}"
        elif value.dtype != space.dtype:
            yield f"{name} has the dtype {value.dtype}, and its space has {space.dtype}"


class SpaceWatch:
    """Looks whether observations are in their space.

    Args:
        space: The space.
        name: What to call the values.

    Attributes:
        refused: What a sampler would refuse, with the timestep; None where there is nothing.
        outside: What is outside the space, or NaN, with the timestep of the first.
        n_outside: How many are.
        mistyped: What has another dtype, which is converted.
    """

    def __init__(self, space: AnySpace, name: str) -> None:
        self._space, self._name = space, name
        self._recorder = make_recorder(space, name, ObservationError)
        self._finder = AnomalyFinder(space)
        self._most = max(1, min(256, _CHUNK_BYTES // max(1, _bytes_of(space))))
        self._timesteps: list[int] = []
        self.refused: str | None = None
        self.outside: str | None = None
        self.n_outside = 0
        self.mistyped: str | None = None

    def take(self, value: Any, timestep: int) -> None:
        """Look at a value.

        Args:
            value: The value.
            timestep: After which timestep it came; 0 for a reset's.
        """
        if self.refused is not None:
            return
        if self.mistyped is None:
            self.mistyped = next(dtype_problems(self._space, value, self._name), None)
        try:
            self._recorder.record(value)
        except DataError as error:
            self.refused = f"{error}, {_when(timestep)}"
            return
        self._timesteps.append(timestep)
        if len(self._timesteps) >= self._most:
            self.look()

    def look(self) -> None:
        """Look at the bounds of the values since the last time."""
        timesteps, self._timesteps = self._timesteps, []
        n = len(timesteps)
        if not n:
            return
        try:
            rows = self._recorder.view(0, n)
        except DataError as error:
            self.refused = f"{error}, {_when(timesteps[error.row or 0])}"
            return
        found = self._finder.find(rows, take(rows, slice(0, 0)), np.zeros(n), np.array([n]))
        if found and self.outside is None:
            self.outside = f"{found[0].what}, {_when(timesteps[found[0].timestep])}"
        self.n_outside += sum(each.count for each in found)
        self._recorder.truncate(0)
        self._recorder.renew()


def _bytes_of(space: AnySpace) -> int:
    if isinstance(space, gym_spaces.Dict):
        return sum(map(_bytes_of, space.spaces.values()))
    if isinstance(space, gym_spaces.Tuple):
        return sum(map(_bytes_of, space.spaces))
    return int(np.prod(space.shape or (), dtype=np.int64)) * np.dtype(space.dtype or np.int64).itemsize


def _when(timestep: int) -> str:
    return f"after timestep {timestep} of a trajectory" if timestep else "in a reset"


class BufferWatch:
    """Looks whether an environment changes observations that it has handed out.

    Attributes:
        reused: When it was first seen to do so; empty where it was not.
    """

    def __init__(self) -> None:
        self.reused = ""
        self._handed: Any = None
        self._kept: Any = None

    def take(self, observation: Any, timestep: int) -> None:
        """Look at the last observation again, after this one has come."""
        if self.reused:
            return
        if self._handed is not None and not same(self._handed, self._kept):
            self.reused = "in a reset" if not timestep else f"in timestep {timestep} of a trajectory"
        self._handed, self._kept = observation, snapshot(observation)


class InfoWatch:
    """Looks whether infos have the same keys, with values of the same kind, in each timestep.

    Attributes:
        wrong: What a sampler would refuse; None where there is nothing.
        timesteps: How many infos of timesteps there were that did not end a trajectory.
        counts: In how many of those each key was.
        changed: The first key whose values changed their kind, and how; None where there is none.
    """

    def __init__(self) -> None:
        self.wrong: str | None = None
        self.timesteps = 0
        self.counts: Counter[str] = Counter()
        self.changed: str | None = None
        self._kinds: dict[str, Any] = {}
        self._last: set[str] = set()

    def take(self, info: Any, *, of_step: bool = True, last: bool = False) -> None:
        """Look at an info.

        Args:
            info: The info.
            of_step: Whether it is a timestep's, and no reset's.
            last: Whether it ended a trajectory.
        """
        if not isinstance(info, dict) or not all(isinstance(key, str) for key in info):
            what = f"a {type(info).__name__}" if not isinstance(info, dict) else f"a dict with the keys {list(info)}"
            self.wrong = self.wrong or f"an info is {what}, and should be a dict with strings for keys"
            return
        if not of_step:
            return
        for key, value in info.items():
            kind = _kind_of(value)
            before = self._kinds.setdefault(key, kind)
            if before != kind and self.changed is None:
                self.changed = f"{key!r} is {before} and then {kind}"
        if last:
            self._last.update(info)
        else:
            self.timesteps += 1
            self.counts.update(info.keys())

    @property
    def sometimes(self) -> dict[str, int]:
        """The keys that are in some timesteps, but not in all; those that end a trajectory do not count."""
        return {key: n for key, n in self.counts.items() if n < self.timesteps}

    @property
    def at_ends(self) -> list[str]:
        """The keys that are in timesteps that end a trajectory alone."""
        return sorted(self._last - self.counts.keys())


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"an array of {value.dtype} and shape {value.shape}" if value.shape else str(value.dtype)
    return type(value).__name__


class DrawWatch:
    """Looks whether code draws from global generators.

    Attributes:
        draws: The generators that it drew from, by what it was doing.
    """

    def __init__(self) -> None:
        self.draws: dict[str, set[str]] = {}
        self._before: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Remember the generators' states."""
        self._before = generator_states()

    def end(self, doing: str) -> None:
        """Compare them."""
        names = {name for name, one, other in zip(_GENERATORS, self._before, generator_states()) if one != other}  # noqa: B905 - torch may have been loaded in between
        if names:
            self.draws.setdefault(doing, set()).update(names)

    def __str__(self) -> str:
        return "; ".join(f"{doing} draws from {' and '.join(sorted(names))}" for doing, names in self.draws.items())


def short_list(names: list[str], most: int = 5) -> str:
    """Return names in one line, the first of many."""
    shown = ", ".join(map(repr, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def shown(value: Any) -> str:
    """Return a value in one short line."""
    return short(value, 60)
