"""C5: whatever a worker does, the call ends with the right batch or with one error, and the sampler is usable again."""

import contextlib
import functools
import itertools
import os
import pickle
import signal
import threading
import traceback
from typing import Any

import numpy as np
import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler
from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError, SerializationError, WorkerDiedError, WorkerHungError
from streamsampler.testing import FailPoint, Fault, Faults, InjectedError, ScriptedAgent, ScriptedEnv
from streamsampler.testing.faults import PLACES
from tests.faults.conftest import kill_only_hung, slow
from tests.faults.test_ends import gone, gone_within
from tests.faults.test_interrupts import expected
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE
from tests.scripted.failing import Agent, Boom, Env, Unpicklable
from tests.tiers import mostly_slow


def make(agents: Any = None, envs: Any = ScriptedEnv, n_workers: int = 1, **options: Any) -> Any:
    # One worker: of two, the other one may run a trajectory a second time before a fault is noticed.
    agents = ScriptedAgent() if agents is None else agents
    return MultiprocessingSampler(agents, envs, n_workers=n_workers, seed=SEED, **options)


def is_right_again(sampler: Any) -> bool:
    version = sampler.agent_version + 1
    return sampler.obtain_trajectories(8, agent_update={"offset": version - 1}) == undisturbed(version)[version - 1]


def is_right_afresh(sampler: Any) -> bool:
    """Return whether it returns what it should with an agent and an environment of which nothing is wrong."""
    batch = sampler.obtain_trajectories(6, agent_update=Agent(), env_update=Env)
    return batch == expected(batch.agent_version)


PHASES = {
    "construct": "making the environment",
    "reset": "resetting the environment",
    "step": "stepping the environment",
    "close": "closing the environment",
    "agent_construct": "constructing the agent",
    "agent_reset": "resetting the agent",
    "action": "choosing an action",
    "agent_update": "updating the agent",
}
IN_TRAJECTORIES = {"reset", "step", "agent_reset", "action"}
HANGS = ["hang", "hang_gil", "stop"]
EXIT_CODES = {"SIGKILL": -9, "SIGABRT": -6, "exit code 7": 7}


def fault_at(place: Any, kind: Any, folder: Any, **more: Any) -> Faults:
    trajectory = 3 if place in IN_TRAJECTORIES else None
    return Faults(folder, Fault(kind, place, trajectory=trajectory, step=3, version=2, **more), seed=SEED)


@pytest.mark.parametrize(("place", "kind"), [*((place, "raise") for place in PLACES), ("step", "system_exit")])
def test_what_raises_in_a_worker_is_one_error_in_the_caller(tmp_path, place, kind):
    faults = fault_at(place, kind, tmp_path)
    env = faults.env(ScriptedEnv)
    with make(faults.agent(ScriptedAgent()), env, step_timeout=PATIENCE) as sampler:
        with pytest.raises(RolloutError, match=f"worker 0 .*{PHASES[place]}") as caught:
            calls(sampler, 2, env_update=env)
        assert caught.value.phase == PHASES[place]
        assert (caught.value.trajectory, caught.value.worker_number) == (3 if place in IN_TRAJECTORIES else None, 0)
        remote = "".join(traceback.format_exception(caught.value.__cause__))
        assert ("injected in " + place if kind == "raise" else "SystemExit") in remote
        assert f'maybe("{place}"' in remote, "the worker's own traceback, down to the line that raised"
        assert is_right_again(sampler)
        assert (sampler.stats.restarts, sampler.stats.hangs) == (0, 0)


QUICK = [*((place, "kill") for place in PLACES), ("step", "abort"), ("step", "hang_gil")]
QUICK += [("construct", "named raise"), ("close", "named raise")]
ALL = [(place, kind) for place in PLACES for kind in (*HANGS, "exit", "named raise")]


@pytest.mark.parametrize(
    ("place", "kind"), mostly_slow([*QUICK, *(slow(*cell) for cell in ALL if cell not in QUICK)], 4)
)
def test_a_worker_that_dies_or_hangs_is_replaced_and_nothing_shows_in_the_batch(tmp_path, place, kind):
    """The worker in its place is brought up to date before anything else."""
    faults = fault_at(place, kind.removeprefix("named "), tmp_path)
    env = faults.env(ScriptedEnv)
    options: dict[str, Any] = {"restart_on": (InjectedError,)} if kind == "named raise" else {}
    if kind in HANGS:
        options = {"step_timeout": 0.4, "limits": Limits(construction_timeout=0.8)}
    with make(faults.agent(ScriptedAgent()), env, **options) as sampler:
        if kind in HANGS:
            kill_only_hung(sampler, faults.pids)
        assert calls(sampler, 2, env_update=env) == undisturbed(2)
        stats, pids = sampler.stats, [*faults.pids(), *sampler.worker_pids()]
        assert (stats.restarts, faults.fired(), stats.hangs, len(set(pids))) == (1, 1, kind in HANGS, 2)
        assert stats.kept_trajectories == 16
    assert gone(pids)


@pytest.mark.parametrize(
    ("kind", "options", "error_class", "words", "n_lost"),
    [
        ("kill", {"max_restarts": 1}, WorkerDiedError, "SIGKILL", 2),
        ("kill", {"max_restarts": 0}, WorkerDiedError, "SIGKILL", 1),
        slow("kill", {"max_restarts": None, "limits": Limits(max_lifetime_restarts=2)}, WorkerDiedError, "SIGKILL", 3),
        slow("abort", {"max_restarts": 1}, WorkerDiedError, "SIGABRT", 2),
        slow("exit", {"max_restarts": 1}, WorkerDiedError, "exit code 7", 2),
        slow("hang_gil", {"max_restarts": 0, "step_timeout": 0.4}, WorkerHungError, "in trajectory 3", 1),
        ("raise", {"restart_on": (InjectedError,), "max_restarts": 2}, RolloutError, "injected in step", 3),
        ("raise", {"restart_on": (OSError,)}, RolloutError, "injected in step", 1),
    ],
)
@pytest.mark.usefixtures("patient")
def test_too_many_losses_are_an_error_that_names_the_cause(
    tmp_path, monkeypatch, kind, options, error_class, words, n_lost
):
    monkeypatch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
    monkeypatch.setattr(stacks, "_SILENCE_SECONDS", 1.0)
    faults = fault_at("step", kind, tmp_path, times=n_lost)
    with make(envs=faults.env(ScriptedEnv), **options) as sampler:
        if kind in HANGS:
            kill_only_hung(sampler, faults.pids)
        calls(sampler)
        with pytest.raises(error_class, match=words) as caught:
            sampler.obtain_trajectories(8)
        error = caught.value
        assert (error.phase, error.trajectory) == ("stepping the environment", 3)
        if kind in HANGS:
            assert "_hang_gil" in error.stack
            assert "_hang_gil" in str(error.__cause__)
        if kind == "raise" and "max_restarts" not in options:
            assert error.incidents == ()
        else:
            assert [incident.trajectory for incident in error.incidents] == [3] * n_lost
            assert [incident.exitcode for incident in error.incidents] == [EXIT_CODES.get(words)] * n_lost
            assert getattr(error, "exitcode", None) == EXIT_CODES.get(words)
            assert str(error).count(words) >= n_lost, "the whole history"
        again = pickle.loads(pickle.dumps(error))
        assert (again.incidents, again.phase, again.worker_number) == (error.incidents, error.phase, 0)
        assert str(again) == str(error)
        assert is_right_again(sampler)
    assert faults.fired() == n_lost


N_WORKERS = 3
SHAPES = (2,), (2_000,)  # which is through shared memory
LOOP = itertools.product(["start", "continue", "rollout", "write", "send", "sent"], (1, 2), SHAPES)
POINTS = [
    ("write", 2, 2, (2_000,)),
    ("sent", 1, 2, (2_000,)),
    *(slow(point, number % N_WORKERS, *more) for number, (point, *more) in enumerate(LOOP)),
    slow("stop", 0, 1, (2,)),
    slow("stop", 2, 1, (2,)),
    slow("exit", 0, 1, (2,)),
    slow("exit", 2, 1, (2_000,)),
]


def batches(sampler):
    """Return batches before and after a stream that is left, which stops its workers."""
    found = [sampler.obtain_trajectories(24)]
    stream = sampler.stream()
    found += [next(stream) for _ in range(4)]  # each worker has begun, and an endless stream always has more for it
    stream.close()
    return [*found, sampler.obtain_trajectories(24)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("point", "worker", "occurrence", "shape"), POINTS)
def test_a_death_at_a_place_of_the_loop(tmp_path, point, worker, occurrence, shape):
    # One agent each: trajectories belong to workers then, so that each of them is sure to have some in each call.
    agents, envs = [ScriptedAgent()] * N_WORKERS, functools.partial(ScriptedEnv, shape=shape, seconds=0.001)
    with LocalSampler(agents, envs, seed=SEED) as local:
        reference = batches(local)
    fail_point = FailPoint(point, worker=worker, occurrence=occurrence, folder=tmp_path)
    with fail_point.armed(), make(agents, envs, N_WORKERS) as sampler:
        assert batches(sampler) == reference
        pids = sampler.worker_pids()
    assert fail_point.fired()
    assert gone_within(pids, 0)
    assert sampler.stats.restarts == (point != "exit")


def test_several_deaths_of_several_kinds_in_one_call_and_all_workers_at_once(tmp_path):
    kinds: list[Any] = ["kill", "abort", "exit"]
    faults = Faults(
        tmp_path,
        *(Fault(kind, trajectory=2 * index, step=index + 1) for index, kind in enumerate(kinds)),
        Fault("kill", "reset", trajectory=7),
        seed=SEED,
    )
    with make(envs=faults.env(ScriptedEnv), n_workers=3) as sampler:
        batches = calls(sampler)
        assert faults.fired() == 4
        for pid in sampler.worker_pids():
            with contextlib.suppress(ProcessLookupError):  # one may have died last, and not be replaced yet
                os.kill(pid, signal.SIGKILL)
        batches.append(sampler.obtain_trajectories(8, agent_update={"offset": 1}))
        assert batches == undisturbed(2)
        assert sampler.stats.kept_trajectories == 16


def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_all_workers_dead_at_once_in_the_middle_of_a_call(tmp_path):
    faults = Faults(tmp_path, Fault("hang", "step", step=2, times=3))
    with make(envs=faults.env(functools.partial(ScriptedEnv, shape=(2_000,))), n_workers=3) as sampler:
        pids = sampler.worker_pids()

        def kill_when_all_hang():
            faults.wait(3, PATIENCE)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        helper = in_another_thread(kill_when_all_hang)
        assert calls(sampler) == undisturbed(shape=(2_000,))
        helper.join()
        assert 1 <= sampler.stats.restarts <= 3  # as many as there was work for
        assert set(faults.pids()) == set(pids)


@pytest.mark.slow
def test_two_samplers_at_once(tmp_path):
    """In threads of their own, each with deaths; none counts in the other sampler."""
    all_faults = [Faults(tmp_path / name, Fault("kill", times=3)) for name in "ab"]
    found = {}

    def life(number, faults):
        with make(envs=faults.env(ScriptedEnv), n_workers=2) as sampler:
            found[number] = calls(sampler, 3)

    for thread in [in_another_thread(functools.partial(life, *item)) for item in enumerate(all_faults)]:
        thread.join()
    assert found == {0: undisturbed(3), 1: undisturbed(3)}
    assert [faults.fired() for faults in all_faults] == [3, 3]


def test_one_that_was_slow_and_died_is_replaced_by_the_next_call():
    """What is known of its speed is not known of its successor's."""
    with make(n_workers=2) as sampler:
        first = calls(sampler)
        pids = sampler.worker_pids()
        sampler._life.session.scheduler.throughput.measure([5], 1_000.0, 1)
        os.kill(pids[1], signal.SIGKILL)
        assert gone(pids[1:])
        assert [*first, sampler.obtain_trajectories(8, agent_update={"offset": 1})] == undisturbed(2)
        assert sampler.worker_pids()[0] == pids[0]
        assert sampler.stats.restarts == 1


@pytest.mark.slow
def test_a_worker_that_leaks_is_replaced_between_tickets(tmp_path):
    """Each leak is so large that the worker may keep two of them, and not three."""
    leak, n_leaks = 60 << 20, 12
    with make() as sampler:
        calls(sampler, 1)
        with open(f"/proc/{sampler.worker_pids()[0]}/statm") as file:
            resident, shared = map(int, file.read().split()[1:3])
    limit = (resident - shared) * os.sysconf("SC_PAGE_SIZE") + 5 * leak // 2
    faults = Faults(tmp_path, Fault("leak", times=n_leaks, n_bytes=leak))
    slow = functools.partial(ScriptedEnv, seconds=0.002)  # several tickets a call: each answer reports the memory
    with make(envs=faults.env(slow), limits=Limits(max_worker_memory=limit)) as sampler:
        assert calls(sampler, 4) == undisturbed(4)
        assert faults.fired() == n_leaks
        assert sampler.stats.replaced >= 2
        assert sampler.stats.restarts <= sampler.stats.replaced
        assert sampler.stats.failed_trajectories == 0


def test_a_limit_of_memory_that_no_worker_can_keep_gives_a_warning(caplog):
    with make(limits=Limits(max_worker_memory=1000)) as sampler:
        assert calls(sampler, 2) == undisturbed(2)
        assert sampler.stats.replaced > 0
    assert [record.getMessage() for record in caplog.records if "all the time" in record.getMessage()]


def test_a_refused_update_is_not_in_force_afterwards():
    with make(Agent(), Env) as sampler:
        assert (sampler.obtain_trajectories(2, agent_update={"action": 2}).actions == 2).all()
        with pytest.raises(RolloutError, match="KeyError"):
            sampler.obtain_trajectories(2, agent_update={"wrong": 0})
        assert (sampler.obtain_trajectories(2).actions == 2).all()


def test_an_exception_in_close_is_raised_once_and_does_not_hide_the_one_under_way():
    sampler = make(Agent(), functools.partial(Env, "close"))
    sampler.obtain_trajectories(4)
    with pytest.raises(RolloutError, match="closing the environment"):
        sampler.close()
    sampler.close()
    pids = []

    def fail_inside():
        with make(Agent(), functools.partial(Env, "close")) as sampler:
            sampler.obtain_trajectories(4)
            pids.extend(sampler.worker_pids())
            raise Boom("the first")

    with pytest.raises(Boom, match="the first"):
        fail_inside()
    assert gone_within(pids, 0)


def test_what_cannot_be_pickled_is_named_and_changes_nothing():
    with pytest.raises(SerializationError, match=r"the agent.*lock") as caught:
        make(Unpicklable(), Env)
    assert caught.value.__cause__ is not None
    with make(Agent(), Env) as sampler:
        sampler.obtain_trajectories(1)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"agent_update": Unpicklable()}, "the agent update"),
            ({"agent_update": {"action": 2, "lock": Unpicklable()}}, "the agent update"),
            ({"env_update": functools.partial(Env, Unpicklable())}, "the environment update"),
        ]
        for update, words in wrong:
            with pytest.raises(SerializationError, match=words):
                sampler.obtain_trajectories(1, **update)
        batch = sampler.obtain_trajectories(6)
        assert batch.agent_version == 2
        assert batch == expected(2)


@pytest.mark.parametrize(
    ("agent", "env", "phase", "words"),
    [
        (Agent(), functools.partial(Env, "step", "unpicklable"), "sending the rollouts", "lock"),
        (Agent(action=7), Env, "choosing an action", "outside Discrete"),
        (Agent(), functools.partial(Env, "shape"), "recording the trajectory", r"(?s)\(3,\).*\(2,\)"),
    ],
)
def test_bad_data_is_an_error_of_its_worker(agent, env, phase, words):
    with make(agent, env) as sampler:
        with pytest.raises(RolloutError, match=words) as caught:
            sampler.obtain_trajectories(2)
        assert caught.value.phase == phase
        assert is_right_afresh(sampler)


class OnlyThere(Exception):
    """Pickles, and does not unpickle: its constructor wants two arguments."""

    def __init__(self, one, two):
        super().__init__("message")


class Strange(Env):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"error": OnlyThere(1, 2)}


def test_a_report_that_cannot_be_unpickled_here():
    with make(Agent(), Strange, 3) as sampler:
        with pytest.raises(RolloutError, match="cannot be unpickled here") as caught:
            sampler.obtain_trajectories(6)
        assert caught.value.phase == "sending the rollouts"
        assert is_right_afresh(sampler)


def test_an_error_in_one_worker_does_not_wait_for_the_others():
    """Another worker is in the middle of a very long trajectory: the call ends, and that rollout is abandoned."""
    envs = [functools.partial(Env, "step"), functools.partial(Env, length=10**9)]
    with make(Agent(), envs, 2) as sampler:
        with pytest.raises(RolloutError, match="Boom"):
            sampler.obtain_trajectories(2)
        assert np.array_equal(sampler.obtain_trajectories(2, env_update=Env).lengths, [5, 5])


def test_an_error_does_not_hide_the_other_events_of_a_wait(monkeypatch, tmp_path):
    """Failures and reports that come at once are all taken in, or the next call would wait for them for ever."""
    faults = Faults(tmp_path, Fault("raise", times=2))
    with make(envs=faults.env(ScriptedEnv), n_workers=2) as sampler:
        session = sampler._life.session
        real = session.engine.wait

        def wait_for_all(timeout):
            events = []
            while len(events) < sum(len(record.side.unanswered) for record in session.scheduler.workers):
                events += real(None)
            return events

        monkeypatch.setattr(session.engine, "wait", wait_for_all)
        with pytest.raises(RolloutError, match="injected"):
            sampler.obtain_trajectories(4)
        assert not any(record.side.unanswered for record in session.scheduler.workers)
        monkeypatch.undo()
        assert is_right_again(sampler)
