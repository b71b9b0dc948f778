"""Environments that say in their infos that they failed."""

import numpy as np
import pytest

from streamsampler.errors import ActionError
from streamsampler.stepping.episodes import EpisodeSeeds
from streamsampler.stepping.ledger import EnvState
from tests.stepping.environments import Counting


class Sick(Counting):
    """Says at the action 8 that it is abnormal, in words of its own at 7, and in a reset whose options say so."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"abnormal": True} if options else {"new": seed}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"abnormal": True} if action == 8 else {"health": 0 if action == 7 else 1}
        return observation, reward, terminated, truncated, info


def seeds_of(env_id):
    """Return the seeds of the first two episodes of one of two environments."""
    seeds = EpisodeSeeds(0, 2)
    return [seeds.next(env_id), seeds.next(env_id)]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.slow
def test_an_abnormal_episode_is_counted_once_and_a_reset_recovers_its_environment(new_manager, autoreset, at_end):
    manager = new_manager(lambda: Sick(2), n_envs=2, seed=0, autoreset=autoreset)
    manager.reset()
    if at_end:
        manager.step(np.array([1]), [0])
    steps = manager.step(np.array([8, 1]))
    assert steps.failed.tolist() == steps.ended.tolist() == [True, False]
    assert steps.terminated.tolist() == [at_end, False]
    assert steps.last_observations[:, 1].tolist() == [2 if at_end else 1, 1]
    assert manager.states == (EnvState.FAILED, EnvState.READY)
    steps = manager.reset([0])
    assert (steps.episodes.tolist(), steps.timesteps.tolist()) == ([1], [0])
    assert steps.observations[0, 0] == seeds_of(0)[1]
    stats = manager.stats
    assert (stats.failed_trajectories, stats.abandoned_trajectories, stats.kept_trajectories) == (1, 0, 0)


def test_a_reset_whose_info_is_abnormal(new_manager):
    manager = new_manager(Sick, n_envs=2, seed=0)
    manager.reset()
    assert manager.reset([0], options={"bad": True}).failed.tolist() == [True]
    assert manager.states[0] is EnvState.FAILED
    assert manager.reset([0], options={}).failed.tolist() == [False]
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]


def test_a_function_of_the_user_says_what_is_abnormal(new_manager):
    manager = new_manager(Sick, n_envs=2, seed=0, abnormal=lambda info: info.get("health") == 0)
    manager.reset()
    assert manager.step(np.array([8, 7])).failed.tolist() == [False, True]


def test_a_function_that_raises_changes_nothing(new_manager):
    raises = [True]

    def is_abnormal(info):
        if raises and "new" not in info:
            raise KeyError("health")
        return False

    manager = new_manager(lambda: Sick(9), n_envs=2, seed=0, abnormal=is_abnormal)
    manager.reset()
    manager.send(np.array([1, 1]))
    for _ in range(2):
        with pytest.raises(KeyError, match="health"):
            manager.recv(min_envs=2)
    raises.clear()
    steps = manager.recv(min_envs=2)
    assert steps.timesteps.tolist() == [1, 1]
    assert manager.failures == 0


@pytest.mark.parametrize("at_end", [False, True])
def test_the_vector_face_goes_on_after_it_with_the_next_step(new_manager, at_end):
    env = new_manager(lambda: Sick(2), n_envs=2, seed=0).vector_env()
    env.reset()
    if at_end:
        env.step(np.array([1, 1]))
    _, _, _, truncated, infos = env.step(np.array([8, 1]))
    assert truncated.tolist() == infos["env_failed"].tolist() == [True, False]
    observations, rewards, terminated, truncated, infos = env.step(np.array([8, 2]))
    assert observations[:, 1].tolist() == [0, 0 if at_end else 2]
    assert rewards.tolist() == [0, 0 if at_end else 2]
    assert not (terminated | truncated)[0]
    assert infos["_new"].tolist() == [True, at_end]
    assert env.step(np.array([1, 1]))[0][0, 1] == 1


@pytest.mark.parametrize("face", ["vector_env", pytest.param("sb3_env", marks=pytest.mark.extras)])
@pytest.mark.parametrize("at_end", [False, True])
def test_the_faces_go_on_after_it_in_the_same_step(new_manager, face, at_end):
    env = getattr(new_manager(lambda: Sick(2), n_envs=2, seed=0, autoreset="same_step"), face)()
    env.reset()
    if at_end:
        env.step(np.array([1, 1]))
    observations, *_, infos = env.step(np.array([8, 1]))
    assert observations[:, 1].tolist() == [0, 0 if at_end else 1]
    if face == "vector_env":
        assert infos["final_obs"][0].tolist()[1] == (2 if at_end else 1)
        assert infos["final_info"]["abnormal"].tolist() == [True, False]
        assert infos["env_failed"].tolist() == [True, False]
    else:
        assert infos[0]["terminal_observation"][1] == (2 if at_end else 1)
        assert infos[0]["abnormal"]
        assert infos[0]["env_failed"]
    assert env.step(np.array([1, 1]))[0][:, 1].tolist() == [1, 1 if at_end else 0]


def test_the_face_leaves_it_to_a_caller_who_resets(new_manager):
    env = new_manager(Sick, n_envs=2, seed=0, autoreset="disabled").vector_env()
    env.reset()
    assert env.step(np.array([8, 1]))[3].tolist() == [True, False]
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.step(np.array([1, 1]))[0][:, 1].tolist() == [1, 2]


def test_actions_of_a_wrong_number_after_it(new_manager):
    env = new_manager(Sick, n_envs=2, seed=0).vector_env()
    env.reset()
    env.step(np.array([8, 1]))
    with pytest.raises(ActionError, match=r"the shape \(3,\)"):
        env.step(np.array([1, 1, 1]))
    assert env.step(np.array([1, 1]))[0][:, 1].tolist() == [0, 2]
