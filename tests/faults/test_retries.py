"""Retries end: what fails the same way whenever it is tried is an error, also where no number bounds the losses."""

import functools
import os
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import slow
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.tiers import mostly_slow

NONE = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}


class Doomed(ScriptedEnv):
    """Fails in the third step of every fourth seed, with another message each time; or where it is made."""

    def __init__(self, how, where):
        super().__init__()
        self.how, self.where, self.n = how, where, 0
        if where == "make":
            self.fail()

    def fail(self):
        if self.how == "exit":
            os._exit(3)
        raise OSError(f"attempt of process {os.getpid()}")

    def reset(self, *, seed=None, options=None):
        self.n, self.is_doomed = 0, seed is not None and seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.n += 1
        if self.where == "step" and self.is_doomed and self.n == 3:
            self.fail()
        return super().step(action)


def first_doomed():
    with LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED) as sampler:
        return next(index for index in range(100) if sampler.seeds(1, [index])[0] % 4 == 0)


PROCESSES: dict[str, Any] = {"n_workers": 2}
PARENT: dict[str, Any] = {"inference": "parent", "worker_args": {"n_envs": 3}}
KINDS: dict[str, Any] = {
    "local": (LocalSampler, {}),
    "processes": (MultiprocessingSampler, PROCESSES),
    "queues": (MultiprocessingSampler, PROCESSES | {"engine": "queues", "start_method": "fork"}),
    "side by side": (MultiprocessingSampler, PROCESSES | {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}),
    "parent": (MultiprocessingSampler, PROCESSES | PARENT),
    "parent of queues": (MultiprocessingSampler, PROCESSES | PARENT | {"engine": "queues", "start_method": "fork"}),
}


def doomed(kind, how, where, quotas):
    cls, options = KINDS[kind]
    env = functools.partial(Doomed, how, where)
    return cls(ScriptedAgent(), env, seed=SEED, restart_on=OSError, check=None, **options, **quotas)


@pytest.mark.parametrize(
    "kind", ["local", "processes", *map(slow, ("queues", "side by side", "parent", "parent of queues"))]
)
@pytest.mark.parametrize(
    ("quotas", "n", "said"),
    mostly_slow(
        [
            (NONE, 3, "that is 3 equal losses of trajectory {}, which max_restarts=None does not retry forever"),
            (
                {"max_restarts": 4, "limits": Limits(max_lifetime_restarts=None)},
                5,
                "that is 5 losses within 60 s, and max_restarts is 4",
            ),
            (
                {"max_restarts": None, "limits": Limits(max_lifetime_restarts=5)},
                6,
                r"that is 6 losses in all, and limits\.max_lifetime_restarts",
            ),
        ]
    ),
)
def test_an_exception_that_is_a_function_of_the_seed_ends_the_call_and_a_number_is_obeyed(kind, quotas, n, said):
    index = first_doomed()
    with doomed(kind, "raise", "step", quotas) as sampler:
        match = f"(?s)trajectory {index} of agent version 1.*attempt of process.*{said.format(index)}"
        with pytest.raises(RolloutError, match=match) as caught:
            sampler.obtain_trajectories(40)
        assert caught.value.trajectory == index
        # Beyond the batch's next trajectory nothing is decided: others have failed too, and do not count.
        assert len(caught.value.incidents) == n


@pytest.mark.parametrize(
    "kind", ["local", "processes", *map(slow, ("queues", "side by side", "parent", "parent of queues"))]
)
def test_a_worker_that_never_becomes_ready_ends_the_call(kind):
    match = r"(?s)making the environment.*that is 3 equal losses of worker \d before it became ready"
    with doomed(kind, "raise", "make", NONE) as sampler, pytest.raises(RolloutError, match=match):
        sampler.obtain_trajectories(4)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "make"])
@pytest.mark.parametrize("kind", ["processes", "queues", "side by side"])
def test_a_process_that_always_ends_itself_at_the_same_place_ends_the_call(kind, where):
    of = r"trajectory \d+" if where == "step" else r"worker \d before it became ready"
    match = rf"(?s)exit code 3 while.*that is 3 equal losses of {of}"
    with doomed(kind, "exit", where, NONE) as sampler, pytest.raises(WorkerDiedError, match=match):
        sampler.obtain_trajectories(40)


def test_losses_that_differ_or_come_from_outside_end_no_call(tmp_path):
    """Twice the same exception in each of two trajectories, and nine kills in a third one."""
    twice = [Fault("raise", trajectory=index, step=3, times=2) for index in (1, 4)]
    kills = Fault("kill", trajectory=6, step=2, times=9)
    faults = Faults(tmp_path, *twice, kills, seed=SEED)
    options: dict[str, Any] = {"n_workers": 2, "seed": SEED, "restart_on": Exception, **NONE}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        assert calls(sampler, 2) == undisturbed(2)
        assert faults.fired() == 13
