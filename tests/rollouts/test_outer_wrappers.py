"""The script does the work of TimeLimit and OrderEnforcing in a step, and nobody sees that they were not asked."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from streamsampler import LocalSampler, RolloutError, VecWorker
from streamsampler.data.trees import same
from streamsampler.environments.multi_agent import as_multi_agent
from streamsampler.rollouts.outer_wrappers import OuterWrappers
from tests.scripted.zoo import env as Turns
from tests.scripted.zoo import parallel_env as Comings
from tests.tiers import mostly_slow

LENGTH = 5


class Walk(gymnasium.Env[Any, Any]):
    """Goes on until a trajectory drew a small number, or until it has `ends_at` timesteps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    ends_at: int | None = None
    raises_at: int | None = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self.np_random.normal(size=2), {}

    def step(self, action):
        self.n += 1
        if self.n == self.raises_at:
            raise ValueError("it broke")
        ends = self.n == self.ends_at if self.ends_at else bool(self.np_random.random() < 0.15)
        return self.np_random.normal(size=2) + action, float(self.n), ends, False, {"n": self.n}


class Chooses:
    def get_action(self, observation):
        return int(observation[0] > 0), {"value": float(observation[1])}

    def get_actions(self, observations):
        return (observations[:, 0] > 0).astype(np.int64), {"value": observations[:, 1].copy()}


class Framed(TimeLimit):
    """Keeps its frame: its class is another one."""


def plain(env, length=LENGTH):
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(env)), length)


def unchecked(env, length=LENGTH):
    return TimeLimit(OrderEnforcing(env), length)


def framed(env, length=LENGTH):
    return Framed(OrderEnforcing(PassiveEnvChecker(env)), length)


def of_class(**attributes):
    return type("Some", (Walk,), attributes)()


WORKERS: dict[str, dict[str, Any]] = {
    "single": {},
    "lanes": {"worker_class": VecWorker, "worker_args": {"n_envs": 4}},
    "blocks": {"worker_class": VecWorker, "worker_args": {"n_envs": 4}},
}


class Depends(Chooses):
    row_independent = False


def batch(env, worker, **arguments):
    agent = Depends() if worker == "blocks" else Chooses()
    with LocalSampler(agent, env, seed=3, **WORKERS[worker], **arguments) as sampler:
        sampler.obtain_samples(30)  # in which the checker makes its checks
        return sampler.obtain_samples(60)


def assert_same(one, other):
    assert one.lengths.tolist() == other.lengths.tolist()
    for name in ("observations", "last_observations", "rewards", "terminated", "truncated", "env_infos", "agent_infos"):
        assert same(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("at_most", [None, 3, LENGTH, 8])
@pytest.mark.parametrize("ends_at", [None, 3, LENGTH])
def test_batches_are_those_of_wrappers_that_keep_their_frames(worker, at_most, ends_at):
    one, other = (
        batch(lambda wrapped=wrapped: wrapped(of_class(ends_at=ends_at)), worker, max_episode_length=at_most)
        for wrapped in (plain, framed)
    )

    assert_same(one, other)
    assert one.truncated.any() or ends_at == 3


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize(("inner", "outer"), [(3, 6), (6, 3)])
def test_the_lowest_of_several_limits_holds(worker, inner, outer):
    one, other = (
        batch(lambda around=around: around(around(Walk(), inner), outer), worker) for around in (plain, framed)
    )

    assert_same(one, other)
    assert one.lengths.max() == 3


MADE: list[Any] = []


def twice_limited():
    """Return an environment that the test, too, has in hand."""
    MADE[:] = [plain(plain(of_class(ends_at=None), 9), LENGTH)]
    return MADE[0]


def test_wrappers_count_a_trajectorys_timesteps():
    with LocalSampler(Chooses(), twice_limited, seed=1) as sampler:
        for _ in range(6):
            lengths = sampler.obtain_trajectories(1).lengths
            assert MADE[0]._elapsed_steps == lengths[-1]
            assert MADE[0].env.env.env._elapsed_steps == lengths[-1]


def long_one():
    MADE[:] = [plain(of_class(ends_at=100), LENGTH)]
    return MADE[0]


def test_a_limit_may_change_between_trajectories():
    with LocalSampler(Chooses(), long_one, seed=1) as sampler:
        sampler.obtain_trajectories(1)  # makes it
        for limit, length in ((4, 4), (7, 7), (1, 1), (0, 1), (np.int64(3), 3), (7.5, 8), (math.inf, 100)):
            MADE[0]._max_episode_steps = limit
            assert sampler.obtain_trajectories(2).lengths.tolist() == [length, length]


@pytest.mark.parametrize("worker", WORKERS)
def test_errors_name_what_they_did_before(worker):
    errors = []
    for wrapped in (plain, framed):
        with pytest.raises(RolloutError, match="it broke") as caught:
            batch(lambda wrapped=wrapped: wrapped(of_class(ends_at=9, raises_at=4)), worker)
        errors.append(caught.value)

    one, other = errors
    assert type(one) is type(other)
    assert (one.phase, one.trajectory) == (other.phase, other.trajectory)
    assert str(one).replace("TimeLimit", "Framed") == str(other)


class Counts:
    """Says in which of its timesteps the wrapper had counted as many."""

    def on_trajectory_start(self, context):
        context.metrics["counted"] = 0.0

    def on_timestep(self, context):
        context.metrics["counted"] += context.env._elapsed_steps == context.timestep


@pytest.mark.parametrize("worker", WORKERS)
def test_hooks_see_the_wrappers_count(worker):
    with LocalSampler(Chooses(), partial(plain, Walk()), seed=1, **WORKERS[worker], hooks=Counts()) as sampler:
        batch = sampler.obtain_trajectories(5)
        assert batch.episode_infos["counted"].tolist() in (batch.lengths.tolist(), (batch.lengths - 1).tolist())


class Walks(Walk):
    """Its resets take two steps of the wrapper that counts."""

    ends_at = 9

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        for _ in range(2):
            MADE[0].step(0)
        return result


def walking():
    MADE[:] = [unchecked(Walks())]
    return MADE[0]


def test_steps_of_a_reset_count():
    with LocalSampler(Chooses(), walking, seed=1) as sampler:
        assert sampler.obtain_trajectories(3).lengths.tolist() == [LENGTH - 2] * 3
        assert MADE[0]._elapsed_steps == LENGTH


class Replaces(Walk):
    """Which function is its step depends on the trajectory, on the task, and on how far it has got."""

    factor = 1.0

    def reset(self, *, seed=None, options=None):
        self.step = self.double if seed % 2 else self.late
        return super().reset(seed=seed)

    def double(self, action):
        observation, reward, *others = Walk.step(self, action)
        return observation, self.factor * 2 * reward, *others

    def late(self, action):
        if self.n == 2:
            self.step = self.double
        return Walk.step(self, action)

    def set_task(self, task):
        self.factor = task


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("wrapped", [plain, unchecked])
def test_an_environment_may_replace_its_step_at_any_time(worker, wrapped):
    one, other = (batch(lambda around=around: around(Replaces()), worker) for around in (wrapped, framed))

    assert_same(one, other)


class Swaps(Walk):
    """A task puts another environment below the wrapper."""

    def set_task(self, task):
        MADE[0].env.env = type("Other", (Swaps,), {"ends_at": task})()


def swapping():
    MADE[:] = [unchecked(Swaps(), 50)]
    return MADE[0]


def test_a_task_may_put_another_environment_below_a_wrapper():
    with LocalSampler(Chooses(), swapping, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        assert sampler.obtain_trajectories(2, tasks=[3, 7]).lengths.tolist() == [3, 3, 7, 7]


class NamesItsCaller(Walk):
    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"caller": sys._getframe(1).f_code.co_name}


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize(("hooks", "caller"), [(None, "trajectory"), (Counts(), "step")])
def test_the_script_itself_steps_what_is_below_the_wrappers(worker, hooks, caller):
    one = batch(partial(plain, NamesItsCaller()), worker, hooks=hooks)

    assert {*one.env_infos["caller"]} == {caller}


def fragments(env, worker, lengths=(3, 1, 4, 2, 13, 1), n_envs=2, **options):
    with LocalSampler(Chooses(), env, seed=3, **WORKERS[worker], **options) as sampler:
        return [sampler.obtain_fragments(length, n_envs) for length in lengths]


@pytest.mark.parametrize("worker", mostly_slow(WORKERS))
@pytest.mark.parametrize("at_most", mostly_slow([None, 3, LENGTH, 8]))
@pytest.mark.parametrize("ends_at", mostly_slow([None, 3, 9], 4))
def test_fragments_are_those_of_wrappers_that_keep_their_frames(worker, at_most, ends_at):
    of_both = (
        fragments(lambda wrapped=wrapped: wrapped(of_class(ends_at=ends_at)), worker, max_episode_length=at_most)
        for wrapped in (plain, framed)
    )

    for one, other in zip(*of_both, strict=True):
        assert_same(one, other)


def test_wrappers_have_counted_an_episodes_timesteps_after_each_call():
    with LocalSampler(Chooses(), long_one, seed=1) as sampler:
        for length, counted in ((1, 1), (2, 3), (1, 4), (1, 5), (2, 2), (5, 2), (8, 5), (3, 3)):
            sampler.obtain_fragments(length, 1)
            assert MADE[0]._elapsed_steps == counted


def test_a_limit_may_change_within_an_episode():
    with LocalSampler(Chooses(), long_one, seed=1) as sampler:
        sampler.obtain_fragments(1, 1)  # makes it
        for limit, lengths in ((9, [3]), (2, [1, 2]), (7, [3]), (5, [2, 1]), (math.inf, [3])):
            MADE[0]._max_episode_steps = limit
            batch = sampler.obtain_fragments(3, 1)
            assert batch.lengths.tolist() == lengths
            assert batch.truncated.tolist() == [True] * (len(lengths) - 1) + [limit == 2]


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize(("hooks", "caller"), [(None, "trajectory"), (Counts(), "step")])
def test_the_script_itself_steps_what_is_below_the_wrappers_in_fragments(worker, hooks, caller):
    for batch in fragments(partial(unchecked, NamesItsCaller()), worker, n_envs=1, hooks=hooks):
        assert {*batch.env_infos["caller"]} == {caller}


def checked(env):
    """Return an environment whose checker has made its checks."""
    env.reset(seed=1)
    for _ in range(2):
        env.step(0)
    return env


def below(env):
    return OuterWrappers(env).begin()[0]


def test_the_three_of_gymnasium_make_are_left_out():
    env = plain(of_class(ends_at=9))
    env.reset(seed=1)
    assert below(env) is env.env.env, "whose checks are still to be made"
    assert below(checked(env)) is env.unwrapped

    made = checked(gymnasium.make("CartPole-v1"))
    assert OuterWrappers(made).begin() == (made.unwrapped, 498)


class Rewarded(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


def test_what_is_below_another_wrapper_keeps_its_frames():
    env = checked(plain(Rewarded(plain(Walk(), 3)), 9))

    assert OuterWrappers(env).begin() == (env.env.env.env, 7)


def test_without_a_time_limit_there_is_none():
    env = checked(OrderEnforcing(Walk()))

    assert OuterWrappers(env).begin() == (env.unwrapped, None)
    assert OuterWrappers(env.unwrapped).begin() == (env.unwrapped, None)


def test_a_subclass_keeps_its_frame():
    env = checked(framed(Walk()))

    assert OuterWrappers(env).begin() == (env, None)


def test_a_step_that_was_replaced_is_called(monkeypatch):
    env = checked(plain(Walk()))
    replaced = env.env.step
    env.env.step = lambda action: replaced(action)
    assert below(env) is env.env

    env = checked(plain(Walk()))

    def step(self, action):
        print("a step")
        return self.env.step(action)

    monkeypatch.setattr(OrderEnforcing, "step", step)
    assert below(env) is env.env
    monkeypatch.setattr(TimeLimit, "step", step)
    assert OuterWrappers(env).begin() == (env, None)


def test_where_the_step_of_all_wrappers_was_replaced_they_keep_their_frames(monkeypatch):
    env = checked(plain(Walk()))

    def step(self, action):
        print("a step")
        return self.env.step(action)

    monkeypatch.setattr(gymnasium.Wrapper, "step", step)
    assert OuterWrappers(env).begin() == (env, None)


@pytest.mark.parametrize("game", [Comings, Turns])
def test_wrappers_of_several_agents_keep_their_frames(game):
    env = unchecked(as_multi_agent(game()))
    env.reset(seed=1)

    assert OuterWrappers(env).begin() == (env, None)
