"""Step an environment and ask an agent for a short time, to measure their costs roughly."""

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
from streamsampler.checking.choosers import ready_agent
from streamsampler.checking.costs import LONGEST, PROBED_SECONDS, Costs, Spinning
from streamsampler.checking.ordinary_env import MeasuredLoop, OrdinaryEnv, ordinary, seconds_waited
from streamsampler.core.errors import SamplerError
from streamsampler.core.serialization import dumps, loads
from streamsampler.data.trees import map_tree
from streamsampler.environments.updates import EnvUpdate, apply_env_update, describe
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.explain import summary_of

_PROBED_STEPS = 100
_SPUN_SECONDS = 0.02
_FAST_CONSTRUCTION = 0.02


class BenchEnvError(SamplerError):
    """Making, resetting or stepping the environment failed, for the reason in `__cause__`."""


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
        if _FAST_CONSTRUCTION < construction < LONGEST:  # the first construction may import libraries
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
    while n_steps < _PROBED_STEPS and seconds < PROBED_SECONDS:
        action = choose(seen, info)
        began, cpu_began, waited_before = perf_counter(), process_time(), seconds_waited(env)
        seen, _, terminated, truncated, info = env.step(action)
        seconds += perf_counter() - began
        cpu += process_time() - cpu_began
        waited += seconds_waited(env) - waited_before
        n_steps += 1
        if np.any(terminated) or np.any(truncated):
            n_ended += 1
            if n_ended * reset > PROBED_SECONDS:
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
            if seconds > PROBED_SECONDS:
                break
        return seconds, batched, waiting
    return 0.0, True, 0.0
