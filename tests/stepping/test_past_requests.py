"""What was called and set is repeated as it was, or the environment that is made anew is reported."""

import threading

import numpy as np
import pytest

from streamsampler.stepping.managers import EnvManager
from tests.stepping.environments import Counting
from tests.stepping.test_together import kill_all


class Lesson(Counting):
    """Its rewards tell its level, some timesteps later."""

    best = 0

    def __init__(self, is_bad=False):
        super().__init__(length=4)
        self.is_bad = is_bad

    def learn(self):
        self.level += 1
        if self.is_bad:
            raise ValueError("no lesson here")
        return self.level

    def lock(self):
        self.level += 1
        return threading.Lock()

    def keep(self):
        self.best = self._t
        return [self.best]

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 100 * self.level * (self._t > 2) + 1000 * self.best * (self._t > 1), *rest


def new_manager(*envs, n_workers=1, **options):
    return EnvManager(list(envs), n_envs=len(envs), n_workers=n_workers, seed=0, **options)


@pytest.mark.parametrize("name", ["learn", pytest.param("lock", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.slow
def test_a_call_that_raises_in_one_environment_is_repeated_where_it_was_carried_out(name, n_workers, caplog):
    def rewards(disturb):
        with new_manager(Lesson, lambda: Lesson(is_bad=True), Lesson, n_workers=n_workers) as manager:
            manager.reset()
            manager.step(np.array([1, 1, 1]))
            with pytest.raises(Exception, match=r"no lesson here|cannot be pickled"):
                manager.call(name)
            disturb(manager)
            steps = [manager.step(np.array([1, 1, 1])) for _ in range(3)]
            assert not any(it.failed.any() for it in steps)
            return [it.rewards.tolist() for it in steps]

    expected = rewards(lambda _: None)
    assert expected[-1][:2] == [101, 101]
    assert rewards(kill_all) == expected
    assert caplog.records == []


def test_a_call_of_an_earlier_episode_whose_result_depended_on_it_is_reported(caplog):
    with new_manager(Lesson) as manager:
        manager.reset()
        manager.step(np.array([1]))
        assert manager.call("keep") == [[1]]
        manager.step(np.array([1]))
        manager.reset()
        kill_all(manager)
        assert manager.step(np.array([1])).failed.all()
        assert manager.stats.not_restored == 1
    assert "keep was called in an earlier episode, and its result depends on what was then" in caplog.records[0].message


@pytest.mark.parametrize(
    "on_failure", [*(pytest.param(it, marks=pytest.mark.slow) for it in ("raise", "reset")), "restore"]
)
def test_the_same_of_an_environment_without_an_episode_that_goes_on(on_failure, caplog):
    with new_manager(Lesson, on_failure=on_failure, autoreset="disabled") as manager:
        manager.reset()
        manager.step(np.array([1]))
        manager.call("keep")
        for _ in range(3):
            manager.step(np.array([1]))
        kill_all(manager)
        if on_failure == "raise":
            with pytest.raises(Exception, match="SIGKILL"):
                manager.get_attr("level")
        else:
            manager.wait(0)
        assert manager.reset().timesteps.tolist() == [0]
        assert manager.step(np.array([1])).timesteps.tolist() == [1]
    assert "environment 0 is made anew, and is not what it was: keep was called" in caplog.records[0].message


def test_calls_of_earlier_episodes_with_the_same_result_are_repeated(caplog):
    with new_manager(Lesson) as manager:
        manager.reset()
        manager.step(np.array([1]))
        assert manager.call("learn") == [1]
        manager.reset()
        kill_all(manager)
        assert [manager.step(np.array([1])).rewards[0] for _ in range(3)] == [1, 1, 101]
    assert caplog.records == []


@pytest.mark.slow
def test_attributes_that_were_set_to_something_else_since_are_forgotten(caplog):
    with new_manager(Lesson) as manager:
        for level in range(1100):
            manager.set_attr("level", level)
            if level % 100 == 0:
                manager.reset()
        manager.reset()
        kill_all(manager)
        assert [manager.step(np.array([1])).rewards[0] for _ in range(3)] == [1, 1, 109901]
    assert caplog.records == []


def test_more_calls_than_are_repeated_are_reported_once(caplog):
    with new_manager(Lesson) as manager:
        manager.reset()
        for _ in range(1010):
            manager.call("level")
    (record,) = caplog.records
    assert "environment 0 cannot be restored from now on: more than 1,000 times its methods" in record.message
