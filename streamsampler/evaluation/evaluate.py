"""Evaluate an agent: exactly so many trajectories, or as many as a precision needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np
from gymnasium import Space

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.awaiting import is_awaitable, run_alone
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.words import count
from streamsampler.data.statistics import FoundAnomaly
from streamsampler.environments.multi_agent import as_multi_agent, is_multi_agent
from streamsampler.environments.updates import apply_any_env_update, as_env_update
from streamsampler.evaluation.agents import (
    EvaluatedAgent,
    ReturnOf,
    Row,
    SuccessMeaning,
    agent_facts,
    check_return_of,
    columns_of,
    evaluated_agent,
    make_sampler,
    refuse_several_agents,
    refuse_several_tasks,
    row_of,
)
from streamsampler.evaluation.amounts import Amount, HowMany, amount_of
from streamsampler.evaluation.evaluation import Evaluation, number, unseen
from streamsampler.evaluation.intervals import FEWEST, LEVEL, Bounds, Interval, t_interval, unseen_share
from streamsampler.evaluation.replay import VideoError, VideoOf, Videos
from streamsampler.evaluation.rules import BettingRule, MeanRule, PrecisionOf, Rule, within
from streamsampler.protocol.parts import PartArgument, checked_part, part_of
from streamsampler.protocol.plans import Layout
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.options import ANY_SAMPLERS_OPTIONS
from streamsampler.samplers.per_worker import Envs, items_by_worker
from streamsampler.samplers.streaming import Stream
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory
from streamsampler.workers.vec.worker import VecWorker

# ----------------------------------------------------------------------
# Take trajectories from a sampler's stream until an evaluation has enough of them.


_log = logging.getLogger("streamsampler")
SHOWN_FAILURES = 3
"""Of how many trajectories that were left out an evaluation has the reason."""


@contextmanager
def opened_sampler(
    agent: Any,
    env: Any,
    sampler: Sampler[Any, Any] | None,
    options: Mapping[str, Any],
    deterministic: bool | None,
    vec_normalize: Any,
) -> Iterator[tuple[Sampler[Any, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the sampler that an evaluation takes trajectories from, what is known of the agent, and updates.

    Args:
        agent: See `evaluate`.
        env: See `evaluate`.
        sampler: See `evaluate`.
        options: Arguments of a sampler, which is closed at the end; none with a `sampler`.
        deterministic: See `evaluate`.
        vec_normalize: See `evaluate`.

    Yields:
        The sampler, what is known of the agent, and the arguments that change the sampler's agent and environment.

    Raises:
        UsageError: An argument cannot work.
    """
    refuse_several_agents(agent)
    refuse_several_tasks(env)

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
                yield made, agent_facts(given), {}
                is_complete = True
        except SamplerError as error:
            if not is_complete:
                raise
            # What was found may have taken hours, and is not less right because an environment cannot be closed.
            _log.warning("all trajectories are there, but closing the sampler raised: %s", error)
        return
    _check_sampler(sampler, env, options)
    if agent is None and (deterministic is not None or vec_normalize is not None):
        raise UsageError("deterministic and vec_normalize are for an agent that is given with them")
    given = None if agent is None else evaluated_agent(agent, deterministic, vec_normalize, action_space)
    facts = {"name": "the sampler's agent"} if given is None else agent_facts(given)
    yield sampler, facts, {"agent_update": given, "env_update": env}


def _check_sampler(sampler: Any, env: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(sampler, Sampler):
        raise UsageError(f"sampler must be one of this package's samplers, not a {type(sampler).__qualname__}")
    if options:
        raise UsageError(f"the sampler has its arguments already: leave out {', '.join(sorted(options))}")
    facts = sampler.provenance()
    if facts["order"] != "index":
        raise UsageError('the sampler must have order="index": what arrives first favours short trajectories')
    if env is None and isinstance(names := facts["environment"], list):
        _log.warning("the mean is one of different environments: %s; evaluate each by itself", ", ".join(names))


def _action_space(env: Any, env_kwargs: Any) -> Space[Any]:
    """Return the action space of one environment, which is made for this, and closed unless it was there before."""
    if env is None:
        raise UsageError("a torch module needs the environment's action space: give the environment, or a TorchAgent")
    if is_multi_agent(env):
        return as_multi_agent(env).action_space  # type: ignore[no-any-return]
    is_there = isinstance(getattr(env, "action_space", None), Space)
    update = None if is_there else as_env_update(env, env_kwargs=env_kwargs).of_slot(0)
    made = env if update is None else apply_any_env_update(update, None, several=True, waits=True)
    try:
        space: Space[Any] = getattr(made, "single_action_space", None) or made.action_space
        return space
    finally:
        if not is_there:
            closing: Any = made.close()
            if is_awaitable(closing):
                run_alone(closing)


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
            "a part is one of n_trajectories, seeds or scenarios: where until_halfwidth stops is known only when all "
            "trajectories before are there"
        )
    if amount.seeds is None and sampler is None and options.get("seed") is None:
        raise UsageError("each part would draw a seed of its own: give seed=…, the same for all parts")
    facts = options if sampler is None else sampler.provenance()
    drops = "drop_if" if facts.get("drop_if") is not None else 'on_failure="drop"'
    are_alike = amount.seeds is None and amount.options is None  # so that others could take their places
    if are_alike and (drops == "drop_if" or facts.get("on_failure") == "drop"):
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


class EvaluationCall:
    """The trajectories of one agent, as they come; a context manager, which stops the workers.

    Args:
        sampler: Where they come from.
        amount: How many there are to be.
        success: When a trajectory succeeds.
        facts: What is known of the agent; see `agents.agent_facts`.
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
        facts: Mapping[str, Any],
        updates: Mapping[str, Any],
        return_of: ReturnOf | None,
    ) -> None:
        self._return_of = check_return_of(return_of)
        sampler.refuse_lag("an evaluation")
        self.amount = amount
        self._success, self._facts = success, facts
        self._left_out = sampler.stats.dropped_trajectories
        self.rows: list[Row] = []
        self._failures: tuple[str, ...] = ()
        self._anomalies: tuple[int, FoundAnomaly | None] = 0, None
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
        """Return what is kept of the next trajectory; None after the last one.

        Raises:
            UsageError: Its return is outside of the bounds, and no rule says so.
        """
        trajectory = next(self.stream, None)
        if trajectory is None:
            return None
        row = row_of(trajectory, self._success, self._return_of, self._sampler.policy_names)
        if self.amount.bounds is not None and self.amount.rule is None:
            within(row.value, self.amount.bounds, "return", row.where)
        self.rows.append(row)
        self._anomalies = self.stream.anomalies  # not at the end: then they are also those of surplus trajectories
        self._keep_failures()
        return row

    def _keep_failures(self) -> int:
        """Keep the first reasons why trajectories are left out, which the sampler forgets; return how many are."""
        stats = self._sampler.stats
        n = stats.dropped_trajectories - self._left_out
        if n and len(self._failures) < SHOWN_FAILURES:
            first = stats.dropped[-n:][:SHOWN_FAILURES]
            self._failures = tuple(f"trajectory {it.index}, {it.phase}: {it.error}" for it in first)
        return n

    def finished(self, stopped: str) -> Evaluation:
        """Return the evaluation of the trajectories so far, with the reason why there are no more."""
        amount, rule = self.amount, self.amount.rule
        (n_anomalies, first_anomaly), left_out = self._anomalies, self._keep_failures()
        settings = self._sampler.provenance()
        environment, versions = settings.pop("environment"), settings.pop("versions")
        for name in ("agent_version", "order"):
            settings.pop(name, None)
        if self._return_of is not None:
            settings["return_of"] = list(self._return_of)
        return Evaluation(
            **columns_of(self.rows),
            names=None if amount.names is None else tuple(amount.names[row.trajectory] for row in self.rows),
            agent=self._facts,
            environment=environment,
            settings=settings,
            versions=versions,
            seed=self._sampler.seed if amount.seeds is None else None,
            success_meaning=self._success,
            stopped=stopped,
            guaranteed=rule.of if isinstance(rule, BettingRule) else None,
            bounds=amount.bounds,
            left_out=left_out,
            failures=self._failures,
            anomalies=n_anomalies,
            first_anomaly=None if first_anomaly is None else first_anomaly.where,
            part=amount.part,
        )


# ----------------------------------------------------------------------


INTERRUPTED = "interrupted"
"""Why an evaluation has no more trajectories, after Ctrl-C."""


class EvaluationInterruptedError(KeyboardInterrupt):
    """Ctrl-C during an evaluation or a comparison: a `KeyboardInterrupt` that has what is finished.

    Attributes:
        found: The `Evaluation`, or the `Comparison`, of the trajectories that were there: the first ones by index. Of
            a comparison in which the second agent has no trajectories yet, the first agent's `Evaluation`.
    """

    def __init__(self, found: Any, n_trajectories: int) -> None:
        super().__init__(f"interrupted after {count(n_trajectories, 'trajectory')}, which the exception has as found")
        self.found = found


@suggesting(ANY_SAMPLERS_OPTIONS)
@with_arguments_in_groups()
def evaluate(
    agent: EvaluatedAgent | None = None,
    env: Envs | None = None,
    *,
    sampler: Sampler[Any, Any] | None = None,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    n_trajectories: int | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_halfwidth: float | None = None,
    precision_of: PrecisionOf = "return",
    guarantee: bool = False,
    min_trajectories: int | None = None,
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    num_trajectories: int | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    bounds: Bounds | None = None,
    video: str | PathLike[str] | None = None,
    video_of: VideoOf | Iterable[VideoOf] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Evaluation:
    """Evaluate an agent in an environment, and return its returns with intervals that hold.

    The same trajectories for any number of workers. Give one of `n_trajectories`, `seeds`, `scenarios` and
    `until_halfwidth`; the last one may go through `seeds`.

    Args:
        agent: Whatever samplers take, a dict of agents by policy name included; a model of Stable-Baselines3 or its
            `.zip` file; another object with `predict`; or a torch module. None for the agent that `sampler` has.
        env: Whatever samplers take; a list only of environments that have one spec, or in `streamsampler.PerWorker`.
            None for the environment that `sampler` has.
        n_trajectories: Exactly so many, from seeds of the sampler's own (see its argument `seed`).
        seeds: One trajectory from each of these seeds, in this order.
        scenarios: One trajectory for each of these dicts, in this order: "seed", a seed; "options", what
            `env.reset(options=…)` gets; "name", by which the result is found: `evaluation["name"]`. All have a seed, or
            none has.
        until_halfwidth: Go on, in index order, until half the width of an interval is at most this. The result is the
            shortest such prefix that has `min_trajectories`. Where all returns are equal and there are no `bounds`,
            there is no interval: it stops when at most 1 % of trajectories may have another one, after 299.
        precision_of: Of what: the mean "return", or the rate of "success".
        guarantee: Use an interval that holds although it decides when to stop, a betting confidence sequence. It needs
            more trajectories; for returns it needs their `bounds`. Without, intervals of returns hold in 90 to 95 of
            100 evaluations that stop at the earliest; exact ones, for success rates and for two values, in 93 to 99.
        bounds: The least and the largest return that there can be. They give an interval where returns alone give none:
            where all are equal, or few, or uneven.
        min_trajectories: The fewest trajectories that `until_halfwidth` may stop after: at least 30 for returns and 10
            for success rates, which are the defaults; with `guarantee` any, 1 by default.
        max_trajectories: The most; 10,000 by default, or as many as there are `seeds`. The evaluation then says that
            the precision was not reached.
        part: `(i, n)`: only the i-th, from 1 on, of n contiguous ranges of the trajectories, for n runs with one seed.
            `streamsampler.merge` makes of the files of all parts the file that one run would have saved.
        success: A trajectory whose infos have `success` or `is_success` succeeds if its last timestep says so ("end"),
            or any of them ("once").
        return_of: In environments of several agents, whose return counts: an agent, a policy for all that it plays, a
            list of these for a team, or "all" for the sum of all agents' rewards. A trajectory succeeds if an info of
            one of them says so.
        deterministic: For agents with `predict` (None: True) and torch modules (None: False): whether to act without
            drawing.
        vec_normalize: For models of Stable-Baselines3: see `streamsampler.adapters.sb3.SB3Agent`.
        sampler: A sampler to use; it stays open. `agent` and `env` then replace what it has.
        video: A folder for videos of some trajectories, named by index, seed and return. They are chosen when the
            evaluation is complete, and run again, in this process: the evaluation itself costs no more. Needs
            `pip install av`, and an environment with `render_mode="rgb_array"`.
        video_of: What to film: indices, and "first", "best", "median" and "worst", by return. These four by default.
        progress: See `streamsampler.Sampler.obtain_samples`; shows the interval as well.
        num_trajectories: Another name of `n_trajectories`.
        options: All other arguments of `streamsampler.MultiprocessingSampler`: `n_workers` (0 for none but this
            process), `seed`, `env_kwargs`, `max_episode_length`, `worker_class`, … With `observation_filter` the agent
            sees what that filter makes of observations with the statistics it has (`sampler.filters.observation`);
            these do not change, nor do those of a given `sampler`. Returns are of raw rewards.

    Returns:
        The evaluation, which can be printed.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        UnknownArgumentError: There is no argument of that name (also a TypeError).
        EvaluationInterruptedError: Ctrl-C; has the evaluation so far. (A KeyboardInterrupt.)
        VideoError: The evaluation is complete, and a video could not be made; has the evaluation.
        ImportError: The library for videos is missing; says how to install it.
        RolloutError: User code raised in a worker. For other errors see `streamsampler.Sampler.obtain_samples`.
    """
    if success not in ("end", "once"):
        raise UsageError(f'success must be "end" or "once", got {success!r}')
    amount = amount_of(
        how_many=HowMany.asked(n_trajectories, num_trajectories),
        seeds=seeds,
        scenarios=scenarios,
        until_halfwidth=until_halfwidth,
        precision_of=precision_of,
        guarantee=guarantee,
        bounds=bounds,
        min_trajectories=min_trajectories,
        max_trajectories=max_trajectories,
    )
    amount = in_part(amount, part, sampler, options, agent, env)
    videos = Videos.asked(video, video_of)
    with opened_sampler(agent, env, sampler, options, deterministic, vec_normalize) as (opened, facts, updates):
        with EvaluationCall(opened, amount, success, facts, updates, return_of) as gathering:
            if videos is not None:
                videos.check(opened, updates.get("env_update"), gathering.indices)
            try:
                stopped = gather(gathering, progress)
            except KeyboardInterrupt as interrupt:
                if not gathering.rows:
                    raise
                found = gathering.finished(INTERRUPTED)
                raise EvaluationInterruptedError(found, len(found)) from interrupt
            found = gathering.finished(stopped)
        if videos is not None:
            _film(videos, opened, gathering, found, progress)
        return found


def _film(
    videos: Videos, sampler: Sampler[Any, Any], gathering: EvaluationCall, found: Evaluation, progress: ProgressArgument
) -> None:
    """Make the videos of an evaluation that is complete; whatever happens, the evaluation is not lost."""
    try:
        videos.film(sampler, gathering.rows, progress)
    except KeyboardInterrupt as interrupt:
        raise EvaluationInterruptedError(found, len(found)) from interrupt
    except (SamplerError, OSError) as error:
        raise VideoError(f"the evaluation is complete, but a video could not be made: {error}", found) from error


def gather(gathering: EvaluationCall, progress: ProgressArgument, whose: str = "") -> str:
    """Take trajectories until there are enough of them; return why there are enough.

    Args:
        gathering: Where the trajectories come from.
        progress: See `evaluate`.
        whose: The agent's name, to be shown; empty where there is one agent.
    """
    amount, rows = gathering.amount, gathering.rows
    complete = False

    def note() -> str:
        return ": ".join(filter(None, (whose, _note(gathering))))

    with display(progress, gathering.n, "trajectories", note=note) as shown:
        if progress:

            def watch(timesteps: int, _: int) -> None:
                shown.update(lambda: (max(timesteps, sum(row.length for row in rows)), len(rows)), complete=False)

            gathering.stream.watch(watch, shown.interval)
        while (row := gathering.take()) is not None:
            if amount.rule is not None:
                if amount.rule.add(row):
                    complete = True
                    break
                shown.expect(amount.rule.expected(amount.n))
        if amount.rule is not None:
            shown.expect(len(rows))
        shown.update(lambda: (sum(row.length for row in rows), len(rows)), complete=True)
    return _reason(gathering, complete=complete)


def _note(gathering: EvaluationCall) -> str:
    """Return how far an interval has narrowed, in words."""
    rule, rows = gathering.amount.rule, gathering.rows
    if rule is not None:
        return "" if rule.interval is None else f"{_shown(rule.what, rule.interval)}, to ± {rule.halfwidth:.3g}"
    if len(rows) < FEWEST:
        return ""
    interval = t_interval(np.array([row.value for row in rows]))
    return _shown("mean return", interval) if interval.halfwidth > 0 else f"return {interval.low:.4g}, all equal"


def _shown(what: str, interval: Interval) -> str:
    centre = (interval.low + interval.high) / 2
    # In few words: on a terminal of 80 columns there is little room.
    return f"{what.removeprefix('mean ').removesuffix(' rate')} {centre:.4g} ± {interval.halfwidth:.3g}"


def _reason(gathering: EvaluationCall, *, complete: bool) -> str:
    asked, rule, n = gathering.amount.asked, gathering.amount.rule, len(gathering.rows)
    if rule is None:
        return asked if n == gathering.n else f"{asked}; some raised and were left out"
    most = "" if complete else f"there were {count(n, 'trajectory')}, the most; "
    reported = rule.reported if n else None
    if isinstance(reported, Interval):
        width = number(reported.halfwidth)
        if complete:
            return f"the half-width of the {rule.what}'s interval, {width}, is at most {number(rule.halfwidth)}"
        return f"{most}the half-width of the {rule.what}'s interval is {width}, not {number(rule.halfwidth)}"
    return most + _why_no_interval(rule, n, "" if reported is None else reported.why)


def _why_no_interval(rule: Rule, n: int, why: str) -> str:
    if isinstance(rule, MeanRule) and rule.all_equal and n:
        shown = unseen(unseen_share(n), "trajectories", LEVEL)
        return f"all returns are equal, and {shown}; with bounds (least, largest) of returns their mean has an interval"
    return f"no interval of the {rule.what} holds{why and f': {why}'}"
