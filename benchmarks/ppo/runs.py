"""One run of PPO: a contender, a task and a seed (see `run`)."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch

import streamsampler
from benchmarks.ppo.collectors import N_ENVS, from_streamsampler, from_vec_workers, from_vector_env
from benchmarks.ppo.learner import Experience, Learner, Task

Collector = Callable[[Task, Learner, int], Iterator[Experience]]
EPISODES = 20
"""Of so many successive episodes the returns are averaged."""


class Curve:
    """The learning curve of a run: a point for each iteration."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._recent: deque[float] = deque(maxlen=EPISODES)
        self.points: list[dict[str, float]] = []

    def add(self, timesteps: int, episode_returns: list[float]) -> None:
        """Add the point of an iteration, when its data have arrived and before learning from them."""
        self._recent.extend(episode_returns)
        mean = float(np.mean(self._recent)) if len(self._recent) == EPISODES else float("nan")
        self.points.append({"timesteps": timesteps, "seconds": self.elapsed(), "mean_return": mean})

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begin


def contenders(n_workers: int, start_method: str | None) -> dict[str, Collector]:
    """Those that share the learner, by name."""
    ours = {"n_workers": n_workers, "start_method": start_method}
    found: dict[str, Collector] = {"streamsampler": functools.partial(from_streamsampler, **ours)}
    found["streamsampler_numpy"] = functools.partial(from_streamsampler, in_numpy=True, **ours)
    if hasattr(streamsampler, "VecWorker"):
        found["streamsampler_vec"] = functools.partial(from_vec_workers, **ours)
        found["streamsampler_vec_numpy"] = functools.partial(from_vec_workers, in_numpy=True, **ours)
    found["gymnasium_sync"] = functools.partial(from_vector_env, mode="sync")
    found["gymnasium_async"] = functools.partial(from_vector_env, mode="async")
    return found


def names() -> list[str]:
    """All contenders."""
    return [*contenders(1, None), "sb3", "sb3_subproc"]


def run(name: str, task: Task, seed: int, n_workers: int, start_method: str | None) -> dict[str, Any]:
    """Train.

    The clock starts when everything is imported, and before any environment, sampler or process is made.

    Returns:
        The curve, the seconds in all and those spent learning.
    """
    torch.set_num_threads(1)  # with networks of this size, more are no quicker, for any of the contenders
    _warm_up(task)
    if name.startswith("sb3"):
        return _run_sb3(task, seed, subprocesses=name == "sb3_subproc")
    env = gymnasium.make(task.env_id)
    curve, timesteps, learning = Curve(), 0, 0.0
    learner = Learner(task, env.observation_space, env.action_space, seed)
    with contextlib.closing(contenders(n_workers, start_method)[name](task, learner, seed)) as batches:
        while timesteps < task.timesteps:
            data = next(batches)
            timesteps += len(data.rewards)
            curve.add(timesteps, data.episode_returns)
            begin = time.perf_counter()
            learner.improve(data)
            learning += time.perf_counter() - begin
        seconds = curve.elapsed()
    return {"curve": curve.points, "seconds": seconds, "learning": learning}


def _warm_up(task: Task) -> None:
    """Learn once from little data: torch imports what its optimisers need when the first optimiser is made."""
    env = gymnasium.make(task.env_id)
    learner = Learner(task, env.observation_space, env.action_space, seed=0)
    observations = np.zeros((4, *env.observation_space.shape), np.float32)
    actions = np.array([env.action_space.sample() for _ in observations])
    columns = observations, actions, np.zeros(4), np.zeros(4)
    learner.improve(Experience(*columns, np.array([4]), np.array([True]), observations[:1], []))


def _run_sb3(task: Task, seed: int, subprocesses: bool) -> dict[str, Any]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class Recorder(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.curve, self.returns, self.learning, self.ended = Curve(), [], 0.0, None

        def _on_rollout_start(self) -> None:
            self.learning += 0.0 if self.ended is None else time.perf_counter() - self.ended

        def _on_step(self) -> bool:
            self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

        def _on_rollout_end(self) -> None:
            self.curve.add(self.num_timesteps, self.returns)
            self.returns, self.ended = [], time.perf_counter()

    recorder = Recorder()
    kind = SubprocVecEnv if subprocesses else DummyVecEnv
    envs = make_vec_env(task.env_id, n_envs=N_ENVS, seed=seed, vec_env_cls=kind)
    model = PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        device="cpu",
        n_steps=task.batch // N_ENVS,
        batch_size=task.minibatch,
        n_epochs=task.epochs,
        learning_rate=task.learning_rate,
        gamma=task.gamma,
        gae_lambda=task.gae_lambda,
        clip_range=task.clip,
        ent_coef=0.0,
        policy_kwargs={"optimizer_kwargs": {"eps": 1e-5, "fused": True}},
    )
    model.learn(task.timesteps, callback=recorder)
    seconds = recorder.curve.elapsed()
    recorder.learning += time.perf_counter() - (recorder.ended or 0.0)
    envs.close()
    return {"curve": recorder.curve.points, "seconds": seconds, "learning": recorder.learning}
