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

from streamsampler.agents.base import as_agent
from streamsampler.agents.torch import CategoricalHead, GaussianHead, TorchAgent
from streamsampler.agents.updates import is_parameters
from streamsampler.core.serialization import dumps, loads
from streamsampler.errors import ActionError, UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))
OBSERVATIONS = np.random.RandomState(0).standard_normal((50, 4)).astype(np.float32)


class Function(nn.Module):
    """A module that is any function, and keeps what it was given."""

    def __init__(self, function, log_std=None):
        super().__init__()
        self.function = function
        self.given = []
        if log_std is not None:
            self.log_std = nn.Parameter(torch.tensor(log_std))

    def forward(self, inputs):
        self.given.append(inputs)
        return self.function(inputs)


def mlp(n_outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, n_outputs))


def test_categorical_log_probabilities_are_torchs():
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


@pytest.mark.parametrize("kind", ["parameter", "tuple", "dict"])
def test_gaussian_log_probabilities_are_torchs(kind):
    body, log_std = mlp(2), [-1.0, 0.5]
    row = torch.tensor(log_std)
    function = {
        "parameter": body,
        "tuple": lambda x: (body(x), row.expand(len(x), 2)),
        "dict": lambda x: {"mean": body(x), "log_std": row},
    }[kind]
    agent = TorchAgent(Function(function, log_std if kind == "parameter" else None), BOX)
    agent.reset(seed=1)
    actions, infos = agent.get_actions(OBSERVATIONS)
    distribution = Normal(body(torch.from_numpy(OBSERVATIONS)).detach(), row.exp())
    exact = distribution.log_prob(torch.from_numpy(infos["raw_action"])).sum(dim=1).numpy()
    np.testing.assert_allclose(infos["log_prob"], exact, atol=1e-4)
    assert np.array_equal(actions, infos["raw_action"].clip(-1, 1))
    action, info = agent.get_action(OBSERVATIONS[0])
    assert BOX.contains(action)
    assert info["raw_action"].shape == (2,)


def test_training_the_users_own_module_is_seen_at_once():
    module = Function(mlp(2), [0.0, 0.0])
    agent = TorchAgent(module, BOX)
    before = agent.get_action(OBSERVATIONS[0])[1]["log_prob"]
    with torch.no_grad():
        module.log_std.fill_(-8.0)
    assert agent.get_action(OBSERVATIONS[0])[1]["log_prob"] > before + 5


class ReturnsItsOwn(nn.Module):
    """Returns its own tensor, or a view of it, with the means, as most modules for PPO do."""

    def __init__(self, form, *, trained=True):
        super().__init__()
        self.body, self.form = nn.Linear(4, 2), form
        if trained:
            self.log_std = nn.Parameter(torch.zeros(2))
        else:
            self.register_buffer("log_std", torch.zeros(2))

    def forward(self, x):
        mean = self.body(x)
        match self.form:
            case "tuple":
                return mean, self.log_std
            case "view":
                return mean, self.log_std.expand_as(mean)
            case "dict":
                return {"mean": mean, "log_std": self.log_std}
            case "extra":
                return {"mean": mean, "log_std": self.log_std, "told": self.log_std.expand(len(x), 2)}


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("form", ["tuple", "view", "dict", "extra"])
def test_a_module_may_return_its_own_parameter_whose_changes_are_in_force_at_once(form, trained):
    module = ReturnsItsOwn(form, trained=trained)
    for agent in (TorchAgent(module, BOX), pickle.loads(cloudpickle.dumps(TorchAgent(module, BOX)))):
        for act in (lambda one=agent: one.get_action(OBSERVATIONS[0]), lambda one=agent: one.get_actions(OBSERVATIONS)):
            agent.set_param_values(agent.get_param_values() | {"log_std": np.zeros(2, np.float32)})
            before = np.max(act()[1]["log_prob"])
            agent.set_param_values(agent.get_param_values() | {"log_std": np.full(2, -9.0, np.float32)})
            assert np.min(act()[1]["log_prob"]) > before + 5


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


def test_deterministic_takes_the_mode():
    module = mlp(3)
    agent = TorchAgent(module, DISCRETE, deterministic=True)
    best = module(torch.from_numpy(OBSERVATIONS)).argmax(dim=1).tolist()
    assert [agent.get_action(observation)[0] for observation in OBSERVATIONS] == best
    assert agent.get_actions(OBSERVATIONS)[0].tolist() == best


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
    one, two = module.given
    assert one.dtype == two.dtype == expected
    assert one.shape == (1, *np.shape(observation))
    assert two.shape == (2, *np.shape(observation))
    assert one.double().numpy().tolist() == [np.asarray(observation, dtype=np.float64).tolist()]


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
    with pytest.raises(UsageError, match="is no tensor"):
        agent.get_action({"a": "text"})


def test_rows_do_not_depend_on_what_was_there_before():
    module = mlp(3)
    agent = TorchAgent(module, DISCRETE, deterministic=True)
    for rows in (OBSERVATIONS[:32], OBSERVATIONS[32:37], OBSERVATIONS, OBSERVATIONS[:1]):
        assert agent.get_actions(rows)[0].tolist() == module(torch.from_numpy(rows)).argmax(dim=1).tolist()


def test_what_else_the_module_returns_is_recorded():
    values, features = torch.arange(50.0).reshape(50, 1), torch.ones(50, 4)
    module = Function(lambda x: {"logits": torch.zeros(len(x), 3), "value": values[: len(x)], "f": features[: len(x)]})
    agent = TorchAgent(module, DISCRETE)
    _, info = agent.get_action(OBSERVATIONS[0])
    assert info["value"].shape == ()
    assert info["f"].tolist() == [1.0] * 4
    _, infos = agent.get_actions(OBSERVATIONS)
    assert infos["value"].tolist() == list(range(50))
    assert infos["f"].shape == (50, 4)


@pytest.mark.parametrize(
    ("function", "space", "error", "message"),
    [
        (lambda x: torch.zeros(1, 4), DISCRETE, ActionError, r"\(1, 4\), and should have \(n, 3\)"),
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


def test_arguments_that_do_not_suit():
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        TorchAgent(lambda x: x, DISCRETE)
    with pytest.raises(UsageError, match="a head or an action space"):
        TorchAgent(mlp(3), 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no default head"):
        TorchAgent(mlp(3), spaces.MultiDiscrete([2, 2]))
    assert isinstance(TorchAgent(mlp(3), GaussianHead(BOX, squash=True)).head, GaussianHead)
    assert isinstance(TorchAgent(mlp(3), DISCRETE).head, CategoricalHead)
    assert as_agent(TorchAgent(mlp(3), DISCRETE)).get_action(OBSERVATIONS[0])


class TestParameters:
    def test_they_travel_outside_the_pickle(self):
        values = TorchAgent(nn.Linear(200, 200), DISCRETE).get_param_values()
        assert is_parameters(values)
        payload = dumps(values, "the agent update")
        assert len(payload.data) < 1_000
        assert payload.nbytes > 160_000

    @pytest.mark.parametrize("read_only", [False, True])
    def test_they_are_copied_in(self, read_only):
        source, target = TorchAgent(mlp(3), DISCRETE), TorchAgent(mlp(3), DISCRETE)
        with torch.no_grad():
            source.module[0].weight.mul_(2.0)
        values = loads(dumps(source.get_param_values(), "values"))
        for array in values.values():
            array.flags.writeable = not read_only
        target.set_param_values(values)
        for name, array in target.get_param_values().items():
            assert np.array_equal(array, values[name])
            assert not np.shares_memory(array, values[name])

    def test_buffers_and_dtypes_that_numpy_lacks(self):
        module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3).to(torch.bfloat16))
        values = loads(dumps(TorchAgent(module, DISCRETE).get_param_values(), "values"))
        with torch.no_grad():
            module[1].weight.zero_()
            module[0].running_mean.fill_(7.0)
        TorchAgent(module, DISCRETE).set_param_values(values)
        assert module[1].weight.abs().sum() > 0
        assert module[0].running_mean.tolist() == [0.0] * 4

    def test_a_state_dict_will_do(self):
        agent = TorchAgent(mlp(3), DISCRETE)
        agent.set_param_values({name: tensor * 0 for name, tensor in mlp(3).state_dict().items()})
        assert agent.module[0].weight.abs().sum() == 0

    def test_those_of_another_module_are_refused(self):
        agent = TorchAgent(mlp(3), DISCRETE)
        with pytest.raises(UsageError, match=r"do not fit the module(.|\n)*size mismatch"):
            agent.set_param_values(TorchAgent(mlp(2), DISCRETE).get_param_values())
        with pytest.raises(UsageError, match="a dict"):
            agent.set_param_values((1, 2))  # type: ignore[arg-type]

    def test_new_deviations_are_in_force_at_once(self):
        agent = pickle.loads(cloudpickle.dumps(TorchAgent(Function(nn.Linear(4, 2), [0.0, 0.0]), BOX)))
        before = agent.get_action(OBSERVATIONS[0])[1]["log_prob"]
        agent.set_param_values(agent.get_param_values() | {"log_std": np.full(2, -8.0, np.float32)})
        assert agent.get_action(OBSERVATIONS[0])[1]["log_prob"] > before + 5


def test_a_copy_evaluates_and_the_original_is_left_alone():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    copy = pickle.loads(cloudpickle.dumps(TorchAgent(module, DISCRETE)))
    assert module.training
    assert not copy.module.training


def test_no_gradients_are_kept():
    kinds = []
    module = Function(lambda x: kinds.append(torch.is_inference_mode_enabled()) or torch.zeros(len(x), 3))
    TorchAgent(module, DISCRETE).get_action(OBSERVATIONS[0])
    assert kinds == [True]
    assert not torch.is_inference_mode_enabled()
