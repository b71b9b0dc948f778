"""Measure roughly what an environment and an agent take, to plan how ways to step them are measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv

from streamsampler.agents.base import acts_alone, agent_waits, takes_masks
from streamsampler.agents.masks import ACTION_MASK, ACTION_MASKS, MaskFinder, mask_size
from streamsampler.agents.random import RandomAgent
from streamsampler.checking.actions import Actions
from streamsampler.checking.ordinary_env import MeasuredLoop, OrdinaryEnv, ordinary, seconds_waited
from streamsampler.checking.ways import ready_agent
from streamsampler.core.errors import SamplerError
from streamsampler.core.serialization import dumps, loads
from streamsampler.core.words import count
from streamsampler.data.trees import map_tree
from streamsampler.environments.updates import EnvUpdate, apply_env_update, describe
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.explain import summary_of

# ----------------------------------------------------------------------
# How many worker processes keep the cores busy.


_WAITS, _THREADS = 0.7, 1.3
_FREE, _SURELY_WAITS = 0.7, 0.3
_MOST = 8
"""How many processes at most, where environments wait and there are fewer cores."""


class Spinning:
    """Computes, and nothing else: how much of a core is to be had."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, seconds: float) -> None:
        """Compute for so long."""
        began, cpu = perf_counter(), process_time()
        while perf_counter() - began < seconds:
            sum(range(1_000))
        self._wall += perf_counter() - began
        self._cpu += process_time() - cpu

    @property
    def share(self) -> float:
        """Seconds of processor time for each second."""
        return max(0.01, min(1.0, self._cpu / self._wall)) if self._wall else 1.0


def processes_for(cpu_share: float, free_share: float, n_cores: int) -> tuple[int, str]:
    """Return how many processes to use, and why. Pure.

    Args:
        cpu_share: Seconds of processor time for each second that environment and agent take, as a share of what code
            gets that only computes: below 1 they wait, above 1 they use threads.
        free_share: Seconds of processor time for each second that such code got.
        n_cores: How many cores there are to use.
    """
    cores = count(n_cores, "core")
    if free_share < _FREE and cpu_share > _SURELY_WAITS:
        cpu_share = 1.0  # with other programs running that is too uncertain to rely on
    if cpu_share < _WAITS:
        n = max(n_cores, min(_MOST, math.ceil(n_cores / max(cpu_share, 1e-9))))
        return n, f"environment and agent compute {cpu_share:.0%} of the time and wait otherwise"
    if cpu_share > _THREADS:
        return max(1, int(n_cores / cpu_share)), f"one keeps {cpu_share:.1f} of {cores} busy, with threads of its own"
    return n_cores, f"there {'is' if n_cores == 1 else 'are'} {cores} to use, and one keeps one busy"


# ----------------------------------------------------------------------


_PROBED_STEPS, _PROBED_SECONDS = 100, 0.2
_SPUN_SECONDS = 0.02
_LONGEST = 0.5
"""Seconds of a trajectory in this process, which nothing can interrupt."""
_FAST_CONSTRUCTION = 0.02
_OURS_HERE, _OURS_FROM_HERE = 20e-6, 0.5e-3
"""Seconds that this library takes for a timestep here, and for one of all environments from here, at most."""


class BenchEnvError(SamplerError):
    """The environment cannot be made, reset and stepped; `__cause__` is why."""


@dataclass(frozen=True)
class Costs:
    """What things take in one process, in seconds.

    Attributes:
        construction: Making an environment.
        reset: A reset.
        step: A step of an environment.
        agent: A call of the agent: for all environments if it is `batched`, otherwise for one.
        batched: Whether the agent chooses actions for several environments at once.
        cpu_share, free_share: See `processes_for`.
        waiting: Seconds of a step of an asynchronous environment in which its process could do other work.
        agent_waiting: Those of a call of an asynchronous agent.
    """

    construction: float
    reset: float
    step: float
    agent: float = 0.0
    batched: bool = True
    cpu_share: float = 1.0
    free_share: float = 1.0
    waiting: float = 0.0
    agent_waiting: float = 0.0

    def with_agent(self, seconds: float, *, batched: bool, waiting: float = 0.0) -> Costs:
        """Return the same with an agent, which is taken to compute where it does not wait.

        What uses several threads here need not do so in workers, which have one each: it counts as one.

        Args:
            seconds: What a call takes.
            batched: See `Costs`.
            waiting: See `Costs.agent_waiting`.
        """
        all_of_it = self.step + seconds
        computed = min(1.0, self.cpu_share) * self.step + seconds - waiting
        share = computed / all_of_it if all_of_it else 1.0
        return replace(self, agent=seconds, batched=batched, cpu_share=share, agent_waiting=waiting)

    def n_envs(self, most: int, seconds: float) -> int:
        """Return how many environments a process has, so that they are made and stepped within their share of the time.

        Args:
            most: How many at most.
            seconds: What all of it is to take.
        """
        n_envs, share = most, min(_LONGEST, max(_PROBED_SECONDS, seconds / 20))
        # Side by side they are made in each of the four ways that have several, and once for the others.
        while n_envs > 1 and (
            5 * n_envs * self.construction > seconds / 4
            or n_envs * self.reset + self.of_a_timestep(n_envs) > max(share, self.of_a_timestep(1))
        ):
            n_envs //= 2
        return n_envs

    def of_a_timestep(self, n_envs: int) -> float:
        """Return what a timestep of so many environments takes that are stepped in turn."""
        return n_envs * self.step + self.agent * (1 if self.batched else n_envs)

    def first_timesteps(self, n_envs: int, *, made: bool) -> float:
        """Return what it takes until each of the environments of a process has been reset and stepped.

        Args:
            n_envs: How many there are.
            made: Whether they are made already.
        """
        return n_envs * (self.reset + (0.0 if made else self.construction)) + self.of_a_timestep(n_envs)

    def longest(self, n_envs: int, n_processes: int, seconds: float) -> int:
        """Return how many timesteps trajectories may have, so that none takes long that nothing can interrupt.

        Args:
            n_envs: How many environments a process has.
            n_processes: How many processes there are: an agent in this one is asked for all their environments.
            seconds: What all of it is to take.
        """
        asked = n_envs * self.step + self.agent * (1 if self.batched else n_envs * n_processes)
        here = _LONGEST / (self.of_a_timestep(1) + _OURS_HERE)
        return max(1, int(min(here, max(2 * _LONGEST, seconds / 6) / (asked + _OURS_FROM_HERE))))


@dataclass(frozen=True)
class Probed:
    """What was found by stepping an environment for a short time with random actions.

    Attributes:
        spaces: Its observation space and action space.
        observation: An observation.
        costs: What it takes.
        time_limit: Timesteps after which it truncates trajectories; None if that is unknown.
        length: How many timesteps a trajectory was seen to have at least.
        n_slots: How many environments it has side by side; None for one that is no vector environment.
        waits: Whether environment or agent are asynchronous.
    """

    spaces: tuple[Space[Any], Space[Any]]
    observation: Any
    costs: Costs
    time_limit: int | None
    length: float
    n_slots: int | None = None
    waits: bool = False


def probe(update: EnvUpdate, agent: Any = None) -> Probed:
    """Make an environment here, and step it for a short time.

    Args:
        update: Makes the environment.
        agent: See `stepped`.

    Raises:
        BenchEnvError: It cannot be made, or raises. That it cannot be closed says nothing of its speed.
    """
    began = perf_counter()
    doing = "made"
    try:
        env = ordinary(apply_env_update(update, None, waits=True))
        construction = perf_counter() - began
        if _FAST_CONSTRUCTION < construction < _LONGEST:  # the first one may bring libraries along
            with contextlib.suppress(Exception):
                env.close()
            began = perf_counter()
            env = ordinary(apply_env_update(update, None, waits=True))
            construction = min(construction, perf_counter() - began)
        doing = "reset and stepped"
        try:
            return stepped(env, construction, agent)
        finally:
            with contextlib.suppress(Exception):
                env.close()
    except Exception as error:
        raise BenchEnvError(
            f"{describe(update)} cannot be {doing}: {summary_of(error)}. streamsampler check says more"
        ) from error


def stepped(env: Any, construction: float, agent: Any = None) -> Probed:
    """Step an environment for a short time.

    Args:
        env: The environment.
        construction: Seconds that making it took.
        agent: The agent that acts in an asynchronous environment, where few actions may make a step wait; None, and
            in any other environment, for random actions.
    """
    choose = _random_choices(env) if agent is None or not isinstance(env, OrdinaryEnv) else _choices_of(agent, env)
    began = perf_counter()
    observation, info = begin_of(env.reset(seed=0))
    reset = perf_counter() - began
    n_steps, n_ended, seconds, cpu, waited = 0, 0, 0.0, 0.0, 0.0
    seen, spinning = observation, Spinning()
    spinning.run(_SPUN_SECONDS)
    while n_steps < _PROBED_STEPS and seconds < _PROBED_SECONDS:
        action = choose(seen, info)
        began, cpu_began, waited_before = perf_counter(), process_time(), seconds_waited(env)
        seen, _, terminated, truncated, info = env.step(action)
        seconds += perf_counter() - began
        cpu += process_time() - cpu_began
        waited += seconds_waited(env) - waited_before
        n_steps += 1
        if np.any(terminated) or np.any(truncated):
            n_ended += 1
            if n_ended * reset > _PROBED_SECONDS:
                break
            seen, info = begin_of(env.reset())
    spinning.run(_SPUN_SECONDS)
    share = cpu / seconds / spinning.share if seconds else 1.0
    length = n_steps / max(1, n_ended)
    limit = None if env.spec is None else env.spec.max_episode_steps
    n_slots, spaces = None, (env.observation_space, env.action_space)
    if isinstance(env, VectorEnv):
        n_slots, spaces = env.num_envs, (env.single_observation_space, env.single_action_space)
    each = n_slots or 1
    step = seconds / n_steps / each
    costs = Costs(
        construction / each, reset / each, step, cpu_share=share, free_share=spinning.share, waiting=waited / n_steps
    )
    return Probed(spaces, observation, costs, limit, length, n_slots, isinstance(env, OrdinaryEnv))


def _random_choices(env: Any) -> Callable[[Any, Any], Any]:
    """Return how actions are drawn for an observation and an info."""
    find, random = MaskFinder(env, env.action_space, lambda _about, _text: None), RandomAgent(env.action_space)

    def choose(observation: Any, info: Any) -> Any:
        mask = None if isinstance(env, VectorEnv) else find(observation, info)
        return random.get_action(None, action_mask=mask)[0]

    return choose


def _choices_of(agent: Any, env: OrdinaryEnv) -> Callable[[Any, Any], Any]:
    """Return how an agent chooses actions for an observation and an info."""
    actions = Actions(env, agent)
    return lambda observation, info: env.loop.result_of(actions.choose(observation, info))[0]


def with_agent(agent: Any, probed: Probed) -> Probed:
    """Return what was found, with what a call of the agent takes.

    An agent that raises is found to do so by all the ways.
    """
    seconds, batched, waiting = agent_seconds(agent, probed)
    costs = probed.costs.with_agent(seconds, batched=batched, waiting=waiting)
    return replace(probed, costs=costs, waits=probed.waits or agent_waits(agent))


def _chooser(agent: Any, size: int | None) -> Callable[[Any], Any]:
    """Return how an agent chooses one action, where all are allowed: by `get_actions` if it has nothing else."""
    mask = None if size is None else np.ones(size, np.bool_)
    if acts_alone(agent):
        return partial(agent.get_action, **{ACTION_MASK: mask}) if takes_masks(agent) else agent.get_action
    masks = {ACTION_MASKS: None if mask is None else mask[None]} if takes_masks(agent, together=True) else {}
    return lambda observation: agent.get_actions(map_tree(lambda leaf: np.asarray(leaf)[None], observation), **masks)


def agent_seconds(agent: Any, probed: Probed) -> tuple[float, bool, float]:
    """Return the agent's seconds for a call, whether it acts for several environments, and its seconds of waiting.

    An agent that raises is found to do so by all the ways.
    """
    loop = MeasuredLoop()
    with contextlib.closing(loop), contextlib.suppress(Exception):
        if agent_waits(agent):
            agent = loads(dumps(agent, "the agent"))  # its connections are those of this loop
        acting = ready_agent(agent, *probed.spaces)
        batched = getattr(acting, "get_actions", None) is not None
        choose = _chooser(acting, mask_size(probed.spaces[1]))
        seconds, waiting = math.inf, 0.0
        for _ in range(2):  # the first call may bring libraries along
            began, waited_before = perf_counter(), loop.waited
            loop.result_of(choose(probed.observation))
            elapsed = perf_counter() - began
            if elapsed < seconds:
                seconds, waiting = elapsed, loop.waited - waited_before
            if seconds > _PROBED_SECONDS:
                break
        return seconds, batched, waiting
    return 0.0, True, 0.0
