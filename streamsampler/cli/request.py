"""The request of the command line, and the outcome of its run."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from streamsampler.cli.models import is_model_file
from streamsampler.cli.options import option_of
from streamsampler.cli.output import storable
from streamsampler.cli.tally import Tally
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.registry import RAY, EngineName, refuse_lacking
from streamsampler.errors import CheckMode, SamplerError, UsageError
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.local import LocalSampler
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.samplers.ray import RaySampler
from streamsampler.scheduling.restarts import OnFailure, Quota
from streamsampler.scheduling.result import Order
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.vec.worker import VecWorker

__all__ = ["Amount", "Outcome", "Request"]

_IN_ALL = 10
"""The quota of losses in a run, as a multiple of the quota within a minute."""

_OF_ALL_SAMPLERS = ("max_episode_length", "order", "on_failure", "worker_threads")
_NEED_PROCESSES = ("engine", "start_method", "step_timeout", "max_worker_memory", "ray_address")
"""Options that are called as the samplers' arguments."""


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; the name itself where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return str(path)


@dataclass(frozen=True)
class Amount:
    """How much to sample.

    Attributes:
        kind: "num_samples", "num_trajectories" or "trajectories_per_worker".
        number: How many.
    """

    kind: str
    number: int

    @property
    def unit(self) -> str:
        """What is counted."""
        return "timesteps" if self.kind == "num_samples" else "trajectories"

    def total(self, n_workers: int) -> int:
        """How many of all workers together."""
        return self.number * n_workers if self.kind == "trajectories_per_worker" else self.number

    def obtain(self, sampler: Sampler, progress: Any) -> TrajectoryBatch[Any, Any]:
        """Make the obtaining call that this amount stands for."""
        match self.kind:
            case "num_samples":
                return sampler.obtain_samples(self.number, progress=progress)
            case "num_trajectories":
                return sampler.obtain_trajectories(self.number, progress=progress)
            case _:
                return sampler.obtain_exact_trajectories(self.number, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to sample, and how; the names are those of the options.

    Attributes:
        command: What the user typed: the command's name, and then its arguments.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    agent: str
    amount: Amount
    workers: int | None
    seed: int | None
    max_episode_length: int | None
    order: Order
    start_method: StartMethod | None
    out: Path | None
    on_failure: OnFailure = "raise"
    engine: EngineName | Literal["ray"] | None = None
    ray_address: str | None = None
    step_timeout: float | None = None
    max_restarts: Quota = "auto"
    max_worker_memory: int | None = None
    worker_threads: int | None = 1
    fingerprint: CheckMode = "warn"
    close_timeout: float = 5.0
    shard_size: int | None = None
    resume: bool = False
    repair: bool = False
    vec: int | None = None
    vec_normalize: str | None = None
    timers: bool = False
    command: tuple[str, ...] = ()

    @property
    def command_to_resume(self) -> str:
        """The command that continues a folder of shards."""
        return self.command_with("--repair" if self.repair else "--resume")

    def command_with(self, option: str) -> str:
        """Return what the user typed, with `--resume` or `--repair`."""
        name, *arguments = [argument for argument in self.command if argument not in ("--resume", "--repair")]
        return f"{name} {shlex.join([option, *arguments] if '--' in arguments else [*arguments, option])}"

    def described(self) -> dict[str, Any]:
        """Return what decides about the data, as JSON can hold it."""
        return {
            "environment": self.env_id,
            "env_kwargs": storable(self.env_kwargs),
            **self._options("agent", *_OF_ALL_SAMPLERS, "vec"),
            **self._agent_files,
        }

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @cached_property
    def _agent_files(self) -> dict[str, str]:
        """Digests of the agent's files: another model of the same name is another agent."""
        files = {"agent_sha256": self.agent if is_model_file(self.agent) else "", "vec_normalize": self.vec_normalize}
        return {name: _digest(Path(file)) for name, file in files.items() if file}

    @property
    def n_workers(self) -> int:
        """How many workers there are, in processes or in this one."""
        return 1 if self.workers == 0 else self.workers or usable_cores()

    def sampler(self, agent: Any, env: Any, seed: int) -> Sampler:
        """Return a sampler as it was asked for.

        Args:
            agent: The agent.
            env: The environment.
            seed: The seed.

        Raises:
            SamplerError: As the sampler says.
            UsageError: An option needs worker processes, and there are to be none.
        """
        options = {"seed": seed, **self._options(*_OF_ALL_SAMPLERS, "fingerprint")}
        if self.vec is not None:
            options |= {"worker_class": VecWorker, "worker_args": {"n_envs": self.vec}}
        if self.workers == 0:
            self._check_no_process_options()
            return LocalSampler(agent, env, **options)
        quota = self.max_restarts
        options["max_lifetime_restarts"] = _IN_ALL * quota if isinstance(quota, int) else quota
        options |= {"n_workers": self.n_workers, **self._options(*_NEED_PROCESSES, "max_restarts", "close_timeout")}
        if options["engine"] == "ray":
            refuse_lacking("ray", RAY, options)
            del options["engine"], options["start_method"]
            try:
                return RaySampler(agent, env, **options)
            except ImportError as error:
                raise SamplerError(f"--engine ray: {error}") from None
        if options.pop("ray_address") is not None:
            raise UsageError("--ray-address needs --engine ray")
        return MultiprocessingSampler(agent, env, **options)

    def _check_no_process_options(self) -> None:
        useless = [option_of(name) for name, value in self._options(*_NEED_PROCESSES).items() if value is not None]
        if useless:
            verb = "needs" if len(useless) == 1 else "need"
            raise UsageError(
                f"{' and '.join(useless)} {verb} worker processes, which there are with --workers 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        kept: The totals of the trajectories: of all, or of those that were finished when a signal came.
        interrupted: Whether a signal cut the run short.
        seconds: Wall time of the obtaining call.
        n_workers: How many workers there were.
        seed: The seed, which repeats the run.
        stats: The sampler's accounts.
        written: The file or the folder; None if there is none.
        shards: How many shards the folder has; None for a file.
        earlier_timesteps: How many timesteps were there when the run began.
    """

    kept: Tally
    interrupted: bool
    seconds: float
    n_workers: int
    seed: int
    stats: Stats
    written: Path | None
    shards: int | None = None
    earlier_timesteps: int = 0

    @classmethod
    def of(cls, sampler: Sampler, **others: Any) -> Outcome:
        """Return the outcome of a sampler's call."""
        return cls(n_workers=sampler.n_workers, seed=sampler.seed, stats=sampler.stats, **others)
