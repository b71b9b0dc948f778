"""The example of PPO with a memory learns from what the agent remembered, the same whatever the number of workers."""

import functools
import os
import signal
from typing import Any

import cloudpickle
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from streamsampler import LocalSampler, MultiprocessingSampler  # noqa: E402
from streamsampler.examples.ppo_recurrent import RecurrentAgent, improve, main, make  # noqa: E402
from streamsampler.filters import RunningNorm  # noqa: E402

pytestmark = pytest.mark.extras

ENVS = functools.partial(make, "CartPole-v1", "1,3")


def made() -> tuple[RecurrentAgent, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    agent = RecurrentAgent(ENVS())
    return agent, torch.optim.Adam(agent.parameters(), 2e-3)


def test_the_first_ratios_are_one() -> None:
    """The learner's GRU remembers what the agent did: also where episodes go on, and in each iteration."""
    agent, adam = made()
    with LocalSampler(agent, ENVS, seed=1, observation_filter=RunningNorm()) as sampler:
        for iteration in range(3):
            batch = sampler.obtain_fragments(15, 3, agent_update=agent.state_dict())
            assert batch.continued.any() == (iteration > 0)
            assert improve(agent, adam, batch, iteration) < 1e-5
    assert not batch.raw_observations[:, [1, 3]].any()
    assert batch.raw_observations[:, [0, 2]].all()


def test_values_of_last_observations_are_those_of_the_memory() -> None:
    agent, _ = made()
    with LocalSampler(agent, ENVS, seed=1) as sampler:
        batch = sampler.obtain_fragments(30, 2, agent_update=agent.state_dict())
    for one in batch:
        rows = np.concatenate([one.observations, one.last_observations])
        with torch.no_grad():
            _, values, _ = agent(rows[None], one.agent_infos["hidden"][:1])
        expected = np.append(one.values, one.last_values) if not one.terminated[0] else one.values
        np.testing.assert_allclose(values[0, : len(expected)].numpy(), expected, atol=1e-5)


def test_the_state_is_all_that_an_episode_goes_on_with() -> None:
    agent, _ = made()
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    agent.reset(7)
    for observation in observations[:3]:
        agent.get_action(observation)
    state, value = cloudpickle.dumps(agent.get_state()), agent.get_value(observations[3])
    assert agent.get_value(observations[3]) == value
    chosen = [agent.get_action(observation) for observation in observations]
    agent.reset(8)
    agent.set_state(cloudpickle.loads(state))
    for observation, (action, info) in zip(observations, chosen, strict=True):
        again, infos = agent.get_action(observation)
        assert (again, infos["value"], infos["log_prob"]) == (action, info["value"], info["log_prob"])


@pytest.mark.slow
def test_the_number_of_workers_and_kills_change_nothing() -> None:
    """The parameters after three updates are the same bits."""
    found = []
    for n_workers, killed in ((1, False), (3, False), (2, True)):
        agent, adam = made()
        with MultiprocessingSampler(agent, ENVS, n_workers=n_workers, seed=1) as sampler:
            for iteration in range(3):
                batch = sampler.obtain_fragments(40, 4, agent_update=agent.state_dict())
                improve(agent, adam, batch, iteration)
                if killed:
                    os.kill(sampler.worker_pids()[iteration % 2], signal.SIGKILL)
            assert bool(sampler.stats.restarts) == killed
        found.append(torch.nn.utils.parameters_to_vector(agent.parameters()))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@pytest.mark.parametrize(
    "arguments", [("CartPole-v1", "--hide", "1,4"), ("CartPole-v1", "--hide", "v"), ("Pendulum-v1",)]
)
def test_wrong_input(arguments: tuple[str, ...]) -> None:
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 2
    assert "the entries that --hide names, and actions in a Discrete" in outcome.stderr
