"""Show the trajectory in hand: what the user's code around a timestep reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import Agent
from streamsampler.data.trees import Tree
from streamsampler.environments.updates import AnyEnv
from streamsampler.workers.base import Worker
from streamsampler.workers.resets import reset_function


class InHand(Protocol):
    """What records a trajectory; see `RolloutRecorder`."""

    float_rewards: list[float]
    metrics: dict[str, str]

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record metrics of the trajectory."""

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards, as far as it was recorded."""


class Kept(NamedTuple):
    """What is kept of an episode's `TrajectoryContext` from one call for fragments to the next."""

    metrics: dict[str, Any]
    memory: dict[str, Any]
    reset_info: dict[str, Any]


@dataclass(slots=True, eq=False)
class TrajectoryContext:
    """Shows the trajectory in hand. Read it; of its attributes only `metrics` and `memory` are yours to replace.

    Seams see observations, actions and infos themselves, as the environment and the agent gave them; hooks see copies.

    Attributes:
        env: The environment that the trajectory runs in.
        agent: The agent; with `VecWorker` it may choose the actions of other trajectories as well.
        index: The trajectory index.
        seed: The trajectory's seed.
        agent_version: The agent version.
        worker_number: The worker, 0 to n-1; in a batch nothing may depend on it.
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
        takes_mask: Whether `before_step` gives the agent masks; with `VecWorker` it gives none.
        action_mask: If so, the mask of the action that the agent is asked for.
        timestep: How many timesteps are recorded.
        metrics: Values by name, empty at the trajectory's start. They come back in `batch.episode_infos`.
        memory: Anything else by name, empty at the trajectory's start: what you keep from one timestep to the next.
    """

    env: AnyEnv
    agent: Agent
    index: int
    seed: int
    agent_version: int
    worker_number: int
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
    takes_mask: bool = False
    action_mask: NDArray[np.bool_] | None = None
    timestep: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> Kept:
        """Return what is kept of it from one call to the next."""
        return Kept(self.metrics, self.memory, self.reset_info)

    def go_on(self, kept: Kept, timestep: int) -> None:
        """Go on with an episode that had so many timesteps in earlier calls."""
        self.metrics, self.memory, self.reset_info = kept
        self.timestep = timestep

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


def reset_of(env: AnyEnv, worker: Worker, index: int) -> Callable[..., Any]:
    """Return what resets a worker's environment for a trajectory, as the call says at that time."""
    return lambda **arguments: reset_function(env, worker.resets, (index,))(**arguments)
