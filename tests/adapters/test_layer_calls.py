"""Layers called without `nn.Module.__call__`: the same bits, and nothing that was put around a layer is lost."""

from __future__ import annotations

import copy
import itertools
import pickle
import random

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn.utils import prune

from streamsampler.agents.kernels import LayerCalls
from streamsampler.agents.torch import TorchAgent

pytestmark = [pytest.mark.extras, pytest.mark.core]
INPUTS = torch.from_numpy(np.random.RandomState(0).standard_normal((3, 4)).astype(np.float32))
ACTIVATIONS = [
    *(nn.Tanh, nn.ReLU, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity, nn.Dropout),
    lambda: nn.ReLU(inplace=True),
]  # fmt: skip


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2)).eval()


def outputs(call, *arguments):
    with torch.inference_mode():
        return call(*arguments).numpy().copy()


def assert_equal(calls, module, inputs=INPUTS):
    given = inputs.clone(), inputs.clone()
    expected, found = outputs(module, given[0]), outputs(calls, module, given[1])
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
    assert torch.equal(*given)  # which layers in place may have changed
    return found


def random_network(rng):
    widths = [rng.choice([1, 3, 17, 64]) for _ in range(rng.randint(2, 5))]
    layers = [nn.Flatten()] if rng.random() < 0.3 else []
    for n_in, n_out in itertools.pairwise(widths):
        part = [nn.Linear(n_in, n_out, bias=rng.random() < 0.7)]
        part += [nn.LayerNorm(n_out)] if rng.random() < 0.3 else []
        part += [rng.choice(ACTIVATIONS)()]
        layers += [nn.Sequential(*part)] if rng.random() < 0.3 else part
    return widths[0], nn.Sequential(*layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_networks_give_the_same_bits(dtype):
    rng = random.Random(0)
    for seed in range(40):
        torch.manual_seed(seed)
        n_inputs, network = random_network(rng)
        network = network.to(dtype).eval()
        calls = LayerCalls()
        for n_rows in (1, 8, 16, 32):
            assert_equal(calls, network, torch.randn(n_rows, n_inputs, dtype=dtype))
        assert not any(isinstance(step, nn.Module) for step in calls._steps)


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


class Noisy(nn.Tanh):
    def __call__(self, inputs):
        return super().__call__(inputs) + 1


def doubled(inputs):
    return 2 * inputs


def of_a_replaced_class(layer, cls):
    layer.__class__ = cls


def assign(layer, name, value):
    setattr(layer, name, value)


def in_training(module):
    # The draws of its dropout are those of the seed.
    module.insert(1, nn.Dropout(0.5))
    module.register_forward_pre_hook(lambda *_: torch.manual_seed(3) and None)
    module.train()


def weight_normed(module):
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(module[0]).weight_g.data.fill_(0.5)


def without(layer, name, value):
    delattr(layer, name)
    setattr(layer, name, value)


CHANGES = {
    "hook": lambda m: m[0].register_forward_hook(lambda _m, _i, out: 2 * out),
    "hook of an activation": lambda m: m[1].register_forward_hook(lambda _m, _i, out: 2 * out),
    "hook before": lambda m: m[3].register_forward_pre_hook(lambda _m, args: (2 * args[0],)),
    "hook inside": lambda m: m[2][1].register_forward_hook(lambda _m, _i, out: 2 * out),
    "hook of a part": lambda m: m[2].register_forward_hook(lambda _m, _i, out: 2 * out),
    "hook of the whole": lambda m: m.register_forward_hook(lambda _m, _i, out: 2 * out),
    "parametrised": lambda m: nn.utils.parametrize.register_parametrization(m[0], "weight", nn.Tanh()),
    "weight norm": weight_normed,
    "pruned": lambda m: prune.l1_unstructured(m[0], "weight", 0.5),
    "forward": lambda m: assign(m[1], "forward", doubled),
    "forward of a part": lambda m: assign(m[2], "forward", doubled),
    "forward of the whole": lambda m: assign(m, "forward", lambda x: m[0](x)[:, :2]),
    "compiled": lambda m: assign(m[1], "_compiled_call_impl", doubled),
    "class": lambda m: of_a_replaced_class(m[0], Doubled),
    "class of an activation": lambda m: of_a_replaced_class(m[1], Noisy),
    "replaced": lambda m: m.__setitem__(1, nn.Sigmoid()),
    "replaced, same class": lambda m: m.__setitem__(0, nn.Linear(4, 8)),
    "replaced inside": lambda m: m[2].__setitem__(1, nn.Sigmoid()),
    "appended": lambda m: m.append(nn.Tanh()),
    "removed": lambda m: m.pop(1),
    "in place": lambda m: m[0].weight.data.mul_(2),
    "new parameter": lambda m: assign(m[0], "weight", nn.Parameter(torch.ones(8, 4))),
    "no bias": lambda m: assign(m[0], "bias", None),
    "a plain tensor": lambda m: without(m[0], "weight", torch.ones(8, 4)),
    "a buffer": lambda m: (delattr(m[0], "weight"), m[0].register_buffer("weight", torch.ones(8, 4))),
    "settings": lambda m: (m.append(nn.LeakyReLU()), assign(m[4], "negative_slope", 0.5)),
    "training": in_training,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_is_seen_before_the_first_call_and_after(change):
    for before in (True, False):
        calls, module = LayerCalls(), mlp()
        unchanged = outputs(calls, mlp(), INPUTS) if before else assert_equal(calls, module)
        CHANGES[change](module)
        assert not np.array_equal(assert_equal(calls, module), unchanged)
        assert_equal(calls, module)


def test_settings_that_are_changed_after_the_first_call_are_seen():
    calls, module = LayerCalls(), mlp().append(nn.LeakyReLU())
    before = assert_equal(calls, module)
    module[4].negative_slope = 0.5
    assert not np.array_equal(assert_equal(calls, module), before)


def test_hooks_of_all_modules_are_called_while_they_are_there():
    calls, module = LayerCalls(), mlp()
    before = assert_equal(calls, module)
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        seen: list[str] = []
        handle = register(lambda layer, *_, seen=seen: seen.append(type(layer).__name__))
        try:
            outputs(calls, module, INPUTS)
        finally:
            handle.remove()
        assert sorted(seen) == ["Linear"] * 3 + ["ReLU"] + ["Sequential"] * 2 + ["Tanh"]
    assert np.array_equal(assert_equal(calls, module), before)


def test_methods_of_torchs_classes_that_were_replaced_before_the_first_call_are_called(monkeypatch):
    module, before = mlp(), outputs(mlp(), INPUTS)
    forward, call = nn.Linear.forward, nn.Module.__call__
    with monkeypatch.context() as patches:
        patches.setattr(nn.Linear, "forward", lambda self, x: 2 * forward(self, x))
        assert not np.array_equal(assert_equal(LayerCalls(), module), before)
    monkeypatch.setattr(nn.Module, "__call__", lambda self, x: 2 * call(self, x))
    assert not np.array_equal(assert_equal(LayerCalls(), module), before)


class Residual(nn.Sequential):
    def forward(self, inputs):
        return inputs + super().forward(inputs)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Residual(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)),
        Residual(nn.Linear(4, 4)),
        nn.Sequential(nn.BatchNorm1d(4), Noisy(), Doubled(4, 2)).eval(),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.LayerNorm(4)),
        nn.Linear(4, 2),
        nn.Sequential(nn.ReLU(inplace=True)),
        nn.Sequential(),
    ],
)
def test_other_modules_are_called_as_they_are(module):
    calls = LayerCalls()
    for _ in range(2):
        assert_equal(calls, module)
    ours = [layer for layer in [module, *module.children()] if type(layer).__module__ == __name__]
    assert [step for step in calls._steps if isinstance(step, nn.Module)] == ours
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    assert_equal(calls, other)
    assert_equal(calls, module)


def test_an_agents_copy_acts_as_its_module_says_after_every_change():
    module, space = mlp(), spaces.Discrete(2)
    agent = pickle.loads(cloudpickle.dumps(TorchAgent(module, space, deterministic=True)))
    observations = np.random.RandomState(1).standard_normal((16, 4)).astype(np.float32)

    def assert_its_modules():
        logits = torch.from_numpy(outputs(agent.module, torch.from_numpy(observations)))
        expected = torch.log_softmax(logits.double(), 1).max(1)
        for copied in (agent, copy.deepcopy(agent)):
            actions, infos = copied.get_actions(observations)
            assert actions.tolist() == expected.indices.tolist()
            np.testing.assert_allclose(infos["log_prob"], expected.values, rtol=1e-12)
            ones = [copied.get_action(row) for row in observations]
            assert [action for action, _ in ones] == actions.tolist()
            np.testing.assert_allclose([info["log_prob"] for _, info in ones], infos["log_prob"], rtol=1e-5)

    assert_its_modules()
    assert len(agent._layer_calls._steps) == 5  # and none is the module
    agent.set_param_values({name: -value for name, value in agent.get_param_values().items()})
    assert_its_modules()
    with torch.no_grad():
        agent.module[0].weight.add_(torch.randn(8, 4))
    assert_its_modules()
    agent.module = nn.Sequential(nn.Linear(4, 2))
    assert_its_modules()
