"""PPO learns, from whichever source the data comes, and the sources agree on what a segment is."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.extras


@pytest.fixture
def modules():
    """The benchmark's modules, which need torch."""
    from benchmarks.ppo import collectors, tasks

    return tasks, collectors


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("source", ["fragments", "trajectories", "vector"])
def test_segments_are_what_the_environment_said(modules, env_id, source):
    """Replayed from its observations and actions; log-probabilities and values are the policy's."""
    import gymnasium
    import torch

    from streamsampler.examples.ppo import ActorCritic

    tasks, collectors = modules
    env = gymnasium.make(env_id)
    policy = ActorCritic(env.observation_space, env.action_space)
    collect = {
        "fragments": lambda task: collectors.fragments(task, policy, 1, 1),
        "trajectories": lambda task: collectors.trajectories(task, policy, 1, 1),
        "vector": lambda task: collectors.vector_env(task, policy, 1, "sync"),
    }[source]
    with collect(tasks.TASKS[env_id]) as obtain:
        batches = [obtain(230, 8, policy) for _ in range(2)]
    parts = [len(np.unique(batch.env_numbers)) for batch in batches]
    assert parts == ([8, 8] if source in ("fragments", "vector") else [1, 1])
    for batch in batches:
        assert batch.n_timesteps == 1840 if 8 in parts else batch.n_timesteps >= 1840
        drawn = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))
        with torch.no_grad():
            log_probs = policy.log_prob(torch.as_tensor(batch.observations), drawn)
            values = policy.critic(torch.as_tensor(batch.observations))[:, 0].numpy()
            last = policy.critic(torch.as_tensor(batch.last_observations))[:, 0].numpy()
        np.testing.assert_allclose(batch.agent_infos["log_prob"], log_probs.numpy(), atol=1e-4)
        np.testing.assert_allclose(batch.values, values, atol=1e-4)
        np.testing.assert_allclose(batch.last_values, np.where(batch.terminated, 0.0, last), atol=1e-4)
        replay(env.unwrapped, batch)
    if 8 in parts:  # the second goes on where the first was cut
        first, second = batches
        assert first.cut.sum() == second.continued.sum() > 0
        np.testing.assert_array_equal(
            first.last_observations[first.cut], second.observations[second.starts[second.continued]]
        )


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
