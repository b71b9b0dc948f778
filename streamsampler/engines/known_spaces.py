"""The spaces that workers sent, each kept once."""

from __future__ import annotations

import pickle
from typing import Any, Protocol

__all__ = ["KnownSpaces"]


class LastSpaces(Protocol):
    """Whatever stands for a worker.

    Attributes:
        spaces: The spaces that the worker sent last, pickled; empty before.
    """

    spaces: bytes


class KnownSpaces:
    """The spaces that workers sent last: equal spaces are one object for all workers.

    Gymnasium takes long to compare two of them.
    """

    def __init__(self) -> None:
        self._pickled = b""
        self._spaces: Any = None

    def new(self, link: LastSpaces, pickled: bytes | None) -> Any:
        """Return the spaces that a worker sent; None if they are those that it sent last."""
        if pickled is None or pickled == link.spaces:
            return None
        if pickled != self._pickled:
            self._spaces = pickle.loads(pickled)
            self._pickled = pickled
        link.spaces = self._pickled
        return self._spaces
