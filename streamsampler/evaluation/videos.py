"""Film trajectories of an evaluation, which are chosen and run again when it is complete."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.serialization import dumps, loads
from streamsampler.core.words import count
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.videos import check_video
from streamsampler.environments.filming import check_renders
from streamsampler.environments.updates import as_env_update
from streamsampler.evaluation.agents import Row
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_worker import items_by_worker

VideoOf: TypeAlias = int | Literal["first", "best", "median", "worst"]
"""Which trajectory: an index, or the one with that return."""

DEFAULT_VIDEOS: tuple[VideoOf, ...] = ("first", "best", "median", "worst")
_log = logging.getLogger("streamsampler")


class VideoError(SamplerError):
    """A video could not be made; the evaluation is complete all the same.

    Attributes:
        found: The `Evaluation`.
    """

    def __init__(self, what: str, found: Any) -> None:
        super().__init__(what)
        self.found = found


@dataclass(frozen=True)
class Videos:
    """Which trajectories are filmed, and where the videos go.

    Attributes:
        folder: The folder.
        of: The trajectories.
    """

    folder: Path
    of: tuple[VideoOf, ...]

    @classmethod
    def asked(cls, folder: str | PathLike[str] | None, of: Any) -> Videos | None:
        """Return what the arguments of `evaluate` ask for; None where that is no video. The folder is made.

        Args:
            folder: The folder, or None.
            of: An index or a word, or several.

        Raises:
            UsageError: They cannot work.
            ImportError: The library is missing; says how to install it.
        """
        if folder is None:
            if of is not None:
                raise UsageError("video_of says what to film: give video, the folder for the videos, too")
            return None
        chosen = DEFAULT_VIDEOS if of is None else _listed(of)
        path = Path(folder)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{str(path)!r} is a file, and videos go into a folder")
        if not path.parent.is_dir():
            raise UsageError(f"there is no directory {str(path.parent)!r}")
        path.mkdir(exist_ok=True)
        check_video(path / "trial.mp4")
        return cls(path, chosen)

    def check(self, sampler: Sampler[Any, Any], env: Any, indices: range) -> None:
        """Check that the trajectories can be filmed, before the evaluation begins.

        Args:
            sampler: The sampler.
            env: What replaces its environment; None for nothing.
            indices: Those of the trajectories that there may be.

        Raises:
            UsageError: They cannot; says why.
        """
        for each in self.of:
            if isinstance(each, int) and each not in indices:
                raise UsageError(f"no video of trajectory {each}: there will be {indices[0]} to {indices[-1]}")
        if env is None:
            sampler.check_renders()
            return
        items = items_by_worker(env)
        # A copy, as workers have it: one that is there is not to be reset.
        check_renders(loads(dumps(as_env_update(env if items is None else items[0]), "the environment")))

    def film(self, sampler: Sampler[Any, Any], rows: Sequence[Row], progress: ProgressArgument) -> None:
        """Run the chosen trajectories again, and write their videos.

        Args:
            sampler: The sampler; its last call was the evaluation.
            rows: What the evaluation kept.
            progress: See `Sampler.obtain_samples`.

        Raises:
            SamplerError: A trajectory cannot be run again or filmed.
            OSError: A video cannot be written.
        """
        chosen = list({row.trajectory: row for row in self._rows(rows)}.values())
        done = [0, 0]
        with display(progress, len(chosen), "trajectories", note=lambda: "videos", doing="filming") as shown:
            for row in chosen:
                shown.update(lambda: (done[0], done[1]), complete=False)
                path = self.folder / video_name(row)
                trajectory = sampler.replay(sampler.agent_version, row.trajectory, video=path).trajectory
                _compare(row, trajectory, path)
                done[0] += row.length
                done[1] += 1
            shown.update(lambda: (done[0], done[1]), complete=True)

    def _rows(self, rows: Sequence[Row]) -> Iterable[Row]:
        known = [row for row in rows if not math.isnan(row.value)] or list(rows)
        ordered = sorted(known, key=lambda row: (row.value, row.trajectory))
        by_word = {
            "first": rows[0],
            "best": max(known, key=lambda row: (row.value, -row.trajectory)),
            "median": ordered[(len(ordered) - 1) // 2],
            "worst": ordered[0],
        }
        by_index = {row.trajectory: row for row in rows}
        for each in self.of:
            if isinstance(each, str):
                yield by_word[each]
            elif each in by_index:
                yield by_index[each]
            else:
                last = rows[-1].trajectory
                why = "it raised, and was left out" if each < last else f"the last one is {last}"
                _log.warning("there is no trajectory %s, and no video of it: %s", each, why)


def video_name(row: Row) -> str:
    """Return the name of a trajectory's video: its index, its seed and its return."""
    return f"trajectory-{row.trajectory:06}_seed-{row.seed}_return{row.value:+.6g}.mp4"


def _listed(of: Any) -> tuple[VideoOf, ...]:
    listed = tuple(of) if isinstance(of, Iterable) and not isinstance(of, str) else (of,)
    for each in listed:
        if each not in DEFAULT_VIDEOS and (isinstance(each, bool) or not isinstance(each, int)):
            raise UsageError(f"video_of has {', '.join(map(repr, DEFAULT_VIDEOS))} and indices, not {each!r}")
    if not listed:
        raise UsageError("video_of is empty: there is nothing to film")
    return listed


def _compare(row: Row, trajectory: TrajectoryBatch[Any, Any], path: Path) -> None:
    """Warn if what was filmed is not what was evaluated."""
    now = float(trajectory.raw_returns[0]), trajectory.n_timesteps, bool(trajectory.terminated[0])
    equal = now[0] == row.value or (math.isnan(now[0]) and math.isnan(row.value))
    if equal and now[1:] == (row.length, row.terminated):
        return
    _log.warning(
        "%s does not show what was evaluated: trajectory %d, run again, has a return of %.6g after %s, and had %.6g "
        "after %s. It depends on more than its seed: see the argument check of samplers",
        path, row.trajectory, now[0], count(now[1], "timestep"), row.value, count(row.length, "timestep"),
    )  # fmt: skip
