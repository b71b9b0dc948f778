"""Quick pickling of the small records that travel with every ticket."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

__all__ = ["by_position"]

T = TypeVar("T")


def by_position(cls: type[T]) -> type[T]:
    """Let a dataclass be pickled as a call with its values in order.

    What a frozen dataclass with slots does by itself goes through `dataclasses.fields` and sets each attribute by name,
    both ways: several times the cost of all else in a report.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values = attrgetter(*names)

    def reduce(self: Any) -> tuple[type[T], tuple[Any, ...]]:
        found = values(self)
        return cls, found if len(names) > 1 else (found,)

    cls.__reduce__ = reduce  # type: ignore[method-assign]
    return cls
