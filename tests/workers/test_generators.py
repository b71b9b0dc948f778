"""The global generators of a process: seeded for a trajectory, and restored for the user's program."""

import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.workers import generators
from streamsampler.workers.generators import preserved_generators, seed_generators


class FakeTorch(types.ModuleType):
    """As much of torch as the seeding touches, with a device that may be in use or not."""

    def __init__(self, *, cuda_in_use):
        super().__init__("torch")
        self.cpu = ["user's cpu", 11]
        self.devices = ["user's cuda"]
        self.noted = None
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: cuda_in_use,
            get_rng_state_all=lambda: list(self.devices),
            set_rng_state_all=lambda states: self.devices.__setitem__(slice(None), states),
            manual_seed_all=lambda seed: setattr(self, "noted", seed),
        )

    def build_for(self, kind):
        """Be a torch of 2.6 or later, which tells what kind of device it can use; returns what seeds its generator."""
        seeds = []
        device = kind and types.SimpleNamespace(type=kind)
        self.accelerator = types.SimpleNamespace(current_accelerator=lambda: device)
        self.default_generator = types.SimpleNamespace(manual_seed=seeds.append)
        self.version = types.SimpleNamespace(hip=None)
        return seeds

    def manual_seed(self, seed):
        self.cpu = ["seeded", seed]
        self.devices = [seed]
        self.noted = seed

    def seed(self):
        self.cpu = ["entropy", None]

    def get_rng_state(self):
        return list(self.cpu)

    def set_rng_state(self, state):
        self.cpu = list(state)

    def initial_seed(self):
        return self.cpu[1]


def draw():
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()


def seed_and_fail():
    seed_generators(98)
    raise ZeroDivisionError


class TestGenerators:
    @pytest.fixture(autouse=True)
    def without_torch(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "torch", raising=False)

    def test_the_same_seed_gives_the_same_numbers(self):
        with preserved_generators():
            seed_generators(5)
            first = draw()
            seed_generators(6)
            other = draw()
            seed_generators(5)
            again = draw()
        assert first == again
        assert not set(first) & set(other)

    def test_a_cached_gaussian_does_not_survive_seeding(self):
        # Both generators make normal numbers in pairs and keep the second for later.
        with preserved_generators():
            seed_generators(5)
            first = draw()
            random.gauss(0, 1)
            np.random.normal()
            seed_generators(5)
            assert draw() == first

    def test_the_users_generators_are_as_they_were(self):
        random.seed(1)
        np.random.seed(1)
        expected = [draw() for _ in range(3)]
        random.seed(1)
        np.random.seed(1)
        found = [draw()]
        with preserved_generators():
            seed_generators(99)
            draw()
        found.append(draw())
        with pytest.raises(ZeroDivisionError), preserved_generators():
            seed_and_fail()
        found.append(draw())
        assert found == expected

    def test_torch_is_not_imported(self):
        with preserved_generators():
            seed_generators(5)
        assert "torch" not in sys.modules

    def test_torch_is_seeded_where_it_is_loaded(self, monkeypatch):
        torch = FakeTorch(cuda_in_use=False)
        monkeypatch.setitem(sys.modules, "torch", torch)
        with preserved_generators():
            seed_generators(5)
            assert torch.cpu == ["seeded", derived_seed(5, Stream.TORCH)]
        assert torch.cpu == ["user's cpu", 11]
        assert torch.noted == 11

    def test_devices_in_use_are_restored(self, monkeypatch):
        torch = FakeTorch(cuda_in_use=True)
        monkeypatch.setitem(sys.modules, "torch", torch)
        with preserved_generators():
            seed_generators(5)
            assert torch.devices == [derived_seed(5, Stream.TORCH)]  # type: ignore[comparison-overlap]
        assert torch.devices == ["user's cuda"]
        assert torch.cpu == ["user's cpu", 11]

    def test_torch_loaded_in_between_is_left_unpredictable(self, monkeypatch):
        torch = FakeTorch(cuda_in_use=False)
        with preserved_generators():
            monkeypatch.setitem(sys.modules, "torch", torch)
            seed_generators(5)
        assert torch.cpu == ["entropy", None]

    @pytest.mark.parametrize("built_for", [None, "cuda", "mps"])
    def test_torch_is_seeded_for_what_there_is(self, monkeypatch, built_for):
        torch = FakeTorch(cuda_in_use=False)
        generator = torch.build_for(built_for)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(generators, "_has_driver", lambda *, hip: False)
        seed_generators(5)
        seed = derived_seed(5, Stream.TORCH)
        expected = ([], ["seeded", seed], seed) if built_for == "mps" else ([seed], ["user's cpu", 11], None)
        assert (generator, torch.cpu, torch.noted) == expected

    @pytest.mark.parametrize(("in_use", "driver"), [(True, False), (False, True), (False, False)])
    def test_cuda_devices_are_seeded_where_there_may_be_any(self, monkeypatch, in_use, driver):
        torch = FakeTorch(cuda_in_use=in_use)
        torch.build_for("cuda")
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(generators, "_has_driver", lambda *, hip: driver)
        seed_generators(5)
        assert torch.noted == (derived_seed(5, Stream.TORCH) if in_use or driver else None)

    @pytest.mark.parametrize("hidden", ["", " ", "-1", "-1,0"])
    def test_cuda_devices_may_become_visible(self, monkeypatch, hidden):
        torch = FakeTorch(cuda_in_use=False)
        torch.build_for("cuda")
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(generators, "_has_driver", lambda *, hip: True)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        seed_generators(5)
        assert torch.noted is None
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        seed_generators(5)
        assert torch.noted == derived_seed(5, Stream.TORCH)

    def test_torch_half_imported_is_left_alone(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        with preserved_generators():
            seed_generators(5)


DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "getrandbits": lambda: random.getrandbits(1),
    "numpy": np.random.random,
    "normal": np.random.normal,
    "both": lambda: (random.random(), np.random.random()),
}


class TestStates:
    @pytest.fixture(autouse=True)
    def quietly(self):
        with preserved_generators():
            yield

    @pytest.mark.parametrize("implementation", ["cpython", "another"])
    def test_what_seeding_makes_is_known_and_every_draw_shows(self, implementation, monkeypatch):
        monkeypatch.setattr(sys.implementation, "name", implementation)
        of_global = generators._PythonState(random.getstate.__self__)  # type: ignore[attr-defined]
        monkeypatch.setattr(generators, "_python_state", of_global)
        monkeypatch.setattr(generators, "_scratch", generators._Scratch())
        assert (of_global.read()[1] is None) or implementation == "cpython"
        for draw in DRAWS.values():
            seed_generators(5)
            fresh = generators.fresh_states(5)
            assert generators.drawn_states(fresh) is None
            draw()
            assert generators.drawn_states(fresh) is not None

    def test_the_memory_of_random_is_read(self):
        assert isinstance(generators._python_state.read()[0], bytes)

    @pytest.mark.parametrize("name", DRAWS)
    @pytest.mark.parametrize("n_before", [1, 2, 700])
    def test_states_go_on_where_they_were(self, name, n_before):
        seed_generators(5)
        for _ in range(n_before):
            DRAWS[name]()
        states = generators.drawn_states(generators.fresh_states(5))
        expected = [[draw() for draw in DRAWS.values()] for _ in range(3)]
        seed_generators(6)
        generators.set_states(5, states)
        assert [[draw() for draw in DRAWS.values()] for _ in range(3)] == expected
