"""How many threads libraries compute on: the same in every worker and in LocalSampler, which puts it back."""

from __future__ import annotations

import os
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.engines.launch import start as launch
from streamsampler.errors import RolloutError, UsageError
from streamsampler.workers.threads import VARIABLES, ThreadLimit, set_unset
from tests.scripted.envs import Echo


def openblas() -> Any:
    """NumPy's OpenBLAS, as threadpoolctl knows it; None where one of them is missing."""
    try:
        import threadpoolctl
    except ImportError:
        return None
    found = threadpoolctl.ThreadpoolController().lib_controllers
    return next((each for each in found if each.internal_api == "openblas"), None)


def env() -> Echo:
    return Echo(spaces.Box(-np.inf, np.inf, (), np.float64), 1)


class Summing:
    """Acts on a sum that depends on how many threads share it, and tells what it finds in its process."""

    def __init__(self):
        self.numbers = np.random.RandomState(0).standard_normal(200_000)

    def get_action(self, observation):
        library = openblas()
        threads = -1 if library is None else library.get_num_threads()
        variables = np.array([int(os.environ.get(name, 0)) for name in VARIABLES])
        return float(self.numbers @ self.numbers), {"threads": threads, "variables": variables}


@pytest.fixture
def threads():
    """Set OpenBLAS to two threads for the test, and return what asks for the number."""
    library = openblas()
    if library is None:
        pytest.skip("NumPy computes with another library here, or there is no threadpoolctl")
    before = library.get_num_threads()
    library.set_num_threads(2)
    yield library.get_num_threads
    library.set_num_threads(before)


@pytest.fixture
def clean(monkeypatch):
    for name in (*VARIABLES, "GOTO_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.slow
def test_the_same_number_and_the_same_bits_everywhere(threads, clean):
    """One is the default, None leaves all as it is, and a pickled sampler has its number."""
    with LocalSampler(Summing(), env, seed=1) as sampler:
        expected = sampler.obtain_trajectories(2)
    assert (expected.agent_infos["threads"] == 1).all()
    with LocalSampler(Summing(), env, seed=1, worker_threads=None) as sampler:
        assert (sampler.obtain_trajectories(1).agent_infos["threads"] == 2).all()
    for number, method in ((1, "forkserver"), (1, "fork"), (2, "forkserver"), (None, "forkserver")):
        options: dict[str, Any] = {"worker_threads": number, "start_method": method}
        with MultiprocessingSampler(Summing(), env, seed=1, n_workers=1, **options) as sampler:
            batch = sampler.obtain_trajectories(2)
            with pickle.loads(pickle.dumps(sampler)) as copy:
                infos = copy.obtain_trajectories(1).agent_infos
        for found in (batch.agent_infos, infos):
            assert (found["threads"] == (number or len(os.sched_getaffinity(0)))).all(), method
            assert (found["variables"] == (number or 0)).all(), method
        if number == 1:
            assert np.array_equal(batch.actions, expected.actions), method
    assert {1, 2} <= {number for number, *_ in launch._servers}
    clean.setenv("OPENBLAS_NUM_THREADS", "2")  # what the user has set counts
    with MultiprocessingSampler(Summing(), env, n_workers=1, start_method="fork") as sampler:
        infos = sampler.obtain_trajectories(1).agent_infos
    assert infos["variables"][0].tolist() == [2 if name == "OPENBLAS_NUM_THREADS" else 1 for name in VARIABLES]
    assert infos["threads"].tolist() == [2]


def test_what_the_user_has_set_counts(threads, clean):
    clean.setenv("OPENBLAS_NUM_THREADS", "2")
    with LocalSampler(Summing(), env, worker_threads=1) as local:
        assert (local.obtain_trajectories(1).agent_infos["threads"] == 2).all()
    environ = {"OMP_NUM_THREADS": "4"}
    set_unset(environ, None)
    assert environ == {"OMP_NUM_THREADS": "4"}
    set_unset(environ, 2)
    assert environ == {name: "4" if name == "OMP_NUM_THREADS" else "2" for name in VARIABLES}


class Failing(Summing):
    def get_action(self, observation):
        raise ValueError("no")


def test_the_local_sampler_puts_the_number_back(threads, clean):
    seen = []
    with LocalSampler(Summing(), env, seed=1) as sampler:
        sampler.obtain_samples(3, progress=lambda _: seen.append(threads()))
        assert threads() == 2
        for trajectory in sampler.stream():
            assert (trajectory.agent_infos["threads"] == 1).all()
            assert threads() == 2
            break
        with pytest.raises(RolloutError):
            sampler.obtain_samples(3, agent_update=Failing())
        assert threads() == 2
    assert set(seen) == {2}, "a callback is the user's own code"
    assert not any(name in os.environ for name in VARIABLES)


def test_what_is_loaded_later_is_limited_and_libraries_are_looked_for_only_then(monkeypatch):
    numbers: list[Any] = [7]
    torch: Any = types.ModuleType("torch")
    torch.get_num_threads, torch.set_num_threads = lambda: numbers[-1], numbers.append
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit = ThreadLimit(3, {})
    with limit.held():
        monkeypatch.setitem(sys.modules, "torch", torch)
        limit.hold()
        assert numbers == [7, 3]
        monkeypatch.setattr("threadpoolctl.ThreadpoolController", None)
        limit.hold()
    with limit.held():
        pass
    assert numbers == [7, 3, 7, 3, 7]


def test_all_limits_of_a_process_look_for_libraries_once_for_each_module_that_is_loaded(monkeypatch):
    looked: list[int] = []
    look = threadpoolctl.ThreadpoolController
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: looked.append(1) or look())

    def times_looked() -> int:
        for _ in range(2):
            with ThreadLimit(3, {}).held():
                pass
        return len(looked)

    monkeypatch.setitem(sys.modules, "first_of_this_test", types.ModuleType("first"))
    assert times_looked() == 1
    monkeypatch.setitem(sys.modules, "second_of_this_test", types.ModuleType("second"))
    assert times_looked() == 2
    monkeypatch.delitem(sys.modules, "second_of_this_test")
    monkeypatch.setitem(sys.modules, "third_of_this_test", types.ModuleType("third"))
    assert times_looked() == 3, "there are as many modules as before, and others"


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_bad_numbers(number):
    with pytest.raises(UsageError, match="worker_threads must be"):
        LocalSampler(Summing(), env, worker_threads=number)
