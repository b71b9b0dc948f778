"""What a script sets in torch holds in workers, which import it in processes of their own."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent

pytestmark = [pytest.mark.extras, pytest.mark.core]

SPACE = gymnasium.make("CartPole-v1").action_space


class Policy(nn.Module):
    """Makes a tensor of the default dtype in each call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.net(inputs) * torch.tensor(0.1)


class Says:
    """An agent whose infos are what is set in torch."""

    def get_action(self, observation):
        return 0, {
            "dtype": str(torch.get_default_dtype()),
            "products": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
            "device": str(torch.zeros(1).device),
        }


@pytest.fixture(autouse=True)
def restored():
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)


METHODS = [{}, *(pytest.param({"start_method": it}, marks=pytest.mark.slow) for it in ("fork", "spawn"))]


@pytest.mark.parametrize("options", METHODS)
def test_a_network_computes_in_workers_as_it_does_here(options):
    torch.set_default_dtype(torch.float64)
    agent = TorchAgent(Policy(), SPACE, dtype=np.float64)
    with (
        LocalSampler(agent, "CartPole-v1", seed=1) as here,
        MultiprocessingSampler(agent, "CartPole-v1", seed=1, n_workers=2, **options) as there,
    ):
        for _ in range(2):
            batch = here.obtain_trajectories(4)
            assert batch == there.obtain_trajectories(4)
            assert batch.agent_infos["log_prob"].dtype == np.float64


@pytest.mark.parametrize("options", METHODS)
def test_settings_of_torch_hold_from_the_next_call_on(options):
    with MultiprocessingSampler(Says(), "CartPole-v1", seed=1, n_workers=2, **options) as sampler:
        for dtype, products, warns in ((torch.float64, "high", True), (torch.float32, "highest", False)):
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(products)
            torch.use_deterministic_algorithms(warns, warn_only=warns)
            infos = sampler.obtain_trajectories(2).agent_infos
            found = {name: set(column.tolist()) for name, column in infos.items()}
            expected = {
                "dtype": str(dtype),
                "products": products,
                "deterministic": warns,
                "warns": warns,
                "device": "cpu",
            }
            assert found == {name: {value} for name, value in expected.items()}


@pytest.mark.parametrize("options", METHODS)
def test_agents_in_workers_stay_on_the_cpu_with_a_warning(options, caplog):
    torch.set_default_device("meta")
    with MultiprocessingSampler(Says(), "CartPole-v1", seed=1, n_workers=1, **options) as sampler:
        for _ in range(2):
            assert set(sampler.obtain_trajectories(1).agent_infos["device"].tolist()) == {"cpu"}
    assert caplog.text.count("torch's default device is meta in this process, but the CPU in the workers") == 1


def test_no_warning_where_the_agent_does_not_use_torch(caplog):
    torch.set_default_device("meta")
    with MultiprocessingSampler("random", "CartPole-v1", seed=1, n_workers=1) as sampler:
        sampler.obtain_trajectories(1)
    assert caplog.text == ""
