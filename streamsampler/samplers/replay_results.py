"""Run a trajectory again, compare it with its record, and give reasons for a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamsampler.core.errors import RolloutError, UsageError
from streamsampler.core.fingerprints import agree
from streamsampler.core.serialization import loads
from streamsampler.core.words import count
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.differences import Difference, first_difference
from streamsampler.environments.filming import VideoFile, check_renders, check_video
from streamsampler.samplers.provenance import versions_of
from streamsampler.samplers.rerun import Origin, Rerun


@dataclass(frozen=True)
class Replay:
    """The result of a replay, printable.

    Attributes:
        trajectory: The trajectory of this run, a batch of size 1.
        recorded: The recorded trajectory, or None.
        difference: The first difference of the two; None if they are equal, or nothing was recorded.
        reasons: Possible reasons for the difference, most likely first.
        notes: Limits of the comparison, such as missing records.
        video: The video file, or None.
    """

    trajectory: TrajectoryBatch[Any, Any]
    recorded: TrajectoryBatch[Any, Any] | None = None
    difference: Difference | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    video: Path | None = None

    @property
    def same(self) -> bool | None:
        """Whether the trajectory equals the record, bit for bit; None without a record."""
        return None if self.recorded is None else self.difference is None

    def __str__(self) -> str:
        trajectory = self.trajectory
        so_far = "return so far" if self.recorded is not None and self.recorded.cut[0] else "return"
        lines = [
            f"trajectory {trajectory.indices[0]} of agent version {trajectory.agent_versions[0]}, seed "
            f"{trajectory.seeds[0]}: {count(trajectory.n_timesteps, 'timestep')}, {so_far} {trajectory.returns[0]:.6g}"
        ]
        if self.difference is not None:
            lines += [f"differs from the record, first in {self.difference}", "likely reasons:"]
            lines += [f"- {reason}" for reason in self.reasons]
        elif self.recorded is not None:
            lines.append("the same as recorded, bit for bit: observations, actions, rewards and its end")
        lines += [f"note: {note}" for note in self.notes]
        if self.video is not None:
            lines.append(f"video: {self.video}")
        return "\n".join(lines)


def replayed(
    ways: Sequence[Rerun], one: TrajectoryBatch[Any, Any] | None, origin: Origin, video: Path | None, *, actions: bool
) -> Replay:
    """Run a trajectory again, in the first of several possible ways that gives the record, and compare them."""

    def difference_of(trajectory: TrajectoryBatch[Any, Any]) -> Difference | None:
        return None if one is None else first_difference(one.unfiltered(), trajectory, prefix=origin.cut)

    def is_right(way: Rerun) -> bool:
        try:
            return not difference_of(way.run()[0])
        except RolloutError:
            return False  # perhaps in a trajectory that was never sampled

    rerun = ways[0]
    if video is not None:
        check_video(video)
        check_renders(loads(rerun.updates["env"]))
    if len(ways) > 1:
        rerun = next(filter(is_right, ways), ways[0])
    with ExitStack() as stack:
        take = None if video is None else stack.enter_context(VideoFile(video)).add
        try:
            runs = rerun.run(lambda first: difference_of(first) is not None, take)
        except RolloutError as error:
            if actions and isinstance(error.original, UsageError):
                what = "recorded actions can only be replayed in an environment that is not vectorised: pass env="
                raise UsageError(f"{what}. {error.original}") from error
            raise
    found = difference_of(runs[0])
    reasons = () if found is None else tuple(_reasons(found, runs, origin, actions=actions))
    return Replay(runs[0], one, found, reasons, origin.notes, video)


def _reasons(
    found: Difference, runs: Sequence[TrajectoryBatch[Any, Any]], origin: Origin, *, actions: bool
) -> Iterator[str]:
    agent = "" if actions else "the agent or "
    if (hidden := first_difference(*runs)) is not None:
        yield (
            f"{agent}the environment depends on more than its seed: two runs in a row differ, first in the "
            f"{hidden.what} of timestep {hidden.timestep}. It carries state from one trajectory to the next, or draws "
            "from an unseeded generator"
        )
    elsewhere = [bits for bits in sorted(origin.fingerprints) if not agree(bits, *runs[0].fingerprints)]
    if elsewhere:
        here = " and ".join(sorted(runs[0].fingerprints))
        yield (
            f"other kernels: NumPy or torch used {' and '.join(elsewhere)} for the record, and use {here} here. See "
            'streamsampler/docs/guarantees.md, "Other processors"'
        )
    here_now = versions_of(origin.versions or ())
    changed = [
        f"{name} {it} for the record, {here_now[name]} here"
        for name, it in (origin.versions or {}).items()
        if here_now.get(name, it) != it
    ]
    if changed:
        yield f"other versions: {', '.join(changed)}"
    yield from _usual_reasons(found, actions=actions)
    if found.is_rounding and not elsewhere:
        yield "the difference is within rounding errors: other kernels, or another number of threads"


def _usual_reasons(found: Difference, *, actions: bool) -> Iterator[str]:
    if found.what == "action" and not actions:
        yield (
            "another agent, or other parameters: everything before this action is the same, so the cause is not the "
            "environment"
        )
        yield "an agent with memory from before the trajectory, or a batch of another shape (VecWorker)"
    elif found.timestep == 0 and found.what == "observation":
        yield "another environment, other env_kwargs, or other reset options"
    else:
        yield "another environment, or another version of it: everything before is the same, including the actions"
        yield "an environment with hidden state, carried from one trajectory to the next"
