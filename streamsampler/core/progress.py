"""Show the progress of a call: as a bar on a terminal or in a notebook, or as lines in a log."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any, Self, TextIO

from streamsampler.core.words import count, duration

_CLEAR_LINE, _HIDE_CURSOR, _SHOW_CURSOR = "\x1b[K", "\x1b[?25l", "\x1b[?25h"
_SINGULAR = {"timesteps": "timestep", "trajectories": "trajectory", "seconds": "second"}
INTERVAL = 0.1
"""Seconds between two snapshots, short enough to look alive."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress of a call.

    Attributes:
        n_timesteps: Timesteps so far, unfinished trajectories included.
        n_trajectories: Finished trajectories so far.
        target: Timesteps or trajectories to collect.
        unit: The unit of `target`, "timesteps" or "trajectories".
        seconds: Seconds since the start of the call.
        complete: Whether the call is complete; timesteps may reach their target earlier, in unfinished trajectories.
        earlier_timesteps: Timesteps before the call.
        earlier_trajectories: Trajectories before the call.
        note: Further results so far, in words.
    """

    n_timesteps: int
    n_trajectories: int
    target: int
    unit: str
    seconds: float
    complete: bool = False
    earlier_timesteps: int = 0
    earlier_trajectories: int = 0
    note: str = ""

    @property
    def reached(self) -> int:
        """The part of `target` collected so far, at most `target`."""
        return min(self.target, self.n_timesteps if self.unit == "timesteps" else self.n_trajectories)

    @property
    def timesteps_per_second(self) -> float:
        """The average since the start of the call."""
        return (self.n_timesteps - self.earlier_timesteps) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining time; None before the first progress."""
        earlier = self.earlier_timesteps if self.unit == "timesteps" else self.earlier_trajectories
        if self.reached <= earlier or self.target == 0:
            return None
        return self.seconds * (self.target - self.reached) / (self.reached - earlier)


ProgressArgument = bool | Callable[[Snapshot], Any]
"""True shows a bar or lines; see `output_on`. A callable receives a snapshot at the start of the call, several times a
second, and at the end. Its attribute `interval` changes the seconds in between; None leaves only start and end."""


class Display:
    """Calls `show`, if there is any, with snapshots of a call's progress, a few times a second.

    Attributes:
        interval: The longest sleep before the next `update`, in seconds; None for no limit.
    """

    def __init__(
        self,
        target: int,
        unit: str,
        show: Callable[[Snapshot], Any] | None,
        interval: float | None = INTERVAL,
        *,
        earlier: tuple[int, int] = (0, 0),
        clock: Callable[[], float] = monotonic,
        note: Callable[[], str] = str,
    ) -> None:
        self._note = note
        self._show = show
        self._target, self._unit = target, unit
        self._earlier = earlier
        self._clock = clock
        self._begun = self._shown = clock()
        self._most = 0
        self.interval = None if show is None else interval
        self._snapshot(*earlier)

    def expect(self, target: int) -> None:
        self._target = target

    def update(self, so_far: Callable[[], tuple[int, int]], *, complete: bool) -> None:
        """Show a snapshot, if the interval has passed or the call is complete; `so_far` includes earlier timesteps."""
        if self._show is None:
            return
        if complete or (self.interval is not None and self._clock() - self._shown >= self.interval):
            self._snapshot(*so_far(), complete=complete)

    def _snapshot(self, timesteps: int, trajectories: int, *, complete: bool = False) -> None:
        if self._show is None:
            return
        self._shown = self._clock()
        # A worker's progress is zero between its report and its next ticket. The bar therefore moves back only at the
        # end, when the surplus is known.
        if not complete:
            timesteps = max(self._most, min(timesteps, self._target) if self._unit == "timesteps" else timesteps)
        self._most = timesteps
        seconds = self._shown - self._begun
        note = self._note()
        timesteps_before, trajectories_before = self._earlier
        snapshot = Snapshot(
            self._most, trajectories, self._target, self._unit, seconds, complete,
            earlier_timesteps=timesteps_before, earlier_trajectories=trajectories_before, note=note,
        )  # fmt: skip
        self._show(snapshot)


class Output:
    """Shows snapshots (this base class: nowhere); a context manager around the call.

    Attributes:
        interval: Seconds between snapshots; None where none is shown.
        shows_end: Whether the end of a call is shown.
    """

    interval: float | None = None
    shows_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, snapshot: Snapshot) -> None: ...

    def write_above(self, text: str) -> bool:
        """Write lines above a bar; return False, and write nothing, without a bar."""
        del text
        return False


class Bar(Output):
    """A progress bar on a terminal: ``[####----]  50%  500/1,000 timesteps  0:05 left  99/s``."""

    interval = INTERVAL
    shows_end = True
    _NARROWEST, _WIDEST = 10, 30

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream  # None once the terminal is closed
        self._line = ""  # on the screen now

    def __exit__(self, *_: object) -> None:
        if self._line:
            self._write(f"{_SHOW_CURSOR}\n")
            self._line = ""

    def __call__(self, snapshot: Snapshot) -> None:
        if self._stream is None:
            return
        # One column stays free: a terminal that wraps at its last column would need a new line per drawing.
        room = _columns(self._stream) - 1 - len("[]  ")
        text = _fitting(describe(snapshot), room - self._NARROWEST)
        width = max(0, min(self._WIDEST, room - len(text)))
        filled = width * snapshot.reached // max(1, snapshot.target)
        line = f"[{'#' * filled}{'-' * (width - filled)}]  {text}"
        if line != self._line:
            # Spaces cover the rest of a longer earlier line.
            before, self._line = self._line, line
            self._write(f"\r{_HIDE_CURSOR}{line.ljust(len(before))}")

    def write_above(self, text: str) -> bool:
        if not self._line:
            return False
        self._write(f"\r{_CLEAR_LINE}{text}\n\r{self._line}")
        return True

    def _write(self, text: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream, self._line = None, ""


def _columns(stream: TextIO | None) -> int:
    """Return the width of a stream's own terminal, which may differ from standard output's."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:  # type: ignore[union-attr]
            return columns
    return shutil.get_terminal_size().columns


def describe(snapshot: Snapshot) -> list[str]:
    """Return the texts next to a bar, by importance."""
    unit = snapshot.unit if snapshot.target != 1 else _SINGULAR[snapshot.unit]
    of_all = f"{snapshot.reached:,}/{snapshot.target:,} {unit}"
    if snapshot.n_timesteps == snapshot.earlier_timesteps == 0 and not snapshot.complete:
        return ["  0%", of_all, "starting"]
    # Rounded down: 100 % appears only at the end.
    percent = 100 if snapshot.complete else min(99, 100 * snapshot.reached // max(1, snapshot.target))
    # During a long trajectory only the timesteps change.
    timesteps = [] if snapshot.unit == "timesteps" else [count(snapshot.n_timesteps, "timestep")]
    note = [snapshot.note] if snapshot.note else []
    return [f"{percent:3}%", of_all, *note, *timesteps, _time(snapshot), f"{snapshot.timesteps_per_second:,.0f}/s"]


def _time(snapshot: Snapshot) -> str:
    if snapshot.complete:
        return f"in {duration(snapshot.seconds)}".ljust(len("0:00 left"))
    left = snapshot.seconds_left
    if left is None:
        return "-:-- left"
    return f"{clock(left)} left" if snapshot.reached < snapshot.target else "finishing"


def clock(seconds: float) -> str:
    """Format seconds as a clock, rounded up, such as 0:07 or 1:02:03."""
    minutes, whole = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _fitting(bits: list[str], room: int) -> str:
    text = bits[0]
    for bit in bits[1:]:
        if len(text) + 2 + len(bit) <= room:
            text += f"  {bit}"
    return text


LINE_SECONDS = 30.0


@contextlib.contextmanager
def display(
    progress: ProgressArgument,
    target: int,
    unit: str,
    *,
    earlier: tuple[int, int] = (0, 0),
    note: Callable[[], str] = str,
    doing: str = "sampling",
) -> Iterator[Display]:
    """Yield the display for a `progress` argument; see `Display` and `output_on`."""
    if callable(progress):
        yield Display(target, unit, progress, getattr(progress, "interval", INTERVAL), earlier=earlier, note=note)
    elif progress:
        with output_on(sys.stderr, doing=doing) as output:
            yield Display(target, unit, output, output.interval, earlier=earlier, note=note)
    else:
        yield Display(target, unit, None)


def output_on(
    stream: TextIO | None, *, hidden: bool = False, last_line: bool = True, doing: str = "sampling"
) -> Output:
    """Choose where to show progress: in a notebook, on a terminal (a bar), in a log (lines), or nowhere.

    Args:
        stream: The stream outside notebooks, or None.
        hidden: Show nothing.
        last_line: Write a line to a log at the end of a call.
        doing: The activity in log lines.
    """
    if hidden or stream is None:
        return Output()
    # Look for tqdm, do not try it: without ipywidgets it fails in the middle, and prints another error at its end.
    if _in_notebook() and find_spec("tqdm") and find_spec("ipywidgets"):
        return NotebookBar()
    if _is_terminal(stream) and os.environ.get("TERM") != "dumb" and not _in_ci():
        return Bar(stream)
    return Lines(stream, last_line=last_line, doing=doing)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, or a closed file
        return False


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", ())


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


class Lines(Output):
    """Writes a line every 30 seconds and at the end, for streams to a file or a job's log."""

    interval = LINE_SECONDS

    def __init__(self, stream: TextIO, *, last_line: bool = True, doing: str = "sampling") -> None:
        self.shows_end = last_line
        self._doing = doing
        self._stream = stream
        self._written = 0.0  # the call's seconds at the last line

    def __call__(self, snapshot: Snapshot) -> None:
        if not (self.shows_end if snapshot.complete else snapshot.seconds - self._written >= LINE_SECONDS):
            return
        self._written = snapshot.seconds
        text = "  ".join(bit.strip() for bit in describe(snapshot))
        with contextlib.suppress(OSError, ValueError):  # a full disk or a closed file must not cost the samples
            self._stream.write(f"{self._doing}: {text}\n")
            self._stream.flush()


class NotebookBar(Output):
    """tqdm's bar in the output of a notebook's cell."""

    interval = 0.25  # each drawing sends a message to the browser
    shows_end = True

    def __init__(self) -> None:
        self._bar: Any = None

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, snapshot: Snapshot) -> None:
        if self._bar is None:
            self._bar = import_module("tqdm.notebook").tqdm(total=snapshot.target, bar_format="{bar} {desc}")
        self._bar.n = snapshot.reached
        self._bar.set_description_str("  ".join(describe(snapshot)))
