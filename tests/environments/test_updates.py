"""Updates of environments: making them, replacing them, and setting their task."""

from __future__ import annotations

import functools
import gc
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from streamsampler.environments import updates as environments
from streamsampler.environments.updates import (
    EnvCloseError,
    EnvUpdate,
    ExistingEnvUpdate,
    NewEnvUpdate,
    SetTaskUpdate,
    SpecEnvUpdate,
    apply_env_update,
    as_env_update,
    describe,
)
from streamsampler.errors import SamplerError, UnknownEnvironmentError, UsageError


class Scripted(gymnasium.Env):
    """Counts what is done to it."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, size=1, log=None):
        type(self).made += 1
        self.size = size
        self.closed = 0
        self.task = None
        self.log = log
        if log is not None:
            log.append("made")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def close(self):
        self.closed += 1
        if self.log is not None:
            self.log.append("closed")


class Tasked(Scripted):
    def set_task(self, task):
        if task == "bad":
            raise ZeroDivisionError
        self.task = task


class Unhashable(Tasked):
    __hash__: Any = None

    def __eq__(self, other):
        return NotImplemented


class TaskWrapper(gymnasium.Wrapper):
    env: Any

    def set_task(self, task):
        self.env.unwrapped.task = ("wrapped", task)


class CannotClose(Scripted):
    def close(self):
        raise ZeroDivisionError("stuck")


def sent(update):
    """The update as a worker gets it."""
    return cloudpickle.loads(cloudpickle.dumps(update, protocol=5))


def made(update, old=None):
    return apply_env_update(sent(update), old)


class TestFactories:
    def test_closes_first_and_makes_then(self):
        log: list[str] = []
        old = Scripted(log=log)
        env = as_env_update(lambda: Scripted(log=log))(old)
        assert env is not old
        assert log == ["made", "closed", "made"]

    def test_arguments(self):
        assert made(as_env_update(Scripted, env_kwargs={"size": 8})).size == 8

    @pytest.mark.parametrize(
        ("factory", "what"),
        [
            (lambda: None, r"None \(is a return missing\?\)"),
            (lambda: 3, "a int"),
            (lambda: Scripted, "the class Scripted"),
        ],
    )
    def test_gives_no_environment(self, factory, what):
        with pytest.raises(UsageError, match=rf"<lambda> should give a gymnasium.Env, but gave {what}"):
            made(as_env_update(factory))

    def test_what_the_factory_raises_comes_through(self):
        with pytest.raises(ZeroDivisionError):
            made(as_env_update(lambda: 1 / 0))

    def test_takes_a_callable(self):
        with pytest.raises(TypeError, match="NewEnvUpdate takes a callable that makes an environment, not a str"):
            NewEnvUpdate("CartPole-v1")  # type: ignore[arg-type]

    def test_a_failing_close_is_told_apart(self):
        with pytest.raises(
            EnvCloseError, match="closing the environment CannotClose raised ZeroDivisionError: stuck"
        ) as e:
            as_env_update(Scripted)(CannotClose())
        assert isinstance(e.value, SamplerError)
        assert isinstance(e.value.__cause__, ZeroDivisionError)


class TestExisting:
    def test_uses_that_very_environment(self):
        env, old = Scripted(), Scripted()
        update = as_env_update(env)
        assert update(old) is env
        assert old.closed == 1
        assert update(env) is env
        assert env.closed == 0

    def test_in_another_process_a_copy(self):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=5)
        copied = made(as_env_update(env))
        assert copied is not env
        assert np.array_equal(copied.reset(seed=3)[0], env.reset(seed=3)[0])

    def test_takes_an_environment(self):
        with pytest.raises(TypeError, match=r"takes a gymnasium.Env, not the class Scripted"):
            ExistingEnvUpdate(Scripted)  # type: ignore[arg-type]

    def test_arguments_are_too_late(self):
        with pytest.raises(UsageError, match="but a Scripted is there already"):
            as_env_update(Scripted(), env_kwargs={"size": 2})
        with pytest.raises(UsageError, match="but a NewEnvUpdate is there already"):
            as_env_update(NewEnvUpdate(Scripted), env_kwargs={"size": 2})


class Noted(Tasked):
    notes: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__(log=self.notes)


class TestSetTask:
    def test_makes_sets_and_keeps(self):
        env = made(SetTaskUpdate(Tasked, 1))
        assert env.task == 1
        # Another update from an equal source, pickled on its own: the environment stays, the task changes.
        assert made(SetTaskUpdate(Tasked, 2), env) is env
        assert (env.task, env.closed) == (2, 0)

    @pytest.mark.parametrize("source", [lambda: Tasked(), EnvSpec("Mine-v0", entry_point=Tasked), Tasked()])  # type: ignore[arg-type]
    def test_any_source(self, source):
        env = made(SetTaskUpdate(source, 1))
        assert made(SetTaskUpdate(source, 2), env) is env
        assert env.unwrapped.task == 2

    def test_another_source_makes_another(self):
        env = made(SetTaskUpdate(Tasked, 1))
        other = made(SetTaskUpdate(lambda: Tasked(size=5), 1), env)
        assert other is not env
        assert env.closed == 1
        assert other.size == 5

    def test_an_environment_from_elsewhere_is_replaced(self):
        old = Tasked()
        env = made(SetTaskUpdate(Tasked, 1), old)
        assert env is not old
        assert old.closed == 1

    def test_an_environment_that_another_update_had_in_hand_is_replaced(self):
        class Enlarge(EnvUpdate):
            def __call__(self, old_env):
                old_env.size += 1
                return old_env

        env = made(SetTaskUpdate(Tasked, 1))
        assert made(Enlarge(), env) is env
        fresh = made(SetTaskUpdate(Tasked, 1), env)
        assert fresh.size == 1

    def test_a_task_that_fails(self):
        env = made(SetTaskUpdate(Tasked, 1))
        with pytest.raises(ZeroDivisionError):
            made(SetTaskUpdate(Tasked, "bad"), env)
        assert env.closed == 0
        assert made(SetTaskUpdate(Tasked, 2), env) is not env

    def test_an_environment_made_for_a_task_that_fails_is_closed(self):
        with pytest.raises(ZeroDivisionError):
            SetTaskUpdate(Noted, "bad")(None)
        assert Noted.notes == ["made", "closed"]

    def test_through_wrappers(self):
        assert made(SetTaskUpdate(lambda: gymnasium.wrappers.TimeLimit(Tasked(), 5), 1)).unwrapped.task == 1
        assert made(SetTaskUpdate(lambda: TaskWrapper(Tasked()), 1)).unwrapped.task == ("wrapped", 1)

    def test_no_set_task(self):
        with pytest.raises(
            UsageError, match=r"needs an environment with a method set_task\(task\); CartPoleEnv has none"
        ):
            made(SetTaskUpdate("CartPole-v1", 1))

    def test_environments_with_an_equality_of_their_own(self):
        env = made(SetTaskUpdate(Unhashable, 1))
        assert made(SetTaskUpdate(Unhashable, 2), env) is env

    def test_environments_are_not_kept_alive(self):
        gc.collect()  # or what earlier tests left could go meanwhile
        before = len(environments._origins._sources)
        env = made(SetTaskUpdate(Tasked, 1))
        assert len(environments._origins._sources) == before + 1
        del env
        gc.collect()
        assert len(environments._origins._sources) == before

    def test_wrong_sources(self):
        with pytest.raises(TypeError, match="an environment is an id"):
            SetTaskUpdate(3, 1)
        with pytest.raises(UnknownEnvironmentError):
            SetTaskUpdate("Qwertyuiop-v0", 1)


class TestAnythingElse:
    @pytest.mark.parametrize(("obj", "shown"), [(None, "None"), (3, "a int"), ([1], "a list"), ({}, "a dict")])
    def test_a_type_error_says_what_an_environment_is(self, obj, shown):
        with pytest.raises(
            TypeError, match=rf"an environment is an id for gymnasium.make, .*; this is {shown}"
        ) as caught:
            as_env_update(obj)
        assert type(caught.value) is TypeError

    def test_the_class_of_an_update(self):
        with pytest.raises(TypeError, match="the class NewEnvUpdate itself: pass an instance"):
            as_env_update(NewEnvUpdate)

    def test_an_update_is_itself(self):
        update = NewEnvUpdate(Scripted)
        assert as_env_update(update) is update

    def test_an_update_of_the_users_own_that_gives_nothing(self):
        class Forgetful(EnvUpdate):
            def __call__(self, old_env):
                pass

        with pytest.raises(UsageError, match=r"Forgetful should give a gymnasium.Env, but gave None \(is a return"):
            made(Forgetful())

    def test_updates_are_abstract(self):
        with pytest.raises(TypeError, match="abstract"):
            EnvUpdate()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        (gymnasium.make("Pendulum-v1"), "Pendulum-v1"),
        (Scripted(), "Scripted"),
        (TaskWrapper(Scripted()), "Scripted"),
        (Scripted, "Scripted"),
        (functools.partial(functools.partial(Scripted, 1)), "Scripted"),
        (SetTaskUpdate("CartPole-v1", 1), "CartPole-v1"),
        (SetTaskUpdate(Scripted, 1), "Scripted"),
    ],
)
def test_short_names(env, name):
    update = as_env_update(env)
    assert describe(update) == describe(sent(update)) == name


def test_other_updates_go_by_their_class():
    class Mine(EnvUpdate):
        def __call__(self, old_env):
            return Scripted()

    assert describe(Mine()).endswith("Mine")
    assert isinstance(as_env_update("CartPole-v1"), SpecEnvUpdate)
