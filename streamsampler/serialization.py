"""Pickle what crosses process boundaries: agents, environments and updates one way, reports the other.

Going to the workers, cloudpickle takes what the user's main script defines along by value. Coming back, the standard
pickler is tried first, which is several times faster. Either way large arrays stay outside the pickle, as raw buffers,
so that an engine copies them once.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from streamsampler.errors import SerializationError

__all__ = ["Payload", "dumps", "dumps_report", "loads"]

_PROTOCOL = 5
# How deep to look for the attribute that could not be pickled.
_SEARCH_DEPTH = 4

_ADVICE = {
    "environment": "Pass an id, an EnvSpec or a callable that makes the environment in the worker.",
    "agent": "Keep such handles out of the pickle with __getstate__, and open them again when they are first needed.",
}


@dataclass(frozen=True)
class Payload:
    """A pickled object, and the arrays' memory that the pickle refers to.

    Attributes:
        data: The pickle.
        buffers: The arrays' memory, in the order of the pickle. A memoryview shows the live array: engines copy
            it before the user can change the array.
        about: What the sender knows of the object. It is not sent.
    """

    data: bytes
    buffers: tuple[memoryview | bytes, ...] = ()
    about: Any = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes, buffers included."""
        return len(self.data) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


def dumps(obj: Any, what: str) -> Payload:
    """Pickle an object for the workers.

    Args:
        obj: Any object.
        what: What to call it in an error, such as "the agent" or "the environment update".

    Returns:
        The payload, whose buffers are views of the object's own arrays.

    Raises:
        SerializationError: If it cannot be pickled; the pickler's exception is the cause.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = cloudpickle.dumps(obj, protocol=_PROTOCOL, buffer_callback=buffers.append)
        return Payload(data, tuple(buffer.raw() for buffer in buffers))
    except Exception as error:
        # Anything: __getstate__ and __reduce__ are user code.
        raise _not_picklable(obj, what, error) from error


def loads(payload: Payload) -> Any:
    """Unpickle a payload; arrays come out in memory of their own, which may be written to.

    An array that was read-only when it was pickled is read-only again.

    Args:
        payload: What `dumps` gave.

    Returns:
        A new object.
    """
    return pickle.loads(payload.data, buffers=[bytearray(buffer) for buffer in payload.buffers])


def _reduce_array(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Reduce an array of plain numbers to its memory and three words: a third of the time of NumPy's own way."""
    if array.dtype.kind in _PLAIN_KINDS and array.dtype.isnative and array.flags.c_contiguous:
        if array.nbytes <= _FEW_BYTES:
            return _array, (array.shape, array.dtype.str, array.tobytes())
        return _array, (array.shape, array.dtype.str, pickle.PickleBuffer(array))  # type: ignore[arg-type]
    return array.__reduce_ex__(_PROTOCOL)  # type: ignore[return-value]


def _array(shape: tuple[int, ...], dtype: str, buffer: Any) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, dtype, bytearray(buffer) if buffer.__class__ is bytes else buffer)


_PLAIN_KINDS = "biufc"
_FEW_BYTES = 4096  # copied into the pickle, which costs less than the account of one more buffer
_PLAINLY = {**copyreg.dispatch_table, np.ndarray: _reduce_array}


def dumps_report(rollouts: Any, spaces: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle what a worker recorded.

    Args:
        rollouts: The rollouts.
        spaces: Its spaces, or None: pickled by themselves, because they are mostly those that were sent before,
            which the reader sees without unpickling them: that takes longer than the rest of a report.

    Returns:
        The pickle of the rollouts and of the spaces' pickle, and the rollouts' memory as `pickle.loads(…, buffers=…)`
        takes it.

    Raises:
        SerializationError: If it cannot be pickled; the pickler's exception is the cause.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled_spaces = None if spaces is None else _dumps_plainly(spaces, None)
    return _dumps_plainly((rollouts, pickled_spaces), buffers), buffers


def _dumps_plainly(obj: Any, buffers: list[pickle.PickleBuffer] | None) -> bytes:
    """Pickle what comes from a worker, with its arrays' memory in `buffers`, or in the pickle if that is None."""
    callback = None if buffers is None else buffers.append
    try:
        try:
            file = io.BytesIO()
            pickler = pickle.Pickler(file, _PROTOCOL, buffer_callback=callback)
            pickler.dispatch_table = _PLAINLY
            pickler.dump(obj)
            return file.getvalue()
        except (pickle.PicklingError, AttributeError, TypeError):
            # A class from the user's main script came here by value; no module has it, so it goes back by value, too.
            if buffers is not None:
                buffers.clear()
            by_value: bytes = cloudpickle.dumps(obj, protocol=_PROTOCOL, buffer_callback=callback)
            return by_value
    except Exception as error:
        raise _not_picklable(obj, "what the rollout recorded", error) from error


def _not_picklable(obj: Any, what: str, error: Exception) -> SerializationError:
    path = _culprit(obj)
    where = f" (at its {path})" if path else ""
    advice = next((text for word, text in _ADVICE.items() if word in what), "")
    message = f"{what} ({type(obj).__qualname__}) cannot be pickled{where}: {type(error).__name__}: {error}"
    return SerializationError(f"{message.rstrip('.')}. {advice}".rstrip())


def _culprit(obj: Any) -> str:
    """Return the path of the attribute or entry that cannot be pickled, such as ``.env.window``, or an empty string."""
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
    elif not isinstance(obj, type):
        yield from ((f".{name}", part) for name, part in getattr(obj, "__dict__", {}).items())


def _can_pickle(obj: Any) -> bool:
    try:
        cloudpickle.dumps(obj, protocol=_PROTOCOL)
    except Exception:
        return False
    return True
