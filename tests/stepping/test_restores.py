"""Environments that are lost come back as they were, or are reported."""

import functools
import itertools
import os
import random
import threading
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import Limits, LocalSampler
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.stepping import receiver
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.testing import Fault, Faults
from tests.patience import PATIENCE
from tests.stepping.conftest import MANAGERS, kill
from tests.stepping.environments import Counting, Strolling
from tests.stepping.test_spaces import ENVS as SHAPES
from tests.tiers import mostly_slow

FOREVER = 10 * PATIENCE
ONES = np.array([1, 1])


def stream_of(manager, n_steps=14, at_step=lambda manager, number: None):
    """Return all that steps hand out under random actions."""
    with manager:
        manager.reset()
        seen = []
        for number in range(n_steps):
            at_step(manager, number)
            actions = manager.random_actions()
            steps = manager.step(list(actions) if actions.dtype == object else actions)
            seen.append(repr([
                steps.observations.tolist(), steps.rewards.tolist(), steps.terminated.tolist(),
                steps.truncated.tolist(), steps.failed.tolist(), steps.last_observations.tolist(),
                steps.episodes.tolist(), steps.timesteps.tolist(), steps.actions.tolist(), steps.info_by_row,
                steps.previous_observations[steps.timesteps > 0].tolist(),
            ]))  # fmt: skip
    return seen


RAISES = [Fault("raise", "step", step=3), Fault("raise", "reset")]
KILLS = [Fault("kill", "step", step=3), Fault("kill", "step", step=2), Fault("kill", "reset")]
HANGS = [Fault("hang", "step", step=3), Fault("hang", "reset")]


@pytest.mark.parametrize(
    ("kind", "envs", "faults", "options"),
    mostly_slow(
        [
            ("serial", Strolling, RAISES, {"verify": "steps"}),
            ("serial", Strolling, RAISES, {"autoreset": "same_step", "restart_wait": 0.02}),
            ("serial", SHAPES, RAISES, {"autoreset": "same_step"}),
            ("processes", Strolling, [*RAISES, *KILLS], {"verify": "steps"}),
            ("processes", Strolling, KILLS, {"autoreset": "same_step", "restart_wait": 0.05}),
            ("processes", SHAPES, KILLS, {"verify": "steps"}),
            pytest.param("processes", Strolling, HANGS, {"step_timeout": 3.0}, marks=pytest.mark.slow),
        ],
        2,
    ),
    ids=str,
)
def test_losses_leave_no_trace(tmp_path, kind, envs, faults, options, caplog):
    of_all = envs if isinstance(envs, list) else [envs] * 4
    given = {"n_envs": 4, "seed": 4, "autoreset": options.get("autoreset", "next_step")}
    expected = stream_of(SerialEnvManager(of_all, **given))
    failing = Faults(tmp_path, *faults)
    manager = MANAGERS[kind]([failing.env(env) for env in of_all], **{**given, **options, "max_restarts": None})
    assert stream_of(manager) == expected
    assert failing.fired() == len(faults)
    fewest = 2 if kind == "processes" else len(faults)  # workers may die at the same time
    assert fewest <= manager.failures
    assert manager.failures <= len(faults) or "step_timeout" in options  # which others may exceed that are slow
    assert caplog.records == []


@pytest.mark.slow
def test_five_hundred_kills_leave_no_trace():
    """More than samplers allow in their whole life by default; of each worker in turn, and now and then of both."""
    draw, n_steps = random.Random(6), 450
    plan = [draw.choice([(), (number % 2,), (0, 1), (0, 1)]) for number in range(n_steps)]
    options: dict[str, Any] = {"n_envs": 6, "seed": 4}
    expected = stream_of(SerialEnvManager("CartPole-v1", **options), n_steps)
    manager = EnvManager(
        "CartPole-v1", n_workers=2, max_restarts=None, limits=Limits(max_lifetime_restarts=None), **options
    )
    assert stream_of(manager, n_steps, lambda it, number: plan[number] and kill(it, *plan[number])) == expected
    assert manager.stats.restored >= manager.failures == sum(map(len, plan)) >= 500


class Hidden(Counting):
    """Draws from the system's randomness, in its third step."""

    def step(self, action):
        observation, *rest = super().step(action)
        if self._t == 3:
            self._buffer[1] += int.from_bytes(os.urandom(4), "little")
        elif self._t > 3:
            self._buffer[1] = action  # what it was does not show
        return observation, *rest


@pytest.mark.parametrize(
    ("verify", "n", "reason"),
    [
        ("last", 3, "its last observation, of timestep 3, differs"),
        ("steps", 4, "its observation of timestep 3 differs"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "autoreset"), [("serial", "same_step"), ("serial", "disabled"), ("processes", "next_step")]
)
def test_hidden_randomness_is_found_out(tmp_path, verify, n, reason, kind, autoreset, caplog):
    faults = Faults(tmp_path, Fault("kill" if kind == "processes" else "raise", "step", step=n + 1))
    envs = [faults.env(lambda: Hidden(99)), functools.partial(Counting, 99)]
    with MANAGERS[kind](envs, n_envs=2, seed=0, verify=verify, autoreset=autoreset) as manager:
        seen = [manager.reset(), *(manager.step(ONES) for _ in range(n))][-1].observations[0].tolist()
        steps = manager.step(ONES)
        assert steps.failed.tolist() == steps.truncated.tolist() == [True, False]
        assert steps.last_observations[0].tolist() == seen == steps.previous_observations[0].tolist()
        (record,) = caplog.records
        assert f"environment 0 could not be restored: {reason}" in record.message
        if autoreset == "disabled":
            manager.reset([0])
        elif autoreset == "next_step":
            manager.step(np.array([1]), [0])
        steps = manager.step(ONES)
        assert (steps.episodes.tolist(), steps.timesteps[0]) == ([1, 0], 1)
        assert manager.stats.not_restored == 1


@pytest.mark.slow
def test_an_environment_that_was_lost_while_it_waited_and_cannot_be_restored(caplog):
    """Its action was on its way before that was known: the environment that is not what it was must not take it."""
    with EnvManager(lambda: Hidden(99), n_envs=2, n_workers=1, seed=0) as manager:
        manager.reset()
        for _ in range(3):
            manager.step(ONES)
        kill(manager)
        assert manager.step(ONES).failed.all()
        for timestep in (0, 1):
            assert manager.step(ONES).timesteps.tolist() == [timestep] * 2
        assert len(caplog.records) == 2


def test_what_fails_whenever_it_is_tried_spends_the_quota():
    with SerialEnvManager(Counting, n_envs=2, seed=0) as manager:
        manager.reset()
        for episode in range(5):
            with pytest.raises(RolloutError, match=r"environment 0 raised in step.*the gearbox is stuck"):
                manager.step(np.array([9, 0]))
            assert manager.failures == 2 * (episode + 1)
            manager.recv()
            assert manager.reset([0]).episodes.tolist() == [episode + 1]
        with pytest.raises(RolloutError, match="that is 11 losses within 60 s, and max_restarts is 10"):
            manager.step(np.array([9, 0]))


def test_actions_are_kept_for_so_many_timesteps(tmp_path, caplog):
    faults = Faults(tmp_path, Fault("raise", step=4), Fault("raise", step=6))
    envs = [faults.env(functools.partial(Counting, 9)), functools.partial(Counting, 9)]
    with SerialEnvManager(envs, n_envs=2, seed=0, restore_limit=3) as manager:
        manager.reset()
        for timestep in range(1, 7):
            assert manager.step(np.array([1, 0])).failed.tolist() == [timestep == 6, False]
        assert "its episode has 5 timesteps, but restore_limit is 3: pass a larger one" in caplog.records[0].message


class Shifted(Counting):
    """Adds what its options say to what it observes."""

    def step(self, action):
        observation, *others = super().step(action)
        return observation + (0 if self.options is None else self.options["shift"]), *others


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
                kill(manager)
            seen.append(env.step(ONES)[0][0, 1])
        assert seen == [11, 12, 0, 1, 2, 0, 1, 2]
        assert manager.failures == 2
    assert caplog.records == []


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_others_go_on_while_one_waits(tmp_path, how):
    envs = [Faults(tmp_path, Fault(how)).env(Counting), functools.partial(Counting, 10**6)]
    with MANAGERS["processes"](envs, n_envs=2, seed=0, restart_wait=FOREVER) as manager:
        manager.reset()
        manager.send([1], [0])
        while not manager.failures:  # until it is known
            assert manager.step([1], [1]).env_ids.tolist() == [1]
        assert manager.step([1], [1]).env_ids.tolist() == [1]
        assert manager.states == (EnvState.STEPPING, EnvState.READY)


def test_a_worker_that_dies_while_an_environment_waits_in_it(tmp_path):
    """The environment is restored with the new worker, and not once more when it has waited."""
    envs = [Faults(tmp_path, Fault("raise")).env(functools.partial(Counting, 9)), functools.partial(Counting, 10**6)]
    with EnvManager(envs, n_envs=2, n_workers=1, seed=0, restart_wait=0.3) as manager:
        manager.reset()
        manager.send([6], [0])
        while not manager.failures:
            manager.step([1], [1])
        kill(manager)
        assert manager.get_attr("level", [1]) == [0], "a call to a worker that waits for its start"
        assert manager.recv_from([0]).rewards.tolist() == [6]
        assert [manager.step([action], [0]).rewards.tolist() for action in (1, 2, 3, 4)] == [[1], [2], [3], [4]]
        assert manager.stats.not_restored == 0


def test_an_interrupt_while_a_worker_waits_for_its_start():
    """What the worker was to be told is told once: by what is asked for after the interrupt."""
    with EnvManager(functools.partial(Counting, 9), n_envs=2, n_workers=1, seed=0, restart_wait=0.3) as manager:
        manager.reset()
        kill(manager)
        manager.send(ONES)
        while not manager.failures:
            manager.recv(timeout=0.01)
        manager._transport.in_critical_section = True  # as if it had come in the middle of a call
        assert manager.recv_from().timesteps.tolist() == [1, 1]
        for timestep in (2, 3):
            assert manager.step(ONES).timesteps.tolist() == [timestep] * 2


def test_what_has_failed_for_good_is_made_anew_before_its_reset(monkeypatch):
    """Its caller may reset it at once: to make it anew after the time that passes between two tries would undo that."""
    looks = itertools.count(step=1e-4)  # at the clock, of which a step takes one or two
    monkeypatch.setattr(receiver, "time", types.SimpleNamespace(monotonic=looks.__next__))
    with SerialEnvManager(functools.partial(Counting, 50), n_envs=1, seed=0, restart_wait=1e-3) as manager:
        manager.reset()
        with pytest.raises(RolloutError, match="the gearbox is stuck"):
            manager.step([9])
        ((seed, _),) = manager.reset().observations.tolist()
        for timestep in range(1, 20):
            assert manager.step([1]).observations.tolist() == [[seed, timestep]]


class Lesson(Counting):
    """Its rewards tell its level, and what was called when."""

    log: tuple[str, ...] = ()

    def __init__(self, length=20, is_bad=False, folder=None):
        super().__init__(length)
        self.is_bad, self.folder = is_bad, folder

    def note(self, word):
        self.log = (*self.log, f"{word} at {self._t}")
        return len(self.log)

    def where(self):
        self.log = (*self.log, f"somewhere at {self._t}")
        return [self._t]

    def learn(self, how):
        self.level += 1
        if self.folder is not None:
            Faults(self.folder, Fault("kill", "action")).maybe("action")
        if how == "raise" and self.is_bad:
            raise ValueError("no lesson here")
        return threading.Lock() if how == "lock" else self.level

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 100 * self.level + 1000 * len(self.log), *rest


def test_calls_and_attributes_are_repeated_with_environments_that_are_made_anew(caplog):
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
                rows.append(manager.step(ONES).rewards.tolist())
            return rows, manager.get_attr("log"), manager.get_attr("level")

    def fail(manager):
        with pytest.raises(RolloutError):  # it raises when it is tried again, too
            manager.step(np.array([9]), [1])
        manager.reset([1])

    options: dict[str, Any] = {"n_envs": 2, "seed": 0}
    expected = lessons(SerialEnvManager(Lesson, **options), lambda _: None)
    assert expected[1] == [("before at 0",), ("before at 0", "within at 2")]
    assert lessons(MANAGERS["processes"](Lesson, **options), kill) == expected
    # Where its episode has ended, what was called within it was called before the next one.
    found = lessons(SerialEnvManager(Lesson, **options), fail)
    assert found[1:] == ([("before at 0",), ("before at 0", "within at 0")], [1, 5])
    assert caplog.records == []


@pytest.mark.parametrize("on_failure", ["raise", pytest.param("reset", marks=pytest.mark.slow)])
def test_they_are_repeated_also_where_episodes_are_not_restored(on_failure):
    with EnvManager(Lesson, n_envs=2, n_workers=1, seed=0, on_failure=on_failure) as manager:
        manager.set_attr("level", [1, 2])
        manager.reset()
        kill(manager)
        if on_failure == "raise":
            with pytest.raises(WorkerDiedError):
                manager.step(np.array([0, 0]))
        else:
            assert manager.step(np.array([0, 0])).failed.all()
        manager.reset()
        assert manager.step(np.array([0, 0])).rewards.tolist() == [100, 200]


@pytest.mark.parametrize("how", ["raise", pytest.param("lock", marks=pytest.mark.slow)])
def test_a_call_that_raises_in_one_environment_is_repeated_where_it_was_carried_out(how, caplog):
    envs: list[Any] = [Lesson, lambda: Lesson(is_bad=True), Lesson]
    with EnvManager(envs, n_envs=3, n_workers=3, seed=0) as manager:
        manager.reset()
        with pytest.raises(Exception, match=r"no lesson here|cannot be pickled"):
            manager.call("learn", how)
        expected = manager.step(np.array([0, 0, 0])).rewards.tolist()
        kill(manager)
        steps = manager.step(np.array([0, 0, 0]))
        assert steps.rewards.tolist() == expected
        assert not steps.failed.any()
        assert expected[:2] == [100, 100]
    assert caplog.records == []


@pytest.mark.slow
def test_a_call_whose_worker_is_lost_is_carried_out_in_the_restored_environments(tmp_path):
    with EnvManager(lambda: Lesson(folder=tmp_path), n_envs=4, n_workers=2, seed=0) as manager:
        manager.reset()
        manager.set_attr("level", 1)
        assert manager.call("learn", "") == [2] * 4
        assert manager.failures == 1
        assert manager.step(np.ones(4, np.int64)).rewards.tolist() == [201] * 4


@pytest.mark.parametrize(
    ("on_failure", "goes_on"),
    [("restore", True), pytest.param("reset", True, marks=pytest.mark.slow), ("restore", False), ("raise", False)],
)
@pytest.mark.slow
def test_a_call_of_an_earlier_episode_whose_result_depended_on_it_is_reported(on_failure, goes_on, caplog):
    options: dict[str, Any] = {"seed": 0, "autoreset": "disabled", "on_failure": on_failure}
    with EnvManager(lambda: Lesson(2), n_envs=1, n_workers=1, **options) as manager:
        for name in ("note", "where"):  # the result of the first one is the same again
            manager.reset()
            manager.step(np.array([1]))
            assert manager.call(name, *["x"] * (name == "note")) in ([1], [[1]])
        manager.step(np.array([1]))
        if goes_on:
            manager.reset()
        kill(manager)
        if on_failure == "raise":
            with pytest.raises(WorkerDiedError):
                manager.get_attr("level")
        elif goes_on:
            assert manager.step(np.array([1])).failed.all()
        else:
            manager.wait(0)
        assert manager.reset().timesteps.tolist() == [0]
        assert manager.step(np.array([1])).timesteps.tolist() == [1]
    assert "where was called in an earlier episode, and its result depends on that episode" in caplog.records[0].message


def test_so_many_calls_are_repeated_and_attributes_that_were_set_to_something_else_since_are_not(caplog):
    with SerialEnvManager(Lesson, n_envs=1, seed=0) as manager:
        for level in range(1100):
            manager.set_attr("level", level)
            if level % 100 == 0:
                manager.reset()
        with pytest.raises(RolloutError):
            manager.step(np.array([9]))
        manager.reset()
        assert manager.step(np.array([0])).rewards.tolist() == [109900]
        assert caplog.records == []
        for _ in range(1010):
            manager.call("set_level", 1)
        (record,) = caplog.records
        assert "environment 0 cannot be restored from now on: its methods were called" in record.message
        assert "more than 1,000 times" in record.message
        assert manager.step(np.array([9])).failed.all()


class Drawing(gymnasium.Env):
    """Draws from global generators in its reset, in its steps, or in neither; ends after four timesteps."""

    observation_space = spaces.Box(0, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, in_reset=True, in_steps=True):
        self.in_reset, self.in_steps = in_reset, in_steps

    def _draw(self, draws):
        return np.array([random.random(), np.random.random()]) if draws else np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self._draw(self.in_reset), {}

    def step(self, action):
        self.n += 1
        return self._draw(self.in_steps), 0.0, self.n == 4, False, {}


NEITHER, IN_STEPS = functools.partial(Drawing, False, False), functools.partial(Drawing, in_reset=False)


def messages(caplog):
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    ("envs", "options", "warns"),
    [
        (Drawing, {}, True),  # it is found out in its reset, before another environment could draw
        pytest.param(Drawing, {"autoreset": "same_step"}, True, marks=pytest.mark.slow),
        (IN_STEPS, {"own_generators": True}, False),
    ],
)
@pytest.mark.slow
def test_draws_from_global_generators_are_the_same_everywhere(envs, options, warns, caplog):
    """Also where workers are killed; the caller's own states are preserved."""

    def kill_some(manager, number):
        if number in (2, 9):
            kill(manager, 0)

    given: dict[str, Any] = {"n_envs": 4, "seed": 3, **options}
    random.seed(5)
    np.random.seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    alone = stream_of(SerialEnvManager(envs, **given))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[index]
    assert stream_of(EnvManager(envs, n_workers=2, **given), at_step=kill_some) == alone
    warnings = messages(caplog)
    assert len(warnings) == 2 * warns  # one for each manager, and nothing that was not restored
    assert all("(Drawing) draws from a global generator" in it and "own_generators=True" in it for it in warnings)


@pytest.mark.slow
def test_what_draws_and_is_not_known_to_do_so_is_not_restored():
    """A fork server gives all its workers the same state: what is made anew must not draw the same by chance."""
    with EnvManager(IN_STEPS, n_envs=2, n_workers=1, seed=0) as manager:
        manager.reset()
        for _ in range(3):
            manager.step(np.zeros(2, np.int64))
        kill(manager)
        assert manager.step(np.zeros(2, np.int64)).failed.all()


def test_they_are_those_of_a_sampler():
    with LocalSampler("random", Drawing, seed=3) as sampler:
        batch = sampler.obtain_trajectories(4)
    with SerialEnvManager(Drawing, n_envs=4, seed=0, own_generators=True) as manager:
        seen = [manager.reset(seed=list(batch.seeds)), *(manager.step(np.zeros(4, np.int64)) for _ in range(4))]
    for index in range(4):
        observed = [steps.observations[index].tolist() for steps in seen]
        assert observed[:-1] == batch[index].observations.tolist()
        assert observed[-1] == batch[index].last_observations[0].tolist()


@pytest.mark.parametrize("kind", MANAGERS)
@pytest.mark.slow
def test_what_draws_in_its_steps_alone_is_found_out(kind, caplog):
    """At the end of its first episode it is known that something drew, at that of the second one what it was."""
    envs = [NEITHER, IN_STEPS, NEITHER, IN_STEPS]
    stream = stream_of(MANAGERS[kind](envs, n_envs=4, seed=3), n_steps=24)
    (message,) = messages(caplog)
    assert "environment 1 (Drawing)" in message or "environment 3 (Drawing)" in message
    own = stream_of(MANAGERS[kind](envs, n_envs=4, seed=3, own_generators=True), n_steps=24)
    assert stream[-4:] == own[-4:]


def test_a_caller_that_draws_is_not_taken_for_an_environment(caplog):
    with SerialEnvManager(Counting, n_envs=2, seed=3) as manager:
        manager.reset()
        for _ in range(9):
            random.random()
            manager.step(ONES)
            np.random.random()
            manager.get_attr("level")
    assert messages(caplog) == []


@pytest.mark.parametrize(("where", "steps", "draws"), [("reset", [1], False), ("step", [1, 3], True)])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_another_that_raises_makes_nobody_seem_to_draw(where, steps, draws, autoreset, tmp_path, caplog):
    faults = Faults(tmp_path, *(Fault("raise", where, step=step) for step in steps))
    envs = [faults.env(functools.partial(Drawing, draws, draws)), NEITHER]
    with SerialEnvManager(envs, n_envs=2, seed=0, autoreset=autoreset) as manager:
        manager.reset()
        for _ in range(12):
            manager.step(np.zeros(2, np.int64))
        assert manager.failures == len(steps)
    assert ["environment 1" in message for message in messages(caplog)] == [False] * draws


class Late(Drawing):
    """Draws nothing before its third episode."""

    n_resets = 0

    def reset(self, *, seed=None, options=None):
        self.n_resets += 1
        self.in_reset = self.in_steps = self.n_resets > 2
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("kind", MANAGERS)
def test_what_begins_to_draw_later_is_reset_again_from_its_seed(kind, caplog):
    """Nothing is seeded for what has drawn nothing in a whole episode; then the caller's own states are preserved."""
    given: dict[str, Any] = {"n_envs": 2, "seed": 3}
    random.seed(5)
    np.random.seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    found = stream_of(MANAGERS[kind]([Late, NEITHER], **given), n_steps=30)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[index]
    (message,) = messages(caplog)
    assert "environment 0 (Late)" in message
    assert found == stream_of(MANAGERS[kind]([Late, NEITHER], **given, own_generators=True), n_steps=30)


class WithoutOptions(Counting):
    """Its `reset` takes no options, as some libraries allow."""

    def reset(self, *, seed=None):  # type: ignore[override]
        return super().reset(seed=seed)


def test_resets_that_take_no_options_are_repeated():
    with EnvManager(functools.partial(WithoutOptions, 9), n_envs=2, n_workers=2, seed=0) as manager:
        manager.reset()
        assert manager.step(ONES).timesteps.tolist() == [1, 1]
        kill(manager, 0)
        assert manager.step(ONES).timesteps.tolist() == [2, 2]
        assert (manager.stats.restored, manager.stats.not_restored) == (1, 0)
