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
from streamsampler.testing.fail_points import Records
from streamsampler.workers import purity
from streamsampler.workers.purity import is_checking
from tests.contracts.conftest import slow_on
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Steps

ENGINES = ["local", "vec", "forkserver", pytest.param("vec forkserver", marks=pytest.mark.slow)]


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


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


def warnings_of(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "get_actions" not in record.message
    ]


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_check_changes_nothing_and_stands_in_the_accounts(make_sampler, caplog, n_workers):
    def calls(check):
        sampler = make_sampler(always_zero, AnyLength, n_workers=n_workers, seed=3, check=check)
        return sampler, [sampler.obtain_samples(200), sampler.obtain_trajectories(5), sampler.obtain_trajectories(5)]

    unchecked, expected = calls(None)
    assert unchecked.stats.checked_timesteps == 0
    for check in ("warn", "error"):
        sampler, batches = calls(check)
        for batch, twin in zip(batches, expected, strict=True):
            assert batch == twin
        if check == "error":  # else it may be broken off, or take too long
            first, *later = (batch.stats.checked_timesteps for batch in batches)
            assert first == sampler.stats.checked_timesteps > 0
            assert later == [0, 0]
        assert sampler.stats.kept_timesteps == unchecked.stats.kept_timesteps
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
def test_what_carries_something_is_warned_of_once(make_sampler, unhurried, caplog):
    sampler = make_sampler(always_zero, unhurried(Counts), n_workers=1, seed=3)
    batches = [sampler.obtain_trajectories(8), sampler.obtain_trajectories(8)]
    (warning,) = warnings_of(caplog)
    assert "Counts was run twice from the same seed" in warning
    # It got a new environment, and so what it would have got without the check.
    twin = make_sampler(always_zero, Counts, n_workers=1, seed=3, check=None)
    for batch in batches:
        assert batch == twin.obtain_trajectories(8)


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
class Numbers(Counts):
    """Tells the number of its trajectories, or of all steps of all such environments, in its infos alone."""

    steps = 0

    def __init__(self, told):
        super().__init__(carries=False)
        self.told = told

    def step(self, action):
        Numbers.steps += 1
        return *super().step(action)[:4], {"told": self.n if self.told == "trajectories" else Numbers.steps}


def test_memory_that_shows_in_infos_alone_is_an_error(make_sampler):
    with pytest.raises(NotReproducibleError, match="its info 'told' after timestep 0 was 1 and then "):
        make_sampler(always_zero, partial(Numbers, "trajectories"), check="error").obtain_trajectories(2)


def test_what_differs_from_run_to_run_is_no_error_and_is_named_once(make_sampler, caplog):
    sampler = make_sampler(always_zero, partial(Numbers, "steps"), check="error")
    with caplog.at_level(logging.WARNING, "streamsampler"):
        for _ in range(2):
            sampler.obtain_trajectories(2)
    assert sum("its info 'told' differed" in record.message for record in caplog.records) == 1


def test_an_error_is_raised_in_each_call_until_the_environment_is_another_one(make_sampler):
    sampler = make_sampler(always_zero, Counts, n_workers=2, seed=3, check="error")
    for call in (sampler.obtain_trajectories, sampler.obtain_samples, lambda _: next(sampler.stream())):
        with pytest.raises(NotReproducibleError, match="its reward after timestep 0 was 2") as caught:
            call(1)
        assert caught.value.worker_number == 0
    batch = sampler.obtain_trajectories(4, env_update=partial(Counts, carries=False))
    assert batch.n_trajectories == 4
    assert sampler.obtain_trajectories(4).n_trajectories == 4


class Noted(Counts):
    """Records which worker made it, and whether that was before the check had run to its end."""

    def __init__(self, folder, carries, worker_number):
        super().__init__(carries)
        self.records = Records(folder)
        self.records.add(f"worker{worker_number}" if self.records.count("checked") else f"early{worker_number}")

    def reset(self, **arguments):
        if is_checking() and self.n == 2:  # its third trajectory is the last one
            self.records.add("checked")
        return super().reset(**arguments)


def test_no_other_worker_works_before_the_verdict_where_an_error_ends_the_call(make_sampler, tmp_path):
    """Whether a call raises would depend on timing: another worker might have collected all by then."""
    refused = make_sampler(always_zero, partial(Noted, tmp_path / "refused", True), n_workers=3, seed=3, check="error")
    with pytest.raises(NotReproducibleError):
        refused.obtain_trajectories(60)
    records = Records(tmp_path / "refused")
    assert [records.count(f"{when}{worker}") for when in ("early", "worker") for worker in (1, 2)] == [0, 0, 0, 0]
    passed = make_sampler(always_zero, partial(Noted, tmp_path / "passed", False), n_workers=3, seed=3, check="error")
    passed.obtain_trajectories(60)
    records = Records(tmp_path / "passed")
    assert records.count("early0")
    assert [records.count(f"early{worker}") for worker in (1, 2)] == [0, 0]


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
def test_an_environment_that_is_refused_is_not_used(make_sampler):
    sampler = make_sampler(always_zero, AnyLength, n_workers=2, seed=3, check="error")
    twin = make_sampler(always_zero, AnyLength, n_workers=1, seed=3, check=None)
    for _ in range(2):
        with pytest.raises(NotReproducibleError):
            sampler.obtain_trajectories(4, env_update=Counts)
        twin.obtain_trajectories(4)
        assert sampler.obtain_trajectories(4) == twin.obtain_trajectories(4)


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
def test_another_class_is_checked_and_the_same_one_or_a_task_is_not(make_sampler):
    sampler = make_sampler(always_zero, partial(Counts, carries=False), n_workers=1, seed=3, check="error")
    updates = (
        None,
        NewEnvUpdate(Counts, {"carries": False}),
        CountsToo(carries=False),
        SetTaskUpdate(partial(CountsToo, carries=False), False),
        SetTaskUpdate(partial(Counts, carries=False), False),
        AnyLength,
        [AnyLength],
    )
    checked = [sampler.obtain_trajectories(2, env_update=env).stats.checked_timesteps > 0 for env in updates]
    assert checked == [True, False, True, False, False, True, False]


class Once(AnyLength):
    """Does something, once in all processes, in the second trajectory of a check."""

    def __init__(self, do, folder):
        super().__init__()
        self.do, self.records, self.n = do, Records(folder), 0

    def reset(self, **arguments):
        self.n += 1
        if is_checking() and self.n == 2 and self.records.add("check") == 1:
            self.do()
        return super().reset(**arguments)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    threading.Event().wait()


def complain():
    raise ValueError


@pytest.mark.parametrize(
    ("do", "check"),
    [
        (hang, "error"),
        (die, "error"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product((die, complain, hang), ("warn", "error"))
            if case not in ((hang, "error"), (die, "error"))
        ),
    ],
)
@pytest.mark.slow
def test_a_worker_that_is_lost_in_its_check_is_replaced(make_local, unhurried, tmp_path, do, check):
    expected = make_local(always_zero, AnyLength, seed=3).obtain_trajectories(20)
    # Each worker has its own: the other worker cannot end the call without the lost one.
    envs = [unhurried(partial(Once, do, tmp_path))] * 2
    # With "warn" a healthy worker that counts as hung in its check would end the check for good.
    step_timeout = 1.0 if check == "error" else 5.0
    limits: dict[str, Any] = {"step_timeout": step_timeout, "max_restarts": None} if do is hang else {}
    with MultiprocessingSampler(always_zero, envs, n_workers=2, seed=3, check=check, **limits) as sampler:
        assert sampler.obtain_trajectories(20) == expected
        restarts, hangs = sampler.stats.restarts, sampler.stats.hangs
        sampler.obtain_trajectories(20)
    # With "error" the one in its place checks; what raised or was lost once might be so each time otherwise.
    n_checks = 2 if check == "error" and do is not complain else 1
    if do is hang:  # on a busy machine healthy workers may count as hung, too
        assert restarts >= 1
        assert hangs >= 1
        assert Records(tmp_path).count() >= n_checks
    else:
        assert (restarts, hangs) == (do is not complain, 0)
        assert Records(tmp_path).count() == n_checks


def test_what_raises_in_a_check_and_in_the_trajectory_is_told_of_the_trajectory(make_sampler):
    class Raises(Steps):
        def step(self, action):
            raise ValueError("no")

    for check in ("warn", "error"):
        with pytest.raises(RolloutError, match="in trajectory 0 of agent version 1: ValueError: no"):
            make_sampler(always_zero, Raises, n_workers=2, seed=3, check=check).obtain_trajectories(3)


def test_an_unpickled_sampler_checks_again(make_sampler):
    sampler = make_sampler(always_zero, AnyLength, n_workers=2, seed=3, check="error")
    sampler.obtain_trajectories(2)
    again = make_sampler.adopt(pickle.loads(pickle.dumps(sampler)))
    assert again.obtain_trajectories(2).stats.checked_timesteps > 0


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
def test_a_known_wrapper_is_warned_of_without_a_check(make_sampler, caplog):
    def make():
        return NormalizeObservation(gymnasium.make("CartPole-v1"))

    sampler = make_sampler(always_zero, make, n_workers=2, seed=3)
    batches = [sampler.obtain_trajectories(8) for _ in range(2)]
    assert sampler.stats.checked_timesteps == 0
    (warning,) = warnings_of(caplog)
    assert "CartPole-v1 is wrapped by NormalizeObservation" in warning
    with pytest.raises(NotReproducibleError, match=r"NormalizeObservation.*update_running_mean to False"):
        make_sampler(always_zero, make, n_workers=2, seed=3, check="error").obtain_trajectories(1)
    caplog.clear()

    def frozen():
        env = make()
        env.update_running_mean = False
        return env

    make_sampler(always_zero, frozen, n_workers=2, seed=3, check="error").obtain_trajectories(1)
    make_sampler(always_zero, make, n_workers=2, seed=3, check=None).obtain_trajectories(1)
    assert warnings_of(caplog) == []
    assert len(batches) == 2


def one_begins_late(folder, *, worker_number):
    records = Records(folder)
    if worker_number == 0:
        with contextlib.suppress(TimeoutError):
            records.wait(14, timeout=1.0)  # copies of what this worker holds: they must not come
    return Notes(records)


class Notes(NormalizeObservation):
    def __init__(self, records):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.records = records

    def reset(self, **arguments):
        self.records.add("reset")
        self.records.wake()
        return super().reset(**arguments)


@pytest.mark.slow
def test_a_call_waits_for_the_worker_that_checks_even_if_it_begins_late(tmp_path, caplog):
    # Worker 0 is still being made when the other one has run all others, and could run its two trajectories, too.
    make = partial(one_begins_late, tmp_path)
    with MultiprocessingSampler(always_zero, make, n_workers=2, seed=3) as sampler:
        sampler.obtain_trajectories(14)
    assert len(warnings_of(caplog)) == 1


def recorded(folder):
    sys.modules.setdefault("moviepy", types.ModuleType("moviepy"))  # nothing is encoded here
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    return RecordVideo(env, folder, episode_trigger=lambda _: False)


def numbered(folder, *, worker_number):
    return recorded(os.path.join(folder, str(worker_number)))


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")
@pytest.mark.parametrize("check", ["warn", "error", pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_workers_that_overwrite_each_others_videos_are_warned_of(make_sampler, tmp_path, caplog, check):
    agents = [always_zero, always_zero]  # one for each worker: then each has trajectories that no other one runs
    sampler = make_sampler(agents, partial(recorded, str(tmp_path)), n_workers=2, seed=3, check=check)
    for _ in range(2):
        sampler.obtain_exact_trajectories(6)
    # Of two workers with several environments each, whichever tells first.
    several = (
        ("environments of worker 0", "environments of worker 1") if make_sampler.side_by_side else "workers 0 and 1"
    )
    warnings = [text for text in warnings_of(caplog) if text.startswith(several)]
    assert len(warnings) == (check is not None)
    assert all("write to the same files, " + str(tmp_path / "rl-video") in text for text in warnings)
    assert all("`worker_number`" in text for text in warnings)


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=ENGINES), indirect=True)
@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")
def test_workers_with_videos_of_their_own_are_not_warned_of(make_sampler, tmp_path, caplog):
    # All environments of one worker have its number.
    options = {"worker_args": {"n_envs": 1}} if make_sampler.side_by_side else {}
    agents = [always_zero, always_zero]
    make_sampler(agents, partial(numbered, str(tmp_path)), n_workers=2, seed=3, **options).obtain_exact_trajectories(2)
    assert warnings_of(caplog) == []
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")
def test_one_worker_overwrites_nothing(tmp_path, caplog):
    with LocalSampler(always_zero, partial(recorded, str(tmp_path)), seed=3) as sampler:
        sampler.obtain_trajectories(2)
        assert sampler.stats.checked_timesteps == 0  # it would record videos of its own
    assert warnings_of(caplog) == []


class Shown(Steps):
    """Notes, at each of its resets, what its worker shows of its progress."""

    rows: ClassVar[list[Any]] = []
    sampler: Any = None

    def reset(self, **arguments):
        Shown.rows.append(Shown.sampler._session.engine.progress(0))
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
    assert len(rows) == 3 * (n_envs or 1) + 2
    assert [one for one, following in itertools.pairwise(rows) if one == following] == []


@pytest.mark.slow
def test_a_check_that_is_broken_off_goes_on_in_a_later_call_and_ends():
    """It has 0.2 seconds in all; what is sampled meanwhile is the same."""
    with MultiprocessingSampler(always_zero, partial(Steps, 60, 0.002), n_workers=3, seed=3) as sampler:
        twin = LocalSampler(always_zero, partial(Steps, 60), seed=3, check=None)
        for _ in range(4):
            assert sampler.obtain_trajectories(2) == twin.obtain_trajectories(2)
        twin.close()
        assert sampler.stats.checked_timesteps <= 0.2 / 0.002 + 4
