"""Learn with proximal policy optimisation (Schulman et al., 2017), in PyTorch.

    python -m streamsampler.examples.ppo CartPole-v1 --workers 4 --seed 1
    python -m streamsampler.examples.ppo HalfCheetah-v5 --normalize --iterations 150 --minibatch 64 --learning-rate 3e-4

Each iteration samples fragments, whose episodes go on in the next one. The output is the same on 1 worker or 2.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from gymnasium.spaces import Box, Discrete

from streamsampler import MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.adapters.torch import TorchAgent
from streamsampler.examples import ended_returns, made
from streamsampler.examples.pytorch import nn, torch
from streamsampler.filters import RunningNorm, RunningReturnNorm

__all__ = ["ActorCritic", "improve", "main", "train"]


def mlp(n_inputs: int, n_outputs: int, gain: float) -> nn.Sequential:
    """Make two hidden layers of 64, with orthogonal weights; a small gain of the last one begins near zero."""
    linear = nn.Linear(n_inputs, 64), nn.Linear(64, 64), nn.Linear(64, n_outputs)
    for layer, scale in zip(linear, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class ActorCritic(nn.Module):  # type: ignore[misc]
    """Logits, or a mean and a log standard deviation; and the observation's value, which comes back in the batch."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        if not isinstance(observation_space, Box) or not isinstance(action_space, (Box, Discrete)):
            raise click.UsageError("the environment needs observations in a Box, and actions in a Box or Discrete")
        n_inputs, self.discrete = int(np.prod(observation_space.shape)), isinstance(action_space, Discrete)
        n_outputs = int(action_space.n if isinstance(action_space, Discrete) else np.prod(action_space.shape))
        self.start = int(action_space.start) if isinstance(action_space, Discrete) else 0
        self.actor, self.critic = mlp(n_inputs, n_outputs, 0.01), mlp(n_inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(0 if self.discrete else n_outputs))

    def forward(self, observations: torch.Tensor) -> dict[str, torch.Tensor]:
        """(n, *O) to what `TorchAgent` takes: rows of the head's parameters, and of values."""
        return {"logits" if self.discrete else "mean": self.actor(observations), "value": self.critic(observations)}

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities (n,) of actions that were drawn."""
        mean = self.actor(observations)  # or logits
        if self.discrete:
            return torch.distributions.Categorical(logits=mean).log_prob(actions - self.start)
        return torch.distributions.Normal(mean, self.log_std.exp()).log_prob(actions.flatten(1)).sum(1)


def improve(policy: ActorCritic, adam: Any, batch: TrajectoryBatch, seed: int, gamma: float, minibatch: int) -> float:
    """Run one iteration of PPO, and return how far the first minibatch's ratios are from one: rounding errors."""
    observations = torch.as_tensor(batch.observations, dtype=torch.float32)
    actions = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))  # as drawn, not clipped
    log_probs = torch.as_tensor(batch.agent_infos["log_prob"], dtype=torch.float32)
    advantages = torch.as_tensor(batch.advantages(gamma=gamma, lambda_=0.95), dtype=torch.float32)
    targets, first = advantages + torch.as_tensor(batch.values, dtype=torch.float32), None
    for rows in batch.minibatches(minibatch, seed=seed, epochs=10):
        ratios = (policy.log_prob(observations[rows], actions[rows]) - log_probs[rows]).exp()
        first = float((ratios.detach() - 1).abs().max()) if first is None else first
        scaled = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std(correction=0) + 1e-8)
        gain = torch.min(scaled * ratios, scaled * ratios.clamp(0.8, 1.2)).mean()
        loss = 0.5 * nn.functional.mse_loss(policy.critic(observations[rows])[:, 0], targets[rows]) - gain
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        adam.step()
    return first or 0.0


def train(sampler: Any, policy: Any, iterations: int, timesteps: int, learning_rate: float, **options: Any) -> Any:
    """Yield, after each iteration's learning, the returns of the episodes that ended in it."""
    adam, running = torch.optim.Adam(policy.parameters(), eps=1e-5, fused=True), np.zeros(8)
    for iteration in range(iterations):
        adam.param_groups[0]["lr"] = learning_rate * (1 - iteration / iterations)
        batch = sampler.obtain_fragments(timesteps, 8, agent_update=policy)
        improve(policy, adam, batch, seed=iteration, **options)
        yield ended_returns(batch, running)


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes; more than 2 are idle.")
@click.option("--seed", default=0, type=click.IntRange(0), help="The seed of everything random.")
@click.option("--iterations", default=40, type=click.IntRange(0), help="Iterations.")
@click.option("--timesteps", default=250, type=click.IntRange(1), help="Timesteps of each environment in an iteration.")
@click.option("--minibatch", default=250, type=click.IntRange(1), help="Timesteps in a gradient step.")
@click.option("--learning-rate", default=1e-3, type=click.FloatRange(0, min_open=True), help="At first; it falls to 0.")
@click.option("--gamma", default=0.99, type=click.FloatRange(0, 1), help="Discount.")
@click.option("--normalize", is_flag=True, help="Normalise observations and rewards by what was seen so far.")
def main(environment: str, workers: int, seed: int, normalize: bool, **options: Any) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more do not pay for so small a network, and the workers need the cores
    with made(environment) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    settings: dict[str, Any] = {"n_workers": workers, "worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    if normalize:
        settings |= {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(options["gamma"])}
    with MultiprocessingSampler(TorchAgent(policy, space), environment, seed=seed, **settings) as sampler:
        for iteration, ended in enumerate(train(sampler, policy, **options)):
            click.echo(f"iteration {iteration}: mean return {sum(ended) / max(1, len(ended)):.2f} of {len(ended)}")
        evaluation = sampler.obtain_trajectories(100, agent_update=TorchAgent(policy, space, deterministic=True))
        click.echo(f"evaluation: mean return {evaluation.raw_returns.mean():.2f} of {len(evaluation)} trajectories")


if __name__ == "__main__":
    main()
