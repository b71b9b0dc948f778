"""Pickle dataclasses by position: pickling their field names costs several times as much."""

from __future__ import annotations

import operator
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


BY_NAME: dict[str, type] = {}
"""Classes that reports name without a module: an import of the module takes longer than making an instance."""


def by_position(cls: type[T]) -> type[T]:
    """Make a dataclass pickle as a call with its values in order; a decorator.

    By default, frozen dataclasses with slots go attribute by attribute: several times the cost of the rest of a report.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values = operator.attrgetter(*names)

    def reduce(self: Any) -> tuple[type[T], tuple[Any, ...]]:
        found = values(self)
        return cls, found if len(names) > 1 else (found,)

    cls.__reduce__ = reduce  # type: ignore[method-assign]
    BY_NAME[cls.__name__] = cls
    return cls
