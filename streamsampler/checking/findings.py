"""What one check found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from streamsampler.errors import WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.tracebacks import traceback_of

__all__ = ["Finding", "Verdict", "finding_of_error", "not_checked", "worst"]

Verdict = Literal["pass", "warning", "failure", "not checked"]
_ORDER: tuple[Verdict, ...] = "pass", "not checked", "warning", "failure"

_OF_AGENT = (Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.AGENT_RESET, Phase.ACTION)
_MAKING = "Pass the id of an environment, or a function that makes it with all that it needs in each process"
_RAISED = {
    Phase.ENV_CONSTRUCTION: _MAKING,
    Phase.CLOSE: "Let close be called once at any time, also after an exception, and give everything back",
}
_RAISED_ELSE = (
    'The call that needs the trajectory raises this error; where it is no bug, on_failure="drop" leaves such '
    "trajectories out (what is left is biased where failures depend on the state)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was checked, such as "observations".
        verdict: "pass", "warning", "failure" or "not checked".
        what: What was found.
        advice: What to do; empty where there is nothing to do.
        details: A traceback, or the stacks of a process that hung; empty where there is none.
    """

    name: str
    verdict: Verdict
    what: str
    advice: str = ""
    details: str = ""


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict of some findings; "pass" where there are none."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="pass")


def not_checked(name: str, why: str, advice: str = "") -> Finding:
    """Return that something was not checked."""
    return Finding(name, "not checked", why, advice)


def finding_of_error(name: str, error: BaseException, step_timeout: float) -> Finding:
    """Return the failure that an error of a sampler stands for.

    Args:
        name: What was checked.
        error: The error.
        step_timeout: How many seconds a reset, an action or a timestep was given.
    """
    details = traceback_of(error.__cause__)
    if not isinstance(error, WorkerError):
        return Finding(name, "failure", str(error), "", details)
    doing = str(error.phase)
    whose = "agent" if error.phase in _OF_AGENT else "environment"
    if isinstance(error, WorkerHungError):
        return Finding(
            name, "failure", f"{doing} did not end: no progress for {step_timeout:g} s, and the process was killed",
            f"The stacks show where the {whose} waits. Where it only takes long, check with a longer step_timeout; "
            "with step_timeout samplers kill and replace workers that hang, without it they wait for ever", details,
        )  # fmt: skip
    if isinstance(error, WorkerDiedError):
        code = error.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return Finding(
            name, "failure", f"the process ended {how} while {doing}",
            f"Look for a crash in native code, for os._exit, and for too little memory, in the {whose}. Samplers "
            "replace such workers (max_restarts) and run their trajectories again, where they die again if the seed "
            "decides about it", details,
        )  # fmt: skip
    summary = error.what.partition(": ")[2] or error.what
    advice = _RAISED.get(Phase(error.phase), _RAISED_ELSE)
    return Finding(name, "failure", f"{doing} raised {summary}", advice, details)
