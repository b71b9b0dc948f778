"""What a worker with several environments tells of its progress, to who watches it."""

from itertools import pairwise

import gymnasium
import numpy as np
import pytest

from streamsampler import VecWorker
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Phase, Ticket
from tests.workers.contexts import context_of, new_board


class Telling(gymnasium.Env):
    """Ten steps, each of which calls back."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, tell):
        self.tell = tell

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tell("reset")
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.tell("step")
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 10, False, {}


class OneByOne:
    def __init__(self, tell):
        self.tell = tell

    def get_action(self, observation):
        self.tell("action")
        return 0, {}


class Batched(OneByOne):
    def get_actions(self, observations):
        self.tell("actions")
        return np.zeros(len(observations), int), {}


def progress_in(agent_class, *, watched):
    """What the board says at each call of user code, in a block of six trajectories in three environments."""
    board = new_board()
    worker = VecWorker(context_of(board), n_envs=3, block_size=6)
    seen = []

    def tell(what):
        seen.append((what, board.progress(0)))

    worker.update_env(as_env_update(lambda: Telling(tell)))
    worker.update_agent(agent_class(tell))
    seen.clear()
    board.abandon_older(1)
    board.lower_flag(0)
    if watched:
        board.request_progress(0)
    assert worker.rollout(Ticket(1, range(6), 6), list(range(6))).n_timesteps == 60
    return seen


@pytest.mark.parametrize("agent_class", [OneByOne, Batched])
def test_each_step_and_each_action_shows_to_who_watches(agent_class):
    seen = progress_in(agent_class, watched=True)
    assert len(seen) > 66
    for (_, before), (_, after) in pairwise(seen):
        assert before != after


@pytest.mark.parametrize("agent_class", [OneByOne, Batched])
@pytest.mark.parametrize("watched", [False, True])
def test_the_phase_is_the_one_it_is_in(agent_class, watched):
    phases = {"reset": Phase.RESET, "action": Phase.ACTION, "actions": Phase.ACTION, "step": Phase.STEP}
    assert all(progress.phase == phases[what] for what, progress in progress_in(agent_class, watched=watched))


def test_the_time_of_every_reset_step_and_action_is_told(monkeypatch):
    """The first resets of a block included."""
    now = 0.0

    def tell(what):
        nonlocal now
        now += {"reset": 100.0, "step": 1.0, "actions": 0.25}[what]

    monkeypatch.setattr("streamsampler.workers.vec.lanes.perf_counter", lambda: now)
    worker = VecWorker(context_of(), n_envs=3, block_size=6)
    worker.update_env(as_env_update(lambda: Telling(tell)))
    worker.update_agent(Batched(tell))
    outcome = worker.rollout(Ticket(1, range(12), block=6), list(range(12)))
    assert outcome.seconds[:3] == (12 * 100.0, 40 * 0.25, 120 * 1.0)
