"""How faults fail: one function for each kind."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Literal, NoReturn, get_args

from streamsampler.errors import SamplerError

__all__ = ["KINDS", "InjectedError", "Kind", "fail"]

Kind = Literal["raise", "system_exit", "exit", "abort", "kill", "stop", "hang", "hang_gil", "leak"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EXIT_CODE = 7

_PTHREAD_MUTEX_BYTES = 128  # more than any system's

_leaked: list[bytes] = []


class InjectedError(SamplerError):
    """What a fault of kind "raise" raises."""


def fail(kind: Kind, place: str, n_bytes: int) -> None:
    """Fail; returns only from "leak", and from "stop" when the process is continued."""
    if kind == "raise":
        raise InjectedError(f"injected in {place}")
    if kind == "leak":
        _leaked.append(b"x" * n_bytes)  # not zeros: the system sets no memory aside for those
    else:
        _WAYS[kind]()


def _system_exit() -> NoReturn:
    raise SystemExit(EXIT_CODE)


def _send_self(name: str) -> Callable[[], None]:
    # By name: not every system has every signal.
    return lambda: os.kill(os.getpid(), signal.Signals[name])


def _hang() -> None:
    threading.Event().wait()


def _hang_gil() -> None:
    """Wait for a lock that is held, in native code that holds the interpreter's lock; no signal's handler ends it."""
    native = ctypes.PyDLL(None)  # keeps the interpreter's lock
    mutex = ctypes.create_string_buffer(_PTHREAD_MUTEX_BYTES)
    native.pthread_mutex_init(mutex, None)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)


_WAYS: dict[str, Callable[[], object]] = {
    "system_exit": _system_exit,
    "exit": lambda: os._exit(EXIT_CODE),
    "abort": os.abort,
    "kill": _send_self("SIGKILL"),
    "stop": _send_self("SIGSTOP"),
    "hang": _hang,
    "hang_gil": _hang_gil,
}
