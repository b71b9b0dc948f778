r"""Learn with independent proximal policy optimisation (de Witt et al., 2020): one policy for all agents, in PyTorch.

    pip install mpe2
    python -m streamsampler.examples.ppo_multiagent mpe2.simple_spread_v3 --workers 2 --seed 1 --out spread.pt
    python -m streamsampler.examples.ppo_multiagent pettingzoo.sisl.pursuit_v5 --iterations 200

All agents share parameters, and each learns from its own observations, actions and rewards. The environment is from
PettingZoo, by its module's name, with equal spaces for all agents. The output is the same on 1 worker or 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from streamsampler import MultiAgentBatch, MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import UnknownEnvironmentError
from streamsampler.examples import line_of
from streamsampler.examples.ppo import ActorCritic, Settings, improve, save, with_settings
from streamsampler.examples.pytorch import torch
from streamsampler.filters import RunningNorm, RunningReturnNorm


def spaces_of(environment: str) -> tuple[Any, Any]:
    """Return the observation and action space common to all agents of an environment.

    Raises:
        click.UsageError: The environment is unknown, or its agents' spaces differ.
    """
    try:
        env: Any = as_env_update(environment)(None)
    except UnknownEnvironmentError as error:
        raise click.UsageError(str(error)) from error
    try:
        of_agents = [list(space.values()) for space in (env.observation_space, env.action_space)]
    except AttributeError as error:
        raise click.UsageError(f"{environment} has a single agent: use streamsampler.examples.ppo") from error
    finally:
        env.close()
    if any(space != spaces[0] for spaces in of_agents for space in spaces):
        raise click.UsageError(f"the agents of {environment} have different spaces, and cannot share a policy")
    return of_agents[0][0], of_agents[1][0]


def train(sampler: Any, policy: ActorCritic, settings: Settings) -> Iterator[list[float]]:
    """After each iteration, yield each episode's return, averaged over agents."""
    adam = torch.optim.Adam(policy.parameters(), eps=1e-5, fused=True)
    for iteration in range(settings.iterations):
        adam.param_groups[0]["lr"] = settings.learning_rate * (1 - iteration / settings.iterations)
        batch = sampler.obtain_samples(settings.n_envs * settings.timesteps, agent_update=policy, count="agent_steps")
        improve(policy, adam, batch["shared"], iteration, settings)
        yield mean_returns(batch)


def mean_returns(batch: MultiAgentBatch) -> list[float]:
    returns: list[float] = np.nanmean(list(batch.episodes.returns.values()), axis=0).tolist()
    return returns


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="mpe2.simple_spread_v3")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the policy after each iteration.")
@with_settings
def main(environment: str, workers: int, seed: int, out: Path | None, **tuned_settings: Any) -> None:
    """Train all agents of ENVIRONMENT, and evaluate the policy without drawing on 100 trajectories.

    Each iteration samples --n-envs times --timesteps timesteps of all agents together.
    """
    settings = Settings(**tuned_settings)
    if out is not None and not out.parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist")
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small a network gains nothing from more, and the workers need the cores
    observation_space, action_space = spaces_of(environment)
    policy = ActorCritic(observation_space, action_space)
    with MultiprocessingSampler(
        TorchAgent(policy, action_space), environment, seed=seed, n_workers=workers,
        observation_filter=RunningNorm() if settings.normalize_observations else None,
        reward_filter=RunningReturnNorm(settings.gamma) if settings.normalize_rewards else None,
    ) as sampler:  # fmt: skip
        for iteration, returns in enumerate(train(sampler, policy, settings)):
            click.echo(line_of(iteration, returns))
            if out is not None:
                save(out, policy, sampler.filters)
        agent = TorchAgent(policy, action_space, deterministic=True)
        evaluation: Any = sampler.obtain_trajectories(100, agent_update=agent)
        click.echo(f"evaluation: mean return {np.mean(mean_returns(evaluation)):.2f} of {len(evaluation)} episodes")


if __name__ == "__main__":
    main()
