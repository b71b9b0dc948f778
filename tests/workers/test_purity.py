"""Checking that a trajectory depends on its seed alone, in one worker."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import RandomAgent
from streamsampler.agents.base import CallableAgent
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import NEVER_AGAIN
from streamsampler.workers import purity
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.purity import PurityCheck, check_purity
from streamsampler.workers.vec.worker import VecWorker
from tests.scripted.kinds import KINDS, Thing
from tests.workers.contexts import context_of, new_board


class Carrying(gymnasium.Env):
    """Lasts five steps, and carries the number of its trajectories into one of the things that it tells."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, into="", length=5):
        self.into, self.length = into, length
        self.resets = self.steps = 0

    def carried(self, what):
        return float(self.resets) if self.into == what and self.t in (0, 3) else 0.0

    def told(self, what):
        return {"nested": {"number": self.resets}} if self.into == what and self.t in (0, 3) else {}

    def shown(self, number):
        return np.array([number])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.t = 0
        return self.shown(self.carried("first observation")), self.told("reset info")

    def step(self, action):
        self.t += 1
        self.steps += 1
        late = self.carried("terminated") > 1, self.carried("truncated") > 1
        ends = self.t == self.length or late[0], late[1]
        return self.shown(self.carried("observation")), self.carried("reward"), *ends, self.told("step info")


class Wide(Carrying):
    """Has observations that are compared by their digests."""

    observation_space = spaces.Box(-np.inf, np.inf, (1000,), np.float64)

    def shown(self, number):
        return np.full(1000, number)


class Structured(Carrying):
    """Has nested observations with words in them."""

    observation_space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(9), spaces.Text(9))), b=Carrying.observation_space)

    def shown(self, number):
        return {"a": (1, "word"), "b": np.array([number])}


class Counting:
    """Chooses its 8th action otherwise, counted over all trajectories; or tells its calls in an info."""

    def __init__(self, batched, tells):
        self.n, self.tells = 0, tells
        if batched:
            self.get_actions = self.many

    def get_action(self, observation):
        self.n += 1
        return int(self.n > 7 and not self.tells), {"n": self.n} if self.tells else {}

    def many(self, observations):
        action, info = self.get_action(None)
        return [action] * len(observations), {key: [value] * len(observations) for key, value in info.items()}


def native(env, mode=AutoresetMode.NEXT_STEP):
    return lambda: SyncVectorEnv([env] * 3, autoreset_mode=mode)


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch):
    """No check ends early because the machine is busy."""
    monkeypatch.setattr(purity, "perf_counter", lambda: 0.0)


@pytest.fixture
def board():
    return new_board()


def act(_):
    return 1


@pytest.fixture
def make_worker(board):
    """Return what makes a worker that renews itself as the loop lets it: with what it was last given."""

    def make(make_env, make_agent=lambda: CallableAgent(act), *, n_envs=None, check="warn"):
        def build():
            worker.update_env(as_env_update(make_env))
            worker.update_agent(make_agent())
            worker.need_environments(n_envs or 1)

        context = context_of(board, check=check, rebuild=build)
        worker: Any = DefaultWorker(context) if n_envs is None else VecWorker(context, n_envs=n_envs)
        build()
        return worker

    return make


def check(worker, before=None):
    return check_purity(worker, 1, TrajectorySeeds(0, 1).of, before or PurityCheck())


INTO = {
    "first observation": "its first observation was ",
    "observation": "its observation after timestep 2 was ",
    "reward": "its reward after timestep 2 was ",
    "terminated": "its terminated after timestep 2 was ",
    "truncated": "its truncated after timestep 2 was ",
    "reset info": "its info 'nested.number' of the reset was 1 and then 3",
    "step info": "its info 'nested.number' after timestep 2 was 1 and then 3",
}
OTHERS = [(env, into) for env in (Wide, Structured) for into in ("first observation", "observation")]


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize(("env_class", "into"), [*((Carrying, into) for into in INTO), *OTHERS])
def test_what_is_carried_into_the_next_trajectory_is_named(make_worker, env_class, into, n_envs):
    outcome = check(make_worker(lambda: env_class(into), n_envs=n_envs))
    assert f"{env_class.__name__} was run twice from the same seed" in outcome.finding
    assert f"trajectory 0 came out differently: {INTO[into]}" in outcome.finding
    assert "its reset must clear the state" in outcome.finding
    assert (outcome.unstable, outcome.spoiled) == ("", True)


class Odd(Carrying):
    """Shows NaN, which is equal to nothing."""

    observation_space = Wide.observation_space

    def shown(self, number):
        return np.full(1000, np.nan)

    def carried(self, what):
        return np.nan if what == "reward" else 0.0


class Shapeless(Carrying):
    """Shows objects that only their attributes tell from each other."""

    def __init__(self):
        super().__init__()
        self.observation_space = KINDS["things"]()

    def shown(self, number):
        return Thing(number, np.zeros(2))


@pytest.mark.parametrize("n_envs", [None, 3])
@pytest.mark.parametrize(
    "env", [Carrying, Shapeless, Wide, Structured, Odd, lambda: gymnasium.wrappers.RecordEpisodeStatistics(Carrying())]
)
def test_nothing_is_found_where_nothing_is_carried(make_worker, env, n_envs):
    outcome = check(make_worker(env, lambda: RandomAgent(spaces.Discrete(2)), n_envs=n_envs))
    assert (outcome.finding, outcome.unstable, outcome.complete, outcome.spoiled) == ("", "", True, False)
    assert outcome.timesteps == 3 * 5 * (n_envs or 1)


@pytest.mark.parametrize(
    ("n_envs", "batched", "tells"), [(None, True, False), (None, False, True), (3, False, False), (3, True, True)]
)
def test_an_agent_that_carries_something_is_named(make_worker, n_envs, batched, tells):
    finding = check(make_worker(Carrying, lambda: Counting(batched, tells), n_envs=n_envs)).finding
    what = "its agent info 'n' at timestep 0" if tells else "its action at timestep 0 was 0 and then 1"
    assert what in finding
    assert "The agent carries state" in finding


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_native_vector_environments(make_worker, mode):
    assert check(make_worker(native(Carrying, mode), n_envs=3)).finding == ""
    finding = check(make_worker(native(lambda: Carrying("reward"), mode), n_envs=3)).finding
    assert "one of trajectories 0 to 2 came out differently: its reward after timestep 2" in finding
    finding = check(make_worker(native(lambda: Carrying("step info")), n_envs=3)).finding
    assert "its info 'nested.number' after timestep 2" in finding


@pytest.mark.parametrize("n_envs", [None, 2])
def test_at_most_200_timesteps_of_a_trajectory_are_compared(make_worker, n_envs):
    made = []
    worker = make_worker(lambda: made.append(Carrying(length=1000)) or made[-1], n_envs=n_envs, check="error")
    outcome = check(worker)
    assert (outcome.complete, outcome.finding) == (True, "")
    assert [env.steps for env in made] == [3 * 200] * (n_envs or 1)
    assert outcome.timesteps == 3 * 200 * (n_envs or 1)


class Clock:
    """Goes on by a sixteenth of a second with each reset and step of its environments."""

    def __init__(self, monkeypatch):
        self.now, self.made = 0.0, []
        monkeypatch.setattr(purity, "perf_counter", lambda: self.now)

    def env(self, into="", on_step=lambda env: None):
        clock = self

        class Slow(Carrying):
            def reset(self, **arguments):
                clock.now += 0.0625
                return super().reset(**arguments)

            def step(self, action):
                clock.now += 0.0625
                on_step(self)
                return super().step(action)

        self.made.append(Slow(into))
        return self.made[-1]


@pytest.mark.parametrize("n_envs", [None, 2])
@pytest.mark.parametrize("mode", ["warn", "error"])
def test_nothing_begins_after_a_fifth_of_a_second_unless_it_is_an_error(make_worker, monkeypatch, n_envs, mode):
    clock = Clock(monkeypatch)
    outcome = check(make_worker(lambda: clock.env("reward"), n_envs=n_envs, check=mode))
    assert outcome.complete
    if mode == "error":
        assert "its reward" in outcome.finding
    else:
        assert outcome.finding == ""
        # 0.0625, 0.125, 0.1875, 0.25: the fourth began before 0.2 seconds were over.
        assert sum(env.resets + env.steps for env in clock.made) == 4
        assert (outcome.seconds, outcome.spoiled) == (0.25, False)


def test_a_version_that_is_not_wanted_breaks_it_off_and_it_goes_on_with_the_time_left(make_worker, board, monkeypatch):
    clock = Clock(monkeypatch)
    worker = make_worker(lambda: clock.env(on_step=lambda env: env.steps == 1 and board.abandon_older(NEVER_AGAIN)))
    first = check(worker)
    assert (first.complete, first.timesteps, first.seconds) == (False, 2, 0.1875)
    board.abandon_older(1)
    second = check(worker, first)
    # There was time for one more reset.
    assert (second.complete, second.timesteps, second.seconds, second.finding) == (True, 0, 0.25, "")
    assert check(worker, second).timesteps == 0
    # Another kind of environment has time of its own.
    assert check(worker, PurityCheck("another", complete=False, seconds=1.0)).timesteps == 3


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

    def fail(_):
        raise ValueError

    for mode in ("warn", "error"):
        acting = CallableAgent(fail if place == "action" else act)
        outcome = check(make_worker(Raising, lambda acting=acting: acting, n_envs=n_envs, check=mode))
        assert (outcome.finding, outcome.complete, outcome.spoiled) == ("", True, True)


class ReadsAClock(Carrying):
    """Each of its environments tells another time, in each of its trajectories."""

    clock = 0

    def step(self, action):
        ReadsAClock.clock += 1
        *rest, info = super().step(action)
        return *rest, info | {"time": {"spent": ReadsAClock.clock}}


@pytest.mark.parametrize("n_envs", [None, 3])
def test_what_is_read_off_a_clock_is_no_memory_and_is_named_next_to_memory(make_worker, n_envs):
    outcome = check(make_worker(ReadsAClock, n_envs=n_envs))
    assert outcome.finding == ""
    assert "ReadsAClock was made twice and run from the same seed, and its info 'time.spent' differed" in (
        outcome.unstable
    )
    assert outcome.spoiled
    outcome = check(make_worker(lambda: ReadsAClock("step info"), n_envs=n_envs))
    assert "its info 'nested.number' after timestep 2" in outcome.finding
    assert "'time.spent'" in outcome.unstable
    assert "number" not in outcome.unstable
