"""Show the user's part of tracebacks and stacks, without the frames of this package."""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from pathlib import Path

from gymnasium.envs import registration

from streamsampler.errors import RemoteTraceback

__all__ = ["traceback_of", "without_own_frames"]

# Not the user's: this package, and what it calls to get at the user's code.
_OWN_FRAMES = (
    f"{Path(__file__).parents[1]}/",
    *(str(module.__file__) for module in (registration, importlib, contextlib)),
    "<frozen importlib",
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+')


def traceback_of(error: BaseException | None) -> str:
    """Return the traceback of user code, without the frames of this package that lead there.

    Args:
        error: An exception, or the traceback that came from a worker in its place, or None.

    Returns:
        The text; empty where all of it happened in this package.
    """
    if error is None:
        return ""
    text = error.text if isinstance(error, RemoteTraceback) else "".join(traceback.format_exception(error))
    text = without_own_frames(text.strip("\n"))
    return text if any(_FRAME.match(line) for line in text.split("\n")) else ""


def without_own_frames(text: str) -> str:
    """Return a text without what tracebacks and stacks in it have of this package."""
    kept, own = [], False
    for line in text.split("\n"):
        frame = _FRAME.match(line)
        if frame is not None:
            own = frame["file"].startswith(_OWN_FRAMES)
        elif not line.startswith("    "):  # a frame's lines of code are indented more than its heading
            own = False
        if not own:
            kept.append(line)
    return "\n".join(kept)
