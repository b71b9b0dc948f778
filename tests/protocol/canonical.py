"""A key for a whole world of objects: equal keys, equal futures.

Pickles are no keys: they depend on the order of sets and on which equal objects are the same one. So the objects are
walked in an order that depends on their contents alone. All fields count but those that are listed here, each with the
reason why it cannot change what happens.
"""

from __future__ import annotations

import marshal
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

IRRELEVANT = {
    # Numbers of what arrived, and what it brought: it is checked when it comes.
    "Result._spans": "is checked after each step",
    "_Arrived.report": "numbers what arrived",
    "WorkerFault.number": "numbers what arrived",
    "ReportReceived.number": "numbers what arrived",
    "FailureReceived.number": "numbers what arrived",
    "Report.seconds": "follows from ticket and worker as far as anything depends on it",
    # Texts for people.
    "Failure.traceback": "is shown only",
    "Losses.incidents": "are shown only; how many count is in other fields",
    # What never changes, or follows from the number of calls that were begun.
    "Policy": "never changes",
    "Layout": "never changes",
    "Fingerprints": "nothing is compared here",
    "SchedulerTrace": "keeps what happened",
    "Copies._steps_of": "never changes",
    "Copies._is_awaited": "never changes",
    "Supervision": "the clock stands still",
    "Stillness": "the clock stands still",
    "Gathering.plan": "one each call",
    "Result._plan": "one each call",
    # The model's own.
    "World.checked": "follows from the number of trajectories in the result",
    "World.doomed": "never changes",
    "World.made_with": "never changes",
    "World.kept": "is in the scheduler's gathering, too",
    "World.open": "is among the events that a scheduler has put off, too",
    "World.owed": "is what the scheduler knows of workers, too",
    "World.happened": "counts only",
    "World.is_eager": "never changes",
    "World.n_events": "numbers what arrived",
}

ORDERED = {"Result._held"}
"""Dictionaries whose order counts: in order of arrival the first failure is decided about first."""

_ATOMS = {int, str, bytes, bool, type(None)}

_Fields = tuple[Callable[[Any], Sequence[Any]], list[str]]


def key_of(world: Any) -> bytes:
    """Return bytes that are equal for worlds with the same future."""
    out: list[Any] = []
    _walk(world, "", out, {})
    return marshal.dumps(out, 2)  # version 2 writes values, not references


def _walk(value: Any, name: str, out: list[Any], seen: dict[int, int]) -> None:
    kind = type(value)
    if kind in _ATOMS:
        out.append(value)
    elif kind is float:
        out.append(round(value, 9))  # sums that differ by the order of their terms
    elif kind is list or kind is tuple:
        out.append(len(value))
        for item in value:
            if type(item) in _ATOMS:
                out.append(item)
            else:
                _walk(item, "", out, seen)
    elif kind is range:
        out.append((value.start, value.stop, value.step))
    elif kind is dict:
        _walk_dict(value, name, out, seen)
    else:
        _walk_other(value, out, seen)


def _walk_dict(value: dict[Any, Any], name: str, out: list[Any], seen: dict[int, int]) -> None:
    items = [(_walked(key), item) for key, item in value.items()]
    if name not in ORDERED:
        items.sort(key=lambda pair: repr(pair[0]))
    out.append(len(items))
    for key, item in items:
        out.append(key)
        _walk(item, "", out, seen)


def _walked(value: Any) -> Any:
    if type(value) in _ATOMS:
        return value
    out: list[Any] = []
    _walk(value, "", out, {})
    return out


def _walk_other(value: Any, out: list[Any], seen: dict[int, int]) -> None:
    kind = type(value)
    known = _known.get(kind) or _known.setdefault(kind, _Known(kind))
    out.append(known.name)
    match known.way:
        case "object":
            if (number := seen.setdefault(id(value), len(seen))) < len(seen) - 1:
                out.append(number)
            else:
                _walk_fields(value, known, out, seen)
        case "sequence":
            _walk(list(value), "", out, seen)
        case "set":
            out.append(sorted((_walked(item) for item in value), key=repr))
        case "enum":
            out.append(value.name)
        case "type":
            out.append(value.__name__)


def _walk_fields(value: Any, known: _Known, out: list[Any], seen: dict[int, int]) -> None:
    values, names = known.fields_of(value)
    for item, name in zip(values(value), names, strict=True):
        if type(item) in _ATOMS:
            out.append(item)
        else:
            _walk(item, name, out, seen)


class _Known:
    """What is known of the objects of a class."""

    def __init__(self, kind: type) -> None:
        self.name = kind.__name__
        self.way = "object"
        for way, kinds in _WAYS.items():
            if issubclass(kind, kinds):
                self.way = way
        if self.name in IRRELEVANT:
            self.way = "irrelevant"
        self._slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        self._fields: dict[int, _Fields] = {}

    def fields_of(self, value: Any) -> _Fields:
        """Return the fields that count, and their names in the lists here.

        Objects of one class with as many attributes have the same ones.
        """
        attributes = getattr(value, "__dict__", _NONE)
        return self._fields.get(len(attributes)) or self._find_fields(attributes)

    def _find_fields(self, attributes: Mapping[str, Any]) -> _Fields:
        fields = [name for name in (*self._slots, *sorted(attributes)) if f"{self.name}.{name}" not in IRRELEVANT]
        names = [f"{self.name}.{field}" for field in fields]

        def values(value: Any) -> list[Any]:
            return [getattr(value, field) for field in fields]

        found = (operator.attrgetter(*fields) if len(fields) > 1 else values), names
        return self._fields.setdefault(len(attributes), found)


_NONE: dict[str, Any] = {}
_WAYS: dict[str, Any] = {
    "sequence": (tuple, list, deque),
    "set": (set, frozenset),
    "enum": Enum,
    "type": type,
}
_known: dict[type, _Known] = {}
