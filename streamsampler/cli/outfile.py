"""The file that a run writes: checked before the run, for what cannot be written after an hour is lost."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.failures import Failure
from streamsampler.errors import StorageError
from streamsampler.trajectories import TrajectoryBatch
from streamsampler.version import __version__

__all__ = ["out_file", "storable", "write"]


def out_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
    """Return the file to write, as `TrajectoryBatch.save` names it: with the suffix ``.npz``. An option's callback.

    Raises:
        click.BadParameter: It cannot be written.
    """
    if value is None:
        return None
    given = Path(value)
    if given.is_dir() or not given.name:
        raise click.BadParameter(f"{value!r} is a directory: name a file in it, such as {str(given / 'out.npz')!r}")
    target = given if given.name.endswith(".npz") else given.with_name(f"{given.name}.npz")
    if target.is_dir():
        raise click.BadParameter(f"{str(target)!r} is a directory")
    if not target.parent.is_dir():
        raise click.BadParameter(f"there is no directory {str(target.parent)!r}")
    _try(target)
    return target


def _try(target: Path) -> None:
    """Make and remove a file beside the target: whatever forbids that (rights, quota, a long name) shows now."""
    trial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise click.BadParameter(f"{str(target)!r} cannot be written: {error.strerror or error}") from None


def write(batch: TrajectoryBatch, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a batch, with where it came from.

    Raises:
        Failure: It cannot be written.
    """
    try:
        batch.save(path, provenance={"library": f"streamsampler {__version__}", **provenance})
    except OSError as error:
        raise Failure(f"{path} could not be written: {error.strerror or error}") from None
    except StorageError as error:
        raise Failure(f"{path} could not be written: {error}") from None


def storable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON can hold them; what it cannot, such as a set, as Python writes it."""
    return {key: value if _fits_json(value) else repr(value) for key, value in arguments.items()}


def _fits_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
