"""Evaluate a Stable-Baselines3 model with confidence intervals, and compare it with an earlier model.

    python -m streamsampler.examples.evaluate_sb3 CartPole-v1 --workers 4 --seed 1
    python -m streamsampler.examples.evaluate_sb3 CartPole-v1 --model ppo_cartpole.zip

Without a file, a PPO model is trained first, and compared with its state after half of the training. Both run on the
same seeds, so the difference is due to the models. The number of workers does not change the output.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from gymnasium.spaces import Dict

import streamsampler
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.core.extras import needed
from streamsampler.examples import made

TIMESTEPS = 20_000  # of training, without a model
TRAJECTORIES = 100  # for each evaluation


def trained(environment: str, timesteps: int, seed: int) -> tuple[SB3Agent, SB3Agent]:
    """Train a PPO model; return agents after half of the timesteps, and after all.

    Raises:
        click.UsageError: Stable-Baselines3 is not installed.
    """
    try:
        PPO = needed("stable_baselines3", "training", "sb3").PPO  # noqa: N806 - a class
    except ImportError as error:
        raise click.UsageError(str(error)) from error
    with made(environment) as env, TemporaryDirectory() as folder:
        policy = "MultiInputPolicy" if isinstance(env.observation_space, Dict) else "MlpPolicy"
        model = PPO(policy, env, seed=seed, device="cpu")
        model.learn(timesteps // 2).save(f"{folder}/half.zip")
        model.learn(timesteps - timesteps // 2, reset_num_timesteps=False)
        half = SB3Agent.load(f"{folder}/half.zip", deterministic=True)
    return half, SB3Agent(model, deterministic=True)


@click.command(context_settings={"show_default": True})
@click.argument("environment", default="CartPole-v1")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A saved model.")
@click.option("--workers", default=2, type=click.IntRange(1), help="Worker processes.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option("--timesteps", default=TIMESTEPS, type=click.IntRange(0), help="Timesteps of training, without --model.")
@click.option("--trajectories", default=TRAJECTORIES, type=click.IntRange(1), help="Trajectories to evaluate on.")
def main(environment: str, model: Path | None, workers: int, seed: int, timesteps: int, trajectories: int) -> None:
    """Evaluate a model in ENVIRONMENT, without drawing from its distributions."""
    made(environment).close()  # an unknown environment is reported before anything runs
    options: dict[str, Any] = {"n_trajectories": trajectories, "n_workers": workers, "seed": seed}
    if model is not None:
        click.echo(str(streamsampler.evaluate(SB3Agent.load(model, deterministic=True), environment, **options)))
        return
    half, whole = trained(environment, timesteps, seed)
    click.echo(str(streamsampler.evaluate(whole, environment, **options)))
    click.echo("\nbefore and after the second half of the training:\n")
    click.echo(str(streamsampler.compare({"before": half, "after": whole}, environment, **options)))


if __name__ == "__main__":
    main()
