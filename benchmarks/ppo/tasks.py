"""What PPO learns (see `run`), and with which hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

N_ENVS = 8
"""Environments, of fragments or in a vector, as the example has them."""


@dataclass(frozen=True)
class Task:
    """An environment, what counts as learned, and the hyperparameters that differ from task to task.

    Attributes:
        env_id: The environment.
        target: The mean return of 20 successive episodes at which it counts as learned.
        iterations: How long to train.
        timesteps: Timesteps of each of `N_ENVS` environments in an iteration.
        minibatch: Timesteps in a gradient step.
        learning_rate: Adam's in the first iteration; it falls to 0.
        gamma: Discount.
        normalize: Whether observations and rewards are normalised by what was seen so far.
        trajectory: Timesteps of a trajectory when the task is learned.
    """

    env_id: str
    target: float
    iterations: int
    timesteps: int = 250
    minibatch: int = 250
    learning_rate: float = 1e-3
    gamma: float = 0.99
    normalize: bool = False
    trajectory: int = 500

    @property
    def batch(self) -> int:
        """Timesteps in an iteration."""
        return N_ENVS * self.timesteps


TASKS = {
    task.env_id: task
    for task in (
        Task("CartPole-v1", target=475.0, iterations=40),
        Task("Pendulum-v1", target=-300.0, iterations=50, minibatch=125, gamma=0.9, trajectory=200),
        Task(
            "HalfCheetah-v5", target=1000.0, iterations=147, timesteps=256, minibatch=64, learning_rate=3e-4,
            normalize=True, trajectory=1000,
        ),
    )
}  # fmt: skip
