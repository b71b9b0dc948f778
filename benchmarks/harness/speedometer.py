"""Measure the machine's speed during a measurement, by a little work on each core every 20 ms.

A machine that is shared, or that changes its clock, can be half as fast as it was a second ago, for everything that
runs on it; a contender that is measured in the slow second looks slow. So each core times some additions every 20 ms,
for half a millisecond, and contenders can be compared at one speed of the machine (`harness.comparing`). It is the
additions' CPU time that counts, so what waits for the core, as it does while a contender has it, does not look slow.

    python -m benchmarks.harness.speedometer CORE

answers each line `BEGIN END`, two readings of `time.perf_counter`, with the core's speed in between.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

__all__ = ["SpeedBetween", "serve", "speedometer", "trimmed_mean"]

_ADDITIONS = 12_000
_EVERY_SECONDS = 0.02
_KEPT = 30_000  # ten minutes
_LEFT_OUT = 0.1

SpeedBetween = Callable[[float, float], float | None]
"""Gives the machine's speed between two readings of `time.perf_counter`; None where nothing is known of it."""


@contextlib.contextmanager
def speedometer(cores: Iterable[int] | None = None) -> Iterator[SpeedBetween]:
    """Measure the machine's speed for as long as the context lasts.

    Args:
        cores: Which ones; None for all that this process may use.

    Yields:
        The mean over the cores, in additions per second of CPU time.
    """
    with contextlib.ExitStack() as running:
        processes = [
            running.enter_context(_started(core))
            for core in sorted(os.sched_getaffinity(0) if cores is None else cores)
        ]

        def between(begin: float, end: float) -> float | None:
            speeds = [_asked(process, begin, end) for process in processes]
            return None if any(map(math.isnan, speeds)) else statistics.fmean(speeds)

        yield between


@contextlib.contextmanager
def _started(core: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.harness.speedometer", str(core)],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt is for the harness, which then closes the pipe
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # ready
        yield process
    finally:
        process.communicate()


def _asked(process: subprocess.Popen[str], begin: float, end: float) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{begin!r} {end!r}\n")
    process.stdin.flush()
    return float(process.stdout.readline() or "nan")


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest tenth; NaN without values.

    The clock of a process's CPU time stands still now and then, so single values can be anything. A median does not
    help: where the speed changes within a measurement, it is one of two speeds and not their mixture.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    aside = int(_LEFT_OUT * len(ordered))
    return statistics.fmean(ordered[aside : len(ordered) - aside])


def serve(core: int) -> None:
    """Measure a core's speed until the input ends."""
    os.sched_setaffinity(0, {core})
    with contextlib.suppress(PermissionError):
        os.nice(-15)  # so that it need not wait for its moment; to others it is 2 % of the core either way
    seen: deque[tuple[float, float]] = deque(maxlen=_KEPT)
    _add(seen)
    print("ready", flush=True)
    due = time.monotonic() + _EVERY_SECONDS
    while True:
        left = due - time.monotonic()
        if left <= 0:  # asked or not: questions one after the other must not keep it from measuring
            _add(seen)
            due = time.monotonic() + _EVERY_SECONDS
        elif select.select([sys.stdin], [], [], left)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            begin, end = map(float, line.split())
            print(trimmed_mean([speed for moment, speed in seen if begin <= moment <= end]), flush=True)


def _add(seen: deque[tuple[float, float]]) -> None:
    begin = time.thread_time_ns()
    count = 0
    for _ in range(_ADDITIONS):
        count += 1
    took = time.thread_time_ns() - begin
    if took > 0:
        seen.append((time.perf_counter(), 1e9 * count / took))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
