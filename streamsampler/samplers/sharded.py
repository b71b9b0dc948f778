"""Sample into a folder of files: more than fits into memory, and resumable after whatever ended it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UnwritableInfoError, UsageError, positive
from streamsampler.core.fingerprints import agree
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import Display, ProgressArgument, display
from streamsampler.data.batch_fields import ActionsT, ObservationsT
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.data.kept_infos import InfosArgument, KeptInfos
from streamsampler.data.portions import Target
from streamsampler.data.shards import Manifest, ShardWriter
from streamsampler.samplers.base import Sampler

_log = logging.getLogger("streamsampler")

_ELSEWHERE = (
    "{} was begun where NumPy or torch compute with other kernels ({} there, {} here), so what is sampled now may not "
    "be what would have been sampled there. Continue on a machine of that kind: see "
    'streamsampler/docs/guarantees.md, "Other processors"'
)


@suggesting()
def sample_to_folder(
    sampler: Sampler[ObservationsT, ActionsT],
    folder: str | os.PathLike[str],
    *,
    n_timesteps: int | None = None,
    n_trajectories: int | None = None,
    shard_size: int,
    resume: bool = False,
    provenance: Mapping[str, Any] | None = None,
    infos: InfosArgument = True,
    compress: bool = False,
    progress: ProgressArgument = False,
) -> TrajectoryFolder[ObservationsT, ActionsT]:
    """Sample trajectories into a folder of files, each written when it is complete.

    The folder holds what `obtain_samples(n_timesteps)` or `obtain_trajectories(n_trajectories)` would return. Memory
    holds about three files' worth of it: the trajectories of a file as they arrived, the same as one batch, and those
    that workers run ahead.

    Whatever ends the call (Ctrl-C, SIGKILL, a full disk, an error), the same call with `resume=True` continues with the
    first missing file, also with another number of workers. The finished folder is the same, byte for byte, as that of
    an uninterrupted call. The sampler must have the same seed, arguments, agent and environment, and must have made as
    many calls before, interrupted ones included: make a new one, with an explicit `seed`. Another seed, other arguments
    and an environment of another name are refused. Agents and changed code are not compared; name them in `provenance`.
    After the call the sampler goes on as it would after an uninterrupted one; for the statistics of its filters the
    raw data of a folder that was begun before are read once more.
    On a machine that computes with other kernels (see `fingerprint` of `Sampler`) the files may be others: that is
    logged, or an error, before anything is written.

    Example:
        ```python
        with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
            folder = sample_to_folder(sampler, "big", n_timesteps=1_000_000, shard_size=100_000, resume=True)
        for shard in folder.shards:  # one TrajectoryBatch in memory at a time
            print(shard.returns.mean())
        ```

    Args:
        sampler: The sampler: of `order="index"`, and with workers that run each trajectory by itself. This is one call
            on the sampler, as `stream` is.
        folder: The folder. It is made where there is none; its parent directory must exist.
        n_timesteps: At least this number of timesteps, of whole trajectories; or:
        n_trajectories: Exactly this number of trajectories. Give one of the two.
        shard_size: Timesteps that each file has at least.
        resume: Whether to continue with what the folder holds. A new folder may be resumed, too, and a finished one
            with a larger amount: then it becomes, byte for byte, what one call with that amount writes.
        provenance: What else identifies the data, by name: anything that JSON can hold. Each file has it, next to the
            sampler's arguments.
        infos: True for all infos, False for none, or the names of the outermost keys that are written, whichever of
            `env_infos`, `agent_infos` and `episode_infos` have them.
        compress: Compress the arrays of each file that this call writes; slower. Files are read alike either way,
            so an interrupted call may be resumed with another value.
        progress: See `Sampler.obtain_samples`.

    Returns:
        The complete folder.

    Raises:
        UsageError: An argument cannot work; or the folder holds something else, or was begun with other arguments (a
            ValueError).
        DamagedShardError: A file in the folder is damaged, missing or of another run; names the file.
        UnwritableInfoError: A trajectory has an info that no file can hold: raised when the trajectory arrives.
        StorageError: Another process is writing to the folder; the system cannot lock folders; or the data cannot be
            written.
        OSError: The folder cannot be written. For other errors see `Sampler.stream`.
    """
    if not isinstance(sampler, Sampler):
        raise UsageError(f"sample_to_folder takes a sampler first, not a {type(sampler).__qualname__}")
    amount = _amount(n_timesteps, n_trajectories)
    kept = KeptInfos.of(infos)
    wanted = Manifest(
        seed=sampler.seed,
        shard_size=positive("shard_size", shard_size),
        wanted={amount.unit: amount.number},
        provenance=_provenance(sampler, provenance, kept),
    )
    path = Path(folder)
    with ShardWriter(path, resume=resume, compress=compress) as writer:
        writer.begin(wanted)
        before, was_begun, version = sampler.filters, bool(writer.shards), sampler.agent_version
        if writer.missing:
            earlier = writer.n_timesteps, writer.n_trajectories
            with display(progress, amount.number, amount.unit, earlier=earlier) as shown:
                try:
                    _write_missing(sampler, writer, path, kept, shown)
                except UnwritableInfoError:
                    writer.take_back()  # so that the same folder takes other infos
                    raise
        writer.finish()
        if sampler.agent_version == version:
            sampler.count_as_called()
    done = TrajectoryFolder[ObservationsT, ActionsT](path)
    if was_begun and before:
        # The sampler goes on as if it had sampled the shards that were there.
        sampler.put_back_filters(before.merged(before.summaries_of(done.shards)))
    return done


def _amount(n_timesteps: int | None, n_trajectories: int | None) -> Target:
    if (n_timesteps is None) == (n_trajectories is None):
        raise UsageError("sample_to_folder takes either n_timesteps or n_trajectories")
    if n_timesteps is not None:
        return Target("timesteps", positive("n_timesteps", n_timesteps))
    return Target("trajectories", positive("n_trajectories", n_trajectories))


def _provenance(sampler: Sampler[Any, Any], given: Mapping[str, Any] | None, kept: KeptInfos) -> dict[str, Any]:
    """Return what identifies the data, as it is read back; refuse samplers whose calls cannot be resumed."""
    own = sampler.provenance()
    own.pop("fingerprints", None)  # of the calls before
    if own["order"] != "index":
        raise UsageError('sample_to_folder needs a sampler with order="index": what arrives first cannot be repeated')
    if "staleness" in own:
        raise UsageError("sample_to_folder needs a sampler with staleness=0")
    if sampler.layout.block > 1:
        raise UsageError("sample_to_folder needs workers that run each trajectory by itself, not blocks of them")
    try:
        about_env: dict[str, Any] = {name: own.pop(name) for name in ("environment", "env_kwargs") if name in own}
        provenance: dict[str, Any] = {**about_env, **(given or {}), **kept.facts(), **own}
        stored: dict[str, Any] = json.loads(json.dumps(provenance, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as reason:
        raise UsageError(f"provenance must be a dict that JSON can hold: {reason}") from None
    return stored


def _write_missing(
    sampler: Sampler[Any, Any], writer: ShardWriter, path: Path, kept: KeptInfos, shown: Display
) -> None:
    """Write the shards that are missing."""
    manifest = writer.begun
    compared = frozenset[str]()
    before = writer.n_timesteps, writer.n_trajectories

    def watch(timesteps: int, trajectories: int) -> None:
        shown.update(lambda: (before[0] + timesteps, before[1] + trajectories), complete=False)

    with sampler.writable_infos(kept), sampler.stream(first_trajectory=writer.following) as stream:
        if shown.interval is not None:
            stream.watch(watch, shown.interval)
        while writer.missing:
            size, n_trajectories, n_timesteps = manifest.shard_size, writer.n_trajectories, writer.n_timesteps
            batch = stream.take(manifest.target.next_portion(size, n_trajectories, n_timesteps))
            if not batch.fingerprints <= compared:
                compared |= batch.fingerprints
                _compare(sampler, path, manifest.fingerprints, batch.fingerprints)
            writer.write(batch)
            del batch  # so that its memory is free while the next shard arrives
            shown.update(lambda: (writer.n_timesteps, writer.n_trajectories), complete=not writer.missing)


def _compare(sampler: Sampler[Any, Any], path: Path, earlier: frozenset[str], found: frozenset[str]) -> None:
    """Compare how the workers compute with how those did that wrote the folder."""
    mode, text = sampler.fingerprint, _sampled_elsewhere(str(path), earlier, found)
    if text and mode == "error":
        raise UsageError(text)
    if text and mode == "warn":
        _log.warning("%s", text)


def _sampled_elsewhere(place: str, there: Collection[str], here: Iterable[str]) -> str:
    """Describe which fingerprints are new to a folder; "" if each agrees with one of its own, or it has none."""
    strangers = [bits for bits in sorted(here) if there and not any(agree(bits, other) for other in there)]
    return _ELSEWHERE.format(place, " and ".join(sorted(there)), " and ".join(strangers)) if strangers else ""
