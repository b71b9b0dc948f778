"""Split an evaluation's indices into contiguous parts, for several runs to sample and `merge` to join. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from streamsampler.core.errors import UsageError

PartArgument: TypeAlias = tuple[int, int]
"""The number of a part, from 1 on, and the number of parts."""

_EXAMPLE = "a part is two integers, its number (from 1 on) and the number of parts, such as (2, 7)"
_MOST = 2**62


@dataclass(frozen=True)
class Part:
    """A contiguous range of a run's trajectory indices."""

    number: int  # from 1 on
    of: int  # number of parts
    first_trajectory: int
    trajectories: int  # at least 1
    of_trajectories: int  # of all parts together

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"

    @property
    def stop(self) -> int:
        return self.first_trajectory + self.trajectories

    def facts(self) -> dict[str, int]:
        return asdict(self)


def checked_part(part: Any) -> PartArgument:
    if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2 or {*map(type, part)} != {int}:
        raise UsageError(f"{_EXAMPLE}; got {part!r:.60}")
    number, of = part
    if not 1 <= number <= of:
        raise UsageError(f"part {number} of {of} does not exist: {_EXAMPLE}")
    return number, of


def part_of(part: Any, n_trajectories: int, block: int = 1) -> Part:
    """Return a part of trajectories 0 to `n_trajectories - 1`; sizes differ by a block at most.

    `part` is its number from 1 on, and the number of parts. Blocks are not split.
    """
    number, of = checked_part(part)
    n_blocks = -(-n_trajectories // block)
    if of > n_blocks:
        blocks = f" in blocks of {block}, run together," if block > 1 else ""
        raise UsageError(
            f"{n_trajectories} trajectories{blocks} cannot be split into {of} parts: use at most {n_blocks}"
        )
    first, stop = ((number - 1) * n_blocks // of * block, min(number * n_blocks // of * block, n_trajectories))
    return Part(number, of, first, stop - first, n_trajectories)


def part_of_facts(facts: Any) -> Part | None:
    """Return the part recorded in a file, or None for a whole run; raise a ValueError for other facts."""
    if facts is None:
        return None
    names = Part.__dataclass_fields__.keys()
    if not isinstance(facts, Mapping) or facts.keys() != names or {*map(type, facts.values())} != {int}:
        raise ValueError(f"invalid part: {facts!r:.80}")
    part = Part(**facts)
    fits = 1 <= part.number <= part.of and 0 <= part.first_trajectory < part.stop <= part.of_trajectories < _MOST
    if not fits or (part.number == 1) != (part.first_trajectory == 0):
        raise ValueError(f"part {facts!r:.200} does not exist")
    return part


def in_order(parts: Mapping[str, Part | None]) -> list[str]:
    """Return the names of parts in the order of their indices; raise a UsageError unless they make up a run."""
    if not parts:
        raise UsageError("there are no parts to merge")
    known = {name: part for name, part in parts.items() if part is not None}
    if whole := [name for name in parts if name not in known]:
        raise UsageError(f"{whole[0]} is no part: it holds all trajectories of a run")
    by_number: dict[int, str] = {}
    first, one = next(iter(known.items()))
    for name, part in known.items():
        if (part.of, part.of_trajectories) != (one.of, one.of_trajectories):
            raise UsageError(
                f"{first} is {one} of {one.of_trajectories} trajectories, and {name} is {part} of "
                f"{part.of_trajectories}: parts of one run agree in both numbers"
            )
        if (other := by_number.setdefault(part.number, name)) != name:
            raise UsageError(f"{part} was given twice: {other} and {name}")
    if missing := [number for number in range(1, one.of + 1) if number not in by_number]:
        shown = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
        part_is = ("part", "is") if len(missing) == 1 else ("parts", "are")
        raise UsageError(f"{part_is[0]} {shown} of {one.of} {part_is[1]} missing")
    names = [by_number[number] for number in sorted(by_number)]
    _check_contiguous(names, known)
    return names


def _check_contiguous(names: Sequence[str], parts: Mapping[str, Part]) -> None:
    """Raise a UsageError unless each part starts at its predecessor's end: their blocks may differ."""
    following = 0
    for name in names:
        part = parts[name]
        if part.first_trajectory != following:
            raise UsageError(
                f"{name} begins with trajectory {part.first_trajectory}, but the parts before it end before trajectory "
                f"{following}: sample all parts with the same number of environments in a worker"
            )
        following = part.stop
    if following != part.of_trajectories:
        raise UsageError(f"{name} ends before trajectory {following} of {part.of_trajectories}")
