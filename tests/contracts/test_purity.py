"""What samplers do about environments and agents whose trajectories depend on more than their seeds."""

import contextlib
import itertools
import logging
import os
import pickle
import signal
import sys
import threading
import time
import types
from functools import partial
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.wrappers import NormalizeObservation, RecordVideo

from streamsampler import LocalSampler, MultiprocessingSampler, NewEnvUpdate, SetTaskUpdate, VecWorker
from streamsampler.errors import NotReproducibleError, RolloutError
from streamsampler.workers import purity
from streamsampler.workers.fail_points import Records
from streamsampler.workers.purity import is_checking
from tests.contracts.conftest import on, slow
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Steps

LOCAL = on("local", *slow("vec", "processes"))
EACH_TIME = on("local", "processes", *slow("vec processes"))


class Counts(AnyLength):
    """Carries the number of its trajectories into its rewards, where it is told to."""

    def __init__(self, carries=True):
        super().__init__()
        self.carries, self.n = carries, 0

    def set_task(self, carries):
        self.carries = carries

    def reset(self, **arguments):
        self.n += 1
        return super().reset(**arguments)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.n * self.carries, *rest


class CountsToo(Counts):
    """The same, of another class."""


class Numbers(Counts):
    """Tells the number of its trajectories, or of all steps of all such environments, in its infos alone."""

    steps = 0

    def __init__(self, told):
        super().__init__(carries=False)
        self.told = told

    def step(self, action):
        Numbers.steps += 1
        return *super().step(action)[:4], {"told": self.n if self.told == "trajectories" else Numbers.steps}


@pytest.fixture
def unhurried(monkeypatch):
    """Return an environment's maker with which no check ends early: with "warn" it has a fifth of a second.

    The clock of checks is stopped where the environment is made, in this process until the end of the test.
    """
    monkeypatch.setattr(purity, "perf_counter", time.perf_counter)
    return partial(partial, made_unhurried)


def made_unhurried(make_env):
    purity.perf_counter = lambda: 0.0  # type: ignore[attr-defined]
    return make_env()


def warnings_of(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "get_actions" not in record.message
    ]


@EACH_TIME
def test_a_check_changes_nothing_and_stands_in_the_accounts(make_sampler, caplog):
    def calls(check):
        sampler = make_sampler(always_zero, AnyLength, n_workers=2, seed=3, check=check)
        batches = [sampler.obtain_samples(200), *(sampler.obtain_trajectories(5) for _ in range(2))]
        return sampler, batches, [batch.stats.checked_timesteps for batch in batches]

    unchecked, expected, checked = calls(None)
    assert checked == [0, 0, 0]
    sampler, batches, _ = calls("warn")  # which may be broken off, or take too long
    assert batches == expected
    sampler, batches, (first, *later) = calls("error")
    assert batches == expected
    assert first == sampler.stats.checked_timesteps > 0
    assert later == [0, 0]
    assert sampler.stats.kept_timesteps == unchecked.stats.kept_timesteps
    again = make_sampler.adopt(pickle.loads(pickle.dumps(sampler)))
    assert again.obtain_trajectories(2).stats.checked_timesteps > 0, "an unpickled sampler checks again"
    assert warnings_of(caplog) == []


@LOCAL
def test_what_carries_something_is_warned_of_once_and_is_made_anew(make_sampler, unhurried, caplog):
    sampler = make_sampler(always_zero, unhurried(Counts), n_workers=1, seed=3)
    batches = [sampler.obtain_trajectories(8), sampler.obtain_trajectories(8)]
    (warning,) = warnings_of(caplog)
    assert "Counts was run twice from the same seed" in warning
    # A new environment was made after the check, so its results are those of an unchecked one.
    twin = make_sampler(always_zero, Counts, n_workers=1, seed=3, check=None)
    assert batches == [twin.obtain_trajectories(8), twin.obtain_trajectories(8)]


@LOCAL
def test_infos(make_sampler, caplog):
    """Memory is an error there as well; what differs from run to run is none, and is named once."""
    with pytest.raises(NotReproducibleError, match="its info 'told' after timestep 0 was 1 and then "):
        make_sampler(always_zero, partial(Numbers, "trajectories"), check="error").obtain_trajectories(2)
    sampler = make_sampler(always_zero, partial(Numbers, "steps"), check="error")
    with caplog.at_level(logging.WARNING, "streamsampler"):
        for _ in range(2):
            sampler.obtain_trajectories(2)
    assert sum("its info 'told' differed" in record.message for record in caplog.records) == 1


@EACH_TIME
def test_an_error_is_raised_in_each_call_until_the_environment_is_another_one(make_sampler):
    sampler = make_sampler(always_zero, AnyLength, n_workers=2, seed=3, check="error")
    twin = make_sampler(always_zero, AnyLength, n_workers=1, seed=3, check=None)
    with pytest.raises(NotReproducibleError):
        sampler.obtain_trajectories(4, env_update=Counts)
    twin.obtain_trajectories(4)
    assert sampler.obtain_trajectories(4) == twin.obtain_trajectories(4), "what was refused is not used"
    sampler = make_sampler(always_zero, Counts, n_workers=2, seed=3, check="error")
    for call in (sampler.obtain_trajectories, sampler.obtain_samples, lambda _: next(sampler.stream())):
        with pytest.raises(NotReproducibleError, match="its reward after timestep 0 was 2") as caught:
            call(1)
        assert caught.value.worker_number == 0
    for update in (partial(Counts, carries=False), None):
        assert sampler.obtain_trajectories(4, env_update=update).n_trajectories == 4

    class Raises(Steps):
        def step(self, action):
            raise ValueError("no")

    with pytest.raises(RolloutError, match="in trajectory 0 of agent version 6: ValueError: no"):
        sampler.obtain_trajectories(3, env_update=Raises)


class Noted(Counts):
    """Records which worker made it, and whether that was before the check had run to its end."""

    def __init__(self, folder, carries, worker_number):
        super().__init__(carries)
        self.records = Records(folder)
        self.records.record(f"worker{worker_number}" if self.records.count("checked") else f"early{worker_number}")

    def reset(self, **arguments):
        if is_checking() and self.n == 2:  # its third trajectory is the last one
            self.records.record("checked")
        return super().reset(**arguments)


@on("processes", "waiting processes", *slow("vec processes"))
@pytest.mark.slow
def test_no_other_worker_works_before_the_verdict_where_an_error_ends_the_call(make_sampler, tmp_path):
    """Whether a call raises would depend on timing: another worker might have collected all by then."""
    for carries in (True, False):
        records = Records(tmp_path / str(carries))
        make = partial(Noted, records.folder, carries)
        sampler = make_sampler(always_zero, make, n_workers=3, seed=3, check="error")
        with pytest.raises(NotReproducibleError) if carries else contextlib.nullcontext():
            sampler.obtain_trajectories(60)
        assert records.count("early0")
        assert records.count("early1") == records.count("early2") == 0
        assert not carries or records.count("worker1") == records.count("worker2") == 0


@LOCAL
def test_another_class_is_checked_and_the_same_one_or_a_task_is_not(make_sampler):
    sampler = make_sampler(always_zero, partial(Counts, carries=False), n_workers=1, seed=3, check="error")
    updates = {
        "the first": (None, True),
        "the same class": (NewEnvUpdate(Counts, {"carries": False}), False),
        "another class": (CountsToo(carries=False), True),
        "a task": (SetTaskUpdate(partial(CountsToo, carries=False), False), False),
        "a task of the first": (SetTaskUpdate(partial(Counts, carries=False), False), False),
        "a third": (AnyLength, True),
        "a list of it": ([AnyLength], False),
    }
    for name, (update, checks) in updates.items():
        batch = sampler.obtain_trajectories(2, env_update=update)
        assert (batch.stats.checked_timesteps > 0) == checks, name


class Once(AnyLength):
    """Does something, once in all processes, in the second trajectory of a check."""

    def __init__(self, do, folder):
        super().__init__()
        self.do, self.records, self.n = do, Records(folder), 0

    def reset(self, **arguments):
        self.n += 1
        if is_checking() and self.n == 2 and self.records.record("check") == 1:
            self.do()
        return super().reset(**arguments)


def complain():
    raise ValueError


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    threading.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize("do", [die, hang, complain])
@pytest.mark.parametrize("check", ["warn", "error"])
def test_a_worker_that_is_lost_in_its_check_is_replaced(make_local, unhurried, tmp_path, do, check):
    """With "error" the worker in its place checks; what raised or was lost once might be so each time otherwise."""
    expected = make_local(always_zero, AnyLength, seed=3).obtain_trajectories(20)
    # Each worker has its own: the other worker cannot end the call without the lost one.
    envs = [unhurried(partial(Once, do, tmp_path))] * 2
    # With "warn" a healthy worker that counts as hung in its check would end the check for good.
    step_timeout = 1.0 if check == "error" else 5.0
    limits: dict[str, Any] = {"step_timeout": step_timeout, "max_restarts": None} if do is hang else {}
    with MultiprocessingSampler(always_zero, envs, n_workers=2, seed=3, check=check, **limits) as sampler:
        assert sampler.obtain_trajectories(20) == expected
        lost = sampler.stats.restarts, sampler.stats.hangs
        sampler.obtain_trajectories(20)
    n_checks = 2 if check == "error" and do is not complain else 1
    if do is hang:  # on a busy machine healthy workers may count as hung, too
        assert min(lost) >= 1
        assert Records(tmp_path).count() >= n_checks
    else:
        assert lost == (do is not complain, 0)
        assert Records(tmp_path).count() == n_checks


class Notes(NormalizeObservation):
    def __init__(self, records):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.records = records

    def reset(self, **arguments):
        self.records.record("reset")
        self.records.wake()
        return super().reset(**arguments)


def one_begins_late(folder, *, worker_number):
    if worker_number == 0:
        with contextlib.suppress(TimeoutError):
            Records(folder).wait(14, timeout=1.0)  # copies of what this worker holds: they must not come
    return Notes(Records(folder))


@pytest.mark.slow
def test_a_call_waits_for_the_worker_that_checks_even_if_it_begins_late(tmp_path, caplog):
    # Worker 0 is still being made when the other one has run all others, and could run its two trajectories, too.
    with MultiprocessingSampler(always_zero, partial(one_begins_late, tmp_path), n_workers=2, seed=3) as sampler:
        sampler.obtain_trajectories(14)
    assert len(warnings_of(caplog)) == 1


def normalizing(frozen=False):
    env = NormalizeObservation(gymnasium.make("CartPole-v1"))
    env.update_running_mean = not frozen
    return env


@LOCAL
def test_a_known_wrapper_is_warned_of_without_a_check(make_sampler, caplog):
    sampler = make_sampler(always_zero, normalizing, n_workers=2, seed=3)
    for _ in range(2):
        sampler.obtain_trajectories(8)
    assert sampler.stats.checked_timesteps == 0
    (warning,) = warnings_of(caplog)
    assert "CartPole-v1 is wrapped by NormalizeObservation" in warning
    with pytest.raises(NotReproducibleError, match=r"NormalizeObservation.*update_running_mean to False"):
        make_sampler(always_zero, normalizing, n_workers=2, seed=3, check="error").obtain_trajectories(1)
    caplog.clear()
    frozen = partial(normalizing, frozen=True)
    make_sampler(always_zero, frozen, n_workers=2, seed=3, check="error").obtain_trajectories(1)
    make_sampler(always_zero, normalizing, n_workers=2, seed=3, check=None).obtain_trajectories(1)
    assert warnings_of(caplog) == []


def recorded(folder, *, worker_number=None):
    sys.modules.setdefault("moviepy", types.ModuleType("moviepy"))  # nothing is encoded here
    folder = folder if worker_number is None else os.path.join(folder, str(worker_number))
    return RecordVideo(gymnasium.make("CartPole-v1", render_mode="rgb_array"), folder, episode_trigger=lambda _: False)


def recorded_by_all(folder):
    return recorded(folder)


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")
@on("local", "waiting", *slow("processes"))
def test_workers_that_overwrite_each_others_videos_are_warned_of(make_sampler, tmp_path, caplog):
    agents = [always_zero, always_zero]  # one for each worker: then each has trajectories that no other one runs
    for name, make_env, n_workers, check, n_warnings in (
        ("of one", recorded_by_all, 1, "warn", 0),
        ("of their own", recorded, 2, "warn", 0),
        ("unchecked", recorded_by_all, 2, None, 0),
        ("the same", recorded_by_all, 2, "warn", 1),
        ("the same, checked", recorded_by_all, 2, "error", 2),
    ):
        make_env = partial(make_env, str(tmp_path / name))
        sampler = make_sampler(agents[:n_workers], make_env, n_workers=n_workers, seed=3, check=check)
        for _ in range(2):
            sampler.obtain_exact_trajectories(2)
        assert check == "error" or sampler.stats.checked_timesteps == 0  # it would record videos of its own
        assert len(warnings_of(caplog)) == n_warnings, name
    assert f"workers 0 and 1 write to the same files, {tmp_path / 'the same' / 'rl-video'}" in caplog.text
    assert "`worker_number`" in caplog.text
    assert sorted(os.listdir(tmp_path / "of their own")) == ["0", "1"]


class Shown(Steps):
    """Notes, at each of its resets, what its worker shows of its progress."""

    rows: ClassVar[list[Any]] = []
    sampler: Any = None

    def reset(self, **arguments):
        Shown.rows.append(Shown.sampler._life.session.engine.progress(0))
        return super().reset(**arguments)


@pytest.mark.parametrize("n_envs", [None, 2])
@pytest.mark.parametrize("length", [1, 2, 20])
def test_each_reset_of_a_check_shows(length, n_envs):
    """Otherwise two long resets in a row count as a hang, with `step_timeout`."""
    options: Any = {} if n_envs is None else {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}}
    with LocalSampler(always_zero, partial(Shown, length), seed=3, check="error", **options) as sampler:
        Shown.sampler, rows = sampler, Shown.rows
        rows.clear()
        sampler.obtain_trajectories(2)
    assert len(rows) == 3 + 2
    assert [one for one, following in itertools.pairwise(rows) if one == following] == []
