"""An interrupt, or a lack of something, at any place in the sampler: the next call is right, and close closes."""

import gc
import itertools
import os
import random
import signal

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.data.statistics import Stats
from streamsampler.engines.processes import engine, pool
from streamsampler.engines.processes.wire import MessageReader
from streamsampler.errors import RolloutError, UsageError, WorkerDiedError
from streamsampler.samplers.batches import BatchMaker
from streamsampler.samplers.call import Call
from streamsampler.testing import Fault, Faults
from tests.contracts.test_taken import Slippery
from tests.faults.conftest import slow
from tests.faults.test_ends import gone
from tests.never_hangs import alarm
from tests.scripted.agents import always_zero
from tests.scripted.failing import Agent, Env


def expected(version, n=6):
    with LocalSampler(Agent(), Env, seed=5) as sampler:
        sampler._life.session.scheduler.version = version - 1
        return sampler.obtain_trajectories(n)


def is_right_again(sampler):
    batch = sampler.obtain_trajectories(6)
    return batch == expected(batch.agent_version)


@pytest.fixture
def sampler():
    with MultiprocessingSampler(Agent(), Env, n_workers=2, seed=5) as sampler:
        sampler.obtain_trajectories(2)
        yield sampler


def raise_once(monkeypatch, owner, name, error):
    """Let the function raise at its next call, and do its work from then on."""
    real, left = getattr(owner, name), [error]

    def function(*args, **options):
        if left:
            raise left.pop()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, function)


@pytest.mark.parametrize(
    ("owner", "place", "error", "call"),
    [
        (MessageReader, "read", KeyboardInterrupt, "obtain"),
        (engine, "send", OSError, "obtain"),
        (engine, "unpack_answer", KeyboardInterrupt, "stream"),
        *(
            slow(*place, *more)
            for place, *more in itertools.product(
                [(MessageReader, "read"), (engine, "send"), (engine, "unpack_answer")],
                [KeyboardInterrupt, OSError, MemoryError],
                ["obtain", "stream"],
            )
        ),
    ],
)
def test_a_break_inside_a_call(sampler, monkeypatch, owner, place, error, call):
    raise_once(monkeypatch, owner, place, error)
    with pytest.raises(error):
        sampler.obtain_trajectories(4) if call == "obtain" else next(sampler.stream())
    assert is_right_again(sampler)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, slow(OSError)])
def test_a_break_while_a_dead_worker_is_replaced(sampler, monkeypatch, error):
    for pid in sampler.worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert gone(sampler.worker_pids())
    raise_once(monkeypatch, pool, "launch", error)
    with pytest.raises(error):
        sampler.obtain_trajectories(4)
    assert is_right_again(sampler)


def test_a_break_while_the_engine_is_replaced_after_a_break(sampler, monkeypatch):
    raise_once(monkeypatch, engine, "send", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        sampler.obtain_trajectories(4)
    for error in (KeyboardInterrupt, OSError):
        raise_once(monkeypatch, pool, "launch", error)
        with pytest.raises(error):
            sampler.obtain_trajectories(4)
    assert is_right_again(sampler)


def test_a_break_inside_close(monkeypatch, tmp_path):
    faults = Faults(tmp_path, Fault("hang", "close", times=None))
    with MultiprocessingSampler(Agent(), faults.env(Env), n_workers=2) as sampler:
        sampler.obtain_trajectories(2)
        pids = sampler.worker_pids()
        raise_once(monkeypatch, sampler._life.session.engine, "_read_until", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.close()
        assert gone(pids)
        sampler.close()


@pytest.fixture
def no_gc_callbacks():
    """Python swallows what is raised in a callback of the garbage collection, and hypothesis may have added one."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


@pytest.mark.slow
@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_interrupts_at_random_times(sampler):
    """Whatever they hit, the call after them is right."""
    delays = random.Random(1)
    n_interrupts, hits = 40, 0
    for _ in range(n_interrupts):
        with alarm(signal.default_int_handler):
            try:
                # Inside: on a busy machine it may ring before the next line.
                signal.setitimer(signal.ITIMER_REAL, delays.uniform(0.0005, 0.01))
                for _ in range(100):
                    sampler.obtain_trajectories(20)
            except KeyboardInterrupt:
                hits += 1
        assert is_right_again(sampler)
    assert hits > n_interrupts / 2, "Python swallows those that hit a finalizer"


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_an_interrupt_between_reports_of_one_wait_leaves_them_whole(monkeypatch, nth):
    """What is salvaged has the actions that were taken, and no timestep is counted twice."""
    with LocalSampler(always_zero, Slippery, n_workers=4, seed=3, record_taken="action_taken", check=None) as sampler:
        engine = sampler._life.session.engine
        wait = engine.wait
        monkeypatch.setattr(engine, "wait", lambda timeout: [event for _ in range(4) for event in wait(timeout)])
        real, left = Stats.add_report, [nth]

        def interrupt(self, *report):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            real(self, *report)

        monkeypatch.setattr(Stats, "add_report", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(12)
        batch = sampler.salvage()
        assert batch.next_observations[:, 0].tolist() == batch.actions.tolist()
        assert list(batch.env_infos) == ["slips"]
    stats = sampler.stats
    assert stats.kept_timesteps == batch.n_timesteps
    fates = ("kept", "surplus", "stale", "abandoned", "lost")
    assert sum(getattr(stats, f"{fate}_timesteps") for fate in fates) == sampler._life.ran_before


@pytest.mark.parametrize(("n_workers", "place"), [(1, "restart"), (2, "send")])
def test_an_error_of_the_engine_leaves_no_worker_waiting_for_a_message(monkeypatch, n_workers, place):
    """The scheduler has decided, and believes that all of it was done."""
    with MultiprocessingSampler(Agent(), Env, n_workers=n_workers, seed=5) as sampler:
        sampler.obtain_trajectories(2)
        pid = sampler.worker_pids()[0]
        os.kill(pid, signal.SIGKILL)
        assert gone([pid])
        raise_once(monkeypatch, sampler._life.session.engine, place, UsageError("no room"))
        with pytest.raises(UsageError, match="no room"):
            sampler.obtain_trajectories(6)
        for _ in range(3):
            assert is_right_again(sampler)


def test_a_failure_ends_a_call_without_a_batch_of_what_came_with_it(monkeypatch):
    class Failing(Slippery):
        n_resets = 0

        def reset(self, **options):
            self.n_resets += 1
            if self.n_resets > 6:
                raise RuntimeError("no more")
            return super().reset(**options)

    with LocalSampler(always_zero, Failing, n_workers=2, seed=1, check=None) as sampler:
        engine, wait = sampler._life.session.engine, sampler._life.session.engine.wait
        monkeypatch.setattr(engine, "wait", lambda timeout: [event for _ in range(6) for event in wait(timeout)])
        done, end = [], Call.end
        monkeypatch.setattr(Call, "end", lambda self: (done.append("end"), end(self)))
        monkeypatch.setattr(BatchMaker, "append_due", lambda self: done.append("append"))
        with pytest.raises(RolloutError, match="no more"):
            sampler.obtain_trajectories(40)
    assert done[-1] == "end"


def test_a_death_in_an_update_takes_the_update_back(sampler):
    class Deadly(Agent):
        def __setstate__(self, state):
            os._exit(3)

    with pytest.raises(WorkerDiedError, match="constructing the agent"):
        sampler.obtain_trajectories(2, agent_update=Deadly())
    assert is_right_again(sampler)
