"""The default worker's loop: what its fast ways must not let through, and what it tells while it runs."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler.agents.base import as_agent
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import ActionError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.default import DefaultWorker
from tests.workers.contexts import context_of, new_board


class Env(gymnasium.Env):
    """`length` quick steps a trajectory; observation and reward number `oddity[0]`, counted over all, are odd."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 100, oddity: tuple[int, Any, Any] = (-1, None, None), on_step: Any = None) -> None:
        self.length, self.oddity, self.on_step = length, oddity, on_step
        self.t = self.total = 0
        self.even: Any = None

    def _observation(self) -> Any:
        if self.total == self.oddity[0]:
            return self.oddity[1]
        return np.full(2, self.t % 9, np.float32) if self.even is None else self.even

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        self.total += 1
        if self.on_step is not None:
            self.on_step(self.total)
        reward = self.oddity[2] if self.total == self.oddity[0] else float(self.t)
        return self._observation(), reward, self.t == self.length, False, {}


class Actions:
    """Acts as `odd` at its n-th action, and with 1 otherwise."""

    def __init__(self, at: int = -1, odd: Any = None) -> None:
        self.at, self.odd, self.n = at, odd, 0

    def get_action(self, _observation):
        self.n += 1
        return (self.odd if self.n - 1 == self.at else 1), {}


def worker_of(env: Env, agent: Any = None, **kwargs: Any) -> tuple[DefaultWorker, StatusBoard]:
    board = new_board()
    worker = DefaultWorker(context_of(board, **kwargs))
    worker.update_env(as_env_update(env))
    # Past the copy that an update makes: the tests look at this very one.
    worker._env = env
    worker.update_agent(as_agent(agent or Actions()))
    board.abandon_older(1)
    board.lower_flag(0)
    return worker, board


@pytest.mark.parametrize("at", [1, 63, 64, 65, 250, 399])
@pytest.mark.parametrize("odd", [[8.0, 8.0], np.full(2, 8.0), np.full(2, 8, ">f4")], ids=["list", "float64", "swapped"])
def test_an_odd_observation_anywhere_is_converted_or_refused(odd, at):
    worker, _ = worker_of(Env(oddity=(at, odd, 0.5)))
    rollouts = worker.rollout(Ticket(1, range(4)), [0] * 4).rollouts
    assert rollouts is not None
    expected = np.repeat([[t % 9] for t in range(100)] * 4, 2, axis=1).reshape(4, 100, 2)
    trajectory, t = divmod(at, 100)
    expected[trajectory, t] = 8
    np.testing.assert_array_equal(rollouts.observations, expected.reshape(400, 2))
    assert rollouts.rewards[at - 1] == 0.5
    assert rollouts.observations.dtype == np.float32

    worker, _ = worker_of(Env(oddity=(at, np.zeros(5, np.float32), 1.0)))
    with pytest.raises(ObservationError, match=r"\(5,\).*\(2,\)"):
        worker.rollout(Ticket(1, range(10, 14)), [0] * 4)
    assert worker.trajectory == 10 + trajectory


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 250, 400], ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 6), (2, 3, 1)], ids=str)
def test_as_many_numbers_in_another_shape_are_refused_wherever_they_come(shape, at):
    env = Env(oddity=(at, np.zeros(shape, np.float32), 1.0))
    env.observation_space = gymnasium.spaces.Box(-9, 9, (2, 3), np.float32)
    env.even = np.zeros((2, 3), np.float32)
    worker, _ = worker_of(env)
    with pytest.raises(ObservationError) as caught:
        worker.rollout(Ticket(1, range(10, 14)), [0] * 4)
    assert f"has the shape {shape}, and its space has the shape (2, 3)" in str(caught.value)
    # Number 400 is the last trajectory's final one.
    trajectory, timestep = (3, 100) if at == 400 else divmod(at, 100)
    assert str(caught.value).endswith(f"at timestep {timestep} of its trajectory")
    assert (worker.trajectory, worker.phase) == (10 + trajectory, Phase.RECORDING)


def test_wrong_shapes_that_make_up_for_each_other_are_refused():
    """One value too many and then one too few would shift what is between them."""
    env = Env()
    env._observation = lambda: np.zeros({70: 3, 71: 1}.get(env.total, 2), np.float32)
    worker, _ = worker_of(env)
    with pytest.raises(ObservationError, match=r"\(3,\).*\(2,\).*timestep 70 of"):
        worker.rollout(Ticket(1, range(1)), [0])


def test_an_agent_is_not_blamed_for_an_observation_of_a_wrong_shape():
    class Strict:
        def get_action(self, observation):
            return int(observation @ np.ones(2) > 0), {}

    worker, _ = worker_of(Env(oddity=(77, np.zeros(5, np.float32), 1.0)), Strict())
    with pytest.raises(ObservationError, match=r"\(5,\).*\(2,\)"):
        worker.rollout(Ticket(1, range(1)), [0])
    assert worker.phase == Phase.RECORDING


@pytest.mark.parametrize("at", [0, 70, 163])
@pytest.mark.parametrize("odd", [np.int64(0), np.uint8(0), False, np.array(0)])
def test_actions_of_any_integer_kind_are_recorded(at, odd):
    worker, _ = worker_of(Env(), Actions(at, odd))
    rollouts = worker.rollout(Ticket(1, range(2)), [0] * 2).rollouts
    assert rollouts is not None
    assert np.flatnonzero(rollouts.actions == 0).tolist() == [at]
    assert rollouts.actions.dtype == np.int64


@pytest.mark.parametrize("odd", [2, -1, 2**70, 0.5, "left"])
def test_a_wrong_action_is_an_error_that_names_its_trajectory(odd):
    worker, _ = worker_of(Env(), Actions(170, odd))
    with pytest.raises(ActionError):
        worker.rollout(Ticket(1, range(5, 8)), [0] * 3)
    assert worker.trajectory == 6
    assert worker.phase == Phase.ACTION


@pytest.mark.parametrize(
    ("reset", "what"), [(np.zeros(2, np.float32), "ndarray"), (None, "NoneType"), ((1, 2, 3), "tuple of 3")]
)
def test_a_reset_of_another_form_is_told(reset, what):
    env = Env()
    env.reset = lambda **_: reset
    worker, _ = worker_of(env)
    with pytest.raises(UsageError, match=what):
        worker.rollout(Ticket(1, range(1)), [0])
    assert worker.phase == Phase.RESET


@pytest.mark.parametrize("limit", [1, 63, 64, 65, 99, 100, 101])
def test_a_limit_truncates_at_its_timestep(limit):
    worker, _ = worker_of(Env(), max_episode_length=limit)
    rollouts = worker.rollout(Ticket(1, range(3)), [0] * 3).rollouts
    assert rollouts is not None
    assert rollouts.lengths.tolist() == [min(limit, 100)] * 3
    assert rollouts.truncated.tolist() == [limit <= 100] * 3
    assert rollouts.terminated.tolist() == [limit >= 100] * 3


@pytest.mark.parametrize("at", [1, 64, 65, 150, 200])
def test_a_newer_version_ends_the_rollout_within_its_timestep(at):
    board: Any = None

    def on_step(total):
        if total == at:
            board.abandon_older(2)

    env = Env(length=90, on_step=on_step)
    worker, board = worker_of(env)
    outcome = worker.rollout(Ticket(1, range(1000)), [0] * 1000)
    assert outcome.rollouts is None
    assert env.total == at
    assert outcome.n_trajectories * 90 + outcome.abandoned_timesteps == at


def test_progress_is_exact_for_who_watches():
    seen, watched = [], []
    board: Any = None

    def on_step(total):
        seen.append(board.progress(0).timesteps)
        if total == 120:
            board.request_progress(0)

    worker, board = worker_of(Env(length=200, on_step=on_step))
    worker.rollout(Ticket(1, range(1)), [0])
    watched = seen[121:]
    assert watched == list(range(121, 200))
    # Without a watcher, at most 64 timesteps behind.
    assert all(total - 64 <= timesteps <= total for total, timesteps in enumerate(seen, 1))
    board.lower_flag(0)
    assert worker.rollout(Ticket(1, range(1)), [0]).n_timesteps == 200


@pytest.mark.parametrize("limit", [None, 70])
def test_who_watches_sees_acting_and_stepping_in_each_timestep(limit):
    phases: list[Phase] = []
    board: Any = None

    class Watched:
        def get_action(self, _observation):
            phases.append(board.progress(0).phase)
            return 1, {}

    worker, board = worker_of(
        Env(on_step=lambda _: phases.append(board.progress(0).phase)), Watched(), max_episode_length=limit
    )
    board.request_progress(0)
    worker.rollout(Ticket(1, range(2)), [0] * 2)
    # The flag is seen after a timestep.
    assert phases[2:] == [Phase.ACTION, Phase.STEP] * (2 * (limit or 100) - 1)


def test_seconds_are_the_whole_of_it():
    worker, _ = worker_of(Env())
    outcome = worker.rollout(Ticket(1, range(50)), [0] * 50)
    assert all(seconds > 0 for seconds in outcome.seconds[:3])


def test_what_was_abandoned_took_its_time(monkeypatch):
    """Also the timesteps in between those that were timed."""
    now = 0.0
    board: Any = None

    def on_step(total):
        nonlocal now
        now += 1e-5
        if total == 950:
            board.abandon_older(2)

    monkeypatch.setattr("streamsampler.workers.default.perf_counter", lambda: now)
    env = Env(length=2000, on_step=on_step)
    worker, board = worker_of(env)
    outcome = worker.rollout(Ticket(1, range(1)), [0])
    assert (outcome.n_abandoned, outcome.abandoned_timesteps) == (1, env.total)
    assert sum(outcome.seconds) == pytest.approx(env.total * 1e-5)
