"""Carry out a request of `streamsampler sample`, and summarise the outcome."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from streamsampler.cli.agents import is_model_file, load_agents
from streamsampler.cli.environments import environment_of
from streamsampler.cli.running import CliRun, Follower
from streamsampler.cli.sampler_options import command_line, drawn_seed, sampler_arguments, storable
from streamsampler.cli.streams import Interrupted
from streamsampler.cli.tallies import Tally
from streamsampler.cli.targets import unused_beside
from streamsampler.core.errors import DamagedShardError, SamplerError, UnwritableInfoError
from streamsampler.core.version import __version__
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_selection import InfoSelection
from streamsampler.data.shards import MANIFEST, read_manifest
from streamsampler.data.space_codec import check_writable
from streamsampler.data.statistics import Stats
from streamsampler.environments.ids import with_version
from streamsampler.evaluation.agents import make_sampler
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.folders import sample_to_folder

_DECIDING = ("agent", "max_episode_length", "order", "on_failure", "worker_threads", "vec")
"""Options that decide about the data."""
_OF_THE_SAMPLER = "worker", "worker_class", "worker_args", "versions"
"""Entries of a file's provenance that come from the sampler; the others come from the options."""


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or the name itself if no such file exists."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return str(path)


@dataclass(frozen=True)
class Request:
    """The request of `streamsampler sample`.

    Attributes:
        env_id: The environment.
        kind: "num_samples", "num_trajectories" or "trajectories_per_worker".
        number: The requested number.
        out: The file or the folder to write; None for none.
        options: The other options, by name.
        command: The typed command: its name, and then its arguments.
    """

    env_id: str
    kind: str
    number: int
    out: Path | None
    options: Mapping[str, Any]
    command: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Unit of the requested number."""
        return "timesteps" if self.kind == "num_samples" else "trajectories"

    def total(self, n_workers: int) -> int:
        """Return the number for all workers together."""
        if self.kind == "num_trajectories" and self.options["tasks"] is not None:
            return self.number * len(self.options["tasks"])
        return self.number * n_workers if self.kind == "trajectories_per_worker" else self.number

    def command_with(self, *options: str) -> str:
        """Return the typed command with other options in place of `--resume`."""
        return command_line([argument for argument in self.command if argument != "--resume"], *options)

    @property
    def kept_infos(self) -> InfoSelection:
        """The infos for the file or the folder."""
        without = self.options["without_infos"]
        if without is None:
            return InfoSelection()
        return InfoSelection(without=frozenset(without)) if without else InfoSelection.of(False)

    @cached_property
    def described(self) -> dict[str, Any]:
        """Everything that decides about the data, as JSON values."""
        options = self.options
        said = ("tasks", "deterministic", "policies", "policy_of")
        return {
            "environment": with_version(self.env_id),  # the latest version may differ in a later run
            "env_kwargs": storable(options["env_kwargs"]),
            **{name: options[name] for name in _DECIDING},
            **{name: options[name] for name in said if options[name] is not None},
            **self._agent_files,
            # A folder stores the names of its infos itself.
            **(self.kept_infos.facts() if options["shard_size"] is None else {}),
        }

    @property
    def _agent_files(self) -> dict[str, str]:
        """Digests of the agent's files: another model of the same name is another agent."""
        policies, statistics = self.options["policies"] or {}, self.options["vec_normalize"]
        named = {f"agent_sha256 of {name}": agent for name, agent in policies.items()}
        files = {
            key: name for key, name in (named or {"agent_sha256": self.options["agent"]}).items() if is_model_file(name)
        }
        files |= {"vec_normalize": statistics} if statistics else {}
        return {key: _digest(Path(name)) for key, name in files.items()}


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """The outcome of a request.

    Attributes:
        kept: Totals of all trajectories, or of those finished before a signal.
        interrupted: Whether a signal cut the run short.
        seconds: Wall time of the obtaining call.
        n_workers: Number of workers.
        seed: The seed, which repeats the run.
        stats: The sampler's statistics.
        written: The file or the folder; None for none.
        shards: Number of shards of the folder; None for a file.
        earlier_timesteps: Timesteps in the folder before the run.
        policies: Totals by policy name; empty for a single agent, and for folders.
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
    policies: Mapping[str, Tally] = field(default_factory=dict)


def carry_out(request: Request, run: CliRun) -> RequestOutcome:
    """Sample the requested trajectories, and write them.

    Raises:
        SamplerError: As the samplers raise it.
        click.ClickException: The environment cannot be made.
        OSError: The file or folder cannot be written.
        Interrupted: A signal arrived before the first trajectory, or a second signal later.
    """
    options = request.options
    env, spaces = environment_of(request.env_id, options["env_kwargs"])
    if request.out is not None:
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            check_writable(space, name)
    agent = load_agents(options, spaces)
    seed = _seed(request)
    sampler = make_sampler(agent, env, {**sampler_arguments(options, seed), "order": options["order"]})
    with sampler:
        with _way_out_named(request):
            sample = _to_file if options["shard_size"] is None else _to_folder
            outcome = sample(request, sampler, Follower(run, ends_later=True), run)
        _close(sampler, outcome)
    return outcome


@contextlib.contextmanager
def _way_out_named(request: Request) -> Iterator[None]:
    """Name in errors the option that leaves out infos unfit for files."""
    try:
        yield
    except UnwritableInfoError as error:
        names = ",".join(sorted(request.kept_infos.without.union(error.names)))
        advice = f"--without-infos {shlex.quote(names)} leaves {'it' if ',' not in names else 'them'} out"
        if request.options["shard_size"] is not None and request.out is not None and (request.out / MANIFEST).exists():
            advice += f", in another folder than {request.out}, whose shards have other infos"
        named = UnwritableInfoError(f"{error.problem}. {advice}")
        named.__notes__ = getattr(error, "__notes__", [])
        raise named from None


def _seed(request: Request) -> int:
    seed: int | None = request.options["seed"]
    if seed is not None:
        return seed
    if request.options["resume"] and request.out is not None and (request.out / MANIFEST).exists():
        return read_manifest(request.out).seed
    return drawn_seed()


def _obtain(request: Request, sampler: Sampler[Any, Any], progress: Follower) -> TrajectoryBatch[Any, Any]:
    number, tasks = request.number, request.options["tasks"]
    match request.kind:
        case "num_samples":
            return sampler.obtain_samples(number, progress=progress, tasks=tasks)
        case "num_trajectories":
            return sampler.obtain_trajectories(number, progress=progress, tasks=tasks)
    return sampler.obtain_exact_trajectories(number, progress=progress)


def _to_file(request: Request, sampler: Sampler[Any, Any], follower: Follower, run: CliRun) -> RequestOutcome:
    interrupted = False
    batch: TrajectoryBatch[Any, Any] | None
    try:
        try:
            with run.bar, sampler.writable_infos(request.kept_infos) if request.out else nullcontext():
                batch = _obtain(request, sampler, follower)
                seconds, kept = follower.seconds, Tally.of_batch(batch)
                follower.finish(kept, seconds)
        except Interrupted:
            interrupted = True
            batch = sampler.salvage()
            seconds, kept = follower.seconds, Tally.of_batch(batch)
        written = None if batch is None else request.out
        if batch is not None and written is not None:
            # The file of a complete run is worth more than the beginning of this run.
            written = unused_beside(written) if interrupted and written.exists() else written
            own = {name: value for name, value in sampler.provenance().items() if name in _OF_THE_SAMPLER}
            provenance = {"library": f"streamsampler {__version__}", **request.described, **own}
            provenance |= {"wanted": {request.unit: request.total(sampler.n_workers)}, "interrupted": interrupted}
            provenance["fingerprints"] = sorted(batch.fingerprints)
            batch.save(written, provenance=provenance, compress=request.options["compress"])
    except (SamplerError, OSError) as error:
        error.add_note(f"The seed was {sampler.seed}; --seed {sampler.seed} samples the same again.")
        raise
    return RequestOutcome(
        kept=kept, interrupted=interrupted, seconds=seconds, n_workers=sampler.n_workers, seed=sampler.seed,
        stats=sampler.stats, written=written, policies=Tally.of_policies(batch),
    )  # fmt: skip


def _to_folder(request: Request, sampler: Sampler[Any, Any], follower: Follower, run: CliRun) -> RequestOutcome:
    assert request.out is not None
    options, interrupted = request.options, False
    amount: dict[str, Any] = {
        "n_timesteps" if request.unit == "timesteps" else "n_trajectories": request.total(sampler.n_workers)
    }
    try:
        with run.bar:
            sample_to_folder(
                sampler,
                request.out,
                **amount,
                shard_size=options["shard_size"],
                resume=options["resume"],
                compress=options["compress"],
                provenance=request.described,
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
        raise  # a second attempt would end the same way
    except (SamplerError, OSError) as error:
        if follower.earlier_timesteps is not None:
            error.add_note(f"Complete shards are in {request.out}. To resume:  {request.command_with('--resume')}")
        raise
    earlier = kept.timesteps if follower.earlier_timesteps is None else follower.earlier_timesteps
    return RequestOutcome(
        kept=kept, interrupted=interrupted, seconds=seconds, n_workers=sampler.n_workers, seed=sampler.seed,
        stats=sampler.stats, written=request.out, shards=n_shards, earlier_timesteps=earlier,
    )  # fmt: skip


def _close(sampler: Sampler[Any, Any], outcome: RequestOutcome) -> None:
    try:
        sampler.close()
    except Interrupted:
        return  # after a second signal the environments are not waited for; the written data stays
    except SamplerError as error:
        if outcome.interrupted:
            return  # an interrupted worker may fail to close its environment
        if outcome.written is not None:
            error.add_note(f"All trajectories are in {outcome.written}.")
        raise
