"""Learn with proximal policy optimisation (Schulman et al., 2017), in PyTorch.

    python -m streamsampler.examples.ppo CartPole-v1 --workers 4 --seed 1

Each iteration samples fragments: so many timesteps of each environment, whose episodes go on in the next iteration.
The agent records the values, and the learner adds the last ones. The number of workers does not change the output.
"""

from __future__ import annotations

import math
from typing import Any

import click
import gymnasium
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import nn

from streamsampler import MultiprocessingSampler, TrajectoryBatch
from streamsampler.adapters.torch import TorchAgent
from streamsampler.filters import RunningNorm

__all__ = ["ActorCritic", "episode_returns", "improve", "main"]


def mlp(n_inputs: int, n_outputs: int, gain: float) -> nn.Sequential:
    """Make two hidden layers of 64, with orthogonal weights; a small gain of the last one begins near zero."""
    linear = nn.Linear(n_inputs, 64), nn.Linear(64, 64), nn.Linear(64, n_outputs)
    for layer, scale in zip(linear, (math.sqrt(2), math.sqrt(2), gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class ActorCritic(nn.Module):  # type: ignore[misc]
    """Logits, or a mean and a log standard deviation; and the observation's value, which comes back in the batch."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        super().__init__()
        n_inputs, self.discrete = math.prod(observation_space.shape or ()), isinstance(action_space, Discrete)
        if not isinstance(observation_space, Box) or not isinstance(action_space, (Box, Discrete)):
            raise click.UsageError("the environment needs observations in a Box, and actions in a Box or Discrete")
        n_outputs = int(action_space.n) if isinstance(action_space, Discrete) else math.prod(action_space.shape)
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


def improve(policy: ActorCritic, adam: Any, batch: TrajectoryBatch[Any, Any], seed: int, gamma: float) -> float:
    """Run one iteration of PPO, and return how far the first minibatch's ratios are from one: rounding errors."""
    observations = torch.as_tensor(batch.observations, dtype=torch.float32)
    actions = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))  # as drawn, not clipped
    log_probs = torch.as_tensor(batch.agent_infos["log_prob"], dtype=torch.float32)
    last_values = policy.critic(torch.as_tensor(batch.last_observations, dtype=torch.float32))[:, 0]
    values, first = torch.as_tensor(batch.agent_infos["value"]), None
    advantages = batch.advantages(values, last_values, gamma, lambda_=0.95)
    for rows in batch.minibatches(250, seed=seed, epochs=10):
        ratios = (policy.log_prob(observations[rows], actions[rows]) - log_probs[rows]).exp()
        first = float((ratios.detach() - 1).abs().max()) if first is None else first
        scaled = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std(correction=0) + 1e-8)
        gain = torch.min(scaled * ratios, scaled * ratios.clamp(0.8, 1.2)).mean()
        loss = 0.5 * nn.functional.mse_loss(policy.critic(observations[rows])[:, 0], (advantages + values)[rows]) - gain
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        adam.step()
    return first or 0.0


def episode_returns(batch: TrajectoryBatch[Any, Any], running: dict[int, float]) -> list[float]:
    """Return the returns of the episodes that ended; `running` has what each environment's episode got so far."""
    ended = []
    for env, part, cut in zip(batch.env_numbers.tolist(), batch.raw_returns.tolist(), batch.cut, strict=True):
        running[env] = running.get(env, 0.0) + part
        if not cut:
            ended.append(running.pop(env))
    return ended


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, help="Worker processes.")
@click.option("--seed", default=0, help="The seed of everything random.")
@click.option("--iterations", default=40, help="Iterations.")
@click.option("--timesteps", default=250, help="Timesteps of each of 8 environments in an iteration.")
@click.option("--gamma", default=0.99, help="Discount.")
@click.option("--normalize", is_flag=True, help="Normalise observations by their running mean and variance.")
def main(environment: str, workers: int, seed: int, normalize: bool, **options: Any) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more do not pay for so small a network, and the workers need the cores
    with gymnasium.make(environment) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    adam, running = torch.optim.Adam(policy.parameters(), 1e-3, eps=1e-5), dict[int, float]()
    agent, norm = TorchAgent(policy, space), RunningNorm() if normalize else None
    with MultiprocessingSampler(agent, environment, n_workers=workers, seed=seed, observation_filter=norm) as sampler:
        for iteration in range(options["iterations"]):
            adam.param_groups[0]["lr"] = 1e-3 * (1 - iteration / options["iterations"])
            batch = sampler.obtain_fragments(options["timesteps"], 8, agent_update=policy)
            ended = episode_returns(batch, running)
            click.echo(f"iteration {iteration}: mean return {sum(ended) / max(1, len(ended)):.2f} of {len(ended)}")
            improve(policy, adam, batch, seed=iteration, gamma=options["gamma"])
        evaluation = sampler.obtain_trajectories(100, agent_update=TorchAgent(policy, space, deterministic=True))
        click.echo(f"evaluation: mean return {evaluation.raw_returns.mean():.2f} of {len(evaluation)} trajectories")


if __name__ == "__main__":
    main()
