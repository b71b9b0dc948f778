"""Let the script of a trajectory do the work of Gymnasium's outermost wrappers in a step.

`gymnasium.make` puts three wrappers around an environment. In a trajectory, which begins with the wrappers' own
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

__all__ = ["OuterWrappers"]

_PASSES_ON = frozenset({"env", "step"})
_NAMES_OF_STEP: dict[Any, frozenset[str]] = {
    TimeLimit: frozenset({"env", "step", "_elapsed_steps", "_max_episode_steps"}),
    OrderEnforcing: frozenset({"_has_reset", "ResetNeeded", "super", "step"}),
    PassiveEnvChecker: frozenset({"env", "step", "checked_step", "checked_data_reuse", "_previous_data"})
    | {"env_step_passive_checker", "env_data_reuse_passive_checker"},
}
"""The names that the known `step` of each wrapper uses. A `step` with other names, of another version of Gymnasium or
replaced by a program, does other work, and is called."""


class OuterWrappers:
    """The outermost wrappers of an environment, as far as the script can do their work in a step.

    A wrapper is passed by if its class is exactly one of the known ones, with Gymnasium's own `step`. The environment
    below may be of any class. Environments of several agents, who have flags of their own, keep all wrappers.

    Args:
        env: The environment, which runs one trajectory after the other.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._limits: list[Any] = []
        # Looked at once for many trajectories; what belongs to instances, a task may change at each reset.
        has_several = isinstance(getattr(env, "unwrapped", None), MultiAgentEnv)
        passes_on = _uses(gymnasium.Wrapper.step, _PASSES_ON) and not has_several
        self._kinds = [kind for kind, names in _NAMES_OF_STEP.items() if passes_on and _uses(kind.step, names)]

    def begin(self) -> tuple[Any, int | None]:
        """Begin a trajectory, for which the environment was reset, or a further part of one.

        Returns:
            The environment below, for its `step`; and the number of further timesteps, at least 1, after which the
            wrappers truncate the trajectory, None for never. Steps that a reset has taken count.
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
        """Let the wrappers have counted the timesteps of a trajectory, or of a part, that has ended."""
        for each in self._limits:
            each._elapsed_steps = (each._elapsed_steps or 0) + n_timesteps


@lru_cache
def _uses(function: Callable[..., Any], names: frozenset[str]) -> bool:
    """Return whether a function uses no other names than these."""
    code = getattr(function, "__code__", None)
    return code is not None and names.issuperset(code.co_names)
