"""Programs of sends, receipts and resets, drawn at random, against a model of a few lines: for both managers."""

import contextlib
import functools
import os
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamsampler.errors import UsageError
from streamsampler.stepping.episodes import EpisodeSeeds
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.environments import Counting

N_ENVS, LENGTH = 3, 3
MASKS = st.integers(0, 2**N_ENVS - 1)
STEPS = st.one_of(
    st.tuples(st.just("send"), MASKS, st.integers(0, 8)),
    st.tuples(st.just("send"), MASKS, st.integers(0, 8)),
    st.tuples(st.just("recv"), MASKS, st.none()),
    st.tuples(st.just("reset"), MASKS, st.one_of(st.none(), st.integers(0, 99))),
    st.tuples(st.just("step"), MASKS, st.integers(0, 8)),
    st.tuples(st.just("busy"), MASKS, st.none()),
)
DEATHS = st.one_of(STEPS, STEPS, st.tuples(st.just("kill"), MASKS, st.none()))


class Model:
    """What each environment's next result must be: its episode, timestep, observation, reward and end."""

    def __init__(self, first_episodes):
        self.seeds = EpisodeSeeds(0, N_ENVS)
        self.upcoming = self.seeds.restart(range(N_ENVS), 7)
        self.episodes = [episode - 1 for episode in first_episodes]
        self.now: list[Any] = [(0, 0)] * N_ENVS  # the seed of the episode, and its timesteps
        self.open: dict[int, Any] = dict.fromkeys(range(N_ENVS), "reset")  # or an action

    def ready(self):
        return [env_id for env_id in range(N_ENVS) if env_id not in self.open]

    def expected(self, env_id):
        """Return an environment's result, which is handed out."""
        action = self.open.pop(env_id)
        seed, t = self.now[env_id]
        if action == "reset" or t == LENGTH:
            self.now[env_id] = self.upcoming[env_id], 0
            self.upcoming[env_id] = self.seeds.next(env_id)
            self.episodes[env_id] += 1
            action = 0
        else:
            self.now[env_id] = seed, t + 1
        seed, t = self.now[env_id]
        return self.episodes[env_id], t, [seed, t], float(action), t == LENGTH

    def check(self, steps):
        for row, env_id in enumerate(steps.env_ids.tolist()):
            found = (
                steps.episodes[row], steps.timesteps[row], steps.observations[row].tolist(), steps.rewards[row],
                steps.terminated[row],
            )  # fmt: skip
            assert found == self.expected(env_id), env_id
        assert not steps.failed.any()
        assert not steps.truncated.any()


class Program:
    """Runs the calls of a program on a manager and on the model."""

    def __init__(self, manager):
        self.manager = manager
        first = manager.reset(seed=7)
        self.model = Model(first.episodes.tolist())
        self.model.check(first)

    def send(self, chosen, action):
        ready = self._send(chosen, action)
        self.manager.send(np.full(len(ready), action), ready)

    def step(self, chosen, action):
        ready = self._send(chosen, action)
        self.model.check(self.manager.step(np.full(len(ready), action), ready))

    def _send(self, chosen, action):
        ready = [env_id for env_id in chosen if env_id in self.model.ready()]
        self.model.open.update(dict.fromkeys(ready, action))
        return ready

    def recv(self, chosen, _):
        if not self.model.open:
            with pytest.raises(UsageError, match="nothing to receive"):
                self.manager.recv()
            return
        least = max(1, min(len(chosen), len(self.model.open)))
        steps = self.manager.recv(min_envs=max(1, len(chosen)))
        assert least <= len(steps) == len(set(steps.env_ids.tolist()))
        self.model.check(steps)

    def reset(self, chosen, first_seed):
        seeds = None if first_seed is None else [first_seed + env_id for env_id in chosen]
        if seeds is not None:
            self.model.upcoming.update(self.model.seeds.restart(chosen, seeds))
        self.model.open.update(dict.fromkeys(chosen, "reset"))
        self.model.check(self.manager.reset(chosen, seed=seeds))

    def kill(self, chosen, _):
        """Kill the worker of an environment, whatever it is doing: nothing of it shows."""
        pid = self.manager.worker_pids()[0 if chosen and chosen[0] == 0 else 1]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and the manager has not looked since
                os.kill(pid, signal.SIGKILL)

    def busy(self, chosen, _):
        if set(chosen) & self.model.open.keys():
            with pytest.raises(UsageError, match="awaits no action"):
                self.manager.send(np.zeros(len(chosen), np.int64), chosen)


def run(manager, program):
    running = Program(manager)
    for kind, mask, value in program:
        getattr(running, kind)([env_id for env_id in range(N_ENVS) if mask >> env_id & 1], value)
        assert sorted(manager.ready) == running.model.ready()
    if running.model.open:
        running.model.check(manager.recv(min_envs=N_ENVS))


def trying(n):
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=n, deadline=None, suppress_health_check=checks, derandomize=True, database=None)


ENVS = functools.partial(Counting, LENGTH)


@trying(60)
@given(program=st.lists(STEPS, max_size=25))
def test_in_this_process(program):
    with SerialEnvManager(ENVS, n_envs=N_ENVS, seed=0) as manager:
        run(manager, program)


@pytest.fixture(scope="module")
def processes():
    with EnvManager(ENVS, n_envs=N_ENVS, n_workers=2, seed=0) as manager:
        yield manager


@trying(15)
@given(program=st.lists(STEPS, max_size=25))
def test_in_processes(processes, program):
    run(processes, program)


@pytest.fixture(scope="module")
def dying():
    with EnvManager(ENVS, n_envs=N_ENVS, n_workers=2, seed=0, max_restarts=None) as manager:
        yield manager


@trying(10)
@given(program=st.lists(DEATHS, max_size=25))
def test_in_processes_that_are_killed(dying, program):
    run(dying, program)


@pytest.mark.slow
@trying(300)
@given(program=st.lists(DEATHS, max_size=60))
def test_in_processes_that_are_killed_for_long(dying, program):
    run(dying, program)
    assert dying.stats.not_restored == 0


@pytest.mark.slow
@trying(1500)
@given(program=st.lists(STEPS, max_size=60))
def test_in_processes_for_long(processes, program):
    run(processes, program)


@pytest.mark.slow
@trying(1500)
@given(program=st.lists(STEPS, max_size=60))
def test_in_this_process_for_long(program):
    with SerialEnvManager(ENVS, n_envs=N_ENVS, seed=0) as manager:
        run(manager, program)
