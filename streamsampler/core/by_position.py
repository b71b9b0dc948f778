"""Pickle dataclasses as their values in order: that of names costs several times as much."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


BY_NAME: dict[str, type] = {}
"""Classes that reports carry by name alone: to find one in its module takes longer than to make an instance."""


def by_position(cls: type[T]) -> type[T]:
    """Let a dataclass be pickled as a call with its values in order.

    What a frozen dataclass with slots does by itself goes through `dataclasses.fields` and sets each attribute by name,
    both ways: several times the cost of all else in a report.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values = operator.attrgetter(*names)

    def reduce(self: Any) -> tuple[type[T], tuple[Any, ...]]:
        found = values(self)
        return cls, found if len(names) > 1 else (found,)

    cls.__reduce__ = reduce  # type: ignore[method-assign]
    BY_NAME[cls.__name__] = cls
    return cls
