"""What cannot work is an error of its own that says why, changes nothing, and hangs nobody: in managers and faces."""

import functools
import math
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import ActionError, ClosedError, SerializationError, UsageError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.environments import Counting, Graded, Varied

NUMBERS = r"env_ids must be a sequence of the numbers of environments, or None for all, got "
TIMEOUT = r"timeout must be a number of seconds, 0 or more, or None for any time, got "
LACKS = "an environment's number must be "

# What is called, the error, and a part of its message.
CALLS: list[tuple[Any, type[Exception], str]] = [
    *(
        (lambda m, ids=ids: m.send([0], ids), UsageError, NUMBERS + re.escape(repr(ids)))
        for ids in (3, "ab", {0: 1}, 1.5)
    ),
    (
        lambda m: m.reset(np.array([[0]])),
        UsageError,
        r"env_ids must be one-dimensional, .* array of int64 of shape \(1, 1",
    ),
    (
        lambda m: m.reset(np.array([True, False])),
        UsageError,
        r"of a mask, np.flatnonzero\(mask\)\); got an array of bool",
    ),
    (lambda m: m.reset([-1]), UsageError, LACKS + "at least 0, got -1"),
    (lambda m: m.reset([True]), UsageError, LACKS + "at least 0, got True"),
    (lambda m: m.reset([0.0]), UsageError, LACKS + "an integer, got 0.0"),
    (lambda m: m.get_attr("level", [2]), UsageError, "no environment 2: there are 2, from 0 on"),
    (
        lambda m: m.recv_from([1]),
        UsageError,
        r"nothing to receive from environment 1: call send\(\) or async_reset\(\)",
    ),
    (lambda m: m.recv(), UsageError, r"nothing to receive: call send\(\) or async_reset\(\) first"),
    *(
        (lambda m, t=t: m.wait(t), UsageError, TIMEOUT + re.escape(repr(t)))
        for t in (math.nan, -1, math.inf, "1", True)
    ),
    (lambda m: m.step(np.array([1, 2, 3])), ActionError, r"a batch of 2 has the shape \(3,\), and should have \(2,\)"),
    (lambda m: m.step(0), ActionError, r"a batch of 2 has the shape \(\), and should have \(2,\)"),
    (lambda m: m.step([[1, 2], [1]]), ActionError, "a batch for action is no array: .*inhomogeneous"),
    (lambda m: m.step(np.array([1.5, 2])), ActionError, "has the dtype float64, its space has int64"),
    (lambda m: m.step(np.array(["a", "b"])), ActionError, "action should be numbers of int64, and is str_ .*a"),
    (lambda m: m.step({1: 1, 0: "a"}), ActionError, "environment 0: action should be numbers of int64, and is str 'a'"),
    (lambda m: m.step([1, 2**70]), ActionError, "environment 1: action"),
    (lambda m: m.step([1, None]), ActionError, "environment 1: action should be numbers of int64, and is NoneType"),
    (lambda m: m.step({0: [1, 2], 1: [1]}), ActionError, "a batch for action is no array"),
    (lambda m: m.step({0: 1, 7: 1}), UsageError, "no environment 7"),
    (lambda m: m.send(np.zeros(2, np.int64), [0, 0]), UsageError, "an environment is named twice"),
    (lambda m: m.reset([0], seed={1: 2}), UsageError, r"environments \[1\], which are not among"),
    (lambda m: m.reset({0: {"a": 1}}), UsageError, r"options are given apart: reset\(\[0\], options=…\)"),
    (lambda m: m.reset(every_episode=True), UsageError, r"give one, reset\(seed=…\)"),
    (lambda m: m.reset(seed=-1), UsageError, "seed must be at least 0"),
    (lambda m: m.reset(seed=[1, -1]), UsageError, "seed of environment 1 must be at least 0, got -1"),
    (lambda m: m.reset(seed=[1, 1.0]), UsageError, "seed of environment 1 must be an integer, got 1.0"),
    (lambda m: m.reset(seed=np.array([1.0, 2.0])), UsageError, "seed of environment 0 must be an integer"),
    (lambda m: m.reset(seed=np.arange(3)), UsageError, "seed has 3 items, but 2 environments"),
    (lambda m: m.reset(seed={0: 1, 5: 1}), UsageError, r"seeds for environments \[5\]"),
    (lambda m: m.reset(seed="7"), UsageError, "seed must be an integer, got '7'"),
    (lambda m: m.reset(options=[]), UsageError, "options must be a dict, got list"),
    (lambda m: m.reset(options={1: 2}), UsageError, "the keys of options are strings, got 1"),
    (lambda m: m.reset(options={"lock": threading.Lock()}), SerializationError, r"the options of a reset .*\['lock'\]"),
    (lambda m: m.call(3), UsageError, "name of a method or attribute is a string, got 3"),
    (lambda m: m.get_attr(None), UsageError, "name of a method or attribute is a string, got None"),
    (lambda m: m.set_attr("level", [1, 2, 3]), UsageError, "there are 3 values for 2 environments"),
    (lambda m: m.call("level", 1), UsageError, "level of environment 0 is no method, and takes no arguments"),
    (lambda m: m.call("close"), UsageError, "would go past the manager's accounts"),
    (lambda m: m.call("set_depth"), AttributeError, r"environment 0 \(Counting\) has no attribute 'set_depth'"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[2])
@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_a_call_that_cannot_work_changes_nothing(managers, kind, call):
    manager = managers[kind]
    function, error, match = call
    before = manager.reset(seed=[3, 4]).observations.tolist()
    with pytest.raises(error, match=match):
        function(manager)
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]
    steps = [manager.step(np.array([1, 1])) for _ in range(3)]
    seeds = steps[-1].observations[:, 0].tolist()
    assert manager.reset(seed=[3, 4]).observations.tolist() == before
    steps = [manager.step(np.array([1, 1])) for _ in range(4)]
    assert steps[-1].observations[:, 0].tolist() == seeds


@pytest.fixture(scope="module")
def managers():
    options: dict[str, Any] = {"n_envs": 2, "seed": 0}
    with SerialEnvManager(Counting, **options) as serial, EnvManager(Counting, n_workers=2, **options) as processes:
        yield {"serial": serial, "processes": processes}


def test_busy_environments(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    manager.reset()
    manager.send([1], [1])
    with pytest.raises(UsageError, match=r"environment 1 awaits no action, it is STEPPING: .* call recv\(\)"):
        manager.step([1, 1])
    with pytest.raises(UsageError, match=r"environment 1 has a step or a reset that is open: call recv\(\) first"):
        manager.forget_options()
    for timeout in (math.nan, -0.5, "soon"):
        with pytest.raises(UsageError, match=TIMEOUT + re.escape(repr(timeout))):
            manager.recv(timeout=timeout)
    for min_envs in (0, 1.5, "all", True):
        with pytest.raises(UsageError, match="min_envs must be"):
            manager.recv(min_envs=min_envs)
    assert manager.recv_from([1]).timesteps.tolist() == [1]
    manager.send({})
    assert manager.step({0: 2}).rewards.tolist() == [2]


def test_actions_of_nested_spaces(new_manager):
    manager = new_manager(Varied, n_envs=2, seed=0)
    manager.reset()
    good = manager.random_actions()
    for actions, match in (
        (
            {"choice": good["choice"]},
            r"action has the keys \['choice'\], and its space has the keys \['choice', 'force'\]",
        ),
        (
            {**good, "force": good["force"][:1]},
            r"a batch of 2 has the shape \(1, 2\), .* action\['force'\] has the shape",
        ),
        (good["force"], r"action has no parts: it is ndarray"),
        (np.array(3), "a batch for action should be a sequence of 2 values, and is ndarray"),
        ({0: {"choice": 1, "force": [0, 0]}, 1: {"choice": 1}}, r"action has the keys \['choice'\], and its space has"),
        (
            {0: {"choice": 1, "force": [0, 0]}, 1: {"choice": 1, "power": 1}},
            r"action has the keys \['choice', 'power'\]",
        ),
        ({0: {"choice": 1, "force": [0, 0]}, 1: 3}, "action has no parts: it is int 3"),
    ):
        with pytest.raises(ActionError, match=match):
            manager.step(actions)
    assert manager.step(good).timesteps.tolist() == [1, 1]


def test_seeds_that_are_refused_are_forgotten(new_manager):
    """All of them: the first one was right."""
    one, other = (new_manager(Counting, n_envs=2, seed=5) for _ in range(2))
    with pytest.raises(UsageError, match="seed of environment 1"):
        one.reset(seed=[9, -1])
    for _ in range(5):
        assert one.reset().observations.tolist() == other.reset().observations.tolist()


def test_arguments_of_managers(new_manager):
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"n_envs": 0}, "n_envs must be at least 1"),
        ({"n_envs": 1.5}, "n_envs must be an integer"),
        ({"envs": [Counting]}, "envs has 1 items, but there are 2"),
        ({"min_envs": 3}, "min_envs is 3"),
        ({"on_failure": "hide"}, "on_failure must be"),
        ({"verify": "all"}, "verify must be"),
        ({"restore_limit": -1}, "restore_limit must be at least 0"),
        *(({"restart_wait": value}, "restart_wait must be") for value in (-1, math.nan, "1")),
        ({"copy": "no"}, "copy must be True or False, got 'no'"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": "x"}, "seed must be a non-negative integer"),
        ({"autoreset": None}, 'autoreset must be "next_step", "same_step" or "disabled", got None'),
        ({"max_episodes": 0}, "max_episodes must be at least 1"),
        ({"recv_timeout": math.nan}, "recv_timeout must be a number of seconds above 0, got nan"),
        ({"recv_timeout": 0}, "recv_timeout must be a number of seconds above 0, got 0"),
        ({"abnormal": 3}, "abnormal must be a function"),
        ({"env_kwargs": 3}, "env_kwargs must be a dict"),
    ]
    for options, match in wrong:
        with pytest.raises(UsageError, match=match):
            new_manager(**{"envs": Counting, "n_envs": 2, **options})


def test_arguments_of_processes():
    limits = ("step_timeout", "reset_timeout", "construction_timeout", "close_timeout")
    wrong: list[tuple[str, Any]] = [
        ("n_workers", 3),
        *(("worker_threads", value) for value in ("x", -1, 0, 1.5)),
        *((name, value) for name in limits for value in (math.nan, -1, "x")),
    ]
    for name, value in wrong:
        with pytest.raises(UsageError, match="n_workers is 3, but" if name == "n_workers" else f"{name} must be"):
            EnvManager(Counting, n_envs=2, **{name: value})


def test_different_spaces_behind_the_face(new_manager):
    manager = new_manager([Graded, functools.partial(Graded, 3)], n_envs=2, autoreset="same_step")
    with pytest.raises(UsageError, match=r"observation space of environment 1 is .* that of environment 0 is .* must"):
        manager.vector_env()


def test_after_close(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    face = manager.vector_env()
    manager.reset()
    manager.close()
    for call in (
        manager.reset, manager.async_reset, manager.recv, manager.recv_from, manager.wait, manager.random_actions,
        manager.render, manager.observations, manager.forget_options, manager.wrappers, manager.vector_env,
        lambda: manager.step([0, 0]), lambda: manager.send([0, 0]), lambda: manager.call("set_level", 1),
        lambda: manager.get_attr("level"), lambda: manager.set_attr("level", 1), lambda: manager.ready,
        lambda: manager.observation_space, face.reset, lambda: face.step([0, 0]), lambda: face.get_attr("level"),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match=r"the environments are closed: call launch\(\) for new ones"):
            call()
    face.close()
    manager.close()
    manager.launch()
    assert face.reset(seed=1)[0].tolist() == [[1, 0], [2, 0]]


SCRIPT = """
import numpy as np, gymnasium
from streamsampler import EnvManager

class Mine:
    def __init__(self, number):
        self.number = number

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    mine = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"mine": options["mine"]}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"mine": self.mine}

    def take(self, mine):
        self.mine = mine
        return mine

with EnvManager(Env, n_envs=2, n_workers=1, seed=0) as manager:
    infos = [manager.reset(options={"mine": Mine(1)}).infos]
    found = manager.call("take", Mine(2)) + manager.get_attr("mine")
    infos.append(manager.step([0, 0]).infos)
    found += [mine for info in infos for mine in info["mine"]]
    print([mine.number for mine in found], {type(mine) is Mine for mine in found}, manager.failures)
"""


@pytest.mark.slow
def test_values_of_a_class_of_the_script_travel_both_ways():
    run = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("[2, 2, 2, 2, 1, 1, 2, 2] {True} 0\n", "")
