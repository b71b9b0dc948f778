"""A key for a whole world of objects: equal keys, equal futures.

Pickles are no keys: they depend on the order of sets and on which equal objects are the same one. So the objects are
walked in an order that depends on their contents alone. All fields count but those that are listed here, each with the
reason why it cannot change what happens.
"""

import functools
import marshal
import types
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

import numpy as np

IRRELEVANT = {
    # Accounts: they are added to, and nothing is decided by them.
    "Stats": "counts only",
    "CallAccounts": "counts only",
    "SchedulerTrace": "keeps what happened",
    "SentToWorker.reported_timesteps": "is counted as lost when the worker dies",
    "Session._ran_by_dead": "is counted at the end",
    # Data on their way into the batch: what they say is checked after each step.
    "Delivery": "is checked when it arrives",
    "Result._spans": "is checked after each step",
    "Arrivals": "holds what arrived, by numbers",
    "_Arrived.report": "numbers what arrived",
    "WorkerFault.number": "numbers what arrived",
    "BatchMaker": "joins what is in the result, by its contents",
    "Pool": "holds memory only",
    "WorkerLoop._seconds": "is measured, and counted by the sampler",
    "Report.seconds": "follows from ticket and worker as far as anything depends on it",
    # Texts for people.
    "Failure.traceback": "is shown only",
    "Failure.exception": "is shown only",
    "Losses.incidents": "are shown only; how many count is in other fields",
    # What never changes, or follows from the number of calls that were begun.
    "Policy": "never changes",
    "WorkerContext": "never changes",
    "PurityCheck": "nothing is checked here",
    "Gathering.plan": "one each call",
    "Result._plan": "one each call",
    # The model's own.
    "World.checked": "follows from the number of trajectories in the result",
    "World.doomed": "never changes",
}

ORDERED = {"Result._held"}
"""Dictionaries whose order counts: in order of arrival the first failure is decided about first."""

BY_IDENTITY = {"Session._published"}
"""Dictionaries by the identity of their values."""

_ATOMS = {int, str, bytes, bool, type(None)}
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


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
    elif kind in (dict, OrderedDict):
        _walk_dict(value, name, out, seen)
    elif kind in (set, frozenset):
        out.append(sorted((_walked(item) for item in value), key=repr))
    elif isinstance(value, tuple | list | deque):
        out.append(len(value))
        for item in value:
            _walk(item, "", out, seen)
    elif kind is range or isinstance(value, Enum):
        out.append(repr(value))
    else:
        _walk_object(value, out, seen)


def _walked(value: Any) -> list[Any]:
    out: list[Any] = []
    _walk(value, "", out, {})
    return out


def _walk_dict(value: dict[Any, Any], name: str, out: list[Any], seen: dict[int, int]) -> None:
    items = [((), item) if name in BY_IDENTITY else (_walked(key), item) for key, item in value.items()]
    if name in BY_IDENTITY:
        items.sort(key=lambda pair: repr(_walked(pair[1])))
    elif name not in ORDERED:
        items.sort(key=lambda pair: repr(pair[0]))
    out.append(len(items))
    for key, item in items:
        out.append(key)
        _walk(item, "", out, seen)


def _walk_object(value: Any, out: list[Any], seen: dict[int, int]) -> None:  # noqa: C901 - one branch a kind
    kind = type(value)
    out.append(kind.__name__)
    if kind.__name__ in IRRELEVANT:
        return
    if (number := seen.setdefault(id(value), len(seen))) < len(seen) - 1:
        out.append(number)
        return
    if isinstance(value, _CODE):
        out.append(value.__name__)
    elif isinstance(value, types.MethodType):
        out.append(value.__func__.__qualname__)
        _walk(value.__self__, "", out, seen)
    elif isinstance(value, functools.partial):
        _walk([value.func, value.args, value.keywords], "", out, seen)
    elif isinstance(value, np.ndarray):
        out.append(value.tobytes())
    else:
        for field, name in _relevant(kind, tuple(getattr(value, "__dict__", ()))):  # type: ignore[arg-type]
            item = getattr(value, field)
            if type(item) in _ATOMS:
                out.append(item)
            else:
                _walk(item, name, out, seen)


@functools.cache
def _relevant(kind: type, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the fields that count of objects with these slots and attributes, with their names in the lists here."""
    fields = [(field, f"{kind.__name__}.{field}") for field in (*_slots(kind), *sorted(names))]
    return [(field, name) for field, name in fields if name not in IRRELEVANT]


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
