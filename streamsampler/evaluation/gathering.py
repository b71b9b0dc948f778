"""Take trajectories from a sampler's stream until an evaluation has enough of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from gymnasium import Space

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.environments.multi_agent import as_multi_agent, is_multi_agent
from streamsampler.environments.updates import apply_any_env_update, as_env_update
from streamsampler.evaluation.agents import (
    ReturnOf,
    Row,
    SuccessMeaning,
    check_return_of,
    columns_of,
    evaluated_agent,
    row_of,
)
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.rules import Amount, BettingRule
from streamsampler.protocol.plans import Layout, checked_part, part_of
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.choosing import make_sampler
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.samplers.streaming import Stream
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory
from streamsampler.workers.vec.worker import VecWorker

_log = logging.getLogger("streamsampler")


@contextmanager
def opened_sampler(
    agent: Any,
    env: Any,
    sampler: Sampler[Any, Any] | None,
    options: Mapping[str, Any],
    deterministic: bool | None,
    vec_normalize: Any,
) -> Iterator[tuple[Sampler[Any, Any], Any, Mapping[str, Any]]]:
    """Yield the sampler that an evaluation takes trajectories from.

    Args:
        agent: See `evaluate`.
        env: See `evaluate`.
        sampler: See `evaluate`.
        options: Arguments of a sampler, which is closed at the end; none with a `sampler`.
        deterministic: See `evaluate`.
        vec_normalize: See `evaluate`.

    Yields:
        The sampler, the agent as samplers take it (None for the sampler's own), and the arguments that change its
        agent and environment.

    Raises:
        UsageError: An argument cannot work.
    """

    def action_space() -> Space[Any]:
        return _action_space(env, options.get("env_kwargs"))

    if sampler is None:
        if agent is None or env is None:
            raise UsageError("evaluate takes an agent and an environment, or a sampler that has them")
        given = evaluated_agent(agent, deterministic, vec_normalize, action_space, options.get("policy_of"))
        if options.get("order", "index") != "index":
            raise UsageError('order must be "index": what arrives first favours short trajectories')
        is_complete = False
        try:
            with make_sampler(given, env, options) as made:
                yield made, given, {}
                is_complete = True
        except SamplerError as error:
            if not is_complete:
                raise
            # What was found may have taken hours, and is not less right because an environment cannot be closed.
            _log.warning("all trajectories are there, but closing the sampler raised: %s", error)
        return
    _check_sampler(sampler, options)
    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize are for an agent that is given with them")
    given = None if agent is None else evaluated_agent(agent, deterministic, vec_normalize, action_space)
    yield sampler, given, {"agent_update": given, "env_update": env}


def _check_sampler(sampler: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(sampler, Sampler):
        raise UsageError(f"sampler must be one of this package's samplers, not a {type(sampler).__qualname__}")
    if options:
        raise UsageError(f"the sampler has its arguments already: leave out {', '.join(sorted(options))}")
    if sampler.provenance()["order"] != "index":
        raise UsageError('the sampler must have order="index": what arrives first favours short trajectories')


def _action_space(env: Any, env_kwargs: Any) -> Space[Any]:
    """Return the action space of one environment, which is made for this, and closed unless it was there before."""
    if env is None:
        raise UsageError("a torch module needs the environment's action space: give the environment, or a TorchAgent")
    if is_multi_agent(env):
        return as_multi_agent(env).action_space  # type: ignore[no-any-return]
    is_there = isinstance(getattr(env, "action_space", None), Space)
    made = env if is_there else apply_any_env_update(as_env_update(env, env_kwargs=env_kwargs), None, several=True)
    try:
        space: Space[Any] = getattr(made, "single_action_space", None) or made.action_space
        return space
    finally:
        if not is_there:
            made.close()


def in_part(
    amount: Amount, part: Any, sampler: Sampler[Any, Any] | None, options: Mapping[str, Any], *items: Any
) -> Amount:
    """Return the amount for a part of its trajectories, before any worker starts; the same if there is no part.

    Args:
        amount: The amount.
        part: The part's number from 1 on, and how many there are; or None.
        sampler: See `evaluate`.
        options: See `opened_sampler`.
        *items: What workers are given, each perhaps an item of its own.

    Raises:
        UsageError: There is no such part; or the parts together would not be what one run evaluates.
    """
    if part is None:
        return amount
    checked_part(part)
    if amount.rule is not None:
        raise UsageError(
            "a part is one of num_trajectories, seeds or scenarios: where until_halfwidth stops is known only when all "
            "trajectories before are there"
        )
    if amount.seeds is None and sampler is None and options.get("seed") is None:
        raise UsageError("each part would draw a seed of its own: give seed=…, the same for all parts")
    facts = options if sampler is None else sampler.provenance()
    drops = "drop_if" if facts.get("drop_if") is not None else 'on_failure="drop"'
    if not amount.is_fixed and (drops == "drop_if" or facts.get("on_failure") == "drop"):
        raise UsageError(
            f"a part cannot be sampled with {drops}: what is left out would be replaced by a trajectory of the next "
            "part. Give each trajectory a seed (seeds=[…]): then none is replaced"
        )
    layout = _layout_of(options) if sampler is None else sampler.layout
    has_items = any(map(items_by_worker, items)) if sampler is None else "n_workers" in facts
    if layout.block > 1 and has_items:
        raise UsageError(
            "a part cannot be sampled where workers have agents or environments of their own and run blocks of "
            "trajectories together"
        )
    return replace(amount, part=part_of(part, amount.n, layout.block))


def _layout_of(options: Mapping[str, Any]) -> Layout:
    """Return how a sampler with these options runs trajectories."""
    usual = VecWorker if options.get("inference") == "parent" else DefaultWorker
    worker_class, worker_args = options.get("worker_class", usual), options.get("worker_args")
    return WorkerFactory(n_workers=1, worker_class=worker_class, worker_args=worker_args).layout


class Gathering:
    """The trajectories of one agent, as they come; a context manager, which stops the workers.

    Args:
        sampler: Where they come from.
        amount: How many there are to be.
        success: When a trajectory succeeds.
        updates: What changes the sampler's agent and environment.
        return_of: Whose return counts, in environments of several agents.

    Attributes:
        amount: The same.
        n: How many there will be, or the most.
        indices: Their indices, unless some raise, and others take their places.
        rows: What is kept of the trajectories, in index order.
        stream: Where they come from.
    """

    def __init__(
        self,
        sampler: Sampler[Any, Any],
        amount: Amount,
        success: SuccessMeaning,
        updates: Mapping[str, Any],
        return_of: ReturnOf | None = None,
    ) -> None:
        self._return_of = check_return_of(return_of)
        sampler.refuse_lag("an evaluation")
        self.amount = amount
        self._sampler = sampler
        self._success = success
        self._left_out = sampler.stats.dropped_trajectories
        self.rows: list[Row] = []
        part = amount.part
        self.n, first = (amount.n, 0) if part is None else (part.trajectories, part.first_trajectory)
        self.indices = range(first, first + self.n)
        self._sampler, self._filters = sampler, sampler.filters
        self.stream: Stream[Any, Any] = sampler.stream(
            first_trajectory=first, n_trajectories=self.n, seeds=amount.seeds, reset_options=amount.options, **updates
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self._sampler.put_back_filters(self._filters)  # an evaluation's trajectories are not learned from

    def take(self) -> Row | None:
        """Return what is kept of the next trajectory; None after the last one."""
        trajectory = next(self.stream, None)
        if trajectory is None:
            return None
        row = row_of(trajectory, self._success, self._return_of, self._sampler.policy_names)
        self.rows.append(row)
        return row

    def finished(self, agent: Mapping[str, Any], stopped: str) -> Evaluation:
        """Return the evaluation of the trajectories so far.

        Args:
            agent: What is known of the agent; see `agents.agent_facts`.
            stopped: Why there are no more.
        """
        amount, rule = self.amount, self.amount.rule
        settings = self._sampler.provenance()
        environment, versions = settings.pop("environment"), settings.pop("versions")
        for name in ("agent_version", "order"):
            settings.pop(name, None)
        if self._return_of is not None:
            settings["return_of"] = list(self._return_of)
        betting = rule if isinstance(rule, BettingRule) else None
        return Evaluation(
            **columns_of(self.rows),
            names=None if amount.names is None else tuple(amount.names[row.trajectory] for row in self.rows),
            agent=agent,
            environment=environment,
            settings=settings,
            versions=versions,
            seed=self._sampler.seed if amount.seeds is None else None,
            success_meaning=self._success,
            stopped=stopped,
            guaranteed=None if betting is None else betting.of,
            bounds=None if betting is None or betting.of == "success" else betting.bounds,
            left_out=self._sampler.stats.dropped_trajectories - self._left_out,
            part=amount.part,
        )
