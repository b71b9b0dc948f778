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
        (lambda: MlpAgent(nn.Sequential(*SMALL, nn.Dropout()), DISCRETE), UsageError, "no Dropout: 1 .*; TorchAgent"),
        (lambda: MlpAgent(nn.Linear(4, 2), DISCRETE), UsageError, r"takes an nn\.Sequential"),
        (lambda: MlpAgent(SMALL, BOX), UsageError, "log_std is for Gaussian heads"),
        (lambda: MlpAgent(SMALL, DISCRETE, log_std=torch.zeros(2)), UsageError, "log_std is for Gaussian heads"),
        (lambda: MlpAgent(SMALL, DISCRETE).get_action(np.zeros((2, 2))), UsageError, r"begin .* with nn\.Flatten"),
        (lambda: MlpAgent(SMALL, DISCRETE).get_action(np.zeros(5)), ActionError, "5 numbers came .* that takes 4"),
        (lambda: MlpAgent(SMALL, DISCRETE).set_param_values({"b": np.zeros(2)}), UsageError, r"a dict with 0\.weight"),
    ],
)
def test_what_does_not_suit(use, error, words):
    with pytest.raises(error, match=words):
        use()
