"""SB3Agent with Stable-Baselines3's own models."""

from __future__ import annotations

import subprocess
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
import stable_baselines3

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.errors import UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]


@pytest.fixture(scope="module")
def ppo():
    return stable_baselines3.PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu")


def test_the_actions_are_predicts(ppo):
    with LocalSampler(SB3Agent(ppo, deterministic=True), "CartPole-v1", seed=2) as sampler:
        batch = sampler.obtain_samples(200)
    predicted, _ = ppo.predict(batch.observations, deterministic=True)
    assert np.array_equal(batch.actions, predicted)


def test_the_same_in_other_processes_and_with_parameters_pushed(ppo):
    agent = SB3Agent(ppo)
    update = {name: array * 3 for name, array in agent.get_param_values().items()}
    batches = []
    for make in (
        lambda: LocalSampler(agent, "CartPole-v1", seed=2),
        lambda: MultiprocessingSampler(agent, "CartPole-v1", seed=2, n_workers=2),
    ):
        with make() as sampler:
            batches.append([sampler.obtain_samples(300), sampler.obtain_samples(300, agent_update=update)])
    assert batches[0] == batches[1]
    assert len(np.unique(batches[0][0].actions)) == 2


def test_only_the_policy_is_sent():
    dqn = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", buffer_size=100_000, device="cpu")
    agent = cloudpickle.loads(data := cloudpickle.dumps(SB3Agent(dqn)))
    assert len(data) < 300_000
    assert agent.policy.optimizer is None
    assert dqn.policy.optimizer is not None
    observation = np.zeros(4, np.float32)
    assert agent.get_action(observation)[0] == dqn.predict(observation, deterministic=True)[0]


def test_box_actions_and_batches():
    model = stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", device="cpu")
    agent = SB3Agent(model, deterministic=True)
    observations = np.random.RandomState(0).standard_normal((5, 3)).astype(np.float32)
    actions, infos = agent.get_actions(observations, starts=np.ones(5, bool))
    assert actions.shape == (5, 1)
    assert infos == {}
    for observation, action in zip(observations, actions, strict=True):
        np.testing.assert_allclose(agent.get_action(observation)[0], action, atol=1e-6)


def test_load(ppo, tmp_path):
    ppo.save(tmp_path / "model.zip")
    for algorithm in ("PPO", stable_baselines3.PPO):
        agent = SB3Agent.load(tmp_path / "model.zip", algorithm, deterministic=True)
        observation = gymnasium.make("CartPole-v1").reset(seed=0)[0]
        assert agent.get_action(observation)[0] == ppo.predict(observation, deterministic=True)[0]
    with pytest.raises(UsageError, match="no algorithm 'PPPO'"):
        SB3Agent.load(tmp_path / "model.zip", "PPPO")


def test_from_the_command_line(ppo, tmp_path):
    ppo.save(tmp_path / "model.zip")
    (tmp_path / "my_agents.py").write_text(
        "from streamsampler.agents.sb3 import SB3Agent\n\n\n"
        "def trained():\n    return SB3Agent.load('model.zip', 'PPO')\n"
    )
    command = "sample CartPole-v1 --agent my_agents:trained --num-trajectories 3 --workers 1 --json --quiet"
    done = subprocess.run(
        [sys.executable, "-m", "streamsampler", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"trajectories": 3' in done.stdout
