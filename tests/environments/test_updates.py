"""Updates of environments: making them, replacing them, setting their task, and telling them their worker's number."""

from __future__ import annotations

import functools
import gc
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.environments import updates as environments
from streamsampler.environments.closing import EnvCloseError
from streamsampler.environments.updates import (
    EnvUpdate,
    ExistingEnvUpdate,
    NewEnvUpdate,
    SetTaskUpdate,
    apply_env_update,
    as_env_update,
    describe,
    for_worker,
    with_worker_number,
)
from streamsampler.errors import SamplerError, UnknownEnvironmentError, UsageError
from streamsampler.testing import Fault, Faults


class Scripted(gymnasium.Env):
    """Tells its worker's number in its observations, and what is done to it in its log."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)
    task: Any = None

    def __init__(self, size=1, worker_number=77, log=None):
        self.size, self.number, self.log = size, worker_number, [] if log is None else log
        self.log.append("made")

    def reset(self, *, seed=None, options=None):
        return self.number, {}

    def step(self, action):
        return self.number, 0.0, True, False, {}

    def close(self):
        self.log.append("closed")


class Tasked(Scripted):
    def set_task(self, task):
        if task == "bad":
            raise ZeroDivisionError
        self.task = task


class Noted(Tasked):
    notes: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__(log=self.notes)


class Unhashable(Tasked):
    __hash__: Any = None

    def __eq__(self, other):
        return NotImplemented


class TaskWrapper(gymnasium.Wrapper):
    def set_task(self, task):
        self.unwrapped.task = ("wrapped", task)  # type: ignore[attr-defined]


class CannotClose(Scripted):
    def close(self):
        raise ZeroDivisionError("stuck")


class Forgetful(EnvUpdate):
    def __call__(self, old_env):
        pass


class Enlarge(EnvUpdate):
    def __call__(self, old_env):
        old_env.size += 1
        return old_env


def sent(update):
    """The update as a worker gets it."""
    return cloudpickle.loads(cloudpickle.dumps(update, protocol=5))


def made(update, old=None):
    return apply_env_update(sent(update), old)


def test_a_new_environment_is_made_when_the_old_one_is_closed():
    log: list[str] = []
    old = Scripted(log=log)
    env = as_env_update(lambda: Scripted(log=log))(old)
    assert env is not old
    assert log == ["made", "closed", "made"]
    assert made(as_env_update(Scripted, env_kwargs={"size": 8})).size == 8
    with pytest.raises(ZeroDivisionError):
        made(as_env_update(lambda: 1 / 0))
    told = "closing the environment CannotClose raised ZeroDivisionError: stuck"
    with pytest.raises(EnvCloseError, match=told) as caught:
        as_env_update(Scripted)(CannotClose())
    assert isinstance(caught.value, SamplerError)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("update", "what"),
    [
        (lambda: None, r"<lambda> should return a gymnasium.Env, but returned None \(is a return missing\?\)"),
        (lambda: 3, "<lambda> should return a gymnasium.Env, but returned a int"),
        (lambda: Scripted, "<lambda> should return a gymnasium.Env, but returned the class Scripted"),
        (Forgetful(), r"Forgetful should return a gymnasium.Env, but returned None \(is a return"),
    ],
)
def test_an_update_that_gives_no_environment_is_an_error(update, what):
    with pytest.raises(UsageError, match=what):
        made(as_env_update(update))


def test_an_environment_that_is_there_is_used_itself_or_a_copy_in_another_process():
    env, old = Scripted(), Scripted()
    update = as_env_update(env)
    assert update(old) is update(env) is env
    assert (old.log, env.log) == (["made", "closed"], ["made"])
    cartpole = gymnasium.make("CartPole-v1")
    copied = made(as_env_update(cartpole))
    assert copied is not cartpole
    assert np.array_equal(copied.reset(seed=3)[0], cartpole.reset(seed=3)[0])


@pytest.mark.parametrize("make", [lambda: Tasked(), lambda: EnvSpec("Mine-v0", entry_point=Tasked), Tasked, Unhashable])  # type: ignore[arg-type]
def test_an_environment_is_kept_where_another_task_is_set(make):
    """By another update from an equal source, pickled on its own."""
    source = make if isinstance(make, type) else make()
    env = made(SetTaskUpdate(source, 1))
    assert env.unwrapped.task == 1
    assert made(SetTaskUpdate(source, 2), env) is env
    assert (env.unwrapped.task, env.unwrapped.log) == (2, ["made"])


def test_an_environment_of_another_source_or_update_or_whose_task_failed_is_replaced():
    env = made(SetTaskUpdate(Tasked, 1))
    other = made(SetTaskUpdate(lambda: Tasked(size=5), 1), env)
    assert (other.size, env.log) == (5, ["made", "closed"])
    old = Tasked()
    env = made(SetTaskUpdate(Tasked, 1), old)
    assert (env is old, old.log) == (False, ["made", "closed"])
    assert made(Enlarge(), env) is env
    env = made(SetTaskUpdate(Tasked, 1), env)
    assert env.size == 1
    with pytest.raises(ZeroDivisionError):
        made(SetTaskUpdate(Tasked, "bad"), env)
    assert env.log == ["made"]
    assert made(SetTaskUpdate(Tasked, 2), env) is not env
    with pytest.raises(ZeroDivisionError):
        SetTaskUpdate(Noted, "bad")(None)
    assert Noted.notes == ["made", "closed"]


class Scaled(gymnasium.Wrapper):
    def __init__(self, env, task):
        super().__init__(env)
        self.scale = task


def test_a_task_update_takes_garages_constructor_of_a_wrapper():
    assert made(SetTaskUpdate(Tasked, 1, None)).task == 1
    env = made(SetTaskUpdate(Tasked, 1, Scaled))
    again = made(SetTaskUpdate(Tasked, 2, Scaled), env)
    assert [(each.scale, each.unwrapped.task) for each in (env, again)] == [(1, 1), (2, 2)], "no wrapper keeps a task"
    assert env.unwrapped.log == ["made", "closed"]
    bare = made(SetTaskUpdate(Tasked, 3), again)
    assert (type(bare), bare.task) == (Tasked, 3)
    with pytest.raises(UsageError, match=r"the wrapper of Noted should return a gymnasium.Env, but returned None"):
        SetTaskUpdate(Noted, 1, lambda env, task: None)(None)  # type: ignore[arg-type, return-value]
    assert Noted.notes[-2:] == ["made", "closed"]
    with pytest.raises(
        TypeError, match=r"takes a function \(env, task\) that wraps the environment, or None, not a int"
    ):
        SetTaskUpdate(Tasked, 1, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_garages_call_with_a_task_samples_the_same_in_each_sampler(make):
    with make(lambda _: 0, Tasked, n_workers=2, seed=1) as sampler:
        batches = [
            sampler.obtain_samples(0, 3, None, [SetTaskUpdate(Tasked, worker, wrap) for worker in range(2)])
            for wrap in (None, Scaled)
        ]
    assert [batch.n_timesteps for batch in batches] == [3, 3]


def test_tasks_are_set_through_wrappers():
    assert made(SetTaskUpdate(lambda: gymnasium.wrappers.TimeLimit(Tasked(), 5), 1)).unwrapped.task == 1
    assert made(SetTaskUpdate(lambda: TaskWrapper(Tasked()), 1)).unwrapped.task == ("wrapped", 1)
    with pytest.raises(UsageError, match=r"needs an environment with a method set_task\(task\); CartPoleEnv has none"):
        made(SetTaskUpdate("CartPole-v1", 1))


def test_environments_are_not_kept_alive():
    gc.collect()  # or what earlier tests left could go meanwhile
    before = len(environments._origins._sources)
    env = made(SetTaskUpdate(Tasked, 1))
    assert len(environments._origins._sources) == before + 1
    del env
    gc.collect()
    assert len(environments._origins._sources) == before


with_size = functools.partial(as_env_update, env_kwargs={"size": 2})


@pytest.mark.parametrize(
    ("make", "arguments", "error", "words"),
    [
        (as_env_update, (None,), TypeError, "an environment is an id for gymnasium.make, .*; this is None"),
        (as_env_update, (NewEnvUpdate,), TypeError, "the class NewEnvUpdate itself: pass an instance"),
        (with_size, (Scripted(),), UsageError, "but a Scripted exists already"),
        (NewEnvUpdate, ("CartPole-v1",), TypeError, "takes a callable that makes an environment, not a str"),
        (ExistingEnvUpdate, (Scripted,), TypeError, r"takes a gymnasium.Env, not the class Scripted"),
        (SetTaskUpdate, (3, 1), TypeError, "an environment is an id .*; this is a int"),
        (SetTaskUpdate, ("Qwertyuiop-v0", 1), UnknownEnvironmentError, "Qwertyuiop"),
        (EnvUpdate, (), TypeError, "abstract"),
    ],
)
def test_what_is_no_environment_is_an_error_that_says_what_one_is(make, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        make(*arguments)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        (gymnasium.make("Pendulum-v1"), "Pendulum-v1"),
        (TaskWrapper(Scripted()), "Scripted"),
        (Scripted, "Scripted"),
        (functools.partial(functools.partial(Scripted, 1)), "Scripted"),
        (SetTaskUpdate(Scripted, 1), "Scripted"),
        (Enlarge(), "Enlarge"),
    ],
)
def test_short_names(env, name):
    update = as_env_update(env)
    assert describe(update) == describe(sent(update)) == name
    assert as_env_update(update) is update


def positional(worker_number, /):
    return worker_number


class Called:
    def __call__(self, *, worker_number):
        return worker_number


@pytest.mark.parametrize(
    ("factory", "arguments", "given"),
    [
        (lambda: 0, {}, {}),
        (lambda *, size, worker_number=5: 0, {"size": 2}, {"size": 2, "worker_number": 3}),
        (lambda worker_number: 0, {"worker_number": 9}, {"worker_number": 9}),
        (lambda **more: 0, {}, {}),
        (positional, {}, {}),
        (Called(), {}, {"worker_number": 3}),
        (Scripted, {"size": 1}, {"size": 1, "worker_number": 3}),
        (functools.partial(Scripted, size=1), {}, {"worker_number": 3}),
        (functools.partial(Scripted, worker_number=8), {}, {}),
        (functools.partial(Scripted, 1, 8), {}, {}),
        (dict, {}, {}),
    ],
)
def test_who_has_a_parameter_for_it_is_given_the_number(factory, arguments, given):
    with for_worker(3):
        assert with_worker_number(factory, arguments) == given
        spec = EnvSpec("Mine-v0", entry_point=Scripted, kwargs={"size": 4})  # type: ignore[arg-type]
        env = as_env_update(spec)(None).unwrapped
        assert (env.size, env.number) == (4, 3)  # type: ignore[attr-defined]
        assert as_env_update(spec, env_kwargs={"worker_number": 6})(None).unwrapped.number == 6  # type: ignore[attr-defined]
    assert NewEnvUpdate(Scripted)(None).number == 0, "outside workers"  # type: ignore[attr-defined]


VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
@pytest.mark.parametrize("options", [{}, pytest.param(VEC, marks=pytest.mark.slow)], ids=["", "vec"])
@pytest.mark.slow
def test_each_worker_has_its_number_and_the_one_in_the_place_of_a_lost_one(make, options, tmp_path):
    def numbers(**update):
        return sampler.obtain_exact_trajectories(2, **update).observations.tolist()

    agents = [lambda _: 0] * 2  # one for each worker: then each has trajectories that no other one runs
    faults = Faults(tmp_path, Fault("kill", "reset")) if make is MultiprocessingSampler else Faults(tmp_path)
    with make(agents, faults.env(Scripted), n_workers=2, check=None, **options) as sampler:
        assert numbers() == [0, 0, 1, 1]
        assert sampler.stats.restarts == len(faults.faults)
        assert numbers(env_update=NewEnvUpdate(Scripted, {"worker_number": 9})) == [9] * 4
        assert numbers(env_update=SetTaskUpdate(Tasked, 1)) == [0, 0, 1, 1]
