"""What one check found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamsampler.checking.values import BufferWatch, DrawWatch, InfoWatch, SpaceWatch, short_list
from streamsampler.data.words import count, duration
from streamsampler.errors import WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.explain import traceback_of
from streamsampler.workers.known_wrappers import files_of, stateful_wrapper

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


# ----------------------------------------------------------------------
# Make findings of what was seen of an environment.


def finding_of_observations(watch: SpaceWatch) -> Finding:
    """Return whether observations keep to their space."""
    name = "observations"
    if watch.refused is not None:
        return Finding(
            name, "failure", watch.refused,
            "Return what the observation space says, or change the space: samplers refuse these observations",
        )  # fmt: skip
    if watch.outside is not None:
        return Finding(
            name, "failure", f"{count(watch.n_outside, 'observation')}: {watch.outside}",
            "Widen the space to what the environment returns, or clip in the environment. Samplers record such "
            "observations as they are, and log a warning; networks and normalisation may rely on the bounds",
        )  # fmt: skip
    if watch.mistyped is not None:
        return Finding(
            name, "warning", watch.mistyped,
            "Return arrays of the space's dtype (np.asarray(observation, space.dtype)). Samplers convert them, "
            "which takes time, but the agent sees them as they are",
        )  # fmt: skip
    return Finding(name, "pass", "all are in the observation space, with its shape and dtype")


def finding_of_rewards(wrong: str) -> Finding:
    """Return whether rewards are numbers.

    Args:
        wrong: The first that is none; empty where there is none.
    """
    if wrong:
        return Finding("rewards", "failure", wrong, "Let step return a finite number")
    return Finding("rewards", "pass", "all are finite numbers")


def finding_of_infos(watch: InfoWatch, *, is_vector: bool) -> Finding:
    """Return whether infos keep their keys."""
    if watch.wrong is not None:
        return Finding("infos", "failure", watch.wrong, "Return a dict with strings for keys, {} for nothing")
    if sometimes := watch.sometimes:
        key, n = next(iter(sometimes.items()))
        return Finding(
            "infos", "warning",
            f"keys come and go: {short_list(sorted(sometimes))} ({key!r} is in {n:,} of {watch.timesteps:,} "
            "timesteps)",
            "Return the same keys in each timestep, with NaN or -1 where there is nothing to say. Where keys come "
            "and go, batches have a mask for each ('_key'), and need twice the memory",
        )  # fmt: skip
    if watch.changed is not None:
        return Finding(
            "infos", "warning", f"values change their kind: {watch.changed}",
            "Return values of one type, dtype and shape for a key: others are recorded as objects",
        )  # fmt: skip
    ends = f"; at the ends of trajectories {short_list(watch.at_ends)}, too" if watch.at_ends else ""
    what = "vector environments have infos of their own form" if is_vector else "the same keys each timestep"
    return Finding("infos", "pass", f"{what}{ends}")


def finding_of_endless(length: int, within: int, seconds: float, time_limit: int | None) -> Finding:
    """Return what it means that a trajectory did not end.

    Args:
        length: The timesteps that were run of it.
        within: The timesteps within which it was to end.
        seconds: The seconds in which it was to end.
        time_limit: The timesteps after which the environment truncates; None where it does not say.
    """
    if time_limit is not None and time_limit > length:
        return Finding("ends", "pass", f"truncated after {time_limit:,} timesteps (not run to the end here)")
    if length < within:
        return Finding(
            "ends", "warning",
            f"a trajectory did not end within {count(length, 'timestep')}, which took "
            f"{duration(seconds)}; whether it ends is not known",
            "Limit trajectories: max_episode_length=… of samplers, or gymnasium.wrappers.TimeLimit; or check "
            "with a longer time limit",
        )  # fmt: skip
    return Finding(
        "ends", "failure", f"a trajectory did not end within {count(length, 'timestep')}",
        "Limit trajectories: max_episode_length=… of samplers, or gymnasium.wrappers.TimeLimit. Without a "
        "limit an obtaining call waits for a trajectory that never ends",
    )  # fmt: skip


def finding_of_ends(ended: Mapping[str, int], lengths: Sequence[int], limit: int | None) -> Finding:
    """Return how trajectories end.

    Args:
        ended: How many were terminated and truncated by the environment.
        lengths: The lengths of all.
        limit: The timesteps after which the others were cut.
    """
    ends = ", ".join(f"{n:,} {end}" for end, n in ended.items() if n)
    cut = len(lengths) - sum(ended.values())
    ends = ", ".join(filter(None, (ends, f"{cut:,} cut after {limit:,} timesteps" if cut else "")))
    spread = f"lengths from {min(lengths):,} to {max(lengths):,}" if lengths else ""
    return Finding("ends", "pass", "; ".join(filter(None, (ends, spread))))


def finding_of_buffers(watch: BufferWatch) -> Finding:
    """Return whether observations are overwritten."""
    if watch.reused:
        return Finding(
            "buffers", "warning",
            f"an observation that was handed out before was overwritten, {watch.reused}",
            "Samplers copy observations when they record them, so batches are right. Code of your own that keeps "
            "observations, in agents, wrappers or loops, must copy them; or let the environment return new arrays",
        )  # fmt: skip
    return Finding("buffers", "pass", "observations are not overwritten later")


def finding_of_draws(watch: DrawWatch) -> Finding:
    """Return whether the environment draws from global generators."""
    if watch.draws:
        return Finding(
            "generators", "warning", str(watch),
            "Samplers seed these for each trajectory, but VecWorker in lanes refuses draws from them: draw from "
            "self.np_random",
        )  # fmt: skip
    return Finding("generators", "pass", "nothing is drawn from global generators")


def finding_of_wrappers(env: Any) -> Finding:
    """Return whether a wrapper is known to carry something, or to write files."""
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
    return Finding("wrappers", "pass", "none that is known to carry something from trajectory to trajectory")
