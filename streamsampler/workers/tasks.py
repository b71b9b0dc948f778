"""Set tasks of environments before the resets of a call's trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from streamsampler.environments.methods import task_setter
from streamsampler.environments.parameters import SetParameters, drawn_parameters, parameter_setter, with_info
from streamsampler.environments.updates import AnyEnv
from streamsampler.errors import UsageError
from streamsampler.workers.resets import Resets

__all__ = ["reset_function", "reset_one"]

TASK_INDEX = "task_index"
_ADVICE = "rename it with a wrapper; with tasks=[…] this info says which task a trajectory has"


def reset_function(env: AnyEnv, resets: Resets | None, indices: Iterable[int]) -> Callable[..., Any]:
    """Return what resets an environment for one trajectory after the other, from their seeds, as a call says.

    Args:
        env: The environment, whose own `reset` it is where the call says nothing.
        resets: What the call says.
        indices: The trajectories.
    """
    if resets is None or not resets.changes_resets:
        return env.reset
    coming = iter(indices)
    return lambda seed: reset_one(env, resets, next(coming), seed)


def reset_one(env: AnyEnv, resets: Resets | None, index: int, seed: int) -> Any:
    """Reset an environment for a trajectory: set its task first if it has one, and pass its options.

    Args:
        env: The environment.
        resets: What the call says.
        index: The trajectory.
        seed: Its seed.

    Raises:
        UsageError: The environment takes no such task.
    """
    if resets is None:
        return env.reset(seed=seed)
    reset = env.reset if resets.options is None else partial(env.reset, options=resets.options_of(index))
    if resets.tasks is None:
        return reset(seed=seed)
    number = resets.task_index(index)
    drawn = None
    task = resets.task_of(index)
    if isinstance(task, SetParameters):
        if getattr(env, "has_wrapper_attr", lambda _: False)("parameters_in_force"):
            raise UsageError(
                "tasks=[SetParameters(…), …] would be overruled by the SetParameters that are in force: put all "
                "parameters into each task, and replace the environment first with env_update="
            )
        drawn = drawn_parameters(task.parameters, seed)
        parameter_setter(env, task.parameters)(drawn)
    else:
        task_setter(env)(task)
    result = reset(seed=seed)
    if drawn is not None:
        result = with_info(result, task.info_key, drawn, "pass SetParameters(…, info_key=…) another name")
    return with_info(result, TASK_INDEX, number, _ADVICE)
