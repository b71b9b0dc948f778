"""The trajectory in hand, as seams and hooks see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import Agent
from streamsampler.data.trees import Tree
from streamsampler.environments.updates import AnyEnv
from streamsampler.errors import UsageError

__all__ = ["InHand", "TrajectoryContext", "refuse_hidden_infos"]


class InHand(Protocol):
    """What records a trajectory."""

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards, as far as it was recorded."""


@dataclass(slots=True, eq=False)
class TrajectoryContext:
    """Shows the trajectory in hand. Read it; of its attributes only `metrics` and `memory` are yours to change.

    Attributes:
        env: The environment that the trajectory runs in.
        agent: The agent; with `VecWorker` it may choose the actions of other trajectories as well.
        index: The trajectory index.
        seed: The trajectory's seed.
        agent_version: The agent version.
        recorder: What records the trajectory.
        reset: Resets the environment with a seed, `reset(seed=…)`, and with the trajectory's reset options if the call
            was given any. Returns what the environment returns.
        reset_agent: The agent's `reset`, which takes a seed; None if it has none, or acts for several trajectories.
        reset_info: What the environment's reset returned as info.
        observation: The observation that comes next: the first one, or what the last step led to.
        action: The last action; None before the first.
        reward: The last reward.
        terminated: Whether the environment has terminated the trajectory.
        truncated: Whether the environment has truncated the trajectory, or `max_episode_length` has at its end.
        info: What the last step returned as info; before the first step what the reset did.
        agent_info: The agent's info of the last action.
        timestep: How many timesteps are recorded.
        metrics: Values by name, empty at the trajectory's start. They come back in `batch.episode_infos`.
        memory: Anything else by name, empty at the trajectory's start: what you keep from one timestep to the next.
    """

    env: AnyEnv
    agent: Agent
    index: int
    seed: int
    agent_version: int
    recorder: InHand
    reset: Callable[..., Any]
    reset_agent: Callable[[int], None] | None
    reset_info: dict[str, Any] = field(default_factory=dict)
    observation: Any = None
    action: Any = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    agent_info: dict[str, Any] = field(default_factory=dict)
    timestep: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def observations(self) -> Tree:
        """Copies of the observations that actions were chosen on so far, a tree of (timestep, *O)."""
        return self.recorder.copies_in_hand()[0]

    @property
    def actions(self) -> Tree:
        """Copies of the actions so far, a tree of (timestep, *A)."""
        return self.recorder.copies_in_hand()[1]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Copies of the rewards so far, (timestep,) float64."""
        return self.recorder.copies_in_hand()[2]


def refuse_hidden_infos(context: TrajectoryContext) -> None:
    """Check that no metric has the name of an info of the environment's reset.

    Raises:
        UsageError: One has.
    """
    if twice := sorted(context.metrics.keys() & context.reset_info.keys()):
        raise UsageError(
            f"the metrics {', '.join(twice)} have names that infos of the environment's reset have: both come back "
            "in batch.episode_infos. Give them other names"
        )
