"""Run a recorded trajectory again, from a file, a folder or a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

from streamsampler.agents.policies import PolicyOf
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.environments.ids import find_spec
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import UnknownEnvironmentError, UsageError, positive
from streamsampler.evaluation.agents import evaluated_agent
from streamsampler.samplers.options import policies_of
from streamsampler.samplers.payloads import name_of_worker, pickled_environments, put, put_agents
from streamsampler.samplers.replaying import check_alone, episode_of, is_part, recorded_one, task_numbers
from streamsampler.samplers.replays import Origin, Replay, Rerun, place_of, replayed
from streamsampler.samplers.updates import Updates
from streamsampler.scheduling.plans import Streamed
from streamsampler.seeding import TrajectorySeeds
from streamsampler.serialization import Payload
from streamsampler.storage import npz as storage
from streamsampler.storage.files import load_with_header
from streamsampler.storage.folder import TrajectoryFolder
from streamsampler.storage.manifest import read_manifest, shard_name
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory, WorkerSetup
from streamsampler.workers.hooks import pickled_hooks
from streamsampler.workers.resets import Options, Resets, common_resets, tasks_as_recorded
from streamsampler.workers.threads import check_threads
from streamsampler.workers.vec.worker import VecWorker

_WORKERS: Mapping[str, type[Worker]] = {kind.__name__: kind for kind in (DefaultWorker, VecWorker)}


class ReplayOptions(TypedDict, total=False):
    """How a trajectory was sampled, where a file does not say it, or says something else."""

    env_kwargs: Mapping[str, Any]
    reset_options: Options | None
    max_episode_length: int | None
    n_trajectories: int | None
    worker_class: type[Worker]
    worker_args: Mapping[str, Any]
    worker_threads: int | None
    deterministic: bool | None
    vec_normalize: Any
    tasks: Sequence[Any]
    hooks: Any
    drop_if: Callable[[dict[str, Any]], Any] | None
    policy_of: PolicyOf | None


def replay(
    source: str | PathLike[str] | TrajectoryBatch[Any, Any] | TrajectoryFolder[Any, Any],
    index: int,
    *,
    agent: Any = None,
    env: Any = None,
    version: int | None = None,
    actions: bool = False,
    video: str | PathLike[str] | None = None,
    **options: Unpack[ReplayOptions],
) -> Replay:
    """Run a recorded trajectory again, in this process, and say where it differs first.

    It runs from the same seed and, with `VecWorker`, in the same row of a batch of the same shape. Observations,
    actions, rewards and its end are compared, bit for bit. A file says how it was sampled (see `Sampler.provenance`);
    of a batch, and of an older file, pass what was not the default.

    A file does not decide which code runs: an agent is passed, unless it was "random", and so is an environment that
    is registered by a module that is not imported yet.

    Args:
        source: A file, a folder of shards, or a batch.
        index: The trajectory index: `batch.indices[i]`.
        agent: As `streamsampler.evaluate` takes it: the agent that made the trajectory.
        env: The environment. None for the id that was recorded.
        version: The agent version; None where the index is there once.
        actions: Whether to replay the recorded actions, without the agent.
        video: A `.mp4` file for a video, which needs `pip install av`.
        options: `env_kwargs`, `max_episode_length`, `worker_class`, `worker_args` and `worker_threads`, as samplers
            take them; `tasks`, all those of its call; `reset_options`, which files do not have; `n_trajectories`, how
            many were asked for, if it was a number of trajectories (it decides about the last block of trajectories
            that run together); `deterministic` and `vec_normalize`, see `streamsampler.evaluate`; `hooks`, whose
            metrics the trajectory has then, `drop_if`, which decides about the trajectories that run together with
            this one, and `policy_of`: see `Sampler`.

    Returns:
        What came of it. It can be printed: its `difference` is None if the trajectory is the same.

    Raises:
        UsageError: There is no such trajectory, or something is missing that no file or argument says; names it.
        RolloutError: The agent or the environment raised.
        StorageError: The file is damaged, or is none of this package.
        ImportError: The library for videos is missing; says how to install it.
        OSError: The file cannot be read, or the video cannot be written.
    """
    if unknown := sorted(options.keys() - ReplayOptions.__annotations__.keys()):
        raise TypeError(
            f"replay has no argument {', '.join(unknown)}; it has {', '.join(ReplayOptions.__annotations__)}"
        )
    index = positive("index", index, least=0)
    record = _read(source, index, version)
    record.one = episode_of(record.batch, record.one, actions=actions)
    if actions and agent is not None:
        raise UsageError("the recorded actions are replayed without an agent: leave it out")
    record.settle(options, alone=actions)
    updates = _updates(record, agent, env, options, alone=actions)
    rerun, alternative = _rerun_of(record, updates, options)
    if actions:
        rerun, alternative = rerun.with_actions(record.one), None
    elif is_part(record.one):
        check_alone(rerun.setup.factory.layout.block)
        rerun = rerun.cut_after(len(record.one.rewards)) if record.one.cut[0] else rerun
    record.cut |= bool(record.one.cut[0])
    origin = Origin(record.fingerprints, record.versions, tuple(record.notes), record.cut, actions_only=actions)
    return replayed(rerun, record.one, origin, None if video is None else Path(video), alternative)


@dataclass
class _Record:
    """A recorded trajectory, and what is known of how it was sampled.

    Attributes:
        name: What to call the source, in errors.
        batch: The trajectory, and others.
        one: The trajectory.
        facts: The provenance.
        notes: What is not known.
        cut: Whether the trajectory may have gone on.
    """

    name: str
    batch: TrajectoryBatch[Any, Any]
    one: TrajectoryBatch[Any, Any]
    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    cut: bool = False
    setup: WorkerSetup | None = None
    resets: Resets | None = None

    @property
    def fingerprints(self) -> frozenset[str]:
        """How the workers computed."""
        told = self.facts.get("fingerprints")
        return self.batch.fingerprints | frozenset(it for it in told or () if isinstance(it, str))

    @property
    def versions(self) -> dict[str, str] | None:
        """The versions of libraries; None where they are not known."""
        told = self.facts.get("versions")
        return {str(name): str(it) for name, it in told.items()} if isinstance(told, dict) else None

    def settle(self, options: ReplayOptions, *, alone: bool) -> None:
        """Find out how workers are made, from the arguments and from what was recorded.

        Args:
            options: The arguments.
            alone: Whether the environment runs alone, with recorded actions.

        Raises:
            UsageError: It cannot be found out.
        """
        facts = self.facts
        worker_class, worker_args = (DefaultWorker, {}) if alone else self._kind_of_worker(options)
        limit = options.get("max_episode_length", facts.get("max_episode_length"))
        if "max_episode_length" not in options and "max_episode_length" not in facts:
            one = self.one
            self.cut = bool(one.truncated[0] and not one.terminated[0])
            if self.cut:
                self.notes.append("max_episode_length is not known, so that only what was recorded is compared")
                limit = len(one.rewards) if worker_class.layout(worker_args).block == 1 else None
        threads = options.get("worker_threads", facts.get("worker_threads", 1))
        factory = WorkerFactory(
            n_workers=1, seed=self.batch.seed or 0, max_episode_length=limit, worker_class=worker_class,
            worker_args=worker_args,
        )  # fmt: skip
        hooks = None if alone else pickled_hooks(options.get("hooks"), options.get("drop_if"))
        self.setup = WorkerSetup(factory, check_threads(threads), None, hooks=hooks)
        said = facts.get("worker")
        if not alone and isinstance(said, str) and said != f"{worker_class.__name__}: {worker_class.revision}":
            self.notes.append(f"the workers were of another revision ({said}), which may make other trajectories")
        options_of_reset = common_resets(options.get("reset_options"))
        self.resets = options_of_reset or (Resets() if self._has_given_seeds else None)
        if (tasks := options.get("tasks", facts.get("tasks"))) is not None:
            numbers = task_numbers(self.batch, int(self.one.agent_versions[0]))
            self.resets = tasks_as_recorded(tasks, numbers, self.resets)

    @property
    def _has_given_seeds(self) -> bool:
        batch, one = self.batch, self.one
        if batch.seed is None:
            return True
        return TrajectorySeeds(batch.seed, int(one.agent_versions[0]))[int(one.indices[0])] != one.seeds[0]

    def _kind_of_worker(self, options: ReplayOptions) -> tuple[type[Worker], dict[str, Any]]:
        facts = self.facts
        vec = facts.get("vec")
        name = facts.get("worker_class") or ("VecWorker" if vec or facts.get("worker") else "DefaultWorker")
        args = options.get("worker_args", facts.get("worker_args", {"n_envs": vec} if vec else {}))
        kind = options.get("worker_class", _WORKERS.get(name))
        if kind is None:
            raise UsageError(f"{self.name} was sampled with worker_class {name}: pass worker_class= and worker_args=")
        if "worker_class" in options and "worker_class" in facts and name != name_of_worker(kind):
            self.notes.append(f"it was sampled with worker_class {name}")
        if kind is VecWorker and not args:
            self.notes.append("n_envs is not known, and taken for the default; otherwise pass worker_args=")
        if not isinstance(args, Mapping):
            raise UsageError(f"worker_args should be a dict, and are {args!r:.60}")
        return kind, dict(args)


def _read(source: Any, index: int, version: int | None) -> _Record:
    if isinstance(source, TrajectoryBatch):
        return _Record("the batch", source, recorded_one(source, index, version), {})
    if isinstance(source, TrajectoryFolder):
        source = source.path
    if not isinstance(source, str | PathLike):
        raise UsageError(f"replay takes a file, a folder or a batch first, not a {type(source).__qualname__}")
    path = Path(source)
    if path.is_dir():
        return _of_folder(path, index, version)
    batch, header = load_with_header(path)
    return _Record(str(path), batch, recorded_one(batch, index, version), _facts(header["provenance"]))


def _of_folder(path: Path, index: int, version: int | None) -> _Record:
    folder: TrajectoryFolder[Any, Any] = TrajectoryFolder(path)
    first, last = 0, -1
    for number in range(len(folder.shards)):
        indices = storage.read(path / shard_name(number), "indices")[0]["indices"]
        if len(indices) and indices[0] <= index <= indices[-1]:
            batch = folder.shards[number]
            one = recorded_one(batch, index, version)
            manifest = read_manifest(path)
            return _Record(
                str(path), batch, one, {**_facts(manifest.provenance), "fingerprints": sorted(manifest.fingerprints)}
            )
        last = max([last, *indices[-1:].tolist()])
    there = f"there are trajectories {first} to {last}" if last >= 0 else "there are none yet"
    if index < last:
        raise UsageError(f"there is no trajectory {index}: it was left out, because it raised; {there}")
    raise UsageError(f"there is no trajectory {index}: {there}")


def _facts(provenance: Any) -> dict[str, Any]:
    return dict(provenance) if isinstance(provenance, Mapping) else {}


# --- What runs it


def _updates(record: _Record, agent: Any, env: Any, options: ReplayOptions, *, alone: bool) -> dict[str, Payload]:
    updates: Updates[Payload] = Updates(1)
    given = _environment(record, env, options.get("env_kwargs"))
    put(updates, "env", pickled_environments(given, 1, "env", "the environment", as_env_update))
    if not alone:
        put_agents(updates, _agent(record, agent, options), 1)
    return {str(kind): payload for kind, payload in updates.missing(0, {}).items()}


def _agent(record: _Record, agent: Any, options: ReplayOptions) -> Any:
    if agent is None:
        said = record.facts.get("agent")
        if said != "random":
            was = f" {record.name} says that it was {said!r}" if isinstance(said, str) else ""
            raise UsageError(f"which agent? Pass agent=, or actions=True for the recorded actions.{was}")
        agent = said
    recorded = record.facts.get("deterministic")
    recorded = recorded if isinstance(recorded, bool) else None
    policy_of = options.get("policy_of")
    agent = evaluated_agent(
        agent, options.get("deterministic", recorded), options.get("vec_normalize"), lambda: record.batch.action_space,
        policy_of,
    )  # fmt: skip
    return policies_of(agent, policy_of)


def _environment(record: _Record, env: Any, kwargs: Mapping[str, Any] | None) -> Any:
    """Return an update that makes the environment."""
    said = record.facts.get("environment")
    recorded = record.facts.get("env_kwargs")
    recorded = recorded if isinstance(recorded, dict) else {}
    if env is None:
        if parameters := record.facts.get("env_parameters"):
            raise UsageError(
                f"{record.name} says that parameters of {said} were set, {parameters!r:.120}: pass "
                "env=SetParameters({…}, …) with the same"
            )
        _check_id(record, said)
        return as_env_update(str(said).rpartition(":")[2], env_kwargs={**recorded, **(kwargs or {})})
    is_recorded = isinstance(env, str) and isinstance(said, str) and env.rpartition(":")[2] == said.rpartition(":")[2]
    return as_env_update(env, env_kwargs={**recorded, **(kwargs or {})} if is_recorded else kwargs)


def _check_id(record: _Record, said: Any) -> None:
    """Check that an environment that was recorded can be made without running code that a file names."""
    if not isinstance(said, str):
        what = f"had one environment for each worker, {said!r:.80}" if said else "does not say which environment"
        raise UsageError(f"{record.name} {what}: pass env=")
    module, _, name = said.rpartition(":")
    with contextlib.suppress(UnknownEnvironmentError):
        find_spec(name)
        return
    if module:
        raise UsageError(
            f"{record.name} says that the environment was {said!r}; a file does not decide which module is imported: "
            f"pass env={said!r}"
        )
    raise UsageError(f"{record.name} says that the environment was {said!r}, which is no registered id: pass env=")


def _rerun_of(record: _Record, updates: Mapping[str, Payload], options: ReplayOptions) -> tuple[Rerun, Rerun | None]:
    """Return what runs the trajectory again, and what does if its block was cut."""
    batch, one, facts = record.batch, record.one, record.facts
    index, version = int(one.indices[0]), int(one.agent_versions[0])
    assert record.setup is not None
    wanted = facts.get("wanted")
    told = wanted.get("trajectories") if isinstance(wanted, dict) else None
    # Of a part of a run it may be the number of the part's own.
    asked = options.get("n_trajectories", told if isinstance(told, int) and told > batch.indices.max() else None)
    n_queues = positive("n_workers", facts.get("n_workers", 1))
    plan = Streamed(0, asked)
    queue, block = place_of(plan, index, record.setup.factory.layout.block, n_queues)
    rows = zip(batch.indices.tolist(), batch.agent_versions.tolist(), batch.seeds, strict=True)
    seeds = {other: seed for other, of_version, seed in rows if of_version == version}
    if batch.seed is not None:
        derived = TrajectorySeeds(batch.seed, version)
        seeds = {other: seeds.get(other, derived[other]) for other in block}
    rerun = Rerun(
        setup=record.setup, updates=updates, version=version, index=index, block=block, seeds=seeds, worker=queue,
        resets=record.resets,
    )  # fmt: skip
    cut = rerun.cut_before(int(batch.indices.max()) + 1) if asked is None else None
    if missing := [other for other in block if other not in seeds]:
        if cut is None or any(other not in seeds for other in cut.block):
            raise UsageError(
                f"trajectory {index} ran together with trajectories {block[0]} to {block[-1]}, and the seeds of "
                f"{missing} are not in {record.name}"
            )
        return cut, None
    return rerun, cut
