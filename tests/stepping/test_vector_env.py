"""Managers as Gymnasium's vector environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler.errors import UsageError
from tests.stepping.environments import Counting


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_the_first_episodes_are_gymnasiums(new_manager, autoreset):
    ours = new_manager("CartPole-v1", n_envs=3, autoreset=autoreset).vector_env()
    theirs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode[autoreset.upper()])
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"]
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    while True:
        actions = np.ones(3, np.int64)
        one, other = ours.step(actions), theirs.step(actions)
        for mine, gymnasiums in zip(one[1:4], other[1:4], strict=True):
            assert np.array_equal(mine, gymnasiums)
            assert mine.dtype == gymnasiums.dtype
        if (ended := one[2] | one[3]).any():
            break
        assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[0][~ended], other[0][~ended])
    assert (autoreset == "same_step") == ("final_obs" in one[4])
    if autoreset == "same_step":
        assert one[4].keys() == other[4].keys()
        assert one[4]["_final_obs"].tolist() == other[4]["_final_obs"].tolist() == ended.tolist()
        row = int(np.flatnonzero(ended)[0])
        assert np.array_equal(one[4]["final_obs"][row], other[4]["final_obs"][row])


def test_a_mask_resets_some(new_manager):
    env = new_manager(Counting, n_envs=3, autoreset="disabled").vector_env()
    env.reset(seed=[4, 5, 6])
    env.step(np.zeros(3, np.int64))
    observations, _ = env.reset(seed=7, options={"reset_mask": np.array([False, True, False])})
    assert observations.tolist() == [[4, 1], [8, 0], [6, 1]]
    with pytest.raises(UsageError, match="reset_mask"):
        env.reset(options={"reset_mask": [True]})


def test_gymnasiums_wrappers_take_it(new_manager):
    bare = new_manager(Counting, n_envs=2).vector_env()
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(bare)
    env.reset(seed=0)
    for _ in range(3):
        infos = env.step(np.array([1, 2]))[4]
    assert infos["episode"]["r"].tolist() == [3, 6]
    assert bare.call("set_level", 3) == (3, 3)
    assert bare.get_attr("level") == (3, 3)
    env.close()


def test_no_end(new_manager):
    with pytest.raises(UsageError, match="without max_episodes"):
        new_manager(Counting, n_envs=2, max_episodes=1).vector_env()
