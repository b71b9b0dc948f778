"""MlpAgent does what TorchAgent does, without torch in the workers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.agents.draws import Draws
from streamsampler.errors import ActionError, UsageError

pytestmark = pytest.mark.extras
OBSERVATIONS = np.random.RandomState(0).standard_normal((40, 4)).astype(np.float32)
DISCRETE, BOX = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))
SMALL = nn.Sequential(nn.Linear(4, 2))


def network():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Sigmoid())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), inner, nn.Linear(32, 2)
    )


class Gaussian(nn.Module):
    def __init__(self, body, log_std):
        super().__init__()
        self.body, self.log_std = body, log_std

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("space", [DISCRETE, BOX])
def test_the_same_as_torch(space):
    body = network()
    log_std = nn.Parameter(torch.tensor([-1.0, 0.3])) if space is BOX else None
    agents: list[Any] = [
        MlpAgent(body, space, log_std=log_std),
        TorchAgent(body if log_std is None else Gaussian(body, log_std), space),
    ]
    for _ in range(2):
        for agent in agents:
            agent.reset(seed=5)
        for observation in OBSERVATIONS:
            (action, info), (torchs, torchs_info) = (agent.get_action(observation) for agent in agents)
            np.testing.assert_allclose(action, torchs, atol=1e-5)
            np.testing.assert_allclose(info["log_prob"], torchs_info["log_prob"], atol=1e-4)
        (actions, infos), (torchs, torchs_infos) = (agent.get_actions(OBSERVATIONS) for agent in agents)
        np.testing.assert_allclose(actions, torchs, atol=1e-5)
        assert infos.keys() == torchs_infos.keys()
        with torch.no_grad():  # what is learned is seen at the next reset
            body[1].weight.mul_(3.0)


def test_parameters_reach_a_copy_that_needs_no_torch(tmp_path):
    body = network()
    agent = MlpAgent(body, DISCRETE, deterministic=True)
    (tmp_path / "agent.pkl").write_bytes(data := cloudpickle.dumps(agent))
    copy = cloudpickle.loads(data)
    before = copy.get_actions(OBSERVATIONS)[1]["log_prob"]
    with torch.no_grad():
        body[-1].weight.mul_(-5.0)
    assert np.array_equal(copy.get_actions(OBSERVATIONS)[1]["log_prob"], before)
    values = agent.get_param_values()
    copy.set_param_values(values)
    with torch.no_grad():
        expected = body(torch.from_numpy(OBSERVATIONS)).argmax(dim=1).tolist()
        body[-1].weight.zero_()
    assert copy.get_actions(OBSERVATIONS)[0].tolist() == expected
    assert copy.get_param_values().keys() == values.keys()
    script = "import pickle, sys; agent = pickle.load(open('agent.pkl', 'rb')); agent.get_action([0.0] * 4)"
    script += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_observations_are_left_as_they_are():
    agent, observations = MlpAgent(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), DISCRETE), OBSERVATIONS.copy()
    agent.get_action(observations[0])
    agent.get_actions(observations)
    assert np.array_equal(observations, OBSERVATIONS)


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (
            lambda: MlpAgent(nn.Sequential(*SMALL, nn.Dropout()), DISCRETE),
            UsageError,
            "1 of the network is a Dropout: use TorchAgent",
        ),
        (lambda: MlpAgent(nn.Linear(4, 2), DISCRETE), UsageError, r"takes an nn\.Sequential"),
        (lambda: MlpAgent(SMALL, BOX), UsageError, "a Gaussian head needs log_std"),
        (lambda: MlpAgent(SMALL, DISCRETE, log_std=torch.zeros(2)), UsageError, "log_std is for Gaussian heads"),
        (lambda: MlpAgent(SMALL, DISCRETE).get_action(np.zeros((2, 2))), UsageError, r"start .* with nn\.Flatten"),
        (lambda: MlpAgent(SMALL, DISCRETE).get_action(np.zeros(5)), ActionError, "4 inputs received rows of 5 numbers"),
        (lambda: MlpAgent(SMALL, DISCRETE).set_param_values({"b": np.zeros(2)}), UsageError, r"a dict with 0\.weight"),
    ],
)
def test_what_does_not_suit(use, error, words):
    with pytest.raises(error, match=words):
        use()


def gaussian_network(n_units=16):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, n_units), nn.Tanh(), nn.Linear(n_units, 2))
    body.log_std = nn.Parameter(torch.tensor([-1.0, 0.5]))
    return body


@pytest.mark.parametrize(("network", "space"), [(network, DISCRETE), (gaussian_network, BOX)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_to_numpy_does_the_same(network, space, deterministic):
    module = network()
    of_torch = TorchAgent(module, space, deterministic=deterministic)
    agent = of_torch.to_numpy()
    assert agent.largest_difference is not None
    assert 0 < agent.largest_difference < 1e-5
    assert (agent.head, agent.deterministic) == (of_torch.head, deterministic)
    copy = cloudpickle.loads(cloudpickle.dumps(agent))
    assert copy.largest_difference == agent.largest_difference
    for values in (agent.get_param_values(), of_torch.get_param_values(), agent.get_param_converter()(module)):
        copy.set_param_values(values)
    for one in (of_torch, copy):
        one.reset(seed=3)
    for observation in OBSERVATIONS:
        (action, info), (torchs, torchs_info) = (one.get_action(observation) for one in (copy, of_torch))
        np.testing.assert_allclose(action, torchs, atol=1e-5)
        assert info.keys() == torchs_info.keys()
    drawn = [one.get_actions(OBSERVATIONS, draws=Draws.of(range(40))) for one in (copy, of_torch)]
    np.testing.assert_allclose(drawn[0][0], drawn[1][0], atol=1e-5)


def test_the_largest_difference_is_that_of_outputs():
    module = gaussian_network().double()  # to which float32 has errors
    agent = TorchAgent(module, BOX, dtype=np.float64)
    ones = [agent.to_numpy(), TorchAgent(module, BOX, dtype=None).to_numpy(), agent.to_numpy(OBSERVATIONS)]
    rows = np.random.RandomState(0).standard_normal((2, 256, 4)) * [[[1]], [[10]]]
    examples: Any = rows.reshape(-1, 4).astype(np.float32)
    for made, observations in zip(ones, (examples, examples, OBSERVATIONS), strict=True):
        expected = module(torch.from_numpy(observations).double()).detach().numpy()
        found = made._outputs(observations)[0]
        assert made.largest_difference == np.abs(found - expected).max() > 0
    assert repr(ones[2]) == f"MlpAgent(4-16-2, GaussianHead, largest_difference={ones[2].largest_difference:.2g})"
    assert repr(MlpAgent(SMALL, DISCRETE)) == "MlpAgent(4-2, CategoricalHead)"
    assert MlpAgent(SMALL, DISCRETE).largest_difference is None


class Own(TorchAgent):
    """A subclass, which might do anything."""


def with_a_hook(n):
    module = gaussian_network(n)
    module[1].register_forward_hook(lambda _module, _inputs, output: 1.1 * output)
    return module


def not_finite():
    module = nn.Sequential(nn.Linear(4, 2))
    module[0].bias.data[0] = torch.nan
    return module


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (lambda: TorchAgent(nn.Sequential(*SMALL, nn.ELU()), DISCRETE), "but 1 of the network is a ELU"),
        (
            lambda: TorchAgent(nn.Sequential(nn.Sequential(*SMALL, nn.ELU())), DISCRETE),
            r"but 0\.1 of the network is a ELU",
        ),
        (lambda: TorchAgent(Gaussian(network(), torch.zeros(2)), BOX), r"takes an nn\.Sequential"),
        (lambda: TorchAgent(SMALL, BOX), "needs log_std.* a parameter of the module of TorchAgent"),
        (lambda: TorchAgent(with_a_hook(16), BOX), "differ in NumPy by .*, such as hooks"),
        (lambda: TorchAgent(not_finite(), DISCRETE), "differ in NumPy by nan"),
        (lambda: Own(SMALL, DISCRETE), "Own may do more than a TorchAgent"),
    ],
)
def test_what_to_numpy_refuses(agent, words):
    with pytest.raises(UsageError, match=words):
        agent().to_numpy()
