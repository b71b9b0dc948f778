"""Show the current trajectory to user code around a timestep."""

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


class CurrentTrajectory(Protocol):
    """Is the part of a `RolloutRecorder` used for a trajectory's context."""

    float_rewards: list[float]
    metrics: dict[str, str]

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record metrics of the trajectory."""

    def current_trajectory_copies(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards recorded so far."""


class StoredContext(NamedTuple):
    """Holds the user's part of a suspended episode's `TrajectoryContext` between calls."""

    metrics: dict[str, Any]
    memory: dict[str, Any]
    reset_info: dict[str, Any]


@dataclass(slots=True, eq=False)
class TrajectoryContext:
    """Shows the current trajectory. It is to be read; only its `metrics` and `memory` may be modified.

    Seams receive observations, actions and infos as environment and agent returned them; hooks receive copies.

    Attributes:
        env: The trajectory's environment.
        agent: The agent; with `VecWorker` it may also act in other trajectories.
        index: The trajectory index.
        seed: The trajectory's seed.
        agent_version: The agent version.
        worker_number: The worker's number, 0 to n-1; batches must not depend on it.
        recorder: Records the trajectory.
        reset: Resets the environment with a seed, `reset(seed=…)`, and with the trajectory's reset options if the call
            has any. Returns the environment's result.
        reset_agent: The agent's `reset`, with a seed as argument; None if it has none, or acts in several trajectories.
        reset_info: The info returned by the environment's reset.
        observation: The current observation: the first, or that after the last step.
        action: The last action; None before the first.
        reward: The last reward.
        terminated: Whether the environment has terminated the trajectory.
        truncated: Whether the environment has truncated the trajectory, or at its end `max_episode_length` has.
        info: The info of the last step; before the first step the reset's info.
        agent_info: The agent's info with the last action.
        takes_mask: Whether `before_step` passes masks to the agent; with `VecWorker` it does not.
        action_mask: The mask for the next action if `takes_mask` is true.
        timestep: Number of recorded timesteps.
        metrics: Values by name, empty at the trajectory's start. `batch.episode_infos` contains them.
        memory: Any other values by name, empty at the trajectory's start, for use across timesteps.
    """

    env: AnyEnv
    agent: Agent
    index: int
    seed: int
    agent_version: int
    worker_number: int
    recorder: CurrentTrajectory
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

    def kept(self) -> StoredContext:
        """Return the values to store until the next call."""
        return StoredContext(self.metrics, self.memory, self.reset_info)

    def go_on(self, kept: StoredContext, timestep: int) -> None:
        """Resume an episode with stored values and its number of earlier timesteps."""
        self.metrics, self.memory, self.reset_info = kept
        self.timestep = timestep

    @property
    def observations(self) -> Tree:
        """Copies of the observations with an action so far, a tree of (timestep, *O)."""
        return self.recorder.current_trajectory_copies()[0]

    @property
    def actions(self) -> Tree:
        """Copies of the actions so far, a tree of (timestep, *A)."""
        return self.recorder.current_trajectory_copies()[1]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Copies of the rewards so far, (timestep,) float64."""
        return self.recorder.current_trajectory_copies()[2]


def reset_of(env: AnyEnv, worker: Worker, index: int) -> Callable[..., Any]:
    """Return a function which resets a worker's environment for a trajectory with the call's current resets."""
    return lambda **arguments: reset_function(env, worker.resets, (index,))(**arguments)
