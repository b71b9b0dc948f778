"""The public test kit: each fault happens where it was said, as often as it was said, in whatever process."""

import faulthandler
import os
import pickle
import re
import signal
import threading

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.environments.updates import ExistingEnvUpdate
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import FailPoint, Fault, Faults, InjectedError, ScriptedAgent, ScriptedEnv
from streamsampler.testing.faults import EXIT_CODE, _leaked

SEED = 5


def local(faults, agent=None, env=ScriptedEnv, **options):
    return LocalSampler(agent or ScriptedAgent(), faults.env(env), seed=SEED, **options)


def undisturbed(n):
    with LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED) as sampler:
        return sampler.obtain_trajectories(n)


@pytest.mark.parametrize(("where", "trajectory"), [("reset", 3), ("step", 0), ("agent_reset", 0), ("action", 3)])
def test_a_fault_in_a_trajectory(tmp_path, where, trajectory):
    faults = Faults(tmp_path, Fault("raise", where, trajectory=trajectory, step=2, version=2), seed=SEED)
    with local(faults, faults.agent(ScriptedAgent())) as sampler:
        assert sampler.obtain_trajectories(5) == undisturbed(5)
        assert faults.fired() == 0
        with pytest.raises(RolloutError, match=f"injected in {where}") as caught:
            sampler.obtain_trajectories(5)
        assert caught.value.trajectory == trajectory
        assert isinstance(caught.value.original, InjectedError)
        assert faults.fired() == faults.fired(0) == 1
        assert faults.pids() == [os.getpid()]
        assert sampler.obtain_trajectories(5).n_trajectories == 5


def test_the_step_is_the_one_that_was_said(tmp_path):
    faults = Faults(tmp_path, Fault("raise", trajectory=1, step=4), seed=SEED)
    env, raised = faults.env(ScriptedEnv)(None), []
    seeds = undisturbed(3).seeds
    for number in (0, 2, 1):
        env.reset(seed=seeds[number])
        for step in range(1, 6):
            try:
                env.step(0)
            except InjectedError:
                raised.append((number, step))
    assert raised == [(1, 4)]


def test_times_are_counted_over_all_processes(tmp_path):
    faults = Faults(tmp_path, Fault("raise", "reset", times=3), Fault("leak", times=None, n_bytes=1))
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), n_workers=2, seed=SEED) as sampler:
        while faults.fired(0) < 3:  # the other worker may fail in the same call
            with pytest.raises(RolloutError):
                sampler.obtain_trajectories(1)
        sampler.obtain_trajectories(6)
    assert faults.fired(0) == 3
    assert faults.fired(1) >= 6
    assert os.getpid() not in faults.pids()


def test_a_copy_elsewhere_counts_on(tmp_path):
    faults = Faults(tmp_path, Fault("raise", "close"))
    copy = pickle.loads(pickle.dumps(faults))
    with pytest.raises(InjectedError):
        copy.maybe("close")
    faults.maybe("close")
    Faults(tmp_path, *faults.faults).maybe("close")
    assert faults.fired() == 1


@pytest.mark.parametrize(("kind", "code"), [("kill", -9), ("abort", -6), ("exit", EXIT_CODE)])
def test_the_ways_to_die(tmp_path, kind, code):
    faults = Faults(tmp_path, Fault(kind, trajectory=2), seed=SEED)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()  # pytest's would print the stacks of the abort
        local(faults).obtain_trajectories(4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert faults.pids() == [pid]
    assert local(faults).obtain_trajectories(4) == undisturbed(4)


@pytest.mark.parametrize("kind", ["hang", "hang_gil", "stop"])
def test_the_ways_to_stand_still(tmp_path, kind):
    """Seen from outside: it is announced, and then nothing comes; only SIGKILL ends it."""
    faults = Faults(tmp_path, Fault(kind, trajectory=1), seed=SEED)
    done, finished = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR1, lambda *_: None)  # a handler's return must not end it
        local(faults).obtain_trajectories(2)
        os.write(finished, b".")
        os._exit(0)
    os.close(finished)
    faults.wait(timeout=120)
    assert faults.pids() == [pid]
    if kind == "stop":
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.kill(pid, signal.SIGUSR1)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert os.read(done, 1) == b""
    os.close(done)


def test_leaking(tmp_path):
    faults = Faults(tmp_path, Fault("leak", times=3, n_bytes=1000))
    before = len(_leaked)
    with local(faults) as sampler:
        assert sampler.obtain_trajectories(5) == undisturbed(5)
    assert [len(data) for data in _leaked[before:]] == [1000] * 3
    del _leaked[before:]


def test_waiting_sees_what_was_before_and_what_comes_and_ends_in_time(tmp_path):
    faults = Faults(tmp_path, Fault("leak", "close", times=None, n_bytes=0))
    with pytest.raises(TimeoutError, match="0 of 1"):
        faults.wait(timeout=0.01)
    faults.maybe("close")
    faults.wait(1, timeout=120)
    others = [threading.Thread(target=faults.maybe, args=("close",)) for _ in range(3)]
    for other in others:
        other.start()
    faults.wait(4, timeout=120)
    for other in others:
        other.join()
    assert faults.fired() == 4


def test_faults_around_whatever_a_sampler_takes(tmp_path):
    faults = Faults(tmp_path)
    for env in (ScriptedEnv, ScriptedEnv(), ExistingEnvUpdate(ScriptedEnv()), ScriptedEnv):
        assert local(faults, env=env).obtain_trajectories(3) == undisturbed(3)
    with LocalSampler(lambda _: 0, "CartPole-v1", seed=SEED) as sampler:
        cartpole = sampler.obtain_trajectories(3)
    with LocalSampler(faults.agent(lambda _: 0), faults.env("CartPole-v1"), seed=SEED) as sampler:
        assert sampler.obtain_trajectories(3) == cartpole
    agent = faults.agent(ScriptedAgent())
    agent.set_param_values({"offset": 3})
    assert agent.get_param_values() == {"offset": 3}


def test_scripted_lengths_shapes_and_parameters():
    with LocalSampler(ScriptedAgent(), lambda: ScriptedEnv((2, 4), (3, 5)), seed=SEED) as sampler:
        batch = sampler.obtain_trajectories(50, agent_update={"offset": 2})
    assert (set(batch.lengths), set(batch.actions)) == ({2, 3, 4}, {0, 1, 2, 3})
    assert batch.observations.shape[1:] == (3, 5)
    assert set(batch.agent_infos["offset"]) == {2}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda folder: Fault("explode"), "one of raise, system_exit"),  # type: ignore[arg-type]
        (lambda folder: Fault("kill", "nowhere"), "one of construct, reset"),  # type: ignore[arg-type]
        (lambda folder: Fault("kill", "close", trajectory=1), "leave trajectory=1 out"),
        (lambda folder: Fault("kill", trajectory=-1), "trajectory must be at least 0, got -1"),
        (lambda folder: Fault("kill", step=0), "step must be at least 1, got 0"),
        (lambda folder: Fault("kill", times=0), "times must be at least 1, got 0"),
        (lambda folder: Faults(folder, Fault("kill", trajectory=1)), "pass the sampler's seed"),
        (lambda folder: FailPoint("nowhere", worker=0, folder=folder), "one of start, continue"),
        (lambda folder: FailPoint("sent", worker=-1, folder=folder), "worker must be at least 0"),
        (lambda folder: FailPoint("sent", worker=0, occurrence=0, folder=folder), "occurrence at least 1"),
    ],
)
def test_misuse(tmp_path, make, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        make(tmp_path)


def test_a_fail_point_is_armed_only_inside(tmp_path):
    point = FailPoint("start", worker=0, folder=tmp_path)
    environment = dict(os.environ)
    with point.armed():
        assert dict(os.environ) != environment
    assert dict(os.environ) == environment
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=SEED) as sampler:
        assert sampler.obtain_trajectories(2) == undisturbed(2)
    assert not point.fired()
