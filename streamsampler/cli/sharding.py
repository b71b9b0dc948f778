"""One run that writes shards: as much as the disk holds, and after any end another run can go on."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from streamsampler.cli.errors import Failure
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.request import Outcome, Request
from streamsampler.cli.tally import Tally
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.errors import DamagedShardError, SamplerError, StorageError
from streamsampler.samplers.progress import Snapshot
from streamsampler.samplers.progress_output import Output
from streamsampler.samplers.streaming import Stream
from streamsampler.scheduling.quotas import Target
from streamsampler.storage.manifest import Manifest
from streamsampler.storage.shards import ShardWriter

__all__ = ["write_shards"]

_log = logging.getLogger("streamsampler")


class ShardedRun:
    """A run, from what is in the folder to all of it.

    Args:
        request: What was asked for.
        writer: The folder.
        interrupts: Entered; its first signal ends the sampling.
        bar: Shows how far it is.
    """

    def __init__(self, request: Request, writer: ShardWriter, interrupts: Interrupts, bar: Output) -> None:
        assert request.shard_size is not None
        self._request = request
        self._writer = writer
        self._interrupts = interrupts
        self._bar = bar
        self._size = request.shard_size
        self._n_workers = request.n_workers
        self._wanted = Target(request.amount.unit, request.amount.total(self._n_workers))
        self._stats = Stats.of(self._n_workers)
        self._tally = Tally()
        self._earlier = self._before_stream = writer.intact
        self._begun = perf_counter()
        self._seconds = self._shown = 0.0
        self._most = 0
        self.interrupted = False

    def begin(self) -> int:
        """Begin the folder, or check that it can be gone on with; returns the seed.

        Raises:
            UsageError: The folder is to hold something else.
            Failure: The manifest cannot be written.
        """
        there = self._writer.manifest
        seed = self._request.seed
        if seed is None:
            seed = secrets.randbits(53) if there is None else there.seed
        with _writing(self._request.out):
            self._writer.begin(
                Manifest(
                    seed=seed,
                    shard_size=self._size,
                    wanted={self._wanted.unit: self._wanted.number},
                    provenance=self._request.described(),
                )
            )
        return seed

    @property
    def _missing(self) -> int:
        return self._wanted.missing(self._writer.n_trajectories, self._writer.n_timesteps)

    def sample(self, agent: Any, env: Any, seed: int) -> None:
        """Write what is missing.

        Raises:
            SamplerError: As the samplers say, or a shard that is there is damaged.
            Failure: A shard cannot be written.
            Interrupted: A second signal came.
        """
        try:
            for lengths, returns in self._writer.contents():
                self._tally += Tally.of(lengths, returns)
            if self._writer.damaged or self._missing:
                self._sample(agent, env, seed)
            self._interrupts.shield()
            with _writing(self._request.out):
                self._writer.finish()
        except Interrupted:
            self.interrupted = True

    def _sample(self, agent: Any, env: Any, seed: int) -> None:
        self._begun = perf_counter()
        try:
            with self._bar:
                self._show()
                for first, stop in _ranges(sorted(self._writer.damaged)):
                    with self._stream(agent, env, seed, first) as stream:
                        for number in range(first, stop):
                            batch = self._take(stream, *self._writer.before(number)[1:])
                            self._keep(batch, partial(self._writer.replace, number))
                if self._missing:
                    with self._stream(agent, env, seed, self._writer.n_shards) as stream:
                        while self._missing:
                            batch = self._take(stream, self._writer.n_trajectories, self._writer.n_timesteps)
                            self._keep(batch, self._writer.write)
                        self._interrupts.shield()
                self._show(complete=True)
        finally:
            self._seconds = self._seconds or perf_counter() - self._begun

    @contextlib.contextmanager
    def _stream(self, agent: Any, env: Any, seed: int, number: int) -> Iterator[Stream]:
        """Yield what shards are cut from, from shard `number` on.

        From a sampler of its own each time: the first stream of a sampler is the one that all shards are from.
        """
        self._before_stream = self._tally.trajectories, self._tally.timesteps
        sampler = self._request.sampler(agent, env, seed)
        try:
            with sampler, sampler.stream(first_trajectory=self._writer.before(number)[0]) as stream:
                yield stream
        finally:
            self._stats.merge(sampler.stats)

    def _take(self, stream: Stream, n_trajectories: int, n_timesteps: int) -> TrajectoryBatch:
        """Return the shard that follows on so many trajectories and timesteps."""
        quota = self._wanted.next_quota(self._size, n_trajectories, n_timesteps)
        return stream.take(quota, self._watch if self._bar.visible else None, self._bar.interval)

    def _keep(self, batch: TrajectoryBatch, write: Callable[[TrajectoryBatch], None]) -> None:
        with _writing(self._request.out):
            write(batch)
        self._tally += Tally.of_batch(batch)

    def _watch(self, timesteps: int, trajectories: int) -> None:
        now = perf_counter()
        if now - self._shown >= (self._bar.interval or 0.0):
            self._shown = now
            # Between a worker's report and its next ticket its word is zero: what was shown once stays shown.
            self._most = max(self._most, timesteps + self._before_stream[1])
            self._show(self._most - self._before_stream[1], trajectories)

    def _show(self, timesteps: int = 0, trajectories: int = 0, *, complete: bool = False) -> None:
        seconds = perf_counter() - self._begun
        if complete:
            self._seconds = seconds  # so that the summary says the same
            trajectories, timesteps = self._tally.trajectories, self._tally.timesteps
        else:
            trajectories, timesteps = trajectories + self._before_stream[0], timesteps + self._before_stream[1]
        self._bar(
            Snapshot(
                timesteps,
                trajectories,
                self._wanted.number,
                self._wanted.unit,
                seconds,
                complete,
                self._earlier[1],
                self._earlier[0],
            )
        )

    def outcome(self, seed: int) -> Outcome:
        """Return what came of it."""
        return Outcome(
            kept=self._tally,
            earlier_timesteps=self._earlier[1],
            interrupted=self.interrupted,
            seconds=self._seconds,
            n_workers=self._n_workers,
            seed=seed,
            stats=self._stats,
            written=self._request.out,
            shards=self._writer.n_shards,
        )


def write_shards(request: Request, agent: Any, env: Any, interrupts: Interrupts, bar: Output) -> Outcome:
    """Write the shards that are missing.

    Args:
        request: What was asked for; with a folder and the size of its shards.
        agent: The agent.
        env: The environment.
        interrupts: Entered; its first signal ends the sampling, and the shards that are complete are kept.
        bar: Shows how far it is.

    Raises:
        SamplerError: As the samplers say; the folder holds something else, is being written, or is damaged.
        Failure: A shard cannot be written.
        Interrupted: A signal came before anything was sampled, or a second one came later.
    """
    assert request.out is not None
    with _writing(request.out, but=StorageError), _repairable(request):
        writer = ShardWriter(request.out, resume=request.resume, repair=request.repair)
    with writer, _repairable(request):
        run = ShardedRun(request, writer, interrupts, bar)
        seed = run.begin()
        for name, reason in writer.removed.items():
            _log.warning("%s was removed, and is sampled again where it is wanted: %s", name, reason)
        for reason in writer.damaged.values():
            _log.warning("sampled again: %s", reason)
        try:
            run.sample(agent, env, seed)
        except DamagedShardError:
            raise  # going on with it as it is fails again
        except (SamplerError, Failure) as error:
            error.add_note(f"What is complete is in {request.out}. To go on: {request.command_to_resume}")
            raise
        return run.outcome(seed)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return where consecutive ones of rising numbers begin, and the number that follows them."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == number else number
        ranges.append((first, number + 1))
    return ranges


@contextlib.contextmanager
def _repairable(request: Request) -> Iterator[None]:
    """Say how a damaged shard is sampled again."""
    try:
        yield
    except DamagedShardError as error:
        error.add_note(f"To sample damaged and missing shards again: {request.command_to_repair}")
        raise


@contextlib.contextmanager
def _writing(path: Path | None, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn what forbids writing into the command's failure.

    Args:
        path: What is written.
        but: What is let through.

    Raises:
        Failure: It cannot be written.
    """
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise Failure(f"{path} could not be written: {error.strerror or error}") from None
    except StorageError as error:
        raise Failure(f"{path} could not be written: {error}") from None
