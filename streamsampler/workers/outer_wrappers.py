"""Step an environment without the frames of its outermost wrappers, whose work the script of a trajectory does.

`gymnasium.make` puts three wrappers around an environment. In a whole trajectory, which begins with the wrappers' own
`reset`, two of them do nothing in a step that the script does not know: `OrderEnforcing` refuses a step before a
reset, and `TimeLimit` counts. `PassiveEnvChecker` only passes on a step once it has made its checks. Their three Python
frames cost .3 to .5 µs, as much as all else that the script does in a timestep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from streamsampler.environments.multi_agent import MultiAgentEnv

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


class InnerStep(NamedTuple):
    """The step of an environment below its outermost wrappers.

    Attributes:
        step: Steps the environment.
        time_limits: The wrappers that count a trajectory's timesteps; see `rollouts.script.Binding`.
    """

    step: Callable[[Any], Any]
    time_limits: tuple[TimeLimit[Any, Any], ...] = ()


def inner_step(env: Any) -> InnerStep:
    """Return the step below the outermost wrappers of an environment that do nothing else than the script does.

    Only wrappers of exactly these classes are left out, whose `step` nobody has replaced. What is below them may be
    anything; of several agents, who have flags of their own, all wrappers keep their frames.

    Args:
        env: The environment.
    """
    whole, limits = InnerStep(env.step), []
    while _is_done_by_script(env):
        if type(env) is TimeLimit:
            limits.append(env)
        env = env.env
    return whole if isinstance(env.unwrapped, MultiAgentEnv) else InnerStep(env.step, tuple(limits))


def _is_done_by_script(env: Any) -> bool:
    kind = type(env)
    if kind not in _NAMES_OF_STEP or "step" in vars(env):
        return False
    if not _uses(kind.step, _NAMES_OF_STEP[kind]) or not _uses(gymnasium.Wrapper.step, _PASSES_ON):
        return False
    return kind is not PassiveEnvChecker or all(vars(env).get(check, True) is True for check in _CHECKS)


def _uses(function: Any, names: frozenset[str]) -> bool:
    """Return whether a function uses no other names than these."""
    code = getattr(function, "__code__", None)
    return code is not None and names.issuperset(code.co_names)
