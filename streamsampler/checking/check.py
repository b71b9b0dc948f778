"""Check an environment and an agent: is all that samplers promise true of them, and how are they run fastest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from streamsampler.benchmarking.way import env_code
from streamsampler.checking.report import CheckReport
from streamsampler.checking.running import STAGES, CheckRun, MakeAgent, Settings, Spaces
from streamsampler.environments.updates import EnvLike, EnvUpdate, as_env_update
from streamsampler.errors import UsageError
from streamsampler.evaluation.agents import EvaluatedAgent, evaluated_agent
from streamsampler.samplers.progress import ProgressArgument
from streamsampler.samplers.progress_output import display

__all__ = ["CheckInterruptedError", "check", "check_update"]


class CheckInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a check: a `KeyboardInterrupt` that has what was found.

    Attributes:
        found: The `CheckReport` of what was checked before.
    """

    def __init__(self, found: CheckReport) -> None:
        super().__init__("interrupted")
        self.found = found


def check(
    env: EnvLike,
    agent: EvaluatedAgent | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = Settings.seed,
    max_episode_length: int | None = Settings.max_episode_length,
    ends_within: int = Settings.ends_within,
    time_limit: float = Settings.time_limit,
    step_timeout: float = Settings.step_timeout,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    progress: ProgressArgument = False,
) -> CheckReport:
    """Check an environment, and an agent in it: whether samplers can keep their promises, and how to run them fastest.

    Everything runs in worker processes, so that environments and agents that hang, or end their process, are found
    out. A finding is a pass, a warning or a failure, with what was found and what to do.

    Args:
        env: Whatever samplers take: an id, a function that makes an environment, …; a vector environment, too.
        agent: Whatever samplers take; a model of Stable-Baselines3 or its `.zip` file; another object with `predict`;
            or a torch module. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seed: What all is derived from.
        max_episode_length: Timesteps after which samplers are going to truncate trajectories.
        ends_within: Timesteps within which a trajectory is to end.
        time_limit: Seconds for all of it, about. What there is no time for is "not checked".
        step_timeout: Seconds that a reset, an action or a timestep may take.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`.
        progress: See `streamsampler.Sampler.obtain_samples`; counts the checks.

    Returns:
        The report, which can be printed.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        TypeError: `env` is no environment.
        CheckInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = Settings(seed, max_episode_length, ends_within, time_limit, step_timeout)

    def make_agent(spaces: Spaces) -> Any:
        return evaluated_agent(agent, deterministic, vec_normalize, lambda: spaces[1])

    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize are for an agent that is given with them")
    update, code = as_env_update(env, env_kwargs=env_kwargs), env_code(env, env_kwargs)
    return check_update(update, code, None if agent is None else make_agent, settings, progress)


def check_update(
    env: EnvUpdate, code: str, make_agent: MakeAgent | None, settings: Settings, progress: ProgressArgument = False
) -> CheckReport:
    """Do what `check` does, with an agent that is made when the environment's spaces are known.

    Args:
        env: The environment.
        code: What stands for it in a call, as Python code.
        make_agent: Makes the agent; None for random actions.
        settings: The other arguments.
        progress: See `check`.
    """
    run = CheckRun(env, code, make_agent, settings)
    with ExitStack() as stack:
        run.shown = stack.enter_context(
            display(progress, len(STAGES), "checks", note=lambda: run.doing, doing="checking")
        )
        try:
            run.all()
        except KeyboardInterrupt as interrupt:
            raise CheckInterruptedError(run.report()) from interrupt
        run.show(0, complete=True)
    return run.report()
