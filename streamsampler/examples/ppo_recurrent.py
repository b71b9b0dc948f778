"""Learn with PPO and a recurrent policy, a GRU, from masked observations, in PyTorch.

    python -m streamsampler.examples.ppo_recurrent CartPole-v1 --hide 1,3 --workers 4 --seed 1

Without velocities, CartPole cannot be balanced without a memory. The number of workers does not change the output.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TransformObservation

from streamsampler import MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.adapters.torch import TorchAgent
from streamsampler.examples import line_of, made
from streamsampler.examples.pytorch import nn, torch
from streamsampler.filters import RunningNorm, RunningReturnNorm

N_ENVS, TIMESTEPS = 16, 64  # environments side by side, and timesteps of each in an iteration
LENGTH = 32  # timesteps of the longest training sequence: gradients go no further back
EPOCHS, SEQUENCES = 10, 10  # passes over an iteration's timesteps, and sequences in a gradient step
LEARNING_RATE = 2e-3  # at first; decays to 0
GAMMA, LAMBDA = 0.98, 0.8  # discount, and lambda of generalised advantage estimation


def make(environment: str, hide: str) -> Any:
    """Make the environment, with the entries of its observations listed in `hide`, as in "1,3", set to 0."""
    space: Any = (env := made(environment)).observation_space
    names = np.arange(np.prod(space.shape or ())).astype(int).astype(str)
    if space.shape != names.shape or not isinstance(env.action_space, Discrete) or not {*hide.split(",")} <= {*names}:
        raise click.UsageError(
            "the environment needs vector observations with the entries of --hide, and actions in a Discrete"
        )
    mask = ~np.isin(names, hide.split(","))
    return TransformObservation(env, lambda observation: observation * mask, space)


class RecurrentActorCritic(nn.Module):  # type: ignore[misc]
    """A GRU with linear heads for logits and value."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.gru = nn.GRU(env.observation_space.shape[0], 64, batch_first=True)
        self.actor, self.critic = nn.Linear(64, int(env.action_space.n)), nn.Linear(64, 1)

    def initial_state(self, n: int) -> torch.Tensor:
        """Return the hidden state at the start of n episodes, (n, 64)."""
        return torch.zeros(n, 64)

    def forward(self, observations: Any, state: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return logits and values of n rows, and the next hidden state, from observations (n, O) and state (n, 64)."""
        logits, values, after = self.along(observations[:, None], state)
        return {"logits": logits[:, 0], "value": values[:, 0]}, after

    def along(self, observations: Any, state: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits (n, t, A), values (n, t) and the last state (n, 64) from (n, t, O) and a state (n, 64)."""
        outputs, after = self.gru(torch.as_tensor(observations, dtype=torch.float32), torch.as_tensor(state)[None])
        return self.actor(outputs), self.critic(outputs)[..., 0], after[0]


def improve(policy: RecurrentActorCritic, adam: Any, batch: TrajectoryBatch, seed: int) -> float:
    """Run a PPO iteration; return the first minibatch's largest |ratio - 1|, due to rounding alone."""
    estimates = batch.advantages(gamma=GAMMA, lambda_=LAMBDA)  # (T,), like all columns
    columns, first = (batch.actions, batch.agent_infos["log_prob"], estimates, estimates + batch.values), None
    minibatches = batch.minibatches(SEQUENCES, seed=seed, by="sequence", length=LENGTH, epochs=EPOCHS)
    for rows, mask, states in minibatches:
        logits, values, _ = policy.along(batch.observations[rows], states)
        actions, old, advantages, targets = (torch.as_tensor(column[rows[mask]]) for column in columns)
        ratios = (logits[mask].log_softmax(-1).gather(1, actions[:, None])[:, 0] - old).exp()
        first = float((ratios.detach() - 1).abs().max()) if first is None else first
        scaled = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        gain = torch.min(scaled * ratios, scaled * ratios.clamp(0.8, 1.2)).mean()
        adam.zero_grad()
        (0.5 * nn.functional.mse_loss(values[mask], targets.float()) - gain).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        adam.step()
    return first or 0.0


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--hide", default="1,3", help="Entries of observations to hide.")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes; more than 2 are idle.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--iterations", default=200, type=click.IntRange(0), help="Iterations.")
def main(environment: str, hide: str, workers: int, seed: int, iterations: int) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small a network gains nothing from more, and the workers need the cores
    policy, space = RecurrentActorCritic(env := make(environment, hide)), env.action_space
    agent, adam = TorchAgent(policy, space, state_every=LENGTH), torch.optim.Adam(policy.parameters())
    with MultiprocessingSampler(
        agent, partial(make, environment, hide), seed=seed, n_workers=workers, worker_class=VecWorker,
        worker_args={"n_envs": N_ENVS // 2}, observation_filter=RunningNorm(), reward_filter=RunningReturnNorm(GAMMA),
    ) as sampler:  # fmt: skip
        for iteration in range(iterations):
            adam.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / iterations)
            batch = sampler.obtain_fragments(TIMESTEPS, N_ENVS, agent_update=policy)
            click.echo(line_of(iteration, batch.episode_returns.tolist()))
            improve(policy, adam, batch, seed=iteration)
        agent = TorchAgent(policy, space, deterministic=True)
        returns = sampler.obtain_trajectories(100, agent_update=agent).raw_returns
        click.echo(f"evaluation: mean return {returns.mean():.2f} of {len(returns)} trajectories")


if __name__ == "__main__":
    main()
