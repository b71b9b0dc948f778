"""Environments that are lost come back as they were, or are reported."""

import contextlib
import functools
import itertools
import os
import random
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerHungError
from streamsampler.stepping.ledger import EnvState
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.patience import PATIENCE
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting, Doomed


class Walk(Counting):
    """Its observations depend on its seed, on chance and on all actions so far; fails as long as a file is there."""

    def __init__(self, mark, length=50, how="raise"):
        super().__init__(length)
        self.mark, self.how = mark, how

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        observation[1] = self.np_random.random()
        return observation, {} if options is None else info

    def step(self, action):
        before = self._buffer[1]
        if action == 7 and self._fails():
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the gearbox is stuck")
        result = super().step(action)
        self._buffer[1] = 0.5 * before + self.np_random.random() + action
        return result

    def _fails(self):
        if self.how not in ("raise", "die"):
            return self.mark.exists()
        try:
            self.mark.unlink()  # whoever does it, of the processes that try at the same time
        except FileNotFoundError:
            return False
        return True


class Hidden(Walk):
    """Draws from the system's randomness."""

    def step(self, action):
        result = super().step(action)
        if self._t == 3:
            self._buffer[1] += int.from_bytes(os.urandom(4), "little")
        return result


def stream_of(manager, actions, at_step=None):
    """Return all that steps hand out under actions."""
    with manager:
        manager.reset()
        seen = []
        for number, action in enumerate(actions):
            if at_step is not None:
                at_step(manager, number)
            steps = manager.step(np.full(manager.n_envs, action))
            seen.append([
                value.tolist() for value in (
                    steps.observations, steps.rewards, steps.terminated, steps.truncated, steps.last_observations,
                    steps.episodes, steps.timesteps, steps.actions, steps.previous_observations, steps.failed,
                )
            ])  # fmt: skip
    return seen


def kill(manager, worker):
    pid = manager.worker_pids()[worker]
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


ACTIONS = [1, 2, 7, 3, 4, 5, 7, 1, 2]


@pytest.mark.parametrize(
    ("how", "kind"),
    [("raise", "serial"), pytest.param("raise", "processes", marks=pytest.mark.slow), ("die", "processes")],
)
def test_a_failure_leaves_no_trace(tmp_path, how, kind, caplog):
    mark = tmp_path / "mark"
    envs = functools.partial(Walk, mark, length=6, how=how)
    options: dict[str, Any] = {"n_envs": 3, "seed": 4}
    expected = stream_of(SerialEnvManager(envs, **options), ACTIONS)
    mark.touch()
    manager = MANAGERS[kind](envs, **options)
    assert stream_of(manager, ACTIONS) == expected
    assert not mark.exists()
    assert manager.failures == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("autoreset", "killed_before"),
    [
        ("next_step", [24]),
        *(pytest.param(mode, [0, 12, 24, 36, 48], marks=pytest.mark.slow) for mode in ("next_step", "same_step")),
    ],
)
def test_killed_workers_leave_no_trace(autoreset, killed_before):
    options: dict[str, Any] = {"n_envs": 4, "seed": 4, "autoreset": autoreset}
    envs = functools.partial(gymnasium.make, "CartPole-v1")
    actions = list(itertools.islice(itertools.cycle([0, 1, 1]), 60))
    expected = stream_of(SerialEnvManager(envs, **options), actions)
    manager = EnvManager(envs, n_workers=2, **options)
    assert stream_of(manager, actions, lambda it, number: number in killed_before and kill(it, number % 2)) == expected
    assert manager.failures == len(killed_before)


@pytest.mark.slow
def test_five_hundred_kills_leave_no_trace():
    """Before a step, or while environments step; each worker in turn, and now and then both."""
    draw = random.Random(6)
    options: dict[str, Any] = {"n_envs": 6, "seed": 4}
    actions = [draw.randrange(2) for _ in range(450)]
    plan = [draw.choice([(), (number % 2,), (0, 1), (0, 1)]) for number in range(len(actions))]
    n_kills = sum(map(len, plan))

    def kill_some(manager, number):
        for worker in plan[number]:
            kill(manager, worker)

    expected = stream_of(SerialEnvManager("CartPole-v1", **options), actions)
    manager = EnvManager("CartPole-v1", n_workers=2, max_restarts=None, **options)
    assert stream_of(manager, actions, kill_some) == expected
    assert n_kills >= 500
    assert manager.stats.restored >= n_kills == manager.failures


@pytest.mark.parametrize(
    ("verify", "reason"),
    [
        ("last", "its last observation, of timestep 4, is another one"),
        ("steps", "its observation of timestep 3 is another"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "autoreset"),
    [
        ("serial", "next_step"),
        ("serial", "same_step"),
        ("serial", "disabled"),
        ("processes", "next_step"),
        pytest.param("processes", "same_step", marks=pytest.mark.slow),
        pytest.param("processes", "disabled", marks=pytest.mark.slow),
    ],
)
def test_hidden_randomness_is_found_out(tmp_path, verify, reason, kind, autoreset, caplog):
    mark = tmp_path / "mark"
    mark.touch()
    envs = [functools.partial(Hidden, mark), functools.partial(Walk, mark)]
    with MANAGERS[kind](envs, n_envs=2, seed=0, verify=verify, autoreset=autoreset) as manager:
        seen = [manager.reset()]
        seen += [manager.step(np.array([action, 0])) for action in [1, 2, 3, 4]]
        steps = manager.step(np.array([7, 0]))
        assert steps.failed.tolist() == [True, False]
        assert steps.truncated.tolist() == [True, False]
        assert steps.last_observations[0].tolist() == seen[-1].observations[0].tolist()
        assert steps.previous_observations[0].tolist() == seen[-1].observations[0].tolist()
        (record,) = caplog.records
        assert f"environment 0 could not be restored: {reason}" in record.message
        if autoreset == "disabled":
            manager.reset([0])
        elif autoreset == "next_step":
            manager.step(np.array([1]), [0])
        steps = manager.step(np.array([1, 1]))
        assert steps.episodes.tolist() == [1, 0]
        assert steps.timesteps[0] == 1


def test_an_environment_that_was_lost_while_it_waited_and_cannot_be_restored(tmp_path, caplog):
    """Its action was on its way before that was known: the environment that is not what it was must not take it."""
    with EnvManager(functools.partial(Hidden, tmp_path / "mark"), n_envs=2, n_workers=1, seed=0) as manager:
        manager.reset()
        for _ in range(4):
            manager.step(np.array([1, 1]))
        kill(manager, 0)
        steps = manager.step(np.array([1, 1]))
        assert steps.failed.all()
        assert manager.step(np.array([1, 1])).timesteps.tolist() == [0, 0]
        assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]
        assert len(caplog.records) == 2


@pytest.mark.parametrize("kind", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_fails_whenever_it_is_tried_is_an_error(tmp_path, kind, caplog):
    """The other environments go on, and it begins its next episode when it is reset."""
    mark = tmp_path / "mark"
    mark.touch()
    envs = [functools.partial(Walk, mark, how="always"), functools.partial(Walk, mark)]
    with MANAGERS[kind](envs, n_envs=2, seed=0) as manager:
        manager.reset()
        assert manager.step(np.array([1, 1])).failed.tolist() == [False, False]
        for episode in range(5):
            with pytest.raises(RolloutError, match=r"environment 0 raised in step.*the gearbox is stuck"):
                manager.step(np.array([7, 0]))
            assert manager.failures == 2 * (episode + 1)
            assert manager.states == (EnvState.FAILED, EnvState.STEPPING)
            steps = manager.recv()
            assert (steps.env_ids.tolist(), steps.failed.tolist()) == ([1], [False])
            assert manager.reset([0]).episodes.tolist() == [episode + 1]
        with pytest.raises(RolloutError, match="that is 11 losses within 60 s, and max_restarts is 10"):
            manager.step(np.array([7, 0]))
        assert caplog.records == []


@pytest.mark.parametrize("on_failure", ["restore", "raise"])
def test_after_several_failures_in_one_step_all_are_reset(new_manager, on_failure):
    """Each failure is recorded, also those after the first, which is raised: no reset waits for ever."""
    manager = new_manager(Counting, n_envs=3, seed=0, on_failure=on_failure)
    manager.reset()
    with pytest.raises(RolloutError, match="the gearbox is stuck"):
        manager.step(np.array([9, 1, 9]))
    assert manager.reset().timesteps.tolist() == [0, 0, 0]
    assert manager.step(np.array([1, 1, 1])).rewards.tolist() == [1, 1, 1]


def test_after_several_deaths_in_one_step_all_are_reset():
    with EnvManager(Doomed, n_envs=2, n_workers=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        with pytest.raises(WorkerDiedError):
            manager.step(np.array([7, 7]))
        assert manager.reset().timesteps.tolist() == [0, 0]
        assert manager.step(np.array([1, 1])).rewards.tolist() == [1, 1]
        assert manager.failures == 2


class NeverReset(Counting):
    def reset(self, *, seed=None, options=None):
        raise OSError("no display")


@pytest.mark.parametrize("kind", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
def test_a_reset_that_always_fails_is_an_error(kind, on_failure):
    with MANAGERS[kind]([Counting, NeverReset], n_envs=2, seed=0, on_failure=on_failure, max_restarts=None) as manager:
        with pytest.raises(RolloutError, match=r"environment 1 raised in reset.*no display"):
            manager.reset()
        assert manager.failures == 2


@pytest.mark.parametrize("kind", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_actions_are_kept_for_so_many_timesteps(tmp_path, kind, caplog):
    mark = tmp_path / "mark"
    envs = [functools.partial(Walk, mark), Counting]
    with MANAGERS[kind](envs, n_envs=2, seed=0, restore_limit=3) as manager:
        manager.reset()
        for number, action in enumerate([1, 1, 1, 7, 1, 7]):
            if action == 7:
                mark.touch()
            assert manager.step(np.array([action, 0])).failed.tolist() == [number == 5, False]
        assert "its episode has 5 timesteps, and restore_limit is 3: give a larger one" in caplog.records[0].message


@pytest.mark.slow
def test_a_worker_that_hangs_once(tmp_path, caplog):
    mark = tmp_path / "mark"
    mark.touch()
    with EnvManager(functools.partial(HangsOnce, mark), n_envs=2, n_workers=1, seed=0, step_timeout=5) as manager:
        manager.reset()
        assert manager.step(np.array([1, 7])).timesteps.tolist() == [1, 1]
        assert manager.failures == 1
        assert caplog.records == []


@pytest.mark.slow
def test_a_worker_that_always_hangs_is_an_error_with_its_stack(caplog, monkeypatch):
    monkeypatch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
    with EnvManager(Doomed, n_envs=2, n_workers=1, seed=0, step_timeout=5) as manager:
        manager.reset()
        with pytest.raises(WorkerHungError) as caught:
            manager.step(np.array([1, 8]))
        assert "environments.py" in caught.value.stack
        assert manager.failures == 2
        steps = manager.recv()
        assert (steps.env_ids.tolist(), steps.timesteps.tolist()) == ([0], [1])
        assert manager.reset([1]).episodes.tolist() == [1]
        assert caplog.records == []


class HangsOnce(Counting):
    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def step(self, action):
        if action == 7 and self.mark.exists():
            self.mark.unlink()
            threading.Event().wait()
        return super().step(action)


class Shifted(Counting):
    """Adds what its options say to what it observes."""

    def step(self, action):
        observation, *others = super().step(action)
        shift = 0 if self.options is None else self.options["shift"]
        return observation + shift, *others


@pytest.mark.parametrize("face", ["vector_env", pytest.param("sb3_env", marks=pytest.mark.extras)])
@pytest.mark.slow
def test_an_episode_is_restored_with_options_that_are_forgotten(face, caplog):
    """Those of the faces hold for one reset: of the episode that began with them, and of none after it."""
    with EnvManager(Shifted, n_envs=2, n_workers=1, seed=0, autoreset="same_step") as manager:
        env = getattr(manager, face)()
        if face == "sb3_env":
            env.set_options([{"shift": 10}, {"shift": 10}])
            env.reset()
        else:
            env.reset(options={"shift": 10})
        seen = []
        for number in range(8):
            if number in (1, 4):
                kill(manager, 0)
            seen.append(env.step(np.ones(2, np.int64))[0][0, 1])
        assert seen == [11, 12, 0, 1, 2, 0, 1, 2]
        assert manager.failures == 2
    assert caplog.records == []


class Lessons(Counting):
    """Its rewards depend on what was set and called, and when."""

    level = 0
    log: tuple[str, ...] = ()

    def note(self, word):
        self.log = (*self.log, f"{word} at {self._t}")
        return len(self.log)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 100 * self.level + 1000 * len(self.log), *rest


def lessons(manager, disturb):
    with manager:
        manager.set_attr("level", [1, 2])
        manager.call("note", "before")
        rows = [manager.reset().rewards.tolist()]
        for number in range(6):
            if number == 2:
                manager.call("note", "within", env_ids=[1])
            if number == 3:
                disturb(manager)
                manager.set_attr("level", 5, [1])
            rows.append(manager.step(np.array([1, 1])).rewards.tolist())
        return rows, manager.get_attr("log"), manager.get_attr("level"), manager.failures


@pytest.mark.parametrize("kind", ["serial", "processes"])
@pytest.mark.slow
def test_calls_and_attributes_are_repeated_with_environments_that_are_made_anew(kind):
    def fail(manager):
        if kind == "serial":
            with pytest.raises(RolloutError):  # it raises when it is tried again, too
                manager.step(np.array([9]), [1])
            manager.reset([1])
        else:
            kill(manager, 0)
            kill(manager, 1)

    envs = functools.partial(Lessons, length=20)
    options: dict[str, Any] = {"n_envs": 2, "seed": 0}
    *expected, _ = lessons(SerialEnvManager(envs, **options), lambda _: None)
    assert expected[1] == [("before at 0",), ("before at 0", "within at 2")]
    *found, failures = lessons(MANAGERS[kind](envs, **options), fail)
    assert failures == 2
    if kind == "processes":
        assert found == expected
    else:  # its episode has ended, and what was called within it was called before the next one
        assert found[1:] == [[("before at 0",), ("before at 0", "within at 0")], [1, 5]]


@pytest.mark.parametrize("on_failure", ["raise", pytest.param("reset", marks=pytest.mark.slow)])
def test_they_are_repeated_also_where_episodes_are_not_restored(on_failure):
    with EnvManager(Lessons, n_envs=2, n_workers=1, seed=0, on_failure=on_failure) as manager:
        manager.set_attr("level", [1, 2])
        manager.reset()
        kill(manager, 0)
        if on_failure == "raise":
            with pytest.raises(WorkerDiedError):
                manager.step(np.array([0, 0]))
        else:
            assert manager.step(np.array([0, 0])).failed.all()
        manager.reset()
        assert manager.step(np.array([0, 0])).rewards.tolist() == [100, 200]


def test_too_many_calls_are_reported(caplog):
    with SerialEnvManager(Lessons, n_envs=1, seed=0) as manager:
        manager.reset()
        for level in range(1001):
            manager.set_attr("level", level)
        assert manager.step(np.array([9])).failed.all()
        assert "more than 1,000 times its methods were called" in caplog.records[0].message


class DiesInACall(Lessons):
    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def learn(self):
        with contextlib.suppress(FileNotFoundError):  # the other worker looks at the same time
            self.mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        self.level += 1
        return self.level


def test_a_call_whose_worker_is_lost_is_carried_out_in_the_restored_environments(tmp_path):
    mark = tmp_path / "mark"
    with EnvManager(functools.partial(DiesInACall, mark), n_envs=4, n_workers=2, seed=0) as manager:
        manager.reset()
        assert manager.call("learn") == [1] * 4
        mark.touch()
        assert manager.call("learn") == [2] * 4
        assert manager.failures == 1
        assert manager.step(np.ones(4, np.int64)).rewards.tolist() == [201] * 4


class Noisy(Counting):
    """Draws from NumPy's global generator, which a fork server gives all its workers in the same state."""

    def step(self, action):
        observation, *rest = super().step(action)
        observation[1] += np.random.random()
        return observation, *rest


def test_draws_from_a_global_generator_are_found_out():
    with EnvManager(functools.partial(Noisy, 20), n_envs=2, n_workers=1, seed=0) as manager:
        manager.reset()
        for _ in range(4):
            manager.step(np.array([1, 1]))
        kill(manager, 0)
        assert manager.step(np.array([1, 1])).failed.all()


def test_a_result_that_was_written_and_not_sent_is_not_handed_out():
    """The first environment's result lies in its row when the second one kills their worker."""
    with EnvManager([Counting, Doomed], n_envs=2, n_workers=1, seed=0, on_failure="reset") as manager:
        manager.reset()
        steps = manager.step(np.array([1, 7]))
        assert steps.failed[1]
        assert steps.observations[0, 1] == (0 if steps.failed[0] else 1)
