"""Tell from the first bytes of a file, or from a folder, what is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Kind", "kind_of"]

Kind: TypeAlias = Literal["folder", "file of trajectories", "evaluation", "comparison"]

_JSON = re.compile(rb'\s*\{\s*"format"\s*:\s*"streamsampler (evaluation|comparison)"')


def kind_of(path: Path) -> Kind | None:
    """Return what a path holds; None for nothing of this package's.

    Raises:
        OSError: It cannot be read.
    """
    if path.is_dir():
        return "folder"
    with path.open("rb") as file:
        begin = file.read(4096)
    if begin.startswith(b"PK"):
        return "file of trajectories"
    if match := _JSON.match(begin):
        return "evaluation" if match[1] == b"evaluation" else "comparison"
    return None
