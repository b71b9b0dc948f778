"""Episodes are restored by their actions; that ends at once when their call does."""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import DefaultWorker, VecWorker
from streamsampler.core.serialization import dumps, loads
from streamsampler.data.recorder import EpisodeState, RolloutRecorder
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.resets import FragmentOrder, Resets, Standing
from streamsampler.workers.restoring import AbandonedError, Digests, NotRestoredError, apply_actions, compared_of
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps
from tests.workers.contexts import context_of, new_board

N, VERSION, SEED = 30, 4, 5


class Watched(gymnasium.Wrapper):
    """Lets the call end in the middle."""

    def __init__(self, env: Any, board: StatusBoard, ends_at: int) -> None:
        super().__init__(env)
        self.board, self.ends_at, self.n_steps = board, ends_at, 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if self.n_steps == self.ends_at:
            self.board.abandon_older(VERSION + 1)
        return super().step(action)


def restore(ends_at: int, digests: tuple[int, ...]) -> tuple[Watched, Any]:
    board = new_board()
    env = Watched(gymnasium.make("Pendulum-v1"), board, ends_at)
    actions = np.zeros((N, 1), np.float32)
    standing = Standing(0, EpisodeState(N, None, digests, True), actions)
    both = env.observation_space, env.action_space
    try:
        return env, apply_actions(env, SEED, standing, board.row(0), both, VERSION)
    except (AbandonedError, NotRestoredError) as error:
        return env, error
    finally:
        env.close()


def test_a_restoration_ends_with_its_call():
    env, error = restore(7, ())
    assert isinstance(error, AbandonedError)
    assert env.n_steps == error.ran == 7


def test_what_the_environment_says_is_compared():
    env, error = restore(-1, (1, 2))
    assert isinstance(error, NotRestoredError)
    assert env.n_steps == N


def test_the_actions_lead_where_they_led():
    env = gymnasium.make("Pendulum-v1")
    observations = [env.reset(seed=SEED)[0]]
    rewards = []
    for _ in range(N):
        observation, reward, *_ = env.step(np.zeros(1, np.float32))
        observations.append(observation)
        rewards.append(reward)
    sums = zlib.crc32(np.array(rewards, np.float64).tobytes()), zlib.crc32(np.array(observations).tobytes())
    _, (observation, _, n) = restore(-1, sums)
    assert observation.tobytes() == observations[-1].tobytes()
    assert n == N
    env.close()


def digests_of(observations: Any, pieces: Any = None) -> tuple[int, ...]:
    """Return the digests of an episode, whose observations come in pieces; the last one is what is gone on from."""
    length, digests = len(observations) - 1, Digests()
    nothing = RolloutRecorder(spaces.Box(-1, 1, (1,)), spaces.Discrete(2)).finish()
    stops = [*(pieces or ()), length]
    for start, stop in zip([0, *stops], stops, strict=False):
        rollouts = dataclasses.replace(
            nothing,
            rewards=np.zeros(length),
            observations={"a": observations[:-1]},
            last_observations={"a": observations[stop : stop + 1]},
        )
        compared = compared_of(rollouts)
        digests.add(compared, start, stop)
        values = digests.values(compared, 0)
    return values


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("shape", [(), (3,), (2, 65), (67, 11), (84, 84, 3)])
def test_any_observation_that_differs_gives_other_digests(dtype, shape):
    n, draw = 9, np.random.default_rng(5)
    observations = draw.integers(0, 2, (n, *shape)).astype(dtype)
    digests = digests_of(observations)
    assert digests_of(observations, [1, 4, 4]) == digests
    wide = np.repeat(observations[..., np.newaxis], 2, axis=-1)[..., 0]  # neither its rows are contiguous, nor they
    assert digests_of(wide) == digests
    flat = observations.reshape(n, -1)
    n_values = flat.shape[1]
    for row in (0, 3, 4, n - 1):
        for position in {0, n_values - 1, *draw.integers(0, n_values, 4).tolist()}:
            flat[row, position] = 1 - flat[row, position]
            assert digests_of(observations) != digests
            flat[row, position] = 1 - flat[row, position]
    for one, two in [(0, 1), (3, 8), (7, 8)]:
        swapped = observations.copy()
        swapped[[one, two]] = swapped[[two, one]]
        assert (digests_of(swapped) == digests) == (swapped.tobytes() == observations.tobytes())


def test_any_object_that_differs_gives_other_digests():
    texts = np.array(["a", "b", "a", "c"], object)
    assert digests_of(texts) == digests_of(texts, [2])
    assert digests_of(texts) != digests_of(np.array(["a", "b", "a", "d"], object))


@pytest.mark.parametrize("make", [DefaultWorker, partial(VecWorker, n_envs=1)])
def test_a_worker_gives_up_its_ticket_when_a_restoration_is_abandoned(make):
    board = new_board()
    worker = make(context_of(board))
    worker.in_force, worker.load = {"agent": dumps(always_zero, "the agent")}, loads
    env = Watched(Steps(100), board, 7)
    worker.update_env(as_env_update(lambda: env))
    worker.update_agent(always_zero)
    standing = Standing(0, EpisodeState(N, None, (), True), np.zeros(N, np.int64), dumps_of_group(None))
    worker.resets = Resets(fragments=FragmentOrder(5, 1, VERSION, {0: standing}))
    outcome = worker.rollout(Ticket(VERSION, range(1), 1), [SEED])
    assert outcome.rollouts is None
    assert (outcome.n_trajectories, outcome.n_timesteps) == (0, 0)
    assert worker.ran_timesteps == env.n_steps == 7
    worker.shutdown()


def dumps_of_group(state: Any) -> bytes:
    """Return what a group of `VecWorker` packs: the agent's state, and the generators'."""
    return pickle.dumps((state, None))
