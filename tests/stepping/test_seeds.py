"""What follows from a manager's seed, and from those that resets are given."""

import numpy as np
import pytest

from streamsampler.stepping.ledger import EnvState
from tests.stepping.environments import Counting, Varied


@pytest.mark.parametrize("seed", [7, [3, 4], {1: 4}])
def test_every_episode_may_begin_with_the_same_seed(new_manager, seed):
    manager = new_manager(Counting, n_envs=2, seed=0)
    first = manager.reset(seed=seed, every_episode=True).observations[:, 0].tolist()
    seen = [manager.step(np.array([1, 1])) for _ in range(8)]
    begun = [steps.observations[:, 0].tolist() for steps in seen if not steps.timesteps.any()]
    assert len(begun) == 2
    if isinstance(seed, dict):
        assert [both[1] for both in begun] == [4, 4]
        assert len({first[0], begun[0][0], begun[1][0]}) == 3
    else:
        assert begun == [first, first]
    manager.reset(seed=7)
    again = [manager.step(np.array([1, 1])).observations[0, 0] for _ in range(8)]
    assert len(set(again)) == 3


def test_random_actions_follow_the_managers_seed(new_manager):
    drawn = []
    for order in ([0, 1], [1, 0]):
        manager = new_manager(Varied, n_envs=2, seed=3)
        of_env = {0: [], 1: []}
        for _ in range(4):
            actions = manager.random_actions(order)
            for row, env_id in enumerate(order):
                of_env[env_id].append((actions["choice"][row].item(), actions["force"][row].tolist()))
        drawn.append(of_env)
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_so_many_episodes_are_run_and_no_more(new_manager, autoreset):
    manager = new_manager(Counting, n_envs=2, seed=0, autoreset=autoreset, max_episodes=2)
    for _ in range(2):
        manager.reset()
        n_ended = 0
        while EnvState.FINISHED not in manager.states:
            steps = manager.step(np.array([1, 1]))
            n_ended += steps.ended.sum()
            if EnvState.NEEDS_RESET in manager.states:
                manager.reset()
        assert n_ended == 4
        assert manager.states == (EnvState.FINISHED,) * 2
