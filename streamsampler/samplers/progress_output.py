"""Choose where progress is shown: a bar on a terminal or in a notebook, lines in a log."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from streamsampler.samplers.progress import INTERVAL, Bar, Display, ProgressArgument, Snapshot, describe, drawn_bar

__all__ = ["Lines", "NotebookBar", "Output", "display", "output_on"]

LINE_SECONDS = 30.0
_NOTEBOOK_SECONDS = 0.25  # each drawing is a message to the browser
_WIDTH = 30  # of a bar that is text


class Output(Protocol):
    """Shows snapshots of a call; a context manager, which is left when the call ends.

    Attributes:
        interval: Seconds between two snapshots; None where none needs to be shown.
        shows_end: Whether the end of a call is shown.
    """

    interval: float | None
    shows_end: bool

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""

    def write_above(self, text: str) -> bool:
        """Write lines so that they do not tear a bar; return False, and write nothing, where no bar is drawn."""


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
        return Bar(stream, hidden=True)
    if _in_notebook():
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


class Lines:
    """Writes a line every 30 seconds, and one at the end: for streams that end in a file or in the log of a job.

    Args:
        stream: Where to write.
        last_line: Whether to write the line at the end.
        doing: What the lines say is being done.
    """

    interval: float | None = LINE_SECONDS

    def __init__(self, stream: TextIO, *, last_line: bool = True, doing: str = "sampling") -> None:
        self.shows_end = last_line
        self._doing = doing
        self._stream = stream
        self._written = 0.0  # seconds of the call, at the last line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a line if it is time."""
        if not (self.shows_end if snapshot.complete else snapshot.seconds - self._written >= LINE_SECONDS):
            return
        self._written = snapshot.seconds
        text = "  ".join(bit.strip() for bit in describe(snapshot))
        with contextlib.suppress(OSError, ValueError):  # full, or closed: no reason to lose what is sampled
            self._stream.write(f"{self._doing}: {text}\n")
            self._stream.flush()

    def write_above(self, text: str) -> bool:
        """Return False: there is no bar."""
        del text
        return False


class NotebookBar:
    """A bar in the output of a notebook's cell: tqdm's where it is installed with ipywidgets, else one line of text."""

    interval: float | None = _NOTEBOOK_SECONDS
    shows_end = True

    def __init__(self) -> None:
        self._drawn: _TqdmBar | _TextBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None

    def __call__(self, snapshot: Snapshot) -> None:
        """Draw a snapshot."""
        if self._drawn is None:
            # Looked for, not tried: without ipywidgets tqdm fails in the middle, and complains again at its end.
            has_tqdm = find_spec("tqdm") and find_spec("ipywidgets")
            self._drawn = _TqdmBar(snapshot.target) if has_tqdm else _TextBar()
        self._drawn.show(snapshot)

    def write_above(self, text: str) -> bool:
        """Return False: a notebook keeps what is printed and the bar apart."""
        del text
        return False


class _TqdmBar:
    def __init__(self, target: int) -> None:
        self._bar = import_module("tqdm.notebook").tqdm(total=target, bar_format="{bar} {desc}")

    def show(self, snapshot: Snapshot) -> None:
        self._bar.n = snapshot.reached
        self._bar.set_description_str("  ".join(describe(snapshot)))

    def close(self) -> None:
        self._bar.close()


class _TextBar:
    def __init__(self) -> None:
        self._display = import_module("IPython.display").display
        self._handle: Any = None

    def show(self, snapshot: Snapshot) -> None:
        text = f"{drawn_bar(snapshot, _WIDTH)}  {'  '.join(describe(snapshot))}"
        shown = {"text/plain": text.rstrip()}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def close(self) -> None:
        pass
