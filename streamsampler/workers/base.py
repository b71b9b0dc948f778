"""What a worker is: the seam between the worker loop and the ways of running rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from streamsampler.blocks import Blocks
from streamsampler.board import WorkerRow
from streamsampler.buffers import Allocate
from streamsampler.environments import EnvUpdate
from streamsampler.errors import ActionError, DataError
from streamsampler.protocol import Phase, Ticket
from streamsampler.recording import Rollouts

__all__ = ["Outcome", "Worker"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a ticket.

    Attributes:
        rollouts: The ticket's trajectories in order, or the first ones that suffice; None if the ticket was given up.
            The arrays may be the recorder's own memory: they are valid until the next rollout.
        n_trajectories: Trajectories that were finished, those of `rollouts` if there are any.
        n_timesteps: Their timesteps.
        n_abandoned: Rollouts that were cut short.
        abandoned_timesteps: Their timesteps.
        seconds: Time spent in reset, agent and step.
    """

    rollouts: Rollouts | None
    n_trajectories: int
    n_timesteps: int
    n_abandoned: int = 0
    abandoned_timesteps: int = 0
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Worker(ABC):
    """Runs rollouts: one agent in one environment, or in several.

    A worker is made where it runs. Whatever it does is a function of the updates it was given and of the ticket and
    the seeds; of nothing else, such as its number or what it ran before.

    Args:
        row: Its row of the shared board. `row.wanted(ticket.version)` is to be asked between timesteps.
        worker_number: 0 to n-1.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.

    Attributes:
        phase: What it is doing, for error messages.
        trajectory: Index of the trajectory in hand, or None.
        allocate: Makes the arrays that large rows are best recorded into: what lies there need not be copied to be
            sent. Each ticket's are to be new ones.
    """

    def __init__(self, row: WorkerRow, *, worker_number: int = 0, max_episode_length: int | None = None) -> None:
        self.row = row
        self.worker_number = worker_number
        self.max_episode_length = max_episode_length
        self.phase = Phase.WAITING
        self.trajectory: int | None = None
        self.allocate: Allocate = np.empty

    @classmethod
    def blocks(cls, worker_args: Mapping[str, Any]) -> Blocks:  # noqa: ARG003 - for those whose blocks depend on them
        """Which trajectories of consecutive indices such a worker runs together.

        A worker may let the trajectories of a block influence one another, as long as each is a function of the whole
        block: tickets are whole blocks, whatever the number of workers (see `gathering`). It is asked in the sampler's
        process, before there is a worker.

        Args:
            worker_args: The keyword arguments that it will be made with.

        Returns:
            Blocks of at least 1; and of 1 for a worker whose trajectories do not depend on each other at all.
        """
        return Blocks()

    @abstractmethod
    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or hand it new parameters (see `agents.apply_agent_update`)."""

    @abstractmethod
    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment."""

    @abstractmethod
    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, trajectory `ticket.indices[k]` from `seeds[k]`.

        Where `ticket.enough` is not 0, the first ones suffice that have so many timesteps together: as they are
        whether or not the others are run to their ends.

        Whatever the agent or the environment raises is let through, with `phase` and `trajectory` telling where.
        """

    def finished(self, finish: Callable[[], Rollouts], ticket: Ticket) -> Rollouts:
        """Return what a recorder's `finish` gives; if it raises, `phase` and `trajectory` tell where."""
        self.phase = Phase.RECORDING
        try:
            return finish()
        except DataError as error:
            if (position := getattr(error, "position", None)) is not None:
                self.trajectory = ticket.indices[position]
            if isinstance(error, ActionError):
                self.phase = Phase.ACTION
            raise

    @property
    @abstractmethod
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of a single trajectory."""

    @abstractmethod
    def shutdown(self) -> None:
        """Close the environment."""
