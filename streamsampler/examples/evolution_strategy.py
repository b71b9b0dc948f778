"""Learn with an evolution strategy, in plain NumPy.

    python -m streamsampler.examples.evolution_strategy CartPole-v1 --workers 4 --seed 1

Each trajectory runs a policy of its own: the agent's `reset(seed)` adds noise, drawn from the trajectory's seed, to
the parameters. So one call evaluates a whole population, whatever the number of workers, and what goes to the workers
is one set of parameters. The learner draws the same noise again from `batch.seeds`. Noise is added in one call, and
subtracted in the next one, which starts from the same seeds (Salimans et al., 2017). The output is the same whatever
the number of workers; the line with the time goes to stderr.
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

ITERATIONS, PAIRS = 50, 32  # iterations, and pairs of trajectories in each of them
SIGMA, LEARNING_RATE = 0.1, 0.1  # standard deviation of the noise, and step size
Floats = NDArray[np.float64]


def noise_of(seed: int, shape: tuple[int, ...]) -> Floats:
    """Return the noise that an agent which was reset with this seed adds to its parameters."""
    return np.random.default_rng(seed).standard_normal(shape)


class PerturbedPolicy:
    """Acts by a linear function of the observation, whose parameters are others in each trajectory.

    Attributes:
        weights: One row for each entry of the observation, and one for the bias.
        sigma: How much noise is added to the weights: negative to subtract it, 0 for none.
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
        """Begin a trajectory: the seed decides about its noise."""
        self.perturbed = self.weights + self.sigma * noise_of(seed, self.weights.shape)

    def get_action(self, observation: NDArray[Any]) -> tuple[Any, dict[str, Any]]:
        """Choose an action. Nothing is drawn here: the noise explores."""
        output = observation.ravel() @ self.perturbed[:-1] + self.perturbed[-1]
        if isinstance(self.space, Discrete):
            return int(output.argmax() + self.space.start), {}
        action = np.clip(output.reshape(self.space.shape), self.space.low, self.space.high)
        return action.astype(self.space.dtype), {}

    def set_param_values(self, values: tuple[Floats, float]) -> None:
        """Set weights and sigma. In the workers, `agent_update` arrives here."""
        self.weights, self.sigma = values


def improve(sampler: Any, weights: Floats, sigma: float, pairs: int, learning_rate: float) -> tuple[Floats, Floats]:
    """Run one iteration: return better weights, and the returns of the population, (2, pairs)."""
    more = sampler.obtain_trajectories(pairs, agent_update=(weights, sigma))
    less = sampler.obtain_trajectories(seeds=more.seeds, agent_update=(weights, -sigma))
    returns = np.stack([more.returns, less.returns])
    # Ranks in place of returns: then neither their scale nor single large ones matter.
    ranks = returns.ravel().argsort().argsort().reshape(returns.shape) / max(1, returns.size - 1) - 0.5
    ranks[:, returns[0] == returns[1]] = 0.0
    seeds = derived_seeds(more.seeds, SeedUse.AGENT)  # what `reset` got
    steps = [(up - down) * noise_of(seed, weights.shape) for seed, up, down in zip(seeds, *ranks, strict=True)]
    better: Floats = weights + learning_rate / sigma * np.mean(steps, axis=0)
    return better, returns


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="The seed of everything random.")
@click.option("--iterations", default=ITERATIONS, type=click.IntRange(0), help="Iterations.")
@click.option("--pairs", default=PAIRS, type=click.IntRange(1), help="Pairs of trajectories in each iteration.")
@click.option("--sigma", default=SIGMA, type=click.FloatRange(0, min_open=True), help="Deviation of the noise.")
@click.option("--learning-rate", default=LEARNING_RATE, type=click.FloatRange(0, min_open=True), help="Step size.")
@click.option("--target", type=float, help="Stop at this mean return of the population.")
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
