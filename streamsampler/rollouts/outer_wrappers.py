"""Replace the work of Gymnasium's outermost wrappers in a step.

In a trajectory `OrderEnforcing` and `PassiveEnvChecker` have nothing left to do, and `TimeLimit` only counts. Their
three frames cost .3 to .5 µs, as much as the script's own work in a timestep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from streamsampler.environments.multi_agent import MultiAgentEnv

__all__ = ["OuterWrappers"]

_PASSES_ON = frozenset({"env", "step"})
_NAMES_OF_STEP: dict[Any, frozenset[str]] = {
    TimeLimit: frozenset({"env", "step", "_elapsed_steps", "_max_episode_steps"}),
    OrderEnforcing: frozenset({"_has_reset", "ResetNeeded", "super", "step"}),
    PassiveEnvChecker: frozenset({"env", "step", "checked_step", "checked_data_reuse", "_previous_data"})
    | {"env_step_passive_checker", "env_data_reuse_passive_checker"},
}
"""The names in the known `step` of each wrapper. A `step` with other names, from another version of Gymnasium or a
program's own, does other work, and is called."""


class OuterWrappers:
    """Skips the outermost wrappers if the script can do their work in a step.

    A skipped wrapper has exactly a known class and Gymnasium's own `step`. Environments of several agents, with flags
    for each, keep all wrappers.

    Args:
        env: The environment, which runs trajectories in sequence.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._limits: list[Any] = []
        # Classes are checked once for many trajectories. Attributes of instances are checked in `begin`, since a task
        # may change them at each reset.
        has_several = isinstance(getattr(env, "unwrapped", None), MultiAgentEnv)
        passes_on = _uses(gymnasium.Wrapper.step, _PASSES_ON) and not has_several
        self._kinds = [kind for kind, names in _NAMES_OF_STEP.items() if passes_on and _uses(kind.step, names)]

    def begin(self) -> tuple[Any, int | None]:
        """Start a trajectory after the environment's reset, or a further part of it.

        Returns:
            The environment below, for its `step`; and the number of further timesteps, at least 1, after which the
            wrappers truncate the trajectory, None for never. Steps inside a reset count.
        """
        below, kinds, limits, left = self._env, self._kinds, [], math.inf
        while (kind := type(below)) in kinds:
            own = below.__dict__
            if "step" in own:
                break
            if kind is TimeLimit:
                limits.append(below)
                left = min(left, own["_max_episode_steps"] - (own["_elapsed_steps"] or 0))
            elif kind is PassiveEnvChecker and not (
                own.get("checked_step", True) is True and own.get("checked_data_reuse", True) is True
            ):
                break
            below = own["env"]
        self._limits = limits
        return below, max(1, math.ceil(left)) if left < math.inf else None

    def end(self, n_timesteps: int) -> None:
        """Add the timesteps of an ended trajectory or part to the wrappers' counters."""
        for each in self._limits:
            each._elapsed_steps = (each._elapsed_steps or 0) + n_timesteps


@lru_cache
def _uses(function: Callable[..., Any], names: frozenset[str]) -> bool:
    """Return whether a function uses only these names."""
    code = getattr(function, "__code__", None)
    return code is not None and names.issuperset(code.co_names)
