"""Carry out a request of `streamsampler sample`, and summarise the outcome."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from streamsampler.cli.naming import environment_of, is_model_file, load_agents, unused_beside
from streamsampler.cli.running import CliRun, Follower, Tally
from streamsampler.cli.streams import Interrupted
from streamsampler.core.errors import DamagedShardError, SamplerError, UnwritableInfoError, UsageError
from streamsampler.core.version import __version__
from streamsampler.core.words import count, duration, table
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.codec import check_writable
from streamsampler.data.kept_infos import KeptInfos
from streamsampler.data.shards import MANIFEST, read_manifest
from streamsampler.data.statistics import Stats, timers_text
from streamsampler.engines.registry import RAY
from streamsampler.environments.ids import with_version
from streamsampler.evaluation.agents import make_sampler
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.sharded import sample_to_folder
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.vec.worker import VecWorker

_IN_ALL = 10
"""The quota of losses in a run, as a multiple of the quota within a minute."""
_OF_ALL_SAMPLERS = ("max_episode_length", "on_failure", "trajectory_timeout", "worker_threads", "fingerprint")
_NEED_PROCESSES = ("engine", "start_method", "step_timeout", "ray_address")
_DECIDING = ("agent", "max_episode_length", "order", "on_failure", "worker_threads", "vec")
"""Options that decide about the data."""
_OF_THE_SAMPLER = "worker", "worker_class", "worker_args", "versions"
"""Entries of a file's provenance that come from the sampler; the others come from the options."""


def command_line(typed: Sequence[str], *options: str) -> str:
    """Return the typed command as a line for a shell: its name, its arguments, and further options."""
    name, *arguments = typed
    return f"{name} {shlex.join([*options, *arguments] if '--' in arguments else [*arguments, *options])}"


def drawn_seed() -> int:
    """Return a seed that every JSON reader reads exactly."""
    return secrets.randbits(53)


def sampler_arguments(options: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the arguments of `streamsampler.evaluation.agents.make_sampler` besides agent and environment.

    Args:
        options: The options of all commands that run an environment, by name.
        seed: The seed.

    Raises:
        UsageError: An option needs worker processes, or Ray, and the request excludes them.
    """
    arguments = {"seed": seed, **{name: options[name] for name in _OF_ALL_SAMPLERS}}
    if options.get("policy_of") is not None:
        arguments["policy_of"] = options["policy_of"]
    arguments |= _worker_arguments(options["vec"], options["in_flight"])
    given = {name: options[name] for name in _NEED_PROCESSES if options[name] is not None}
    memory = options["max_worker_memory"]
    if options["workers"] == 0:
        names = [*given, *([] if memory is None else ["max_worker_memory"])]
        if names:
            useless = " and ".join(f"--{name.replace('_', '-')}" for name in names)
            raise UsageError(f"{useless} needs worker processes: give --workers 1 or more")
        return {**arguments, "n_workers": 0}
    quota = options["max_restarts"]
    in_all = _IN_ALL * quota if isinstance(quota, int) else quota
    limits = Limits(max_lifetime_restarts=in_all, close_timeout=options["close_timeout"], max_worker_memory=memory)
    arguments |= {"n_workers": options["workers"] or usable_cores(), "max_restarts": quota, "limits": limits, **given}
    if options["engine"] == "ray":
        RAY.refuse_lacking('engine="ray"', arguments)
    elif "ray_address" in given:
        raise UsageError("--ray-address needs --engine ray")
    return arguments


def _worker_arguments(vec: int | None, in_flight: int | None) -> dict[str, Any]:
    if vec is not None and in_flight is not None:
        raise UsageError(
            "--vec asks an agent for many actions at once, --in-flight for a single action: give only one of them"
        )
    if vec is not None:
        return {"worker_class": VecWorker, "worker_args": {"n_envs": vec}}
    return {} if in_flight is None else {"worker_args": {"in_flight": in_flight}}


def storable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON values; others, such as sets, as their `repr`."""
    return {key: value if _fits_json(value) else _text_of(value) for key, value in arguments.items()}


def _text_of(value: Any) -> str:
    # The order of a set of strings differs from process to process.
    if isinstance(value, set) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value)


def _fits_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


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
    def kept_infos(self) -> KeptInfos:
        """The infos for the file or the folder."""
        without = self.options["without_infos"]
        if without is None:
            return KeptInfos()
        return KeptInfos(without=frozenset(without)) if without else KeptInfos.of(False)

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
        told = UnwritableInfoError(f"{error.problem}. {advice}")
        told.__notes__ = getattr(error, "__notes__", [])
        raise told from None


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


_LEFT_OVER = ("stale", "surplus", "abandoned")
_UNITS = ("trajectories", "timesteps")
_REPLACEMENTS = ("restarts", "hangs", "replaced")
_SHOWN_ERRORS = 5


def as_json(request: Request, outcome: RequestOutcome) -> dict[str, Any]:
    """Return a summary as JSON values; undefined values are None."""
    kept, stats, timers = outcome.kept, outcome.stats, request.options["timers"]
    return {
        **request.described,
        "wanted": {request.unit: request.total(outcome.n_workers)},
        "interrupted": outcome.interrupted,
        **kept.facts(),
        **({"of_policies": {name: it.facts() for name, it in outcome.policies.items()}} if outcome.policies else {}),
        "seconds": outcome.seconds,
        "timesteps_per_second": _rate(outcome),
        "workers": outcome.n_workers,
        "seed": outcome.seed,
        **{name: {unit: getattr(stats, f"{name}_{unit}") for unit in _UNITS} for name in (*_LEFT_OVER, "checked")},
        "lost": {"timesteps": stats.lost_timesteps},
        **{name: getattr(stats, name) for name in _REPLACEMENTS},
        "anomalies": stats.anomalies,
        "dropped": {
            "trajectories": stats.dropped_trajectories,
            "errors": [
                {"trajectory": dropped.index, "phase": dropped.phase, "error": dropped.error}
                for dropped in stats.dropped[:_SHOWN_ERRORS]
            ],
        },
        "out": None if outcome.written is None else str(outcome.written),
        **_sharding(request, outcome),
        **({"timers": {name: ms for name, ms in stats.means().items() if name.startswith("ms/")}} if timers else {}),
        "version": __version__,
    }


def as_text(request: Request, outcome: RequestOutcome) -> str:
    """Return a summary as text, with the tree of timers if requested."""
    timers = f"\n\n{timers_text(outcome.stats.timers())}" if request.options["timers"] else ""
    facts, stats, lost = as_json(request, outcome), outcome.stats, outcome.stats.lost_timesteps
    left_over = [_left_over(name, facts[name]) for name in _LEFT_OVER]
    if outcome.shards is not None and outcome.interrupted and stats.surplus_trajectories:
        left_over[_LEFT_OVER.index("surplus")] = (
            f"{_amount(facts['surplus'])} of the unfinished shard, which --resume samples again"
        )
    arguments = ", ".join(f"{key}={value!r}" for key, value in request.options["env_kwargs"].items())
    return table({
        "interrupted": _interrupted(request, outcome) if outcome.interrupted else "",
        "environment": facts["environment"] + (f" ({arguments})" if arguments else ""),
        "agent": request.options["agent"],
        "trajectories": f"{facts['trajectories']:,}",
        "timesteps": f"{facts['timesteps']:,}",
        "return": spread_text(facts["return"], facts["trajectories"]),
        "length": spread_text(facts["length"], facts["trajectories"]),
        **policy_rows(outcome.policies),
        "wall time": _wall_time(outcome),
        "workers": f"{outcome.n_workers:,}",
        "seed": str(outcome.seed),
        "left over": ", ".join([*left_over, *([f"{count(lost, 'timestep')} lost"] if lost else [])]),
        "restarts": _restarts(facts),
        "anomalies": f"{facts['anomalies']:,}: NaN, or outside of its space" if facts["anomalies"] else "",
        "dropped": _dropped(facts["dropped"], width=len("trajectories")),
        "written to": _written(request, outcome),
        "to go on": facts.get("to_go_on") or "",
        "to get all": facts.get("to_get_all") or "",
    }) + timers  # fmt: skip


def policy_rows(policies: Mapping[str, Tally]) -> dict[str, str]:
    """Return a table row for each policy: its trajectories, and its return."""
    return {
        name: f"{count(tally.returns.n, 'trajectory')}, {count(tally.timesteps, 'timestep')}, "
        f"return {spread_text(tally.facts()['return'], tally.returns.n)}"
        for name, tally in policies.items()
    }


def as_line(request: Request, outcome: RequestOutcome) -> str:
    """Return a summary of a single line."""
    amount = f"{count(outcome.kept.trajectories, 'trajectory')}, {count(outcome.kept.timesteps, 'timestep')}"
    if _was_complete(outcome):
        return f"{amount}: {outcome.written} was complete before"
    line = f"{amount} in {duration(outcome.seconds)}"
    return f"{line}, interrupted {_interrupted(request, outcome)}" if outcome.interrupted else line


def _was_complete(outcome: RequestOutcome) -> bool:
    return not outcome.interrupted and outcome.earlier_timesteps == outcome.kept.timesteps


def _rate(outcome: RequestOutcome) -> float:
    """Return the timesteps per second of this run."""
    return (outcome.kept.timesteps - outcome.earlier_timesteps) / outcome.seconds if outcome.seconds else 0.0


def _wall_time(outcome: RequestOutcome) -> str:
    if _was_complete(outcome):
        return "none: everything was complete before"
    text = f"{duration(outcome.seconds)}, {count(_rate(outcome), 'timestep')} per second"
    earlier = f", appended to {outcome.earlier_timesteps:,} timesteps of earlier runs"
    return text + earlier if outcome.earlier_timesteps else text


def _sharding(request: Request, outcome: RequestOutcome) -> dict[str, Any]:
    if outcome.shards is None:
        if not outcome.interrupted or request.out is None:
            return {}
        drawn = () if request.options["seed"] is not None else ("--seed", str(outcome.seed))
        return {"to_get_all": request.command_with(*drawn)}
    return {
        "shards": outcome.shards,
        "earlier_timesteps": outcome.earlier_timesteps,
        "to_go_on": request.command_with("--resume") if outcome.interrupted else None,
    }


def _interrupted(request: Request, outcome: RequestOutcome) -> str:
    there = outcome.kept.timesteps if request.unit == "timesteps" else outcome.kept.trajectories
    wanted = request.total(outcome.n_workers)
    return f"after {there:,} of {count(wanted, 'timestep' if request.unit == 'timesteps' else 'trajectory')}"


def _written(request: Request, outcome: RequestOutcome) -> str:
    if outcome.shards is not None:
        return f"{outcome.written} ({count(outcome.shards, 'shard')})"
    if outcome.written is not None:
        kept = count(outcome.kept.trajectories, "trajectory")
        were = "was" if outcome.kept.trajectories == 1 else "were"
        stays = "" if outcome.written == request.out else f"; {request.out} is unchanged"
        return f"{outcome.written}" + (f" (the {kept} that {were} finished{stays})" if outcome.interrupted else "")
    return "nothing: no trajectory was complete" if request.out is not None else ""


def spread_text(spread: dict[str, float | None], n_values: int) -> str:
    """Return a mean with its standard error, the minimum and the maximum as text."""
    mean, error = spread["mean"], spread.get("standard_error")
    if n_values == 0:
        return "none"
    if mean is None:
        return "not finite"
    if n_values == 1:
        return number(mean)
    text = number(mean)
    if error:
        # Two digits of the error matter, and as many decimals of the mean.
        decimals = min(9, max(0, 1 - math.floor(math.log10(error))))
        text = f"{mean:,.{decimals}f} ± {error:,.{decimals}f} standard error"
    elif error == 0:
        text += " ± 0 standard error"
    return f"{text}, from {number(spread['minimum'])} to {number(spread['maximum'])}"


def _left_over(name: str, amount: dict[str, int]) -> str:
    if not amount["trajectories"]:
        # Timesteps are all that is known of a trajectory cut short.
        return f"{count(amount['timesteps'], 'timestep')} {name}" if amount["timesteps"] else f"0 {name}"
    return f"{amount['trajectories']:,} {name} ({count(amount['timesteps'], 'timestep')})"


def _amount(amount: dict[str, int]) -> str:
    return f"{count(amount['trajectories'], 'trajectory')} ({count(amount['timesteps'], 'timestep')})"


def _restarts(facts: dict[str, Any]) -> str:
    """Return the number of replaced workers with the reasons; empty for none."""
    if not any(facts[name] for name in _REPLACEMENTS):
        return ""
    reasons = {"hangs": "hung", "replaced": "used too much memory"}
    shown = [f"{facts[name]:,} {reason}" for name, reason in reasons.items() if facts[name]]
    return ", ".join([f"{facts['restarts']:,}", *shown])


def _dropped(dropped: dict[str, Any], width: int) -> str:
    """Return the number of dropped trajectories with some of the reasons; empty for none."""
    n_trajectories, errors = dropped["trajectories"], dropped["errors"]
    if not n_trajectories:
        return ""
    lines = [f"trajectory {error['trajectory']}, {error['phase']}: {error['error']}" for error in errors]
    if n_trajectories > len(errors):
        lines.append("…")
    return f"\n{' ' * (width + 2)}".join([count(n_trajectories, "trajectory"), *lines])


def number(value: float | None) -> str:
    """Return a number with about four significant digits."""
    if value is None:
        return "not finite"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if 1 <= abs(value) < 1e7 else f"{value:.3g}"
