"""TorchAgent by itself: what the module is given, what is made of what it returns, and its parameters."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical, Normal

from streamsampler.agents.torch import CategoricalHead, GaussianHead, TorchAgent
from streamsampler.agents.updates import is_parameters
from streamsampler.core.serialization import dumps, loads
from streamsampler.errors import ActionError, UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))
OBSERVATIONS = np.random.RandomState(0).standard_normal((50, 4)).astype(np.float32)


class Function(nn.Module):
    """A module that is any function, and keeps what it was given."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.given = []

    def forward(self, inputs):
        self.given.append(inputs)
        return self.function(inputs)


def mlp(n_outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, n_outputs))


def test_categorical_actions_and_log_probabilities_are_torchs():
    module = mlp(3)
    agent = TorchAgent(module, DISCRETE)
    agent.reset(seed=1)
    logits = module(torch.from_numpy(OBSERVATIONS)).detach()
    ones = [agent.get_action(observation) for observation in OBSERVATIONS]
    actions, infos = agent.get_actions(OBSERVATIONS)
    for chosen, log_prob in [
        ([action for action, _ in ones], [info["log_prob"] for _, info in ones]),
        (actions, infos["log_prob"]),
    ]:
        exact = Categorical(logits=logits).log_prob(torch.as_tensor(np.array(chosen))).numpy()
        np.testing.assert_allclose(log_prob, exact, atol=1e-5)
        assert set(np.unique(chosen)) == {0, 1, 2}
    agent = TorchAgent(module, DISCRETE, deterministic=True)
    best = logits.argmax(dim=1).tolist()
    assert [agent.get_action(observation)[0] for observation in OBSERVATIONS] == best
    for rows in (slice(32), slice(32, 37), slice(50), slice(1)):  # whatever came before
        assert agent.get_actions(OBSERVATIONS[rows])[0].tolist() == best[rows]


class Gaussian(nn.Module):
    """Returns its own tensor, or a view of it, with the means, as most modules for PPO do."""

    def __init__(self, form, trained):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.form = nn.Linear(4, 2), form
        log_std = torch.tensor([-1.0, 0.5])
        if trained:
            self.log_std = nn.Parameter(log_std)
        else:
            self.register_buffer("log_std", log_std)

    def forward(self, x):
        mean = self.body(x)
        return {
            "parameter": mean,
            "tuple": (mean, self.log_std),
            "view": (mean, self.log_std.expand_as(mean)),
            "dict": {"mean": mean, "log_std": self.log_std},
            "extra": {"mean": mean, "log_std": self.log_std, "told": self.log_std.expand(len(x), 2)},
        }[self.form]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("form", ["parameter", "tuple", "view", "dict", "extra"])
def test_gaussian_log_probabilities_are_torchs_with_the_parameters_of_now(form, trained):
    module = Gaussian(form, trained)
    agent = TorchAgent(module, BOX)
    for one in (agent, pickle.loads(cloudpickle.dumps(agent))):
        for log_std in (torch.tensor([-1.0, 0.5]), torch.tensor([-9.0, -8.0])):
            with torch.no_grad():
                module.log_std.copy_(log_std)  # the user's own module is seen at once
            if one is not agent:
                one.set_param_values(agent.get_param_values())
            one.reset(seed=1)
            actions, infos = one.get_actions(OBSERVATIONS)
            distribution = Normal(module.body(torch.from_numpy(OBSERVATIONS)).detach(), log_std.exp())
            exact = distribution.log_prob(torch.from_numpy(infos["raw_action"])).sum(dim=1).numpy()
            np.testing.assert_allclose(infos["log_prob"], exact, atol=0.2 if log_std[0] < -5 else 1e-4)
            assert np.array_equal(actions, infos["raw_action"].clip(-1, 1))
            action, info = one.get_action(OBSERVATIONS[0])
            assert BOX.contains(action)
            assert (info["log_prob"] > 5) == (log_std[0] < -5)


def test_the_seed_decides_and_nothing_else():
    agent = TorchAgent(mlp(3), DISCRETE)

    def actions(seed, disturb):
        agent.reset(seed=seed)
        if disturb:
            np.random.seed(5)
            torch.manual_seed(5)
        return [agent.get_action(observation)[0] for observation in OBSERVATIONS]

    assert actions(1, disturb=False) == actions(1, disturb=True) != actions(2, disturb=False)
    state = torch.get_rng_state()
    actions(3, disturb=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("dtype", "observation", "expected"),
    [
        (np.float32, np.array([1, 2, 3, 255], np.uint8), torch.float32),
        (np.float32, np.array([1.5, 2, 3, 4], np.float64), torch.float32),
        (np.float32, 3, torch.float32),
        (np.float64, np.zeros(4, np.float32), torch.float64),
        (None, np.array([1, 2, 3, 255], np.uint8), torch.uint8),
        (None, np.int64(3), torch.int64),
    ],
)
def test_observations_are_converted(dtype, observation, expected):
    module = Function(lambda x: torch.zeros(len(x), 3))
    agent = TorchAgent(module, DISCRETE, dtype=dtype)
    agent.get_action(observation)
    agent.get_actions(np.stack([observation, observation]))
    for n, given in enumerate(module.given, 1):
        assert given.dtype == expected
        assert given.double().numpy().tolist() == [np.asarray(observation, dtype=np.float64).tolist()] * n


def test_nested_observations():
    module = Function(lambda x: torch.zeros(len(x["a"]), 3))
    agent = TorchAgent(module, DISCRETE)
    agent.get_action({"a": np.array([1.0, 2.0]), "b": (np.array([[3, 4]], np.uint8), 5)})
    given = module.given[-1]
    assert given["a"].tolist() == [[1.0, 2.0]]
    assert isinstance(given["b"], tuple)
    assert [part.tolist() for part in given["b"]] == [[[[3.0, 4.0]]], [5.0]]
    agent.get_actions({"a": np.ones((7, 2)), "b": (np.ones((7, 1, 2)), np.arange(7))})
    assert module.given[-1]["b"][1].tolist() == list(range(7))
    with pytest.raises(UsageError, match="cannot become a tensor"):
        agent.get_action({"a": "text"})


def test_what_else_the_module_returns_is_recorded_without_gradients():
    values, features, kinds = torch.arange(50.0).reshape(50, 1), torch.ones(50, 4), []

    def outputs(x):
        kinds.append(torch.is_inference_mode_enabled())
        return {"logits": torch.zeros(len(x), 3), "value": values[: len(x)], "f": features[: len(x)]}

    agent = TorchAgent(Function(outputs), DISCRETE)
    _, info = agent.get_action(OBSERVATIONS[0])
    assert info["value"].shape == ()
    assert info["f"].tolist() == [1.0] * 4
    _, infos = agent.get_actions(OBSERVATIONS)
    assert infos["value"].tolist() == list(range(50))
    assert infos["f"].shape == (50, 4)
    assert kinds == [True, True]
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("function", "space", "error", "message"),
    [
        (lambda x: torch.zeros(1, 4), DISCRETE, ActionError, r"\(1, 4\), but should have \(n, 3\)"),
        (lambda x: torch.full((1, 3), torch.nan), DISCRETE, ActionError, "not finite"),
        (lambda x: {"value": x}, DISCRETE, UsageError, "returned a dict with 'value'; it should return a tensor"),
        (lambda x: (x, x), DISCRETE, UsageError, "returned a tuple of 2"),
        (lambda x: None, DISCRETE, UsageError, "returned a NoneType"),
        (lambda x: {"logits": torch.zeros(1, 3), "n": 3}, DISCRETE, UsageError, "'n' should be a tensor of 1 rows"),
        (lambda x: torch.zeros(1, 2), BOX, UsageError, "returns no log_std"),
        (lambda x: (torch.zeros(1, 3), torch.zeros(2)), BOX, ActionError, r"mean has the shape \(1, 3\)"),
    ],
)
def test_outputs_that_do_not_suit(function, space, error, message):
    with pytest.raises(error, match=message):
        TorchAgent(Function(function), space).get_action(OBSERVATIONS[0])


def test_two_values_for_an_observation_are_refused():
    agent = TorchAgent(Function(lambda x: {"logits": torch.zeros(len(x), 3), "value": x[:, :2]}), DISCRETE)
    with pytest.raises(UsageError, match=r"'value' should be one number for each observation, but is \(1, 2\) for one"):
        agent.get_value(OBSERVATIONS[0])


@pytest.mark.parametrize(
    ("module", "head", "message"),
    [
        (lambda x: x, DISCRETE, r"torch\.nn\.Module"),
        (mlp(3), 3, "a head or an action space"),
        (mlp(3), spaces.MultiDiscrete([2, 2]), "no default head"),
    ],
)
def test_arguments_that_do_not_suit(module, head, message):
    with pytest.raises(UsageError, match=message):
        TorchAgent(module, head)
    assert isinstance(TorchAgent(mlp(3), GaussianHead(BOX, squash=True)).head, GaussianHead)
    assert isinstance(TorchAgent(mlp(3), DISCRETE).head, CategoricalHead)


# --- Parameters


def test_parameters_travel_outside_the_pickle():
    values = TorchAgent(nn.Linear(200, 200), DISCRETE).get_param_values()
    assert is_parameters(values)
    payload = dumps(values, "the agent update")
    assert len(payload.data) < 1_000
    assert payload.nbytes > 160_000


@pytest.mark.parametrize("read_only", [False, True])
def test_parameters_are_copied_in_with_buffers_and_dtypes_that_numpy_lacks(read_only):
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3).to(torch.bfloat16))
    agent = TorchAgent(module, DISCRETE)
    values = loads(dumps(agent.get_param_values(), "values"))
    arrays = {name: array for name, array in values.items() if isinstance(array, np.ndarray)}
    for array in arrays.values():
        array.flags.writeable = not read_only
    with torch.no_grad():
        module[1].weight.zero_()
        module[0].running_mean.fill_(7.0)
    agent.set_param_values(values)
    assert module[1].weight.abs().sum() > 0
    assert module[0].running_mean.tolist() == [0.0] * 4
    for name, array in arrays.items():
        assert np.array_equal(agent.get_param_values()[name], array)
        assert not np.shares_memory(agent.get_param_values()[name], array)
    agent.set_param_values({name: tensor * 0 for name, tensor in module.state_dict().items()})
    assert module[1].weight.abs().sum() == 0


def test_parameters_of_another_module_are_refused():
    agent = TorchAgent(mlp(3), DISCRETE)
    with pytest.raises(UsageError, match=r"do not fit the module(.|\n)*size mismatch"):
        agent.set_param_values(TorchAgent(mlp(2), DISCRETE).get_param_values())
    with pytest.raises(UsageError, match="a dict"):
        agent.set_param_values((1, 2))  # type: ignore[arg-type]


def test_a_copy_evaluates_and_the_original_is_left_alone():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    copy = pickle.loads(cloudpickle.dumps(TorchAgent(module, DISCRETE)))
    assert module.training
    assert not copy.module.training
