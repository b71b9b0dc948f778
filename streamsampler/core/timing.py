"""Time parts of environments, agents and training scripts, and record gauges: `streamsampler.timed`.

Workers send their measurements with their reports; the script's stay in its process. `data.statistics.Stats.timers` and
`gauges` return them.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting

Blocks = tuple[tuple[str, int, float, "Blocks"], ...]
"""Timed blocks of one level: name, number of entries, seconds, and nested blocks."""


@dataclass(slots=True)
class Gauge:
    """Statistics of a gauge's values.

    Attributes:
        value: The last value.
        minimum: The smallest value.
        maximum: The largest value.
        total: The sum of all values.
        count: The number of values.
    """

    value: float
    minimum: float
    maximum: float
    total: float
    count: int = 1

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self.total / self.count

    def merge(self, later: Gauge) -> None:
        self.value = later.value
        self.minimum, self.maximum = min(self.minimum, later.minimum), max(self.maximum, later.maximum)
        self.total += later.total
        self.count += later.count


Gauges = dict[str, Gauge]


def merge_gauges(gauges: Gauges, later: Mapping[str, Gauge]) -> None:
    for name, gauge in later.items():
        if name in gauges:
            gauges[name].merge(gauge)
        else:
            gauges[name] = replace(gauge)


class Measured(NamedTuple):
    """Timed blocks by phase, and gauges."""

    blocks: Blocks
    gauges: Gauges


class _Block:
    """Entries and seconds of a block at a position in the tree."""

    __slots__ = ("children", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.children: dict[str, _Block] = {}

    def take(self) -> tuple[int, float]:
        taken = self.count, self.seconds
        self.count, self.seconds = 0, 0.0
        return taken


def _taken(blocks: dict[str, _Block]) -> Blocks:
    """Read blocks, and set them to 0; an open block stays in the tree."""
    found = ((name, *block.take(), _taken(block.children)) for name, block in list(blocks.items()))
    return tuple(block for block in found if block[1] or block[3])


def _measured(blocks: dict[str, _Block]) -> Blocks:
    # A copy, because another thread may add a block meanwhile.
    return tuple((name, it.count, it.seconds, _measured(it.children)) for name, it in list(blocks.items()))


class Collector:
    """A worker's measurements since the last `take`.

    Attributes:
        words: Memory with the number of the worker's phase at position `word`.
        word: See `words`.
        outermost: Outermost blocks by phase.
        here: The innermost open block, or None.
        used: Not empty after the first measurement: from then on the phase must be right in every timestep.
        gauges: Gauges by name.
    """

    __slots__ = ("_phases", "gauges", "here", "outermost", "used", "word", "words")

    def __init__(self, words: Sequence[int] | memoryview, word: int, phases: Sequence[str]) -> None:
        self.words, self.word = words, word
        self.outermost: list[dict[str, _Block]] = [{} for _ in phases]
        self.here: _Block | None = None
        self.used: list[bool] = []
        self.gauges: Gauges = {}
        self._phases = phases

    def add(self, name: str, blocks: dict[str, _Block]) -> _Block:
        self.used[:] = [True]
        return blocks.setdefault(name, _Block())  # another thread may have added it

    def add_seconds(self, name: str, phase: int, seconds: float) -> None:
        blocks = self.outermost[phase]
        block = blocks.get(name) or self.add(name, blocks)
        block.seconds += seconds
        block.count += 1

    def show(self, name: str, gauge: Gauge) -> None:
        merge_gauges(self.gauges, {name: gauge})

    def take(self) -> Measured | None:
        """Return and clear the measurements; None if there are none."""
        if not self.used and not self.gauges:
            return None
        found = zip(self._phases, self.outermost, strict=True)
        timed_blocks = tuple((phase, 0, 0.0, inside) for phase, blocks in found if (inside := _taken(blocks)))
        taken = Measured(timed_blocks, dict(self.gauges))
        self.gauges.clear()
        self.here = None
        return taken if any(taken) else None


class _PhaseOfTask:
    """Returns the phase of the current asyncio task."""

    def __getitem__(self, _word: int) -> int:
        return phase_of_task.get()


class TaskCollector(Collector):
    """A worker's measurements in asyncio tasks: a task, and the tasks it starts, have their own phase and block."""

    __slots__ = ()

    def __init__(self, collector: Collector) -> None:
        super().__init__(cast("Any", _PhaseOfTask()), 0, collector._phases)
        self.outermost, self.used, self.gauges = collector.outermost, collector.used, collector.gauges

    @property
    def here(self) -> _Block | None:
        return _block_of_task.get()

    @here.setter
    def here(self, block: _Block | None) -> None:
        _block_of_task.set(block)


phase_of_task: ContextVar[int] = ContextVar("streamsampler_phase_of_task", default=0)
"""The number of the current task's phase."""

_block_of_task: ContextVar[_Block | None] = ContextVar("streamsampler_block_of_task", default=None)


_of_script: dict[str, _Block] = {}
_readers: weakref.WeakSet[ScriptTimes] = weakref.WeakSet()


class ScriptTimes:
    """Measurements of this process, outside workers, since this object was made; a copy stops measuring."""

    def __init__(self) -> None:
        self._before, self._gauges = _measured(_of_script), Gauges()
        self._until: Blocks | None = None
        _readers.add(self)

    def measured(self) -> Measured:
        now = _measured(_of_script) if self._until is None else self._until
        return Measured(_since(now, self._before), dict(self._gauges))

    def show(self, name: str, gauge: Gauge) -> None:
        merge_gauges(self._gauges, {name: gauge})

    def __getstate__(self) -> dict[str, Any]:
        blocks, gauges = self.measured()
        return {"_before": (), "_gauges": {name: replace(gauge) for name, gauge in gauges.items()}, "_until": blocks}


def _since(now: Blocks, before: Blocks) -> Blocks:
    """Return the difference of two readings, without blocks not entered in between."""
    known = {block[0]: block for block in before}
    found = []
    for name, count, seconds, within in now:
        _, n, time, inner = known.get(name, (name, 0, 0.0, ()))
        inside = _since(within, inner)
        if count > n or inside:
            found.append((name, count - n, seconds - time, inside))
    return tuple(found)


class _CollectorOfScript(Collector):
    """A thread's measurements in the script; all threads share one tree."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((0,), 0, ("script",))
        self.outermost = [_of_script]

    def show(self, name: str, gauge: Gauge) -> None:
        for reader in list(_readers):
            reader.show(name, gauge)


class _Local(threading.local):
    def __init__(self) -> None:
        self.script = _CollectorOfScript()
        self.collector: Collector = self.script


_local = _Local()


class collecting:  # noqa: N801 - reads as a verb in `with collecting(…):`
    """Use a collector for this thread's measurements; a context manager.

    In the script's process, enter it twice, `with block, block:`. If Ctrl-C arrives as the inner exit starts, the outer
    exit restores the script's own collector.
    """

    __slots__ = ("_before", "_collector")

    def __init__(self, collector: Collector) -> None:
        self._collector, self._before = collector, _local.collector

    def __enter__(self) -> None:
        self._collector.here = None
        _local.collector = self._collector  # last: an earlier Ctrl-C leaves no trace

    def __exit__(self, *_: object) -> None:
        """Restore the collector before; may run twice, because Ctrl-C may arrive here."""
        _local.collector = self._before


def collector_in_use() -> Collector:
    return _local.collector


def not_measuring() -> collecting:
    """Discard this thread's measurements within a `with` block."""
    return collecting(Collector((0,), 0, ("",)))


def used() -> Sequence[bool]:
    """Return a sequence that is empty until this thread measures for a worker."""
    collector = _local.collector
    return () if collector is _local.script else collector.used


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class timed:  # noqa: N801 - reads as a verb in `with timed("physics"):`
    """Time a block of code (as a context manager) or the calls of a function (as a decorator).

    In an environment or agent, the time appears in `stats.timers()` under its phase (reset, agent or step) and its
    enclosing block; in the script under "script", in the statistics of all samplers and managers that exist then. An
    entry takes well under a microsecond. ::

        with timed("learn"):
            timed.gauge("loss", learn(batch))

    Args:
        name: The block's name. Blocks of the same name and position are added up. Make a new `timed` for each block.

    Raises:
        UsageError: The name is not a string, or the decorated function is a generator or asynchronous.
    """

    __slots__ = ("_begun", "_block", "_collector", "_name", "_outer")

    @suggesting()
    def __init__(self, name: str) -> None:
        if name.__class__ is not str:
            raise UsageError(f'timed takes a name, as in timed("physics"), not {name!r:.80}')
        self._name = name

    def __enter__(self) -> None:
        collector = self._collector = _local.collector
        outer = self._outer = collector.here
        blocks = collector.outermost[collector.words[collector.word]] if outer is None else outer.children
        block = blocks.get(self._name) or collector.add(self._name, blocks)
        collector.here = self._block = block
        self._begun = perf_counter()

    def __exit__(self, *_: object) -> None:
        elapsed, block = perf_counter() - self._begun, self._block
        # No call in these lines: no other thread of the script comes between.
        block.seconds += elapsed
        block.count += 1
        self._collector.here = self._outer

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return a function that also times each of its calls."""
        name = self._name
        if not callable(function):
            raise UsageError(f"timed({name!r}) decorates a function, not {function!r:.80}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            what = "asynchronous: others run while it waits"
        elif inspect.isgeneratorfunction(function):
            what = "a generator: calling it runs none of its code"
        else:

            @functools.wraps(function)
            def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
                with timed(name):
                    return function(*args, **kwargs)

            return call
        raise UsageError(
            f"timed({name!r}) cannot time {function.__qualname__}, which is {what}. Write `with timed({name!r}):` "
            "around the part of it to time"
        )

    @staticmethod
    def gauge(name: str, value: float) -> None:
        """Record a varying value, such as a loss or the size of a queue; see `Stats.gauges`.

        Args:
            name: The gauge's name.
            value: A number, or anything that `float` accepts.

        Raises:
            UsageError: The name is not a string, or the value not a number.
        """
        given: Any = value
        try:
            number = None if isinstance(given, str) else float(given)
        except (TypeError, ValueError):
            number = None
        if name.__class__ is not str or number is None:
            raise UsageError(f"timed.gauge takes a name and a number, not {name!r:.80} and {value!r:.80}")
        _local.collector.show(name, Gauge(number, number, number, number))
