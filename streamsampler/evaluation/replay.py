"""Run a recorded trajectory again, from a file, a folder or a batch."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from streamsampler.agents.policies import PolicyOf
from streamsampler.agents.random import RandomAgent
from streamsampler.core.errors import SamplerError, StorageError, UnknownEnvironmentError, UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import dumps, loads
from streamsampler.core.words import count
from streamsampler.data import npz as storage
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.data.shards import load_with_header, read_manifest, shard_name
from streamsampler.data.taken_actions import check_chosen
from streamsampler.environments.filming import check_renders, check_video
from streamsampler.environments.ids import find_spec
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.evaluation.agents import Row, evaluated_agent
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.protocol.plans import Streamed
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_worker import PerWorker, items_by_worker
from streamsampler.samplers.processes import LocalSampler
from streamsampler.samplers.provenance import name_of_worker
from streamsampler.samplers.recorded import episode_of, recorded_one, resets_as_recorded
from streamsampler.samplers.replay_results import Replay
from streamsampler.samplers.rerun import Origin
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.resets import Options, Resets
from streamsampler.workers.vec.worker import VecWorker
from streamsampler.workers.waiting.worker import AsyncWorker

_WORKERS: Mapping[str, type[Worker]] = {kind.__name__: kind for kind in (DefaultWorker, VecWorker, AsyncWorker)}


class ReplayOptions(TypedDict, total=False):
    """How a trajectory was sampled, if a file does not say it, or to override the file."""

    env_kwargs: Mapping[str, Any]
    reset_options: Options | None
    max_episode_length: int | None
    n_trajectories: int | None
    worker_class: type[Worker]
    worker_args: Mapping[str, Any]
    worker_threads: int | None
    record_taken: str | None
    deterministic: bool | None
    vec_normalize: Any
    tasks: Sequence[Any]
    hooks: Any
    drop_if: Callable[[dict[str, Any]], Any] | None
    policy_of: PolicyOf | None


@suggesting(ReplayOptions.__annotations__)
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
    """Run a recorded trajectory again, in this process, and report its first difference.

    It runs from the same seed and, with `VecWorker`, in the same row of a batch of the same shape. Observations,
    actions, rewards and the end are compared, bit for bit. A file says how it was sampled (see `Sampler.provenance`);
    for a batch, and an older file, pass all values that were not defaults.

    A file must not decide which code runs: pass the agent, unless it was "random", and an environment whose registering
    module is not imported yet.

    Args:
        source: A file, a folder of shards, or a batch.
        index: The trajectory index: `batch.indices[i]`.
        agent: The agent of the trajectory, as `streamsampler.evaluate` takes it.
        env: The environment. None for the recorded id.
        version: The agent version; None if the index is unique.
        actions: Whether to replay the recorded actions, without the agent.
        video: A `.mp4` file for a video, which needs `pip install av`.
        options: `env_kwargs`, `max_episode_length`, `worker_class`, `worker_args`, `worker_threads` and `record_taken`,
            as samplers take them; `tasks`, all those of its call; `reset_options`, which files do not have;
            `n_trajectories`, the requested number, if any (it decides about the last block of trajectories that run
            together); `deterministic` and `vec_normalize`, see `streamsampler.evaluate`; `hooks` for the trajectory's
            metrics, `drop_if`, which decides about the trajectories that run together with it, and `policy_of`: see
            `Sampler`.

    Returns:
        The replay, for `print`: its `difference` is None if the trajectory is the same.

    Raises:
        UsageError: No such trajectory exists, or neither file nor arguments have a needed value; names it.
        RolloutError: The agent or the environment raised.
        StorageError: The file is damaged, or has other contents.
        ImportError: The library for videos is missing; says how to install it.
        OSError: The file cannot be read, or the video cannot be written.
    """
    index = positive("index", index, least=0)
    name, batch, facts = _read(source, index)
    one = episode_of(batch, recorded_one(batch, index, version), actions=actions)
    version = int(one.agent_versions[0])
    if actions and agent is not None:
        raise UsageError("recorded actions are replayed without an agent: leave it out")
    settings: dict[str, Any] = {**facts, **options}
    if actions:
        check_chosen(one, settings.get("record_taken"))
    notes: list[str] = []
    kind, args = (DefaultWorker, _in_flight(settings)) if actions else _kind_of_worker(name, facts, options, notes)
    limit, cut = settings.get("max_episode_length"), False
    if "max_episode_length" not in settings and one.truncated[0] and not one.terminated[0]:
        notes.append("max_episode_length is unknown, so only the recorded timesteps are compared")
        limit, cut = (len(one.rewards) if kind.layout(args).block == 1 else None), True
    origin = _origin(batch, one, facts, options, notes=tuple(notes), cut=cut)
    made = _environment(name, facts, env, options.get("env_kwargs"))
    n_workers = positive("n_workers", facts.get("n_workers", 1))
    with LocalSampler(
        "random" if actions else _agent(name, batch, facts, options, agent),
        PerWorker([made] * n_workers) if n_workers > 1 else made,
        n_workers=n_workers, seed=batch.seed or 0, max_episode_length=limit, worker_class=kind, worker_args=args,
        worker_threads=settings.get("worker_threads", 1), hooks=options.get("hooks"), drop_if=options.get("drop_if"),
        policy_of=None if actions else options.get("policy_of"), record_taken=settings.get("record_taken"),
    ) as sampler:  # fmt: skip
        return sampler.run_again(version, index, origin, recorded=batch, one=one, actions=actions, video=video)


def _read(source: Any, index: int) -> tuple[str, TrajectoryBatch[Any, Any], dict[str, Any]]:
    """Return the name of the source in errors, a batch with the trajectory, and the provenance."""
    if isinstance(source, TrajectoryBatch):
        return "the batch", source, {}
    if isinstance(source, TrajectoryFolder):
        source = source.path
    refuse_evaluation(source, index)
    if not isinstance(source, str | PathLike):
        raise UsageError(f"the first argument must be a file, a folder or a batch, not a {type(source).__qualname__}")
    path = Path(source)
    if not path.is_dir():
        batch, header = load_with_header(path)
        provenance = header["provenance"]
        return str(path), batch, provenance if isinstance(provenance, dict) else {}
    folder: TrajectoryFolder[Any, Any] = TrajectoryFolder(path)
    last = -1
    for number in range(len(folder.shards)):
        last = max([last, *storage.read(path / shard_name(number), "indices")[0]["indices"][-1:].tolist()])
        if index <= last:
            manifest = read_manifest(path)
            return str(path), folder.shards[number], {**manifest.provenance, "fingerprints": manifest.fingerprints}
    there = f"has trajectories 0 to {last}" if last >= 0 else "has no trajectories yet"
    raise UsageError(f"trajectory {index} does not exist: the folder {there}")


def refuse_evaluation(source: Any, index: int) -> None:
    """Refuse an evaluation or a comparison, which has no timesteps.

    Raises:
        UsageError: The source is such a file; has the command that samples the trajectory.
    """
    found = source
    if isinstance(source, str | PathLike) and Path(source).suffix == ".json" and Path(source).is_file():
        try:
            found = Evaluation.load(source)
        except StorageError:
            found = Comparison.load(source)
    if isinstance(found, Comparison):
        names = ", ".join(found.names)
        raise UsageError(f"this is a comparison of {names}, without timesteps: sample one agent's trajectories instead")
    if not isinstance(found, Evaluation):
        return
    position = found.indices.tolist().index(index) if index in found.indices else None
    if position is None:
        raise UsageError(
            f"the evaluation has no trajectory {index}; there are {found.indices[0]} to {found.indices[-1]}"
        )
    seed = found.seeds[position]
    text = "an evaluation has returns, but no timesteps to compare with. "
    if found.seed is None:
        raise UsageError(
            f"{text}Write the trajectory, and replay that: sampler.obtain_trajectories(seeds=[{seed}]).save('it.npz'), "
            "where its scenario has options with these as reset_options={…}"
        )
    limit = found.settings.get("max_episode_length")
    options = [
        *(() if found.agent.get("name") in ("random", RandomAgent.__name__) else ("--agent NAME",)),
        *(("--deterministic",) if found.agent.get("deterministic") else ()),
        *(() if limit is None else (f"--max-episode-length {limit}",)),
        f"--num-trajectories {index + 1} --seed {found.seed} --out it.npz",
    ]
    raise UsageError(
        f"{text}Write them with 'streamsampler sample {found.environment} {' '.join(options)}', and replay one with "
        f"'streamsampler replay it.npz --index {index}'"
    )


def _kind_of_worker(
    name: str, facts: Mapping[str, Any], options: ReplayOptions, notes: list[str]
) -> tuple[type[Worker], dict[str, Any]]:
    """Return the kind of worker and its arguments, and add notes on unknown values."""
    vec, said = facts.get("vec"), facts.get("worker")
    recorded = facts.get("worker_class") or ("VecWorker" if vec or said else "DefaultWorker")
    args = options.get("worker_args", facts.get("worker_args", {"n_envs": vec} if vec else {}))
    kind = options.get("worker_class", _WORKERS.get(recorded))
    if kind is None:
        raise UsageError(f"{name} was sampled with worker_class {recorded}: pass worker_class= and worker_args=")
    if "worker_class" in options and "worker_class" in facts and recorded != name_of_worker(kind):
        notes.append(f"it was sampled with worker_class {recorded}")
    if kind is VecWorker and not args:
        notes.append("n_envs is unknown, so the default is assumed; if it differs, pass worker_args=")
    if not isinstance(args, Mapping):
        raise UsageError(f"worker_args should be a dict, but is {args!r:.60}")
    if isinstance(said, str) and said != f"{kind.__name__}: {kind.revision}":
        notes.append(f"the workers were of another revision ({said}), which may make other trajectories")
    return kind, dict(args)


def _in_flight(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worker's arguments for recorded actions: those of an environment that waits, if recorded so."""
    return {"in_flight": 1} if "in_flight" in (settings.get("worker_args") or {}) else {}


def _origin(
    batch: TrajectoryBatch[Any, Any], one: TrajectoryBatch[Any, Any], facts: Mapping[str, Any], options: ReplayOptions,
    **more: Any,
) -> Origin:  # fmt: skip
    """Return the known facts of the call that recorded a trajectory."""
    index, version = int(one.indices[0]), int(one.agent_versions[0])
    there = batch.indices[batch.agent_versions == version]
    first, last = int(there.min()), int(there.max())
    wanted = facts.get("wanted")
    recorded = wanted.get("trajectories") if isinstance(wanted, dict) else None
    # In a part of a run it may be the part's own number.
    asked = options.get("n_trajectories", recorded if isinstance(recorded, int) and recorded > last else None)
    tasks = options.get("tasks", facts.get("tasks"))
    resets = resets_as_recorded(options.get("reset_options"), tasks, batch, version)
    if resets is None and (batch.seed is None or TrajectorySeeds(batch.seed, version)[index] != one.seeds[0]):
        resets = Resets()  # seeds were given
    bits, versions = facts.get("fingerprints"), facts.get("versions")
    return Origin(
        Streamed(0, asked),
        resets,
        first=first,
        stop=last + 1 if asked is None else None,
        derives_seeds=batch.seed is not None,
        fingerprints=batch.fingerprints | {it for it in bits or () if isinstance(it, str)},
        versions={str(name): str(it) for name, it in versions.items()} if isinstance(versions, dict) else None,
        **more,
    )


def _agent(
    name: str, batch: TrajectoryBatch[Any, Any], facts: Mapping[str, Any], options: ReplayOptions, agent: Any
) -> Any:
    """Return the agent of the trajectory, as samplers take it."""
    if agent is None:
        agent = facts.get("agent")
        if agent != "random":
            was = f" {name} says that it was {agent!r}" if isinstance(agent, str) else ""
            raise UsageError(f"the agent is missing: pass agent=, or actions=True for the recorded actions.{was}")
    deterministic = options.get("deterministic", facts.get("deterministic"))
    return evaluated_agent(
        agent, deterministic, options.get("vec_normalize"), lambda: batch.action_space, options.get("policy_of")
    )


def _environment(name: str, facts: Mapping[str, Any], env: Any, kwargs: Mapping[str, Any] | None) -> EnvUpdate:
    """Return an update that makes the environment, without running code that a file names."""
    said, recorded = facts.get("environment"), facts.get("env_kwargs")
    if env is None:
        if parameters := facts.get("env_parameters"):
            raise UsageError(
                f"{name} says that parameters of {said} were set, {parameters!r:.120}: pass "
                "env=SetParameters({…}, …) with the same"
            )
        env = _checked_id(name, said)
    if isinstance(env, str) and isinstance(said, str) and env.rpartition(":")[2] == said.rpartition(":")[2]:
        kwargs = {**(recorded if isinstance(recorded, dict) else {}), **(kwargs or {})}
    return as_env_update(env, env_kwargs=kwargs)


def _checked_id(name: str, said: Any) -> str:
    """Return the recorded id of an environment, checked to be registered."""
    if not isinstance(said, str):
        what = f"had several environments, {said!r:.80}" if said else "has no environment recorded"
        raise UsageError(f"{name} {what}: pass env=")
    module, _, own = said.rpartition(":")
    with contextlib.suppress(UnknownEnvironmentError):
        find_spec(own)
        return own
    if module:
        raise UsageError(
            f"{name} has the environment {said!r}; a file must not decide which module is imported: pass env={said!r}"
        )
    raise UsageError(f"{name} has the environment {said!r}, which is not registered: pass env=")


VideoOf: TypeAlias = int | Literal["first", "best", "median", "worst"]
"""A trajectory to film: an index, or its place by return."""

DEFAULT_VIDEOS: tuple[VideoOf, ...] = ("first", "best", "median", "worst")
_OF_FILES = {".mp4", ".gif", ".avi", ".mkv", ".mov", ".webm", ".apng", ".png"}
_log = logging.getLogger("streamsampler")


class VideoError(SamplerError):
    """A video could not be made; the evaluation is complete nevertheless.

    Attributes:
        found: The `Evaluation`.
    """

    def __init__(self, what: str, found: Any) -> None:
        super().__init__(what)
        self.found = found


@dataclass(frozen=True)
class Videos:
    """The trajectories to film, and the folder of the videos.

    Attributes:
        folder: The folder.
        of: The trajectories.
    """

    folder: Path
    of: tuple[VideoOf, ...]

    @classmethod
    def asked(cls, folder: str | PathLike[str] | None, of: Any) -> Videos | None:
        """Return the videos requested by arguments of `evaluate`, or None; make the folder.

        Raises:
            UsageError: An argument is invalid.
            ImportError: The library is missing; says how to install it.
        """
        if folder is None:
            if of is not None:
                raise UsageError("video_of needs video, the folder for the videos: give it, too")
            return None
        chosen = DEFAULT_VIDEOS if of is None else _listed(of)
        path = Path(folder)
        if path.suffix.lower() in _OF_FILES and not path.is_dir():
            raise UsageError(
                f"video is a folder for several videos: name it {path.with_suffix('').name!r}, not {str(path)!r}"
            )
        if path.exists() and not path.is_dir():
            raise UsageError(f"{str(path)!r} is a file, but videos are written to a folder")
        check_video((path if path.is_dir() else path.parent) / "trial.mp4")
        path.mkdir(exist_ok=True)
        return cls(path, chosen)

    def check(self, sampler: Sampler[Any, Any], env: Any, indices: range) -> None:
        """Check that the trajectories can be filmed, before the evaluation begins.

        Raises:
            UsageError: They cannot be filmed; says why.
        """
        for each in self.of:
            if isinstance(each, int) and each not in indices:
                raise UsageError(f"no video of trajectory {each}: there will be {indices[0]} to {indices[-1]}")
        if env is None:
            sampler.check_renders()
            return
        items = items_by_worker(env)
        # A copy, as in workers: an existing environment must not be reset.
        check_renders(loads(dumps(as_env_update(env if items is None else items[0]), "the environment")))

    def film(self, sampler: Sampler[Any, Any], rows: Sequence[Row], progress: ProgressArgument) -> None:
        """Run the chosen trajectories again, and write their videos.

        Raises:
            SamplerError: A trajectory cannot be run again or filmed.
            OSError: A video cannot be written.
        """
        chosen = list({row.trajectory: row for row in self._rows(rows)}.values())
        filmed: list[Row] = []

        def so_far() -> tuple[int, int]:
            return sum(row.length for row in filmed), len(filmed)

        with display(progress, len(chosen), "trajectories", note=lambda: "videos", doing="filming") as shown:
            for row in chosen:
                shown.update(so_far, complete=False)
                path = self.folder / video_name(row)
                trajectory = sampler.replay(sampler.agent_version, row.trajectory, video=path).trajectory
                _compare(row, trajectory, path)
                filmed.append(row)
            shown.update(so_far, complete=True)

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
                why = "it raised, and was dropped" if each < last else f"the last one is {last}"
                _log.warning("no trajectory %s, so no video of it: %s", each, why)


def video_name(row: Row) -> str:
    """Return the name of a trajectory's video: its index, its seed and its return."""
    return f"trajectory-{row.trajectory:06}_seed-{row.seed}_return{row.value:+.6g}.mp4"


def _listed(of: Any) -> tuple[VideoOf, ...]:
    listed = tuple(of) if isinstance(of, Iterable) and not isinstance(of, str) else (of,)
    for each in listed:
        if each not in DEFAULT_VIDEOS and (isinstance(each, bool) or not isinstance(each, int)):
            raise UsageError(f"video_of has {', '.join(map(repr, DEFAULT_VIDEOS))} and indices, not {each!r}")
    if not listed:
        raise UsageError("video_of is empty: name at least one trajectory")
    return listed


def _compare(row: Row, trajectory: TrajectoryBatch[Any, Any], path: Path) -> None:
    """Warn if the filmed trajectory differs from the evaluated one."""
    now = float(trajectory.raw_returns[0]), trajectory.n_timesteps, bool(trajectory.terminated[0])
    equal = now[0] == row.value or (math.isnan(now[0]) and math.isnan(row.value))
    if equal and now[1:] == (row.length, row.terminated):
        return
    _log.warning(
        "%s differs from the evaluation: trajectory %d, run again, has a return of %.6g after %s, and had %.6g after "
        "%s. It depends on more than its seed: see the argument check of samplers",
        path, row.trajectory, now[0], count(now[1], "timestep"), row.value, count(row.length, "timestep"),
    )  # fmt: skip
