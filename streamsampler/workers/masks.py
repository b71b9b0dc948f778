"""Pass action masks from environments to agents, in every kind of loop; see `agents.masks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import takes_masks
from streamsampler.agents.masks import ACTION_MASK, ACTION_MASKS, Mask, MaskFinder, first_allowed
from streamsampler.core.errors import UsageError
from streamsampler.workers.known_wrappers import EnvElsewhere
from streamsampler.workers.vec.batch_infos import info_of_row
from streamsampler.workers.vec.rows import row_of

Warn = Callable[[str, str], Any]
"""For example `Worker.warn_once`."""

_ELSEWHERE = (
    "the environment has action masks only by its method action_masks(), which cannot be called because the "
    'environment is in another process: put the masks into its info, under "action_mask", or use inference="worker"'
)
_DECLARED = ("get_action", "action_mask"), ("get_actions", "action_masks")


def masks_reach(agent: Any, warn: Warn, *, together: bool = False) -> bool:
    """Return whether the called method of an agent accepts masks; warn if only the other method does."""
    if takes_masks(agent, together=together):
        return True
    if takes_masks(agent, together=not together):
        (asked, keyword), (other, its) = _DECLARED[::-1] if together else _DECLARED
        warn(
            asked,
            f"{asked} of the agent ({type(agent).__qualname__}) is called, which has no parameter {keyword}, while its "
            f"{other} has {its}: the agent acts without action masks. Add the parameters to both",
        )
    return False


def finder_of(agent: Any, env: Any, warn: Warn) -> MaskFinder | None:
    """Return a finder of masks for an agent called by `get_action`; None if it accepts none."""
    return MaskFinder(env, env.action_space, warn) if masks_reach(agent, warn) else None


def masked_loop(
    find: MaskFinder,
    reset: Callable[..., Any],
    get_action: Callable[..., Any],
    step: Callable[[Any], Any],
    info: Any = None,
) -> tuple[Any, Any, Any]:
    """Return replacements of `reset`, `get_action` and `step`, so that the agent receives masks.

    `info` belongs to the observation on which an episode resumes.
    """
    result: Any = (info,)  # the last result; its last item is the info, checked by the loop

    def reset_and_keep(**arguments: Any) -> Any:
        nonlocal result
        result = reset(**arguments)
        return result

    def step_and_keep(action: Any) -> Any:
        nonlocal result
        result = step(action)
        return result

    def get_masked_action(observation: Any) -> Any:
        return get_action(observation, action_mask=find(observation, result[-1]))

    return reset_and_keep, get_masked_action, step_and_keep


class RowMasks:
    """Finds the masks of rows, each with its own environment. A batch may have more rows than environments."""

    def __init__(self, warn: Warn, envs: Sequence[Any], space: Space[Any], n_rows: int) -> None:
        self._finders = [MaskFinder(env, space, warn) for env in envs]
        self._by_method = any(finder.by_method for finder in self._finders)
        self._elsewhere = any(isinstance(env, EnvElsewhere) and env.facts.has_masks for env in envs)
        self._n_rows = n_rows
        self._last: Mask | None = None

    def of(
        self, observations: Any, infos: Mapping[int, Any], live: Sequence[int], sources: NDArray[np.int64] | None
    ) -> Mask | None:
        """Return the masks of all rows, (n, k); None if the action space has no masks.

        Args:
            observations: The observations of all rows, a tree of (n, *O).
            infos: The infos with them, by row.
            live: The rows which are not silent.
            sources: For each row the live row it copies, or itself; None without copies.
        """
        column = observations.get(ACTION_MASK) if isinstance(observations, dict) else None
        size = self._finders[0].size
        masks = np.ones((self._n_rows, size or 0), np.bool_)
        looks = column is not None or self._by_method or self._elsewhere or any(infos.values())
        for row in live if looks else ():
            shown = None if column is None else {ACTION_MASK: row_of(column, row)}
            mask = self._finders[row].find(shown, infos.get(row))
            if mask is not None:
                masks[row] = mask
            elif self._elsewhere and size is not None:
                raise UsageError(_ELSEWHERE)
        self._last = None if size is None else masks if sources is None else masks[sources]
        return self._last

    def repeated(self, row: int) -> Mask | None:
        return None if self._last is None else self._last[[row] * self._n_rows]


class SlotMasks(RowMasks):
    """Finds the masks of the slots of a vector environment."""

    def __init__(self, warn: Warn, env: Any, space: Space[Any]) -> None:
        super().__init__(warn, [None] * env.num_envs, space, env.num_envs)
        self._call: Callable[[str], Any] | None = env.unwrapped.call if has_masks_by_call(env) else None
        self._space = space
        self._own: Mask | None = None  # before silent slots copy others
        self._infos: dict[int, dict[str, Any]] = {}

    def keep(self, infos: Mapping[str, Any], slots: Iterable[int]) -> None:
        found = {key: infos[key] for key in (ACTION_MASK, f"_{ACTION_MASK}") if key in infos}
        self._infos.update((slot, info_of_row(found, slot)) for slot in slots)

    def of_slots(self, observations: Any, live: NDArray[np.bool_], silent: NDArray[np.bool_]) -> Mask | None:
        """Return the masks of all slots; silent slots copy the first live slot's mask, like its observation."""
        infos = self._infos
        if self._call is not None and not (isinstance(observations, dict) and ACTION_MASK in observations):
            infos = {slot: {ACTION_MASK: mask, **infos[slot]} for slot, mask in enumerate(self._call(ACTION_MASKS))}
        own = self._own = self.of(observations, infos, np.flatnonzero(live | silent).tolist(), None)
        return None if own is None else own[np.where(silent, int(live.argmax()), np.arange(len(live)))]

    def step_along(self, actions: Any, silent: NDArray[np.bool_]) -> None:
        """Replace silent slots' actions by actions which their own environments allow."""
        if self._own is not None:
            for slot in np.flatnonzero(silent).tolist():
                actions[slot] = first_allowed(self._space, self._own[slot])


def has_masks_by_call(env: Any) -> bool:
    """Return whether a vector environment has `call` and all its environments a method `action_masks`."""
    try:
        return all(env.unwrapped.call("has_wrapper_attr", ACTION_MASKS))
    except Exception:  # a non-Gymnasium interface
        return False
