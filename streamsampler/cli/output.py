"""Check the file or folder that a run writes before the run, which may take hours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.errors import StorageError, UsageError
from streamsampler.storage.atomic import temporary_beside
from streamsampler.storage.manifest import MANIFEST
from streamsampler.storage.shards import check_folder

_FORMATS = frozenset((
    ".arrow", ".avro", ".csv", ".db", ".eps", ".feather", ".gif", ".gz", ".h5", ".hdf", ".hdf5", ".ipc", ".jpeg",
    ".jpg", ".json", ".jsonl", ".mat", ".mp4", ".msgpack", ".nc", ".npy", ".npz", ".orc", ".parquet", ".pdf", ".pickle",
    ".pkl", ".png", ".pt", ".pth", ".safetensors", ".sqlite", ".svg", ".tar", ".tfrecord", ".tgz", ".tsv", ".txt",
    ".xls", ".xlsx", ".xz", ".yaml", ".yml", ".zarr", ".zip",
))  # fmt: skip
"""Endings of files of known formats: a user who asks for one that is not written would get something else."""

_WHERE = (
    "What is sampled goes into a .npz file, or with --shard-size into a folder of them; streamsampler.load reads both"
)


def out_file(ctx: click.Context, _param: click.Parameter, value: str) -> Path:
    """Return the file to write, as `TrajectoryBatch.save` names it: with the suffix ``.npz``. An option's callback.

    With shards it is the folder, as it is called.

    Raises:
        click.BadParameter: It cannot be written.
    """
    given = Path(value)
    if ctx.params.get("shard_size") is None:
        return checked_file(value, ".npz", _WHERE)
    if not given.exists():
        _check_format(given, ".npz", _WHERE)
    return _folder(given, resume=bool(ctx.params.get("resume")))


def checked_file(value: str, suffix: str, where: str) -> Path:
    """Return a file that can be written; one without the suffix gets it.

    Args:
        value: The file's name.
        suffix: Its suffix.
        where: What is written, and where, for errors.

    Raises:
        click.BadParameter: It cannot be written, or has the suffix of another format.
    """
    given = Path(value)
    if given.is_dir() or not given.name:
        if (given / MANIFEST).exists():
            raise click.BadParameter(f"{value!r} is a folder of shards: --shard-size and --resume go on with it")
        example = str(given / f"out{suffix}")
        raise click.BadParameter(f"{value!r} is a directory: name a file in it, such as {example!r}")
    _check_format(given, suffix, where)
    target = given if given.name.endswith(suffix) else given.with_name(f"{given.name}{suffix}")
    if target.is_dir():
        raise click.BadParameter(f"{str(target)!r} is a directory")
    if not target.parent.is_dir():
        raise click.BadParameter(f"there is no directory {str(target.parent)!r}")
    _try(target)
    return target


def _check_format(given: Path, suffix: str, where: str) -> None:
    if given.suffix.lower() in _FORMATS - {suffix}:
        raise click.BadParameter(f"{str(given)!r}: {given.suffix} is not written. {where}")


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
