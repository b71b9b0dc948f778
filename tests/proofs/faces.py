"""Two libraries' PPO learns the same over managers whose workers are killed, and solves CartPole-v1.

A script in CleanRL's style trains over `vector_env()`, and Stable-Baselines3's PPO over `sb3_env()`, while a worker is
killed at random moments, about once a second. What they learn, bit by bit, is what they learn in one process that
nobody disturbs: so not one observation, reward or end was lost, repeated or changed on the way. Needs the extra `sb3`.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import warnings
from typing import Any

import numpy as np

from streamsampler import EnvManager, Limits, SerialEnvManager
from tests.proofs._kills import disturbed

ENV_ID, SOLVED = "CartPole-v1", 475.0


def cleanrl(manager: Any, n_timesteps: int) -> tuple[Any, float]:
    """Train over the face for Gymnasium; return all that was learned, and how good it was in the end."""
    from tests.stepping.cleanrl_ppo import train

    returns, digest = train(manager.vector_env(), n_timesteps, learning_rate=1e-3)
    return (returns, digest), float(np.mean(returns[-100:]))


def sb3(manager: Any, n_timesteps: int) -> tuple[Any, float]:
    """Train over the face for Stable-Baselines3, with the settings that its zoo has for CartPole-v1."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecMonitor

    env = VecMonitor(manager.sb3_env())
    model = PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, seed=1, device="cpu",
        learning_rate=lambda left: left * 1e-3, clip_range=lambda left: left * 0.2,
    )  # fmt: skip
    model.learn(n_timesteps)
    returns, _ = evaluate_policy(model, env, n_eval_episodes=16, return_episode_rewards=True)
    digest = hashlib.sha256(b"".join(it.numpy().tobytes() for it in model.policy.state_dict().values())).hexdigest()
    env.close()
    return (returns, digest), float(np.mean(returns))


# What trains, over how many environments, in what mode, for how many timesteps in each scale.
LEARNERS: list[tuple[Any, int, Any, dict[str, int]]] = [
    (cleanrl, 4, "next_step", {"short": 4_096, "long": 300_000}),
    (sb3, 8, "same_step", {"short": 2_048, "long": 100_000}),
]


def prove(scale: str) -> None:
    """Train with and without kills, and compare; "long" trains until CartPole-v1 is solved."""
    import torch

    warnings.filterwarnings("ignore", category=UserWarning, module="stable_baselines3")
    torch.set_num_threads(1)
    for learn, n_envs, autoreset, n_timesteps in LEARNERS:
        options: dict[str, Any] = {"n_envs": n_envs, "seed": 5, "autoreset": autoreset}
        expected, _ = learn(SerialEnvManager(ENV_ID, **options), n_timesteps[scale])
        for n_workers in (2,) if scale == "short" else (2, 3):
            limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
            manager, dice = EnvManager(ENV_ID, n_workers=n_workers, **limits, **options), random.Random(1)
            manager.worker_pids()  # which starts the workers
            pauses = (dice.expovariate(10 if scale == "short" else 1) for _ in itertools.count())
            with disturbed(manager.worker_pids, dice, pauses) as killed:
                learned, how_good = learn(manager, n_timesteps[scale])
            print(f"{learn.__name__}, {n_workers} workers: {len(killed)} kills, mean return {how_good:.1f}", flush=True)
            assert learned == expected, f"{learn.__name__}: kills have changed what was learned"
            assert manager.failures >= 5, f"{learn.__name__}: {manager.failures} losses show nothing"
            assert scale == "short" or how_good >= SOLVED, learn.__name__
