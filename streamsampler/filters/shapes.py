"""Compare statistics with the space of what they are to normalise."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Dict, Tuple

from streamsampler.errors import UsageError

__all__ = ["check_moments"]


def check_moments(moments: Any, space: Any, name: str) -> None:
    """Check that statistics are of observations of a space: NumPy would make others fit.

    Args:
        moments: A `Moments`, None, or a dict or tuple of them.
        space: The space.
        name: What the filter is called in errors.

    Raises:
        UsageError: They are of another space; shows both shapes.
    """
    if moments is None:
        return
    if isinstance(moments, dict):
        _check_keys(moments, space, name)
    elif hasattr(moments, "mean"):
        shape = None if isinstance(space, Dict | Tuple) else getattr(space, "shape", None)
        if shape != moments.mean.shape:
            _refuse(name, f"statistics of the shape {moments.mean.shape}", space, shape)
    else:
        if not isinstance(space, Tuple) or len(space.spaces) != len(moments):
            _refuse(name, f"statistics of a tuple of {len(moments)}", space)
        for position, child in enumerate(moments):
            check_moments(child, space[position], f"{name}[{position}]")


def _check_keys(moments: dict[str, Any], space: Any, name: str) -> None:
    if not isinstance(space, Dict) or space.spaces.keys() != moments.keys():
        _refuse(name, f"statistics of the keys {', '.join(moments)}", space)
    for key, child in moments.items():
        check_moments(child, space[key], f"{name}[{key!r}]")


def _refuse(name: str, what: str, space: Any, shape: Any = None) -> None:
    has = f"observations {space}" if shape is None else f"observations of the shape {shape}"
    raise UsageError(
        f"{name} has {what}, and the environment has {has}: its statistics are of another environment. Use a new "
        "filter, and with another environment a new sampler"
    )
