"""Episodes are restored by their actions, which are to lead where they led; that ends at once when their call does."""

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
from streamsampler.core.awaiting import completed
from streamsampler.core.serialization import dumps, loads
from streamsampler.data.recorder import EpisodeState, RolloutRecorder
from streamsampler.data.trees import object_array
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.resets import EpisodeCheckpoint, FragmentOrder, Resets
from streamsampler.workers.restoring import AbandonedError, Digests, NotRestoredError, apply_actions, compared_of
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps
from tests.scripted.kinds import Thing
from tests.workers.contexts import context_of, new_board

N, VERSION, SEED = 30, 4, 5


class Watched(gymnasium.Wrapper):
    """Lets the call end in the middle."""

    def __init__(self, env: Any, board: Any, ends_at: int) -> None:
        super().__init__(env)
        self.board, self.ends_at, self.n_steps = board, ends_at, 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if self.n_steps == self.ends_at:
            self.board.abandon_older(VERSION + 1)
        return super().step(action)


def restore(ends_at: int, digests: tuple[int, ...]) -> Any:
    """Return how many steps there were, and where they led; or let it be raised why the episode is not restored."""
    board = new_board()
    env = Watched(Steps(100), board, ends_at)
    standing = EpisodeCheckpoint(0, EpisodeState(N, None, digests, True), np.zeros(N, np.int64))
    both = env.observation_space, env.action_space
    return env.n_steps, completed(apply_actions(env, SEED, standing, board.row(0), both, VERSION))


def test_the_actions_lead_where_they_led_and_that_is_compared():
    rewards, observations = np.arange(1, N + 1, dtype=np.float64), np.arange(N + 1, dtype=np.float32)[:, None]
    _, (_, end, _, n) = restore(-1, (zlib.crc32(rewards.tobytes()), zlib.crc32(observations.tobytes())))
    assert (end.observation.tolist(), end.info, n) == ([N], {}, N)
    with pytest.raises(NotRestoredError):
        restore(-1, (1, 2))
    with pytest.raises(AbandonedError) as caught:
        restore(7, ())
    assert caught.value.ran == 7


@pytest.mark.parametrize("make", [DefaultWorker, partial(VecWorker, n_envs=1)])
def test_a_worker_gives_up_its_ticket_when_a_restoration_is_abandoned(make):
    board = new_board()
    worker = make(context_of(board))
    worker.in_force, worker.load = {"agent": dumps(always_zero, "the agent")}, loads
    env = Watched(Steps(100), board, 7)
    worker.update_env(as_env_update(lambda: env))
    worker.update_agent(always_zero)
    of_group = pickle.dumps((None, None))  # the agent's state, and the generators'
    standing = EpisodeCheckpoint(0, EpisodeState(N, None, (), True), np.zeros(N, np.int64), of_group)
    worker.resets = Resets(fragments=FragmentOrder(5, 1, VERSION, {0: standing}))
    outcome = worker.rollout(Ticket(VERSION, range(1), 1), [SEED])
    assert outcome.rollouts is None
    assert (outcome.n_trajectories, outcome.n_timesteps) == (0, 0)
    assert worker.ran_timesteps == env.n_steps == 7
    worker.shutdown()


def digests_of(observations: Any, pieces: Any = ()) -> tuple[int, ...]:
    """Return the digests of an episode, whose observations come in pieces; the last one is what is gone on from."""
    length, digests = len(observations) - 1, Digests()
    nothing = RolloutRecorder(spaces.Box(-1, 1, (1,)), spaces.Discrete(2)).finish()
    for start, stop in zip([0, *pieces], [*pieces, length], strict=True):
        last = {"a": observations[stop : stop + 1]}
        rewards = np.zeros(length)
        rollouts = dataclasses.replace(
            nothing, rewards=rewards, observations={"a": observations[:-1]}, last_observations=last
        )
        compared = compared_of(rollouts)
        digests.add(compared, start, stop)
        values = digests.values(compared, 0)
    return values


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(), (2, 65), (67, 11), (84, 84, 3)])
def test_any_observation_that_differs_gives_other_digests(dtype, shape):
    n, draw = 9, np.random.default_rng(5)
    observations = draw.integers(0, 2, (n, *shape)).astype(dtype)
    digests = digests_of(observations)
    assert digests_of(observations, [1, 4, 4]) == digests
    wide = np.repeat(observations[..., np.newaxis], 2, axis=-1)[..., 0]  # neither its rows are contiguous, nor they
    assert digests_of(wide) == digests
    flat = observations.reshape(n, -1)
    for row in (0, 3, n - 1):
        for position in {0, flat.shape[1] - 1, *draw.integers(0, flat.shape[1], 4).tolist()}:
            flat[row, position] = 1 - flat[row, position]
            assert digests_of(observations) != digests
            flat[row, position] = 1 - flat[row, position]
    swapped = observations[[0, 1, 2, 8, 4, 5, 6, 7, 3]]
    assert (digests_of(swapped) == digests) == (swapped.tobytes() == observations.tobytes())


def test_any_object_that_differs_gives_other_digests():
    texts = np.array(["a", "b", "a", "c"], object)
    assert digests_of(texts) == digests_of(texts, [2])
    assert digests_of(texts) != digests_of(np.array(["a", "b", "a", "d"], object))
    things = [object_array([Thing(n, np.arange(2000) == at) for n in range(4)]) for at in (1000, 1000, 1001)]
    assert digests_of(things[0]) == digests_of(things[1], [1, 3]) != digests_of(things[2])
