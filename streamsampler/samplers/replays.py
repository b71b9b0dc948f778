"""Compare a trajectory that was run again with what was recorded, and say why the two may differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.differences import Difference, first_difference
from streamsampler.data.words import count
from streamsampler.environments.filming import check_renders
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.fingerprints import agree
from streamsampler.samplers.rerun import Rerun
from streamsampler.samplers.versions import versions_of
from streamsampler.serialization import loads
from streamsampler.storage.videos import VideoFile, check_video

__all__ = ["Origin", "Replay", "replayed"]


@dataclass(frozen=True)
class Replay:
    """What came of running a trajectory again. It can be printed.

    Attributes:
        trajectory: What was run now, a batch of one trajectory.
        recorded: What it was compared with; None for nothing.
        difference: Where the two differ first; None if they do not, or nothing was recorded.
        reasons: Why they may differ, the likeliest first.
        notes: What else is to be known, such as that something was not recorded.
        video: The video file; None where there is none.
    """

    trajectory: TrajectoryBatch[Any, Any]
    recorded: TrajectoryBatch[Any, Any] | None = None
    difference: Difference | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    video: Path | None = None

    @property
    def same(self) -> bool | None:
        """Whether the trajectory is the recorded one, bit for bit; None where nothing was recorded."""
        return None if self.recorded is None else self.difference is None

    def __str__(self) -> str:
        trajectory = self.trajectory
        so_far = "return so far" if self.recorded is not None and self.recorded.cut[0] else "return"
        lines = [
            f"trajectory {trajectory.indices[0]} of agent version {trajectory.agent_versions[0]}, seed "
            f"{trajectory.seeds[0]}: {count(trajectory.n_timesteps, 'timestep')}, {so_far} {trajectory.returns[0]:.6g}"
        ]
        if self.difference is not None:
            lines += [f"differs from what was recorded, first in {self.difference}", "likely reasons:"]
            lines += [f"- {reason}" for reason in self.reasons]
        elif self.recorded is not None:
            what = "observations, actions, rewards and its end"
            lines.append(f"the same as recorded, bit for bit: {what}")
        lines += [f"note: {note}" for note in self.notes]
        if self.video is not None:
            lines.append(f"video: {self.video}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Origin:
    """What is known of the run that a trajectory was recorded in.

    Attributes:
        fingerprints: How its workers computed.
        versions: The versions of its libraries.
        notes: What is not known of it.
        cut: Whether what was recorded may have been cut, and the trajectory have gone on.
        actions_only: Whether the recorded actions are replayed, without the agent.
    """

    fingerprints: Collection[str] = ()
    versions: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    cut: bool = False
    actions_only: bool = False


def replayed(
    rerun: Rerun,
    recorded: TrajectoryBatch[Any, Any] | None,
    origin: Origin,
    video: Path | None = None,
    alternative: Rerun | None = None,
) -> Replay:
    """Run a trajectory again, and compare it.

    Args:
        rerun: What it takes.
        recorded: The trajectory as it was recorded, a batch of one; None to compare nothing.
        origin: What is known of that.
        video: A file for a video of it; None for none.
        alternative: What it took, if `rerun` gives another trajectory: it is not known which; None where it is.

    Raises:
        RolloutError: The agent or the environment raised.
        UsageError: The environment cannot be filmed, or the file cannot be written.
        ImportError: The library for videos is missing; says how to install it.
        OSError: The video cannot be written.
    """

    def difference_of(trajectory: TrajectoryBatch[Any, Any]) -> Difference | None:
        return None if recorded is None else first_difference(recorded.unfiltered(), trajectory, prefix=origin.cut)

    if video is not None:
        check_video(video)
        check_renders(loads(rerun.updates["env"]))
    if alternative is not None and difference_of(rerun.run()[0]) and not difference_of(alternative.run()[0]):
        rerun = alternative
    with ExitStack() as stack:
        take = None
        if video is not None:
            take = stack.enter_context(VideoFile(video)).add
        try:
            runs = rerun.run(lambda first: difference_of(first) is not None, take)
        except RolloutError as error:
            if origin.actions_only and isinstance(error.original, UsageError):
                what = "recorded actions are replayed in one environment that is not vectorised: pass env="
                raise UsageError(f"{what}. {error.original}") from error
            raise
    found = Replay(runs[0], recorded, difference_of(runs[0]), notes=origin.notes, video=video)
    if found.difference is None:
        return found
    return replace(found, reasons=tuple(_reasons(found.difference, runs, origin)))


def _reasons(found: Difference, runs: list[TrajectoryBatch[Any, Any]], origin: Origin) -> Iterator[str]:
    """Yield why a trajectory may differ, what is known for sure first."""
    agent = "" if origin.actions_only else "the agent or "
    if (hidden := first_difference(*runs)) is not None:
        yield (
            f"{agent}the environment is no function of its seed: run twice in a row it differs from itself, first in "
            f"the {hidden.what} of timestep {hidden.timestep}. It keeps something from one trajectory to the next, or "
            "draws from a generator that is not seeded"
        )
    elsewhere = [bits for bits in sorted(origin.fingerprints) if not agree(bits, *runs[0].fingerprints)]
    if elsewhere:
        here = " and ".join(sorted(runs[0].fingerprints))
        yield (
            f"other kernels: it was recorded where NumPy or torch compute otherwise ({' and '.join(elsewhere)}; here "
            f'{here}). See "Other processors" in the guide, streamsampler.samplers'
        )
    if origin.versions is not None and (changed := list(_changed(origin.versions))):
        yield f"other versions: {', '.join(changed)}"
    yield from _usual_reasons(found, actions_only=origin.actions_only)
    if found.is_rounding and not elsewhere:
        yield "the two are so close that they may be rounded in two ways: other kernels, another number of threads"


def _changed(versions: Mapping[str, str]) -> Iterator[str]:
    here = versions_of(versions)
    for name, version in versions.items():
        if name in here and here[name] != version:
            yield f"{name} {version} there, {here[name]} here"


def _usual_reasons(found: Difference, *, actions_only: bool) -> Iterator[str]:
    """Yield what usually makes such a difference first."""
    if found.what == "action" and not actions_only:
        yield (
            "another agent, or other parameters: up to this action all was the same, so the environment is not to blame"
        )
        yield "an agent that remembers something from before the trajectory, or a batch of another shape (VecWorker)"
    elif found.timestep == 0 and found.what == "observation":
        yield "another environment, other arguments of it (env_kwargs), or other reset options"
    else:
        yield "another environment, or another version of it: up to here all was the same, the actions too"
        yield "an environment with a hidden state, which carries something from one trajectory to the next"
