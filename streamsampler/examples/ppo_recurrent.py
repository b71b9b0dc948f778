"""Learn with PPO and a policy that remembers, a GRU, from masked observations, in PyTorch.

    python -m streamsampler.examples.ppo_recurrent CartPole-v1 --hide 1,3 --workers 4 --seed 1

No policy without a memory balances CartPole without its velocities. The number of workers does not change the output.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TransformObservation

from streamsampler import MultiprocessingSampler, TrajectoryBatch
from streamsampler.examples import line_of, made
from streamsampler.examples.pytorch import nn, torch
from streamsampler.filters import RunningNorm, RunningReturnNorm


def make(environment: str, hide: str) -> Any:
    """Make the environment; the entries of its observations to hide, as in "1,3", are 0."""
    space: Any = (env := made(environment)).observation_space
    names = np.arange(np.prod(space.shape or ())).astype(int).astype(str)
    if space.shape != names.shape or not isinstance(env.action_space, Discrete) or not {*hide.split(",")} <= {*names}:
        raise click.UsageError("this needs vectors with the entries that --hide names, and actions in a Discrete")
    mask = ~np.isin(names, hide.split(","))
    return TransformObservation(env, lambda observation: observation * mask, space)


class RecurrentAgent(nn.Module):  # type: ignore[misc]
    """Acts with a GRU, whose output gives log-probabilities and a value."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.gru, self.noise = nn.GRU(env.observation_space.shape[0], 64, batch_first=True), 1.0
        self.actor, self.critic = nn.Linear(64, int(env.action_space.n)), nn.Linear(64, 1)

    def forward(self, observations: Any, hidden: Any) -> tuple[torch.Tensor, ...]:
        """(n, t, O) and (n, 64) to log-probabilities (n, t, A), values (n, t), and what is remembered then (n, 64)."""
        outputs, after = self.gru(torch.as_tensor(observations, dtype=torch.float32), torch.as_tensor(hidden)[None])
        return self.actor(outputs).log_softmax(-1), self.critic(outputs)[..., 0], after[0]

    def reset(self, seed: int) -> None:
        """Begin an episode: nothing is remembered, and actions are drawn from the seed."""
        self.hidden, self.random = torch.zeros(1, 64), np.random.default_rng(seed)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Choose an action, and remember the observation."""
        before, (rows, values, self.hidden) = self.hidden[0].numpy(), self(observation[None, None], self.hidden)
        log_probs = rows[0, 0].numpy()
        action = int((log_probs + self.noise * self.random.gumbel(size=len(log_probs))).argmax())  # a draw
        return action, {"log_prob": log_probs[action], "value": float(values), "hidden": before}

    def get_value(self, observation: Any) -> float:
        """Return the value of the last observation; it is not remembered."""
        return float(self(observation[None, None], self.hidden)[1].item())

    def get_state(self) -> Any:
        """Return what `set_state` takes: with it, an episode goes on in another worker if its own was lost."""
        return self.hidden.numpy(), self.random.bit_generator.state

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.hidden, self.random.bit_generator.state = torch.tensor(state[0]), state[1]

    def set_param_values(self, values: Any) -> None:
        """Take the parameters of another copy."""
        self.load_state_dict(values)


def improve(agent: RecurrentAgent, adam: Any, batch: TrajectoryBatch, seed: int) -> float:
    """Run one iteration of PPO, and return how far the first minibatch's ratios are from one: rounding errors."""
    padded, mask, rows = batch.padded("observations"), batch.mask, batch.mask.cumsum().reshape(batch.mask.shape) - 1
    columns, first = (batch.actions, batch.agent_infos["log_prob"], batch.advantages(), batch.td_lambda()), None  # (T,)
    for few in batch.minibatches(-(-len(batch) // 4), seed=seed, by="trajectory", epochs=10):
        found, values, _ = agent(padded[few], batch.agent_infos["hidden"][batch.starts[few]])
        actions, old, advantages, targets = (torch.as_tensor(column[rows[few][mask[few]]]) for column in columns)
        ratios = (found[mask[few]].gather(1, actions[:, None])[:, 0] - old).exp()
        first = float((ratios.detach() - 1).abs().max()) if first is None else first
        scaled = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        gain = torch.min(scaled * ratios, scaled * ratios.clamp(0.8, 1.2)).mean()
        adam.zero_grad()
        (0.5 * nn.functional.mse_loss(values[mask[few]], targets.float()) - gain).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        adam.step()
    return first or 0.0


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--hide", default="1,3", help="Which entries of observations are hidden.")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="The seed of everything random.")
@click.option("--iterations", default=60, type=click.IntRange(0), help="Each of 256 timesteps of 8 environments.")
def main(environment: str, hide: str, workers: int, seed: int, iterations: int) -> None:
    """Train in ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more do not pay for so small a network, and the workers need the cores
    agent = RecurrentAgent(make(environment, hide))
    adam = torch.optim.Adam(agent.parameters(), 3e-3)
    settings: Any = {"seed": seed, "observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm()}
    with MultiprocessingSampler(agent, partial(make, environment, hide), n_workers=workers, **settings) as sampler:
        for iteration in range(iterations):
            batch = sampler.obtain_fragments(256, 8, agent_update=agent.state_dict())
            click.echo(line_of(iteration, batch.episode_returns.tolist()))
            improve(agent, adam, batch, seed=iteration)
        agent.noise = 0.0
        returns = sampler.obtain_trajectories(100, agent_update=agent).raw_returns
        click.echo(f"evaluation: mean return {returns.mean():.2f} of {len(returns)} trajectories")


if __name__ == "__main__":
    main()
