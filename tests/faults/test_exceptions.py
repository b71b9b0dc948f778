"""C5: whatever user code raises in a worker is one error in the caller, and the sampler stays usable."""

import functools
import os
import pickle
import signal
import traceback

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.errors import RolloutError, SerializationError
from streamsampler.testing import Fault, Faults
from tests.scripted.failing import Agent, Boom, Env, Unpicklable


def sound_batch():
    with LocalSampler(Agent(), Env, seed=5) as sampler:
        sampler.obtain_trajectories(1)
        return sampler.obtain_trajectories(6)


def fails_then_recovers(sampler, cure, *, phase, trajectory, within, text="Boom", **updates):
    """The first call fails as described; once the cause is gone, the second returns what it should."""
    with pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(4, **updates)
    error = caught.value
    assert error.worker_number in range(sampler.n_workers)
    assert error.phase == phase
    assert (error.trajectory in range(4)) if trajectory else (error.trajectory is None)
    assert f"worker {error.worker_number} " in str(error)
    assert phase in str(error)
    assert error.__cause__ is not None
    remote = "".join(traceback.format_exception(error.__cause__))
    assert text in remote
    assert within in remote, "the worker's own traceback, down to the line that raised"
    cure.touch()
    assert sampler.obtain_trajectories(6) == sound_batch()


@pytest.mark.parametrize(
    ("where", "phase", "trajectory"),
    [
        ("make", "making the environment", False),
        ("reset", "resetting the environment", True),
        ("step", "stepping the environment", True),
    ],
)
@pytest.mark.parametrize("what", ["raise", "exit"])
def test_exception_in_the_environment(make_sampler, tmp_path, where, phase, trajectory, what):
    cure = tmp_path / "cure"
    sampler = make_sampler(envs=functools.partial(Env, where, what, str(cure)))
    text = {"raise": "Boom", "exit": "SystemExit"}[what]
    fails_then_recovers(sampler, cure, phase=phase, trajectory=trajectory, within=f'self.maybe("{where}")', text=text)


@pytest.mark.parametrize(
    ("where", "phase", "trajectory"),
    [
        ("construct", "constructing the agent", False),
        ("reset", "resetting the agent", True),
        ("action", "choosing an action", True),
    ],
)
def test_exception_in_the_agent(make_sampler, tmp_path, where, phase, trajectory):
    cure = tmp_path / "cure"
    sampler = make_sampler(Agent(where, str(cure)))
    fails_then_recovers(sampler, cure, phase=phase, trajectory=trajectory, within=f'self.maybe("{where}")')


def test_exception_in_an_agent_update(make_sampler, tmp_path):
    cure = tmp_path / "cure"
    sampler = make_sampler(Agent("update", str(cure)))
    fails_then_recovers(
        sampler,
        cure,
        phase="updating the agent",
        trajectory=False,
        within='self.maybe("update")',
        agent_update={"action": 2},
    )


def test_a_refused_update_is_not_in_force_afterwards(make_sampler):
    sampler = make_sampler(n_workers=1)
    assert (sampler.obtain_trajectories(2, agent_update={"action": 2}).actions == 2).all()
    with pytest.raises(RolloutError, match="KeyError"):
        sampler.obtain_trajectories(2, agent_update={"wrong": 0})
    assert (sampler.obtain_trajectories(2).actions == 2).all()


def test_exception_when_an_update_closes_the_old_environment(make_sampler):
    # One worker: of two, one may do all the work, and the other would still have the old environment in the end.
    sampler = make_sampler(envs=functools.partial(Env, "close"), n_workers=1)
    sampler.obtain_trajectories(4)
    with pytest.raises(RolloutError, match="closing the environment") as caught:
        sampler.obtain_trajectories(4, env_update=Env)
    assert caught.value.phase == "closing the environment"
    assert "in close" in str(caught.value)
    assert sampler.obtain_trajectories(4, env_update=Env).n_trajectories == 4


def test_exception_in_close_is_raised_once_everything_is_given_back(make_sampler):
    sampler = make_sampler(envs=functools.partial(Env, "close"))
    sampler.obtain_trajectories(4)
    with pytest.raises(RolloutError, match="closing the environment"):
        sampler.close()
    sampler.close()


def test_exception_in_close_does_not_hide_the_one_under_way(make_sampler):
    def fail_inside():
        with make_sampler(envs=functools.partial(Env, "close")) as sampler:
            sampler.obtain_trajectories(4)
            raise Boom("the first")

    with pytest.raises(Boom, match="the first"):
        fail_inside()


def test_unpicklable_agent(make_sampler):
    with pytest.raises(SerializationError, match="the agent") as caught:
        make_sampler(Unpicklable())
    assert "lock" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_unpicklable_updates_change_nothing(make_sampler):
    sampler = make_sampler()
    first = sampler.obtain_trajectories(1)
    with pytest.raises(SerializationError, match="the agent update"):
        sampler.obtain_trajectories(1, agent_update=Unpicklable())
    with pytest.raises(SerializationError, match="the agent update"):
        sampler.obtain_trajectories(1, agent_update={"action": 2, "lock": Unpicklable()})
    with pytest.raises(SerializationError, match="the environment update"):
        sampler.obtain_trajectories(1, env_update=functools.partial(Env, Unpicklable()))
    assert first.agent_version == 1
    assert sampler.obtain_trajectories(6) == sound_batch()


def test_rollout_that_cannot_be_pickled(make_sampler, tmp_path):
    cure = tmp_path / "cure"
    sampler = make_sampler(envs=functools.partial(Env, "step", "unpicklable", str(cure)))
    with pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(4)
    assert "lock" in str(caught.value)
    assert caught.value.phase == "sending the rollouts"
    cure.touch()
    assert sampler.obtain_trajectories(6) == sound_batch()


def test_action_outside_its_space(make_sampler):
    sampler = make_sampler(Agent(action=7))
    with pytest.raises(RolloutError, match="outside Discrete") as caught:
        sampler.obtain_trajectories(2)
    assert caught.value.phase == "choosing an action"


def test_observation_of_the_wrong_shape_shows_both_shapes(make_sampler):
    sampler = make_sampler(envs=functools.partial(Env, "shape"))
    with pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(2)
    assert "(3,)" in str(caught.value)
    assert "(2,)" in str(caught.value)


@pytest.mark.parametrize("engine", ["processes"], indirect=True)
def test_a_worker_that_dies_between_calls_is_replaced(make_sampler):
    sampler = make_sampler()
    sampler.obtain_trajectories(1)
    for pid in sampler.worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert sampler.obtain_trajectories(6) == sound_batch()
    assert sampler.stats.restarts >= 1


def test_errors_pickle():
    error = RolloutError("message", worker_number=1, phase="p", trajectory=None, original=ValueError("x"))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.worker_number, copy.phase) == ("message", 1, "p")


def test_an_error_in_one_worker_does_not_wait_for_the_others(make_sampler, engine, tmp_path):
    """Another worker is in the middle of a very long trajectory: the call ends, and that rollout is abandoned."""
    if engine == "local":
        envs = [functools.partial(Env, "step"), Env]
    else:
        envs = [functools.partial(Env, "step"), functools.partial(Env, length=10**9)]
    sampler = make_sampler(envs=envs)
    with pytest.raises(RolloutError, match="Boom"):
        sampler.obtain_trajectories(2)
    assert np.array_equal(sampler.obtain_trajectories(2, env_update=Env).lengths, [5, 5])


def test_an_error_does_not_hide_the_other_events_of_a_wait(monkeypatch, tmp_path):
    """Failures and reports that come at once are all taken in, or the next call would wait for them for ever."""
    faults = Faults(tmp_path, Fault("raise", times=2))
    with MultiprocessingSampler(Agent(), faults.env(Env), n_workers=2, seed=5) as sampler:
        session = sampler._session
        real = session.engine.wait

        def wait_for_all(timeout):
            events = []
            while len(events) < sum(len(record.side.unanswered) for record in session.records):
                events += real(None)
            return events

        monkeypatch.setattr(session.engine, "wait", wait_for_all)
        with pytest.raises(RolloutError, match="injected"):
            sampler.obtain_trajectories(4)
        assert not any(record.side.unanswered for record in session.records)
        monkeypatch.undo()
        assert sampler.obtain_trajectories(6) == sound_batch()
