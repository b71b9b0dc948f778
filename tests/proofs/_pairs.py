"""The environment and the agents that are combined with all options by pairs."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import DefaultWorker
from tests.fragments.agents import Restorable
from tests.scripted.games import Comings, Turns

__all__ = ["AGENTS", "Counted", "Seamed", "World", "environment", "is_odd", "other_environment"]


class World(gymnasium.Env[Any, Any]):
    """Has all that options are about: tasks, parameters, reset options, actions that it takes, and failures."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, longest: int = 9, *, fails: bool = False) -> None:
        self.longest, self.fails = longest, fails
        self.task, self.mass = 0.0, 1.0

    def set_task(self, task: Any) -> None:
        """Take a task: a number, or attributes by name, as parameters come to what has this method."""
        self.__dict__.update(task if isinstance(task, dict) else {"task": task})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory."""
        super().reset(seed=seed)
        self.t, self.level = 0, (options or {}).get("level", 0)
        self.length = int(self.np_random.integers(1, self.longest))
        self.is_wrong = self.fails and self.np_random.random() < 0.2
        return self.observe(), {"length": self.length}

    def observe(self) -> Any:
        """Return noise that the task and the options show in."""
        return (self.np_random.integers(-8, 9, 4) / 4 + self.task + self.level).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step."""
        self.t += 1
        if self.is_wrong and self.t == 3:
            raise ValueError("this trajectory is wrong")
        info = {"t": self.t, **({"taken": 1 - int(action)} if self.t % 3 == 0 else {})}
        return self.observe(), self.t * self.mass + float(action) / 2, self.t >= self.length, False, info


def is_odd(info: dict[str, Any]) -> bool:
    """Return whether a trajectory is abnormal."""
    return bool(info.get("length") == 5 or any(each.get("odd") for each in info.values() if isinstance(each, dict)))


class Unannounced:
    """A game whose `possible_agents` nobody sees."""

    def __init__(self, game: Any) -> None:
        self.game = game

    def __getattr__(self, name: str) -> Any:
        if name in ("possible_agents", "game"):
            raise AttributeError(name)
        return getattr(self.game, name)

    def __reduce__(self) -> Any:
        return type(self), (self.game,)


def unannounced(**arguments: Any) -> Any:
    """Return a game that does not say which agents there may be."""
    return Unannounced(Game(**arguments))


class Fallible:
    """What both games have: tasks, parameters, and failures."""

    task, mass, fails = 0.0, 1.0, False

    def set_task(self, task: Any) -> None:
        """Take a task."""
        self.__dict__.update(task if isinstance(task, dict) else {"task": task})

    def begin(self, seed: Any) -> None:
        """Begin a trajectory."""
        super().begin(seed)  # type: ignore[misc]
        self.is_wrong = self.fails and self.rng.random() < 0.2  # type: ignore[attr-defined]
        self.is_odd = self.rng.random() < 0.3  # type: ignore[attr-defined]

    def info(self, agent: str) -> dict[str, Any]:
        """Return what is said of an agent."""
        return {**super().info(agent), **({"odd": True} if self.is_odd else {})}  # type: ignore[misc]

    def seen(self, agent: str) -> Any:
        """Return what an agent sees, and its task."""
        return super().seen(agent) + np.float32(self.task)  # type: ignore[misc]

    def step(self, action: Any) -> Any:
        """Make a step."""
        if self.is_wrong and self.t == 3:  # type: ignore[attr-defined]
            raise ValueError("this trajectory is wrong")
        return super().step(action)  # type: ignore[misc]


class Game(Fallible, Comings):
    """Several agents, all at once."""

    def __init__(self, *, fails: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.fails = fails


class TurnsGame(Fallible, Turns):
    """Several agents, in turns."""

    def __init__(self, *, fails: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.fails = fails


_WORLDS: dict[str, Any] = {"world": World, "game": Game, "open game": unannounced, "turns": TurnsGame}


def environment(world: str, *, fails: bool) -> Any:
    """Return what makes an environment."""
    return partial(_WORLDS[world], fails=fails)


def other_environment(world: str, *, fails: bool) -> Any:
    """Return what makes another one, with the same spaces."""
    if world == "world":
        return partial(World, 5, fails=fails)
    return environment(world, fails=fails)


class Rows:
    """Draws for each row from its trajectory's stream; remembers nothing."""

    row_independent = True

    def __init__(self, weights: Any = (0.25, 0.5, 0.0, 0.0)) -> None:
        self.weights = tuple(weights)

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        """Return actions, and what they were drawn from."""
        drawn = draws.random()
        return (np.floor(8 * drawn + 4 * self.weights[0] * observations[:, 0]) % 2).astype(np.int64), {"drawn": drawn}

    def set_param_values(self, weights: Any) -> None:
        """Set the weights."""
        self.weights = tuple(weights)


class RowsToo(Rows):
    """Is asked for one action at a time, too."""

    def reset(self, seed: int) -> None:
        """Seed its generator."""
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> Any:
        """Return an action, and what it was drawn from."""
        drawn = self.rng.random()
        return int(np.floor(8 * drawn + 4 * self.weights[0] * float(observation[0]))) % 2, {"drawn": drawn}


class Block(RowsToo):
    """Lets rows depend on one another."""

    row_independent = False

    def get_actions(self, observations: Any) -> Any:  # type: ignore[override]
        """Return actions that all rows decide."""
        drawn = self.rng.random(len(observations))
        total = float(np.floor(observations[:, 0]).sum())
        return (np.floor(8 * drawn + total) % 2).astype(np.int64), {"drawn": drawn}


class Memory(Restorable):
    """Draws from a generator whose state it can give; in numbers that are the same on every machine."""

    def get_action(self, observation: Any) -> Any:
        """Return an action, and what it was drawn from."""
        drawn = self.rng.random()
        return int(np.floor(8 * drawn + 4 * self.weights[0] * float(observation[0]))) % 2, {"drawn": drawn}


def decide(observation: Any) -> int:
    """Choose an action."""
    return int(observation[0] > 0)


AGENTS: dict[str, Any] = {
    "memory": Memory, "random": lambda *_: "random", "function": lambda *_: decide, "rows": RowsToo, "rows alone": Rows,
    "block": Block,
}  # fmt: skip


class Counted:
    """Hooks with metrics."""

    def on_timestep(self, context: Any) -> None:
        """Count."""
        context.metrics["steps"] = float(context.timestep)


class Seamed(DefaultWorker):
    """Overrides a seam."""

    def after_step(self, context: Any, result: Any) -> Any:
        """Return what the environment returned."""
        return result
