"""PPO learns, from whichever source the data comes, and the sources agree on what a segment is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.extras


@pytest.fixture
def modules():
    """The benchmark's modules, which need torch."""
    from benchmarks.ppo import collectors as ppo_collectors
    from benchmarks.ppo import learner as ppo_learner

    return ppo_learner, ppo_collectors


def test_it_learns_and_writes_its_results(tmp_path):
    arguments = ["--contenders", "streamsampler,gymnasium_sync,sb3", "--env", "CartPole-v1", "--seeds", "1"]
    arguments += ["--timesteps", "12000", "--out", str(tmp_path / "ppo.json")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "ppo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "ppo.json").read_text())["runs"]
    assert [run["contender"] for run in runs] == ["streamsampler", "gymnasium_sync", "sb3"]
    for run in runs:
        first, last = run["curve"][0], run["curve"][-1]
        assert first["mean_return"] < 40
        assert last["mean_return"] > 2 * first["mean_return"], run["contender"]
        assert last["timesteps"] >= 12_000
        assert run["learning"] < run["seconds"]
        assert run["contender"] in done.stdout


def test_an_unknown_contender_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "ppo", "--contenders", "sb4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no contender sb4" in done.stderr


def discounted(data, values, gamma):
    """The return from each timestep on; behind a segment that did not end, the value of what follows."""
    returns = []
    start = 0
    for segment, length in enumerate(data.lengths):
        rewards = data.rewards[start : start + length]
        rest = 0.0 if data.terminated[segment] else values[segment]
        for t in range(length):
            left = rewards[t:]
            returns.append(float(left @ gamma ** np.arange(len(left)) + gamma ** len(left) * rest))
        start += length
    return returns


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("source", ["streamsampler", "vector"])
def test_segments_are_what_the_environment_said(modules, env_id, source):
    """Replayed from its observations and actions; and advantages with lambda 1 are returns less values."""
    import dataclasses

    import gymnasium
    import torch

    ppo_learner, collectors = modules
    task = dataclasses.replace(ppo_learner.TASKS[env_id], batch=1600, gae_lambda=1.0)
    env = gymnasium.make(env_id)
    learner = ppo_learner.Learner(task, env.observation_space, env.action_space, seed=1)
    if source == "vector":
        batches = collectors.from_vector_env(task, learner, 1, "sync")
    else:
        batches = collectors.from_streamsampler(task, learner, 1, 1)
    data, again = next(batches), next(batches)
    batches.close()
    for batch in (data, again):
        assert batch.lengths.sum() == len(batch.rewards) == len(batch.observations) == len(batch.actions)
        assert len(batch.lengths) == len(batch.terminated) == len(batch.last_observations)
        with torch.no_grad():
            log_probs = learner.actor.log_prob(torch.from_numpy(batch.observations), torch.from_numpy(batch.actions))
            values = learner.critic(torch.from_numpy(batch.observations))[:, 0].numpy()
            following = learner.critic(torch.from_numpy(batch.last_observations))[:, 0].numpy()
        np.testing.assert_allclose(batch.log_probs, log_probs.numpy(), atol=1e-4)
        advantages = learner._advantages(batch, values, np.where(batch.terminated, 0.0, following))
        np.testing.assert_allclose(advantages + values, discounted(batch, following, task.gamma), rtol=1e-4, atol=1e-3)
        replay(env.unwrapped, batch)


def replay(env, batch):
    """Each segment, step for step."""
    env.reset(seed=0)
    ends = np.cumsum(batch.lengths)
    for start, end, last in zip(ends - batch.lengths, ends, batch.last_observations, strict=True):
        for t in range(start, end):
            following = last if t == end - 1 else batch.observations[t + 1]
            x = batch.observations[t].astype(np.float64)
            pendulum = len(x) == 3
            env.state = np.array([np.arctan2(x[1], x[0]), x[2]]) if pendulum else x
            env.steps_beyond_terminated = None
            stepped, reward, *_ = env.step(batch.actions[t])
            np.testing.assert_allclose(stepped, following, atol=1e-4)
            assert abs(reward - batch.rewards[t]) < 1e-4
