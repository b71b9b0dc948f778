"""Each environment is one of its own: instances are copied, factories that give one again are refused."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from streamsampler.errors import RolloutError, UsageError
from streamsampler.stepping.managers import SerialEnvManager
from tests.stepping.environments import Counting


def observed(manager):
    manager.reset()
    return [manager.step(np.ones(3, np.int64)).observations[:, 1].tolist() for _ in range(2)]


def test_instances_are_copied(new_manager):
    env = Counting(5)
    for envs in (env, [env] * 3, [Counting(5), env, env]):
        assert observed(new_manager(envs, n_envs=3, seed=0)) == [[1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("kind", ["lambda", "list"])
def test_a_function_that_gives_an_environment_again_is_refused(new_manager, kind):
    env = Counting(5)
    with pytest.raises((UsageError, RolloutError), match=r"must make a new environment each time.*same Counting again"):
        observed(new_manager([lambda: env] * 3 if kind == "list" else lambda: env, n_envs=3, seed=0))


def test_an_environment_that_failed_is_not_taken_again(caplog):
    env = Counting(5)
    with SerialEnvManager(lambda: env, n_envs=1, seed=0) as manager:
        manager.reset()
        assert manager.step(np.array([9])).failed.tolist() == [True]
    assert "must make a new environment each time" in caplog.text


class Numbered(Counting):
    def __init__(self, env_number, worker_number):
        super().__init__()
        self.numbers = env_number, worker_number


def test_factories_may_take_the_number_of_the_environment(new_manager):
    manager = new_manager(Numbered, n_envs=3, seed=0)
    n_workers = getattr(manager, "n_workers", 1)
    assert manager.get_attr("numbers") == [(env_id, env_id * n_workers // 3) for env_id in range(3)]
    manager = new_manager(functools.partial(Numbered, env_number=7), n_envs=2, seed=0)
    assert [number for number, _ in manager.get_attr("numbers")] == [7, 7]


class Reusing(gymnasium.Env):
    """Hands out one observation and one info, and changes both in place."""

    observation_space = spaces.Box(-10, 10, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.seen = np.zeros(2)
        self.info: Any = {"t": np.zeros(1), "deep": {"x": [0]}}

    def show(self, t):
        self.seen[:] = t
        self.info["t"][0] = t
        self.info["deep"]["x"][0] = t

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.show(-1)
        return self.seen, self.info

    def step(self, action):
        self.t += 1
        self.show(self.t)
        return self.seen, 1.0, self.t == 2, False, self.info


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_infos_are_copied_before_anything_else_runs(new_manager, autoreset):
    manager = new_manager(Reusing, n_envs=2, seed=0, autoreset=autoreset)
    kept = [manager.reset(), *(manager.step(np.zeros(2, np.int64)) for _ in range(2))]
    for steps, t in zip(kept, (-1, 1, 2), strict=True):
        ends = t == 2 and autoreset == "same_step"
        assert steps.last_observations[:, 0].tolist() == [t, t]
        for infos, shown in ((steps.infos["final_info"], t), (steps.infos, -1)) if ends else ((steps.infos, t),):
            assert infos["t"][:, 0].tolist() == [shown, shown]
            assert [x[0] for x in infos["deep"]["x"]] == [shown, shown]


def test_gymnasiums_autoreset_modes(new_manager):
    for mode in AutoresetMode:
        manager: Any = new_manager(Counting, n_envs=2, seed=0, autoreset=mode)
        assert manager.autoreset == mode.name.lower()
        assert manager.vector_env().metadata["autoreset_mode"] is mode
