"""Measure roughly the time of an environment and an agent, to plan the measurements of `bench`."""

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

_WAITS, _THREADS = 0.7, 1.3
_FREE, _SURELY_WAITS = 0.7, 0.3
_MOST = 8
"""Most processes, if environments wait and fewer cores are usable."""


class Spinning:
    """Computes for a while, to measure the free share of a core."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, seconds: float) -> None:
        began, cpu = perf_counter(), process_time()
        while perf_counter() - began < seconds:
            sum(range(1_000))
        self._wall += perf_counter() - began
        self._cpu += process_time() - cpu

    @property
    def share(self) -> float:
        """Processor time per second."""
        return max(0.01, min(1.0, self._cpu / self._wall)) if self._wall else 1.0


def processes_for(cpu_share: float, free_share: float, n_cores: int) -> tuple[int, str]:
    """Return the number of processes, and the reason. Pure.

    Args:
        cpu_share: Processor time per second of environment and agent, relative to code that only computes: below 1
            they wait, above 1 they use threads.
        free_share: Processor time per second of code that only computes.
        n_cores: Number of usable cores.
    """
    cores = count(n_cores, "core")
    if free_share < _FREE and cpu_share > _SURELY_WAITS:
        cpu_share = 1.0  # beside other programs the share is too uncertain
    if cpu_share < _WAITS:
        n = max(n_cores, min(_MOST, math.ceil(n_cores / max(cpu_share, 1e-9))))
        return n, f"environment and agent compute for {cpu_share:.0%} of the time and wait otherwise"
    if cpu_share > _THREADS:
        return max(1, int(n_cores / cpu_share)), f"one keeps {cpu_share:.1f} of {cores} busy, with threads of its own"
    return n_cores, f"there {'is' if n_cores == 1 else 'are'} {cores} to use, and each process keeps a core busy"


_PROBED_STEPS, _PROBED_SECONDS = 100, 0.2
_SPUN_SECONDS = 0.02
_LONGEST = 0.5
"""Longest trajectory in this process, in seconds: nothing can interrupt it."""
_FAST_CONSTRUCTION = 0.02
_OURS_HERE, _OURS_FROM_HERE = 20e-6, 0.5e-3
"""This library's seconds per timestep, at most: in this process, and for all environments stepped from here."""


class BenchEnvError(SamplerError):
    """Making, resetting or stepping the environment failed, for the reason in `__cause__`."""


@dataclass(frozen=True)
class Costs:
    """Seconds of each act in one process.

    Attributes:
        construction: Making an environment.
        reset: A reset.
        step: A step of an environment.
        agent: A call of the agent: for all environments if it is `batched`, otherwise for a single environment.
        batched: Whether the agent chooses actions for several environments at once.
        cpu_share, free_share: See `processes_for`.
        waiting: Part of an asynchronous step in which the process could do other work.
        agent_waiting: The same part of an asynchronous agent's call.
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
        """Return these costs with an agent, which computes whenever it does not wait.

        Several threads here count as a single thread, since each worker has only one.
        """
        all_of_it = self.step + seconds
        computed = min(1.0, self.cpu_share) * self.step + seconds - waiting
        share = computed / all_of_it if all_of_it else 1.0
        return replace(self, agent=seconds, batched=batched, cpu_share=share, agent_waiting=waiting)

    def n_envs(self, most: int, seconds: float) -> int:
        """Return the environments per process that can be made and stepped within their share of the time.

        Args:
            most: Largest number.
            seconds: Seconds of the whole measurement.
        """
        n_envs, share = most, min(_LONGEST, max(_PROBED_SECONDS, seconds / 20))
        # Each of the four ways with several environments makes its own, and the other ways share a fifth set.
        while n_envs > 1 and (
            5 * n_envs * self.construction > seconds / 4
            or n_envs * self.reset + self.of_a_timestep(n_envs) > max(share, self.of_a_timestep(1))
        ):
            n_envs //= 2
        return n_envs

    def of_a_timestep(self, n_envs: int) -> float:
        """Return the seconds of a timestep of all environments, stepped in turn."""
        return n_envs * self.step + self.agent * (1 if self.batched else n_envs)

    def first_timesteps(self, n_envs: int, *, made: bool) -> float:
        """Return the seconds until all environments of a process are reset and stepped once."""
        return n_envs * (self.reset + (0.0 if made else self.construction)) + self.of_a_timestep(n_envs)

    def longest(self, n_envs: int, n_processes: int, seconds: float) -> int:
        """Return the most timesteps of a trajectory that cannot be interrupted.

        Args:
            n_envs: Environments per process.
            n_processes: Number of processes: an agent in this process acts for all their environments.
            seconds: Seconds of the whole measurement.
        """
        asked = n_envs * self.step + self.agent * (1 if self.batched else n_envs * n_processes)
        here = _LONGEST / (self.of_a_timestep(1) + _OURS_HERE)
        return max(1, int(min(here, max(2 * _LONGEST, seconds / 6) / (asked + _OURS_FROM_HERE))))


@dataclass(frozen=True)
class Probed:
    """Facts from stepping an environment for a short time with random actions.

    Attributes:
        spaces: Observation space and action space.
        observation: An observation.
        costs: The measured costs.
        time_limit: Timesteps after which the environment truncates trajectories; None if unknown.
        length: Timesteps of a trajectory, at least.
        n_slots: Number of environments of a vector environment; None otherwise.
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
    """Make an environment in this process, and step it for a short time.

    Args:
        update: Makes the environment.
        agent: See `stepped`.

    Raises:
        BenchEnvError: Making or stepping it fails. A failure to close is ignored: it says nothing about speed.
    """
    began = perf_counter()
    doing = "made"
    try:
        env = ordinary(apply_env_update(update, None, waits=True))
        construction = perf_counter() - began
        if _FAST_CONSTRUCTION < construction < _LONGEST:  # the first construction may import libraries
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
        construction: Seconds of making it.
        agent: The agent for an asynchronous environment, in which only certain actions may make a step wait; None for
            random actions, as in all other environments.
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
    """Return a function that draws a random action for an observation and an info."""
    find, random = MaskFinder(env, env.action_space, lambda _about, _text: None), RandomAgent(env.action_space)

    def choose(observation: Any, info: Any) -> Any:
        mask = None if isinstance(env, VectorEnv) else find(observation, info)
        return random.get_action(None, action_mask=mask)[0]

    return choose


def _choices_of(agent: Any, env: OrdinaryEnv) -> Callable[[Any, Any], Any]:
    """Return a function that asks the agent for an action, given an observation and an info."""
    actions = Actions(env, agent)
    return lambda observation, info: env.loop.result_of(actions.choose(observation, info))[0]


def with_agent(agent: Any, probed: Probed) -> Probed:
    """Return the probed facts with the costs of an agent's call. Each way reports the agent's exceptions itself."""
    seconds, batched, waiting = agent_seconds(agent, probed)
    costs = probed.costs.with_agent(seconds, batched=batched, waiting=waiting)
    return replace(probed, costs=costs, waits=probed.waits or agent_waits(agent))


def _chooser(agent: Any, size: int | None) -> Callable[[Any], Any]:
    """Return a function that asks the agent for an unrestricted action, by `get_actions` if it has nothing else."""
    mask = None if size is None else np.ones(size, np.bool_)
    if acts_alone(agent):
        return partial(agent.get_action, **{ACTION_MASK: mask}) if takes_masks(agent) else agent.get_action
    masks = {ACTION_MASKS: None if mask is None else mask[None]} if takes_masks(agent, together=True) else {}
    return lambda observation: agent.get_actions(map_tree(lambda leaf: np.asarray(leaf)[None], observation), **masks)


def agent_seconds(agent: Any, probed: Probed) -> tuple[float, bool, float]:
    """Return the seconds of an agent's call, whether it acts for several environments, and its seconds of waiting.

    Each way reports the agent's exceptions itself.
    """
    loop = MeasuredLoop()
    with contextlib.closing(loop), contextlib.suppress(Exception):
        if agent_waits(agent):
            agent = loads(dumps(agent, "the agent"))  # its connections belong to this loop
        acting = ready_agent(agent, *probed.spaces)
        batched = getattr(acting, "get_actions", None) is not None
        choose = _chooser(acting, mask_size(probed.spaces[1]))
        seconds, waiting = math.inf, 0.0
        for _ in range(2):  # the first call may import libraries
            began, waited_before = perf_counter(), loop.waited
            loop.result_of(choose(probed.observation))
            elapsed = perf_counter() - began
            if elapsed < seconds:
                seconds, waiting = elapsed, loop.waited - waited_before
            if seconds > _PROBED_SECONDS:
                break
        return seconds, batched, waiting
    return 0.0, True, 0.0
