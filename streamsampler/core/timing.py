"""Time parts of environments and agents: `streamsampler.timed`.

What is timed in a worker is added up there, and travels to the sampler with the worker's reports; see
`data.statistics.Stats.timers`. Outside workers, and in threads of the user's, nothing is timed. An example is in the
guide, `streamsampler.samplers`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter

from streamsampler.core.keywords import suggesting

Measured = tuple[tuple[str, int, float, "Measured"], ...]
"""Blocks of one level: name, how often, seconds, and the blocks within."""


class _Block:
    """What was measured of a block in one place of the tree."""

    __slots__ = ("children", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.children: dict[str, _Block] = {}


def _measured(blocks: dict[str, _Block]) -> Measured:
    return tuple((name, it.count, it.seconds, _measured(it.children)) for name, it in blocks.items())


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
    """

    __slots__ = ("_phases", "here", "outermost", "used", "word", "words")

    def __init__(self, words: Sequence[int] | memoryview, word: int, phases: Sequence[str]) -> None:
        self.words, self.word = words, word
        self.outermost: list[dict[str, _Block]] = [{} for _ in phases]
        self.here: _Block | None = None
        self.used: list[bool] = []
        self._phases = phases

    def add(self, name: str, blocks: dict[str, _Block]) -> _Block:
        """Add a block that was not there before."""
        self.used[:] = [True]
        block = blocks[name] = _Block()
        return block

    def take(self) -> Measured:
        """Return what was timed, by phase, and forget it; empty if nothing was."""
        if not self.used:
            return ()
        found = zip(self._phases, self.outermost, strict=True)
        taken = tuple((phase, 0, 0.0, _measured(blocks)) for phase, blocks in found if blocks)
        for blocks in self.outermost:
            blocks.clear()
        self.here = None
        return taken


class _Local(threading.local):
    collector: Collector | None = None


_local = _Local()


@contextlib.contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Collect what this thread times in the block."""
    before, _local.collector = _local.collector, collector
    collector.here = None
    try:
        yield
    finally:
        _local.collector = before


def used() -> Sequence[bool]:
    """Return what is not empty once this thread has timed anything."""
    return () if _local.collector is None else _local.collector.used


class timed:  # noqa: N801 - reads as a verb in `with timed("physics"):`
    """Time a block of an environment's or an agent's code, as a context manager: make a new one for each block.

    Its time appears in `stats.timers()` under the phase that it ran in (reset, agent or step), and under the block that
    it is nested in. An entry takes well under a microsecond. Where no worker runs the code, nothing is measured.

    Args:
        name: What to call it; blocks of one name in the same place are added up.
    """

    __slots__ = ("_begun", "_block", "_collector", "_name", "_outer")

    @suggesting()
    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        collector = self._collector = _local.collector
        if collector is None:
            return
        outer = self._outer = collector.here
        blocks = collector.outermost[collector.words[collector.word]] if outer is None else outer.children
        block = blocks.get(self._name) or collector.add(self._name, blocks)
        collector.here = self._block = block
        self._begun = perf_counter()

    def __exit__(self, *_: object) -> None:
        collector = self._collector
        if collector is not None:
            block = self._block
            block.seconds += perf_counter() - self._begun
            block.count += 1
            collector.here = self._outer
