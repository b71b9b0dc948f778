"""Environments that raise, exit, say that they failed or return what they may not; and Ctrl-C at any line of a call.

It is an error that names the environment, or its episode ends: it costs no other one its result, and all go on.
"""

import os
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

import streamsampler.stepping
from streamsampler import Limits
from streamsampler.core import timing
from streamsampler.engines import linked
from streamsampler.engines.launch import start
from streamsampler.engines.processes import engine, pool
from streamsampler.errors import DataError, RolloutError, SerializationError, UsageError, WorkerDiedError
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.episode_seeds import EpisodeSeeds
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.conftest import MANAGERS, MODES, kill
from tests.stepping.environments import Counting, Graded
from tests.tiers import mostly_slow

ONES = np.array([1, 1])


def check_goes_on(manager):
    """See that all of two environments can be reset and stepped."""
    assert manager.reset(options={}).timesteps.tolist() == [0, 0]
    assert manager.step(ONES).timesteps.tolist() == [1, 1]


class TwoArgumentsError(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, what, where):
        super().__init__(what + where)


class Odd(Counting):
    """Raises, exits, or returns something else than it may: where it is made, at the action 8, or in another method.

    Args:
        odd: What it does, by place; an exception is raised, another value is returned in the place of that number.
    """

    def __init__(self, odd=(), length=20):
        super().__init__(length)
        self.odd = dict(odd)
        self.maybe("make")

    def maybe(self, place, result=()):
        values = list(result)
        for where, value in self.odd.items():
            if where == place and isinstance(value, BaseException):
                raise value
            if isinstance(where, tuple) and where[0] == place:
                is_bad = isinstance(value, str) and value == BAD
                values[where[1]] = {"error": TwoArgumentsError("a", "b")} if is_bad else value
        return tuple(values)

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        return self.maybe("reset", result) if options else result

    def step(self, action):
        return self.maybe("step", super().step(0)) if action == 8 else super().step(action)

    def render(self):
        self.maybe("call")
        return super().render()

    def bad(self):
        return TwoArgumentsError("a", "b")

    def close(self):
        self.maybe("close")


EXITS = SystemExit("licence expired")
STUCK = RuntimeError("the gearbox is stuck")
BAD = "an info that does not unpickle"

# In which kinds of managers, what the environment does, what is called, and the error.
WRONG: list[tuple[str, Any, str]] = [
    ("serial processes", {"step": STUCK}, "raised in step.*the gearbox is stuck"),
    ("serial processes", {"step": EXITS}, "raised in step.*SystemExit: licence expired"),
    ("serial processes", {"reset": EXITS}, "raised in reset.*SystemExit: licence expired"),
    ("serial", {"reset": OSError("no display")}, "raised in reset.*no display"),
    ("serial processes", {("step", 0): np.zeros(3)}, r"raised in step.*the shape \(3,\)"),
    ("serial processes", {("step", 1): None}, "raised in step.*DataError: the reward should be a number, not NoneType"),
    ("serial", {("step", 1): "3.5"}, "DataError: the reward should be a number, not str '3.5'"),
    ("serial", {("step", 1): [1, 2]}, r"DataError: the reward has the shape \(2,\)"),
    ("serial", {("step", 2): None}, "DataError: terminated should be True or False, not NoneType"),
    ("serial", {("step", 3): "no"}, "DataError: truncated should be True or False, not str 'no'"),
    ("serial processes", {("step", 4): None}, "DataError: infos: an info must be a dict, got None"),
    ("serial processes", {("reset", 1): [1]}, "raised in reset.*DataError: infos: an info must be a dict, got list"),
    ("serial processes", {("step", 4): {7: 1}}, r"DataError: infos\[7\]: the keys of infos must be strings, not 7"),
    ("serial processes", {("reset", 1): {7: 1}}, r"raised in reset.*infos\[7\]: the keys of infos must be strings"),
    ("processes", {("step", 4): BAD}, "raised in step.*its info cannot be unpickled.*TwoArgumentsError.__init__"),
    ("processes", {("reset", 1): BAD}, "raised in reset.*its info cannot be unpickled"),
]


@pytest.mark.parametrize(
    ("kind", "odd", "match"),
    [
        # In processes by default what only they do.
        pytest.param(kind, odd, match, marks=[pytest.mark.slow] * (kind != "serial" and kinds != kind))
        for kinds, odd, match in WRONG
        for kind in kinds.split()
    ],
    ids=lambda it: str(it)[:25],
)
@pytest.mark.parametrize("on_failure", ["restore", pytest.param("raise", marks=pytest.mark.slow)])
def test_one_that_fails_whenever_it_is_tried_is_an_error_and_fails_alone(kind, odd, match, on_failure):
    with MANAGERS[kind](lambda: Odd(odd), n_envs=2, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        if "in reset" in match:
            manager.send(np.array([1]), [1])
            manager.async_reset([0], options={"odd": True})
        else:
            manager.send(np.array([8, 1]))
        with pytest.raises(RolloutError, match="environment 0 .*" + match) as caught:
            manager.recv(min_envs=2)
        assert caught.value.__cause__ is not None
        is_data = not any(isinstance(it, BaseException) for it in odd.values())
        assert isinstance(caught.value.original, DataError) is is_data
        assert manager.states[0] is EnvState.FAILED
        with pytest.raises(UsageError, match=r"environment 0 .* FAILED"):
            manager.send(np.array([1]), [0])
        steps = manager.recv()
        assert (steps.env_ids.tolist(), steps.failed.tolist(), steps.rewards.tolist()) == ([1], [False], [1])
        # A reset is tried as often as max_restarts says, a step once more.
        assert manager.failures == (1 if on_failure == "raise" else 11 if "in reset" in match else 2)
        manager.reset([0], options={})
        steps = manager.step(ONES)
        assert (steps.timesteps.tolist(), steps.episodes[1]) == ([1, 2], 0)
        check_goes_on(manager)


@pytest.mark.parametrize("kind", MANAGERS)
@pytest.mark.slow
def test_methods_and_ends_that_raise_or_exit(kind, caplog, capfd):
    with MANAGERS[kind]([lambda: Odd({"call": EXITS, "close": EXITS}), Odd], n_envs=2, seed=0) as manager:
        manager.reset()
        with pytest.raises(RolloutError, match=r"environment 0 raised .*SystemExit: licence expired"):
            manager.render()
        check_goes_on(manager)
        if kind == "processes":
            with pytest.raises(SerializationError, match="the results of bad of environments 0 cannot be unpickled"):
                manager.call("bad")
            check_goes_on(manager)
    (record,) = caplog.records
    assert record.message == "environment 0 raised in close: SystemExit: licence expired"
    for error in (EXITS, OSError("licence expired")):
        with pytest.raises((RolloutError, SystemExit, OSError), match="licence expired"):
            MANAGERS[kind]([lambda error=error: Odd({"make": error}), Odd], n_envs=2).reset()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize(("kind", "odd"), [("serial", STUCK), ("processes", None)])
@pytest.mark.slow
def test_with_reset_the_episode_ends_and_is_marked(kind, odd, autoreset):
    envs: Any = lambda: Odd({("step", 4): BAD} if odd is None else {"step": odd})  # noqa: E731
    with MANAGERS[kind](envs, n_envs=3, seed=0, on_failure="reset", autoreset=autoreset) as manager:
        manager.reset()
        manager.step(np.array([1, 1, 1]))
        steps = manager.step(np.array([1, 8, 1]))
        assert steps.failed.tolist() == [False, True, False] == steps.truncated.tolist()
        assert steps.last_observations[:, 1].tolist() == [2, 1, 2]
        assert steps.previous_observations[:, 1].tolist() == [1, 1, 1]
        assert steps.rewards.tolist() == [1, 0, 1]
        if autoreset == "disabled":
            assert manager.states[1] is EnvState.NEEDS_RESET
            manager.reset([1])
        elif autoreset == "same_step":
            assert steps.observations[:, 1].tolist() == [2, 0, 2]
        else:
            assert manager.step(np.array([1]), [1]).timesteps.tolist() == [0]
        steps = manager.step(np.array([1, 1, 1]))
        assert (steps.episodes.tolist(), steps.timesteps.tolist()) == ([0, 1, 0], [3, 1, 3])
        assert (manager.failures, manager.stats.failed_trajectories) == (1, 1)


class NeverReset(Counting):
    def reset(self, *, seed=None, options=None):
        raise OSError("no display")


# By the quotas that are given: how often it is tried, and what the error says of them.
TRIES: list[tuple[dict[str, Any], int, str]] = [
    ({"max_restarts": None}, 3, "that is 3 equal losses of environment 1, which max_restarts=None"),
    (
        {"limits": Limits(max_lifetime_restarts=None)},
        3,
        "that is 3 equal losses of environment 1, which limits.max_lifetime_restarts=None",
    ),
    (
        {"max_restarts": 5, "limits": Limits(max_lifetime_restarts=None)},
        6,
        "that is 6 losses within 60 s, and max_restarts is 5",
    ),
    (
        {"max_restarts": None, "limits": Limits(max_lifetime_restarts=4)},
        5,
        "that is 5 losses in all, and limits.max_lifetime_restarts is 4",
    ),
    ({}, 11, "that is 11 losses within 60 s, and max_restarts is 10"),
    ({"max_restarts": 0}, 1, "that is 1 loss within 60 s, and max_restarts is 0"),
]


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.parametrize(("quotas", "n", "said"), TRIES)
def test_a_reset_that_always_fails_is_tried_as_often_as_the_quotas_say(quotas, n, said, on_failure, renew):
    options = {"n_envs": 2, "seed": 0, "on_failure": on_failure, "renew": renew, **quotas}
    manager = SerialEnvManager([Counting, NeverReset], **options)
    with pytest.raises(RolloutError, match=f"(?s)environment 1 raised in reset.*no display; {said}"):
        manager.reset()
    assert manager.failures == n


@pytest.mark.slow
@pytest.mark.parametrize(("quotas", "n", "said"), TRIES)
def test_a_reset_that_always_ends_its_worker_is_tried_as_often_as_the_quotas_say(quotas, n, said):
    with EnvManager([Counting, ExitsInReset], n_envs=2, n_workers=2, seed=0, **quotas) as manager:
        with pytest.raises(WorkerDiedError, match=f"(?s)exit code 3 while resetting.* environment 1; .*{said}"):
            manager.reset()
        assert manager.failures == n
        assert manager.recv().env_ids.tolist() == [0]


class ExitsInReset(Counting):
    def reset(self, *, seed=None, options=None):
        os._exit(3)


class FailsSometimes(Counting):
    """Raises in its resets until there were so many in all; says which object it is, of how many."""

    n_made = n_reset = 0
    fails: ClassVar[tuple[int, ...]] = ()

    def __init__(self):
        super().__init__(2)
        type(self).n_made += 1

    def reset(self, *, seed=None, options=None):
        type(self).n_reset += 1
        if self.n_reset in self.fails:
            raise OSError("no display")
        return super().reset(seed=seed)


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.parametrize("renew", [True, False])
def test_a_reset_is_tried_again_in_a_new_object_or_in_the_same_one(renew, on_failure, autoreset, monkeypatch):
    """Also that of an episode that begins by itself; the data are those of a manager without failures."""

    def data(fails):
        monkeypatch.setattr(FailsSometimes, "n_made", 0)
        monkeypatch.setattr(FailsSometimes, "n_reset", 0)
        monkeypatch.setattr(FailsSometimes, "fails", fails)
        options = {"n_envs": 1, "seed": 0, "on_failure": on_failure, "renew": renew, "autoreset": autoreset}
        with SerialEnvManager(FailsSometimes, **options) as manager:
            steps = [manager.reset()]
            for _ in range(5):
                again = steps[-1].ended[0] and autoreset == "disabled"
                steps.append(manager.reset() if again else manager.step(np.array([1])))
            seen = [(it.observations.tolist(), it.rewards.tolist(), it.failed.tolist()) for it in steps]
            return seen, manager.failures, FailsSometimes.n_made

    expected, _, _ = data(())
    assert data((1, 2, 3)) == (expected, 3, 4 if renew else 1)
    found, n_failures, n_made = data((2, 3, 4, 5))
    if autoreset == "same_step" and on_failure == "reset":
        # The first of them is in the step that ends an episode, which is marked as failed.
        assert [failed for *_, failed in found].count([True]) == 1
        assert n_failures == 4
        return
    assert (found, n_failures) == (expected, 4)
    assert n_made == (5 if renew else 1)


@pytest.mark.parametrize("on_failure", ["restore", "raise"])
def test_failures_that_arrive_together_are_each_recorded(new_manager, on_failure):
    """Also those after the first, which is raised: no reset waits for ever."""
    manager = new_manager(Counting, n_envs=2, seed=0, on_failure=on_failure)
    manager.reset()
    for _ in range(2):  # the other one may not have arrived yet
        if EnvState.READY in manager.states or EnvState.STEPPING in manager.states:
            with pytest.raises(RolloutError, match=r"environment \d raised in step"):
                (manager.recv if EnvState.STEPPING in manager.states else lambda: manager.step(np.array([9, 9])))()
    assert manager.states == (EnvState.FAILED, EnvState.FAILED)
    check_goes_on(manager)


@pytest.mark.parametrize("on_failure", ["restore", "raise"])
def test_workers_that_die_together_and_spend_the_quota(on_failure):
    limits: dict[str, Any] = {"max_restarts": 0} if on_failure == "restore" else {}
    with EnvManager(Counting, n_envs=2, n_workers=2, seed=0, on_failure=on_failure, **limits) as manager:
        manager.reset()
        kill(manager)
        text = "SIGKILL" if on_failure == "raise" else "max_restarts is 0"
        with pytest.raises(WorkerDiedError, match=text):
            manager.step(ONES)
        if EnvState.STEPPING in manager.states:  # a fork server reports one death after the other
            with pytest.raises(WorkerDiedError, match=text):
                manager.recv()
        assert manager.states == (EnvState.FAILED, EnvState.FAILED)
        check_goes_on(manager)
        assert manager.failures == 2


class Sick(Counting):
    """Says at the action 8 that it is abnormal, in words of its own at 7, and in a reset whose options say so."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"abnormal": True} if options else {"new": seed}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action % 7)
        info = {"abnormal": True} if action == 8 else {"health": 0 if action == 7 else 1}
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("at_end", [False, True])
def test_an_abnormal_episode_is_counted_once_and_a_reset_recovers_its_environment(autoreset, at_end):
    manager: Any = SerialEnvManager(lambda: Sick(2), n_envs=2, seed=0, autoreset=autoreset)
    manager.reset()
    if at_end:
        manager.step(np.array([1]), [0])
    steps = manager.step(np.array([8, 1]))
    assert steps.failed.tolist() == steps.ended.tolist() == [True, False]
    assert steps.terminated.tolist() == [at_end, False]
    assert steps.last_observations[:, 1].tolist() == [2 if at_end else 1, 1]
    assert manager.states == (EnvState.FAILED, EnvState.READY)
    steps = manager.reset([0])
    seeds = EpisodeSeeds(0, 2)
    assert (steps.episodes[0], steps.timesteps[0], steps.observations[0, 0]) == (1, 0, [seeds.next(0) for _ in "ab"][1])
    stats = manager.stats
    assert (stats.failed_trajectories, stats.abandoned_trajectories, stats.kept_trajectories) == (1, 0, 0)
    assert manager.reset([0], options={"bad": True}).failed.tolist() == [True]
    assert manager.states[0] is EnvState.FAILED
    assert manager.reset([0], options={}).failed.tolist() == [False]


def test_a_function_of_the_user_says_what_is_abnormal(new_manager):
    raises = [True]

    def is_abnormal(info):
        if raises and "new" not in info:
            raise KeyError("health")
        return info.get("health") == 0

    manager = new_manager(lambda: Sick(9), n_envs=2, seed=0, abnormal=is_abnormal)
    manager.reset()
    manager.send(np.array([8, 7]))
    for _ in range(2):  # what it raises changes nothing
        with pytest.raises(KeyError, match="health"):
            manager.recv_from()
    raises.clear()
    steps = manager.recv_from()
    assert (steps.timesteps.tolist(), steps.failed.tolist()) == ([1, 1], [False, True])
    assert manager.failures == 0


@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
def test_a_wrong_action_is_an_error_of_its_caller_and_no_failure_of_the_environment(new_manager, on_failure):
    manager = new_manager(Graded, n_envs=2, seed=0, on_failure=on_failure, max_restarts=0)
    manager.reset()
    for _ in range(2):
        manager.send(np.array([7, 1]))
        match = r"environment 0 .*the agent's action .*7.* is outside Discrete\(2\)"
        with pytest.raises(RolloutError, match=match) as caught:
            manager.recv(min_envs=2)
        assert caught.value.quota is None
        assert manager.recv().observations.tolist() == [[1.0]]
        manager.reset([0])
    assert manager.failures == 0


CODE = (os.path.dirname(streamsampler.stepping.__file__), os.path.dirname(engine.__file__), linked.__file__)


def interrupted_at(line, call):
    """Raise KeyboardInterrupt when so many lines of the package have run; return whether the call took as many."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left < 0  # where something has caught it


class StoppedOnce(Counting):
    """Raises KeyboardInterrupt in a step, once; counts the steps of all objects."""

    n_steps = 0
    at = 0

    def step(self, action):
        type(self).n_steps += 1
        if self.n_steps == self.at:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
@pytest.mark.parametrize("is_asked_before", [False, True])
def test_a_step_that_was_interrupted_is_not_taken_again_by_reset(monkeypatch, on_failure, autoreset, is_asked_before):
    """It may be one that never ends. Also where the reset was asked for before the interrupt."""
    monkeypatch.setattr(StoppedOnce, "n_steps", 0)
    monkeypatch.setattr(StoppedOnce, "at", 3)
    with SerialEnvManager(StoppedOnce, n_envs=2, seed=0, on_failure=on_failure, autoreset=autoreset) as manager:
        manager.reset()
        manager.step(ONES)
        with pytest.raises(KeyboardInterrupt):
            manager.step(ONES)
        if is_asked_before:
            manager.async_reset()
            steps = manager.recv_from()
        else:
            steps = manager.reset()
        assert StoppedOnce.n_steps == 3
        assert (steps.timesteps.tolist(), steps.episodes.tolist()) == ([0, 0], [1, 1])
        stats = manager.stats
        assert (stats.abandoned_trajectories, stats.failed_trajectories, manager.failures) == (2, 0, 0)
        assert manager.step(ONES).timesteps.tolist() == [1, 1]


def check_mixes_nothing_up(manager):
    """Step and reset the manager: its data are those of its seeds and actions."""
    try:
        steps = manager.recv_from() if EnvState.STEPPING in manager.states else manager.step(np.array([1, 2]))
    except UsageError:
        steps = None  # some have failed, or have no result to hand out
    if steps is not None:
        goes_on = ~steps.failed
        assert steps.observations[goes_on, 1].tolist() == steps.timesteps[goes_on].tolist()
    assert manager.reset(seed=[5, 6]).observations.tolist() == [[5, 0], [6, 0]]
    steps = manager.step(np.array([1, 2]))
    assert steps.observations.tolist() == [[5, 1], [6, 1]]
    assert (steps.rewards.tolist(), steps.timesteps.tolist()) == ([1, 2], [1, 1])
    assert manager.step(np.array([3, 4])).rewards.tolist() == [3, 4]


CALLS: dict[str, Any] = {
    "step": lambda m: m.step(np.array([1, 2])),
    "round": lambda m: m._start_round(np.array([1, 2])) and m._end_round(),  # as vector environments step
    "reset": lambda m: m.reset(seed=[1, 2], options={"a": 1}),
    "call": lambda m: m.call("set_level", 3),
    "stats": lambda m: m.stats,
}


@pytest.mark.parametrize("name", mostly_slow(CALLS, 3))
@pytest.mark.parametrize(
    ("kind", "on_failure", "stride"),
    [
        ("serial", "restore", 1),
        *mostly_slow([("serial", "reset", 1), ("serial", "raise", 1)], 0),
        # Which lines run depends on what has arrived.
        pytest.param("processes", "restore", 3, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_line(name, kind, on_failure, stride):
    with MANAGERS[kind](Counting, n_envs=2, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        line = 0
        while interrupted_at(line, lambda: CALLS[name](manager)):
            check_mixes_nothing_up(manager)
            line += stride
        assert line > 5
        assert manager.failures == 0
    assert timing._local.collector is timing._local.script  # what this thread times is the script's again


class Interrupted(Counting):
    """Is interrupted by Ctrl-C, once, in a step."""

    times: ClassVar[list[None]] = []

    def step(self, action):
        if action == 6 and self.times:
            self.times.pop()
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
def test_ctrl_c_in_a_step_of_an_environment(on_failure):
    with SerialEnvManager(Interrupted, n_envs=2, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        manager.step(ONES)
        Interrupted.times.append(None)
        with pytest.raises(KeyboardInterrupt):
            manager.step(np.array([1, 6]))
        check_mixes_nothing_up(manager)


class InterruptedCall(Counting):
    """Is interrupted by Ctrl-C in a method."""

    def stop(self):
        raise KeyboardInterrupt


def test_ctrl_c_in_a_call_with_a_result_that_is_not_received():
    """With "raise" the environment's next step begins an episode: that is not one of the episode before."""
    with SerialEnvManager(InterruptedCall, n_envs=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        manager.send(ONES)
        with pytest.raises(KeyboardInterrupt):
            manager.call("stop")
        assert manager.recv_from().timesteps.tolist() == [1, 1]
        assert manager.step(ONES).failed.tolist() == [True, True]
        steps = manager.step(ONES)
        assert (steps.timesteps.tolist(), steps.episodes.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize("name", ["processes", "serial"])
def test_ctrl_c_in_a_call_between_the_two_halves_of_a_round(name):
    line = 0
    while True:
        with MANAGERS[name](Counting, n_envs=2, seed=0) as manager:
            envs = manager.vector_env()
            envs.reset()
            envs.step_async(ONES)
            is_interrupted = interrupted_at(line, lambda: manager.ready)
            envs.step_wait()
            envs.step(ONES)
            assert manager.step(ONES).timesteps.tolist() == [3, 3]
        if not is_interrupted:
            break
        line += 1
    assert line > 3


def test_ctrl_c_in_launch():
    line, is_interrupted = 0, True
    while is_interrupted:
        with SerialEnvManager(Counting, n_envs=2, seed=0) as manager:
            is_interrupted = interrupted_at(line, manager.launch)
            assert manager.reset().timesteps.tolist() == [0, 0]
        line += 1


@pytest.mark.parametrize("call", [lambda it: it.set_attr("x", 1), lambda it: it.get_attr("x"), lambda it: it.render()])
def test_an_environment_that_could_not_be_made_anew_says_so(call):
    made = []

    def make():
        made.append(None)
        if len(made) == 2:
            raise ValueError("no licence")
        return Raising()

    with SerialEnvManager([make], seed=0) as manager:
        manager.reset()
        assert manager.step([1]).failed.tolist() == [True]
        with pytest.raises(UsageError, match=r"environment 0 raised when it was made again.*reset\(env_ids=\[0\]\)"):
            call(manager)
        manager.reset()
        manager.set_attr("x", 1)


class Raising(Counting):
    def step(self, action):
        raise RuntimeError("the gearbox is stuck")


def test_a_call_that_is_left_in_the_middle(monkeypatch):
    """A worker cannot be started again at once; another thread that asks for process ids is no sign of an interrupt."""
    failures = [OSError("too many open files")]

    def launched(*arguments):
        if failures:
            raise failures.pop()
        return start.launch(*arguments)

    with MANAGERS["processes"](Counting, n_envs=2, seed=0) as manager:
        manager.reset()
        kill(manager, 0)
        monkeypatch.setattr(pool, "launch", launched)
        with pytest.raises(OSError, match="too many open files"):
            manager.step(np.array([1, 2]))
        check_mixes_nothing_up(manager)
        before = manager.worker_pids()
        manager._transport.in_critical_section = True
        assert manager.worker_pids() == before
        manager._transport.in_critical_section = False
        assert manager.step(np.array([1, 2])).timesteps.tolist() == [3, 3]
        assert manager.worker_pids() == before
