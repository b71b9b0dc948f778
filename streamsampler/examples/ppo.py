r"""Learn with proximal policy optimisation (Schulman et al., 2017), in PyTorch.

    python -m streamsampler.examples.ppo CartPole-v1 --workers 2 --seed 1 --out cartpole.pt
    python -m streamsampler.examples.ppo HalfCheetah-v5 --normalize-observations --normalize-rewards \
        --iterations 150 --minibatch 64 --learning-rate 3e-4

Each iteration samples fragments; their episodes continue in the next iteration. The output is the same on 1 worker or
2. `load` returns an agent from the file of `--out`:

    from streamsampler import evaluate
    from streamsampler.examples.ppo import load

    print(evaluate(load("cartpole.pt", "CartPole-v1"), "CartPole-v1", n_trajectories=100))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

import click
import numpy as np
from gymnasium.spaces import Box, Discrete

from streamsampler import MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.adapters.torch import TorchAgent
from streamsampler.examples import line_of, made
from streamsampler.examples.pytorch import nn, torch
from streamsampler.filters import FilteredAgent, Filters, RunningNorm, RunningReturnNorm


def tuned(default: Any, help_: str, type_: Any = None) -> Any:
    """Return a field that is also an option of the command line: with a type, or without a type a flag."""
    return field(default=default, metadata={"help": help_, **({"is_flag": True} if type_ is None else {"type": type_})})


@dataclass(frozen=True)
class Settings:
    """The hyperparameters."""

    iterations: int = tuned(40, "Iterations.", click.IntRange(0))
    n_envs: int = tuned(8, "Environments stepped side by side.", click.IntRange(1))
    timesteps: int = tuned(250, "Timesteps of each environment in an iteration.", click.IntRange(1))
    epochs: int = tuned(10, "Passes over an iteration's timesteps.", click.IntRange(1))
    minibatch: int = tuned(250, "Timesteps in a gradient step.", click.IntRange(1))
    learning_rate: float = tuned(1e-3, "Initial learning rate; decays to 0.", click.FloatRange(0, min_open=True))
    gamma: float = tuned(0.99, "Discount.", click.FloatRange(0, 1))
    lambda_: float = tuned(0.95, "Lambda of generalised advantage estimation.", click.FloatRange(0, 1))
    clip: float = tuned(0.2, "Clipping range of probability ratios around 1.", click.FloatRange(0, min_open=True))
    entropy: float = tuned(0.0, "Weight of the entropy bonus.", click.FloatRange(0))
    value: float = tuned(0.5, "Weight of the value loss.", click.FloatRange(0))
    max_gradient: float = tuned(
        0.5, "Largest norm of a gradient; longer ones are clipped.", click.FloatRange(0, min_open=True)
    )
    normalize_observations: bool = tuned(False, "Normalise observations with running statistics.")
    normalize_rewards: bool = tuned(False, "Divide rewards by the running deviation of returns.")


def mlp(n_inputs: int, n_outputs: int, gain: float) -> nn.Sequential:
    """Make an MLP with two hidden layers of 64 and orthogonal weights; a small `gain` starts near zero."""
    linear = nn.Linear(n_inputs, 64), nn.Linear(64, 64), nn.Linear(64, n_outputs)
    for layer, scale in zip(linear, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class ActorCritic(nn.Module):  # type: ignore[misc]
    """A policy's logits, or mean and log standard deviation, with the observation's value, recorded in the batch."""

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
        """Return the outputs for `TorchAgent` from observations (n, *O): parameters of the distribution, and values."""
        return {"logits" if self.discrete else "mean": self.actor(observations), "value": self.critic(observations)}

    def distribution(self, observations: torch.Tensor) -> Any:
        """Return the distribution of n actions after observations (n, *O)."""
        if self.discrete:
            return torch.distributions.Categorical(logits=self.actor(observations))
        return torch.distributions.Independent(
            torch.distributions.Normal(self.actor(observations), self.log_std.exp()), 1
        )

    def as_drawn(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions (n, *A) in the form of `distribution`: counted from 0, or flat."""
        return actions - self.start if self.discrete else actions.flatten(1)

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        log_probs: torch.Tensor = self.distribution(observations).log_prob(self.as_drawn(actions))
        return log_probs


def improve(policy: ActorCritic, adam: Any, batch: TrajectoryBatch, seed: int, settings: Settings) -> float:
    """Run a PPO iteration; return the first minibatch's largest |ratio - 1|, due to rounding alone."""
    observations = torch.as_tensor(batch.observations, dtype=torch.float32)
    actions = policy.as_drawn(torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions)))  # before clipping
    log_probs = torch.as_tensor(batch.agent_infos["log_prob"], dtype=torch.float32)
    advantages = batch.advantages(gamma=settings.gamma, lambda_=settings.lambda_)
    advantages = torch.as_tensor(advantages, dtype=torch.float32)
    targets, first = advantages + torch.as_tensor(batch.values, dtype=torch.float32), None
    for rows in batch.minibatches(settings.minibatch, seed=seed, epochs=settings.epochs):
        distribution = policy.distribution(observations[rows])
        ratios = (distribution.log_prob(actions[rows]) - log_probs[rows]).exp()
        first = float((ratios.detach() - 1).abs().max()) if first is None else first
        scaled = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std(correction=0) + 1e-8)
        gain = torch.min(scaled * ratios, scaled * ratios.clamp(1 - settings.clip, 1 + settings.clip)).mean()
        if settings.entropy:
            gain = gain + settings.entropy * distribution.entropy().mean()
        error = nn.functional.mse_loss(policy.critic(observations[rows])[:, 0], targets[rows])
        adam.zero_grad()
        (settings.value * error - gain).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), settings.max_gradient)
        adam.step()
    return first or 0.0


def train(sampler: Any, policy: ActorCritic, settings: Settings) -> Iterator[list[float]]:
    """After each iteration, yield the returns of the episodes that ended in it."""
    adam = torch.optim.Adam(policy.parameters(), eps=1e-5, fused=True)
    for iteration in range(settings.iterations):
        adam.param_groups[0]["lr"] = settings.learning_rate * (1 - iteration / settings.iterations)
        batch = sampler.obtain_fragments(settings.timesteps, settings.n_envs, agent_update=policy)
        improve(policy, adam, batch, iteration, settings)
        yield batch.episode_returns.tolist()


def save(path: Path, policy: ActorCritic, filters: Filters) -> None:
    """Save a policy with its filters' statistics, atomically."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    torch.save({"policy": policy.state_dict(), "filters": filters}, unfinished)
    unfinished.replace(path)


def load(path: str | PathLike[str], environment: str) -> Any:
    """Return an agent that takes the saved policy's likeliest actions. Load trusted files only: they can run code.

    Args:
        path: The file of `--out`.
        environment: The environment's id, for its spaces.
    """
    saved = torch.load(path, weights_only=False)
    with made(environment) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    policy.load_state_dict(saved["policy"])
    agent, observation_filter = TorchAgent(policy, space, deterministic=True), saved["filters"].observation
    return agent if observation_filter is None else FilteredAgent(agent, observation_filter)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each hyperparameter to a command."""
    for setting in reversed(fields(Settings)):
        name = f"--{setting.name.strip('_').replace('_', '-')}"
        command = click.option(name, setting.name, default=setting.default, **setting.metadata)(command)
    return command


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes; more than 2 are idle.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the policy after each iteration.")
@with_settings
def main(environment: str, workers: int, seed: int, out: Path | None, **tuned_settings: Any) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    settings = Settings(**tuned_settings)
    if out is not None and not out.parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist")
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small a network gains nothing from more, and the workers need the cores
    with made(environment) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    with MultiprocessingSampler(
        TorchAgent(policy, space), environment, seed=seed, n_workers=workers, worker_class=VecWorker,
        worker_args={"n_envs": -(-settings.n_envs // 2)},
        observation_filter=RunningNorm() if settings.normalize_observations else None,
        reward_filter=RunningReturnNorm(settings.gamma) if settings.normalize_rewards else None,
    ) as sampler:  # fmt: skip
        for iteration, ended in enumerate(train(sampler, policy, settings)):
            click.echo(line_of(iteration, ended))
            if out is not None:
                save(out, policy, sampler.filters)
        evaluation = sampler.obtain_trajectories(100, agent_update=TorchAgent(policy, space, deterministic=True))
        click.echo(f"evaluation: mean return {evaluation.raw_returns.mean():.2f} of {len(evaluation)} trajectories")


if __name__ == "__main__":
    main()
