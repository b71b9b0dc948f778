"""Check that files are all parts of one run, and put them in order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamsampler.errors import UsageError
from streamsampler.protocol.fingerprints import differing_libraries
from streamsampler.scheduling.parts import Part, in_order

__all__ = ["PartFile", "check_paths", "parts_of_one_run"]

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
