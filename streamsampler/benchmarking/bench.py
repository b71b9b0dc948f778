"""Measure all the ways to step an environment with an agent, in turn, within a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from gymnasium import Space

from streamsampler.agents.base import as_agent
from streamsampler.benchmarking.costs import Probed, agent_seconds, probe
from streamsampler.benchmarking.measuring import BenchSettings, Measurement, problem_of
from streamsampler.benchmarking.report import BenchReport
from streamsampler.benchmarking.sampled import Local, NativeWorkers, ParentAgent, VecWorkers, Workers
from streamsampler.benchmarking.stepped import Asynchronous, Serial, Synchronous
from streamsampler.benchmarking.way import Problem, Way, env_code
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.evaluation.agents import agent_facts, evaluated_agent
from streamsampler.samplers.progress import ProgressArgument, display

# ----------------------------------------------------------------------
# All the ways to step an environment with an agent that are measured.


def ways_of(problem: Problem) -> Sequence[Way]:
    """Return all ways, those that need least first."""
    return (
        Local(problem), Workers(problem), VecWorkers(problem), NativeWorkers(problem), ParentAgent(problem),
        Serial(problem), Synchronous(problem), Asynchronous(problem),
    )  # fmt: skip


def ways_in_workers(problem: Problem) -> Sequence[Way]:
    """Return those in which agent and environments run in worker processes, where they may hang, or end them."""
    if problem.is_vector:
        return (NativeWorkers(problem),)
    return Workers(problem), VecWorkers(problem), NativeWorkers(problem)


# ----------------------------------------------------------------------


MakeAgent = Callable[[tuple[Space[Any], Space[Any]]], Any]
"""Makes the agent from the observation space and the action space."""


class BenchInterruptedError(KeyboardInterrupt):
    """Ctrl-C during `bench`: a `KeyboardInterrupt` that has what was measured.

    Attributes:
        found: The `BenchReport` of what was measured before.
    """

    def __init__(self, found: BenchReport) -> None:
        super().__init__("interrupted")
        self.found = found


def bench(
    env: Any,
    agent: Any = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    seconds: float = BenchSettings.seconds,
    n_workers: int | None = BenchSettings.n_workers,
    n_envs: int | None = BenchSettings.n_envs,
    max_episode_length: int | None = BenchSettings.max_episode_length,
    step_timeout: float = BenchSettings.step_timeout,
    progress: ProgressArgument = False,
) -> BenchReport:
    """Measure how many timesteps per second each way to step an environment takes, and recommend one.

    An environment is made and stepped in this process first, and where the agent stays in this process the
    environments of two ways do so, too: one that hangs or ends its process is for `streamsampler.check`.

    Args:
        env: Whatever samplers take: an id, a function that makes an environment, …
        agent: Whatever samplers take. None for random actions.
        env_kwargs: Keyword arguments for making the environment.
        seconds: How long all of it takes, about. A way is given up whose first timesteps would come later.
        n_workers: How many processes; None for the cores there are to use, or more where environments wait.
        n_envs: How many environments a process has, where it has several; None for 8, or fewer where making,
            resetting or stepping them takes long.
        max_episode_length: Timesteps after which trajectories are truncated; fewer where they would take long. Native
            vector environments truncate theirs themselves.
        step_timeout: Seconds that a reset or a timestep may take in a worker.
        progress: See `streamsampler.Sampler.obtain_samples`; counts seconds.

    Raises:
        UsageError: An argument cannot work.
        BenchEnvError: The environment cannot be made, reset and stepped.
        TypeError: `env` is no environment.
        BenchInterruptedError: Ctrl-C; has the report so far. (A KeyboardInterrupt.)
    """
    settings = BenchSettings(seconds, n_workers, n_envs, max_episode_length, step_timeout)
    update = as_env_update(env, env_kwargs=env_kwargs)

    def make_agent(spaces: tuple[Space[Any], Space[Any]]) -> Any:
        return evaluated_agent(agent, None, None, lambda: spaces[1])

    code = env_code(env, env_kwargs)
    return bench_update(update, code, None if agent is None else make_agent, settings, progress)


def bench_update(
    env: EnvUpdate,
    code: str,
    make_agent: MakeAgent | None,
    settings: BenchSettings,
    progress: ProgressArgument = False,
) -> BenchReport:
    """Do what `bench` does, with an agent that is made when the environment's spaces are known.

    Args:
        env: The environment.
        code: See `env_code`.
        make_agent: Makes the agent; None for random actions.
        settings: The other arguments.
        progress: See `bench`.
    """
    began = perf_counter()
    probed = probe(env)
    agent = "random" if make_agent is None else make_agent(probed.spaces)
    seconds, batched = agent_seconds(agent, probed)
    probed = replace(probed, costs=probed.costs.with_agent(seconds, batched=batched))
    name = "random actions" if make_agent is None else _named(agent)
    problem, why = problem_of(env, code, agent, settings, probed, in_workers=False)
    run = Measurement(problem, ways_of(problem), settings.seconds, began, probed.costs, name, why)
    with display(
        progress, math.ceil(settings.seconds), "seconds", note=lambda: run.doing, doing="measuring"
    ) as shown:  # fmt: skip

        def show(*, complete: bool = False) -> None:
            if shown is not None:
                shown.update(lambda: (run.timesteps, int(run.seconds)), complete=complete)

        run.watch = show
        try:
            run.all()
            show(complete=True)
        except KeyboardInterrupt as interrupt:
            raise BenchInterruptedError(run.report()) from interrupt
    return run.report()


def bench_workers(
    env: EnvUpdate,
    code: str,
    agent: Any,
    settings: BenchSettings,
    probed: Probed,
    watch: Callable[[int], Any],
) -> BenchReport:
    """Measure the ways in which agent and environments run in worker processes, where they may hang, or end them.

    Args:
        env: The environment.
        code: See `env_code`.
        agent: The agent, or "random".
        settings: See `bench`.
        probed: What is known of environment and agent.
        watch: Called now and then with the timesteps so far.

    Raises:
        BenchInterruptedError: Ctrl-C; has what was measured.
    """
    problem, why = problem_of(env, code, agent, settings, probed, in_workers=True)
    name = "random actions" if agent == "random" else _named(agent)
    run = Measurement(problem, ways_in_workers(problem), settings.seconds, perf_counter(), probed.costs, name, why)
    run.watch = lambda: watch(run.timesteps)
    try:
        run.all()
    except KeyboardInterrupt as interrupt:
        raise BenchInterruptedError(run.report()) from interrupt
    return run.report()


def _named(agent: Any) -> str:
    return str(agent_facts(as_agent(agent))["name"])
