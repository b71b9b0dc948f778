"""Evaluate an agent on an exact number of trajectories, or on as many as a precision needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, cast, overload

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument
from streamsampler.evaluation.agents import (
    EvaluatedAgent,
    ReturnOf,
    SuccessMeaning,
)
from streamsampler.evaluation.amounts import HowMany, amount_of
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationCall, EvaluationInterruptedError, gather
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.opening import in_part, opened_sampler
from streamsampler.evaluation.replay import VideoError, VideoOf, Videos
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.run_file import RunFile
from streamsampler.evaluation.suites.evaluate_suite import (
    SuiteArguments,
    SuiteCall,
    refuse_for_suites,
    refuse_without_suite,
    saved_bounds,
)
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from streamsampler.protocol.evaluation_parts import PartArgument
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.options import ANY_SAMPLERS_OPTIONS
from streamsampler.samplers.per_worker import Envs

__all__ = ["EvaluationInterruptedError", "evaluate"]

_AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_halfwidth")
"""The arguments of the amount, which exclude each other."""
_OF_RULE = {"precision_of": "return", "guarantee": False, "min_trajectories": None, "max_trajectories": None}
"""The arguments of `until_halfwidth`, with their defaults."""


@overload
def evaluate(agent: Any, env: Mapping[str, Any], **options: Any) -> SuiteEvaluation: ...
@overload
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
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Evaluation: ...
@suggesting(ANY_SAMPLERS_OPTIONS)
@with_arguments_in_groups()
def evaluate(
    agent: EvaluatedAgent | None = None,
    env: Envs | Mapping[str, Any] | None = None,
    *,
    sampler: Sampler[Any, Any] | None = None,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    tasks: Iterable[str] | None = None,
    n_trajectories: int | Mapping[str, int] | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_halfwidth: float | None = None,
    precision_of: PrecisionOf = "return",
    guarantee: bool = False,
    min_trajectories: int | None = None,
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    num_trajectories: int | Mapping[str, int] | None = None,
    open_envs: int | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    normalise: Mapping[str, tuple[float, float]] | None = None,
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    video: str | PathLike[str] | None = None,
    video_of: VideoOf | Iterable[VideoOf] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Evaluation | SuiteEvaluation:
    """Evaluate an agent in an environment, or on a suite, and return its returns with valid intervals.

    The trajectories are the same for any number of workers. Give `n_trajectories`, `seeds`, `scenarios` or
    `until_halfwidth`; only the last may be combined with `seeds`.

    Args:
        agent: The agent, as samplers take it, or a dict of agents by policy name; a model of Stable-Baselines3 or its
            `.zip` file; another object with `predict`; or a torch module. None for the agent of `sampler`. For a suite,
            an agent for all tasks; a function from a task's name to its agent (with a parameter `task`); or a dict by
            tasks, if no task has several agents.
        env: The environment, as samplers take it; a list only if all have the same spec, or in
            `streamsampler.PerWorker`. None for the environment of `sampler`. A dict of environments by name is a suite:
            each is a task, and the task's result is that of an evaluation of the task alone. See
            `streamsampler/docs/suites.md`.
        n_trajectories: Exact number of trajectories, with the sampler's own seeds (see its argument `seed`). For a
            suite the number of each task, or a dict by tasks.
        seeds: A trajectory for each of these seeds, in this order; for a suite, for each task.
        scenarios: A trajectory for each of these dicts, in this order: "seed", a seed; "options", for
            `env.reset(options=…)`; "name", for access to the result: `evaluation["name"]`. Either all have a seed, or
            none.
        until_halfwidth: Run trajectories, in index order, until half the width of an interval is at most this. The
            result is the shortest such prefix with `min_trajectories`. If all returns are equal and `bounds` are
            unknown, no interval exists: the evaluation stops when at most 1 % of trajectories may have another return,
            after 299.
        precision_of: Quantity of the interval: the mean "return", or the "success" rate.
        guarantee: Use an interval that stays valid although it decides when to stop, a betting confidence sequence. It
            needs more trajectories, and for returns their `bounds`. Otherwise, intervals of returns hold in 90 to 95 of
            100 evaluations that stop as early as possible; exact intervals, for success rates and two values, in 93 to
            99.
        bounds: The least and the largest possible return. With them an interval exists even if all returns are equal,
            or few, or uneven. For a suite the same for all tasks, or a dict by tasks.
        normalise: For a suite, the returns of the scores 0 and 1, such as those of a random agent and of a reference,
            by task: `{"push": (0, 500)}`. Statistics over tasks are then of scores.
        tasks: For a suite, the names of the tasks of this run, as in a job array; None for all. `streamsampler.merge`
            makes the file of a whole run from the files of all tasks.
        open_envs: For a suite, the largest number of tasks with an open environment in a worker; 2 by default.
        min_trajectories: Least number of trajectories for `until_halfwidth`: at least 30 for returns and 10 for success
            rates, the defaults; with `guarantee` any number, 1 by default.
        max_trajectories: The most trajectories; by default 10,000, or the number of `seeds`. The evaluation then
            reports that the precision was not reached.
        part: `(i, n)`: only the i-th, from 1 on, of n contiguous ranges of the trajectories, for n runs with the same
            seed. `streamsampler.merge` makes the file of a whole run from the files of all parts.
        success: A trajectory with `success` or `is_success` in its infos succeeds if its last timestep says so ("end"),
            or any timestep ("once").
        return_of: In environments of several agents, the agents for which returns count: an agent, a policy for all its
            agents, a list of these for a team, or "all" for the sum of all agents' rewards. A trajectory succeeds if an
            info of one of them says so.
        deterministic: For agents with `predict` (None: True) and torch modules (None: False): whether to act without
            drawing.
        vec_normalize: For models of Stable-Baselines3: see `streamsampler.adapters.sb3.SB3Agent`.
        sampler: A sampler to use, which stays open; `agent` and `env` then replace its own.
        out: A `.json` file for `Evaluation.save` at the end. Until then, and after a kill, the finished trajectories
            are in its journal, "model.partial.json" of "model.json".
        resume: A file of `out` or `save`, complete or with its journal, to resume. Only missing trajectories are run,
            and `out`, or this file, becomes the file of a single run, byte for byte. More trajectories may be requested
            than before: a larger `n_trajectories`, further `seeds` or `scenarios` after the same first ones, a narrower
            `until_halfwidth`. Without any of these the file's own amount is completed. Seed, part, bounds and
            `normalise` default to the file's; all other arguments that decide about trajectories must agree with the
            file. If the file does not exist the evaluation begins, with a warning. Not with a `sampler`.
        video: A folder for videos of some trajectories, named by index, seed and return. They are chosen after the
            evaluation, and run again in this process, so that the evaluation itself costs no more. Needs `pip install
            av`, and an environment with `render_mode="rgb_array"`.
        video_of: Trajectories to film: indices, and "first", "best", "median" and "worst", by return. These four by
            default.
        progress: See `streamsampler.Sampler.obtain_samples`; shows the interval, too.
        num_trajectories: Another name of `n_trajectories`.
        options: All other arguments of `streamsampler.MultiprocessingSampler`: `n_workers` (0 for this process only),
            `seed`, `env_kwargs`, `max_episode_length`, `worker_class`, … With `observation_filter` the agent receives
            observations filtered with fixed statistics (`sampler.filters.observation`); those of a given `sampler` do
            not change either. Returns are of raw rewards.

    Returns:
        The evaluation, for `print`; for a suite a `SuiteEvaluation`.

    Raises:
        UsageError: An argument is out of range, or contradicts another (a ValueError); or `resume` is of another run:
            names each difference.
        UnknownArgumentError: No argument has this name (also a TypeError).
        StorageError: `resume` has other contents, is damaged, or is being written by another process.
        EvaluationInterruptedError: Ctrl-C; has the evaluation so far. (A KeyboardInterrupt.)
        VideoError: A video could not be made; has the complete evaluation.
        ImportError: The library for videos is missing; says how to install it.
        RolloutError: User code raised in a worker. For other errors see `streamsampler.Sampler.obtain_samples`.
    """
    if success not in ("end", "once"):
        raise UsageError(f'success must be "end" or "once", got {success!r}')
    how_many = HowMany.asked(n_trajectories, num_trajectories)
    given = {
        "n_trajectories": how_many.n,
        "seeds": seeds,
        "scenarios": scenarios,
        "until_halfwidth": until_halfwidth,
        "precision_of": precision_of,
        "guarantee": guarantee,
        "min_trajectories": min_trajectories,
        "max_trajectories": max_trajectories,
    }
    if isinstance(env, Mapping):
        refuse_for_suites({"sampler": sampler, "video": video or video_of, "guarantee": guarantee})
        run: RunFile = RunFile(SuiteEvaluation, out, resume)
        run.check_names(tuple(map(str, env)))
        amount = run.completed(given, _AMOUNTS, _OF_RULE)
        arguments = SuiteArguments.checked(
            env, how_many=HowMany(amount.pop("n_trajectories"), how_many.name), amount=amount,
            bounds=saved_bounds(run, list(env)) if bounds is None else bounds, part=run.part(part),
            normalise=run.facts.normalise if normalise is None else normalise, tasks=tasks, success=success,
            return_of=return_of, deterministic=deterministic, vec_normalize=vec_normalize, open_envs=open_envs,
            options=run.with_seed(options),
        )  # fmt: skip
        return _evaluated_suite(agent, arguments, run, progress)
    refuse_without_suite({"normalise": normalise, "tasks": tasks, "open_envs": open_envs})
    bounds = cast("Bounds | None", bounds)
    run = RunFile(Evaluation, out, resume)
    if resume is not None and sampler is not None:
        raise UsageError("resume makes its own sampler: leave out sampler, and give agent and env")
    asked = run.completed(given, _AMOUNTS, _OF_RULE)
    n = HowMany(asked.pop("n_trajectories"), how_many.name)
    wanted = amount_of(how_many=n, bounds=run.bounds(bounds), **asked)
    options = options if sampler is not None or wanted.seeds is not None else run.with_seed(options)
    wanted = in_part(wanted, run.part(part), sampler, options, agent, env)
    run.begin(wanted)
    videos = Videos.asked(video, video_of)
    opened = opened_sampler(agent, env, sampler, options, deterministic, vec_normalize)
    with run, opened as (used, facts, updates):
        with EvaluationCall(used, wanted, success, facts, updates, return_of, run.saved(0), run.entry(0)) as gathering:
            if videos is not None:
                videos.check(used, updates.get("env_update"), gathering.indices)
            try:
                stopped = gather(gathering, progress)
            except KeyboardInterrupt as interrupt:
                if not gathering.rows:
                    raise
                found = gathering.finished(INTERRUPTED)
                raise EvaluationInterruptedError(found, len(found)) from interrupt
            found = gathering.finished(stopped)
        run.finish(found)
        if videos is not None:
            _film(videos, used, gathering, found, progress)
        return found


def _evaluated_suite(
    agent: Any, arguments: SuiteArguments, run: RunFile, progress: ProgressArgument
) -> SuiteEvaluation:
    call = SuiteCall(agent, arguments)
    run.begin(arguments.asked, **arguments.journal_facts)
    with run:
        suite = call.run(run, progress)
        run.finish(suite)
    return suite


def _film(
    videos: Videos, sampler: Sampler[Any, Any], gathering: EvaluationCall, found: Evaluation, progress: ProgressArgument
) -> None:
    """Make the videos of a complete evaluation, which is kept whatever fails."""
    try:
        videos.film(sampler, gathering.rows, progress)
    except KeyboardInterrupt as interrupt:
        raise EvaluationInterruptedError(found, len(found)) from interrupt
    except (SamplerError, OSError) as error:
        raise VideoError(f"the evaluation is complete, but a video could not be made: {error}", found) from error
