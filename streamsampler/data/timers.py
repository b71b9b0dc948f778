"""Trees of timers: where the time of workers went, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from streamsampler.timing import Measured

__all__ = ["Timer", "timers_text"]


@dataclass
class Timer:
    """The time that was spent in one place of the tree, and in the places below it.

    Attributes:
        seconds: The time, that of its children included.
        count: How often it was entered; 0 for what is not counted: phases, and the tree itself.
        timesteps: How many timesteps were run meanwhile; 0 where that is not known.
        children: What it consists of, by name; the rest is its own.
    """

    seconds: float = 0.0
    count: int = 0
    timesteps: int = 0
    children: dict[str, Timer] = field(default_factory=dict)

    @property
    def self_seconds(self) -> float:
        """Its own time, without that of its children."""
        return max(0.0, self.seconds - sum(child.seconds for child in self.children.values()))

    @property
    def ms_per_timestep(self) -> float:
        """Milliseconds for each timestep; 0 where no timestep was run."""
        return 1_000 * self.seconds / self.timesteps if self.timesteps else 0.0

    def add(self, measured: Measured) -> None:
        """Add what a worker timed to the children."""
        for name, count, seconds, within in measured:
            child = self.children.setdefault(name, Timer())
            child.count += count
            child.seconds += seconds
            child.add(within)

    def merge(self, other: Timer) -> None:
        """Add another tree to this one."""
        self.seconds += other.seconds
        self.count += other.count
        self.timesteps += other.timesteps
        for name, child in other.children.items():
            self.children.setdefault(name, Timer()).merge(child)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Timer]]:
        """Yield all timers with their paths, from this one down; its own path is `path`."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk((*path, name))


def timers_text(tree: Timer) -> str:
    """Return a tree as a table: share of the whole, milliseconds for each timestep, of that its own, and how often."""
    rows = [("", "share", "ms/timestep", "own", "entries")]
    for path, timer in tree.walk():
        own = 1_000 * timer.self_seconds / tree.timesteps if tree.timesteps else 0.0
        rows.append((
            "  " * (len(path) - 1) + path[-1] if path else "all",
            f"{timer.seconds / tree.seconds if tree.seconds else 0.0:.1%}",
            f"{timer.ms_per_timestep:.4g}",
            f"{own:.4g}" if timer.children else "",
            f"{timer.count:,}" if timer.count else "",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )
