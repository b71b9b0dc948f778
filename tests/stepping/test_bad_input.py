"""What cannot work is an error of its own that says why, and changes nothing: in managers and faces."""

import functools
import math
import re
import threading
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import ActionError, ClosedError, SerializationError, UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting, Graded, Varied

NUMBERS = r"env_ids must be a sequence of the numbers of environments, or None for all, got "
TIMEOUT = r"timeout must be a number of seconds, 0 or more, or None for any time, got "
LACKS = "an environment's number must be "
NUMBERS_ARE = "action should be numbers of int64, not "

# What is called, and a part of the message.
USAGE: list[tuple[Any, str]] = [
    *((lambda m, ids=ids: m.send([0], ids), NUMBERS + re.escape(repr(ids))) for ids in (3, "ab", {0: 1}, 1.5)),
    (
        lambda m: m.reset(np.array([[0]])),
        r"env_ids must be a one-dimensional array of numbers .* array of int64 of shape \(1, 1",
    ),
    (lambda m: m.reset(np.array([True, False])), r"for a mask, np.flatnonzero\(mask\)\), got an array of bool"),
    (lambda m: m.reset([-1]), LACKS + "at least 0, got -1"),
    (lambda m: m.reset([True]), LACKS + "at least 0, got True"),
    (lambda m: m.reset([0.0]), LACKS + "an integer, got 0.0"),
    (lambda m: m.get_attr("level", [2]), "no environment 2: the 2 environments"),
    (lambda m: m.recv_from([1]), r"nothing to receive from environment 1: call send\(\) or async_reset\(\)"),
    (lambda m: m.recv(), r"nothing to receive: call send\(\) or async_reset\(\) first"),
    *((lambda m, t=t: m.wait(t), TIMEOUT + re.escape(repr(t))) for t in (math.nan, -1, math.inf, "1", True)),
    (lambda m: m.step({0: 1, 7: 1}), "no environment 7"),
    (lambda m: m.send(np.zeros(2, np.int64), [0, 0]), "env_ids has an environment twice"),
    (lambda m: m.reset([0], seed={1: 2}), r"environments \[1\], which this call does not reset"),
    (lambda m: m.reset({0: {"a": 1}}), r"pass options by name: reset\(\[0\], options=…\)"),
    (lambda m: m.reset(every_episode=True), r"pass the seed, reset\(seed=…\)"),
    (lambda m: m.reset(seed=-1), "seed must be at least 0"),
    (lambda m: m.reset(seed=[1, -1]), "seed of environment 1 must be at least 0, got -1"),
    (lambda m: m.reset(seed=[1, 1 << 63]), r"seed of environment 1 must be less than 2\*\*63"),
    (lambda m: m.reset(seed=np.array([1.0, 2.0])), "seed of environment 0 must be an integer"),
    (lambda m: m.reset(seed=np.arange(3)), "seed has 3 items, but 2 environments"),
    (lambda m: m.reset(seed="7"), "seed must be an integer, got '7'"),
    (lambda m: m.reset(options=[]), "options must be a dict, got list"),
    (lambda m: m.reset(options={1: 2}), "the keys of options must be strings, got 1"),
    (lambda m: m.call(3), "name of a method or attribute must be a string, got 3"),
    (lambda m: m.set_attr("level", [1, 2, 3]), "values has 3 items, but there are 2 environments"),
    (lambda m: m.call("close"), "would bypass the manager's records"),
]
ACTIONS: list[tuple[Any, str]] = [
    (np.array([1, 2, 3]), r"a batch of 2 has the shape \(3,\), and should have \(2,\)"),
    (0, r"a batch of 2 has the shape \(\), and should have \(2,\)"),
    ([[1, 2], [1]], "a batch for action is no array: .*inhomogeneous"),
    (np.array([1.5, 2]), "has the dtype float64, but its space has int64"),
    (np.array(["a", "b"]), NUMBERS_ARE + "str_ .*a"),
    ({1: 1, 0: "a"}, f"environment 0: {NUMBERS_ARE}str 'a'"),
    ([1, 2**70], "environment 1: action"),
    ([1, None], f"environment 1: {NUMBERS_ARE}NoneType"),
    ({0: [1, 2], 1: [1]}, "a batch for action is no array"),
]
CALLS: list[tuple[Any, type[Exception], str]] = [
    *((call, UsageError, match) for call, match in USAGE),
    *((lambda m, actions=actions: m.step(actions), ActionError, match) for actions, match in ACTIONS),
    (lambda m: m.reset(options={"lock": threading.Lock()}), SerializationError, r"the options of a reset .*\['lock'\]"),
    (lambda m: m.call("set_depth"), AttributeError, r"environment 0 \(Counting\) has no attribute 'set_depth'"),
]


@pytest.fixture(scope="module", params=["serial", pytest.param("processes", marks=pytest.mark.slow)])
def manager(request):
    with MANAGERS[request.param](Counting, n_envs=2, seed=0) as made:
        yield made


@pytest.mark.parametrize(("call", "error", "match"), CALLS)
def test_a_call_that_cannot_work_changes_nothing(manager, call, error, match):
    def next_seeds():
        return [manager.step(np.array([1, 1])) for _ in range(3)][-1].observations.tolist()

    before = manager.reset(seed=[3, 4]).observations.tolist()
    with pytest.raises(error, match=match):
        call(manager)
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]
    after = next_seeds()
    assert manager.reset(seed=[3, 4]).observations.tolist() == before
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]
    assert next_seeds() == after


def test_busy_environments(manager):
    manager.reset()
    manager.send([1], [1])
    with pytest.raises(UsageError, match=r"environment 1 is STEPPING and does not wait for an action: call recv\(\)"):
        manager.step([1, 1])
    with pytest.raises(UsageError, match=r"environment 1 has an open step or reset: call recv\(\) first"):
        manager.forget_options()
    for timeout in (math.nan, "soon"):
        with pytest.raises(UsageError, match=TIMEOUT + re.escape(repr(timeout))):
            manager.recv(timeout=timeout)
    for min_envs in (0, 1.5, "all", True):
        with pytest.raises(UsageError, match="min_envs must be"):
            manager.recv(min_envs=min_envs)
    assert manager.recv_from([1]).timesteps.tolist() == [1]
    manager.send({})
    assert manager.step({0: 2}).rewards.tolist() == [2]


def test_actions_of_nested_spaces():
    with SerialEnvManager(Varied, n_envs=2, seed=0) as manager:
        manager.reset()
        good = manager.random_actions()
        whole = {"choice": 1, "force": [0, 0]}
        wrong: list[tuple[Any, str]] = [
            ({"choice": good["choice"]}, r"has the keys \['choice'\], but its space has the keys \['choice', 'force'"),
            ({**good, "force": good["force"][:1]}, r"a batch of 2 has the shape \(1, 2\), .* action\['force'\] has"),
            (good["force"], r"action has no parts: it is ndarray"),
            (np.array(3), "a batch for action should be a sequence of 2 values, got ndarray"),
            ({0: whole, 1: {"choice": 1}}, r"action has the keys \['choice'\], but its space has"),
            ({0: whole, 1: {"choice": 1, "power": 1}}, r"action has the keys \['choice', 'power'\]"),
            ({0: whole, 1: 3}, "action has no parts: it is int 3"),
        ]
        for actions, match in wrong:
            with pytest.raises(ActionError, match=match):
                manager.step(actions)
        assert manager.step(good).timesteps.tolist() == [1, 1]


TIMEOUTS = ("step_timeout", "reset_timeout")
ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"n_envs": 0}, "n_envs must be at least 1"),
    ({"n_envs": 1.5}, "n_envs must be an integer"),
    ({"envs": [Counting]}, "envs has 1 items, but there are 2"),
    ({"min_envs": 3}, "min_envs is 3"),
    ({"on_failure": "hide"}, "on_failure must be"),
    ({"verify": "all"}, "verify must be"),
    ({"restore_limit": -1}, "restore_limit must be at least 0"),
    *(({"restart_wait": value}, "restart_wait must be") for value in (-1, math.nan, "1")),
    ({"copy": "no"}, "copy must be True or False, got 'no'"),
    ({"own_generators": 1}, "own_generators must be True or False"),
    ({"seed": -1}, "seed must not be negative"),
    ({"seed": "x"}, "seed must be a non-negative integer"),
    ({"autoreset": None}, 'autoreset must be "next_step", "same_step" or "disabled", got None'),
    ({"max_episodes": 0}, "max_episodes must be at least 1"),
    *(({"recv_timeout": value}, "recv_timeout must be a number of seconds above 0") for value in (math.nan, 0)),
    ({"abnormal": 3}, "abnormal must be a function"),
    ({"env_kwargs": 3}, "env_kwargs must be a dict"),
    ({"n_workers": 3}, "n_workers is 3, but"),
    ({"n_workers": 0}, "n_workers is 0: .* use SerialEnvManager"),
    *(({"worker_threads": value}, "worker_threads must be") for value in ("x", -1, 0, 1.5)),
    *(({name: value}, f"{name} must be") for name in TIMEOUTS for value in (math.nan, -1, "x")),
]


@pytest.mark.parametrize(("options", "match"), ARGUMENTS)
def test_arguments_of_managers(options, match):
    kind: Any = EnvManager if {"n_workers", "worker_threads", *TIMEOUTS} & set(options) else SerialEnvManager
    with pytest.raises(UsageError, match=match):
        kind(**{"envs": Counting, "n_envs": 2, **options})


def test_faces_and_recorders_that_cannot_be_made():
    def face_of(envs=Counting, **options):
        return SerialEnvManager(envs, n_envs=2, autoreset="same_step", **options).vector_env()

    with pytest.raises(UsageError, match=r"observation space of environment 1 is .* that of environment 0 is .* must"):
        face_of([Graded, functools.partial(Graded, 3)])
    with pytest.raises(UsageError, match="without max_episodes"):
        face_of(max_episodes=1)


def test_after_close(manager):
    face = manager.vector_env()
    manager.reset()
    face.close()
    manager.close()
    for call in (
        manager.reset, manager.async_reset, manager.recv, manager.recv_from, manager.wait, manager.random_actions,
        manager.render, manager.observations, manager.forget_options, manager.wrappers, manager.vector_env,
        lambda: manager.step([0, 0]), lambda: manager.send([0, 0]), lambda: manager.call("set_level", 1),
        lambda: manager.get_attr("level"), lambda: manager.set_attr("level", 1), lambda: manager.ready,
        lambda: manager.observation_space, face.reset, lambda: face.step([0, 0]), lambda: face.get_attr("level"),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match=r"the environments are closed: call manager.launch\(\)"):
            call()
    assert face.closed
    manager.launch()
    assert face.reset(seed=1)[0].tolist() == [[1, 0], [2, 0]]
