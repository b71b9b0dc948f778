"""Refuse environments that a factory hands out again: what steps one would step the other.

Whole trajectories, one after the other, do without; several that run at the same time do not. Nor do episodes that go
on from call to call: of these, the workers of one process take turns.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streamsampler.environments.updates import AnyEnv, EnvUpdate, describe
from streamsampler.errors import UsageError

__all__ = ["are_one", "claim", "close_all", "refuse_copies_of", "release"]

_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Who runs episodes in an environment, which the owner keeps alive, so that no other one has its id."""


def are_one(one: Any, other: Any) -> bool:
    """Return whether two environments are the same below their wrappers."""
    return one.unwrapped is other.unwrapped


def refuse_copies_of(env: Any, others: Iterable[Any], update: EnvUpdate) -> None:
    """Refuse an environment that is one of others.

    Args:
        env: The environment.
        others: The others.
        update: What gave it.

    Raises:
        UsageError: It is one of them.
    """
    if any(are_one(env, other) for other in others):
        raise _error(env, update)


def claim(env: AnyEnv, owner: Any, update: Callable[[], EnvUpdate]) -> None:
    """Claim an environment for the episodes that go on in it.

    Args:
        env: The environment.
        owner: Who keeps it, until `release`.
        update: Returns what gave the environment.

    Raises:
        UsageError: Other episodes go on in it in this process.
    """
    key = id(env.unwrapped)
    if key in _owners:
        raise _error(env, update())
    _owners[key] = owner


def release(owner: Any) -> None:
    """Give up all environments that `owner` has claimed."""
    for key in [key for key, known in _owners.items() if known is owner]:
        _owners.pop(key, None)


def close_all(envs: Iterable[AnyEnv], but: Sequence[Any]) -> None:
    """Close environments; whatever they raise comes after all are closed.

    Args:
        envs: The environments.
        but: Those among them that stay open.
    """
    with contextlib.ExitStack() as closing:
        for env in envs:
            if not any(env is kept for kept in but):
                closing.callback(env.close)


def _error(env: Any, update: EnvUpdate) -> UsageError:
    return UsageError(
        f"{describe(update)} must make a new environment each time: it gave one that is stepped already, the same "
        f"{type(env.unwrapped).__qualname__} again, and several are to be stepped side by side"
    )
