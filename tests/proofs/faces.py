"""Two libraries' PPO learns the same over managers whose workers are killed, and solves CartPole-v1.

A script in CleanRL's style trains over `vector_env()`, and Stable-Baselines3's PPO over `sb3_env()`, while a worker is
killed at random moments, about once a second. What they learn, bit by bit, is what they learn in one process that
nobody disturbs: so not one observation, reward or end was lost, repeated or changed on the way. Needs the extra `sb3`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from streamsampler import EnvManager, SerialEnvManager
from streamsampler.errors import ClosedError

ENV_ID = "CartPole-v1"
SOLVED = 475.0


@contextlib.contextmanager
def kills(manager: EnvManager, seconds: float, seed: int) -> Iterator[list[int]]:
    """Kill a worker of a manager every so many seconds on the average; yield the process ids, as they are killed."""
    dice, over, killed = random.Random(seed), threading.Event(), []

    def kill() -> None:
        while not over.wait(dice.expovariate(1 / seconds)):
            with contextlib.suppress(ProcessLookupError, ClosedError):  # the learner closes the manager
                pid = dice.choice(manager.worker_pids())
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    manager.worker_pids()  # which starts the workers
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join()


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


# By name: what trains, over how many environments, in what mode, for how many timesteps in each scale, and how many
# seconds lie between kills there.
LEARNERS: dict[str, tuple[Callable[[Any, int], tuple[Any, float]], int, Any, dict[str, tuple[int, float]]]] = {
    "CleanRL": (cleanrl, 4, "next_step", {"short": (4_096, 0.1), "long": (300_000, 1.0)}),
    "Stable-Baselines3": (sb3, 8, "same_step", {"short": (2_048, 0.1), "long": (100_000, 1.0)}),
}


def prove(scale: str) -> None:
    """Train with and without kills, and compare; "long" trains until CartPole-v1 is solved."""
    import torch

    warnings.filterwarnings("ignore", category=UserWarning, module="stable_baselines3")
    torch.set_num_threads(1)
    for name, (learn, n_envs, autoreset, scales) in LEARNERS.items():
        n_timesteps, seconds = scales[scale]
        options: dict[str, Any] = {"n_envs": n_envs, "seed": 5, "autoreset": autoreset}
        expected, _ = learn(SerialEnvManager(ENV_ID, **options), n_timesteps)
        for n_workers in (2,) if scale == "short" else (2, 3):
            began = time.perf_counter()
            manager = EnvManager(ENV_ID, n_workers=n_workers, max_restarts=None, **options)
            with kills(manager, seconds, n_workers) as killed:
                learned, how_good = learn(manager, n_timesteps)
            print(
                f"{name}, {n_workers} workers: {len(killed)} kills, {manager.failures} workers lost, {n_timesteps} "
                f"timesteps in {time.perf_counter() - began:.0f} s, mean return {how_good:.1f}",
                flush=True,
            )
            assert learned == expected, f"{name}: kills have changed what was learned"
            assert manager.failures >= 5, f"{name}: {manager.failures} losses show nothing"
            assert scale == "short" or how_good >= SOLVED, name
