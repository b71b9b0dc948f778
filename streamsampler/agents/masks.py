"""Find action masks: the actions that an environment allows at a timestep. The page `agents` explains them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

__all__ = [
    "ACTION_MASK",
    "ACTION_MASKS",
    "Mask",
    "MaskFinder",
    "first_allowed",
    "flat_mask",
    "mask_size",
    "method_of",
    "sample_masked",
]

ACTION_MASK = "action_mask"
"""The key of a mask in observations and infos, as in PettingZoo and Gymnasium; a keyword of `get_action`."""

ACTION_MASKS = "action_masks"
"""A method of the environment, as for Stable-Baselines3's MaskablePPO; a keyword of `get_actions`."""

Mask = NDArray[np.bool_]
_IN_OBSERVATION, _IN_INFO, _BY_METHOD = f'observation["{ACTION_MASK}"]', f'info["{ACTION_MASK}"]', f"{ACTION_MASKS}()"


def mask_size(space: Space[Any]) -> int | None:
    """Return the number of values of a space's masks; None for a space without masks.

    A Discrete space has a value per action, a MultiDiscrete space a value per choice of each part, part after part, and
    a MultiBinary space two per bit: may it be 0, and may it be 1.
    """
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return 2 * int(np.prod(space.shape)) if isinstance(space, MultiBinary) else None


def flat_mask(size: int | None, given: Any) -> Mask | None:
    """Copy a mask (booleans, zeros and ones, in any shape or nesting) into a flat array; None for other values."""
    if given.__class__ is np.ndarray and given.dtype == np.bool_:
        return given.flatten() if given.size == size else None
    try:
        values = _joined(given)
        mask = values != 0
        is_mask = values.dtype.kind in "biuf" and values.size == size and bool((values == mask).all())
    except Exception:  # an odd object may raise anything in the conversion to an array
        return None
    return mask if is_mask else None


def _joined(given: Any) -> NDArray[Any]:
    if isinstance(given, tuple | list) and any(isinstance(part, tuple | list | np.ndarray) for part in given):
        return np.concatenate([_joined(part) for part in given])
    return np.asarray(given).reshape(-1)


def first_allowed(space: Space[Any], mask: Mask) -> Any:
    if isinstance(space, Discrete):
        return space.start + mask.argmax()
    if isinstance(space, MultiDiscrete):
        parts = np.split(mask, np.cumsum(space.nvec.ravel())[:-1])
        return space.start + np.reshape([part.argmax() for part in parts], space.nvec.shape)
    return mask.reshape(*space.shape, 2).argmax(-1)  # type: ignore[misc]


def sample_masked(space: Space[Any], mask: Mask) -> Any:
    """Draw an allowed action with the space's own generator; a part without allowed values gets its first value."""
    if isinstance(space, MultiBinary):
        may_be = mask.reshape(*space.shape, 2)
        return space.sample(mask=np.where(may_be.all(-1), 2, may_be[..., 1]).astype(np.int8))
    ones = mask.astype(np.int8)
    if isinstance(space, MultiDiscrete):
        parts = np.split(ones, np.cumsum(space.nvec.ravel())[:-1])
        return space.sample(mask=_nested(iter(parts), space.nvec))
    return space.sample(mask=ones)


def _nested(parts: Iterator[Any], sizes: NDArray[Any]) -> tuple[Any, ...]:
    return tuple(_nested(parts, each) if isinstance(each, np.ndarray) else next(parts) for each in sizes)


class MaskFinder:
    """Finds an environment's masks: in the observation, then in the info, then by the environment's method.

    `warn` receives the place and a message, if a value has the name of a mask, but another form.

    Attributes:
        size: See `mask_size`.
        by_method: Whether the environment has the method.
    """

    def __init__(self, env: Any, space: Space[Any], warn: Callable[[str, str], Any]) -> None:
        self.size = mask_size(space)
        self._space, self._warn = space, warn
        self._all = None if self.size is None else np.ones(self.size, np.bool_)
        self._method = None if env is None else self._method_of(env)
        self.by_method = self._method is not None

    def __call__(self, observation: Any, info: Any) -> Mask | None:
        """Return the next action's mask, or all True; None for a space without masks."""
        nothing = self._method is None and not info and not isinstance(observation, dict)  # the most frequent case
        mask = None if nothing else self.find(observation, info)
        return self._all.copy() if mask is None and self._all is not None else mask  # the agent may change its copy

    def find(self, observation: Any, info: Any) -> Mask | None:
        """Return the next action's mask, or None."""
        mask = None
        if isinstance(observation, dict) and ACTION_MASK in observation:
            mask = self._flat(_IN_OBSERVATION, observation[ACTION_MASK])
        if mask is None and isinstance(info, dict) and ACTION_MASK in info:
            mask = self._flat(_IN_INFO, info[ACTION_MASK])
        return mask if mask is not None or self._method is None else self._called(self._method)

    def _flat(self, where: str, found: Any) -> Mask | None:
        mask = flat_mask(self.size, found)
        if mask is None and found is not None:
            self._refuse(where, found)
        return mask

    def _called(self, method: Callable[[], Any]) -> Mask | None:
        try:
            found = method()
        except NotImplementedError as error:
            found = error
        return self._flat(_BY_METHOD, found)

    def _method_of(self, env: Any) -> Callable[[], Any] | None:
        found: Callable[[], Any] | None = method_of(env)
        if found is None or _takes_nothing(found):
            return found
        self._refuse(ACTION_MASKS, found)
        return None

    def _refuse(self, where: str, given: Any) -> None:
        form = (
            f"a mask of {self._space} has {self.size} values, each 0 or 1"
            if self.size is not None
            else f"masks are of Discrete, MultiDiscrete and MultiBinary spaces, and the actions are of {self._space}"
        )
        self._warn(where, f"{where} of the environment is ignored: it is {_described(given)}, and {form}")


def _described(given: Any) -> str:
    if isinstance(given, np.ndarray):
        return f"an array of {given.shape}, {given.dtype}"
    try:
        return f"{given!r:.60}"
    except Exception:
        return f"an object of {type(given).__qualname__}"


def method_of(env: Any) -> Any:
    """Return `action_masks` of an environment or its wrappers, or None; of a property that raises, the exception."""
    try:
        return env.get_wrapper_attr(ACTION_MASKS)
    except AttributeError:
        return None
    except Exception as error:
        return error


def _takes_nothing(found: Any) -> bool:
    if not callable(found):
        return False
    try:
        inspect.signature(found).bind()
    except TypeError:
        return False
    except ValueError:  # Python knows no signature
        return True
    return True
