"""The findings of a check: what was observed, the verdict, and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from streamsampler.checking.benchmark_report import BenchReport
from streamsampler.core.errors import (
    ActionError,
    DataError,
    Phase,
    SamplerError,
    UsageError,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.core.words import count
from streamsampler.workers.explain import traceback_of
from streamsampler.workers.known_wrappers import files_of, stateful_wrapper

Verdict = Literal["pass", "warning", "failure", "not checked"]
_ORDER: tuple[Verdict, ...] = "pass", "not checked", "warning", "failure"
_OF_AGENT = (Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.AGENT_RESET, Phase.ACTION)
_MAKING = "Pass the environment's id, or a function that makes it with everything it needs in each process"
_CLOSES = "Let close work at any time, also after an exception, and release everything"
_RAISED = {Phase.ENV_CONSTRUCTION: _MAKING}
_RAISED_ELSE = (
    'The call that needs the trajectory raises this error; if it is no bug, on_failure="drop" leaves such '
    "trajectories out (and biases the batch if failures depend on the state)"
)
OPTIONS_OF_ARGUMENTS = {
    'on_failure="drop"': "--on-failure drop",
    "max_episode_length=… of samplers": "--max-episode-length",
    "longer step_timeout": "longer --step-timeout",
    "with step_timeout": "with --step-timeout",
    "a longer time limit": "a longer --time-limit",
    "(max_restarts)": "(--max-restarts)",
}
"""Python arguments in advice, and the command line's options for them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a single check.

    Attributes:
        name: Subject of the check, such as "observations".
        verdict: "pass", "warning", "failure" or "not checked".
        what: The observed fact.
        advice: Remedy; empty if none is needed.
        details: A traceback, or the stacks of a hung process; empty otherwise.
    """

    name: str
    verdict: Verdict
    what: str
    advice: str = ""
    details: str = ""


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict of some findings; "pass" for no findings."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="pass")


def not_checked(name: str, why: str, advice: str = "") -> Finding:
    return Finding(name, "not checked", why, advice)


def finding_of_error(name: str, error: BaseException, step_timeout: float, doing: str = "") -> Finding:
    """Return a sampler's error as a failure."""
    details = traceback_of(error.__cause__)
    if not isinstance(error, WorkerError):
        return Finding(name, "failure", str(error), "", details)
    doing = doing or str(error.phase)
    whose = "agent" if error.phase in _OF_AGENT else "environment"
    if isinstance(error, WorkerHungError):
        return Finding(
            name, "failure", f"{doing} did not end: no progress for {step_timeout:g} s, and the process was killed",
            f"The stacks show where the {whose} waits. If it is only slow, check with a longer step_timeout; with "
            "step_timeout samplers kill and replace hung workers, without it they wait for ever", details,
        )  # fmt: skip
    if isinstance(error, WorkerDiedError):
        code = error.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return Finding(
            name, "failure", f"the process ended {how} while {doing}",
            f"Look for a crash in native code, for os._exit, and for too little memory, in the {whose}. Samplers "
            "replace such workers (max_restarts) and run their trajectories again, and die again if the crash depends "
            "on the seed", details,
        )  # fmt: skip
    original = getattr(error, "original", None)
    if isinstance(original, UsageError | DataError):
        what, _, advice = str(original).partition(". ")
        return Finding(name, "failure", what, advice or "Samplers refuse it", details)
    advice = _CLOSES if name == "close" else _RAISED.get(Phase(error.phase), _RAISED_ELSE)
    return Finding(name, "failure", f"{doing} raised {error.what.partition(': ')[2] or error.what}", advice, details)


_REFUSED = {
    "observations": "Return observations in the observation space, or change the space: samplers refuse these",
    "rewards": "Let step return a finite number",
    "infos": "Return a dict with strings for keys, {} for nothing",
    "actions": (
        "Clip it in the agent, or wrap the environment with gymnasium.wrappers.ClipAction: samplers refuse actions "
        "outside the action space"
    ),
}
_WORDS = {"observations": "observation", "rewards": "the reward", "infos": "info"}


def finding_of_refusal(error: SamplerError) -> Finding | None:
    """Return samplers' refusal of a value from a timestep as a finding; None for any other error."""
    original = getattr(error, "original", None)
    if not isinstance(original, DataError):
        return None
    named = (name for name, word in _WORDS.items() if word in str(original))
    name = "actions" if isinstance(original, ActionError) else next(named, "")
    return Finding(name, "failure", str(original), _REFUSED[name]) if name else None


def findings_of_anomalies(stats: Any, n_rewards: int) -> Iterator[Finding]:
    """Yield whether observations lie in their space, and whether rewards are finite numbers."""
    first, n = stats.first_anomaly, stats.anomalies - n_rewards
    what = "" if first is None else f"{first.what}, at timestep {first.timestep} of a trajectory"
    if n > 0:
        about = what if "observation" in what else "NaN, or outside of their space"
        yield Finding(
            "observations", "failure", f"{count(n, 'observation')}: {about}",
            "Widen the space to what the environment returns, or clip in the environment. Samplers record such "
            "observations as they are, and log a warning; networks and normalisation may rely on the bounds",
        )  # fmt: skip
    else:
        yield Finding("observations", "pass", "all are in the observation space, with its shape")
    if n_rewards:
        about = what if "reward" in what else f"{count(n_rewards, 'reward')}: NaN, or infinite"
        yield Finding("rewards", "failure", about, _REFUSED["rewards"])
    else:
        yield Finding("rewards", "pass", "all are finite numbers")


def finding_of_ends(
    lengths: list[int], n_terminated: int, endless: int | None, within: int, cut_at: int | None, time_limit: int | None
) -> Finding:
    """Return whether and how trajectories end.

    Args:
        lengths: Lengths of the trajectories that ended.
        n_terminated: Number of terminated trajectories.
        endless: Length of an unfinished trajectory; None if all ended.
        within: Timesteps within which a trajectory should end.
        cut_at: Timesteps after which samplers truncate; None for never.
        time_limit: Timesteps after which the environment truncates; None if unknown.
    """
    if endless is None:
        cut = 0 if n_terminated == len(lengths) else lengths.count(cut_at or 0)
        ends = {"terminated": n_terminated, "truncated": len(lengths) - n_terminated - cut}
        parts = [f"{n:,} {end}" for end, n in ends.items() if n > 0]
        parts += [f"{cut:,} cut after {cut_at:,} timesteps"] if cut else []
        return Finding("ends", "pass", f"{', '.join(parts)}; lengths from {min(lengths):,} to {max(lengths):,}")
    if time_limit is not None and time_limit >= endless:
        return Finding("ends", "pass", f"truncated after {time_limit:,} timesteps (not run to the end here)")
    advice = "Limit trajectories: max_episode_length=… of samplers, or gymnasium.wrappers.TimeLimit"
    if endless < within:
        return Finding(
            "ends", "warning",
            f"a trajectory did not end within {count(endless, 'timestep')}, and then the time was over; whether it "
            "ends is unknown", f"{advice}; or check with a longer time limit",
        )  # fmt: skip
    return Finding(
        "ends", "failure", f"a trajectory did not end within {count(endless, 'timestep')}",
        f"{advice}. Without a limit an obtaining call waits for a trajectory that never ends",
    )  # fmt: skip


def finding_of_wrappers(env: Any) -> Finding:
    """Return whether a wrapper is known to carry state between episodes, or to write files."""
    found = stateful_wrapper(env)
    files = files_of([env])
    if found:
        what, _, advice = found.partition(" Instead, ")
        return Finding("wrappers", "failure", what.rstrip("."), f"Instead, {advice}")
    if files:
        return Finding(
            "wrappers", "warning", f"a wrapper writes files: {', '.join(files)}",
            "Give each worker a place of its own: a function that makes the environment is given the worker's number "
            "if it has a parameter `worker_number`",
        )  # fmt: skip
    return Finding("wrappers", "pass", "no known wrapper that carries state from trajectory to trajectory")


def finding_of_obstacles(measured: BenchReport) -> Finding:
    """Return why no workers could be measured."""
    obstacle = measured.ways[0].obstacle
    if obstacle.startswith(("given up", "not measured")):
        return not_checked("workers", f"none could be measured: {obstacle}", "Check with a longer time limit")
    return Finding(
        "workers", "warning", f"none could be measured: {obstacle}",
        "Several run the environment at the same time: let them share no file, port or device",
    )  # fmt: skip
