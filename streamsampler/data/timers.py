"""Trees of timers: the time of workers by phase, and of user code below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from streamsampler.core.timing import Blocks


@dataclass
class Timer:
    """The time spent in a node of the tree of timers.

    Attributes:
        seconds: The time, with its children's.
        count: How often it was entered; 0 for phases and the root, which are not counted.
        timesteps: The timesteps run in the same time; 0 if unknown.
        children: Its parts by name; the remaining time is its own.
    """

    seconds: float = 0.0
    count: int = 0
    timesteps: int = 0
    children: dict[str, Timer] = field(default_factory=dict)

    @property
    def self_seconds(self) -> float:
        """Its own time, without its children's."""
        return max(0.0, self.seconds - sum(child.seconds for child in self.children.values()))

    @property
    def ms_per_timestep(self) -> float:
        """Milliseconds per timestep; 0 without timesteps."""
        return 1_000 * self.seconds / self.timesteps if self.timesteps else 0.0

    def add(self, blocks: Blocks) -> None:
        """Add measured blocks to the children."""
        for name, times, seconds, within in blocks:
            child = self.children.setdefault(name, Timer())
            child.count += times
            child.seconds += seconds
            child.add(within)

    def merge(self, other: Timer) -> None:
        """Add another tree."""
        self.seconds += other.seconds
        self.count += other.count
        self.timesteps += other.timesteps
        for name, child in other.children.items():
            self.children.setdefault(name, Timer()).merge(child)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Timer]]:
        """Yield all timers with their paths, depth first; this timer's own path is `path`."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk((*path, name))


def timers_text(tree: Timer) -> str:
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
