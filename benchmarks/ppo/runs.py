"""One run of PPO: a contender, a task and a seed (see `run`)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.harness import processes
from benchmarks.ppo.collectors import Collect, batched, fragments, trajectories, vector_env
from benchmarks.ppo.tasks import N_ENVS, Task
from streamsampler import TrajectoryBatch
from streamsampler.examples.ppo import ActorCritic, Settings, train

EPISODES, LAST = 20, 100
"""Of so many successive episodes the returns are averaged: along the curve, and at its end."""


class Curve:
    """The learning curve of a run: a point for each iteration."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._returns: list[float] = []
        self.points: list[dict[str, float | None]] = []

    def add(self, timesteps: int, episode_returns: list[float], seconds: float) -> None:
        """Add the point of an iteration: when its data had arrived, before learning from them."""
        self._returns += episode_returns
        mean = float(np.mean(self._returns[-EPISODES:])) if len(self._returns) >= EPISODES else None
        self.points.append({"timesteps": timesteps, "seconds": seconds, "mean_return": mean})

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begin

    def result(self, collecting: float) -> dict[str, Any]:
        """Return what is kept of a run that has just ended, while its processes live."""
        seconds = self.elapsed()
        return {
            "curve": self.points,
            "final": float(np.mean(self._returns[-LAST:])),
            "seconds": seconds,
            "learning": seconds - collecting,
            "cpu": processes.cpu_seconds(processes.processes_of(os.getpid())),
        }


class Timed:
    """Stands for a sampler: hands a collector's batches to the example's `train`, and measures."""

    def __init__(self, collect: Collect, curve: Curve) -> None:
        self._collect, self._curve = collect, curve
        self.timesteps, self.seconds, self.arrived = 0, 0.0, 0.0

    def obtain_fragments(self, n_timesteps: int, n_envs: int, agent_update: ActorCritic) -> TrajectoryBatch:
        """Return the next batch."""
        begin = self._curve.elapsed()
        batch = self._collect(n_timesteps, n_envs, agent_update)
        self.arrived = self._curve.elapsed()
        self.seconds += self.arrived - begin
        self.timesteps += batch.n_timesteps
        return batch


def contenders(n_workers: int, start_method: str | None) -> dict[str, Callable[..., Any]]:
    """Those that learn with the example's code, by name."""
    ours = {"n_workers": n_workers, "start_method": start_method}
    return {
        "example": functools.partial(fragments, **ours),
        "streamsampler": functools.partial(trajectories, **ours),
        "streamsampler_numpy": functools.partial(trajectories, in_numpy=True, **ours),
        "streamsampler_vec": functools.partial(batched, **ours),
        "streamsampler_vec_numpy": functools.partial(batched, in_numpy=True, **ours),
        "gymnasium_sync": functools.partial(vector_env, mode="sync"),
        "gymnasium_async": functools.partial(vector_env, mode="async"),
    }


def names() -> list[str]:
    """All contenders."""
    return [*contenders(1, None), "sb3", "sb3_subproc"]


def run(name: str, task: Task, seed: int, n_workers: int, start_method: str | None) -> dict[str, Any]:
    """Train.

    The clock starts when everything is imported, and before any environment, sampler or process is made.

    Returns:
        The curve, the seconds in all and those spent learning, the mean return of the last episodes, and the CPU time
        of all processes, imports included.
    """
    torch.set_num_threads(1)  # with networks of this size, more are no quicker, for any of the contenders
    _warm_up()
    if name.startswith("sb3"):
        return _run_sb3(task, seed, subprocesses=name == "sb3_subproc")
    with gymnasium.make(task.env_id) as env:
        torch.manual_seed(seed)
        policy = ActorCritic(env.observation_space, env.action_space)
    curve = Curve()
    with contenders(n_workers, start_method)[name](task, policy, seed) as collect:
        source = Timed(collect, curve)
        settings = Settings(
            iterations=task.iterations, n_envs=N_ENVS, timesteps=task.timesteps, minibatch=task.minibatch,
            learning_rate=task.learning_rate, gamma=task.gamma,
        )  # fmt: skip
        for ended in train(source, policy, settings):
            curve.add(source.timesteps, ended, source.arrived)
        return curve.result(source.seconds)


def _warm_up() -> None:
    """Make an optimiser take a step: torch imports what its optimisers need when the first one is made."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.sum().backward()
    torch.optim.Adam([weight], fused=True).step()


def _run_sb3(task: Task, seed: int, subprocesses: bool) -> dict[str, Any]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    class Recorder(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.curve, self.returns, self.collecting, self.began = Curve(), [], 0.0, 0.0

        def _on_rollout_start(self) -> None:
            self.began = self.curve.elapsed()

        def _on_step(self) -> bool:
            self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

        def _on_rollout_end(self) -> None:
            now = self.curve.elapsed()
            self.curve.add(self.num_timesteps, self.returns, now)
            self.returns, self.collecting = [], self.collecting + now - self.began

    recorder = Recorder()
    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    envs = make_vec_env(task.env_id, n_envs=N_ENVS, seed=seed, vec_env_cls=kind)
    if task.normalize:
        envs = VecNormalize(envs, gamma=task.gamma)
    model = PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        device="cpu",
        n_steps=task.timesteps,
        batch_size=task.minibatch,
        n_epochs=10,
        # As in the example; what is left is told after the iteration's data have arrived.
        learning_rate=lambda left: task.learning_rate * (left + 1 / task.iterations),
        gamma=task.gamma,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.0,
        policy_kwargs={"optimizer_kwargs": {"eps": 1e-5, "fused": True}},
    )
    model.learn(task.iterations * task.batch, callback=recorder)
    result = recorder.curve.result(recorder.collecting)
    envs.close()
    return result
