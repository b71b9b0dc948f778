"""Checking that a trajectory depends on its seed alone, in one worker."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import RandomAgent
from streamsampler.agents.base import CallableAgent
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import NEVER_AGAIN
from streamsampler.workers import purity
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.purity import PurityCheck, check_purity
from streamsampler.workers.vec.worker import VecWorker
from tests.workers.contexts import context_of, new_board

CARRIED = {
    "first observation": "its first observation",
    "observation": "its observation after timestep 2",
    "reward": "its reward after timestep 2",
    "terminated": "its terminated after timestep 2",
    "truncated": "its truncated after timestep 2",
}


class Carrying(gymnasium.Env):
    """Lasts five steps, and carries the number of its trajectories into one of the things that it tells."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, into="", length=5):
        self.into, self.length = into, length
        self.resets = self.steps = 0

    def carried(self, what):
        return float(self.resets) if self.into == what and self.t in (0, 3) else 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.t = 0
        return np.array([self.carried("first observation")]), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        late = self.carried("terminated") > 1, self.carried("truncated") > 1
        end = self.t == self.length
        return np.array([self.carried("observation")]), self.carried("reward"), end or late[0], late[1], {}


class Wide(Carrying):
    """Has observations that are compared by their digests."""

    observation_space = spaces.Box(-np.inf, np.inf, (1000,), np.float64)

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return np.repeat(observation, 1000), info

    def step(self, action):
        observation, *rest = super().step(action)
        return np.repeat(observation, 1000), *rest


class Structured(Carrying):
    """Has nested observations with words in them."""

    observation_space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(9), spaces.Text(9))), b=Carrying.observation_space)

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return {"a": (1, "word"), "b": observation}, info

    def step(self, action):
        observation, *rest = super().step(action)
        return {"a": (1, "word"), "b": observation}, *rest


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch):
    """No check ends early because the machine is busy."""
    monkeypatch.setattr(purity, "perf_counter", lambda: 0.0)


@pytest.fixture
def board():
    return new_board()


@pytest.fixture
def make_worker(board):
    def make(make_env, agent=None, *, n_envs=None, check="warn", **options):
        vec = {} if n_envs is None else {"n_envs": n_envs}
        worker = (DefaultWorker if n_envs is None else VecWorker)(context_of(board, check=check, **options), **vec)
        worker.update_env(as_env_update(make_env))
        worker.update_agent(agent or CallableAgent(lambda _: 1))
        return worker

    return make


def check(worker, before=None):
    return check_purity(worker, 1, TrajectorySeeds(0, 1).of, before or PurityCheck())


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize("env_class", [Carrying, Wide, Structured])
@pytest.mark.parametrize("into", CARRIED)
def test_what_is_carried_into_the_next_trajectory_is_named(make_worker, env_class, into, n_envs):
    outcome = check(make_worker(lambda: env_class(into), n_envs=n_envs))
    assert f"{env_class.__name__} was run twice from the same seed" in outcome.finding
    assert f"trajectory 0 came out differently: {CARRIED[into]} was " in outcome.finding
    assert "let its reset set back what it keeps" in outcome.finding
    assert outcome.spoiled


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize("env_class", [Carrying, Wide, Structured])
def test_nothing_is_found_where_nothing_is_carried(make_worker, env_class, n_envs):
    outcome = check(make_worker(env_class, RandomAgent(spaces.Discrete(2)), n_envs=n_envs))
    assert (outcome.finding, outcome.complete, outcome.spoiled) == ("", True, False)
    assert outcome.timesteps == 3 * 5 * (n_envs or 1)


class Counting:
    """Chooses its 8th action otherwise, counted over all trajectories."""

    def __init__(self, batched):
        self.n = 0
        if batched:
            self.get_actions = lambda observations: ([self.next()] * len(observations), {})

    def next(self):
        self.n += 1
        return int(self.n > 7)

    def get_action(self, observation):
        return self.next(), {}


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_an_agent_that_carries_something_is_named(make_worker, n_envs, batched):
    finding = check(make_worker(Carrying, Counting(batched), n_envs=n_envs)).finding
    assert "its action at timestep 0 was 0 and then 1" in finding
    assert "The agent keeps something" in finding


def native(mode, into=""):
    return lambda: gymnasium.vector.SyncVectorEnv([lambda: Carrying(into)] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_native_vector_environments(make_worker, mode):
    assert check(make_worker(native(mode), n_envs=3)).finding == ""
    finding = check(make_worker(native(mode, "reward"), n_envs=3)).finding
    assert "one of trajectories 0 to 2 came out differently: its reward after timestep 2" in finding


@pytest.mark.parametrize("n_envs", [None, 2])
def test_at_most_200_timesteps_of_a_trajectory_are_compared(make_worker, n_envs):
    made = []
    worker = make_worker(lambda: made.append(Carrying(length=1000)) or made[-1], n_envs=n_envs, check="error")
    outcome = check(worker)
    assert (outcome.complete, outcome.finding) == (True, "")
    assert [env.steps for env in made] == [3 * 200] * (n_envs or 1)
    assert outcome.timesteps == 3 * 200 * (n_envs or 1)


class Clock:
    """Goes on by a tenth of a second with each reset and step."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def env(self, **arguments):
        clock = self

        class Slow(Carrying):
            def reset(self, **arguments):
                clock.now += 0.0625
                return super().reset(**arguments)

            def step(self, action):
                clock.now += 0.0625
                return super().step(action)

        return Slow(**arguments)


@pytest.mark.parametrize("n_envs", [None, 2])
@pytest.mark.parametrize("mode", ["warn", "error"])
def test_nothing_begins_after_a_fifth_of_a_second_unless_it_is_an_error(make_worker, monkeypatch, n_envs, mode):
    clock, made = Clock(), []
    monkeypatch.setattr(purity, "perf_counter", clock)
    worker = make_worker(lambda: made.append(clock.env(into="reward")) or made[-1], n_envs=n_envs, check=mode)
    outcome = check(worker)
    assert outcome.complete
    if mode == "error":
        assert "its reward" in outcome.finding
    else:
        assert outcome.finding == ""
        # 0.0625, 0.125, 0.1875, 0.25: the fourth began before 0.2 seconds were over.
        assert sum(env.resets + env.steps for env in made) == 4
        assert (outcome.seconds, outcome.spoiled) == (0.25, False)


def test_a_version_that_is_not_wanted_breaks_it_off_and_it_goes_on_with_the_time_that_is_left(
    make_worker, board, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr(purity, "perf_counter", clock)

    class Stopping(Carrying):
        def step(self, action):
            clock.now += 0.0625
            if self.steps == 1:
                board.abandon_older(NEVER_AGAIN)
            return super().step(action)

    worker = make_worker(Stopping)
    first = check(worker)
    assert (first.complete, first.timesteps, first.seconds) == (False, 2, 0.125)
    board.abandon_older(1)
    second = check(worker, first)
    assert (second.complete, second.timesteps, second.finding) == (True, 2, "")
    assert check(worker, second).timesteps == 0
    # Another kind of environment has time of its own.
    assert check(worker, PurityCheck("another", complete=False, seconds=1.0)).timesteps == 4


@pytest.mark.parametrize("n_envs", [None, 2])
@pytest.mark.parametrize("place", ["reset", "step", "action", "data", "exit"])
def test_what_raises_is_no_verdict(make_worker, n_envs, place):
    class Raising(Carrying):
        def reset(self, **arguments):
            if place == "reset" and self.resets:
                raise ValueError
            return super().reset(**arguments)

        def step(self, action):
            if self.resets > 1 and place in ("step", "exit"):
                raise SystemExit if place == "exit" else ValueError
            observation, *rest = super().step(action)
            return (np.zeros(2) if place == "data" else observation), *rest

    def act(_):
        raise ValueError

    for mode in ("warn", "error"):
        worker = make_worker(Raising, CallableAgent(act) if place == "action" else None, n_envs=n_envs, check=mode)
        outcome = check(worker)
        assert (outcome.finding, outcome.complete, outcome.spoiled) == ("", True, True)


def test_nan_and_what_cannot_be_compared_are_no_difference(make_worker):
    class Odd(Carrying):
        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def reset(self, **arguments):
            return np.full(2, np.nan, np.float32), super().reset(**arguments)[1]

        def step(self, action):
            return np.full(2, np.nan, np.float32), np.nan, *super().step(action)[2:]

    assert check(make_worker(Odd)).finding == ""


def test_a_worker_of_another_kind_is_not_checked(board):
    class Mine(Worker):
        spaces: Any = None

        def update_agent(self, agent_update): ...
        def update_env(self, env_update): ...
        def rollout(self, ticket, seeds): ...
        def shutdown(self): ...

    outcome = check(Mine(context_of(board)))
    assert (outcome.complete, outcome.finding) == (True, "")


# ------------------------------------------------------------------ infos


class Telling(Carrying):
    """Carries the number of its trajectories into an info of the reset, or of the third timestep."""

    def reset(self, **arguments):
        observation, _ = super().reset(**arguments)
        return observation, {"nested": {"number": self.resets}} if self.into == "reset info" else {}

    def step(self, action):
        told = {"nested": {"number": self.resets}} if self.into == "step info" and self.t == 2 else {}
        return *super().step(action)[:4], told


class Boasting:
    """Carries the number of its calls into its infos."""

    def __init__(self, batched):
        self.n = 0
        if batched:
            self.get_actions = lambda observations: ([0] * len(observations), {"n": [self.next()] * len(observations)})

    def next(self):
        self.n += 1
        return self.n

    def get_action(self, observation):
        return 0, {"n": self.next()}


def rebuilding(worker, env, agent=None):
    """Let a worker renew itself, as the loop lets it: with what it was last given."""

    def rebuild():
        worker.update_env(as_env_update(env))
        worker.update_agent(agent() if agent else CallableAgent(lambda _: 1))

    object.__setattr__(worker.context, "rebuild", rebuild)
    return worker


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize(
    ("into", "what"),
    [("reset info", "its info 'nested.number' of the reset was 1 and then 3"),
     ("step info", "its info 'nested.number' after timestep 2 was 1 and then 3")],
)  # fmt: skip
def test_what_is_carried_into_infos_alone_is_named(make_worker, into, what, n_envs):
    outcome = check(rebuilding(make_worker(lambda: Telling(into), n_envs=n_envs), lambda: Telling(into)))
    assert what in outcome.finding
    assert "let its reset set back what it keeps" in outcome.finding
    assert (outcome.unstable, outcome.spoiled) == ("", True)


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_what_an_agent_carries_into_its_infos_alone_is_named(make_worker, n_envs, batched):
    worker = make_worker(Carrying, Boasting(batched), n_envs=n_envs)
    finding = check(rebuilding(worker, Carrying, lambda: Boasting(batched))).finding
    assert "its agent info 'n' at timestep 0" in finding
    assert "The agent keeps something" in finding


def test_what_a_native_vector_environment_carries_into_its_infos_alone_is_named(make_worker):
    def make():
        mode = gymnasium.vector.AutoresetMode.NEXT_STEP
        return gymnasium.vector.SyncVectorEnv([lambda: Telling("step info")] * 3, autoreset_mode=mode)

    finding = check(rebuilding(make_worker(make, n_envs=3), make)).finding
    assert "its info 'nested.number' after timestep 2" in finding


class ReadsAClock(Telling):
    """Each of its environments tells another time, in each of its trajectories."""

    clock = 0

    def step(self, action):
        ReadsAClock.clock += 1
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"time": {"spent": ReadsAClock.clock}}


@pytest.mark.parametrize("n_envs", [None, 3])
def test_what_is_read_off_a_clock_is_no_memory_and_is_named(make_worker, n_envs):
    outcome = check(rebuilding(make_worker(ReadsAClock, n_envs=n_envs), ReadsAClock))
    assert outcome.finding == ""
    assert "ReadsAClock was made twice and run from the same seed, and its info 'time.spent' differed" in (
        outcome.unstable
    )
    assert outcome.spoiled


@pytest.mark.parametrize("n_envs", [None, 3])
def test_memory_is_found_next_to_a_clock(make_worker, n_envs):
    def make():
        return ReadsAClock("step info")

    outcome = check(rebuilding(make_worker(make, n_envs=n_envs), make))
    assert "its info 'nested.number' after timestep 2" in outcome.finding
    assert "'time.spent'" in outcome.unstable
    assert "number" not in outcome.unstable


@pytest.mark.parametrize("n_envs", [None, 3])
def test_the_clock_of_episode_statistics_is_not_compared(make_worker, n_envs):
    def make():
        return gymnasium.wrappers.RecordEpisodeStatistics(Carrying())

    outcome = check(make_worker(make, n_envs=n_envs))
    assert (outcome.finding, outcome.unstable, outcome.spoiled) == ("", "", False)
    assert outcome.timesteps == 3 * 5 * (n_envs or 1)
