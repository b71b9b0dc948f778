"""Check the file or folder that a run writes before the run, which may take hours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.errors import StorageError, UsageError
from streamsampler.storage.atomic import temporary_beside
from streamsampler.storage.shards import check_folder

__all__ = ["out_file", "storable"]

_OTHER_FORMATS = frozenset((
    ".arrow", ".avro", ".csv", ".db", ".feather", ".gz", ".h5", ".hdf", ".hdf5", ".ipc", ".jpg", ".json",
    ".jsonl", ".mat", ".mp4", ".msgpack", ".nc", ".npy", ".orc", ".parquet", ".pickle", ".pkl", ".png", ".pt",
    ".pth", ".safetensors", ".sqlite", ".tar", ".tfrecord", ".tgz", ".tsv", ".txt", ".xls", ".xlsx", ".xz",
    ".yaml", ".yml", ".zarr", ".zip",
))  # fmt: skip
"""Endings of files that are of another format: a user who asks for one would get something else."""


def out_file(ctx: click.Context, _param: click.Parameter, value: str) -> Path:
    """Return the file to write, as `TrajectoryBatch.save` names it: with the suffix ``.npz``. An option's callback.

    With shards it is the folder, as it is called.

    Raises:
        click.BadParameter: It cannot be written.
    """
    given = Path(value)
    sharded = ctx.params.get("shard_size") is not None
    if given.suffix.lower() in _OTHER_FORMATS and not (given.exists() and sharded) and not given.is_dir():
        raise click.BadParameter(
            f"{value!r}: {given.suffix} is not written. What is sampled goes into a .npz file, or with --shard-size "
            "into a folder of them; streamsampler.load reads both"
        )
    if sharded:
        return _folder(given, resume=bool(ctx.params.get("resume") or ctx.params.get("repair")))
    if given.is_dir() or not given.name:
        raise click.BadParameter(f"{value!r} is a directory: name a file in it, such as {str(given / 'out.npz')!r}")
    target = given if given.name.endswith(".npz") else given.with_name(f"{given.name}.npz")
    if target.is_dir():
        raise click.BadParameter(f"{str(target)!r} is a directory")
    if not target.parent.is_dir():
        raise click.BadParameter(f"there is no directory {str(target.parent)!r}")
    _try(target)
    return target


def _folder(path: Path, *, resume: bool) -> Path:
    try:
        check_folder(path, resume=resume)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None
    except (StorageError, OSError) as error:
        raise click.ClickException(str(error)) from None
    _try(path / "x" if path.exists() else path)
    return path


def _try(target: Path) -> None:
    """Make and remove a file next to the target: missing rights, a full quota and too long a name are found now."""
    trial = temporary_beside(target)
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise click.BadParameter(f"{str(target)!r} cannot be written: {error.strerror or error}") from None


def storable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON can hold them; others, such as sets, as Python writes them."""
    return {key: value if _fits_json(value) else _written(value) for key, value in arguments.items()}


def _written(value: Any) -> str:
    # Python writes a set's strings in an order that is another one in each process.
    if isinstance(value, set) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value)


def _fits_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
