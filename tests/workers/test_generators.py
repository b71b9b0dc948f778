"""The global generators of a process: seeded for a trajectory, and restored for the user's program."""

import random
import sys
import types
from typing import Any

import numpy as np
import pytest

from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.workers import generators
from streamsampler.workers.generators import drawn_states, preserved_generators, seed_generators, set_states

OF_TORCH = derived_seed(5, SeedUse.TORCH)


class FakeTorch(types.ModuleType):
    """As much of torch as the seeding touches, with a device that may be in use or not.

    From 2.6 on, torch tells what kind of device it can use; then `generator` has what seeded its own generator.
    """

    def __init__(self, *, built_for="unknown", in_use=False):
        super().__init__("torch")
        self.cpu, self.devices, self.noted, self.generator = ["user's cpu", 11], ["user's cuda"], None, []
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: in_use,
            get_rng_state_all=lambda: list(self.devices),
            set_rng_state_all=lambda states: setattr(self, "devices", states),
            manual_seed_all=lambda seed: setattr(self, "noted", seed),
        )
        self.get_rng_state = lambda: list(self.cpu)
        self.set_rng_state = lambda state: setattr(self, "cpu", list(state))
        self.seed = lambda: setattr(self, "cpu", ["entropy", None])
        self.initial_seed = lambda: self.cpu[1]
        if built_for != "unknown":
            device = built_for and types.SimpleNamespace(type=built_for)
            self.accelerator = types.SimpleNamespace(current_accelerator=lambda: device)
            self.default_generator = types.SimpleNamespace(manual_seed=self.generator.append)
            self.version = types.SimpleNamespace(hip=None)

    def manual_seed(self, seed):
        self.cpu, self.devices, self.noted = ["seeded", seed], [seed], seed


class TorchWithDevices(FakeTorch):
    """A torch whose states are arrays, with two devices in use."""

    class Generator:
        """Of the CPU or of a device."""

        def __init__(self, device="cpu"):
            self.device, self.seed = device, 0

        def manual_seed(self, seed):
            self.seed = seed

        def get_state(self):
            return types.SimpleNamespace(numpy=lambda: np.array([f"{self.device} {self.seed}"]))

    def __init__(self):
        super().__init__(built_for="cuda", in_use=True)
        self.generators = [self.Generator(), self.Generator("cuda:0"), self.Generator("cuda:1")]
        self.default_generator: Any = self.generators[0]
        self.get_rng_state = self.generators[0].get_state
        self.cuda.device_count = lambda: 2
        self.cuda.get_rng_state_all = lambda: [one.get_state() for one in self.generators[1:]]
        self.cuda.manual_seed_all = lambda seed: [one.manual_seed(seed) for one in self.generators[1:]]


@pytest.fixture
def load_torch(monkeypatch):
    """Return what loads a torch, where there was none."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def load(torch):
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return load


def draw():
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()


def test_the_same_seed_gives_the_same_numbers_also_of_gaussians_that_were_kept(load_torch):
    """Both generators make normal numbers in pairs, and keep the second for later."""
    with preserved_generators():
        found = []
        for seed in (5, 6, 5):
            seed_generators(seed)
            found.append(draw())
        random.gauss(0, 1), np.random.normal()
        seed_generators(5)
        assert draw() == found[0] == found[2]
    assert not set(found[0]) & set(found[1])
    assert "torch" not in sys.modules


def test_the_users_generators_are_as_they_were(load_torch):
    def seed_and_fail():
        seed_generators(98)
        raise ZeroDivisionError

    random.seed(1), np.random.seed(1)
    expected = [draw() for _ in range(3)]
    random.seed(1), np.random.seed(1)
    found = [draw()]
    with preserved_generators():
        seed_generators(99)
        draw()
    found.append(draw())
    with pytest.raises(ZeroDivisionError), preserved_generators():
        seed_and_fail()
    assert [*found, draw()] == expected


@pytest.mark.parametrize("in_use", [False, True])
def test_torch_is_seeded_where_it_is_loaded_and_restored_with_its_devices_in_use(load_torch, in_use):
    torch = load_torch(FakeTorch(in_use=in_use))
    with preserved_generators():
        seed_generators(5)
        assert (torch.cpu, torch.devices) == (["seeded", OF_TORCH], [OF_TORCH])
    assert torch.cpu == ["user's cpu", 11]
    assert torch.devices == ["user's cuda"] if in_use else torch.noted == 11


def test_nothing_was_drawn_on_devices_that_were_only_seeded(load_torch):
    torch = load_torch(TorchWithDevices())
    fresh = set_states(5, None)
    assert drawn_states(fresh) is None
    torch.generators[2].manual_seed(6)
    python, numpy, (cpu, devices) = drawn_states(fresh)
    assert (python, numpy, cpu) == (None, None, f"cpu {OF_TORCH}")
    assert [str(*state) for state in devices] == [f"cuda:0 {OF_TORCH}", "cuda:1 6"]


def test_torch_loaded_in_between_is_left_unpredictable_and_half_of_one_alone(load_torch):
    with preserved_generators():
        torch = load_torch(FakeTorch())
        seed_generators(5)
    assert torch.cpu == ["entropy", None]
    load_torch(types.ModuleType("torch"))
    with preserved_generators():
        seed_generators(5)


@pytest.mark.parametrize(
    ("built_for", "in_use", "driver", "visible", "seeded"),
    [
        (None, False, False, "0", False),
        ("mps", False, False, "0", True),
        ("cuda", False, False, "0", False),
        ("cuda", True, False, "0", True),
        ("cuda", False, True, "0", True),
        *(("cuda", False, True, hidden, False) for hidden in ("", " ", "-1,0")),
    ],
)
def test_torch_is_seeded_for_the_devices_there_may_be(
    load_torch, monkeypatch, built_for, in_use, driver, visible, seeded
):
    torch = load_torch(FakeTorch(built_for=built_for, in_use=in_use))
    monkeypatch.setattr(generators, "_has_driver", lambda *, hip: driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seed_generators(5)
    assert torch.noted == (OF_TORCH if seeded else None)
    assert (torch.generator == [OF_TORCH]) == (built_for != "mps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # devices may become visible
    seed_generators(5)
    assert (torch.noted is not None) == (seeded or driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    torch.noted = None
    with preserved_generators():
        pass
    # The user's seed is put back where a rollout may seed devices. Elsewhere torch would keep it with a stack trace.
    assert torch.noted == (torch.cpu[1] if seeded and not in_use else None)


DRAWS: dict[str, Any] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "getrandbits": lambda: random.getrandbits(1),
    "numpy": np.random.random,
    "normal": np.random.normal,
}


@pytest.mark.parametrize("implementation", ["cpython", "another"])
def test_what_seeding_makes_is_known_and_every_draw_shows(implementation, monkeypatch):
    monkeypatch.setattr(sys.implementation, "name", implementation)
    monkeypatch.setattr(generators, "_python_memory", generators._memory_of(generators._python))
    assert (generators._python_memory is not None) == (implementation == "cpython"), "its memory is read"
    with preserved_generators():
        for each in DRAWS.values():
            fresh = generators.set_states(5, None)
            assert generators.drawn_states(fresh) is None
            each()
            assert generators.drawn_states(fresh) is not None


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("n_before", [1, 2, 700])
def test_states_go_on_where_they_were(name, n_before):
    with preserved_generators():
        fresh = generators.set_states(5, None)
        for _ in range(n_before):
            DRAWS[name]()
        states = generators.drawn_states(fresh)
        expected = [[each() for each in DRAWS.values()] for _ in range(3)]
        seed_generators(6)
        generators.set_states(5, states)
        assert [[each() for each in DRAWS.values()] for _ in range(3)] == expected
