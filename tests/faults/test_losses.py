"""Workers that die in the middle of a call: what was lost is run again, and nothing shows in the batch."""

import contextlib
import functools
import os
import signal
import threading
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.environments.updates import as_env_update
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from streamsampler.testing.scripted import N_ACTIONS
from tests.faults.conftest import slow
from tests.faults.test_ends import gone
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def kill_all(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("shape", [(2,), (2_000,)])
def test_all_workers_dead_at_once(tmp_path, shape):
    faults = Faults(tmp_path, Fault("hang", "step", step=2, times=3))
    envs = faults.env(functools.partial(ScriptedEnv, shape=shape))
    with MultiprocessingSampler(ScriptedAgent(), envs, n_workers=3, seed=SEED) as sampler:
        pids = sampler.worker_pids()

        def kill_when_all_hang():
            faults.wait(3, PATIENCE)
            kill_all(pids)

        helper = in_another_thread(kill_when_all_hang)
        assert calls(sampler) == undisturbed(shape=shape)
        helper.join()
        assert 1 <= sampler.stats.restarts <= 3  # as many as there was work for
        assert set(faults.pids()) == set(pids)


@pytest.mark.parametrize("where", ["agent_update", "close", "construct", "agent_construct"])
def test_a_death_in_an_update(tmp_path, where):
    """The worker in its place is brought up to date before anything else."""
    faults = Faults(tmp_path, Fault("kill", where))
    env = faults.env(ScriptedEnv)
    with MultiprocessingSampler(faults.agent(ScriptedAgent()), env, n_workers=2, seed=SEED) as sampler:
        assert calls(sampler, 2, env_update=env) == undisturbed(2)
        assert faults.fired() == 1


def test_an_update_while_workers_are_restarted():
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=3, seed=SEED) as sampler:
        batches = []
        for call in range(3):
            pids = sampler.worker_pids()
            kill_all(pids[call:])
            if call == 1:  # else some of them die while the update is on its way
                assert gone(pids[call:])
            batches.append(sampler.obtain_trajectories(8, agent_update={"offset": call}))
        assert batches == undisturbed(3)


def test_several_deaths_of_several_kinds_in_one_call(tmp_path):
    kinds = ["kill", "abort", "exit", "kill", "kill"]
    faults = Faults(
        tmp_path,
        *(Fault(kind, trajectory=2 * index, step=index + 1) for index, kind in enumerate(kinds)),  # type: ignore[arg-type]
        Fault("kill", "reset", trajectory=9),
        Fault("kill", "action", trajectory=11, step=4),
        seed=SEED,
    )
    agents, envs = faults.agent(ScriptedAgent()), faults.env(ScriptedEnv)
    with MultiprocessingSampler(agents, envs, n_workers=3, seed=SEED) as sampler:
        assert calls(sampler, 1, 12) == undisturbed(1, 12)
        assert faults.fired() == 7
        assert sampler.stats.kept_trajectories == 12


def test_one_that_was_slow_and_died_is_replaced_by_the_next_call():
    """What is known of its speed is not known of its successor's."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED) as sampler:
        first = calls(sampler)
        pids = sampler.worker_pids()
        sampler._session.throughput.add([5], 1_000.0, 1)
        os.kill(pids[1], signal.SIGKILL)
        assert gone(pids[1:])
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert sampler.worker_pids()[0] == pids[0]
        assert sampler.stats.restarts == 1


def test_two_samplers_at_once(tmp_path):
    """In threads of their own, each with deaths; none counts in the other sampler."""
    all_faults = [Faults(tmp_path / name, Fault("kill", times=3)) for name in "ab"]
    batches = {}

    def life(name, faults):
        with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), n_workers=2, seed=SEED) as sampler:
            batches[name] = calls(sampler, 3)

    lives = [in_another_thread(functools.partial(life, *item)) for item in enumerate(all_faults)]
    for thread in lives:
        thread.join()
    assert batches == {0: undisturbed(3), 1: undisturbed(3)}
    assert [faults.fired() for faults in all_faults] == [3, 3]


@pytest.mark.slow
def test_two_samplers_whose_streams_interleave(tmp_path):
    faults = Faults(tmp_path, Fault("kill", trajectory=2), Fault("kill", trajectory=5), seed=SEED)

    def make(envs):
        return MultiprocessingSampler(ScriptedAgent(), envs, n_workers=2, seed=SEED)

    with make(faults.env(ScriptedEnv)) as first, make(ScriptedEnv) as second:
        streams = [first.stream(), second.stream()]
        pairs = [[next(stream) for stream in streams] for _ in range(8)]
        assert all(one == other for one, other in pairs)
        assert [one for one, _ in pairs] == list(undisturbed()[0])
        for stream in streams:
            stream.close()
        assert second.stats.restarts == 0
    assert faults.fired() == 2


def test_deaths_of_workers_with_several_environments(tmp_path):
    """What is lost there is a whole block, or what of it the ticket had; it is run again as it was."""
    options: dict[str, Any] = {"seed": SEED, "worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
    with LocalSampler(ScriptedAgent(), ScriptedEnv, **options) as local:
        reference = calls(local, 2, 20)
    faults = Faults(
        tmp_path,
        Fault("kill", trajectory=4, step=2),
        Fault("abort", trajectory=13, step=5),
        Fault("exit", "reset", trajectory=7, version=2),
        seed=SEED,
    )
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), n_workers=2, **options) as sampler:
        assert calls(sampler, 2, 20) == reference
    assert faults.fired() == 3


class Rows(ScriptedAgent):
    """Draws for each row from its trajectory's own stream."""

    row_independent = True

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        assert len(observations) == draws.n_rows
        actions = (draws.random() * N_ACTIONS).astype(int) + self.get_param_values()["offset"]
        return actions % N_ACTIONS, {"drawn": draws.normal(2)}


@pytest.mark.parametrize("n_workers", [slow(1), slow(2), 3, slow(7)])
@pytest.mark.slow
def test_deaths_of_workers_that_run_lanes(tmp_path, n_workers):
    """Rows that run trajectories of later tickets are lost as well: all of them are run again as they were."""
    options: dict[str, Any] = {"seed": SEED, "worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    with LocalSampler(Rows(), ScriptedEnv, **options) as local:
        reference = calls(local, 2, 40)
    faults = Faults(
        tmp_path,
        Fault("kill", trajectory=4, step=2),
        Fault("kill", trajectory=26, step=1),
        Fault("kill", "reset", trajectory=31, version=2),
        seed=SEED,
    )
    with MultiprocessingSampler(Rows(), faults.env(ScriptedEnv), n_workers=n_workers, **options) as sampler:
        assert calls(sampler, 2, 40) == reference
    assert faults.fired() == 3


class Vectorised:
    """Makes three environments that are stepped together, in an autoreset mode."""

    def __init__(self, update, mode):
        self.update, self.mode = update, mode

    def __call__(self):
        return SyncVectorEnv([functools.partial(self.update, None)] * 3, autoreset_mode=AutoresetMode[self.mode])


@pytest.mark.parametrize(
    ("mode", "n_workers"), [("DISABLED", 3), slow("NEXT_STEP", 1), slow("SAME_STEP", 2), slow("NEXT_STEP", 7)]
)
@pytest.mark.slow
def test_deaths_of_workers_with_a_native_vector_environment(tmp_path, mode, n_workers):
    options: dict[str, Any] = {"seed": SEED, "worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
    make = functools.partial(ScriptedEnv, (2, 7))
    with LocalSampler(ScriptedAgent(), Vectorised(as_env_update(make), mode), **options) as local:
        reference = calls(local, 2, 20)
    faults = Faults(
        tmp_path,
        Fault("kill", trajectory=1, step=1),
        Fault("kill", trajectory=8, step=1),
        Fault("kill", "reset", trajectory=6, version=2),
        seed=SEED,
    )
    env = Vectorised(faults.env(make), mode)
    with MultiprocessingSampler(ScriptedAgent(), env, n_workers=n_workers, **options) as sampler:
        assert calls(sampler, 2, 20) == reference
    assert faults.fired() == 3
