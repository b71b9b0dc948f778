"""Agents and environments whose episodes go on from call to call."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.scripted.agents import Linear


class Restorable(Linear):
    """Draws from a generator whose state it can give."""

    def get_state(self) -> Any:
        return self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.rng.bit_generator.state = state


class Recurrent(Restorable):
    """Acts on a decaying sum of what it saw since the episode began, and on global generators."""

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.hidden = 0.0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self.hidden = 0.9 * self.hidden + float(observation @ self.weights)
        noise = self.rng.logistic() + random.gauss(0, 0.1) + np.random.normal()
        return int(self.hidden + noise > 0), {"hidden": self.hidden}

    def get_state(self) -> Any:
        return super().get_state(), self.hidden

    def set_state(self, state: Any) -> None:
        generator, self.hidden = state
        super().set_state(generator)


class Forgetful(gymnasium.Env[Any, Any]):
    """Counts its resets: the same seed and actions do not lead to the same observations."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.hidden = 0, random.SystemRandom().random()
        return self.observe(), {}

    def observe(self) -> Any:
        return np.full(4, self.hidden + self.t, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), 1.0, self.t == 100, False, {}


class Wandering(Forgetful):
    """Begins in one and the same place, and goes on elsewhere each time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.hidden = 0.0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.hidden = random.SystemRandom().random()
        return super().step(action)


class Noisy(Forgetful):
    """Draws from a global generator."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.hidden = random.random()
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.hidden = random.random()
        return super().step(action)


class Sticky(gymnasium.Env[Any, Any]):
    """Terminates, truncates, or does both; a short, a middling or a long episode, by its seed."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = int(self.np_random.choice([1, 8, 30]))
        self.end = int(self.np_random.integers(3))
        self.t = 0
        return self.observe(), {"length": self.length} if self.end else {}

    def observe(self) -> Any:
        return self.np_random.random(4, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        last = self.t == self.length
        info = {"t": self.t} if self.t % 2 else {}
        return self.observe(), self.t + action / 2, last and self.end != 1, last and self.end != 0, info


class HalfState(Restorable):
    """Gives its state, and takes none."""

    set_state = None  # type: ignore[assignment]


class Counter:
    """Counts its actions, and is never reset; but its count can be given to another worker."""

    n = 0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self.n += 1
        return self.n // 3 % 2, {"n": self.n}

    def get_state(self) -> Any:
        return self.n

    def set_state(self, state: Any) -> None:
        self.n = state


class InRows:
    """Acts for several rows only; its parameter is a weight."""

    row_independent = True
    weight = 0.0

    def get_action(self, observation: Any) -> Any:
        raise NotImplementedError

    def set_param_values(self, values: Any) -> None:
        self.weight = float(values[0])


class CountsRows(InRows):
    """Counts the timesteps of each row's episode; has no `reset`, and cannot give the counts."""

    row_independent = False

    def get_actions(self, observations: Any, *, starts: Any) -> Any:
        self.seen = np.where(starts, 0, getattr(self, "seen", 0)) + 1
        return (self.seen % 3 > 1).astype(np.int64), {}


class Drawn(InRows):
    """Draws for each row from its episode's stream, and remembers how much it saw in each row."""

    def __init__(self) -> None:
        self.seen = np.zeros(())  # for any number of rows

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        self.seen = np.where(starts, 0.0, self.seen) + observations.mean(axis=1)
        noise = draws.random() + draws.normal(2).sum(axis=1)
        return (noise + self.weight * self.seen > 0.5).astype(np.int64), {"seen": self.seen.copy()}

    def get_state(self) -> Any:
        return self.seen.copy()

    def set_state(self, state: Any) -> None:
        self.seen = state.copy()


class Fleeting(InRows):
    """Draws for each row from its episode's stream, and remembers nothing: it may be asked for any rows at any time."""

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        noise = draws.random() + draws.normal(2).sum(axis=1)
        return (noise + self.weight * observations.mean(axis=1) > 0.5).astype(np.int64), {"noise": noise}


class Alone(Linear):
    """Is asked for one action at a time, and says that it does not mind which other rows there are."""

    row_independent = True


class Mixing(InRows):
    """Lets rows depend on one another, and draws from one generator for all of them."""

    row_independent = False

    def reset(self, seed: int) -> None:
        self.seen = np.zeros(3)
        self.rng = np.random.default_rng(seed)

    def get_actions(self, observations: Any) -> Any:
        self.seen = self.seen + observations.mean()
        return (self.rng.random(len(observations)) + self.weight * self.seen > 0.5).astype(np.int64), {}

    def get_state(self) -> Any:
        return self.seen, self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.seen, generator = state
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = generator


class Offset(Sticky):
    """Adds to what is observed; changes its options, as environments may."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.offset = (options or {"offset": [0.0]})["offset"].pop()
        observation, _ = super().reset(seed=seed)
        return observation, {"offset": self.offset}

    def observe(self) -> Any:
        return super().observe() + np.float32(self.offset)
