"""TorchAgent in workers: the same everywhere, on one thread, with the parameters of the call."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent
from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.errors import RolloutError
from streamsampler.workers.generators import seed_generators

pytestmark = pytest.mark.extras


class Policy(nn.Module):
    """Says how many threads there are, beside its logits or means."""

    def __init__(self, n_inputs, n_outputs, name):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_inputs, 32), nn.Tanh(), nn.Linear(32, n_outputs))
        self.name = name
        self.log_std = nn.Parameter(torch.full((n_outputs,), 0.5))

    def forward(self, inputs):
        threads = torch.full((len(inputs),), torch.get_num_threads())
        return {self.name: self.body(inputs), "threads": threads, "value": inputs[:, :1] * 2}


def agent_for(env_id):
    torch.manual_seed(1)
    space = gymnasium.make(env_id).action_space
    return TorchAgent(Policy(4, 2, "logits") if env_id == "CartPole-v1" else Policy(3, 1, "mean"), space)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.core
def test_the_same_in_this_process_and_in_others(env_id):
    agent, threads = agent_for(env_id), torch.get_num_threads()
    other = {name: array * 0.5 for name, array in agent.get_param_values().items()}
    batches = []
    for make in (
        lambda: LocalSampler(agent, env_id, seed=3),
        lambda: MultiprocessingSampler(agent, env_id, seed=3, n_workers=1),
        lambda: MultiprocessingSampler(agent, env_id, seed=3, n_workers=2),
    ):
        with make() as sampler:
            batches.append([sampler.obtain_samples(600), sampler.obtain_samples(600, agent_update=other)])
    assert batches[0] == batches[1] == batches[2]
    assert torch.get_num_threads() == threads
    for batch, scale in zip(batches[0], (1.0, 0.5), strict=True):
        infos = batch.agent_infos
        assert (infos["threads"] == 1).all()
        assert infos["value"].shape == infos["log_prob"].shape == (batch.n_timesteps,)
        np.testing.assert_allclose(infos["log_prob"], log_prob_of(agent, batch, scale), atol=1e-4)


def log_prob_of(agent, batch, scale):
    """Computed anew by torch from the batch, as a learner does."""
    module = Policy(batch.observations.shape[1], 2 if agent.module.name == "logits" else 1, agent.module.name)
    module.load_state_dict({name: tensor * scale for name, tensor in agent.module.state_dict().items()})
    with torch.no_grad():
        output = module(torch.from_numpy(batch.observations))
        if module.name == "logits":
            distribution = torch.distributions.Categorical(logits=output["logits"])
            return distribution.log_prob(torch.from_numpy(batch.actions)).numpy()
        raw = batch.agent_infos["raw_action"]
        assert np.array_equal(batch.actions, raw.clip(-2.0, 2.0))
        return torch.distributions.Normal(output["mean"], module.log_std.exp()).log_prob(torch.from_numpy(raw)).sum(1)


class Plain:
    """An agent with torch in it that knows nothing of threads."""

    def get_action(self, observation):
        return 0, {"threads": torch.get_num_threads()}


@pytest.mark.parametrize("number", [1, 3, None])
def test_every_agent_computes_on_as_many_threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with LocalSampler(Plain(), "CartPole-v1", worker_threads=number) as sampler:
            assert set(sampler.obtain_trajectories(1).agent_infos["threads"].tolist()) == {number or 2}
            assert torch.get_num_threads() == 2
            next(sampler.stream())
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    if number is not None:
        with MultiprocessingSampler(Plain(), "CartPole-v1", n_workers=1, worker_threads=number) as sampler:
            assert set(sampler.obtain_trajectories(1).agent_infos["threads"].tolist()) == {number}


def test_a_module_that_fails_is_told_with_its_traceback():
    with (
        MultiprocessingSampler(TorchAgent(nn.Linear(5, 2), gymnasium.spaces.Discrete(2)), "CartPole-v1") as sampler,
        pytest.raises(RolloutError, match="action") as caught,
    ):
        sampler.obtain_samples(10)
    assert "mat1 and mat2 shapes cannot be multiplied" in str(caught.value)


SCRIPT = """
import gymnasium, torch
from torch import nn
from streamsampler import MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)
    def forward(self, x):
        return self.body(x)

agent = TorchAgent(Mine(), gymnasium.spaces.Discrete(2))
with MultiprocessingSampler(agent, "CartPole-v1", n_workers=1, seed=1) as sampler:
    print(len(sampler.obtain_trajectories(3, agent_update=agent.get_param_values())))
"""


def test_a_module_of_the_main_script(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_seeding_torch_is_torchs_own_seeding():
    """The way past `torch.manual_seed`, where it is taken, draws the same numbers."""
    seed_generators(7)
    drawn = torch.rand(3)
    torch.manual_seed(derived_seed(7, Stream.TORCH))
    assert torch.equal(torch.rand(3), drawn)


def test_processes_that_are_forked_later_may_use_devices():
    """Torch marks a process that has looked for them in certain ways; the mark says so only to those forked from it."""
    script = (
        "import os, sys, torch\n"
        "from streamsampler.workers.generators import seed_generators\n"
        "seed_generators(7)\n"
        "process = os.fork() or os._exit(torch.cuda._is_in_bad_fork())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
