"""A `TorchAgent` in the sampler's process: its module is evaluated as in workers, and trained between calls."""

from typing import Any

import gymnasium
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.scripted.games import Comings
from tests.stepping.conftest import kill

torch = pytest.importorskip("torch")

from streamsampler.agents.torch import TorchAgent  # noqa: E402 - needs the extra
from streamsampler.examples import made  # noqa: E402
from streamsampler.examples.ppo import ActorCritic, Settings, improve  # noqa: E402

pytestmark = pytest.mark.extras


OPTIONS: dict[str, Any] = {"seed": 1, "worker_args": {"n_envs": 8}}


def agent(scale=1.0):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Dropout(0.5)]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(64, 2))
    with torch.no_grad():
        module[-1].weight *= scale
    return TorchAgent(module, gymnasium.spaces.Discrete(2))


def test_a_module_in_training_mode_is_evaluated_in_calls_and_trained_between_them():
    """Also that of an agent that comes later."""
    with LocalSampler(agent(), "CartPole-v1", worker_class=VecWorker, **OPTIONS) as sampler:
        expected = [sampler.obtain_trajectories(10), sampler.obtain_samples(50, agent_update=agent(9.0))]
        expected.append(sampler.obtain_trajectories(10))
    held, second = agent(), agent(9.0)
    held.module[3].eval()  # its owner has switched it off
    before = {name: value.clone() for name, value in held.module.state_dict().items()}
    with MultiprocessingSampler(held, "CartPole-v1", n_workers=2, inference="parent", **OPTIONS) as sampler:
        assert sampler.obtain_trajectories(10) == expected[0]
        assert held.module.training
        assert [each.training for each in held.module] == [True, True, True, False, True]
        for name, value in held.module.state_dict().items():
            assert torch.equal(value, before[name])
        with torch.no_grad():
            held.module[-1].weight *= 9.0
        assert sampler.obtain_samples(50) == expected[1]
        assert sampler.obtain_trajectories(10, agent_update=second) == expected[2]
        assert held.module.training
        assert second.module.training


def test_modules_of_policies_are_evaluated_in_calls():
    def policies():
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
        return {name: TorchAgent(module, gymnasium.spaces.Discrete(4)) for name in ("red", "blue")}

    with LocalSampler(policies(), Comings, worker_class=VecWorker, **OPTIONS) as sampler:
        expected = [sampler.obtain_trajectories(10), sampler.obtain_fragments(5, 8)]
    held = policies()
    with MultiprocessingSampler(held, Comings, n_workers=2, inference="parent", **OPTIONS) as here:
        assert [here.obtain_trajectories(10), here.obtain_fragments(5, 8)] == expected
    assert held["red"].module.training


@pytest.mark.parametrize("filtered", [False, True])
def test_ppo_on_fragments_learns_the_same_as_with_vec_worker(filtered):
    """The module that it trains is the one that is asked; meanwhile processes are killed."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more cost much for a small network where other processes run
    trained = []
    options: dict[str, Any] = {"seed": 3, "worker_args": {"n_envs": 8}}
    if filtered:
        options |= {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(0.99)}
    for where in ("worker", "parent"):
        torch.manual_seed(0)
        with made("CartPole-v1") as env:
            policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
        adam, ratios, batches = torch.optim.Adam(policy.parameters(), lr=1e-3), [], []
        given = {"worker_class": VecWorker, "n_workers": 1} if where == "worker" else {"n_workers": 2}
        with MultiprocessingSampler(
            TorchAgent(policy, space), "CartPole-v1", inference=where, **given, **options
        ) as sampler:
            for iteration in range(4):
                update = policy if where == "worker" else None
                batches.append(sampler.obtain_fragments(100, 8, agent_update=update))
                ratios.append(improve(policy, adam, batches[-1], iteration, Settings(minibatch=200)))
                if where == "parent":
                    kill(sampler, iteration % 2)
        assert max(ratios) < 1e-5
        trained.append((batches, [value.tolist() for value in policy.state_dict().values()]))
    torch.set_num_threads(n_threads)
    assert trained[0][0] == trained[1][0]
    assert trained[0][1] == trained[1][1]
    assert trained[1][0][-1].continued.any()
