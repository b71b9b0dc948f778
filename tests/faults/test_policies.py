"""How many losses a sampler replaces, and its error when there are too many."""

import functools
import os
import pickle
import re

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerHungError
from streamsampler.testing import Fault, Faults, InjectedError, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import kill_only_hung, slow
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


# One worker: of two, the other one may run a trajectory a second time before a death is noticed.
def make(faults, n_workers=1, env=ScriptedEnv, **options):
    return MultiprocessingSampler(ScriptedAgent(), faults.env(env), n_workers=n_workers, seed=SEED, **options)


def second_call(sampler):
    return sampler.obtain_trajectories(8, agent_update={"offset": 1}) == undisturbed(2)[1]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("kind", "words", "exitcode"),
    [
        ("kill", "SIGKILL", -9),
        slow("abort", "SIGABRT", -6),
        slow("exit", "exit code 7", 7),
    ],
)
def test_too_many_deaths_are_an_error_that_names_the_cause(tmp_path, kind, words, exitcode):
    faults = Faults(tmp_path, Fault(kind, trajectory=3, times=2), seed=SEED)
    with make(faults, max_restarts=1) as sampler:
        with pytest.raises(WorkerDiedError, match=words) as caught:
            calls(sampler)
        error = caught.value
        assert (error.exitcode, error.phase, error.trajectory) == (exitcode, "stepping the environment", 3)
        assert [incident.trajectory for incident in error.incidents] == [3, 3]
        assert [incident.exitcode for incident in error.incidents] == [exitcode] * 2
        assert str(error).count(words) >= 2, "the whole history"
        assert pickle.loads(pickle.dumps(error)).incidents == error.incidents
        assert second_call(sampler)
    assert faults.fired() == 2


@pytest.mark.parametrize(
    ("quota", "n_replaced"),
    [
        slow({}, 10),
        ({"max_restarts": 3}, 3),
        ({"max_restarts": 0}, 0),
        ({"max_restarts": None, "max_lifetime_restarts": 2}, 2),
        ({"max_restarts": 4, "restart_window": None}, 4),
    ],
    ids=str,
)
def test_quotas(tmp_path, quota, n_replaced):
    faults = Faults(tmp_path, Fault("kill", trajectory=2, times=n_replaced + 1), seed=SEED)
    with make(faults, **quota) as sampler:
        with pytest.raises(WorkerDiedError) as caught:
            calls(sampler)
        assert len(caught.value.incidents) == faults.fired() == n_replaced + 1
        assert second_call(sampler)


@pytest.mark.slow
def test_no_quota(tmp_path):
    faults = Faults(tmp_path, Fault("kill", trajectory=2, times=12), seed=SEED)
    with make(faults, max_restarts=None, max_lifetime_restarts=None) as sampler:
        assert calls(sampler) == undisturbed()
    assert faults.fired() == 12


@pytest.mark.slow
def test_too_many_hangs_are_an_error_that_shows_where(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
    monkeypatch.setattr(stacks, "_SILENCE_SECONDS", 1.0)
    faults = Faults(tmp_path, Fault("hang_gil", trajectory=3), seed=SEED)
    with make(faults, max_restarts=0, step_timeout=0.4) as sampler:
        kill_only_hung(sampler, faults.pids)
        with pytest.raises(WorkerHungError, match=re.escape("stepping the environment in trajectory 3")) as caught:
            calls(sampler)
        assert "_hang_gil" in caught.value.stack
        assert "_hang_gil" in str(caught.value.__cause__)
        assert second_call(sampler)


@pytest.mark.parametrize("where", ["step", "construct"])
def test_workers_that_raise_a_named_exception_are_replaced(tmp_path, where):
    trajectory = None if where == "construct" else 5
    faults = Faults(tmp_path, Fault("raise", where, trajectory=trajectory), seed=SEED)
    with make(faults, restart_on=(InjectedError,)) as sampler:
        assert calls(sampler, 2) == undisturbed(2)
    assert faults.fired() == 1


def test_named_exceptions_have_a_quota_too(tmp_path):
    faults = Faults(tmp_path, Fault("raise", trajectory=5, times=3), seed=SEED)
    with make(faults, restart_on=(InjectedError,), max_restarts=2) as sampler:
        with pytest.raises(RolloutError, match="injected in step") as caught:
            calls(sampler)
        assert len(caught.value.incidents) == faults.fired() == 3
        assert second_call(sampler)


def test_other_exceptions_are_raised_at_once(tmp_path):
    faults = Faults(tmp_path, Fault("raise", trajectory=5), seed=SEED)
    with make(faults, restart_on=(OSError,)) as sampler:
        with pytest.raises(RolloutError, match="injected in step"):
            calls(sampler)
        assert second_call(sampler)


@pytest.mark.slow
def test_a_worker_that_leaks_is_replaced_between_tickets(tmp_path):
    """Each leak is so large that the worker may keep two of them, and not three."""
    leak, n_leaks = 60 << 20, 12
    faults = Faults(tmp_path, Fault("leak", times=n_leaks, n_bytes=leak))
    slow = functools.partial(ScriptedEnv, seconds=0.002)  # several tickets a call: each answer reports the memory
    with make(faults, env=slow, max_worker_memory=private_memory() + 3 * leak) as sampler:
        batches = calls(sampler, 4)
        assert batches == undisturbed(4)
        assert faults.fired() == n_leaks
        assert sampler.stats.replaced >= 2
        assert sampler.stats.restarts <= sampler.stats.replaced
        assert sampler.stats.failed_trajectories == 0


def private_memory():
    """What this process has, which is more than a worker that is new."""
    with open("/proc/self/statm") as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def test_a_limit_that_no_worker_can_keep_gives_a_warning(tmp_path, caplog):
    with make(Faults(tmp_path), max_worker_memory=1000) as sampler:
        assert calls(sampler, 2) == undisturbed(2)
        assert sampler.stats.replaced > 0
    assert [record.getMessage() for record in caplog.records if "all the time" in record.getMessage()]
