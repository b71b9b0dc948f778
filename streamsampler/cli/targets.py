"""Check files and folders for results before a run, which may take hours."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from streamsampler.cli.streams import failure
from streamsampler.core.atomic import temporary_beside
from streamsampler.core.errors import StorageError, UsageError
from streamsampler.data.shard_writer import check_folder
from streamsampler.data.shards import MANIFEST

_FORMATS = frozenset((
    ".arrow", ".avro", ".csv", ".db", ".eps", ".feather", ".gif", ".gz", ".h5", ".hdf", ".hdf5", ".ipc", ".jpeg",
    ".jpg", ".json", ".jsonl", ".mat", ".mp4", ".msgpack", ".nc", ".npy", ".npz", ".orc", ".parquet", ".pdf", ".pickle",
    ".pkl", ".png", ".pt", ".pth", ".safetensors", ".sqlite", ".svg", ".tar", ".tfrecord", ".tgz", ".tsv", ".txt",
    ".xls", ".xlsx", ".xz", ".yaml", ".yml", ".zarr", ".zip",
))  # fmt: skip
"""Suffixes of known formats: a user who requests another format than the written format would be misled."""


def checked_file(value: str, suffix: str, *others: str, where: str, option: str = "'--out'") -> Path:
    """Return a writable file, with the suffix added if missing. Checked before the run, which may take hours.

    Args:
        value: The file's name.
        suffix: Its suffix.
        others: Other permitted suffixes.
        where: Contents and place, for errors.
        option: The option with the name.

    Raises:
        click.BadParameter: The file cannot be written, or has the suffix of another format.
    """
    try:
        return _checked_file(value, suffix, *others, where=where)
    except click.BadParameter as error:
        error.param_hint = option
        raise


def _checked_file(value: str, suffix: str, *others: str, where: str) -> Path:
    given = _named_file(value)
    suffix = next((each for each in others if given.name.endswith(each)), suffix)
    if given.is_dir() or not given.name:
        if (given / MANIFEST).exists():
            raise _bad_out(f"{value!r} is a folder of shards: resume it with --shard-size and --resume")
        example = str(given / f"out{suffix}")
        raise _bad_out(f"{value!r} is a directory: name a file in it, such as {example!r}")
    _check_format(given, suffix, where)
    target = given if given.name.endswith(suffix) else given.with_name(f"{given.name}{suffix}")
    if target.is_dir():
        raise _bad_out(f"{str(target)!r} is a directory")
    if not target.parent.is_dir():
        raise _bad_out(f"no such directory: {str(target.parent)!r}")
    _try(target)
    return target


def _named_file(value: str) -> Path:
    """Return the path of a name; refuse names of streams and devices, which have no suffix.

    Raises:
        click.BadParameter: The name stands for a stream or a device.
    """
    path = Path(value)
    is_device = path.exists() and not (path.is_file() or path.is_dir())
    if value == "-" or is_device or path.parent == Path("/dev"):
        raise _bad_out(f"{value!r} is no regular file: give a file's name. Standard output is for the summary only")
    return path


def unused_beside(target: Path) -> Path:
    """Return an unused file next to a target: `out.partial.npz`, or else `out.partial-2.npz` and so on.

    It receives the trajectories of an interrupted run if the target holds another run.
    """
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (f"{target.stem}.partial{ending}{target.suffix}" for ending in endings)
    return next(path for path in map(target.with_name, names) if not path.exists())


def _check_format(given: Path, suffix: str, where: str) -> None:
    if given.suffix.lower() in _FORMATS - {suffix}:
        raise _bad_out(f"{str(given)!r}: {given.suffix} is not supported; {where}")


def checked_folder(value: str, suffix: str, where: str, *, resume: bool) -> Path:
    """Return a folder for shards; see `checked_file`."""
    path = _named_file(value)
    if not path.exists():
        _check_format(path, suffix, where)
    try:
        check_folder(path, resume=resume)
    except UsageError as error:
        raise _bad_out(str(error)) from None
    except (StorageError, OSError) as error:
        raise failure(str(error)) from None
    _try(path / "x" if path.exists() else path)
    return path


def _bad_out(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="'--out'")


def _try(target: Path) -> None:
    """Create and remove a file next to the target, to find missing rights, a full quota or too long a name now."""
    trial = temporary_beside(target)
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise _bad_out(f"{str(target)!r} cannot be written: {error.strerror or error}") from None
