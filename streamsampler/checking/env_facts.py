"""The facts of an environment that decide about its checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from streamsampler.agents.base import (
    agent_waits,
)
from streamsampler.agents.masks import method_of
from streamsampler.checking.findings import Finding, finding_of_wrappers
from streamsampler.checking.ordinary_env import OrdinaryEnv
from streamsampler.environments.multi_agent import agents_of
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import chain_of
from streamsampler.workers.masks import has_masks_by_call


@dataclass(frozen=True)
class Facts:
    """Facts of an environment.

    Attributes:
        name: Its name.
        spaces: Observation space and action space of a single environment.
        n_slots: Number of environments of a vector environment; None otherwise.
        several: Whether it has several agents.
        time_limit: Timesteps after which it truncates; None if unknown.
        wrappers: The finding on its wrappers.
        has_masks: Whether it has a method `action_masks`.
        waits: Whether it is asynchronous.
        is_refused: Whether samplers refuse its wrappers.
    """

    name: str
    spaces: tuple[Any, Any]
    n_slots: int | None
    several: bool
    time_limit: int | None
    wrappers: Finding
    has_masks: bool = False
    waits: bool = False
    is_refused: bool = False


def waits(agent: Any, facts: Facts | None) -> bool:
    """Return whether environment or agent are asynchronous."""
    return (facts is not None and facts.waits) or agent_waits(agent)


def facts_of(env: Any) -> Facts:
    """Return the facts of an environment; an asynchronous environment is passed as an `OrdinaryEnv`."""
    is_vector = isinstance(env, VectorEnv)
    parts = (env.single_observation_space, env.single_action_space) if is_vector else None
    limits = [layer._max_episode_steps for layer in chain_of(env) if isinstance(layer, TimeLimit)]
    stated = getattr(getattr(env.unwrapped, "spec", None), "max_episode_steps", None) if is_vector else None
    limit = min([*limits, *([stated] if isinstance(stated, int) else [])], default=None)
    several = agents_of(env) is not None
    has_masks = has_masks_by_call(env) if is_vector else not several and method_of(env) is not None
    facts = Facts(
        name_of_env(env), parts or (env.observation_space, env.action_space), env.num_envs if is_vector else None,
        several, limit, finding_of_wrappers(env), has_masks,
    )  # fmt: skip
    if not isinstance(env, OrdinaryEnv):
        return facts
    what, _, advice = env.refusal.partition(". ")
    wrappers = Finding("wrappers", "failure", what, advice) if what else facts.wrappers
    return replace(facts, wrappers=wrappers, waits=True, is_refused=bool(what))
