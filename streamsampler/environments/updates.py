"""Make environments, and change a worker's environment.

The user's environment argument becomes an `EnvUpdate` in the caller's process. It is pickled, and runs in each worker.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from streamsampler.core.errors import UsageError, keywords
from streamsampler.core.keywords import suggesting
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.core.words import AGENT_FIRST
from streamsampler.environments.asynchronous import is_asynchronous
from streamsampler.environments.closing import close_replaced
from streamsampler.environments.foreign import foreign_kind, foreign_kind_in
from streamsampler.environments.ids import JOINT_VIEW, PettingZooFactory, find_spec, is_pettingzoo_id
from streamsampler.environments.multi_agent import MultiAgentEnv, MultiAgentEnvLike, as_multi_agent, is_multi_agent

__all__ = [
    "AnyEnv", "AnyVectorEnv", "EnvLike", "EnvUpdate", "ExistingEnvUpdate", "NewEnvUpdate", "SetTaskUpdate",
    "SpecEnvUpdate", "apply_any_env_update", "apply_env_update", "as_env_update", "describe", "find_method",
    "for_worker", "lacks", "task_setter", "with_worker_number",
]  # fmt: skip


def find_method(env: gymnasium.Env[Any, Any], name: str) -> Callable[[Any], Any] | None:
    """Return a method of an environment or its wrappers, or None."""
    of_wrappers = getattr(env, "get_wrapper_attr", functools.partial(getattr, env))  # vector environments lack it
    for find in (of_wrappers, functools.partial(getattr, env.unwrapped)):
        with contextlib.suppress(AttributeError):
            method = find(name)
            if callable(method):
                return cast("Callable[[Any], Any]", method)
    return None


def task_setter(env: gymnasium.Env[Any, Any]) -> Callable[[Any], Any]:
    """Return the method to set an environment's task; raise UsageError if it has none."""
    if (method := find_method(env, "set_task")) is not None:
        if inspect.iscoroutinefunction(method):
            raise UsageError(
                f"set_task of {type(env.unwrapped).__qualname__} is an async def, which is never awaited: let it "
                "store the task for the next reset"
            )
        return method
    raise UsageError(
        f"a task needs an environment with a method set_task(task); {type(env.unwrapped).__qualname__} has "
        "none, and neither have its wrappers"
    )


_numbers: ContextVar[Mapping[str, int]] = ContextVar("streamsampler_numbers", default={"worker_number": 0})  # noqa: B039


@contextlib.contextmanager
def for_worker(number: int, env_number: int | None = None) -> Iterator[None]:
    """Set the worker's and environment's numbers that factories may receive within the block."""
    numbers = {"worker_number": number}
    token = _numbers.set(numbers if env_number is None else {**numbers, "env_number": env_number})
    try:
        yield
    finally:
        _numbers.reset(token)


def with_worker_number(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Add `worker_number` and `env_number` to a factory's arguments, where it has such parameters without values.

    Outside workers, `worker_number` is 0.
    """
    numbers = {name: number for name, number in _numbers.get().items() if lacks(factory, arguments, name)}
    return {**arguments, **numbers}


def lacks(factory: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> bool:
    """Return whether a callable has a keyword parameter without a value in `arguments` or a partial function."""
    if name in arguments or (isinstance(factory, functools.partial) and name in factory.keywords):
        return False
    try:
        parameter = inspect.signature(factory).parameters.get(name)
    except (TypeError, ValueError):
        return False  # Python knows no signature
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]

_WHAT_AN_ENVIRONMENT_IS = (
    "an id for gymnasium.make, an EnvSpec, a gymnasium.Env, a callable making one, or an EnvUpdate (with VecWorker "
    "also a gymnasium.vector.VectorEnv or a callable making one)"
)


class EnvUpdate(abc.ABC):
    """Changes a worker's environment. It is pickled in the caller's process, and called in each worker.

    **The result must depend only on this update, not on earlier updates.** Close the old environment, or reuse it where
    that makes no difference. After a worker's death, its replacement receives only the latest update, with None for the
    old environment, and must reach the same state.

    Attributes:
        n_slots: The number of a worker's environments with different `of_slot`; None where all are equal.
    """

    n_slots: int | None = None

    def of_slot(self, slot: int) -> EnvUpdate:  # noqa: ARG002 - for subclasses with different environments
        """Return the update for an environment of a worker by its number."""
        return self

    @abc.abstractmethod
    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Return the worker's new environment.

        Args:
            old_env: The worker's current environment, or None. Close it, unless you return it.
        """


@suggesting()
class NewEnvUpdate(EnvUpdate):
    """Closes the old environment, then makes a new one.

    A factory's parameter `worker_number` receives the worker's number, 0 to n_workers-1, unless `env_kwargs` has it:
    for ports, file names and devices, with VecWorker for all environments of a worker. Trajectories must not depend on
    it.

    Attributes:
        factory: A class or another callable that makes an environment.
        env_kwargs: Its keyword arguments.
    """

    def __init__(
        self, factory: Callable[..., AnyEnv | MultiAgentEnvLike], env_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if not callable(factory):
            raise TypeError(f"NewEnvUpdate takes a callable that makes an environment, not {_shown(factory)}")
        self.factory = factory
        self.env_kwargs = dict(env_kwargs or {})

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Close the old environment, then make the new one: both may need the same port."""
        close_replaced(old_env)
        return _checked(self.factory(**with_worker_number(self.factory, self.env_kwargs)), describe(self))

    def with_seed(self, seed: int) -> NewEnvUpdate | None:
        """Return an update with a seed for the factory; None if it accepts none, or has a value."""
        if not lacks(self.factory, self.env_kwargs, "seed"):
            return None
        return NewEnvUpdate(self.factory, {**self.env_kwargs, "seed": seed})


@suggesting()
class ExistingEnvUpdate(EnvUpdate):
    """Closes the old environment, then uses this environment; in another process, a copy of it.

    Attributes:
        env: The environment.
    """

    def __init__(self, env: AnyKindOfEnv) -> None:
        if is_multi_agent(env):
            env = as_multi_agent(env)
        if not isinstance(env, gymnasium.Env | VectorEnv):
            raise TypeError(f"ExistingEnvUpdate takes a gymnasium.Env, not {_shown(env)}")
        self.env = cast("AnyEnv", env)

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Close the old environment, unless it is the new one."""
        if old_env is not self.env:
            close_replaced(old_env)
        return self.env


class SpecEnvUpdate(EnvUpdate):
    """Closes the old environment, then makes a new environment from its spec, without Gymnasium's checker.

    An entry point receives a `worker_number` as in `NewEnvUpdate`. The worker needs no registration: objects of
    ``__main__:…`` in the spec are pickled with it, because ``__main__`` is another module in a worker.

    Attributes:
        spec: The spec.
    """

    def __init__(self, spec: EnvSpec, env_kwargs: Mapping[str, Any] | None = None) -> None:
        if spec.entry_point is None:
            raise UsageError(
                f"{spec.id} has no entry_point: it exists as a vector environment only; pass "
                f"lambda: gymnasium.make_vec({spec.id!r}, num_envs=…), with worker_class=VecWorker"
            )
        self.spec = _with_kwargs(spec, dict(env_kwargs or {}))
        self._main_objects = _main_objects(self.spec)

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Close the old environment, then make the new environment."""
        close_replaced(old_env)
        with _lent_to_main(self._main_objects):
            entry = self.spec.entry_point
            creator = load_env_creator(entry) if isinstance(entry, str) else entry
            assert creator is not None
            kwargs = with_worker_number(creator, self.spec.kwargs)
            try:
                return gymnasium.make(dataclasses.replace(self.spec, kwargs=kwargs))
            except TypeError as error:
                if kind := foreign_kind_in(str(error)):
                    raise UsageError(f"{self.spec.id} is {kind}") from error
                raise


def _with_kwargs(spec: EnvSpec, env_kwargs: dict[str, Any]) -> EnvSpec:
    """Return a copy of a spec with these arguments; gymnasium.make's own arguments change its fields."""
    limit = env_kwargs.pop("max_episode_steps", spec.max_episode_steps)
    # The checker costs time in each step, and its findings concern the environment's author, not the sampler.
    return dataclasses.replace(
        spec,
        max_episode_steps=None if limit == -1 else limit,
        disable_env_checker=env_kwargs.pop("disable_env_checker", True),
        kwargs={**spec.kwargs, **env_kwargs},
    )


def _main_objects(spec: EnvSpec) -> dict[str, Any]:
    """Return the objects of the user's main script in a spec's entry points."""
    entry_points = [spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    names = [str(entry).partition(":")[2] for entry in entry_points if str(entry).startswith("__main__:")]
    main = vars(sys.modules["__main__"])
    return {name: main[name] for name in names if name in main}


@contextlib.contextmanager
def _lent_to_main(objects: dict[str, Any]) -> Iterator[None]:
    """Add the user's classes to this process's ``__main__`` while Gymnasium looks them up by name."""
    main = vars(sys.modules["__main__"])
    before = {name: main[name] for name in objects if name in main}
    main.update(objects)
    try:
        yield
    finally:
        for name in objects:
            del main[name]
        main.update(before)


@suggesting()
class SetTaskUpdate(EnvUpdate):
    """Sets the task of an environment with a method ``set_task(task)``, its own or a wrapper's.

    A worker keeps an environment from an equal source, and only sets the task; other workers make it first. Therefore
    `set_task` must replace all effects of an earlier task.

    Args:
        env: The environment, in any form that samplers accept.
        task: The argument for `set_task`.
        wrapper_constructor: As in garage, a function (environment, task) that returns the wrapped environment. With it,
            each update makes a new environment, since a wrapper keeps its first task. None for no wrapper.

    Attributes:
        task: As passed.
        wrapper_constructor: As passed.

    Raises:
        TypeError: `env` is not an environment, or the wrapper's constructor is not callable.
    """

    def __init__(self, env: Any, task: Any, wrapper_constructor: Callable[[AnyEnv, Any], AnyEnv] | None = None) -> None:
        if wrapper_constructor is not None and not callable(wrapper_constructor):
            raise TypeError(
                "SetTaskUpdate takes a function (env, task) that wraps the environment, or None, not "
                f"{_shown(wrapper_constructor)}"
            )
        source = as_env_update(env)
        self.n_slots = source.n_slots
        self.wrapper_constructor = wrapper_constructor
        # Pickled, as it is sent: workers compare these bytes, since two copies of a lambda are not equal.
        self._source = dumps(source, "the environment").owned()
        self._name = describe(source)
        self.task = task

    @property
    def source(self) -> EnvUpdate:
        """A new copy of the environment's own update."""
        return cast("EnvUpdate", loads(self._source))

    def of_slot(self, slot: int) -> EnvUpdate:
        """Return the update for an environment of a worker by its number."""
        if self.n_slots is None:
            return self
        return SetTaskUpdate(self.source.of_slot(slot), self.task, self.wrapper_constructor)

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Make the environment, if the worker has none from this source, and set the task."""
        wrap = self.wrapper_constructor
        if old_env is not None and _origins.pop(old_env) == self._source and wrap is None:
            env = old_env
        else:
            env = _checked(self.source(old_env), self._name)
        try:
            task_setter(env)(self.task)
            if wrap is not None:
                return _checked(wrap(env, self.task), f"the wrapper of {self._name}")
        except BaseException:
            # The worker never receives an environment made here, so it cannot close it.
            close_replaced(env if env is not old_env else None)
            raise
        _origins.put(env, self._source)
        return env


class _SourcesOfTasks:
    """Maps environments to their sources in SetTaskUpdates, without keeping them alive.

    Environments may define `==` and be unhashable: a `WeakKeyDictionary` would fail.
    """

    def __init__(self) -> None:
        self._sources: dict[int, tuple[weakref.ref[AnyEnv], Payload]] = {}

    def put(self, env: AnyEnv, source: Payload) -> None:
        key = id(env)
        self._sources[key] = (weakref.ref(env, lambda _: self._sources.pop(key, None)), source)

    def pop(self, env: AnyEnv) -> Payload | None:
        reference, source = self._sources.pop(id(env), (None, None))
        return source if reference is not None and reference() is env else None


_origins = _SourcesOfTasks()


AnyKindOfEnv: TypeAlias = AnyEnv | AnyVectorEnv | MultiAgentEnvLike
EnvLike: TypeAlias = str | EnvSpec | AnyKindOfEnv | Callable[..., AnyKindOfEnv] | EnvUpdate
"""Accepted forms of environments; see `as_env_update`."""


def apply_env_update(
    update: EnvUpdate, old_env: AnyEnv | None, *, several: bool = False, waits: bool = False
) -> AnyEnv:
    """Apply an update in a worker, and return its new environment.

    Args:
        update: The update.
        old_env: The worker's current environment, or None.
        several: Accept an environment of several agents.
        waits: Accept an asynchronous environment.

    Raises:
        UsageError: The update returns no accepted environment.
    """
    env = apply_any_env_update(update, old_env, several=several, waits=waits)
    if not isinstance(env, VectorEnv):  # EnvPool's environments are both
        return env
    close_replaced(env)
    raise UsageError(
        f"{describe(update)} makes a vector environment ({type(env).__qualname__}), which needs "
        "worker_class=VecWorker; this kind of worker runs one environment. For fragments pass a function that makes a "
        "single environment, and the number of environments: obtain_fragments(128, n_envs=16)"
    )


def apply_any_env_update(
    update: EnvUpdate, old_env: AnyEnv | AnyVectorEnv | None, *, several: bool = False, waits: bool = False
) -> AnyEnv | AnyVectorEnv:
    """Apply an update as `apply_env_update` does, and allow vector environments."""
    if old_env is not None and not isinstance(update, SetTaskUpdate):
        # The update may change the environment and return it: then it is no longer as its source made it.
        _origins.pop(cast("AnyEnv", old_env))
    is_ours = type(update).__module__.startswith(__package__)
    old: Any = old_env if is_ours else as_given(old_env)
    env: AnyEnv | AnyVectorEnv = _checked(update(old), describe(update))
    if not waits and is_asynchronous(env):
        close_replaced(env)
        raise UsageError(
            f"{describe(update)} is asynchronous (async def reset or step), which only AsyncWorker can run: pass "
            'worker_args={"in_flight": 100}, without a worker_class, to a sampler'
        )
    if several or not isinstance(env.unwrapped, MultiAgentEnv):
        return env
    close_replaced(env)
    raise UsageError(
        f"{describe(update)} is an environment of several agents, but one of a single agent is needed: {JOINT_VIEW}"
    )


def as_given(env: Any) -> Any:
    """Return an environment as the user's code knows it, without our wrapper for several agents."""
    return env.env if isinstance(env, MultiAgentEnv) else env


def as_env_update(env: Any, *, env_kwargs: Mapping[str, Any] | None = None) -> EnvUpdate:
    """Return an update for a user's environment argument, in the caller's process.

    Args:
        env: An id for `gymnasium.make`, an EnvSpec, an environment, a callable that makes it, or an EnvUpdate.
            PettingZoo's environments of several agents likewise, or the name of a module.
        env_kwargs: Arguments for making it.

    Raises:
        UnknownEnvironmentError: No environment has that id.
        UsageError: `env_kwargs` cannot apply, or are not a dict of names.
        TypeError: The object is none of these.
    """
    env_kwargs = keywords("env_kwargs", env_kwargs)
    if isinstance(env, EnvUpdate | gymnasium.Env | VectorEnv) or is_multi_agent(env):
        if env_kwargs:
            raise UsageError(f"env_kwargs are for making an environment, but {_shown(env)} exists already")
        return env if isinstance(env, EnvUpdate) else ExistingEnvUpdate(env)
    if isinstance(env, str):
        return _of_id(env, env_kwargs)
    if isinstance(env, EnvSpec):
        return SpecEnvUpdate(env, env_kwargs)
    if isinstance(env, type) and issubclass(env, EnvUpdate):
        raise TypeError(f"the environment is the class {env.__qualname__} itself: pass an instance of it")
    if callable(env):
        return NewEnvUpdate(env, env_kwargs)
    raise TypeError(f"an environment is {_WHAT_AN_ENVIRONMENT_IS}; this is {_shown(env)}{_hint(env)}")


def _hint(env: Any) -> str:
    if callable(getattr(env, "get_action", None)) or callable(getattr(env, "predict", None)):
        return f", an agent: {AGENT_FIRST}"
    if isinstance(env, list | tuple):
        return "; give each worker its own by PerWorker([…]), each row of a VecWorker its own by PerEnv([…])"
    return ""


def _of_id(env_id: str, env_kwargs: Mapping[str, Any]) -> EnvUpdate:
    if is_pettingzoo_id(env_id):
        return NewEnvUpdate(PettingZooFactory(env_id), env_kwargs)
    return SpecEnvUpdate(find_spec(env_id), env_kwargs)


def describe(env_update: EnvUpdate) -> str:
    """Return an environment's name for errors and summaries: its id, or the name of its class or factory."""
    match env_update:
        case SpecEnvUpdate(spec=spec):
            return spec.id
        case NewEnvUpdate(factory=factory):
            while isinstance(factory, functools.partial):
                factory = factory.func
            return str(getattr(factory, "__qualname__", type(factory).__qualname__))
        case ExistingEnvUpdate(env=env):
            bare = env.unwrapped  # a wrapper's spec is a deep copy
            return str(
                getattr(getattr(bare, "spec", None), "id", type(bare).__qualname__)
            )  # EnvPool's specs have no id
        case SetTaskUpdate():
            return env_update._name
    return str(getattr(env_update, "environment_name", type(env_update).__qualname__))


def _checked(env: Any, name: str) -> AnyEnv:
    if is_multi_agent(env):
        return as_multi_agent(env)
    if isinstance(env, gymnasium.Env | VectorEnv):
        return cast("AnyEnv", env)  # or a vector environment, which `apply_env_update` refuses
    hint = "" if env is not None else " (is a return missing?)"
    raise UsageError(f"{name} should return a gymnasium.Env, but returned {_shown(env)}{hint}")


def _shown(obj: Any) -> str:
    if obj is None:
        return "None"
    text = f"the class {obj.__qualname__}" if isinstance(obj, type) else f"a {type(obj).__qualname__}"
    return f"{text}, {kind}" if (kind := foreign_kind(obj)) else text
