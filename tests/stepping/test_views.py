"""`copy=False`: observations are views of the rows, which hold until their environments are sent the next action."""

import functools

import numpy as np
import pytest

from tests.stepping.environments import Counting, Varied


def is_view(array):
    return array.base is not None and not array.flags.writeable


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.slow
def test_the_data_are_those_of_copies(new_manager, autoreset):
    def run(copy):
        manager = new_manager(Varied, n_envs=3, seed=5, autoreset=autoreset, copy=copy)
        actions = {"choice": np.arange(3), "force": np.ones((3, 2), np.float32)}
        steps, seen = manager.reset(), []
        for _ in range(30):
            steps = manager.step(actions)
            seen.append([steps.observations["position"].tolist(), steps.previous_observations["image"].tolist(),
                         steps.last_observations["parts"][1].tolist(), steps.ended.tolist()])  # fmt: skip
        assert is_view(steps.observations["position"]) != copy
        return seen

    copied = run(copy=True)
    assert any(any(ended) for *_, ended in copied)
    assert run(copy=False) == copied


def test_a_view_holds_until_the_next_action(new_manager):
    manager = new_manager(functools.partial(Counting, length=9), n_envs=2, seed=5, copy=False)
    first = manager.reset()
    second = manager.step(np.zeros(2, np.int64))
    assert second.observations[:, 1].tolist() == [1, 1]
    assert second.previous_observations[:, 1].tolist() == first.observations[:, 1].tolist() == [0, 0]
    manager.send(np.zeros(1, np.int64), [0])
    manager.recv()
    assert second.observations[:, 1].tolist() == [1, 1]
    assert second.previous_observations[:, 1].tolist() == [2, 0]  # that of environment 0 is overwritten
    with pytest.raises(ValueError, match="read-only"):
        second.observations[0] = 0


def test_what_cannot_be_one_view_is_copied(new_manager):
    manager = new_manager(functools.partial(Counting, length=9), n_envs=3, seed=5, copy=False)
    manager.reset()
    assert not is_view(manager.step(np.zeros(2, np.int64), [0, 2]).observations)  # not one after the other
    mixed = manager.step(np.zeros(3, np.int64))  # not in the same slot
    assert not is_view(mixed.observations)
    assert mixed.observations[:, 1].tolist() == [2, 1, 2]
    assert is_view(manager.step(np.zeros(1, np.int64), [1]).observations)
