"""Programs that are drawn at random, in processes that are killed: the same results as in an undisturbed twin."""

import contextlib
import functools
import os
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamsampler import Limits
from streamsampler.errors import UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.proofs.restores import World, worlds
from tests.proofs.restores import run as run_world
from tests.stepping.environments import Counting

N_ENVS = 3
KINDS = ["send", "send", "recv", "reset", "step", "busy", "kill"]
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**N_ENVS - 1), st.one_of(st.none(), st.integers(0, 6)))
LED_THERE = ("actions", "previous_observations")  # which rows of resets have not
FIELDS = (
    "episodes", "timesteps", "observations", "last_observations", "rewards", "terminated", "truncated", "failed",
    "seeds", *LED_THERE,
)  # fmt: skip


class Program:
    """Runs the calls of a program in both managers."""

    def __init__(self, dying: EnvManager, alone: SerialEnvManager) -> None:
        self.dying, self.alone = dying, alone
        self.reset([0, 1, 2], 7)

    def compare(self, steps: Any) -> None:
        expected = self.alone.recv_from(steps.env_ids)
        for name in FIELDS:
            rows = steps.timesteps > 0 if name in LED_THERE else slice(None)
            assert getattr(steps, name)[rows].tolist() == getattr(expected, name)[rows].tolist(), name
        assert not steps.failed.any()

    def _send(self, chosen: Any, action: Any) -> list[int]:
        ready = [env_id for env_id in chosen if env_id in self.dying.ready]
        self.alone.send(np.full(len(ready), action or 0), ready)
        return ready

    def send(self, chosen: Any, action: Any) -> None:
        ready = self._send(chosen, action)
        self.dying.send(np.full(len(ready), action or 0), ready)

    def step(self, chosen: Any, action: Any) -> None:
        ready = self._send(chosen, action)
        self.compare(self.dying.step(np.full(len(ready), action or 0), ready))

    def recv(self, chosen: Any, _: Any) -> None:
        n_open = N_ENVS - len(self.dying.ready)
        if not n_open:
            with pytest.raises(UsageError, match="nothing to receive"):
                self.dying.recv()
            return
        steps = self.dying.recv(min_envs=max(1, len(chosen)))
        assert max(1, min(len(chosen), n_open)) <= len(steps) == len(set(steps.env_ids.tolist()))
        self.compare(steps)

    def reset(self, chosen: Any, first_seed: Any) -> None:
        seeds = None if first_seed is None else [first_seed + env_id for env_id in chosen]
        self.alone.async_reset(chosen, seed=seeds)
        self.compare(self.dying.reset(chosen, seed=seeds))

    def busy(self, chosen: Any, _: Any) -> None:
        if set(chosen) - set(self.dying.ready):
            with pytest.raises(UsageError, match="does not wait for an action"):
                self.dying.send(np.zeros(len(chosen), np.int64), chosen)

    def kill(self, chosen: Any, _: Any) -> None:
        """Kill the worker of an environment, whatever it is doing: nothing of it shows."""
        pid = self.dying.worker_pids()[0 if chosen and chosen[0] == 0 else 1]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and the manager has not looked since
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def both():
    options: dict[str, Any] = {
        "n_envs": N_ENVS,
        "seed": 0,
        "max_restarts": None,
        "limits": Limits(max_lifetime_restarts=None),
    }
    with (
        EnvManager(functools.partial(Counting, 3), n_workers=2, **options) as dying,
        SerialEnvManager(functools.partial(Counting, 3), **options) as alone,
    ):
        yield dying, alone


@pytest.mark.slow
@given(program=st.lists(STEPS, max_size=25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_programs(both, program):
    running = Program(*both)
    for kind, mask, value in program:
        getattr(running, kind)([env_id for env_id in range(N_ENVS) if mask >> env_id & 1], value)
        assert sorted(both[0].ready) == sorted(both[1].ready)
    running.recv(range(N_ENVS), None)
    assert both[0].stats.not_restored == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [World("maze", "same_step", 3, 1, "steps", 1), *(pytest.param(it, marks=pytest.mark.slow) for it in worlds(12))],
    ids=str,
)
def test_streams_are_functions_of_seed_and_actions(world):
    """In each mode with each number of workers, of nested data; actions depend on what was seen."""
    n_kills, n_losses = run_world(world)
    assert 0 < n_losses <= n_kills
