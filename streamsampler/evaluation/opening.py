"""Open the sampler of an evaluation, and check its part."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gymnasium import Space

from streamsampler.core.awaiting import is_awaitable, run_alone
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.environments.multi_agent import as_multi_agent, is_multi_agent
from streamsampler.environments.updates import apply_any_env_update, as_env_update
from streamsampler.evaluation.agents import (
    agent_facts,
    evaluated_agent,
    make_sampler,
    refuse_several_agents,
    refuse_several_tasks,
)
from streamsampler.evaluation.amounts import Amount
from streamsampler.protocol.evaluation_parts import checked_part, part_of
from streamsampler.protocol.plans import Layout
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory
from streamsampler.workers.vec.worker import VecWorker

_log = logging.getLogger("streamsampler")

Spaces = tuple[Space[Any], Space[Any]]
"""The observation space and the action space of an environment."""


@contextmanager
def opened_sampler(
    agent: Any,
    env: Any,
    sampler: Sampler[Any, Any] | None,
    options: Mapping[str, Any],
    deterministic: bool | None,
    vec_normalize: Any,
) -> Iterator[tuple[Sampler[Any, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the sampler of an evaluation, the facts of the agent, and updates.

    Yields:
        The sampler, the facts of the agent, and the arguments that update the sampler's agent and environment.

    Raises:
        UsageError: An argument is out of range, or contradicts another.
    """
    refuse_several_agents(agent)
    refuse_several_tasks(env)

    def action_space() -> Space[Any]:
        if env is None:
            raise UsageError(
                "a torch module needs the environment's action space: give the environment, or a TorchAgent"
            )
        return spaces_of(env, options.get("env_kwargs"))[1]

    if sampler is None:
        if agent is None or env is None:
            raise UsageError("give an agent and an environment, or a sampler with both")
        given = evaluated_agent(agent, deterministic, vec_normalize, action_space, options.get("policy_of"))
        if options.get("order", "index") != "index":
            raise UsageError('order must be "index": arrival order favours short trajectories')
        with closed_in_the_end(make_sampler(given, env, options)) as made:
            yield made, agent_facts(given), {}
        return
    _check_sampler(sampler, env, options)
    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize need an agent: pass the agent, too")
    given = None if agent is None else evaluated_agent(agent, deterministic, vec_normalize, action_space)
    facts = {"name": "the sampler's agent"} if given is None else agent_facts(given)
    yield sampler, facts, {"agent_update": given, "env_update": env}


@contextmanager
def closed_in_the_end(sampler: Sampler[Any, Any]) -> Iterator[Sampler[Any, Any]]:
    """Close a sampler at the end; log a warning if only closing raises.

    The trajectories may have taken hours, and remain valid if an environment cannot be closed.
    """
    is_complete = False
    try:
        with sampler:
            yield sampler
            is_complete = True
    except SamplerError as error:
        if not is_complete:
            raise
        _log.warning("all trajectories are complete, but closing the sampler raised: %s", error)


def _check_sampler(sampler: Any, env: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(sampler, Sampler):
        raise UsageError(f"sampler must be one of this package's samplers, not a {type(sampler).__qualname__}")
    if options:
        raise UsageError(f"a given sampler has its own arguments: leave out {', '.join(sorted(options))}")
    facts = sampler.provenance()
    if facts["order"] != "index":
        raise UsageError('the sampler must have order="index": arrival order favours short trajectories')
    if env is None and isinstance(names := facts["environment"], list):
        _log.warning("the mean is over different environments: %s; evaluate each by itself", ", ".join(names))


def spaces_of(env: Any, env_kwargs: Mapping[str, Any] | None) -> Spaces:
    """Return the spaces of one environment, which is closed afterwards if it was made for this purpose."""
    if is_multi_agent(env):
        several = as_multi_agent(env)
        return several.observation_space, several.action_space
    is_there = isinstance(getattr(env, "action_space", None), Space)
    update = None if is_there else as_env_update(env, env_kwargs=env_kwargs).of_slot(0)
    made: Any = env if update is None else apply_any_env_update(update, None, several=True, waits=True)
    try:
        return _of_one(made, "observation_space"), _of_one(made, "action_space")
    finally:
        if not is_there:
            closing: Any = made.close()
            if is_awaitable(closing):
                run_alone(closing)


def _of_one(env: Any, name: str) -> Space[Any]:
    """Return a space of an environment, or of a single environment in a vector environment."""
    space: Space[Any] = getattr(env, f"single_{name}", None) or getattr(env, name)
    return space


def in_part(
    amount: Amount, part: Any, sampler: Sampler[Any, Any] | None, options: Mapping[str, Any], *items: Any
) -> Amount:
    """Return the amount of a part, before any worker starts; the same amount without a part.

    Raises:
        UsageError: The part does not exist; or the parts together would differ from a single run.
    """
    if part is None:
        return amount
    checked_part(part)
    if amount.rule is not None:
        raise UsageError(
            "part needs n_trajectories, seeds or scenarios: until_halfwidth depends on all earlier trajectories"
        )
    if amount.seeds is None and sampler is None and options.get("seed") is None:
        raise UsageError("each part would draw another seed: give the same seed=… to all parts")
    facts = options if sampler is None else sampler.provenance()
    drops = "drop_if" if facts.get("drop_if") is not None else 'on_failure="drop"'
    are_alike = amount.seeds is None and amount.options is None  # so that others could replace them
    if are_alike and (drops == "drop_if" or facts.get("on_failure") == "drop"):
        raise UsageError(
            f"a part cannot be sampled with {drops}: a dropped trajectory would be replaced by a trajectory of the "
            "next part. Give each trajectory a seed (seeds=[…]), so that none is replaced"
        )
    layout = _layout_of(options) if sampler is None else sampler.layout
    has_items = any(map(items_by_worker, items)) if sampler is None else "n_workers" in facts
    if layout.block > 1 and has_items:
        raise UsageError(
            "a part cannot be sampled if workers have different agents or environments and run blocks of trajectories "
            "together"
        )
    return replace(amount, part=part_of(part, amount.n, layout.block))


def _layout_of(options: Mapping[str, Any]) -> Layout:
    """Return how a sampler with these options runs trajectories."""
    usual = VecWorker if options.get("inference") == "parent" else DefaultWorker
    worker_class, worker_args = options.get("worker_class", usual), options.get("worker_args")
    return WorkerFactory(n_workers=1, worker_class=worker_class, worker_args=worker_args).layout
