"""Evaluate an agent: exactly so many trajectories, or as many as a precision needs."""

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
from streamsampler.protocol.parts import PartArgument
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.options import ANY_SAMPLERS_OPTIONS
from streamsampler.samplers.per_worker import Envs

__all__ = ["EvaluationInterruptedError", "evaluate"]

_AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_halfwidth")
"""The arguments that say how many trajectories there are, each by itself."""
_OF_RULE = {"precision_of": "return", "guarantee": False, "min_trajectories": None, "max_trajectories": None}
"""The arguments that go with `until_halfwidth`, with their defaults."""


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
    """Evaluate an agent in an environment, or on a suite of them, and return its returns with intervals that hold.

    The same trajectories for any number of workers. Give one of `n_trajectories`, `seeds`, `scenarios` and
    `until_halfwidth`; the last one may go through `seeds`.

    Args:
        agent: Whatever samplers take, a dict of agents by policy name included; a model of Stable-Baselines3 or its
            `.zip` file; another object with `predict`; or a torch module. None for the agent that `sampler` has. For a
            suite, an agent for all tasks; a function of a task's name that returns the task's agent (its parameter is
            called `task`); or a dict by the names of the tasks, where no task has several agents.
        env: Whatever samplers take; a list only of environments that have one spec, or in `streamsampler.PerWorker`.
            None for the environment that `sampler` has. A dict of environments by name is a suite: each is a task, and
            the task's result is that of an evaluation of the task alone. See `streamsampler/docs/suites.md`.
        n_trajectories: Exactly so many, from seeds of the sampler's own (see its argument `seed`). Of a suite so many
            of each task, or a dict by the names of the tasks.
        seeds: One trajectory from each of these seeds, in this order; of a suite, of each task.
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
            where all are equal, or few, or uneven. For a suite the same for all tasks, or a dict by their names.
        normalise: For a suite, the returns that become the scores 0 and 1, such as those of a random agent and of a
            reference, for each task: `{"push": (0, 500)}`. Statistics over tasks are of scores then.
        tasks: For a suite, the names of the tasks that this run evaluates, as in a job array; None for all.
            `streamsampler.merge` makes of the files of all tasks the file that one run would have saved.
        open_envs: For a suite, how many tasks' environments each worker has open at once; 2 by default.
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
        out: A `.json` file, which `Evaluation.save` writes when the evaluation is complete. Until then, and after a
            kill, the finished trajectories are in its journal, "model.partial.json" of "model.json".
        resume: A file of `out` or `save`, whole or with its journal, to go on with. Only missing trajectories are run,
            and the file becomes the file of one run, byte for byte: `out`, or this file. More trajectories may be asked
            for than before: a larger `n_trajectories`, more `seeds` or `scenarios` after the same first ones, a
            narrower `until_halfwidth`. Without any of these the file's own amount is completed. Seed, part, bounds and
            `normalise` are the file's unless they are given; all other arguments that decide about trajectories must
            agree with the file. Without such a file the evaluation begins, with a warning. Not with a `sampler`.
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
        The evaluation, which can be printed; for a suite a `SuiteEvaluation`.

    Raises:
        UsageError: An argument cannot work (a ValueError); or `resume` is of another run: names each difference.
        UnknownArgumentError: There is no argument of that name (also a TypeError).
        StorageError: `resume` holds something else, is damaged, or is written by another process.
        EvaluationInterruptedError: Ctrl-C; has the evaluation so far. (A KeyboardInterrupt.)
        VideoError: The evaluation is complete, and a video could not be made; has the evaluation.
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
        raise UsageError("resume makes a sampler of its own: leave out sampler, and give agent and env")
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
    """Make the videos of an evaluation that is complete; whatever happens, the evaluation is not lost."""
    try:
        videos.film(sampler, gathering.rows, progress)
    except KeyboardInterrupt as interrupt:
        raise EvaluationInterruptedError(found, len(found)) from interrupt
    except (SamplerError, OSError) as error:
        raise VideoError(f"the evaluation is complete, but a video could not be made: {error}", found) from error
