"""Environments and agents over spaces of any kind: a name for each kind, for observations and for actions."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler.workers.vec.rows import row_of

__all__ = ["KINDS", "PAIRS", "Asked", "Kinds", "Mission", "RowsAsked", "Thing"]


class Mission(spaces.Space[str]):
    """A custom space of strings, such as MiniGrid's: no instance of Text."""

    def __init__(self, colours: tuple[str, ...] = ("red", "green", "blue")) -> None:
        self.colours = colours
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"go to the {self.colours[self.np_random.integers(len(self.colours))]} door"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x.startswith("go to")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mission) and self.colours == other.colours

    __hash__ = None  # type: ignore[assignment]


class Thing:
    """What only its attributes tell from others."""

    def __init__(self, number: int, array: Any) -> None:
        self.number, self.array = number, array


class Things(spaces.Space[Thing]):
    """A custom space without an `==` of its own, with values of any class."""

    def sample(self, mask: Any = None, probability: Any = None) -> Thing:
        return Thing(int(self.np_random.integers(9)), self.np_random.normal(size=3))

    def contains(self, x: Any) -> bool:
        return True


def _box() -> spaces.Box:
    return spaces.Box(-1, 1, (2,), np.float32)


def _text(longest: int) -> spaces.Text:
    # Before 1.3, Gymnasium's own default is a set, whose order is another one in each process: so are samples.
    return spaces.Text(longest, charset="aBc0 é")


KINDS: dict[str, Callable[[], spaces.Space[Any]]] = {
    "number": lambda: spaces.Discrete(5),
    "text": lambda: _text(8),
    "list": lambda: spaces.Sequence(_box()),
    "stacked": lambda: spaces.Sequence(_box(), stack=True),
    "graph": lambda: spaces.Graph(_box(), spaces.Discrete(3)),
    "one of": lambda: spaces.OneOf([spaces.Discrete(3), _box(), _text(3)]),
    "mission": Mission,
    "things": Things,
    "grid": lambda: spaces.Dict(
        image=spaces.Box(0, 255, (7, 7, 3), np.uint8), mission=Mission(), way=KINDS["number"]()
    ),
    "pair": lambda: spaces.Tuple([_text(5), spaces.Discrete(3)]),
    "nested": lambda: spaces.Dict(a=spaces.Tuple([_box(), KINDS["list"]()]), b=spaces.Dict(c=_text(4))),
}
PAIRS = [
    ("grid", "number"), ("things", "pair"), ("text", "text"), ("list", "things"), ("stacked", "list"),
    ("graph", "one of"), ("one of", "graph"), ("mission", "nested"), ("pair", "mission"), ("nested", "stacked"),
    ("number", "grid"),
]  # fmt: skip
"""An observation space and an action space; each kind is in both places."""


def number_of(value: Any) -> float:
    """Return a number that depends on all of a value."""
    if isinstance(value, str):
        return float(zlib.crc32(value.encode()) % 1000)
    if isinstance(value, dict):
        return sum(map(number_of, value.values()))
    if isinstance(value, tuple | list):
        return sum((place + 1) * number_of(part) for place, part in enumerate(value))
    if isinstance(value, Thing):
        return value.number + number_of(value.array)
    return 0.0 if value is None else float(np.sum(np.asarray(value, np.float64)))


class Kinds(gymnasium.Env[Any, Any]):
    """Shows samples of its space; its rewards depend on all of its actions so far."""

    def __init__(self, shown: str, sent: str) -> None:
        self.observation_space, self.action_space = KINDS[shown](), KINDS[sent]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.sum = 0, 0.0
        self.length = int(self.np_random.integers(2, 7))
        return self.drawn(), {}

    def drawn(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.sum = round(self.sum + number_of(action), 3)
        return self.drawn(), self.sum, self.t == self.length, False, {"sum": self.sum}


class Asked:
    """Chooses samples of an action space, which follow from the observations."""

    row_independent = True

    def __init__(self, sent: str) -> None:
        self.space = KINDS[sent]()

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self.space.seed(int(abs(number_of(observation)) * 1000) % (1 << 30))
        return self.space.sample(), {}


class RowsAsked(Asked):
    """The same for many observations at once.

    Args:
        sent: The kind of the actions.
        row_independent: What it says of its rows.
    """

    def __init__(self, sent: str, row_independent: bool = True) -> None:
        super().__init__(sent)
        self.row_independent = row_independent

    def get_actions(self, observations: Any) -> tuple[list[Any], dict[str, Any]]:
        leaf = observations
        while isinstance(leaf, dict | tuple):
            leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
        return [self.get_action(row_of(observations, row))[0] for row in range(len(leaf))], {}
