"""Parameters of environments that are stepped from the parent: drawn from the episode's seed, and remembered."""

import functools
from typing import Any

import numpy as np
import pytest

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import loads
from streamsampler.environments import Choice, Uniform
from streamsampler.environments.parameters import SetParameters, drawn_parameters
from streamsampler.errors import RolloutError, UsageError
from streamsampler.stepping.managers import EnvManager
from streamsampler.stepping.parameter_sets import ParameterSets
from tests.stepping.conftest import kill
from tests.stepping.environments import Counting

SAMPLED = {"level": Uniform(1, 2), "key": "mark"}
ONES = np.array([1, 1])


def shown(steps):
    return steps.infos["parameters"]["level"].tolist()


def expected(episode=0):
    seeds = TrajectorySeeds(5, 0)
    return [drawn_parameters(SAMPLED, seeds[env_id + episode * 2])["level"] for env_id in range(2)]


def test_they_are_drawn_from_the_seed_of_each_episode_also_where_environments_reset_themselves(new_manager):
    manager = new_manager(functools.partial(Counting, 1), n_envs=2, seed=5)
    assert "parameters" not in manager.reset().infos
    manager.set_parameters(SAMPLED)
    manager.step(ONES)
    assert manager.get_attr("level") == [0, 0]  # in force from the next reset
    assert shown(manager.step(ONES)) == expected(1) == manager.get_attr("level")
    assert shown(manager.reset()) == expected(2)
    assert manager.get_attr("key") == ["mark"] * 2
    manager.close()
    manager.launch()
    assert shown(manager.reset()) == expected()


def test_those_of_other_names_stay_and_others_are_replaced(new_manager):
    made_with = SetParameters({"key": Choice(["x", "y"]), "length": 6}, Counting)
    manager = new_manager(made_with, n_envs=2, seed=5)
    manager.set_parameters({"level": 1, "length": 7})
    manager.set_parameters({"level": 2}, [1])
    manager.reset()
    assert (manager.get_attr("level"), manager.get_attr("length")) == ([1, 2], [7, 7])
    assert set(manager.get_attr("key")) <= {"x", "y"}
    manager.set_parameters(SetParameters({"level": 3}, info_key="chosen"))
    assert manager.reset().infos["chosen"]["level"].tolist() == [3, 3]
    assert manager.get_attr("length") == [7, 7]


class Levelled(Counting):
    """Rewards its level."""

    def __init__(self):
        super().__init__(length=10)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.level), *rest


@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.slow
def test_an_environment_that_is_made_anew_has_them(on_failure):
    """And an episode that is restored those that it began with."""

    def run(loses):
        options: dict[str, Any] = {"autoreset": "disabled", "on_failure": on_failure}
        with EnvManager(Levelled, n_envs=2, n_workers=1, seed=5, **options) as manager:
            manager.set_parameters(SAMPLED)
            manager.reset()
            steps = [manager.step(ONES)]
            manager.set_parameters({"level": 9})
            if loses:
                kill(manager)
            steps.append(manager.step(ONES))
            assert manager.failures == loses
            assert steps[-1].failed.all() == (loses and on_failure == "reset")
            begun = shown(manager.reset())
            assert manager.step(ONES).rewards.tolist() == [9, 9]
            return [step.rewards.tolist() for step in steps], begun

    undisturbed = run(loses=False)
    assert undisturbed == ([expected()] * 2, [9, 9])
    if on_failure == "reset":
        assert run(loses=True) == ([expected(), [0, 0]], [9, 9])
    else:
        assert run(loses=True) == undisturbed


def test_an_environment_that_fails_for_good_and_is_reset_has_the_latest(new_manager):
    manager = new_manager(Levelled, n_envs=2, seed=5)
    manager.set_parameters({"level": 4})
    manager.reset()
    with pytest.raises(RolloutError):  # it is made again, and raises again
        manager.step(np.array([9, 1]))
    manager.recv()
    manager.reset([0])
    assert manager.step(ONES).timesteps.tolist() == [1, 2]
    assert manager.get_attr("level") == [4, 4]


def test_only_those_in_use_are_kept():
    sets = ParameterSets()
    for level in range(20):
        sets.set([0, 1], SetParameters({"level": level}), in_use=[3])
    assert sets.numbered(0) is None
    assert loads(sets.numbered(3).payload).parameters == {"level": 2}
    assert loads(sets.numbered(20).payload).parameters == {"level": 19}
    with pytest.raises(KeyError):
        sets.numbered(4)


def test_parameters_that_an_environment_does_not_take(new_manager):
    manager = new_manager([Counting, functools.partial(Counting, length=2)], n_envs=2, seed=5)
    with pytest.raises(UsageError, match=r"environment 0: Counting has no parameter mass: .* key, length, level"):
        manager.set_parameters({"mass": 1.0, "level": 3})
    manager.reset()
    assert manager.get_attr("level") == [0, 0]
    with pytest.raises(UsageError, match="has no parameters"):
        manager.set_parameters({})
    with pytest.raises(UsageError, match="without an environment"):
        manager.set_parameters(SetParameters({"level": 3}, Counting))
