"""Solve CartPole-v1 with REINFORCE and a learned baseline, in plain NumPy.

    python -m streamsampler.examples.reinforce --workers 4 --seed 1

An on-policy algorithm in the smallest form that works, to copy from: sample with the current parameters, take one
step of gradient ascent, hand the new parameters to the sampler with the next call. The output is the same whatever
the number of workers; the line with the time goes to stderr.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
import time
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from streamsampler import MultiprocessingSampler, TrajectoryBatch

__all__ = ["Adam", "LinearBaseline", "LogisticPolicy", "improve", "main"]

SOLVED = 475.0
SCALE = np.array([2.4, 3.0, 0.21, 3.0])  # brings CartPole's observations to the size of 1


class LogisticPolicy:
    """Push to the right with a probability that is a logistic function of the observation.

    Attributes:
        weights: One for each entry of the observation, and a bias.
        greedy: Whether to take the likelier action instead of drawing one.
    """

    def __init__(self, greedy: bool = False) -> None:
        self.weights = np.zeros(5)
        self.greedy = greedy
        self.random = random.Random()  # noqa: S311 - nothing secret is drawn

    def reset(self, seed: int) -> None:
        """Begin a trajectory: actions are drawn from its seed alone."""
        self.random.seed(seed)

    def get_action(self, observation: NDArray[Any]) -> tuple[int, dict[str, Any]]:
        """Choose an action."""
        logit = float((observation / SCALE).dot(self.weights[:4]) + self.weights[4])
        if self.greedy:
            return int(logit > 0), {}
        return int(self.random.random() < 1.0 / (1.0 + math.exp(-logit))), {}

    def get_param_values(self) -> NDArray[Any]:
        """Return the parameters."""
        return self.weights

    def set_param_values(self, weights: NDArray[Any]) -> None:
        """Set the parameters. In the workers, `agent_update` arrives here."""
        self.weights = np.array(weights)

    def log_probability_gradients(self, batch: TrajectoryBatch) -> NDArray[Any]:
        """Return the gradient of each action's log-probability by the weights, (T, 5)."""
        inputs = np.column_stack([batch.observations / SCALE, np.ones(batch.n_timesteps)])
        right = 1.0 / (1.0 + np.exp(-inputs @ self.weights))
        gradients: NDArray[Any] = (batch.actions - right)[:, None] * inputs
        return gradients


class LinearBaseline:
    """Predict discounted returns from features of the observation and the time, by least squares."""

    def __init__(self) -> None:
        self.coefficients: NDArray[Any] | None = None

    def predict(self, batch: TrajectoryBatch) -> NDArray[Any]:
        """Return the expected return at each timestep, as fitted to earlier batches."""
        if self.coefficients is None:
            return np.zeros(batch.n_timesteps)
        values: NDArray[Any] = self._features(batch) @ self.coefficients
        return values

    def fit(self, batch: TrajectoryBatch, returns: NDArray[Any]) -> None:
        """Fit a batch, after its prediction: the baseline must not depend on the actions that it judges."""
        features = self._features(batch)
        normal = features.T @ features + 1e-3 * np.eye(features.shape[1])
        self.coefficients = np.linalg.solve(normal, features.T @ returns)

    @staticmethod
    def _features(batch: TrajectoryBatch) -> NDArray[Any]:
        observations = batch.observations / SCALE
        times = (np.arange(batch.n_timesteps) - np.repeat(batch.starts, batch.lengths)) / 100.0
        powers = np.stack([times**power for power in range(4)], axis=1)
        return np.concatenate([observations, observations**2, powers], axis=1)


class Adam:
    """Ascend gradients with a step size for each parameter (Kingma and Ba, 2015)."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.mean, self.square, self.steps = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: NDArray[Any]) -> NDArray[Any]:
        """Return the change of the parameters."""
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        return self.learning_rate * mean / (np.sqrt(square) + 1e-8)


def improve(policy: LogisticPolicy, baseline: LinearBaseline, adam: Adam, batch: TrajectoryBatch, gamma: float) -> None:
    """Run one iteration of REINFORCE."""
    returns = batch.discounted_returns(gamma)
    advantages = returns - baseline.predict(batch)
    baseline.fit(batch, returns)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gradient = (policy.log_probability_gradients(batch) * advantages[:, None]).mean(axis=0)
    policy.set_param_values(policy.weights + adam.step(gradient))


@click.command(context_settings={"show_default": True})
@click.option("--workers", default=2, help="Worker processes.")
@click.option("--seed", default=0, help="The seed of everything random.")
@click.option("--iterations", default=100, help="Iterations at most; training stops at a mean return of 475.")
@click.option("--timesteps", default=4000, help="Timesteps in each batch, at least.")
@click.option("--gamma", default=0.99, help="Discount.")
@click.option("--learning-rate", default=0.15, help="Step size.")
def main(workers: int, seed: int, iterations: int, timesteps: int, gamma: float, learning_rate: float) -> None:
    """Train, evaluate on 100 trajectories, and exit with 0 if CartPole-v1 is solved."""
    begin = time.perf_counter()
    policy, baseline = LogisticPolicy(), LinearBaseline()
    adam = Adam(policy.weights.size, learning_rate)
    with MultiprocessingSampler(policy, "CartPole-v1", n_workers=workers, seed=seed) as sampler:
        for iteration in range(iterations):
            batch = sampler.obtain_samples(timesteps, agent_update=policy.get_param_values())
            click.echo(f"iteration {iteration}: {batch}")
            if batch.returns.mean() >= SOLVED:
                break
            improve(policy, baseline, adam, batch, gamma)
        judged = LogisticPolicy(greedy=True)
        judged.set_param_values(policy.get_param_values())
        evaluation = sampler.obtain_trajectories(100, agent_update=judged)
        mean = float(evaluation.returns.mean())
        solved = len(evaluation) == 100 and mean >= SOLVED
        click.echo(f"evaluation: mean return {mean} of {len(evaluation)} trajectories, solved: {solved}")
        click.echo(f"parameters: {hashlib.sha256(policy.get_param_values().tobytes()).hexdigest()}")
        seconds = time.perf_counter() - begin
        click.echo(f"{sampler.total_env_steps} timesteps in {seconds:.1f} s on {workers} workers", err=True)
    sys.exit(0 if solved else 1)


if __name__ == "__main__":
    main()
