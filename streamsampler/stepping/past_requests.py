"""What `call` and `set_attr` did to environments, to do it again with those that replace them. Pure: no I/O."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from streamsampler.core.serialization import dumps, loads
from streamsampler.workers.restoring import NotRestoredError

BEFORE = -1
"""The timestep of what was requested before the reset that began the episode."""

_MOST = 1_000

TOO_MANY = (
    f"more than {_MOST:,} times its methods were called or its attributes set, which an environment that is made anew "
    "would have to repeat: use get_attr for what changes nothing, and options of resets"
)


class PastRequest(NamedTuple):
    """A call of a method, or the setting of an attribute."""

    timestep: int  # how many the episode had by then; `BEFORE` for none, and no reset
    kind: str  # "call" or "set"
    name: str
    arguments: Any
    raised: bool = False  # what it did before that is repeated, too
    digest: bytes | None = None  # of its result; None where it has none that is compared
    is_moved: bool = False  # whether it was requested in an earlier episode, and is repeated before the reset


def digest_of_result(value: Any) -> bytes | None:
    """Return the digest of what a method returned, the same before and after it was pickled; None if it cannot be."""
    if value is None:
        return None
    try:
        payload = dumps(loads(dumps(value, "a result")), "a result")
    except Exception:  # anything: it is user code
        return None
    digest = hashlib.blake2b(payload.data, digest_size=16)
    for buffer in payload.buffers:
        digest.update(buffer)
    return digest.digest()


class PastRequests:
    """The requests that may have changed each environment."""

    def __init__(self, n_envs: int) -> None:
        self._of: list[list[tuple[int, PastRequest]]] = [[] for _ in range(n_envs)]  # with the episode's number

    def record(self, env_id: int, episode: int, request: PastRequest) -> bool:
        """Keep a request that was carried out in an episode; return whether it is the first one too many."""
        kept = self._of[env_id]
        if len(kept) == _MOST:
            kept[:] = _needed(kept, episode)
        if len(kept) <= _MOST:
            kept.append((episode, request._replace(arguments=copy.deepcopy(request.arguments))))
            return len(kept) > _MOST
        return False

    def to_repeat(self, env_id: int, episode: int | None) -> Sequence[PastRequest]:
        """Return requests in order, as they are to be repeated with the episode that goes on, None for none.

        Raises NotRestoredError where there were too many.
        """
        kept = self._of[env_id]
        if len(kept) > _MOST:
            raise NotRestoredError(TOO_MANY)
        return [it if number == episode else it._replace(timestep=BEFORE, is_moved=True) for number, it in kept]


def _needed(kept: Sequence[tuple[int, PastRequest]], episode: int) -> list[tuple[int, PastRequest]]:
    """Return the requests without attributes that were set in earlier episodes, and to something else since."""
    needed = []
    set_later: set[str] = set()
    for number, request in reversed(kept):
        if request.kind == "call":
            set_later.clear()  # it may have looked at them
        elif number != episode:
            if request.name in set_later:
                continue
            set_later.add(request.name)
        needed.append((number, request))
    return needed[::-1]
