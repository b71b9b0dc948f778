"""Check that a trajectory is a function of its seed: after another trajectory, and in another process."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from gymnasium.utils import env_checker

from streamsampler.checking.findings import Finding, not_checked
from streamsampler.checking.worker import TaskWorker
from streamsampler.data.words import count
from streamsampler.protocol.messages import CheckOrder, Phase
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.explain import traceback_of
from streamsampler.workers.purity import WAYS_OUT, BrokenOff, Limits, Trace, check_purity, n_slots_of, run_traced

_AGAIN = "the same seed, before and after another trajectory"


@dataclass(frozen=True)
class Traced:
    """What two runs of a trajectory showed.

    Attributes:
        culprit: "agent" or "environment", where a difference was first seen; empty where there was none.
        text: What was different.
        timesteps: How many timesteps were compared.
        traces: The trajectories that another process is to run, too; see `Traces`.
        unstable: What to warn of in infos; see `Checked`.
    """

    culprit: str
    text: str
    timesteps: int
    traces: tuple[Trace, ...]
    unstable: str = ""


@dataclass(frozen=True)
class Traces:
    """A task: run trajectories in some order, and return what passed between agent and environment.

    Attributes:
        seconds: After so long no further timestep begins; what is there is returned.
        timesteps: How many timesteps of each trajectory are run.
        numbers: The trajectories, in their order; of a vector environment the groups of them.
    """

    seconds: float
    timesteps: int
    numbers: tuple[int, ...]

    def __call__(self, worker: TaskWorker) -> tuple[Trace, ...]:
        """Return the traces by number, not in the order in which they were run."""
        until = perf_counter() + self.seconds
        seeds_of = TrajectorySeeds(worker.context.seed, worker.version).of
        limits = Limits(lambda: True, until, self.timesteps)
        n_slots = n_slots_of(worker.env)
        found = {number: Trace(f"trajectory {number * n_slots}") for number in self.numbers}
        try:
            for number, trace in found.items():
                indices = range(number * n_slots, (number + 1) * n_slots)
                with worker.by_inner() as inner:
                    run_traced(inner, worker.version, indices, seeds_of(indices), [trace], limits)
        except BrokenOff:
            pass
        return tuple(found[number] for number in sorted(found))


@dataclass(frozen=True)
class RunTwice:
    """A task: run a trajectory twice, before and after another one; and some for the comparison with another process.

    Attributes:
        seconds: For each of both; see `Traces`.
        timesteps: See `Traces`.
        numbers: See `Traces`.
    """

    seconds: float
    timesteps: int
    numbers: tuple[int, ...]

    def __call__(self, worker: TaskWorker) -> Traced:
        """Run the task."""
        worker.enter(Phase.CHECK)
        seeds_of = TrajectorySeeds(worker.context.seed, worker.version).of
        with worker.by_inner() as inner:
            outcome = check_purity(
                inner, CheckOrder(), worker.version, seeds_of,
                seconds=self.seconds, timesteps=self.timesteps, renew=worker.renewed,
            )  # fmt: skip
        if outcome.difference is not None:
            return Traced(outcome.difference.culprit, outcome.difference.text, outcome.compared_timesteps, ())
        return Traced(
            "", outcome.checked.finding, outcome.compared_timesteps,
            Traces(self.seconds, self.timesteps, self.numbers)(worker), outcome.checked.unstable,
        )  # fmt: skip


def finding_of_one_process(traced: Traced) -> Finding:
    """Return whether trajectories of one process depend on their seeds alone."""
    if traced.culprit:
        return Finding(
            "seed", "failure",
            f"a trajectory was run twice from {_AGAIN}, and {traced.text}: batches differ with the number of workers "
            "and with timing",
            WAYS_OUT[traced.culprit],
        )  # fmt: skip
    if not traced.timesteps:
        why = "see wrappers" if traced.text else "no trajectory could be run twice in the time that there is"
        return not_checked("seed", why, "" if traced.text else "Check with a longer time limit")
    if traced.unstable:
        return Finding("seed", "warning", traced.unstable, "Leave it out of the infos, or ignore it in batches")
    return Finding("seed", "pass", f"{count(traced.timesteps, 'timestep')} came out the same from {_AGAIN}")


def finding_of_two_processes(here: tuple[Trace, ...], there: tuple[Trace, ...]) -> Finding:
    """Return whether trajectories come out the same in another process, in another order."""
    name, compared = "processes", 0
    for one, other in zip(here, there, strict=True):
        trace = replace(one)
        difference = trace.difference(other)
        compared += trace.compared_timesteps
        if difference is not None:
            return Finding(
                name, "failure",
                f"in another process, started anew, and after other trajectories {difference.text}: batches differ "
                "from run to run",
                "It depends on something of the process or its past: the order of a set of strings (sort it), hash(), "
                "id(), the time, the process id, a class attribute, a file or a server that trajectories change; or "
                f"on a trajectory long before. {WAYS_OUT[difference.culprit]}",
            )  # fmt: skip
    if not compared:
        return not_checked(name, "no timestep could be compared in the time that there is")
    return Finding(name, "pass", f"{count(compared, 'timestep')} came out the same in another process and order")


# ----------------------------------------------------------------------
# Run Gymnasium's own checker, and make findings of its warnings and errors.
#
# All of them are warnings here: what samplers need is checked apart, and what they do not need may matter to others.


_NAME = "Gymnasium"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_NO_FAULT = (
    "minimum value is -infinity", "maximum value is infinity", "symmetric and normalized", "render mode",
    "is different from the unwrapped version", "Not able to test",
)  # fmt: skip
"""What it warns of, and is a matter of taste, or about what samplers do not use."""

_BUFFERS = "share an object"
_ADVICE = "Gymnasium's documentation of environments says what it expects: help(gymnasium.Env)"


@dataclass(frozen=True)
class RunGymnasiumChecker:
    """A task: run `gymnasium.utils.env_checker.check_env` without rendering: a dozen resets and steps."""

    def __call__(self, worker: TaskWorker) -> list[Finding]:
        """Run the task."""
        worker.enter(Phase.RESET)
        env: Any = worker.env.unwrapped
        shows = _Shows(worker)
        for name in ("reset", "step"):
            setattr(env, name, shows.progress_of(getattr(env, name)))
        found: list[Finding] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                env_checker.check_env(env, skip_render_check=True, skip_close_check=True)
            except Exception as error:
                found.append(_of_error(error))
        texts = dict.fromkeys(_plain(str(each.message)) for each in warned if issubclass(each.category, UserWarning))
        said = [text for text in texts if not any(part in text for part in _NO_FAULT)]
        found += [Finding(_NAME, "warning", f"its checker warns: {text}", _ADVICE) for text in said]
        return found or [Finding(_NAME, "pass", "its checker finds nothing")]


def _of_error(error: Exception) -> Finding:
    text = _plain(str(error)) or type(error).__name__
    if isinstance(error, AssertionError) and _BUFFERS in text:
        return Finding(_NAME, "warning", f"its checker finds: {text}", "See buffers: samplers copy what they record")
    if isinstance(error, AssertionError):
        return Finding(_NAME, "warning", f"its checker finds: {text}", _ADVICE)
    return Finding(
        _NAME, "warning", f"its checker ended with {type(error).__name__}: {text}", _ADVICE, traceback_of(error)
    )


def _plain(text: str) -> str:
    return " ".join(_COLOUR.sub("", text).replace("WARN: ", "", 1).split())


@dataclass
class _Shows:
    """Shows that the checker makes progress.

    Attributes:
        worker: Where.
        calls: How many calls there were.
    """

    worker: TaskWorker
    calls: int = 0

    def progress_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that shows each of its calls."""

        @functools.wraps(method)
        def shown(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            self.worker.progress(self.calls)
            return method(*arguments, **keywords)

        return shown
