"""Learn with trust region policy optimisation (Schulman et al., 2015), in PyTorch.

    python -m streamsampler.examples.trpo CartPole-v1 --workers 4 --seed 1

Each iteration samples whole trajectories, with the agent's values of all observations, including the last. The policy
steps along the natural gradient, within a bound on the divergence from the sampling policy; the critic is fitted to the
lambda-returns. The number of workers does not change the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from streamsampler import MultiprocessingSampler, TrajectoryBatch
from streamsampler.adapters.torch import TorchAgent
from streamsampler.examples import made
from streamsampler.examples.ppo import ActorCritic
from streamsampler.examples.pytorch import nn, torch

ITERATIONS, TIMESTEPS = 30, 2000  # iterations, and least timesteps in each batch
GAMMA, LAMBDA = 0.99, 0.97  # discount, and lambda of generalised advantage estimation
RADIUS, DAMPING = 0.01, 0.1  # mean divergence of a step, and damping added to the Fisher matrix's diagonal
CRITIC_RATE, EPOCHS, MINIBATCH = 1e-3, 10, 256  # for fitting the critic


def conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Solve F x = target in ten steps; `product` multiplies a vector by the positive definite F."""
    solution, residual, direction = torch.zeros_like(target), target.clone(), target.clone()
    square = residual.dot(residual)
    for _ in range(10):
        multiplied = product(direction)
        length = square / direction.dot(multiplied).clamp(min=1e-30)
        solution, residual = solution + length * direction, residual - length * multiplied
        square, before = residual.dot(residual), square
        direction = residual + square / before.clamp(min=1e-30) * direction
    return solution


def flat_gradient(value: torch.Tensor, parameters: list[nn.Parameter], **options: bool) -> torch.Tensor:
    """Return the gradient with respect to all parameters as a single vector."""
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(value, parameters, **options)])


def improve(policy: ActorCritic, adam: Any, batch: TrajectoryBatch[Any, Any], gamma: float, radius: float) -> float:
    """Run a TRPO iteration; return the mean divergence of its step, 0 without a step."""
    observations = torch.as_tensor(batch.observations, dtype=torch.float32)
    actions = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))  # as drawn, not clipped
    log_probs = torch.as_tensor(batch.agent_infos["log_prob"], dtype=torch.float32)
    advantages = torch.as_tensor(batch.advantages(gamma=gamma, lambda_=LAMBDA), dtype=torch.float32)
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    targets = torch.as_tensor(batch.td_lambda(gamma=gamma, lambda_=LAMBDA), dtype=torch.float32)
    parameters = [*policy.actor.parameters(), *([] if policy.discrete else [policy.log_std])]
    with torch.no_grad():
        old = policy.distribution(observations)

    def surrogate() -> torch.Tensor:
        return ((policy.log_prob(observations, actions) - log_probs).exp() * advantages).mean()

    def divergence() -> torch.Tensor:
        return torch.distributions.kl_divergence(old, policy.distribution(observations)).mean()

    slope, gain = flat_gradient(divergence(), parameters, create_graph=True), surrogate()

    def fisher_product(vector: torch.Tensor) -> torch.Tensor:
        return flat_gradient(slope.dot(vector), parameters, retain_graph=True) + DAMPING * vector

    natural = conjugate_gradient(fisher_product, flat_gradient(gain, parameters))
    step = (2 * radius / natural.dot(fisher_product(natural)).clamp(min=1e-12)).sqrt() * natural
    before = nn.utils.parameters_to_vector(parameters).detach()
    with torch.no_grad():
        for length in (*0.5 ** np.arange(10), 0.0):  # far from the old policy the quadratic model is wrong
            nn.utils.vector_to_parameters(before + length * step, parameters)
            if (taken := float(divergence())) <= 1.5 * radius and surrogate() > gain:
                break
    for rows in batch.minibatches(MINIBATCH, seed=int(batch.agent_versions[0]), epochs=EPOCHS):
        adam.zero_grad()
        nn.functional.mse_loss(policy.critic(observations[rows])[:, 0], targets[rows]).backward()
        adam.step()
    return taken


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--iterations", default=ITERATIONS, type=click.IntRange(0), help="Iterations.")
@click.option("--timesteps", default=TIMESTEPS, type=click.IntRange(1), help="Least timesteps in each batch.")
@click.option("--gamma", default=GAMMA, type=click.FloatRange(0, 1), help="Discount.")
@click.option("--radius", default=RADIUS, type=click.FloatRange(0, min_open=True), help="Mean divergence of a step.")
def main(
    environment: str, workers: int, seed: int, iterations: int, timesteps: int, gamma: float, radius: float
) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small a network gains nothing from more, and the workers need the cores
    with made(environment) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    adam = torch.optim.Adam(policy.critic.parameters(), CRITIC_RATE)
    with MultiprocessingSampler(TorchAgent(policy, space), environment, n_workers=workers, seed=seed) as sampler:
        for iteration in range(iterations):
            batch = sampler.obtain_samples(timesteps, agent_update=policy)
            click.echo(f"iteration {iteration}: mean return {batch.returns.mean():.2f} of {len(batch)} trajectories")
            improve(policy, adam, batch, gamma, radius)
        evaluation = sampler.obtain_trajectories(100, agent_update=TorchAgent(policy, space, deterministic=True))
        click.echo(f"evaluation: mean return {evaluation.returns.mean():.2f} of {len(evaluation)} trajectories")


if __name__ == "__main__":
    main()
