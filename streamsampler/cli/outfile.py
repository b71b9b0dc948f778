"""The file that a run writes: checked before the run, for what cannot be written after an hour is lost."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.storage import target_path
from streamsampler.trajectories import TrajectoryBatch
from streamsampler.version import __version__

__all__ = ["OutFile", "storable", "write"]


class OutFile(click.ParamType):
    """A file that can be written, as `TrajectoryBatch.save` names it: with the suffix ``.npz``."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path after a trial."""
        given = Path(value)
        if given.is_dir() or not given.name:
            self.fail(f"{os.fspath(value)!r} is a directory: name a file, as in {os.path.join(value, 'out.npz')!r}")
        target = target_path(given)
        if target.is_dir():
            self.fail(f"{os.fspath(target)!r} is a directory")
        if not target.parent.is_dir():
            self.fail(f"there is no directory {os.fspath(target.parent)!r}")
        _try(target, self)
        return target


def _try(target: Path, kind: OutFile) -> None:
    """Make and remove a file beside the target: whatever forbids that (rights, quota, a long name) shows now."""
    trial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        kind.fail(f"{os.fspath(target)!r} cannot be written: {error.strerror or error}")


def write(batch: TrajectoryBatch, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a batch, with where it came from.

    Raises:
        click.ClickException: It cannot be written.
        StorageError: It holds what no file can hold.
    """
    try:
        batch.save(path, provenance={"library": f"streamsampler {__version__}", **provenance})
    except OSError as error:
        raise click.ClickException(f"{path} could not be written: {error.strerror or error}") from None


def storable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON can hold them; what it cannot, such as a set, as Python writes it."""
    return {key: value if _fits_json(value) else repr(value) for key, value in arguments.items()}


def _fits_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
