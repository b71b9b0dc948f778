"""Follow the progress of a call, and show it: as a bar on a terminal or in a notebook, or as lines in a log."""

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
"""Seconds between two snapshots: what looks alive."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress of a call.

    Attributes:
        n_timesteps: Timesteps so far, those of unfinished trajectories included.
        n_trajectories: Finished trajectories so far.
        target: How many timesteps or trajectories the call collects.
        unit: "timesteps" or "trajectories": what `target` counts.
        seconds: Since the call began.
        complete: Whether the call is complete. Timesteps may reach their target before, with unfinished trajectories.
        earlier_timesteps: How many of the timesteps were there when the call began.
        earlier_trajectories: How many of the trajectories.
        note: What else is known so far, in words.
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
        """How much of `target` is reached, at most `target`."""
        return min(self.target, self.n_timesteps if self.unit == "timesteps" else self.n_trajectories)

    @property
    def timesteps_per_second(self) -> float:
        """The average since the call began; 0 at its very beginning."""
        return (self.n_timesteps - self.earlier_timesteps) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining time; None while there is nothing to estimate it from."""
        earlier = self.earlier_timesteps if self.unit == "timesteps" else self.earlier_trajectories
        if self.reached <= earlier or self.target == 0:
            return None
        return self.seconds * (self.target - self.reached) / (self.reached - earlier)


ProgressArgument = bool | Callable[[Snapshot], Any]
"""True shows a bar or lines; see `output_on`. A callable gets a snapshot at the beginning, then several times a
second, and at the end; one with an attribute `interval` after each so many seconds, or with None only at the beginning
and at the end."""


class Display:
    """Call `show` with a call's progress, a few times a second.

    Args:
        target: How many timesteps or trajectories the call collects.
        unit: "timesteps" or "trajectories".
        show: Called with snapshots; None follows nothing and costs nothing.
        interval: Seconds between two snapshots; None for only the first and the last.
        earlier: The timesteps and trajectories that were there when the call began.
        clock: Seconds, from any beginning.
        note: Returns what else is known so far, in words.

    Attributes:
        interval: How long the call may sleep before the next `update`; None for as long as it likes.
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
        """Change how many timesteps or trajectories the call will probably collect."""
        self._target = target

    def update(self, so_far: Callable[[], tuple[int, int]], *, complete: bool) -> None:
        """Show how far the call is, if the interval has passed or the call is complete.

        Args:
            so_far: Returns the call's timesteps and trajectories, those that were there before included.
            complete: Whether the call is complete.
        """
        if self._show is None:
            return
        if complete or (self.interval is not None and self._clock() - self._shown >= self.interval):
            self._snapshot(*so_far(), complete=complete)

    def _snapshot(self, timesteps: int, trajectories: int, *, complete: bool = False) -> None:
        if self._show is None:
            return
        self._shown = self._clock()
        # A worker's progress is zero between its report and its next ticket: the bar goes back only at the end, when
        # what is surplus is known.
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
    """Shows snapshots of a call; a context manager, which is left when the call ends.

    This class shows nothing. Its subclasses show snapshots in different places.

    Attributes:
        interval: Seconds between two snapshots; None where none needs to be shown.
        shows_end: Whether the end of a call is shown.
    """

    interval: float | None = None
    shows_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""

    def write_above(self, text: str) -> bool:
        """Write lines so that they do not tear a bar; return False, and write nothing, where no bar is drawn."""
        del text
        return False


class Bar(Output):
    """A progress bar on a terminal: ``[####----]  50%  500/1,000 timesteps  0:05 left  99/s``.

    Args:
        stream: The terminal.
    """

    interval = INTERVAL
    shows_end = True
    _NARROWEST, _WIDEST = 10, 30

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream  # None when the terminal is gone
        self._line = ""  # what is on the screen

    def __exit__(self, *_: object) -> None:
        if self._line:
            self._write(f"{_SHOW_CURSOR}\n")
            self._line = ""

    def __call__(self, snapshot: Snapshot) -> None:
        """Draw a snapshot; on a terminal that is gone, draw nothing any more."""
        if self._stream is None:
            return
        # One column stays free: a terminal that wraps at its last one would need a new line for each drawing.
        room = _columns(self._stream) - 1 - len("[]  ")
        text = _fitting(describe(snapshot), room - self._NARROWEST)
        width = max(0, min(self._WIDEST, room - len(text)))
        filled = width * snapshot.reached // max(1, snapshot.target)
        line = f"[{'#' * filled}{'-' * (width - filled)}]  {text}"
        if line != self._line:
            # Spaces cover what was longer before.
            before, self._line = self._line, line
            self._write(f"\r{_HIDE_CURSOR}{line.ljust(len(before))}")

    def write_above(self, text: str) -> bool:
        """Write lines where the bar is, and the bar below them; return False where no bar is drawn yet."""
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
    """Return the width of a stream's terminal, which need not be that of standard output."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:  # type: ignore[union-attr]
            return columns
    return shutil.get_terminal_size().columns


def describe(snapshot: Snapshot) -> list[str]:
    """Return the texts next to a bar, the most important first."""
    unit = snapshot.unit if snapshot.target != 1 else _SINGULAR[snapshot.unit]
    of_all = f"{snapshot.reached:,}/{snapshot.target:,} {unit}"
    if snapshot.n_timesteps == snapshot.earlier_timesteps == 0 and not snapshot.complete:
        return ["  0%", of_all, "starting"]
    # Cut, not rounded: there is no 100 % before the end.
    percent = 100 if snapshot.complete else min(99, 100 * snapshot.reached // max(1, snapshot.target))
    # While a long trajectory is running only the timesteps change.
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
    """Return seconds, rounded up, as people read them from a clock, such as 0:07 or 1:02:03."""
    minutes, whole = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _fitting(bits: list[str], room: int) -> str:
    """Join the bits that there is room for; at least the first."""
    text = bits[0]
    for bit in bits[1:]:
        if len(text) + 2 + len(bit) <= room:
            text += f"  {bit}"
    return text


# ----------------------------------------------------------------------
# Choose where progress is shown.


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
    """Yield the display that a `progress` argument asks for; see `Display` and `output_on` for the other arguments."""
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
    """Return the output that suits this process.

    Args:
        stream: Where to write, outside notebooks; None where the process has no such stream.
        hidden: Show nothing.
        last_line: Whether a log gets a line at the end of a call.
        doing: What lines in a log say is being done.
    """
    if hidden or stream is None:
        return Output()
    # tqdm is looked for, not tried: without ipywidgets it fails in the middle, and complains again at its end.
    if _in_notebook() and find_spec("tqdm") and find_spec("ipywidgets"):
        return NotebookBar()
    if _is_terminal(stream) and os.environ.get("TERM") != "dumb" and not _in_ci():
        return Bar(stream)
    return Lines(stream, last_line=last_line, doing=doing)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # an object that is no file, or a closed file
        return False


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", ())


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


class Lines(Output):
    """Writes a line every 30 seconds, and one at the end: for streams that end in a file or in the log of a job.

    Args:
        stream: Where to write.
        last_line: Whether to write the line at the end.
        doing: What the lines say is being done.
    """

    interval = LINE_SECONDS

    def __init__(self, stream: TextIO, *, last_line: bool = True, doing: str = "sampling") -> None:
        self.shows_end = last_line
        self._doing = doing
        self._stream = stream
        self._written = 0.0  # seconds of the call, at the last line

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a line if it is time."""
        if not (self.shows_end if snapshot.complete else snapshot.seconds - self._written >= LINE_SECONDS):
            return
        self._written = snapshot.seconds
        text = "  ".join(bit.strip() for bit in describe(snapshot))
        with contextlib.suppress(OSError, ValueError):  # full, or closed: no reason to lose what is sampled
            self._stream.write(f"{self._doing}: {text}\n")
            self._stream.flush()


class NotebookBar(Output):
    """tqdm's bar in the output of a notebook's cell."""

    interval = 0.25  # each drawing is a message to the browser
    shows_end = True

    def __init__(self) -> None:
        self._bar: Any = None

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, snapshot: Snapshot) -> None:
        """Draw a snapshot."""
        if self._bar is None:
            self._bar = import_module("tqdm.notebook").tqdm(total=snapshot.target, bar_format="{bar} {desc}")
        self._bar.n = snapshot.reached
        self._bar.set_description_str("  ".join(describe(snapshot)))
