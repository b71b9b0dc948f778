"""Solve CartPole-v1 with REINFORCE and a learned baseline, in plain NumPy.

    python -m streamsampler.examples.reinforce --workers 4 --seed 1

A minimal on-policy algorithm to start from: sample, ascend the gradient, pass new parameters to the next call. The
output does not depend on the number of workers; the timing is printed to stderr.
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

ITERATIONS, TIMESTEPS = 100, 4000  # most iterations; least timesteps in each batch
GAMMA, LEARNING_RATE = 0.99, 0.15  # discount, and step size
SCALE = np.array([2.4, 3.0, 0.21, 3.0])  # scales CartPole's observations to about 1


class LogisticPolicy:
    """Push right with a probability that is a logistic function of the observation.

    Attributes:
        weights: A weight for each entry of the observation, and a bias.
        greedy: Whether to take the likelier action instead of drawing.
    """

    def __init__(self, weights: NDArray[Any], greedy: bool = False) -> None:
        self.weights, self.greedy = weights, greedy
        self.random = random.Random()  # noqa: S311 - nothing secret is drawn

    def reset(self, seed: int) -> None:
        """Start a trajectory: its seed determines all draws."""
        self.random.seed(seed)

    def get_action(self, observation: NDArray[Any]) -> tuple[int, dict[str, Any]]:
        logit = float((observation / SCALE).dot(self.weights[:4]) + self.weights[4])
        threshold = 0.5 if self.greedy else self.random.random()
        return int(threshold < 1.0 / (1.0 + math.exp(-logit))), {}

    def set_param_values(self, weights: NDArray[Any]) -> None:
        """Set the parameters. Workers call this with an `agent_update`."""
        self.weights = np.array(weights)


def baseline_features(batch: TrajectoryBatch) -> NDArray[Any]:
    """Return functions (T, 12) of observation and time, to predict discounted returns."""
    times = (np.arange(batch.n_timesteps) - np.repeat(batch.starts, batch.lengths)) / 100.0
    scaled = batch.observations / SCALE
    return np.column_stack([scaled, scaled**2, *(times**power for power in range(4))])


class Adam:
    """Ascend gradients with a step size for each parameter (Kingma and Ba, 2015)."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.mean, self.square, self.steps = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: NDArray[Any]) -> NDArray[Any]:
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        return self.learning_rate * mean / (np.sqrt(square) + 1e-8)


def improve(policy: LogisticPolicy, baseline: NDArray[Any], adam: Adam, batch: TrajectoryBatch, gamma: float) -> None:
    """Run a REINFORCE iteration; the baseline is fitted last, because it must not depend on the returns it judges."""
    returns, features = batch.discounted_returns(gamma), baseline_features(batch)
    advantages = returns - features @ baseline
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    inputs = np.column_stack([batch.observations / SCALE, np.ones(batch.n_timesteps)])
    right = 1.0 / (1.0 + np.exp(-inputs @ policy.weights))
    gradients = (batch.actions - right)[:, None] * inputs  # of the actions' log-probabilities
    policy.weights = policy.weights + adam.step((gradients * advantages[:, None]).mean(axis=0))
    baseline[:] = np.linalg.solve(features.T @ features + 1e-3 * np.eye(len(baseline)), features.T @ returns)


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1", type=click.Choice(["CartPole-v1"]))
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option(
    "--iterations", default=ITERATIONS, type=click.IntRange(0), help="Most iterations; stops at a mean return of 475."
)
@click.option("--timesteps", default=TIMESTEPS, type=click.IntRange(1), help="Least timesteps in each batch.")
@click.option("--gamma", default=GAMMA, type=click.FloatRange(0, 1), help="Discount.")
@click.option("--learning-rate", default=LEARNING_RATE, type=click.FloatRange(0, min_open=True), help="Step size.")
def main(environment: str, workers: int, seed: int, iterations: int, timesteps: int, **options: float) -> None:
    """Train, evaluate on 100 trajectories, and exit with 0 if CartPole-v1 is solved."""
    begin = time.perf_counter()
    policy, baseline, adam = LogisticPolicy(np.zeros(5)), np.zeros(12), Adam(5, options["learning_rate"])
    with MultiprocessingSampler(policy, environment, n_workers=workers, seed=seed) as sampler:
        for iteration in range(iterations):
            batch = sampler.obtain_samples(timesteps, agent_update=policy.weights)
            click.echo(f"iteration {iteration}: {batch}")
            if batch.returns.mean() >= 475:
                break
            improve(policy, baseline, adam, batch, options["gamma"])
        evaluation = sampler.obtain_trajectories(100, agent_update=LogisticPolicy(policy.weights, greedy=True))
        mean = float(evaluation.returns.mean())
        click.echo(f"evaluation: mean return {mean} of {len(evaluation)} trajectories, solved: {mean >= 475}")
        click.echo(f"parameters: {hashlib.sha256(policy.weights.tobytes()).hexdigest()}")
        took = f"{time.perf_counter() - begin:.1f} s on {workers} workers"
        click.echo(f"{sampler.total_env_steps} timesteps in {took}", err=True)
    sys.exit(0 if mean >= 475 else 1)


if __name__ == "__main__":
    main()
