"""The report of a check: its findings, and the fastest workers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
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
from streamsampler.core.version import __version__
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


_WIDTH = 100
_VERDICT_WORDS = {"pass": "pass", "warning": "WARN", "failure": "FAIL", "not checked": "----"}
_LINES_OF_DETAILS = 12
_OPTIONS = {
    'on_failure="drop"': "--on-failure drop",
    "max_episode_length=… of samplers": "--max-episode-length",
    "longer step_timeout": "longer --step-timeout",
    "with step_timeout": "with --step-timeout",
    "a longer time limit": "a longer --time-limit",
    "(max_restarts)": "(--max-restarts)",
}
"""Python arguments in advice, and the command line's options for them."""


def _finding(finding: Finding, width: int, *, for_command: bool) -> list[str]:
    lines = _wrapped(f"  {_VERDICT_WORDS[finding.verdict]}  {finding.name:{width}}  ", finding.what)
    indent = " " * (width + 10)
    if advice := finding.advice:
        for argument, option in _OPTIONS.items() if for_command else ():
            advice = advice.replace(argument, option)
        lines += _wrapped(f"{indent}-> ", advice)
    if finding.verdict == "failure" and finding.details:
        shown = finding.details.splitlines()
        cut = ["…"] if len(shown) > _LINES_OF_DETAILS else []
        lines += [f"{indent}| {line}".rstrip() for line in [*cut, *shown[-_LINES_OF_DETAILS:]]]
    return lines


def _wrapped(first: str, text: str) -> list[str]:
    room = max(40, _WIDTH - len(first))
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{first}{parts[0]}".rstrip(), *(f"{' ' * len(first)}{part}" for part in parts[1:])]


@dataclass(frozen=True, repr=False, kw_only=True)
class CheckReport:
    """The result of `streamsampler.check`: `print(report)` shows a table, `report["ends"]` is a `Finding`.

    Attributes:
        environment: Name of the environment.
        agent: Name of the agent.
        findings: The findings, in the order of the checks.
        workers: Speed of several kinds of workers; None if it was not measured.
        n_cores: Number of usable cores.
        seed: Source of all seeds: `check(…, seed=report.seed)` runs the same trajectories.
        versions: The versions of Python and of libraries, by name.
    """

    environment: str
    agent: str
    findings: tuple[Finding, ...]
    workers: BenchReport | None
    n_cores: int
    seed: int
    versions: Mapping[str, str]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, name: str) -> Finding:
        """Return the finding of a name, the worst of several.

        Raises:
            KeyError: No finding has this name.
        """
        named = [finding for finding in self.findings if finding.name == name]
        if not named:
            raise KeyError(name)
        verdict = worst(named)
        return next(finding for finding in named if finding.verdict == verdict)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, for_command: bool = False) -> str:
        """Return this report as lines of text.

        Args:
            for_command: Whether to name options of the command line instead of Python arguments.
        """
        lines = [f"{self.environment} with {self.agent}"]
        width = max(len(finding.name) for finding in self.findings)
        for finding in self.findings:
            lines += _finding(finding, width, for_command=for_command)
        if self.workers is not None:
            lines += ["", *self.workers.table(for_command=for_command)]
        n_unknown = len(self._of("not checked"))
        amounts = [count(len(self.failures), "failure"), count(len(self.warnings), "warning")]
        amounts += [f"{n_unknown} not checked"] if n_unknown else []
        return "\n".join([*lines, "", f"{', '.join(amounts)}; seed {self.seed}"])

    def __repr__(self) -> str:
        return f"CheckReport({self.environment}: {len(self.failures)} failures, {len(self.warnings)} warnings)"

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that must be mended."""
        return self._of("failure")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that may be wrong, or slow."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """Whether no finding is a failure."""
        return not self.failures

    @property
    def recommendation(self) -> WayMeasured | None:
        """The recommended workers; None if none was measured."""
        return None if self.workers is None else self.workers.recommendation

    def _of(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == verdict)

    def to_json(self) -> str:
        """Return this report as JSON: all attributes, and "ok"."""
        facts = {
            "format": "streamsampler check",
            "format_version": 1,
            "package_version": __version__,
            "ok": self.ok,
            **asdict(self),
            "workers": None if self.workers is None else self.workers.facts(),
            "versions": dict(self.versions),
        }
        return json.dumps(facts, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
