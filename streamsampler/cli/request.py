"""The request of the command line, and the outcome of its run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from streamsampler.cli.options import command_line, is_model_file
from streamsampler.cli.output import storable
from streamsampler.cli.sampling_options import SamplingOptions, ray_option_named
from streamsampler.cli.tally import Tally
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.choosing import make_sampler
from streamsampler.scheduling.plans import Part, PartArgument, part_of
from streamsampler.scheduling.result import Order
from streamsampler.storage.kept_infos import KeptInfos

_DECIDING = ("agent", "max_episode_length", "order", "on_failure", "worker_threads", "vec")
"""Options that decide about the data."""


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
        part: Only the i-th of n ranges of them; None for all.
        tasks: Tasks of the environment: `number` counts trajectories of each, or in timesteps they take turns. None for
            the environment as it is.
    """

    kind: str
    number: int
    part: PartArgument | None = None
    tasks: tuple[Any, ...] | None = None

    @property
    def unit(self) -> str:
        """What is counted."""
        return "timesteps" if self.kind == "num_samples" else "trajectories"

    def total(self, n_workers: int) -> int:
        """How many of all workers together."""
        if self.kind == "num_trajectories" and self.tasks is not None:
            return self.number * len(self.tasks)
        return self.number * n_workers if self.kind == "trajectories_per_worker" else self.number

    def obtain(self, sampler: Sampler, progress: Any) -> TrajectoryBatch[Any, Any]:
        """Make the obtaining call that this amount stands for."""
        match self.kind:
            case "num_samples":
                return sampler.obtain_samples(self.number, progress=progress, tasks=self.tasks)
            case "num_trajectories":
                return sampler.obtain_trajectories(self.number, progress=progress, part=self.part, tasks=self.tasks)
            case _:
                return sampler.obtain_exact_trajectories(self.number, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Request(SamplingOptions):
    """What to sample, and how; the names are those of the options.

    Attributes:
        command: What the user typed: the command's name, and then its arguments.
    """

    agent: str
    amount: Amount
    order: Order
    out: Path | None
    deterministic: bool | None = None
    shard_size: int | None = None
    resume: bool = False
    vec_normalize: str | None = None
    timers: bool = False
    without_infos: KeptInfos | None = None
    command: tuple[str, ...] = ()

    @property
    def command_to_resume(self) -> str:
        """The command that continues a folder of shards."""
        return self.command_with("--resume")

    def command_with(self, *options: str) -> str:
        """Return what the user typed, with other options than `--resume`."""
        typed = tuple(argument for argument in self.command if argument != "--resume")
        return command_line(typed, *options)

    def command_to_repeat(self, seed: int) -> str:
        """Return the command that samples the same again, with the seed that was drawn."""
        return self.command_with(*(() if self.seed is not None else ("--seed", str(seed))))

    @property
    def kept_infos(self) -> KeptInfos:
        """The infos that a file or a folder gets."""
        return self.without_infos or KeptInfos()

    def described(self) -> dict[str, Any]:
        """Return what decides about the data, as JSON can hold it."""
        return {
            "environment": self.env_id,
            "env_kwargs": storable(self.env_kwargs),
            **({} if self.amount.tasks is None else {"tasks": list(self.amount.tasks)}),
            **self.chosen(*_DECIDING, *(() if self.deterministic is None else ("deterministic",))),
            **({} if self.policies is None else {"policies": dict(self.policies)}),
            **({} if self.policy_of is None else {"policy_of": dict(self.policy_of)}),
            **self._agent_files,
            **self._infos,
        }

    @property
    def _infos(self) -> dict[str, Any]:
        """Which infos the file has; the folder says so by itself."""
        return self.kept_infos.facts() if self.shard_size is None else {}

    @cached_property
    def _agent_files(self) -> dict[str, str]:
        """Digests of the agent's files: another model of the same name is another agent."""
        named = {"agent_sha256": self.agent} if self.policies is None else {
            f"agent_sha256 of {name}": agent for name, agent in self.policies.items()
        }  # fmt: skip
        models = {key: agent if is_model_file(agent) else "" for key, agent in named.items()}
        files = {**models, "vec_normalize": self.vec_normalize}
        return {name: _digest(Path(file)) for name, file in files.items() if file}

    def sampler(self, agent: Any, env: Any, seed: int) -> Sampler:
        """Return a sampler as it was asked for.

        Args:
            agent: The agent.
            env: The environment.
            seed: The seed.

        Raises:
            SamplerError: As the sampler says, or Ray is missing.
            UsageError: An option needs worker processes, and there are to be none.
        """
        arguments = {**self.arguments(seed), "order": self.order}
        with ray_option_named():
            return make_sampler(agent, env, arguments)


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
        part: Which part of what was asked for; None for all of it.
        policies: The totals of what each policy played, by name; empty for one agent, and for folders.
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
    part: Part | None = None
    policies: Mapping[str, Tally] = field(default_factory=dict)

    @classmethod
    def of(cls, sampler: Sampler, amount: Amount, **others: Any) -> Outcome:
        """Return the outcome of a sampler's call."""
        part = None if amount.part is None else part_of(amount.part, amount.total(1), sampler.layout.block)
        return cls(n_workers=sampler.n_workers, seed=sampler.seed, stats=sampler.stats, part=part, **others)
