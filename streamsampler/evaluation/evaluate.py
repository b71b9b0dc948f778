"""Evaluate an agent: exactly so many trajectories, or as many as a precision needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from gymnasium import Space

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.awaiting import is_awaitable, run_alone
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument
from streamsampler.core.words import count
from streamsampler.environments.multi_agent import as_multi_agent, is_multi_agent
from streamsampler.environments.updates import apply_any_env_update, as_env_update
from streamsampler.evaluation.agents import (
    EvaluatedAgent,
    ReturnOf,
    SuccessMeaning,
    agent_facts,
    evaluated_agent,
    make_sampler,
    refuse_several_agents,
    refuse_several_tasks,
)
from streamsampler.evaluation.amounts import Amount, HowMany, amount_of
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationCall, gather
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.replay import VideoError, VideoOf, Videos
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.run_file import RunFile
from streamsampler.protocol.parts import PartArgument, checked_part, part_of
from streamsampler.protocol.plans import Layout
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.options import ANY_SAMPLERS_OPTIONS
from streamsampler.samplers.per_worker import Envs, items_by_worker
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


# ----------------------------------------------------------------------


class EvaluationInterruptedError(KeyboardInterrupt):
    """Ctrl-C during an evaluation or a comparison: a `KeyboardInterrupt` that has what is finished.

    Attributes:
        found: The `Evaluation`, or the `Comparison`, of the trajectories that were there: the first ones by index. Of
            a comparison in which the second agent has no trajectories yet, the first agent's `Evaluation`.
    """

    def __init__(self, found: Any, n_trajectories: int) -> None:
        super().__init__(f"interrupted after {count(n_trajectories, 'trajectory')}, which the exception has as found")
        self.found = found


_AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_halfwidth")
"""The arguments that say how many trajectories there are, each by itself."""
_OF_RULE = {"precision_of": "return", "guarantee": False, "min_trajectories": None, "max_trajectories": None}
"""The arguments that go with `until_halfwidth`, with their defaults."""


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
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
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
        out: A `.json` file, which `Evaluation.save` writes when the evaluation is complete. Until then, and after a
            kill, the finished trajectories are in its journal, "model.partial.json" of "model.json".
        resume: A file of `out` or `save`, whole or with its journal, to go on with. Only missing trajectories are run,
            and the file becomes the file of one run, byte for byte: `out`, or this file. More trajectories may be
            asked for than before: a larger `n_trajectories`, more `seeds` or `scenarios` after the same first ones, a
            narrower `until_halfwidth`. Without any of these the file's own amount is completed. Seed, part and bounds
            are the file's unless they are given; all other arguments that decide about trajectories must agree with the
            file. Without such a file the evaluation begins, with a warning. Not with a `sampler`.
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
    run = RunFile(Evaluation, out, resume)
    if resume is not None and sampler is not None:
        raise UsageError("resume makes a sampler of its own: leave out sampler, and give agent and env")
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
    asked = run.completed(given, _AMOUNTS, _OF_RULE)
    n = HowMany(asked.pop("n_trajectories"), how_many.name)
    amount = amount_of(how_many=n, bounds=run.bounds(bounds), **asked)
    options = options if sampler is not None or amount.seeds is not None else run.with_seed(options)
    amount = in_part(amount, run.part(part), sampler, options, agent, env)
    run.begin(amount)
    videos = Videos.asked(video, video_of)
    opened = opened_sampler(agent, env, sampler, options, deterministic, vec_normalize)
    with run, opened as (used, facts, updates):
        with EvaluationCall(used, amount, success, facts, updates, return_of, run.saved(0), run.entry(0)) as gathering:
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
