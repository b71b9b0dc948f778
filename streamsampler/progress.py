"""How far a call is: counted from reports and from the workers' progress words, shown as a bar if wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from streamsampler.gathering import GatherPlan

if TYPE_CHECKING:
    from streamsampler.collecting import Call

__all__ = ["Display", "ProgressArgument", "Snapshot", "display"]

_INTERVAL = 0.1  # seconds: what looks alive


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a call is.

    Attributes:
        timesteps: Timesteps so far, those of unfinished trajectories included.
        trajectories: Finished trajectories so far.
        target: How many are wanted.
        unit: "timesteps" or "trajectories": what `target` counts.
        seconds: Since the call began.
    """

    timesteps: int
    trajectories: int
    target: int
    unit: str
    seconds: float

    @property
    def done(self) -> int:
        """How much of `target` is there; never more."""
        return min(self.target, self.timesteps if self.unit == "timesteps" else self.trajectories)


ProgressArgument = bool | Callable[[Snapshot], Any]


class Display:
    """Follows a call and tells `show`, a few times a second.

    Args:
        plan: What the call wants.
        show: Called with snapshots; None follows nothing and costs nothing.
    """

    def __init__(self, plan: GatherPlan, show: Callable[[Snapshot], Any] | None) -> None:
        self._show = show
        self._unit = "trajectories" if plan.timesteps is None else "timesteps"
        self._target = plan.limit if plan.timesteps is None else plan.timesteps
        self._begun = self._shown = monotonic()
        self._most = 0
        self.interval = None if show is None else _INTERVAL

    def update(self, call: Call) -> None:
        """Look at the call, if it is time."""
        if self._show is None:
            return
        now = monotonic()
        if now - self._shown < _INTERVAL and not call.gathering.complete:
            return
        self._shown = now
        timesteps, trajectories = call.so_far()
        # Between a worker's report and its next ticket its word is zero: what was shown once stays shown.
        self._most = max(self._most, timesteps)
        self._show(Snapshot(self._most, trajectories, self._target or 0, self._unit, now - self._begun))


@contextmanager
def display(progress: ProgressArgument, plan: GatherPlan) -> Iterator[Display]:
    """Yield the display that a `progress` argument asks for."""
    if callable(progress):
        yield Display(plan, progress)
    elif progress:
        with bar(plan) as show:
            yield Display(plan, show)
    else:
        yield Display(plan, None)


@contextmanager
def bar(plan: GatherPlan) -> Iterator[Callable[[Snapshot], None]]:
    """Yield a callback that draws a bar on stderr, with rate and remaining time; nothing where that is no terminal."""
    unit = "trajectories" if plan.timesteps is None else "timesteps"
    length = plan.limit if plan.timesteps is None else plan.timesteps
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(
        length=length or 0,
        file=sys.stderr,
        show_pos=True,
        show_eta=True,
        width=30,
        item_show_func=lambda text: text,  # the rate
        label=unit,
    ) as drawn:

        def show(snapshot: Snapshot) -> None:
            rate = snapshot.timesteps / max(snapshot.seconds, 1e-9)
            drawn.update(snapshot.done - drawn.pos, f"{rate:,.0f} timesteps/s")

        yield show
