"""Sample into a folder of files: more data than memory holds, resumable after any interruption."""

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
from streamsampler.data.info_selection import InfosArgument, InfoSelection
from streamsampler.data.portions import Target
from streamsampler.data.shard_writer import ShardWriter
from streamsampler.data.shards import Manifest
from streamsampler.samplers.base import Sampler

_log = logging.getLogger("streamsampler")

_ELSEWHERE = (
    "{} was started on a machine where NumPy or torch use other kernels ({} there, {} here), so the data sampled here "
    "may differ. Continue on a machine of the same kind: see "
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
    """Sample trajectories into a folder of files, writing each file when complete.

    The folder holds the trajectories of `obtain_samples(n_timesteps)` or `obtain_trajectories(n_trajectories)`. Memory
    holds about three files: a file as received, as a batch, and trajectories run ahead by workers.

    After any interruption (Ctrl-C, SIGKILL, a full disk, an error), the same call with `resume=True` continues with the
    first missing file, also with another number of workers. The finished folder is the same, byte for byte, as after an
    uninterrupted call. The sampler must have the same seed, arguments, agent and environment, and as many calls before
    it, interrupted ones included: make a new sampler with an explicit `seed`. Another seed, other arguments and another
    environment name are refused. Agents and changed code are not compared; identify them in `provenance`. Afterwards
    the sampler continues as after an uninterrupted call, which requires reading a resumed folder once more if it has
    filters. On a machine with other kernels, `fingerprint` of `Sampler` decides about a warning or an error, before
    anything is written.

    Example:
        ```python
        with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
            folder = sample_to_folder(sampler, "big", n_timesteps=1_000_000, shard_size=100_000, resume=True)
        for shard in folder.shards:  # one TrajectoryBatch in memory at a time
            print(shard.returns.mean())
        ```

    Args:
        sampler: The sampler, with `order="index"` and workers that run each trajectory by itself. This counts as a
            single call on the sampler, as `stream` does.
        folder: The folder, made if missing; its parent directory must exist.
        n_timesteps: At least this number of timesteps, in whole trajectories; or:
        n_trajectories: Exactly this number of trajectories. Give either of the two.
        shard_size: Least number of timesteps in each file.
        resume: Whether to continue an existing folder. A new folder is accepted, too; a finished folder with a larger
            amount becomes, byte for byte, the folder of a single call with this amount.
        provenance: Further identification of the data, by name, in JSON's types. Each file has it, next to the
            sampler's arguments.
        infos: True for all infos, False for none, or the names of the outermost keys to write, from `env_infos`,
            `agent_infos` and `episode_infos` alike.
        compress: Compress the arrays of each file written by this call; slower. Both kinds of file are read alike, so
            an interrupted call may be resumed with another value.
        progress: See `Sampler.obtain_samples`.

    Returns:
        The complete folder.

    Raises:
        UsageError: An argument is invalid; or the folder holds something else, or was started with other arguments (a
            ValueError).
        DamagedShardError: A file in the folder is damaged, missing or from another run; names the file.
        UnwritableInfoError: A trajectory has an info that no file can hold: raised when the trajectory arrives.
        StorageError: Another process is writing to the folder; the system cannot lock folders; or the data cannot be
            written.
        OSError: The folder cannot be written. For other errors see `Sampler.stream`.
    """
    if not isinstance(sampler, Sampler):
        raise UsageError(f"sample_to_folder takes a sampler first, not a {type(sampler).__qualname__}")
    amount = _amount(n_timesteps, n_trajectories)
    kept = InfoSelection.of(infos)
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
                    writer.remove_empty_manifest()  # so that the folder can be resumed with other infos
                    raise
        writer.finish()
        if sampler.agent_version == version:
            sampler.advance_version()
    done = TrajectoryFolder[ObservationsT, ActionsT](path)
    if was_begun and before:
        # The filters must have the statistics of an uninterrupted call, hence those of the shards from earlier calls.
        sampler.restore_filters(before.merged(before.summaries_of(done.shards)))
    return done


def _amount(n_timesteps: int | None, n_trajectories: int | None) -> Target:
    if (n_timesteps is None) == (n_trajectories is None):
        raise UsageError("sample_to_folder needs exactly one of n_timesteps and n_trajectories")
    if n_timesteps is not None:
        return Target("timesteps", positive("n_timesteps", n_timesteps))
    return Target("trajectories", positive("n_trajectories", n_trajectories))


def _provenance(sampler: Sampler[Any, Any], given: Mapping[str, Any] | None, kept: InfoSelection) -> dict[str, Any]:
    """Return the identification of the data, as read back; refuse samplers without resumable calls."""
    own = sampler.provenance()
    own.pop("fingerprints", None)  # those are from earlier calls
    if own["order"] != "index":
        raise UsageError(
            'sample_to_folder needs a sampler with order="index", because the order of arrival cannot be repeated'
        )
    if "staleness" in own:
        raise UsageError("sample_to_folder needs a sampler with staleness=0")
    if sampler.layout.block > 1:
        raise UsageError(
            "sample_to_folder needs workers that run each trajectory by itself, but these run blocks of "
            f"{sampler.layout.block}"
        )
    try:
        about_env: dict[str, Any] = {name: own.pop(name) for name in ("environment", "env_kwargs") if name in own}
        provenance: dict[str, Any] = {**about_env, **(given or {}), **kept.facts(), **own}
        stored: dict[str, Any] = json.loads(json.dumps(provenance, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as reason:
        raise UsageError(f"provenance must be a dict that JSON can hold: {reason}") from None
    return stored


def _write_missing(
    sampler: Sampler[Any, Any], writer: ShardWriter, path: Path, kept: InfoSelection, shown: Display
) -> None:
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
            del batch  # releases its memory while the next shard arrives
            shown.update(lambda: (writer.n_timesteps, writer.n_trajectories), complete=not writer.missing)


def _compare(sampler: Sampler[Any, Any], path: Path, earlier: frozenset[str], found: frozenset[str]) -> None:
    """Compare the workers' fingerprints with those in the folder."""
    mode, text = sampler.fingerprint, _sampled_elsewhere(str(path), earlier, found)
    if text and mode == "error":
        raise UsageError(text)
    if text and mode == "warn":
        _log.warning("%s", text)


def _sampled_elsewhere(place: str, there: Collection[str], here: Iterable[str]) -> str:
    """Return the warning about fingerprints that agree with none in the folder; "" if all agree, or it has none."""
    strangers = [bits for bits in sorted(here) if there and not any(agree(bits, other) for other in there)]
    return _ELSEWHERE.format(place, " and ".join(sorted(there)), " and ".join(strangers)) if strangers else ""
