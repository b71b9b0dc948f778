"""Record `call` and `set_attr` on environments, to repeat them on their replacements. Pure: no I/O."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from streamsampler.core.serialization import dumps, loads
from streamsampler.workers.restoring import NotRestoredError

BEFORE = -1
"""The timestep of requests before the episode's reset."""

_MOST = 1_000

TOO_MANY = (
    f"its methods were called or its attributes set more than {_MOST:,} times, which a replacement would have to "
    "repeat: use get_attr to read values, and the options of reset for settings"
)


class PastRequest(NamedTuple):
    """A call of a method, or a new value of an attribute."""

    timestep: int  # of the episode at the time; `BEFORE` for a request before the reset
    kind: str  # "call" or "set"
    name: str
    arguments: Any
    raised: bool = False  # its effects until then are repeated, too
    digest: bytes | None = None  # of its result; None if it is not compared
    is_moved: bool = False  # whether it was requested in an earlier episode, and is repeated before the reset


def digest_of_result(value: Any) -> bytes | None:
    """Return a result's digest, equal before and after pickling; None if it cannot be pickled."""
    if value is None:
        return None
    try:
        payload = dumps(loads(dumps(value, "a result")), "a result")
    except Exception:  # any error: this runs user code
        return None
    digest = hashlib.blake2b(payload.data, digest_size=16)
    for buffer in payload.buffers:
        digest.update(buffer)
    return digest.digest()


class PastRequests:
    """Each environment's requests that may have changed it."""

    def __init__(self, n_envs: int) -> None:
        self._of: list[list[tuple[int, PastRequest]]] = [[] for _ in range(n_envs)]  # with the episode's number

    def record(self, env_id: int, episode: int, request: PastRequest) -> bool:
        """Record a request; return whether it is the first beyond the limit."""
        kept = self._of[env_id]
        if len(kept) == _MOST:
            kept[:] = _needed(kept, episode)
        if len(kept) <= _MOST:
            kept.append((episode, request._replace(arguments=copy.deepcopy(request.arguments))))
            return len(kept) > _MOST
        return False

    def to_repeat(self, env_id: int, episode: int | None) -> Sequence[PastRequest]:
        """Return the requests to repeat, in order, for a current episode or None.

        Raises NotRestoredError beyond the limit.
        """
        kept = self._of[env_id]
        if len(kept) > _MOST:
            raise NotRestoredError(TOO_MANY)
        return [it if number == episode else it._replace(timestep=BEFORE, is_moved=True) for number, it in kept]


def _needed(kept: Sequence[tuple[int, PastRequest]], episode: int) -> list[tuple[int, PastRequest]]:
    """Drop attributes set in earlier episodes and set again since."""
    needed = []
    set_later: set[str] = set()
    for number, request in reversed(kept):
        if request.kind == "call":
            set_later.clear()  # it may have read them
        elif number != episode:
            if request.name in set_later:
                continue
            set_later.add(request.name)
        needed.append((number, request))
    return needed[::-1]
