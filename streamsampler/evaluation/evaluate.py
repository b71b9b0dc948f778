"""Evaluate an agent: exactly so many trajectories, or as many as a precision needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.words import count
from streamsampler.evaluation.agents import EvaluatedAgent, ReturnOf, SuccessMeaning, agent_facts
from streamsampler.evaluation.evaluation import Evaluation, number
from streamsampler.evaluation.gathering import Gathering, in_part, opened_sampler
from streamsampler.evaluation.intervals import FEWEST, Interval, t_interval
from streamsampler.evaluation.rules import Bounds, PrecisionOf, Rule, amount_of
from streamsampler.evaluation.videos import VideoError, VideoOf, Videos
from streamsampler.protocol.plans import PartArgument
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_worker import Envs

INTERRUPTED = "interrupted"
"""Why an evaluation has no more trajectories, after Ctrl-C."""

_BY_SAMPLER: Mapping[str, Any] = {"name": "the sampler's agent"}


class EvaluationInterruptedError(KeyboardInterrupt):
    """Ctrl-C during an evaluation or a comparison: a `KeyboardInterrupt` that has what is finished.

    Attributes:
        found: The `Evaluation`, or the `Comparison`, of the trajectories that were there: the first ones by index.
    """

    def __init__(self, found: Any, n_trajectories: int) -> None:
        super().__init__(f"interrupted after {count(n_trajectories, 'trajectory')}")
        self.found = found


def evaluate(
    agent: EvaluatedAgent | None = None,
    env: Envs | None = None,
    *,
    num_trajectories: int | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_halfwidth: float | None = None,
    precision_of: PrecisionOf = "return",
    guarantee: bool = False,
    bounds: Bounds | None = None,
    min_trajectories: int | None = None,
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    sampler: Sampler[Any, Any] | None = None,
    video: str | PathLike[str] | None = None,
    video_of: VideoOf | Iterable[VideoOf] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Evaluation:
    """Evaluate an agent in an environment, and return its returns with intervals that hold.

    The same trajectories for any number of workers. Give one of `num_trajectories`, `seeds`, `scenarios` and
    `until_halfwidth`; the last one may go through `seeds`.

    Args:
        agent: Whatever samplers take, a dict of agents by policy name included; a model of Stable-Baselines3 or its
            `.zip` file; another object with `predict`; or a torch module. None for the agent that `sampler` has.
        env: Whatever samplers take. None for the environment that `sampler` has.
        num_trajectories: Exactly so many, from seeds of the sampler's own (see its argument `seed`).
        seeds: One trajectory from each of these seeds, in this order.
        scenarios: One trajectory for each of these dicts, in this order: "seed", a seed; "options", what
            `env.reset(options=…)` gets; "name", by which the result is found: `evaluation["name"]`. All have a seed, or
            none has.
        until_halfwidth: Go on, in index order, until half the width of an interval is at most this. The result is the
            shortest such prefix that has `min_trajectories`.
        precision_of: Of what: the mean "return", or the rate of "success".
        guarantee: Use an interval that holds although it decides when to stop, a betting confidence sequence. It needs
            more trajectories; for returns it needs their `bounds`. Without, intervals of returns hold in 90 to 95 of
            100 evaluations that stop at the earliest, and Wilson's for success rates in 92 to 99.
        bounds: The least and the largest return that there can be.
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
        options: All other arguments of `streamsampler.MultiprocessingSampler`: `n_workers` (0 for none but this
            process), `seed`, `env_kwargs`, `max_episode_length`, `worker_class`, … With `observation_filter` the agent
            sees what that filter makes of observations with the statistics it has (`sampler.filters.observation`);
            these do not change, nor do those of a given `sampler`. Returns are of raw rewards.

    Returns:
        The evaluation, which can be printed.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        EvaluationInterruptedError: Ctrl-C; has the evaluation so far. (A KeyboardInterrupt.)
        VideoError: The evaluation is complete, and a video could not be made; has the evaluation.
        ImportError: The library for videos is missing; says how to install it.
        RolloutError: User code raised in a worker. For other errors see `streamsampler.Sampler.obtain_samples`.
    """
    if success not in ("end", "once"):
        raise UsageError(f'success must be "end" or "once", got {success!r}')
    amount = amount_of(
        num_trajectories=num_trajectories,
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
    with opened_sampler(agent, env, sampler, options, deterministic, vec_normalize) as (opened, given, updates):
        facts = _BY_SAMPLER if given is None else agent_facts(given)
        with Gathering(opened, amount, success, updates, return_of) as gathering:
            if videos is not None:
                videos.check(opened, updates.get("env_update"), gathering.indices)
            try:
                stopped = gather(gathering, progress)
            except KeyboardInterrupt as interrupt:
                if not gathering.rows:
                    raise
                found = gathering.finished(facts, INTERRUPTED)
                raise EvaluationInterruptedError(found, len(found)) from interrupt
            found = gathering.finished(facts, stopped)
        if videos is not None:
            _film(videos, opened, gathering, found, progress)
        return found


def _film(
    videos: Videos, sampler: Sampler[Any, Any], gathering: Gathering, found: Evaluation, progress: ProgressArgument
) -> None:
    """Make the videos of an evaluation that is complete; whatever happens, the evaluation is not lost."""
    try:
        videos.film(sampler, gathering.rows, progress)
    except KeyboardInterrupt as interrupt:
        raise EvaluationInterruptedError(found, len(found)) from interrupt
    except (SamplerError, OSError) as error:
        raise VideoError(f"the evaluation is complete, but a video could not be made: {error}", found) from error


def gather(gathering: Gathering, progress: ProgressArgument, whose: str = "") -> str:
    """Take trajectories until there are enough of them; return why there are enough.

    Args:
        gathering: Where the trajectories come from.
        progress: See `evaluate`.
        whose: The agent's name, to be shown; empty where there is one agent.
    """
    amount, rows = gathering.amount, gathering.rows
    complete = False
    with display(progress, gathering.n, "trajectories", note=lambda: _joined(whose, _note(gathering))) as shown:
        if progress:

            def watch(timesteps: int, _: int) -> None:
                shown.update(lambda: (max(timesteps, sum(row.length for row in rows)), len(rows)), complete=False)

            gathering.stream.watch(watch, shown.interval)
        while (row := gathering.take()) is not None:
            if amount.rule is not None:
                if amount.rule.add(row):
                    complete = True
                    break
                shown.expect(_expected(amount.rule, len(rows), amount.n))
        if amount.rule is not None:
            shown.expect(len(rows))
        shown.update(lambda: (sum(row.length for row in rows), len(rows)), complete=True)
    return _reason(gathering, complete=complete)


def _joined(whose: str, note: str) -> str:
    return f"{whose}: {note}" if whose and note else whose or note


def _note(gathering: Gathering) -> str:
    """Return how far an interval has narrowed, in words."""
    rule, rows = gathering.amount.rule, gathering.rows
    if rule is not None:
        return "" if rule.interval is None else f"{_shown(rule.what, rule.interval)}, to ± {rule.halfwidth:.3g}"
    if len(rows) < FEWEST:
        return ""
    return _shown("mean return", t_interval(np.array([row.value for row in rows])))


def _shown(what: str, interval: Interval) -> str:
    centre = (interval.low + interval.high) / 2
    # In few words: on a terminal of 80 columns there is little room.
    return f"{what.removeprefix('mean ').removesuffix(' rate')} {centre:.4g} ± {interval.halfwidth:.3g}"


def _expected(rule: Rule, n: int, most: int) -> int:
    """Estimate how many trajectories a rule will take: an interval shrinks with the root of their number."""
    if rule.interval is None:
        return most
    estimate = n * (rule.interval.halfwidth / rule.halfwidth) ** 2
    return min(most, max(n + 1, math.ceil(estimate))) if math.isfinite(estimate) else most


def _reason(gathering: Gathering, *, complete: bool) -> str:
    asked, rule, n = gathering.amount.asked, gathering.amount.rule, len(gathering.rows)
    if rule is None:
        return asked if n == gathering.n else f"{asked}; some raised and were left out"
    interval = "none" if rule.interval is None else number(rule.interval.halfwidth)
    if complete:
        return f"the half-width of the {rule.what}'s interval, {interval}, is at most {number(rule.halfwidth)}"
    return (
        f"there were {count(n, 'trajectory')}, the most; the half-width of the {rule.what}'s interval is {interval}, "
        f"not {number(rule.halfwidth)}"
    )
