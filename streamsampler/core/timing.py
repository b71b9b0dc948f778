"""Time parts of environments, agents and training scripts, and record gauges: `streamsampler.timed`.

What is timed in a worker is added up there, and travels to the sampler with the worker's reports; what the script times
itself stays in its process, where samplers and managers read it. See `data.statistics.Stats.timers` and `gauges`. An
example is on the page `streamsampler/docs/checkpoints-and-logging.md`.
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
"""Blocks of one level: name, how often, seconds, and the blocks within."""


@dataclass(slots=True)
class Gauge:
    """What a gauge has shown.

    Attributes:
        value: The last value.
        minimum: The smallest value.
        maximum: The largest value.
        total: The sum of all values.
        count: How many values there were.
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
        """Add what it has shown later."""
        self.value = later.value
        self.minimum, self.maximum = min(self.minimum, later.minimum), max(self.maximum, later.maximum)
        self.total += later.total
        self.count += later.count


Gauges = dict[str, Gauge]


def merge_gauges(gauges: Gauges, later: Mapping[str, Gauge]) -> None:
    """Add what gauges have shown later to what they showed before, by name."""
    for name, gauge in later.items():
        if name in gauges:
            gauges[name].merge(gauge)
        else:
            gauges[name] = replace(gauge)


class Measured(NamedTuple):
    """What was timed, by phase, and what gauges have shown."""

    blocks: Blocks
    gauges: Gauges


class _Block:
    """What was measured of a block in one place of the tree."""

    __slots__ = ("children", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.children: dict[str, _Block] = {}

    def take(self) -> tuple[int, float]:
        """Return how often it was entered, and its seconds, and set both to 0."""
        taken = self.count, self.seconds
        self.count, self.seconds = 0, 0.0
        return taken


def _taken(blocks: dict[str, _Block]) -> Blocks:
    """Return what blocks have measured, and let them begin anew: one may be entered still, and ends later."""
    found = ((name, *block.take(), _taken(block.children)) for name, block in list(blocks.items()))
    return tuple(block for block in found if block[1] or block[3])


def _measured(blocks: dict[str, _Block]) -> Blocks:
    # A list, because another thread may add a block meanwhile.
    return tuple((name, it.count, it.seconds, _measured(it.children)) for name, it in list(blocks.items()))


class Collector:
    """What one worker has timed since it was last asked.

    Args:
        words: Memory in which a word says by a number what the worker is doing: its phase.
        word: Which one.
        phases: What to call the phases, by their numbers.

    Attributes:
        words: The same.
        word: The same.
        outermost: By phase, the blocks that are in no other block.
        here: The block that the worker is in; None outside of all.
        used: Not empty once anything was timed: then the phase has to be right in every timestep.
        gauges: What gauges have shown.
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
        """Add a block that was not there before."""
        self.used[:] = [True]
        return blocks.setdefault(name, _Block())  # another thread may have added it

    def add_seconds(self, name: str, phase: int, seconds: float) -> None:
        """Add seconds to a block that is in no other, in a phase with this number."""
        blocks = self.outermost[phase]
        block = blocks.get(name) or self.add(name, blocks)
        block.seconds += seconds
        block.count += 1

    def show(self, name: str, gauge: Gauge) -> None:
        """Add a value of a gauge."""
        merge_gauges(self.gauges, {name: gauge})

    def take(self) -> Measured | None:
        """Return what was measured, by phase, and forget it; None if nothing was."""
        if not self.used and not self.gauges:
            return None
        found = zip(self._phases, self.outermost, strict=True)
        timed_blocks = tuple((phase, 0, 0.0, inside) for phase, blocks in found if (inside := _taken(blocks)))
        taken = Measured(timed_blocks, dict(self.gauges))
        self.gauges.clear()
        self.here = None
        return taken if any(taken) else None


class _PhaseOfTask:
    """Says in which phase the task in hand runs."""

    def __getitem__(self, _word: int) -> int:
        return phase_of_task.get()


class TaskCollector(Collector):
    """What a worker has timed in tasks: each, and each that it starts, is in a phase and in blocks of its own.

    Args:
        collector: The worker's collector, to which it adds.
    """

    __slots__ = ()

    def __init__(self, collector: Collector) -> None:
        super().__init__(cast("Any", _PhaseOfTask()), 0, collector._phases)
        self.outermost, self.used, self.gauges = collector.outermost, collector.used, collector.gauges

    @property
    def here(self) -> _Block | None:
        """The block that the task in hand is in; None outside of all."""
        return _block_of_task.get()

    @here.setter
    def here(self, block: _Block | None) -> None:
        _block_of_task.set(block)


phase_of_task: ContextVar[int] = ContextVar("streamsampler_phase_of_task", default=0)
"""The number of the phase in which a task runs."""

_block_of_task: ContextVar[_Block | None] = ContextVar("streamsampler_block_of_task", default=None)


# ----------------------------------------------------------------------
# What the script's own process measures, outside workers.


_of_script: dict[str, _Block] = {}
_readers: weakref.WeakSet[ScriptTimes] = weakref.WeakSet()


class ScriptTimes:
    """What this process measures from now on, outside workers and in any thread.

    A copy, also one in another process, has what was measured until it was made.
    """

    def __init__(self) -> None:
        self._before, self._gauges = _measured(_of_script), Gauges()
        self._until: Blocks | None = None
        _readers.add(self)

    def measured(self) -> Measured:
        """Return what was measured since it was made."""
        now = _measured(_of_script) if self._until is None else self._until
        return Measured(_since(now, self._before), dict(self._gauges))

    def show(self, name: str, gauge: Gauge) -> None:
        """Add a value of a gauge."""
        merge_gauges(self._gauges, {name: gauge})

    def __getstate__(self) -> dict[str, Any]:
        blocks, gauges = self.measured()
        return {"_before": (), "_gauges": {name: replace(gauge) for name, gauge in gauges.items()}, "_until": blocks}


def _since(now: Blocks, before: Blocks) -> Blocks:
    """Return what blocks have measured since then; nothing of those that were not entered."""
    known = {block[0]: block for block in before}
    found = []
    for name, count, seconds, within in now:
        _, n, time, inner = known.get(name, (name, 0, 0.0, ()))
        inside = _since(within, inner)
        if count > n or inside:
            found.append((name, count - n, seconds - time, inside))
    return tuple(found)


class _CollectorOfScript(Collector):
    """Measures in one thread of the script, with other threads in one tree."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((0,), 0, ("script",))
        self.outermost = [_of_script]

    def show(self, name: str, gauge: Gauge) -> None:
        for reader in list(_readers):
            reader.show(name, gauge)


# ----------------------------------------------------------------------


class _Local(threading.local):
    def __init__(self) -> None:
        self.script = _CollectorOfScript()
        self.collector: Collector = self.script


_local = _Local()


class collecting:  # noqa: N801 - reads as a verb in `with collecting(…):`
    """Collect what this thread measures in the block.

    In the script's process, a block is entered twice, `with block, block:`. Ctrl-C may come as the inner exit begins:
    then the outer one gives the script its own collector back.

    Args:
        collector: Where to; it may be used again.
    """

    __slots__ = ("_before", "_collector")

    def __init__(self, collector: Collector) -> None:
        self._collector, self._before = collector, _local.collector

    def __enter__(self) -> None:
        self._collector.here = None
        _local.collector = self._collector  # last: Ctrl-C before it leaves no trace

    def __exit__(self, *_: object) -> None:
        """Collect no more; may be repeated, as Ctrl-C may come in here."""
        _local.collector = self._before


def collector_in_use() -> Collector:
    """Return where what this thread measures goes: in a worker's thread to the worker."""
    return _local.collector


def not_measuring() -> collecting:
    """Keep what this thread measures in the block out of all accounts."""
    return collecting(Collector((0,), 0, ("",)))


def used() -> Sequence[bool]:
    """Return what is not empty once this thread has timed anything for a worker."""
    collector = _local.collector
    return () if collector is _local.script else collector.used


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class timed:  # noqa: N801 - reads as a verb in `with timed("physics"):`
    """Time a block of code, as a context manager, or the calls of a function, as a decorator.

    In an environment or an agent, the time appears in `stats.timers()` under the phase that it ran in (reset, agent or
    step), and under the block that it is nested in. In the script, it appears under "script", in the accounts of all
    samplers and managers that were there then. An entry takes well under a microsecond. ::

        with timed("learn"):
            timed.gauge("loss", learn(batch))

    Args:
        name: What to call it; blocks of one name in the same place are added up. Make a new one for each block.

    Raises:
        UsageError: The name is no string; or as a decorator, the function is a generator or asynchronous.
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
        # No call stands in these lines: no other thread of the script comes between.
        block.seconds += elapsed
        block.count += 1
        self._collector.here = self._outer

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return a function that does the same, and times each of its calls."""
        name = self._name
        if not callable(function):
            raise UsageError(f"timed({name!r}) decorates a function, not {function!r:.80}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            what = "asynchronous: others run while it waits"
        elif inspect.isgeneratorfunction(function):
            what = "a generator: its call runs nothing yet"
        else:

            @functools.wraps(function)
            def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
                with timed(name):
                    return function(*args, **kwargs)

            return call
        raise UsageError(
            f"timed({name!r}) cannot time {function.__qualname__}, which is {what}. Write `with timed({name!r}):` "
            "around what is to be timed in it"
        )

    @staticmethod
    def gauge(name: str, value: float) -> None:
        """Record a value that goes up and down, such as a loss or the size of a queue; see `Stats.gauges`.

        Args:
            name: What to call it.
            value: The value: a number, or what `float` makes one of.

        Raises:
            UsageError: The name is no string, or the value no number.
        """
        given: Any = value
        try:
            number = None if isinstance(given, str) else float(given)
        except (TypeError, ValueError):
            number = None
        if name.__class__ is not str or number is None:
            raise UsageError(f"timed.gauge takes a name and a number, not {name!r:.80} and {value!r:.80}")
        _local.collector.show(name, Gauge(number, number, number, number))
