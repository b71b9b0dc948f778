"""Environments that draw from the process's global generators are found out, and have states of their own then."""

import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler
from streamsampler.errors import UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting
from tests.stepping.test_restores import kill


class Drawing(gymnasium.Env):
    """Draws in its reset, in its steps, or in neither; ends after four timesteps."""

    observation_space = spaces.Box(0, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, in_reset=True, in_steps=True):
        self.in_reset, self.in_steps = in_reset, in_steps

    def _draw(self, draws):
        return np.array([random.random(), np.random.random()]) if draws else np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self._draw(self.in_reset), {}

    def step(self, action):
        self.n += 1
        return self._draw(self.in_steps), 0.0, self.n == 4, False, {}


def stream_of(manager, n_steps=14, at_step=None):
    with manager:
        seen = [manager.reset().observations.tolist()]
        for number in range(n_steps):
            if at_step is not None:
                at_step(manager, number)
            seen.append(manager.step(np.zeros(manager.n_envs, np.int64)).observations.tolist())
    return seen


def managers(envs, **options):
    options = {"n_envs": 4, "seed": 3, **options}
    yield SerialEnvManager(envs, **options)
    for n_workers in (1, 3):
        yield EnvManager(envs, n_workers=n_workers, **options)


def messages(caplog):
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize("autoreset", ["next_step", pytest.param("same_step", marks=pytest.mark.slow)])
def test_what_draws_in_its_reset_is_the_same_everywhere(autoreset, caplog):
    """It is found out before another environment could draw."""
    streams = []
    for manager in managers(Drawing, autoreset=autoreset):
        streams.append(stream_of(manager))
        (message,) = messages(caplog)
        assert "(Drawing) draws from a global generator" in message
        assert "own_generators=True" in message
    assert streams[1:] == streams[:1] * 2
    drawn = np.unique(np.array(streams[0]))
    assert drawn.size == np.array(streams[0]).size


def test_the_data_are_those_of_a_sampler():
    with LocalSampler("random", Drawing, seed=3) as sampler:
        batch = sampler.obtain_trajectories(4)
    with SerialEnvManager(Drawing, n_envs=4, seed=0, own_generators=True) as manager:
        seen = [manager.reset(seed=list(batch.seeds)), *(manager.step(np.zeros(4, np.int64)) for _ in range(4))]
    for index in range(4):
        observed = [steps.observations[index].tolist() for steps in seen]
        assert observed[:-1] == batch[index].observations.tolist()
        assert observed[-1] == batch[index].last_observations[0].tolist()


def test_what_draws_in_its_steps_alone_is_the_same_with_states_of_its_own(caplog):
    streams = [stream_of(it) for it in managers(lambda: Drawing(in_reset=False), own_generators=True)]
    assert streams[1:] == streams[:1] * 2
    assert messages(caplog) == []


@pytest.mark.parametrize("kind", ["serial", "processes", pytest.param("one process", marks=pytest.mark.slow)])
def test_what_draws_in_its_steps_alone_is_found_out(kind, caplog):
    """At the end of its first episode it is known that something drew, at that of the second one what it was."""
    envs = [lambda: Counting2(), lambda: Drawing(in_reset=False), lambda: Counting2(), lambda: Drawing(in_reset=False)]
    stream = stream_of(MANAGERS[kind](envs, n_envs=4, seed=3), n_steps=24)
    (message,) = messages(caplog)
    assert "environment 1 (Drawing)" in message or "environment 3 (Drawing)" in message
    own = stream_of(MANAGERS[kind](envs, n_envs=4, seed=3, own_generators=True), n_steps=24)
    assert stream[-4:] == own[-4:]


class Counting2(Drawing):
    """Draws nothing."""

    def __init__(self):
        super().__init__(in_reset=False, in_steps=False)


def test_what_draws_is_restored(caplog):
    stream = stream_of(EnvManager(Drawing, n_envs=4, n_workers=2, seed=3))
    killed = stream_of(
        EnvManager(Drawing, n_envs=4, n_workers=2, seed=3), at_step=lambda it, number: number in (2, 9) and kill(it, 0)
    )
    assert killed == stream
    assert len(messages(caplog)) == 2  # one for each manager, and nothing that was not restored


def test_the_callers_own_states_are_preserved():
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    stream_of(SerialEnvManager(Drawing, n_envs=2, seed=3))
    assert (random.random(), np.random.random()) == expected


def test_a_caller_that_draws_is_not_taken_for_an_environment(caplog):
    with SerialEnvManager(Counting, n_envs=2, seed=3) as manager:
        manager.reset()
        for _ in range(9):
            random.random()
            manager.step(np.array([1, 1]))
            np.random.random()
            manager.get_attr("level")
    assert messages(caplog) == []


@pytest.mark.parametrize("value", [1, "yes", None])
def test_arguments_that_cannot_work(value):
    with pytest.raises(UsageError, match="own_generators must be True or False"):
        SerialEnvManager(Counting, n_envs=1, own_generators=value)


class FailsOnce(Drawing):
    """Raises whenever a method is called for the first time with a seed, or in an episode."""

    def __init__(self, method, draws):
        super().__init__(in_reset=draws, in_steps=draws)
        self.method = method

    def reset(self, *, seed=None, options=None):
        self.failing = seed not in SEEN
        SEEN.add(seed)
        if self.failing and self.method == "reset":
            raise RuntimeError("once")
        return super().reset(seed=seed)

    def step(self, action):
        if self.failing and self.method == "step":
            raise RuntimeError("once")
        return super().step(action)


SEEN: set[int | None] = set()


@pytest.mark.parametrize(("method", "draws"), [("reset", False), ("step", True)])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_another_that_raises_makes_nobody_seem_to_draw(method, draws, autoreset, caplog):
    SEEN.clear()
    envs = [lambda: FailsOnce(method, draws), lambda: Drawing(False, False)]
    with SerialEnvManager(envs, n_envs=2, seed=0, autoreset=autoreset) as manager:
        manager.reset()
        for _ in range(12):
            manager.step(np.zeros(2, np.int64))
        assert manager.failures > 1
    assert ["environment 1" in message for message in messages(caplog)] == [False] * draws
