"""Learn with an evolution strategy, in plain NumPy.

    python -m streamsampler.examples.evolution_strategy CartPole-v1 --workers 4 --seed 1

Each trajectory runs its own policy: the agent's `reset(seed)` adds noise, drawn from the trajectory's seed, to the
parameters. So a single call evaluates a whole population, and workers receive a single set of parameters. The learner
draws the same noise again from `batch.seeds`. A second call from the same seeds subtracts the noise (Salimans et al.,
2017). The output does not depend on the number of workers; the timing is printed to stderr.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from streamsampler import MultiprocessingSampler
from streamsampler.core.seeding import SeedUse, derived_seeds
from streamsampler.examples import made

ITERATIONS, PAIRS = 50, 32  # iterations, and pairs of trajectories in each
SIGMA, LEARNING_RATE = 0.1, 0.1  # standard deviation of the noise, and step size
Floats = NDArray[np.float64]


def noise_of(seed: int, shape: tuple[int, ...]) -> Floats:
    """Return the noise added to the parameters after a reset with this seed."""
    return np.random.default_rng(seed).standard_normal(shape)


class PerturbedPolicy:
    """A linear policy with different parameters in each trajectory.

    Attributes:
        weights: A row for each entry of the observation, and a row for the bias.
        sigma: Scale of the noise added to the weights; negative to subtract it, 0 for no noise.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        if not isinstance(observation_space, Box) or not isinstance(action_space, (Box, Discrete)):
            raise click.UsageError("the environment needs observations in a Box, and actions in a Box or Discrete")
        n_inputs = int(np.prod(observation_space.shape))
        n_outputs = int(action_space.n) if isinstance(action_space, Discrete) else int(np.prod(action_space.shape))
        self.space = action_space
        self.weights = np.zeros((n_inputs + 1, n_outputs))
        self.sigma = 0.0
        self.perturbed = self.weights

    def reset(self, seed: int) -> None:
        """Start a trajectory: its seed determines its noise."""
        self.perturbed = self.weights + self.sigma * noise_of(seed, self.weights.shape)

    def get_action(self, observation: NDArray[Any]) -> tuple[Any, dict[str, Any]]:
        """Return the action of the perturbed policy; exploration needs no further draws."""
        output = observation.ravel() @ self.perturbed[:-1] + self.perturbed[-1]
        if isinstance(self.space, Discrete):
            return int(output.argmax() + self.space.start), {}
        action = np.clip(output.reshape(self.space.shape), self.space.low, self.space.high)
        return action.astype(self.space.dtype), {}

    def set_param_values(self, values: tuple[Floats, float]) -> None:
        """Set weights and sigma. Workers call this with an `agent_update`."""
        self.weights, self.sigma = values


def improve(sampler: Any, weights: Floats, sigma: float, pairs: int, learning_rate: float) -> tuple[Floats, Floats]:
    """Run an iteration; return better weights, and the returns of the population, of shape (2, pairs)."""
    more = sampler.obtain_trajectories(pairs, agent_update=(weights, sigma))
    less = sampler.obtain_trajectories(seeds=more.seeds, agent_update=(weights, -sigma))
    returns = np.stack([more.returns, less.returns])
    # Ranks instead of returns, so that neither their scale nor a single large return matters.
    ranks = returns.ravel().argsort().argsort().reshape(returns.shape) / max(1, returns.size - 1) - 0.5
    ranks[:, returns[0] == returns[1]] = 0.0
    seeds = derived_seeds(more.seeds, SeedUse.AGENT)  # the seeds received by `reset`
    steps = [(up - down) * noise_of(seed, weights.shape) for seed, up, down in zip(seeds, *ranks, strict=True)]
    better: Floats = weights + learning_rate / sigma * np.mean(steps, axis=0)
    return better, returns


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--iterations", default=ITERATIONS, type=click.IntRange(0), help="Iterations.")
@click.option("--pairs", default=PAIRS, type=click.IntRange(1), help="Pairs of trajectories in each iteration.")
@click.option(
    "--sigma", default=SIGMA, type=click.FloatRange(0, min_open=True), help="Standard deviation of the noise."
)
@click.option("--learning-rate", default=LEARNING_RATE, type=click.FloatRange(0, min_open=True), help="Step size.")
@click.option("--target", type=float, help="Stop when the population's mean return reaches this.")
def main(
    environment: str, workers: int, seed: int, iterations: int, pairs: int, sigma: float, learning_rate: float,
    target: float | None,
) -> None:  # fmt: skip
    """Train in ENVIRONMENT, and evaluate the policy without noise on 100 trajectories."""
    begin = time.perf_counter()
    with made(environment) as env:
        policy = PerturbedPolicy(env.observation_space, env.action_space)
    weights = policy.weights
    with MultiprocessingSampler(policy, environment, n_workers=workers, seed=seed) as sampler:
        for iteration in range(iterations):
            weights, returns = improve(sampler, weights, sigma, pairs, learning_rate)
            click.echo(f"iteration {iteration}: mean return {returns.mean():.2f}, best {returns.max():.2f}")
            if target is not None and returns.mean() >= target:
                break
        evaluation = sampler.obtain_trajectories(100, agent_update=(weights, 0.0))
        click.echo(f"evaluation: mean return {evaluation.returns.mean():.2f} of {len(evaluation)} trajectories")
        seconds = time.perf_counter() - begin
        click.echo(f"{sampler.total_env_steps} timesteps in {seconds:.1f} s on {workers} workers", err=True)


if __name__ == "__main__":
    main()
