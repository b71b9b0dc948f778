"""A script whose classes and functions have styles of their own; run as such, so that they are of the main module.

`python -m tests.core.styles pickles` writes each style pickled, `… sample KIND` samples with an environment and an
agent that use all of them. Each has a check, which shows that a style that has travelled is what it was.
"""

from __future__ import annotations

import abc
import contextvars
import dataclasses
import enum
import functools
import json
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    NewType,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import gymnasium
import numpy as np

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.core.serialization import dumps
from streamsampler.errors import SerializationError

T = TypeVar("T")
P = ParamSpec("P")
STYLES: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
"""By name what is to travel, and the check."""


def style(obj: Any, check: Callable[[Any], Any], name: str = "") -> None:
    STYLES[name or getattr(obj, "__name__", type(obj).__name__)] = obj, check


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Cached:
    @functools.lru_cache(maxsize=3)  # noqa: B019 - as users write it
    def space(self, agent):
        return gymnasium.spaces.Discrete(len(agent))

    @staticmethod
    @functools.cache
    def doubled(number):
        return 2 * number

    @classmethod
    @functools.cache
    def named(cls):
        return cls.__name__

    @property
    @functools.cache  # noqa: B019
    def one(self):
        return 1


class CachedInAnInstance:
    def __init__(self):
        self.call = functools.cache(self.called)

    def called(self, x):
        return "called", x


def memo(function):
    @functools.wraps(function)
    @functools.lru_cache(typed=True)
    def inner(*args):
        return "inner", function(*args)

    return inner


@memo
def remembered(x):
    return x


remembered.extra = 5


def with_cached_closure():
    seen = []

    @functools.cache
    def add(x):
        seen.append(x)
        return len(seen)

    return add, lambda: list(seen)


style(fibonacci, lambda it: it(30) == 832040 and it.cache_info().hits and it.cache_clear() is None)
style(
    Cached,
    lambda it: (
        it().space("abc").n == 3 and it.space.cache_parameters() == {"maxsize": 3, "typed": False}
        and it.doubled(4) == 8 and it.named() == "Cached" and it().one == 1
    ),
)  # fmt: skip
style(CachedInAnInstance(), lambda it: it.call(2) == ("called", 2))
style(remembered, lambda it: it(1) == ("inner", 1) and it.extra == 5 and it.__name__ == "remembered" and it.__wrapped__)
style(with_cached_closure(), lambda it: (it[0](7), it[0](7), it[0](8), it[1]()) == (1, 1, 2, [7, 8]), "cached closure")
style(functools.cache(len), lambda it: it("ab") == 2, "cached builtin")
style(functools.cache(Cached), lambda it: it() is it(), "cached class")
style(functools.cache(functools.partial(max, 3)), lambda it: it(5) == 5, "cached partial")


class Property:
    @functools.cached_property
    def made(self):
        """Is made once."""
        return object()


style(Property, lambda it: (one := it()).made is one.made and it.made.__doc__ == "Is made once.")


@functools.singledispatch
def size(x):
    return 1


@size.register
def _(x: list) -> int:
    return sum(map(size, x))


class Dispatching:
    @functools.singledispatchmethod
    def kind(self, x):
        return "object"

    @kind.register
    def _(self, x: int) -> str:
        return "int"

    def add(self, a, b=0):
        return a + b

    plus_five = functools.partialmethod(add, b=5)


def decorated(method):
    @functools.wraps(method)
    def call(self, *args):
        return [method(self, *args)]

    return call


class Base:
    def name(self):
        return "base"


class Decorated(Base):
    @decorated
    def name(self):
        return super().name()


def counter():
    n = 0

    def increase():
        nonlocal n
        n += 1

    def read():
        return n

    return increase, read


def recursive():
    def factorial(n):
        return 1 if n == 0 else n * factorial(n - 1)

    return factorial


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=4)
SET: contextvars.ContextVar[Any] = contextvars.ContextVar("SET")
SET.set([7])


def use_variables():
    return VARIABLE.get(), SET.get()


style(size, lambda it: it([[1, 2], 3]) == 3)
style(Dispatching, lambda it: it().kind(1) == "int" and it().kind("") == "object" and it().plus_five(1) == 6)
style(Decorated, lambda it: it().name() == ["base"] and it.name.__name__ == "name")
style(counter(), lambda it: (it[0](), it[0](), it[1]())[2] == 2, "nonlocal")
style(recursive(), lambda it: it(4) == 24, "recursive closure")
style(use_variables, lambda it: it() == (4, [7]))


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int = 1
    y: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    x: int = 1


class Slots:
    __slots__ = ("__hidden", "__weakref__", "x")

    def __init__(self):
        self.x = self.__hidden = 3

    def hidden(self):
        return self.__hidden


class MoreSlots(Slots):
    __slots__ = "y"


@runtime_checkable
class Actor(Protocol):
    def act(self) -> int: ...


class Acts:
    def act(self):
        return 1


class Pair(NamedTuple):
    a: int
    b: str = "x"

    def double(self):
        return 2 * self.a


class Box(Generic[T]):
    def __init__(self, x: T) -> None:
        self.x = x


class Abstract(abc.ABC):
    @abc.abstractmethod
    def act(self): ...


Abstract.register(Acts)


class Options(TypedDict, total=False):
    a: int


Identity = NewType("Identity", int)


style(Slotted(2), lambda it: it.x == 2 and it == type(it)(2) and not hasattr(it, "__dict__"))
style(Frozen(5), lambda it: it.x == 5 and hash(it) == hash(type(it)(5)))
style(MoreSlots(), lambda it: (it.hidden(), it.x) == (3, 3) and weakref.ref(it) and not hasattr(it, "__dict__"))
style(Actor, lambda it: isinstance(Acts(), it) and not isinstance(3, it))
style(Pair(4), lambda it: it.double() == 8 and it.b == "x" and it._replace(a=1) == (1, "x"))
style(Box[int], lambda it: it(3).x == 3 and it.__args__ == (int,))
style((Abstract, Acts), lambda it: isinstance(it[1](), it[0]) and it[0].__abstractmethods__ == {"act"}, "registered")
style(Options, lambda it: it(a=1) == {"a": 1} and it.__optional_keys__ == {"a"})
style(lambda: Identity(3), lambda it: it() == 3, "NewType")
style(P, lambda it: it.__name__ == "P", "ParamSpec")


class Permission(enum.Flag):
    NONE = 0
    READ = 1
    WRITE = 2
    BOTH = READ | WRITE

    def is_both(self):
        return self is Permission.BOTH


class Planet(enum.Enum):
    EARTH = (5.9, 6.3)
    MOON = (0.07, 1.7)
    TERRA = (5.9, 6.3)  # noqa: PIE796 - another name

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius


def check_permission(both):
    kind = type(both)
    return kind["BOTH"] is both is (kind.READ | kind.WRITE) and both.is_both() and kind(0) is kind.NONE is kind["NONE"]


def check_planets(planets):
    earth, moon = planets
    return planets["TERRA"] is planets.TERRA is earth is planets((5.9, 6.3)) and moon.mass == 0.07


style(Permission.BOTH, check_permission)
style(Planet, check_planets)


class Registering:
    kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, *, tag):
        assert tag not in Registering.kinds, "twice"
        Registering.kinds[tag] = cls


class First(Registering, tag="first"):
    number = 1


class Second(First, tag="second"):
    number = 2


class Meta(type):
    made: ClassVar[dict[str, Any]] = {}

    @classmethod
    def __prepare__(cls, name, bases):  # type: ignore[override]
        return {"prepared": name}

    def __new__(cls, name, bases, namespace):
        assert name not in cls.made, "twice"
        assert "number" in namespace, "empty"
        cls.made[name] = made = super().__new__(cls, name, bases, namespace)
        return made

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made


class Made(metaclass=Meta):
    number = 1


class MadeAgain(Made):
    number = 2


def numbers_of(registered):
    return [kind.number for kind in registered.values()]


style(Second, lambda it: numbers_of(it.kinds) == [1, 2] and it.kinds["second"] is it)
style(MadeAgain, lambda it: it().tag == it.prepared == "MadeAgain" and numbers_of(type(it).made) == [1, 2])


class Tree:
    def __init__(self, parent=None):
        self.parent = None if parent is None else weakref.ref(parent)
        self.child = Tree(self) if parent is None else None
        self.method = weakref.WeakMethod(self.me)
        self.gone = weakref.ref(Acts())

    def me(self):
        return self


class Weak:
    def __init__(self):
        self.key = Acts()
        self.keys = weakref.WeakKeyDictionary({self.key: 1})
        self.values = weakref.WeakValueDictionary({1: self.key})
        self.set = weakref.WeakSet([self.key])


style(Tree(), lambda it: it.child.parent() is it and it.method()() is it and it.gone() is None)
style(Weak(), lambda it: it.keys[it.key] == 1 and it.values[1] is it.key and it.key in it.set)


LOCK = threading.Lock()
UFUNC = np.frompyfunc(lambda x: x, 1, 1)


def use_lock():
    with LOCK:
        return 1


class Holding:
    opened = LOCK


class Coordinate(bytes, enum.Enum):
    def __new__(cls, value):
        made = bytes.__new__(cls, [value])
        made._value_ = value
        return made

    X = 0


class Named:
    """An object of a library's class that is pickled by its name."""

    __module__ = "library"

    def __reduce__(self):
        return "NAMED"


NAMED = Named()
NAMED.__module__ = "__main__"


REFUSED: dict[str, tuple[Any, str]] = {
    "a lock in a function": (use_lock, "its global LOCK"),
    "a lock in a class": (Holding(), r"\.opened"),
    "a ufunc": (UFUNC, "ufunc"),
    "what is pickled by its name": (NAMED, "'NAMED' of the main script is a library.Named"),
    "an enumeration with another __new__": (Coordinate.X, r"Coordinate\.X is a bytes that differs from its value"),
}
"""What is an error, and words of it."""


def results() -> dict[str, bool]:
    """Return by name whether each style is what it was."""
    return {name: bool(check(obj)) for name, (obj, check) in STYLES.items()}


class Styled(gymnasium.Env[Any, Any]):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.results = results()

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, True, False, self.results


class StyledAgent:
    def __init__(self, styles):
        self.styles, self.results = styles, None

    def get_action(self, observation):
        if self.results is None:
            self.results = {name: bool(check(obj)) for name, (obj, check) in self.styles.items()}
        return 0, self.results


def pickles() -> dict[str, Any]:
    """Return by name what is pickled, or the error."""
    found: dict[str, Any] = {}
    for name, (obj, *check) in {**STYLES, **REFUSED}.items():
        try:
            found[name] = dumps((obj, check[0] if name in STYLES else None), "the agent").owned()
        except SerializationError as error:
            found[name] = str(error)
    return found


def sample(kind: str) -> dict[str, bool]:
    """Sample in workers, and return by name whether each style was what it was there."""
    options: dict[str, Any] = (
        {"engine": "processes"} if kind == "processes" else {"engine": "queues", "start_method": kind}
    )
    which: Any = LocalSampler if kind == "local" else partial(MultiprocessingSampler, **options)
    with which(StyledAgent(STYLES), Styled, n_workers=1, seed=1) as sampler:
        batch = sampler.obtain_trajectories(1)
    infos = {f"environment: {name}": bool(batch.env_infos[name][0]) for name in STYLES}
    infos |= {f"agent: {name}": bool(batch.agent_infos[name][0]) for name in STYLES}
    return infos | {
        "nothing is registered here again": numbers_of(Registering.kinds) == [1, 2] == numbers_of(Meta.made)
    }


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "pickles":
        sys.stdout.buffer.write(pickle.dumps(pickles()))
    else:
        print(json.dumps(sample(*arguments)))
