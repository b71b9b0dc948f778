"""One run: from what was asked for to what came of it. Prints nothing."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium

from streamsampler.cli.current_directory import append_current_directory, warn_of_hidden
from streamsampler.cli.errors import Failure, traceback_of
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.models import load_any_agent
from streamsampler.cli.output import write
from streamsampler.cli.request import Outcome, Request
from streamsampler.cli.sharding import write_shards
from streamsampler.cli.tally import Tally
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.errors import SamplerError, UnknownEnvironmentError
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.progress import Snapshot
from streamsampler.samplers.progress_output import Output
from streamsampler.storage.space_codec import check_writable

__all__ = ["run"]


class _Follower:
    """Shows a call's progress, and sees to it that Ctrl-C no longer tears what is complete.

    The last snapshot waits for `finish`, so that the numbers at the end are the summary's.
    """

    def __init__(self, bar: Output, interrupts: Interrupts) -> None:
        self.interval = bar.interval
        self._bar = bar
        self._interrupts = interrupts
        self._last: Snapshot | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.complete:
            self._interrupts.shield()
            self._last = snapshot
        else:
            self._bar(snapshot)

    def finish(self, batch: TrajectoryBatch[Any, Any], seconds: float) -> None:
        """Show that all is there, and how long it took."""
        if self._last is not None:
            n_timesteps, n_trajectories = batch.n_timesteps, batch.n_trajectories
            self._bar(replace(self._last, seconds=seconds, timesteps=n_timesteps, trajectories=n_trajectories))


def run(request: Request, interrupts: Interrupts, bar: Output) -> Outcome:
    """Sample what was asked for, and write it.

    Args:
        request: What was asked for.
        interrupts: Entered; its first signal ends the sampling, and what is finished is kept.
        bar: Shows how far it is.

    Raises:
        SamplerError: As the samplers say.
        Failure: The environment cannot be made, or the file cannot be written.
        Interrupted: A signal came before anything was sampled, or a second one came later.
    """
    try:
        env = _env_update(request)
    except UnknownEnvironmentError as error:
        raise UnknownEnvironmentError(f"{error} Or import it with --import.") from error.__cause__
    spaces = _spaces(request.env_id, env)
    if request.out is not None:
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            check_writable(space, name)
    agent = load_any_agent(request.agent, request.vec_normalize, spaces)
    if request.shard_size is not None:
        return write_shards(request, agent, env, interrupts, bar)
    seed = secrets.randbits(53) if request.seed is None else request.seed  # as long as JSON readers take it exactly
    sampler = request.sampler(agent, env, seed)
    try:
        with sampler:
            return _sample(request, sampler, interrupts, bar)
    except (SamplerError, Failure) as error:
        error.add_note(f"The seed was {seed}; --seed {seed} samples the same again.")
        raise


def _env_update(request: Request) -> EnvUpdate:
    module, colon, _ = request.env_id.rpartition(":")
    if not colon:
        return as_env_update(request.env_id, env_kwargs=request.env_kwargs)
    append_current_directory()
    update = as_env_update(request.env_id, env_kwargs=request.env_kwargs)
    warn_of_hidden(module)
    return update


def _spaces(env_id: str, update: EnvUpdate) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Make an environment, here, to see its spaces."""
    try:
        env = update(None)
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
    except Exception as error:
        # Gymnasium's own errors say what to do; where they were raised says nothing more.
        details = "" if isinstance(error, gymnasium.error.Error) else traceback_of(error)
        message = f"the environment {env_id} cannot be made and closed: {type(error).__name__}: {error}"
        raise Failure(message, details=details) from None


def _sample(request: Request, sampler: Sampler, interrupts: Interrupts, bar: Output) -> Outcome:
    interrupted = False
    begun = perf_counter()
    batch: TrajectoryBatch[Any, Any] | None
    try:
        with bar:
            follower = _Follower(bar, interrupts)
            batch = request.amount.obtain(sampler, follower)
            seconds = perf_counter() - begun
            follower.finish(batch, seconds)
    except Interrupted:
        interrupted = True
        batch = sampler.salvage()
        seconds = perf_counter() - begun
    written = None
    if batch is not None and request.out is not None:
        wanted = {request.amount.unit: request.amount.total(sampler.n_workers)}
        write(batch, request.out, {**request.described(), "wanted": wanted, "interrupted": interrupted})
        written = request.out
    _close(sampler, interrupted, written)
    return Outcome(
        kept=Tally.of_batch(batch),
        interrupted=interrupted,
        seconds=seconds,
        n_workers=sampler.n_workers,
        seed=sampler.seed,
        stats=sampler.stats,
        written=written,
    )


def _close(sampler: Sampler, interrupted: bool, written: Path | None) -> None:
    try:
        sampler.close()
    except Interrupted:
        return  # a second signal: no environment is waited for any more, and what was written stays
    except SamplerError as error:
        if interrupted:
            return  # what a worker that was cut short says of its environment is beside the point
        if written is not None:
            error.add_note(f"All that was wanted had been written to {written} before.")
        raise
