"""Carry out `streamsampler evaluate` and `streamsampler compare`: run, print what was found, and write it."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from streamsampler.cli.current_directory import import_named
from streamsampler.cli.environments import Spaces, environment_of
from streamsampler.cli.errors import failure, translated
from streamsampler.cli.grouping import TYPED
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.models import load_agents, load_any_agent
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.options import command_line, is_model_file, option_of
from streamsampler.cli.sampling_options import SamplingOptions, ray_option_named
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.data.words import count, duration
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.errors import UsageError
from streamsampler.evaluation.agents import SuccessMeaning
from streamsampler.evaluation.compare import compare
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import INTERRUPTED, EvaluationInterruptedError, evaluate
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.videos import VideoError, VideoOf
from streamsampler.samplers.progress import Output, Snapshot, output_on

_ARGUMENT = re.compile(
    r"\b(num_trajectories|until_halfwidth|until_decided|m(?:in|ax)_trajectories|precision_of|return_of)\b"
)


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(SamplingOptions):
    """What to evaluate, and how; the names are those of the options.

    Attributes:
        agents: The agents' names; one, or those that are compared.
        vec_normalize: The statistics of the agents that are models: for none, for all of them, or for each.
        amount: The arguments of `evaluate` or `compare` that say how many trajectories there are.
        video: The folder for videos; None for none.
        video_of: What they are of; empty for the default.
        return_of: Whose return counts, of several agents; empty where that was not said.
    """

    agents: tuple[str, ...]
    vec_normalize: tuple[str, ...]
    deterministic: bool | None
    amount: Mapping[str, Any]
    success: SuccessMeaning
    out: Path | None
    video: Path | None = None
    video_of: tuple[VideoOf, ...] = ()
    return_of: tuple[str, ...] = ()

    def loaded(self, spaces: Spaces) -> list[Any]:
        """Return the agents.

        Raises:
            UsageError: There is no such agent, or it is for other spaces.
            click.ClickException: One cannot be loaded.
        """
        if isinstance(spaces[0], SpacesOfAgents):
            raise UsageError(
                "compare is for environments of one agent here; in Python streamsampler.compare takes several dicts of "
                "policies, and return_of"
            )
        n_models = sum(map(is_model_file, self.agents))
        statistics = iter(self.vec_normalize * (n_models if len(self.vec_normalize) == 1 else 1))
        return [
            load_any_agent(
                name, next(statistics, None) if is_model_file(name) else None, spaces, self.deterministic,
                predicting=True,
            )
            for name in self.agents
        ]  # fmt: skip

    def names(self) -> list[str]:
        """Return a name for each agent: of files without their folders, unless these tell them apart."""
        short = [Path(name).name if is_model_file(name) else name for name in self.agents]
        names: list[str] = []
        for name, whole in zip(short, self.agents, strict=True):
            chosen = name if short.count(name) == 1 else whole
            names.append(chosen if chosen not in names else f"{chosen} #{len(names) + 1}")
        return names


class _Follower:
    """Shows progress, and keeps Ctrl-C from cutting short what is complete.

    Attributes:
        interval: Seconds between two snapshots.
    """

    def __init__(self, bar: Output, interrupts: Interrupts, n_calls: int) -> None:
        self.interval = bar.interval
        self._bar = bar
        self._interrupts = interrupts
        self._n_calls = n_calls

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.complete:
            self._n_calls -= 1
            if not self._n_calls:
                self._interrupts.shield()
        self._bar(snapshot)


def run_evaluation(request: EvaluationRequest, bar: Output, interrupts: Interrupts) -> Evaluation:
    """Evaluate the agent that was asked for.

    Raises:
        SamplerError: As `evaluate` says.
        click.ClickException: The environment cannot be made, or the agent not be loaded.
        EvaluationInterruptedError: A signal came; has what is finished.
        VideoError: A video could not be made; has the evaluation.
    """
    spaces = environment_of(request)[1]
    agent = load_agents(
        request.agents[0], request.policies, request.policy_of, next(iter(request.vec_normalize), None), spaces,
        request.deterministic, predicting=True,
    )  # fmt: skip
    if request.video is None:
        return evaluate(agent, request.env_id, **_arguments(request, _Follower(bar, interrupts, 1)))
    arguments = _arguments(request, _Follower(bar, interrupts, 2))
    try:
        return evaluate(agent, request.env_id, video=request.video, video_of=request.video_of or None, **arguments)
    except ImportError as error:
        raise failure(f"--video: {error}") from None


def run_comparison(request: EvaluationRequest, bar: Output, interrupts: Interrupts) -> Comparison:
    """Compare the agents that were asked for; see `run_evaluation`."""
    spaces = environment_of(request)[1]
    agents = dict(zip(request.names(), request.loaded(spaces), strict=True))
    n_calls = 1 if "until_decided" in request.amount else len(agents)
    return compare(agents, request.env_id, **_arguments(request, _Follower(bar, interrupts, n_calls)))


def _arguments(request: EvaluationRequest, progress: _Follower) -> dict[str, Any]:
    # JSON readers take an integer of this length exactly.
    arguments = request.arguments(secrets.randbits(53) if request.seed is None else request.seed)
    if request.return_of:
        arguments["return_of"] = request.return_of
    if request.env_kwargs:
        arguments["env_kwargs"] = request.env_kwargs
    return {**request.amount, "success": request.success, "progress": progress, **arguments}


def execute(
    ctx: click.Context, carry_out: Callable[[EvaluationRequest, Output, Interrupts], Evaluation | Comparison],
    options: Mapping[str, Any], imports: Iterable[str], *, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Evaluate or compare, print what was found, write it, and exit.

    Args:
        ctx: The command's context.
        carry_out: `run_evaluation` or `run_comparison`.
        options: The options, by their names in `EvaluationRequest`.
        imports: Modules to import before.
        as_json: Whether to print what `--out` writes.
        quiet: Whether to print nothing on standard error but errors.
    """
    request = EvaluationRequest(**options)
    # No last line: another one says that the run is complete.
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing="evaluating")
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    begun = perf_counter()
    try:
        with stdout_reserved(), translated(), _options_named(), notices_shown(bar, quiet=quiet):
            for name in imports:
                import_named(name, f"--import {name}")
            with bar, ray_option_named() if request.engine == "ray" else nullcontext():
                found, problem = _found(carry_out, request, bar, interrupts)
            if request.out is not None:
                found.save(request.out)
            text = found.to_json().rstrip("\n") if as_json else str(found)
    except Interrupted:
        print_error("Interrupted: nothing was kept.")
        ctx.exit(interrupts.exit_code)
    if not (quiet or bar.shows_end) or interrupts.received is not None:
        print_error(_line(found, perf_counter() - begun, interrupted=interrupts.received is not None))
    if request.out is not None and not as_json:
        text += _written(ctx.meta[TYPED], request, found)
    if request.video is not None and problem is None and not as_json and interrupts.received is None:
        text += f"\nvideos in: {request.video}"
    print_result(text, kept=request.out)
    if problem is not None:
        with translated():
            raise problem
    ctx.exit(interrupts.exit_code)


def _written(typed: Sequence[str], request: EvaluationRequest, found: Evaluation | Comparison) -> str:
    """Return lines about the file; where it was interrupted, with the command that makes the whole file."""
    text = f"\nwritten to: {request.out}"
    if found.stopped != INTERRUPTED:
        return text
    seed = (found if isinstance(found, Evaluation) else found.evaluations[0]).seed
    drawn = () if request.seed is not None or seed is None else ("--seed", str(seed))
    return f"{text}\nto get all: {command_line(typed, *drawn)}"


def _found(
    carry_out: Callable[[EvaluationRequest, Output, Interrupts], Evaluation | Comparison],
    request: EvaluationRequest, bar: Output, interrupts: Interrupts,
) -> tuple[Evaluation | Comparison, VideoError | None]:  # fmt: skip
    """Return what was found, or what was found before a signal came; and why a video could not be made."""
    try:
        return carry_out(request, bar, interrupts), None
    except EvaluationInterruptedError as interrupt:
        return interrupt.found, None
    except VideoError as error:
        return error.found, error


@contextmanager
def _options_named() -> Iterator[None]:
    """Call arguments by the names of their options in errors about them."""
    try:
        yield
    except UsageError as error:
        named = _ARGUMENT.sub(lambda match: option_of(match[0]), str(error))
        raise UsageError(named) from error.__cause__


def _line(found: Evaluation | Comparison, seconds: float, *, interrupted: bool) -> str:
    evaluations = [found] if isinstance(found, Evaluation) else list(found.evaluations)
    n_trajectories, n_timesteps = (
        sum(map(total, evaluations)) for total in (len, lambda each: int(each.lengths.sum()))
    )
    line = f"{count(n_trajectories, 'trajectory')}, {count(n_timesteps, 'timestep')} in {duration(seconds)}"
    return f"Interrupted: what follows is of {line}." if interrupted else line
