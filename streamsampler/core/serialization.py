"""Pickle objects between processes: agents, environments and updates for workers, reports for the sampler.

For workers, cloudpickle pickles objects of the user's main script by value; for reports, the standard pickler goes
first, several times faster. Large arrays stay outside the pickles, so that an engine copies them once.
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamsampler.core.by_value import ByValuePickler, contents_of, dumps_by_value, is_importable

# Not from `core.errors`: the exceptions name this module as theirs, and cloudpickle would pickle them by value if it
# were not loaded.
from streamsampler.errors import SerializationError

__all__ = [
    "Contents", "HeldPayload", "Payload", "Place", "dumps", "dumps_report", "loads", "loads_report", "refers_to",
]  # fmt: skip

_PROTOCOL = 5
# Levels of attributes to search for the object that cannot be pickled.
_SEARCH_DEPTH = 4

_ADVICE = {
    "environment": "Pass an id, an EnvSpec or a callable that makes the environment in the worker.",
    "agent": "Keep such handles out of the pickle with __getstate__, and open them again when they are first needed.",
}


@dataclass(frozen=True)
class Payload:
    """A pickled object, with the memory of its arrays outside the pickle.

    Attributes:
        data: The pickle.
        buffers: The arrays' memory, in the pickle's order; engines copy the live arrays' memoryviews before the user
            can change them.
        about: The sender's own remarks, which are not sent.
    """

    data: bytes
    buffers: tuple[memoryview | bytes, ...] = ()
    about: Any = None

    def owned(self) -> Payload:
        """Return a copy with the arrays' memory as bytes, which can be pickled itself."""
        return Payload(self.data, tuple(bytes(buffer) for buffer in self.buffers))

    @property
    def nbytes(self) -> int:
        """Size in bytes, buffers included."""
        return len(self.data) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


@dataclass(frozen=True)
class HeldPayload(Payload):
    """An object that stays in this process and is not pickled.

    Attributes:
        held: The object. If the payload is pickled, it becomes a usual `Payload`.
    """

    held: Any = None

    @classmethod
    def of(cls, held: Any, about: Any) -> HeldPayload:
        """Return an object's payload."""
        return cls(pickle.dumps(type(held).__module__), (), about, held)

    def pickled(self) -> Payload:
        """Pickle the object as it is now."""
        return replace(dumps(self.held, "the agent").owned(), about=self.about)

    def __reduce__(self) -> Any:
        pickled = self.pickled()
        return Payload, (pickled.data, pickled.buffers, pickled.about)


def dumps(obj: Any, what: str) -> Payload:
    """Pickle an object for workers; the buffers are views of its own arrays.

    Args:
        obj: Any object.
        what: Its name in errors, such as "the agent" or "the environment update".

    Raises:
        SerializationError: The object cannot be pickled; the pickler's exception is the cause.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = dumps_by_value(obj, buffers.append)
        return Payload(data, tuple(buffer.raw() for buffer in buffers))
    except Exception as error:
        # Any exception: __getstate__ and __reduce__ are user code.
        raise _not_picklable(obj, what, error) from error


def loads(payload: Payload) -> Any:
    """Unpickle a payload of `dumps`; arrays are writable unless they were read-only when pickled."""
    if isinstance(payload, HeldPayload):
        payload = payload.pickled()
    return pickle.loads(payload.data, buffers=[bytearray(buffer) for buffer in payload.buffers])


def refers_to(payload: Payload, package: str) -> bool:
    """Return whether a pickle, or an imported module named in it, refers to a package."""
    if package.encode() in payload.data:
        return True
    names = {text.partition(":")[0] for _, text, _ in pickletools.genops(payload.data) if isinstance(text, str)}
    modules = [module for name in names if isinstance(module := sys.modules.get(name), types.ModuleType)]
    return any(_is_of(value, package) for module in modules for value in list(vars(module).values()))


def _is_of(value: Any, package: str) -> bool:
    if isinstance(value, types.ModuleType | types.FunctionType):
        names = [value.__name__ if isinstance(value, types.ModuleType) else value.__module__]
    else:
        names = [base.__module__ for base in (value if isinstance(value, type) else type(value)).__mro__]
    return any(str(name).partition(".")[0] == package for name in names)


class _ArraysApart:
    """A pickler that moves arrays of plain numbers to a list, unless that is None."""

    def __init__(self, file: io.BytesIO, arrays: list[np.ndarray[Any, Any]] | None, names: Mapping[str, type]) -> None:
        super().__init__(file, _PROTOCOL)  # type: ignore[call-arg]
        self._arrays, self._names = arrays, names

    def persistent_id(self, obj: Any) -> int | str | None:
        if obj.__class__ is type:
            return obj.__name__ if self._names.get(obj.__name__) is obj else None
        if obj.__class__ is not np.ndarray or self._arrays is None:
            return None
        if obj.dtype.kind not in _PLAIN_KINDS or not obj.dtype.isnative or not obj.flags.c_contiguous:
            return None
        if len(self._arrays) >= _MANY and obj.nbytes <= _FEW_BYTES:
            return None
        self._arrays.append(obj)
        return len(self._arrays) - 1


class _Pickler(_ArraysApart, pickle.Pickler):
    pass


class _ByValue(_ArraysApart, ByValuePickler):
    pass


_PLAIN_KINDS = "biufc"
_MANY = 64
_FEW_BYTES = 4096  # of many small arrays (infos), these are pickled: a buffer's entry costs more
Contents = tuple[bytes, bytes | None, list[tuple[str, tuple[int, ...]]]]
"""A report without its arrays: the pickled rollouts, the pickled spaces, each array's dtype and shape."""

Place = tuple[Any, int]
"""An array's memory, and its offset in this memory."""

_NO_NAMES: Mapping[str, type] = {}
_dtype = functools.cache(np.dtype)


def dumps_report(
    rollouts: Any, spaces: Any, names: Mapping[str, type] = _NO_NAMES
) -> tuple[Contents, list[memoryview]]:
    """Pickle a worker's rollouts, and their spaces if not None; `loads_report` is the inverse.

    Spaces have their own pickle, mostly equal to the report's before: the reader then skips unpickling them, which
    takes longer than the rest of a report. The reader knows the classes in `names` by name.

    Raises:
        SerializationError: An object cannot be pickled; the pickler's exception is the cause.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    pickled = _dumps_plainly(rollouts, arrays, names)
    pickled_spaces = None if spaces is None else _dumps_plainly(spaces, None, _NO_NAMES)
    forms = [(array.dtype.str, array.shape) for array in arrays]
    return (pickled, pickled_spaces, forms), [pickle.PickleBuffer(array).raw() for array in arrays]  # type: ignore[arg-type]


def loads_report(contents: Contents, places: Sequence[Place], names: Mapping[str, type] = _NO_NAMES) -> Any:
    """Unpickle rollouts, with arrays as views of the memory at these places."""
    pickled, _, forms = contents
    arrays = [np.ndarray(shape, _dtype(dtype), *place) for (dtype, shape), place in zip(forms, places, strict=True)]
    return _Unpickler(io.BytesIO(pickled), {**names, **dict(enumerate(arrays))}).load()


class _Unpickler(pickle.Unpickler):
    """Looks up arrays and classes outside the pickle."""

    def __init__(self, file: io.BytesIO, found: dict[Any, Any]) -> None:
        super().__init__(file)
        self._found = found

    def persistent_load(self, key: Any) -> Any:
        return self._found[key]


def _dumps_plainly(obj: Any, arrays: list[np.ndarray[Any, Any]] | None, names: Mapping[str, type]) -> bytes:
    """Pickle a worker's object, with its arrays in a list, if there is one."""
    try:
        try:
            return _dumped(_Pickler, obj, arrays, names)
        except (pickle.PicklingError, AttributeError, TypeError):
            # A class of the user's main script came here by value and is in no module, so it returns by value, too.
            if arrays is not None:
                arrays.clear()
            return _dumped(_ByValue, obj, arrays, names)
    except Exception as error:
        raise _not_picklable(obj, "the recorded rollout", error) from error


def _dumped(pickler: Any, obj: Any, *options: Any) -> bytes:
    file = io.BytesIO()
    pickler(file, *options).dump(obj)
    return file.getvalue()


def _not_picklable(obj: Any, what: str, error: Exception) -> SerializationError:
    path = _culprit(obj)
    where = f" (at its {path})" if path else ""
    advice = next((text for word, text in _ADVICE.items() if word in what), "")
    message = f"{what} ({type(obj).__qualname__}) cannot be pickled{where}: {type(error).__name__}: {error}"
    return SerializationError(f"{message.rstrip('.')}. {advice}".rstrip())


def _culprit(obj: Any) -> str:
    """Return the path of the part that cannot be pickled, such as ``.env.window``."""
    path = ""
    for _ in range(_SEARCH_DEPTH):
        found = next(((step, part) for step, part in _parts(obj) if not _can_pickle(part)), None)
        if found is None:
            break
        step, obj = found
        path += step
    return path


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", part) for key, part in obj.items())
    elif isinstance(obj, list | tuple):
        yield from ((f"[{position}]", part) for position, part in enumerate(obj))
    elif isinstance(obj, types.FunctionType):
        names = [name for name in obj.__code__.co_names if name in obj.__globals__]
        yield from ((f", its global {name}", obj.__globals__[name]) for name in names)
        cells = zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True)
        yield from ((f", the {name} of its scope", part) for name, cell in cells for part in contents_of(cell))
    elif isinstance(obj, type):
        yield from (
            (f".{name}", part) for base in obj.__mro__ if not is_importable(base) for name, part in vars(base).items()
        )
    else:
        yield from ((f".{name}", part) for name, part in getattr(obj, "__dict__", {}).items())
        yield from (part for part in _parts(type(obj)) if not part[0].startswith(".__"))


def _can_pickle(obj: Any) -> bool:
    try:
        dumps_by_value(obj)
    except Exception:
        return False
    return True
