"""Run a request: sample, write, and return what came of it. Prints nothing but progress."""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

from streamsampler.cli.environments import environment_of
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.models import load_agents
from streamsampler.cli.request import Outcome, Request
from streamsampler.cli.tally import Tally
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.errors import DamagedShardError, SamplerError, UnwritableInfoError, UsageError
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.progress import Output, Snapshot
from streamsampler.samplers.sharded import sample_to_folder
from streamsampler.storage.codec import check_writable
from streamsampler.storage.manifest import MANIFEST, read_manifest
from streamsampler.version import __version__

_OF_THE_SAMPLER = "worker", "worker_class", "worker_args", "versions"
"""What a file has of the sampler's provenance; the options say the rest."""


class _Follower:
    """Shows a call's progress, and keeps Ctrl-C from cutting short what is complete.

    The last snapshot is shown by `finish`, so that the numbers at the end are the summary's.

    Attributes:
        interval: Seconds between two snapshots.
        earlier_timesteps: How many timesteps were there when the call began; None before.
    """

    def __init__(self, bar: Output, interrupts: Interrupts) -> None:
        self.interval = bar.interval
        self.earlier_timesteps: int | None = None
        self._bar = bar
        self._interrupts = interrupts
        self._begun = perf_counter()
        self._last: Snapshot | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        if self.earlier_timesteps is None:
            self.earlier_timesteps = snapshot.earlier_timesteps
            self._begun = perf_counter()
        if snapshot.complete:
            self._interrupts.shield()
            self._last = snapshot
        else:
            self._bar(snapshot)

    @property
    def seconds(self) -> float:
        """The seconds since the call began; 0 if there was nothing to do."""
        return 0.0 if self.earlier_timesteps is None else perf_counter() - self._begun

    def finish(self, kept: Tally, seconds: float) -> None:
        """Show that the call is complete, and how long it took."""
        if self._last is not None:
            self._bar(replace(self._last, seconds=seconds, timesteps=kept.timesteps, trajectories=kept.trajectories))


def run(request: Request, interrupts: Interrupts, bar: Output) -> Outcome:
    """Sample what was asked for, and write it.

    Args:
        request: What was asked for.
        interrupts: Entered; its first signal ends the sampling, and what is finished is kept.
        bar: Shows the progress.

    Raises:
        SamplerError: As the samplers say.
        click.ClickException: The environment cannot be made.
        OSError: The file or folder cannot be written.
        Interrupted: A signal came before anything was sampled, or a second one came later.
    """
    env, spaces = environment_of(request)
    if request.out is not None:
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            check_writable(space, name)
    agent = load_agents(
        request.agent, request.policies, request.policy_of, request.vec_normalize, spaces, request.deterministic
    )
    seed = _seed(request)
    sampler = request.sampler(agent, env, seed)
    with sampler:
        with _way_out_named(request):
            outcome = (_to_file if request.shard_size is None else _to_folder)(
                request, sampler, _Follower(bar, interrupts), bar
            )
        _close(sampler, outcome)
    return outcome


@contextlib.contextmanager
def _way_out_named(request: Request) -> Iterator[None]:
    """Raise what says which option leaves out the infos that no file can hold."""
    try:
        yield
    except UnwritableInfoError as error:
        names = ",".join(sorted(request.kept_infos.without.union(error.names)))
        advice = f"--without-infos {shlex.quote(names)} leaves {'it' if ',' not in names else 'them'} out"
        if request.shard_size is not None and request.out is not None and (request.out / MANIFEST).exists():
            advice += f", in another folder than {request.out}, whose shards have other infos"
        told = UnwritableInfoError(f"{error.problem}. {advice}")
        told.__notes__ = getattr(error, "__notes__", [])
        raise told from None


def _seed(request: Request) -> int:
    if request.seed is not None:
        return request.seed
    if request.resume and request.out is not None and (request.out / MANIFEST).exists():
        return read_manifest(request.out).seed
    if request.amount.part is not None:
        raise UsageError("--part needs --seed, the same for all parts: each would draw one of its own")
    return secrets.randbits(53)  # JSON readers take an integer of this length exactly


def _to_file(request: Request, sampler: Sampler, follower: _Follower, bar: Output) -> Outcome:
    interrupted = False
    batch: TrajectoryBatch[Any, Any] | None
    try:
        try:
            with bar, sampler.writable_infos(request.kept_infos) if request.out else nullcontext():
                batch = request.amount.obtain(sampler, follower)
                seconds = follower.seconds
                kept = Tally.of_batch(batch)
                follower.finish(kept, seconds)
        except Interrupted:
            interrupted = True
            batch = sampler.salvage()
            seconds = follower.seconds
            kept = Tally.of_batch(batch)
        written = None if batch is None else request.out
        if batch is not None and written is not None:
            wanted = {request.amount.unit: request.amount.total(sampler.n_workers)}
            own = {name: value for name, value in sampler.provenance().items() if name in _OF_THE_SAMPLER}
            described = {"library": f"streamsampler {__version__}", **request.described(), **own, "wanted": wanted}
            prints = sorted(batch.fingerprints)
            batch.save(written, provenance={**described, "interrupted": interrupted, "fingerprints": prints})
    except (SamplerError, OSError) as error:
        error.add_note(f"The seed was {sampler.seed}; --seed {sampler.seed} samples the same again.")
        raise
    amount, policies = request.amount, Tally.of_policies(batch)
    return Outcome.of(
        sampler, amount, kept=kept, seconds=seconds, interrupted=interrupted, written=written, policies=policies
    )


def _to_folder(request: Request, sampler: Sampler, follower: _Follower, bar: Output) -> Outcome:
    assert request.out is not None
    assert request.shard_size is not None
    amount = request.amount.total(sampler.n_workers)
    by_timesteps = request.amount.unit == "timesteps"
    interrupted = False
    try:
        with bar:
            sample_to_folder(
                sampler,
                request.out,
                num_samples=amount if by_timesteps else None,
                n_trajectories=None if by_timesteps else amount,
                shard_size=request.shard_size,
                part=request.amount.part,
                resume=request.resume,
                provenance=request.described(),
                infos=request.kept_infos,
                progress=follower,
            )
            seconds = follower.seconds
            kept, n_shards = Tally.of_folder(request.out)
            follower.finish(kept, seconds)
    except Interrupted:
        if follower.earlier_timesteps is None:
            raise
        interrupted = True
        seconds = follower.seconds
        kept, n_shards = Tally.of_folder(request.out)
    except (DamagedShardError, UnwritableInfoError):
        raise  # the same again would end the same way
    except (SamplerError, OSError) as error:
        if follower.earlier_timesteps is not None:
            error.add_note(f"What is complete is in {request.out}. To go on: {request.command_to_resume}")
        raise
    earlier = kept.timesteps if follower.earlier_timesteps is None else follower.earlier_timesteps
    return Outcome.of(
        sampler, request.amount, kept=kept, seconds=seconds, interrupted=interrupted, written=request.out,
        shards=n_shards, earlier_timesteps=earlier,
    )  # fmt: skip


def _close(sampler: Sampler, outcome: Outcome) -> None:
    try:
        sampler.close()
    except Interrupted:
        return  # at a second signal the environments are not waited for; what was written stays
    except SamplerError as error:
        if outcome.interrupted:
            return  # a worker that was interrupted may fail to close its environment
        if outcome.written is not None:
            error.add_note(f"Everything had been written to {outcome.written} before.")
        raise
