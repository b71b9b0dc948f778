"""Parameters of environments that are stepped from the parent: drawn from the episode's seed, and remembered."""

import functools
import os
import select
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import loads
from streamsampler.environments import Choice, Uniform
from streamsampler.environments.parameters import SetParameters, drawn_parameters
from streamsampler.errors import RolloutError, UsageError
from streamsampler.stepping.histories import ParameterSets
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.environments import Counting, Doomed


def kill(pid):
    """Kill a process, and wait for its end."""
    end = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([end], [], [])
    os.close(end)


class Levelled(Counting):
    """Rewards its level."""

    def __init__(self):
        super().__init__(length=10)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.level), terminated, truncated, info


SAMPLED = {"level": Uniform(1, 2), "key": "mark"}


def shown(steps):
    return steps.infos["parameters"]["level"].tolist()


def expected(seed, n_envs, episode=0, parameters=SAMPLED):
    seeds = TrajectorySeeds(seed, 0)
    return [drawn_parameters(parameters, seeds[env_id + episode * n_envs])["level"] for env_id in range(n_envs)]


def test_they_are_drawn_from_the_seed_of_each_episode(new_manager):
    manager = new_manager(Counting, n_envs=3, seed=5, autoreset="disabled")
    assert "parameters" not in manager.reset().infos
    manager.set_parameters(SAMPLED)
    assert manager.get_attr("level") == [0, 0, 0]  # in force from the next reset
    assert shown(manager.reset()) == expected(5, 3, episode=1) == manager.get_attr("level")
    assert shown(manager.reset()) == expected(5, 3, episode=2)
    assert manager.get_attr("key") == ["mark"] * 3


def test_they_are_set_where_environments_reset_themselves(new_manager):
    manager = new_manager(functools.partial(Counting, length=1), n_envs=2, seed=5)
    manager.reset()
    manager.set_parameters(SAMPLED)
    manager.step(np.zeros(2, np.int64))
    assert manager.get_attr("level") == [0, 0]
    assert shown(manager.step(np.zeros(2, np.int64))) == expected(5, 2, episode=1)


def test_those_of_other_names_stay_and_others_are_replaced(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=5)
    manager.set_parameters({"level": 1, "length": 7})
    manager.set_parameters({"level": 2}, [1])
    manager.reset()
    assert (manager.get_attr("level"), manager.get_attr("length")) == ([1, 2], [7, 7])
    manager.set_parameters(SetParameters({"level": 3}, info_key="chosen"))
    assert manager.reset().infos["chosen"]["level"].tolist() == [3, 3]
    assert manager.get_attr("length") == [7, 7]


def test_those_that_environments_are_made_with_stay(new_manager):
    manager = new_manager(SetParameters({"level": Choice([4, 5]), "length": 6}, Counting), n_envs=2, seed=5)
    manager.set_parameters({"length": 7})
    assert set(shown(manager.reset())) <= {4, 5}
    assert manager.get_attr("length") == [7, 7]


@pytest.mark.parametrize("action", [7, pytest.param(8, marks=pytest.mark.slow)], ids=["died", "hung"])
def test_an_environment_that_is_made_anew_has_them(action):
    limit: dict[str, Any] = {"step_timeout": 5.0} if action == 8 else {}
    with EnvManager(Doomed, n_envs=2, n_workers=1, seed=5, on_failure="reset", **limit) as manager:
        manager.set_parameters(SAMPLED)
        manager.reset()
        steps = manager.step(np.array([action, 0]))
        assert steps.failed.any()
        assert shown(manager.step(np.array([0]), [0])) == expected(5, 2, episode=1)[:1]


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_an_episode_that_is_restored_has_those_that_it_began_with(n_workers):
    def run(doomed):
        with EnvManager(Levelled, n_envs=2, n_workers=n_workers, seed=5, autoreset="disabled") as manager:
            manager.set_parameters(SAMPLED)
            manager.reset()
            steps = [manager.step(np.ones(2, np.int64))]
            manager.set_parameters({"level": 9})
            if doomed:
                kill(manager.worker_pids()[0])
            steps += [manager.step(np.ones(2, np.int64)) for _ in range(2)]
            assert manager.failures == doomed
            assert not any(step.failed.any() for step in steps)
            return [step.rewards.tolist() for step in steps], shown(manager.reset())

    undisturbed = run(doomed=False)
    assert undisturbed == ([expected(5, 2)] * 3, [9, 9])
    assert run(doomed=True) == undisturbed


def test_a_new_environment_that_is_reset_has_the_latest(new_manager):
    manager = new_manager(Levelled, n_envs=2, seed=5)
    manager.set_parameters({"level": 4})
    manager.reset()
    with pytest.raises(RolloutError):  # it is made again, and raises again
        manager.step(np.array([9, 1]))
    manager.recv()
    manager.reset([0])
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 2]
    assert manager.get_attr("level") == [4, 4]


def test_only_those_in_use_are_kept():
    sets = ParameterSets()
    for level in range(20):
        sets.add([0, 1], SetParameters({"level": level}), in_use=[3])
    assert sets.of(0) is None
    assert loads(sets.of(3).payload).parameters == {"level": 2}
    assert loads(sets.of(20).payload).parameters == {"level": 19}
    with pytest.raises(KeyError):
        sets.of(4)


def test_they_are_remembered_from_one_launch_to_the_next(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=5)
    manager.set_parameters(SAMPLED)
    manager.close()
    manager.launch()
    assert shown(manager.reset()) == expected(5, 2)


def test_parameters_that_an_environment_does_not_take(new_manager):
    manager = new_manager([Counting, functools.partial(Counting, length=2)], n_envs=2, seed=5)
    with pytest.raises(UsageError, match=r"environment 0: Counting has no parameter mass: .* key, length, level"):
        manager.set_parameters({"mass": 1.0, "level": 3})
    manager.reset()
    assert manager.get_attr("level") == [0, 0]
    with pytest.raises(UsageError, match="has no parameters"):
        manager.set_parameters({})
    with pytest.raises(UsageError, match="without one"):
        manager.set_parameters(SetParameters({"level": 3}, Counting))


def test_they_do_not_depend_on_the_number_of_workers():
    def episodes(manager):
        with manager:
            manager.set_parameters(SAMPLED)
            first = manager.reset()
            return shown(first), [
                manager.step(np.ones(7, np.int64)).infos.get("parameters", {}).get("level", np.zeros(7)).tolist()
                for _ in range(5)
            ]

    alone = episodes(SerialEnvManager(Counting, n_envs=7, seed=5))
    assert sum(map(any, alone[1])) == 1
    for n_workers in (1, 2, 3, 7):
        assert episodes(EnvManager(Counting, n_envs=7, n_workers=n_workers, seed=5)) == alone
