"""A block by hand: from which seeds it runs, when it is abandoned, and what it names when something raised."""

import random
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import VecWorker
from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import ActionError
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.generators import preserved_generators, seed_generators
from tests.workers.contexts import context_of, new_board

KINDS = ["slots", "NEXT_STEP", "SAME_STEP", "DISABLED"]
N_ENVS = 3


class Calling(gymnasium.Env[Any, Any]):
    """As many timesteps as its seed says; calls a function before each step, and changes the action that it was given.

    Where it is not given a seed, it has as many timesteps as before.
    """

    observation_space = spaces.Box(-99, 99, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, on_step: Any = None) -> None:
        self.on_step = on_step
        self.length = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length = self.length if seed is None else seed
        self.t = 0
        return np.array([self.length], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.on_step is not None:
            self.on_step(self)
        action[:] = 99
        self.t += 1
        return np.array([self.length], np.float32), 1.0, self.t == self.length, False, {}


class Batched:
    """Acts with `odd` where an observation shows that length, and with 0.5 otherwise."""

    def __init__(self, odd: int = -1) -> None:
        self.odd = odd
        self.seeds: list[int] = []
        self.drawn: list[float] = []

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self.drawn.append(random.random())

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions = np.where(observations == self.odd, 7.0, 0.5).astype(np.float32)
        return np.repeat(actions, 2, axis=1), {}


def worker_of(kind: str, agent: Any = None, on_step: Any = None, board: StatusBoard | None = None) -> VecWorker:
    """Return a worker with three environments, single ones or those of a vector environment."""
    worker = VecWorker(context_of(board), n_envs=N_ENVS, block_size=6)
    single = partial(Calling, on_step)
    mode = None if kind == "slots" else AutoresetMode[kind]
    make = single if mode is None else partial(SyncVectorEnv, [single] * N_ENVS, autoreset_mode=mode)
    worker.update_env(as_env_update(make))
    worker.update_agent(agent or Batched())
    return worker


def run(worker: VecWorker, lengths: list[int], block: int = 6) -> Any:
    return worker.rollout(Ticket(1, range(len(lengths)), block), lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_an_old_version_is_abandoned_at_the_next_step(kind):
    board, steps = new_board(), []

    def on_step(env: Any) -> None:
        steps.append(env)
        if len(steps) == 4 * N_ENVS:
            board.abandon_older(2)

    worker = worker_of(kind, on_step=on_step, board=board)
    outcome = run(worker, [50] * 6)
    assert outcome.rollouts is None
    assert len(steps) == outcome.abandoned_timesteps == 4 * N_ENVS
    assert outcome.n_abandoned == N_ENVS


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_seeded_from_its_first_trajectory(kind):
    agent = Batched()
    with preserved_generators():
        worker = worker_of(kind, agent)
        run(worker, [4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8])
        assert agent.seeds == [derived_seed(seed, Stream.AGENT) for seed in (4, 3)]
        for seed, drawn in zip((4, 3), agent.drawn, strict=True):
            seed_generators(seed)
            assert random.random() == drawn


def test_an_environment_that_changes_its_action_changes_no_record():
    rollouts = run(worker_of("slots"), [4] * 6).rollouts
    assert (rollouts.actions == 0.5).all()


class Masked(Batched):
    """Is reset by a mask of rows, and returns one array again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.actions = np.zeros((N_ENVS, 2), np.float32)
        self.n = 0

    def reset(self, do_resets: Any) -> None:
        assert len(do_resets) == N_ENVS

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self.n += 1
        self.actions[:] = self.n / 100
        return self.actions, {}


def test_an_agent_with_a_mask_may_use_one_array_for_all_its_actions():
    kept = []

    class Keeping(Calling):
        def step(self, action: Any) -> Any:
            kept.append(action)
            return super().step(action.copy())

    worker = worker_of("slots", Masked())
    worker.update_env(as_env_update(Keeping))
    rollouts = run(worker, [4] * 3, 3).rollouts
    assert rollouts.actions[:4, 0].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert [action[0] for action in kept[::3]] == pytest.approx([0.01, 0.02, 0.03, 0.04])


@pytest.mark.parametrize("odd", range(6))
def test_the_trajectory_that_cannot_be_recorded_is_named(odd):
    lengths = [4, 9, 5, 8, 6, 7]
    worker = worker_of("slots", Batched(odd=lengths[odd]))
    with pytest.raises(ActionError):
        run(worker, lengths, block=3)
    assert worker.trajectory == odd
