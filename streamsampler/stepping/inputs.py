"""Check what callers pass to managers of environments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from streamsampler.errors import UsageError, positive
from streamsampler.serialization import dumps, loads

__all__ = ["chosen_envs", "copied_options", "named", "timeout_seconds", "values_for"]


def chosen_envs(env_ids: Any, n_envs: int) -> list[int]:
    """Return numbers of environments; None are all of them.

    Raises:
        UsageError: They are no numbers of environments, or one is there twice.
    """
    if env_ids is None:
        return list(range(n_envs))
    if isinstance(env_ids, str | bytes | Mapping) or not isinstance(env_ids, Iterable):
        raise UsageError(
            "env_ids must be a sequence of the numbers of environments, or None for all, got "
            f"{env_ids!r}{_hint(env_ids)}"
        )
    if isinstance(env_ids, np.ndarray) and (env_ids.ndim != 1 or env_ids.dtype == np.bool_):
        raise UsageError(
            f"env_ids must be one-dimensional, and numbers (of a mask, np.flatnonzero(mask)); got an array of "
            f"{env_ids.dtype} of shape {env_ids.shape}"
        )
    if isinstance(env_ids, np.ndarray) and env_ids.dtype == np.int64 and (not len(env_ids) or env_ids.min() >= 0):
        chosen: list[int] = env_ids.tolist()  # as `Steps` has them
    else:
        chosen = [positive("an environment's number", env_id, least=0) for env_id in env_ids]
    for env_id in chosen:
        if env_id >= n_envs:
            raise UsageError(f"there is no environment {env_id}: there are {n_envs}, from 0 on")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"an environment is named twice: {chosen}")
    return chosen


def _hint(env_ids: Any) -> str:
    return f"; options are given apart: reset({list(env_ids)}, options=…)" if isinstance(env_ids, Mapping) else ""


def copied_options(options: Any) -> dict[str, Any] | None:
    """Return a copy of the options of a reset; None for none.

    Raises:
        UsageError: They are no dict with strings as keys.
        SerializationError: They cannot be pickled for the workers.
    """
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise UsageError(f"options must be a dict, got {type(options).__name__}")
    if wrong := [key for key in options if not isinstance(key, str)]:
        raise UsageError(f"the keys of options are strings, got {wrong[0]!r}")
    copied: dict[str, Any] = loads(dumps(dict(options), "the options of a reset"))
    return copied


def timeout_seconds(timeout: Any) -> float | None:
    """Return a time limit in seconds; None for none.

    Raises:
        UsageError: It is no finite number, or negative.
    """
    if timeout is None:
        return None
    try:
        seconds = float(timeout) if not isinstance(timeout, bool | str) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"timeout must be a number of seconds, 0 or more, or None for any time, got {timeout!r}")
    return seconds


def named(name: Any) -> str:
    """Return the name of a method or attribute.

    Raises:
        UsageError: It is no string.
    """
    if not isinstance(name, str):
        raise UsageError(f"the name of a method or attribute is a string, got {name!r}")
    return name


def values_for(values: Any, n: int) -> list[Any]:
    """Return a value for each of n environments: the items of a list, or n times anything else.

    Raises:
        UsageError: The list has more or fewer items.
    """
    if not isinstance(values, list):
        return [values] * n
    if len(values) != n:
        raise UsageError(f"there are {len(values)} values for {n} environments")
    return values
