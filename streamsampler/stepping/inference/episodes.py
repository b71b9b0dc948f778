"""What an environment in another process was asked since its trajectory began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streamsampler.data.trees import Array, leaves
from streamsampler.stepping.inference.stepper import Order

__all__ = ["Episode", "History", "put_exactly"]


class History(NamedTuple):
    """What is kept elsewhere of what an environment did.

    Attributes:
        actions: Its first actions, as many at least as `Episode.actions` lacks.
        rewards: The rewards of consecutive steps, as far as they are known; none where `Episode.reward` is right.
        first: The timestep of the first of these.
    """

    actions: list[Any]
    rewards: Array | tuple[()] = ()
    first: int = 0


@dataclass(slots=True)
class Episode:
    """What an environment was asked since its trajectory began.

    Attributes:
        order: How it began; None if nothing was asked yet.
        is_wanted: Whether the results of open requests are wanted.
        n_asked: How many steps it was asked for.
        actions: Its actions, by timestep; not all, where others are kept elsewhere.
        n_carried_out: How many of these requests, the reset included, its process has carried out.
        n_known: How many of them have results that arrived.
        slot: Where the last of them lies.
        reward: The reward of the last one that was handed out.
        last: The last result that is known, while the environment is being restored.
    """

    order: Order | None = None
    is_wanted: bool = True
    n_asked: int = 0
    actions: dict[int, Any] = field(default_factory=dict)
    n_carried_out: int = 0
    n_known: int = 0
    slot: int = 0
    reward: float = 0.0
    last: Any = None

    @property
    def index(self) -> int | None:
        """The index of its trajectory."""
        return None if self.order is None else self.order.index

    @property
    def is_open(self) -> bool:
        """Whether there is a request without a result, or the environment is being restored."""
        return self.order is not None and (self.is_asked or self.n_carried_out < self.n_known)

    @property
    def is_asked(self) -> bool:
        """Whether there is a request without a result."""
        return self.n_known <= self.n_asked

    def complete(self, history: History | None) -> bool:
        """Add what is kept elsewhere; return whether it is known.

        Args:
            history: It; None where it is not kept any more.
        """
        if history is None:
            return False
        for timestep, action in enumerate(history.actions):
            self.actions.setdefault(timestep, action)  # those that are kept here are what the agent chose
        last = self.n_known - 2 - history.first  # the first result is the reset's
        if 0 <= last < len(history.rewards):
            self.reward = float(history.rewards[last])
        return True


def put_exactly(rows: Any, env_id: int, action: Any) -> bool:
    """Write an action into its row; False where it would be another one there."""
    if rows.__class__ is np.ndarray:
        fits = action.__class__ is rows.dtype.type or (action.__class__ is np.ndarray and action.dtype == rows.dtype)
        if fits and np.shape(action) == rows.shape[1:]:
            rows[env_id] = action
            return True
        return False
    parts = dict(leaves(rows))
    given = dict(leaves(action)) if isinstance(action, dict | tuple) else {}
    fits = parts.keys() == given.keys() and all(
        getattr(given[name], "dtype", None) == part.dtype and np.shape(given[name]) == part.shape[1:]
        for name, part in parts.items()
    )
    if fits:
        for name, part in parts.items():
            part[env_id] = given[name]
    return fits
