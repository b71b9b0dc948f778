"""Join the files or the folders of parts to what one run would have written, byte for byte."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.words import count
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import differing_libraries
from streamsampler.scheduling.plans import Part, Target, in_order
from streamsampler.storage import npz as storage
from streamsampler.storage.codec import damage_raised
from streamsampler.storage.files import load_with_header
from streamsampler.storage.folder import TrajectoryFolder
from streamsampler.storage.manifest import Manifest, read_manifest
from streamsampler.storage.shards import ShardWriter
from streamsampler.version import __version__

# ----------------------------------------------------------------------
# Check that files are all parts of one run, and put them in order.


_log = logging.getLogger("streamsampler")

_KERNELS = (
    "the parts were sampled where {} with other kernels, so that one run may have sampled other trajectories: {}. See "
    '"Other processors" in the guide, streamsampler.samplers'
)
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """What a file or a folder says of itself.

    Attributes:
        path: The file or the folder.
        part: Which part it is; None for none.
        origin: What decides about its trajectories, by name: all parts of a run agree in it.
        fingerprints: How the workers computed that sampled it.
        lacks: What is missing, and what to do about it; empty where the part is whole.
    """

    path: Path
    part: Part | None
    origin: Mapping[str, Any]
    fingerprints: frozenset[str] = frozenset()
    lacks: str = ""


def parts_of_one_run(files: Sequence[PartFile]) -> list[PartFile]:
    """Return parts in the order of their indices; warn where they were computed with other kernels.

    Raises:
        UsageError: They are not all parts of one run, each once and whole; names the files, and what differs or lacks.
    """
    for file in files:
        if file.lacks:
            raise UsageError(f"{file.path}{f', {file.part},' if file.part else ''} {file.lacks}")
    for file in files[1:]:
        _check_origin(files[0], file)
    by_name = {str(file.path): file for file in files}
    names = in_order({name: file.part for name, file in by_name.items()})
    _warn_of_kernels(files)
    return [by_name[name] for name in names]


def check_paths(parts: Sequence[Path], out: Path) -> None:
    """Check that no part is given twice, and that what is written is none of them.

    Raises:
        UsageError: One is.
    """
    seen: set[Path] = set()
    for path in parts:
        if (resolved := path.resolve()) in seen:
            raise UsageError(f"{path} is given twice")
        seen.add(resolved)
    if out.resolve() in seen:
        raise UsageError(f"{out} is one of the parts: name another file or folder to write")


def _check_origin(one: PartFile, other: PartFile) -> None:
    differences = [
        f"{name} is {one.origin.get(name)!r:.200} in {one.path}, and {other.origin.get(name)!r:.200} in {other.path}"
        for name in dict.fromkeys([*one.origin, *other.origin])
        if one.origin.get(name) != other.origin.get(name)
    ]
    if differences:
        raise UsageError(f"the parts are of different runs: {'; '.join(differences)}")


def _warn_of_kernels(files: Sequence[PartFile]) -> None:
    libraries = differing_libraries(bits for file in files for bits in file.fingerprints)
    if not libraries:
        return
    places: dict[str, list[str]] = {}
    for file in files:
        for bits in sorted(file.fingerprints):
            places.setdefault(bits, []).append(str(file.path))
    described = [
        f"{bits} in {', '.join(paths[:_SHOWN])}{', …' if len(paths) > _SHOWN else ''}" for bits, paths in places.items()
    ]
    verb = "computes" if len(libraries) == 1 else "compute"
    _log.warning("%s", _KERNELS.format(f"{' and '.join(libraries)} {verb}", "; ".join(described)))


# ----------------------------------------------------------------------


_OF_THE_COMPUTER = "fingerprints"
"""What a provenance says of the machine, in which parts may differ."""


def merge_files(paths: Sequence[Path], out: Path) -> TrajectoryBatch[Any, Any]:
    """Write the batch that the `.npz` files of parts are together, and return it.

    Raises:
        UsageError: They are not all parts of one run, each once and whole.
        StorageError: A file holds no batch, or is damaged.
        OSError: A file cannot be read or written.
    """
    batches: dict[Path, TrajectoryBatch[Any, Any]] = {}
    provenances: dict[Path, dict[str, Any]] = {}
    files = []
    for path in paths:
        batches[path], header = load_with_header(path)
        with damage_raised(path):
            provenances[path] = dict(header["provenance"])
            files.append(_described(path, batches[path], header))
    ordered = [file.path for file in parts_of_one_run(files)]
    batch = _joined([batches.pop(path) for path in ordered])
    provenance = provenances[ordered[0]]
    if _OF_THE_COMPUTER in provenance:
        provenance[_OF_THE_COMPUTER] = sorted({bits for file in files for bits in file.fingerprints})
    storage.save(batch, out, provenance=provenance)
    return batch


def _described(path: Path, batch: TrajectoryBatch[Any, Any], header: dict[str, Any]) -> PartFile:
    provenance = dict(header["provenance"])
    fingerprints = frozenset(map(str, provenance.pop(_OF_THE_COMPUTER, [])))
    interrupted = provenance.pop("interrupted", False)
    lacks = "was interrupted, and holds what was finished by then: run this part again" if interrupted else ""
    if batch.part is not None and not lacks:
        lacks = _lacks(batch, dropping=provenance.get("on_failure") == "drop")
    origin = {
        **provenance,
        "seed": batch.seed,
        "agent_version": batch.agent_version,
        "package_version": header["package_version"],
    }
    return PartFile(path=path, part=batch.part, origin=origin, fingerprints=fingerprints, lacks=lacks)


def _lacks(batch: TrajectoryBatch[Any, Any], *, dropping: bool) -> str:
    part, indices = batch.part, batch.indices.tolist()
    assert part is not None
    expected = range(part.first_trajectory, part.stop)
    fits = set(indices) <= set(expected) and indices == sorted(set(indices))
    if fits and (dropping or len(indices) == len(expected)):
        return ""
    return f"should hold trajectories {expected[0]} to {expected[-1]}, and does not: run this part again"


def _joined(batches: Sequence[TrajectoryBatch[Any, Any]]) -> TrajectoryBatch[Any, Any]:
    joined: TrajectoryBatch[Any, Any] = batches[0]._joined(batches, kept_kinds=True)
    return joined


def merge_folders(
    paths: Sequence[Path], out: Path, begun: Callable[[int], Callable[[int, int], object]]
) -> TrajectoryFolder[Any, Any]:
    """Write the folder that the folders of parts are together, with its shards cut as one run cuts them.

    Memory holds a few shards. Where this was killed, the same call goes on with what it wrote.

    Args:
        paths: The folders.
        out: The folder to write; it must be new, empty, or a part of the very same.
        begun: Called with how many trajectories there will be; returns what is called with the timesteps and
            trajectories that are there, after each shard.

    Raises:
        UsageError: They are not all parts of one run, each once and whole; or `out` holds something else.
        DamagedShardError: A shard is damaged or missing; names the file.
        StorageError: A folder has no manifest, or it is damaged; or another process is writing to `out`.
        OSError: A folder cannot be read or written.
    """
    manifests = {path: read_manifest(path) for path in paths}
    files = parts_of_one_run([_of_manifest(path, manifest) for path, manifest in manifests.items()])
    first = manifests[files[0].path]
    wanted = replace(first, part=None, complete=False, shards=(), fingerprints=frozenset(), package_version=__version__)
    fingerprints = frozenset(bits for file in files for bits in file.fingerprints)
    with ShardWriter(out, resume=True) as writer:
        if writer.manifest is not None and writer.manifest.complete:
            raise UsageError(f"{str(out)!r} holds trajectories already: name another folder")
        writer.begin(wanted)
        shown = begun(wanted.target.number)
        there = TrajectoryFolder[Any, Any](out).shards
        for number, batch in enumerate(_shards([file.path for file in files], wanted.target, wanted.shard_size)):
            if number >= len(there):
                writer.write(replace(batch, fingerprints=fingerprints))
                shown(writer.n_timesteps, writer.n_trajectories)
            elif there[number] != batch:
                raise UsageError(f"{str(out)!r} was begun with other trajectories: remove it, or name another folder")
        writer.finish()
    return TrajectoryFolder(out)


def _of_manifest(path: Path, manifest: Manifest) -> PartFile:
    origin = {**manifest.decides(), "versions": manifest.provenance.get("versions")}
    origin.pop("part", None)
    there, wanted = manifest.n_trajectories, manifest.target.number
    lacks = ""
    if manifest.part is not None and not (manifest.complete and there == wanted):
        lacks = f"is not complete: it lists {there:,} of {count(wanted, 'trajectory')}. Resume the run of this part"
    fingerprints = manifest.fingerprints
    return PartFile(path=path, part=manifest.part, origin=origin, fingerprints=fingerprints, lacks=lacks)


def _shards(paths: Sequence[Path], target: Target, size: int) -> Iterator[TrajectoryBatch[Any, Any]]:
    """Cut the trajectories of folders into shards, as a run cuts those that it samples.

    Args:
        paths: The folders, in order.
        target: How many trajectories there are in all.
        size: Timesteps that a shard has at least.
    """
    taken: list[TrajectoryBatch[Any, Any]] = []
    n_trajectories = n_timesteps = 0
    portion = target.next_portion(size, 0, 0)
    for piece in itertools.chain.from_iterable(TrajectoryFolder[Any, Any](path).shards for path in paths):
        start = 0
        while start < len(piece):
            n = portion.take(piece.lengths[start:].tolist())
            taken.append(piece[start : start + n])
            start += n
            if portion.met:
                shard, taken = _joined(taken), []
                n_trajectories, n_timesteps = n_trajectories + len(shard), n_timesteps + shard.n_timesteps
                yield shard
                portion = target.next_portion(size, n_trajectories, n_timesteps)
