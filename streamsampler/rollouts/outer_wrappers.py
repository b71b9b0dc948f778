"""Find the environment below outermost wrappers whose work in a step the script of a trajectory does.

`gymnasium.make` puts three wrappers around an environment. In a whole trajectory, which begins with the wrappers' own
`reset`, two of them do nothing in a step that the script does not know: `OrderEnforcing` refuses a step before a
reset, and `TimeLimit` counts. `PassiveEnvChecker` only passes on a step once it has made its checks. Their three Python
frames cost .3 to .5 µs, as much as all else that the script does in a timestep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from streamsampler.environments.multi_agent import MultiAgentEnv

__all__ = ["TimeLimits", "below_known_wrappers"]

_CHECKS = frozenset({"checked_step", "checked_data_reuse"})
_PASSES_ON = frozenset({"env", "step"})
_NAMES_OF_STEP: dict[type, frozenset[str]] = {
    TimeLimit: frozenset({"env", "step", "_elapsed_steps", "_max_episode_steps"}),
    OrderEnforcing: frozenset({"_has_reset", "ResetNeeded", "super", "step"}),
    PassiveEnvChecker: _CHECKS
    | {"env", "step", "env_step_passive_checker", "env_data_reuse_passive_checker", "_previous_data"},
}
"""The names that each wrapper's `step` may use: a version of Gymnasium, or a program, whose `step` uses others does
other work in it, and keeps its frame."""


class TimeLimits:
    """Time limits of a trajectory whose wrappers count none of its timesteps.

    Args:
        wrappers: The wrappers, which were reset. A reset may have taken steps, which count.

    Attributes:
        n_left: How many timesteps the trajectory may have, at least 1; None for any number.
    """

    def __init__(self, wrappers: list[Any]) -> None:
        self._wrappers = wrappers
        left: float = min(each._max_episode_steps - (each._elapsed_steps or 0) for each in wrappers)
        self.n_left: int | None = max(1, math.ceil(left)) if left < math.inf else None

    def count(self, n_timesteps: int) -> None:
        """Let the wrappers have counted so many timesteps."""
        for each in self._wrappers:
            each._elapsed_steps = (each._elapsed_steps or 0) + n_timesteps


def below_known_wrappers(env: Any) -> tuple[Any, TimeLimits | None]:
    """Return the environment below outermost wrappers that do nothing else in a step than the script does.

    Only wrappers of exactly these classes are left out, whose `step` nobody has replaced. What is below may be
    anything, but of several agents, who have flags of their own: then all wrappers keep their frames.

    Args:
        env: An environment that was reset for a trajectory. Wrappers may be other ones after each reset.

    Returns:
        The environment whose `step` is to be called, and the time limits of the wrappers above it; None for none.
    """
    limits: list[Any] = []
    below, kind = env, type(env)
    while (names := _NAMES_OF_STEP.get(kind)) is not None:
        own = vars(below)
        if "step" in own or not (_uses(kind.step, names) and _uses(gymnasium.Wrapper.step, _PASSES_ON)):
            break
        if kind is PassiveEnvChecker and not all(own.get(check, True) is True for check in _CHECKS):
            break
        if kind is TimeLimit:
            limits.append(below)
        below = own["env"]
        kind = type(below)
    if below is env or isinstance(getattr(below, "unwrapped", None), MultiAgentEnv):
        return env, None
    return below, TimeLimits(limits) if limits else None


@lru_cache
def _uses(function: Callable[..., Any], names: frozenset[str]) -> bool:
    """Return whether a function uses no other names than these."""
    code = getattr(function, "__code__", None)
    return code is not None and names.issuperset(code.co_names)
