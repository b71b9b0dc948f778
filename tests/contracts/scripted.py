"""Environments and agents that do exactly what a test needs; all can be pickled."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ZERO = np.zeros(1, np.float32)
LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def always_zero(observation: Any) -> int:
    return 0


# ---------------------------------------------------------------------- timing


class Steps(gymnasium.Env):
    """Ends after as many steps as it is told, each of which takes as long as it is told.

    The observation is the number of the step; the reward, too.
    """

    observation_space = LINE
    action_space = spaces.Discrete(1_000_000)

    def __init__(self, length: int = 3, pause: float = 0.0) -> None:
        self.length = length
        self.pause = pause

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return ZERO, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.pause:
            time.sleep(self.pause)
        return np.array([self.t], np.float32), float(self.t), self.t == self.length, False, {}


class TwoOrFifty(Steps):
    """Lasts 2 or 50 steps with equal probability."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.length = 2 if self.np_random.random() < 0.5 else 50
        return result


class AnyLength(Steps):
    """Lasts 1 to 10 steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 11))
        return result


class Wide(AnyLength):
    """Has observations that no pipe would hold: 8 kB each."""

    observation_space = spaces.Box(-np.inf, np.inf, (2_000,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2_000, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return np.full(2_000, self.t, np.float32), *rest


class SlowOne(AnyLength):
    """Takes its time in one trajectory, the one with this seed, and is quick in all others."""

    def __init__(self, slow_seed: int, pause: float) -> None:
        super().__init__()
        self.slow_seed, self.slow_pause = slow_seed, pause

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.pause = self.slow_pause if seed == self.slow_seed else 0.001
        return super().reset(seed=seed)


class Jittery(gymnasium.Wrapper):
    """Takes its time, now more and now less, by dice that no seed reaches."""

    def __init__(self, env: gymnasium.Env, longest: float) -> None:
        super().__init__(env)
        self.dice = random.SystemRandom()
        self.longest = longest

    def step(self, action: Any) -> Any:
        if self.dice.random() < 0.3:
            time.sleep(self.dice.random() * self.longest)
        return super().step(action)


def jittery(make_env: Callable[[], gymnasium.Env], longest: float) -> Callable[[], gymnasium.Env]:
    return partial(_jittery, make_env, longest)


def _jittery(make_env: Callable[[], gymnasium.Env], longest: float) -> gymnasium.Env:
    return Jittery(make_env(), longest)


class Tally:
    """Counts, across processes and beyond a process's death: a byte in a file for each event."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self) -> None:
        os.write(self._fd, b".")

    def close(self) -> None:
        os.close(self._fd)


def count(path: Path) -> int:
    """What all tallies of that path have counted."""
    return path.stat().st_size if path.exists() else 0


class Counted(gymnasium.Wrapper):
    """Counts steps, or resets."""

    def __init__(self, env: gymnasium.Env, steps: Path, resets: Path) -> None:
        super().__init__(env)
        self.steps, self.resets = Tally(steps), Tally(resets)

    def reset(self, **options: Any) -> Any:
        self.resets.add()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.steps.add()
        return super().step(action)

    def close(self) -> None:
        super().close()
        self.steps.close()
        self.resets.close()


def counted(make_env: Callable[[], gymnasium.Env], steps: Path, resets: Path) -> Callable[[], gymnasium.Env]:
    return partial(_counted, make_env, steps, resets)


def _counted(make_env: Callable[[], gymnasium.Env], steps: Path, resets: Path) -> gymnasium.Env:
    return Counted(make_env(), steps, resets)


class Marathon(Steps):
    """One trajectory of 100,000 slow steps, which are counted; all others end once it is well under way.

    Args:
        path: Where the long trajectory's steps are counted.
        long_seed: The seed of the long trajectory.
        pause: What each of its steps takes, in seconds.
        breaks: Whether the other trajectories raise instead of ending.
    """

    UNDER_WAY = 5
    LENGTH = 100_000
    SHORT = 4

    def __init__(self, path: Path, long_seed: int, pause: float = 0.01, breaks: bool = False) -> None:
        super().__init__(self.SHORT)
        self.tally = Tally(path)
        self.long_seed = long_seed
        self.long_pause = pause
        self.breaks = breaks

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.long = seed == self.long_seed
        self.length = self.LENGTH if self.long else self.SHORT
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.long:
            self.tally.add()
            time.sleep(self.long_pause)
        else:
            self._wait_for_the_long_one()
        return super().step(action)

    def _wait_for_the_long_one(self) -> None:
        deadline = time.monotonic() + 60
        while count(self.tally.path) < self.UNDER_WAY:
            if time.monotonic() > deadline:
                raise TimeoutError("nobody runs the long trajectory")
            time.sleep(0.001)
        if self.breaks:
            raise RuntimeError("broken on purpose")

    def close(self) -> None:
        self.tally.close()


# ---------------------------------------------------------------------- data


class Nested(gymnasium.Env):
    """Dict observations with images and a tuple in it, and infos that come and go."""

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "task": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, ending: float = 0.1) -> None:
        self.ending = ending

    def set_task(self, ending: float) -> None:
        self.ending = ending

    def _observe(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 256, (4, 4, 3), np.uint8)
        flags = self.np_random.integers(0, 2, 2).astype(np.int8)
        return {"position": self.position.copy(), "image": image, "task": (self.kind, flags)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.position = self.np_random.normal(size=2)
        self.kind = np.int64(self.np_random.integers(-1, 2))
        return self._observe(), {"kind": int(self.kind)} if self.kind >= 0 else {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.position += (action - 1) + self.np_random.normal(size=2)
        info: dict[str, Any] = {"distance": float(np.hypot(*self.position))}
        if self.np_random.random() < 0.2:
            info["event"] = {"where": self.position.copy(), "name": f"event {self.t}"}
        terminated = bool(self.np_random.random() < self.ending)
        return self._observe(), float(self.position.sum()), terminated, self.t == 40, info


class GlobalNoise(Nested):
    """Draws from the global generators, as many an environment does."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += random.random() - np.random.random()
        return super().step(action)


class Echo(gymnasium.Env):
    """Shows the last action as its observation."""

    def __init__(self, space: spaces.Space, length: int = 5) -> None:
        self.observation_space = space
        self.action_space = space
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return action, 0.0, self.t == self.length, False, {}


@dataclass(frozen=True)
class Script:
    """One trajectory, written down.

    Attributes:
        observations: The first, and what each step leads to.
        terminated: What the last step says.
        truncated: What the last step says.
        infos: What each step brings, or nothing.
        reset_info: What the reset brings.
    """

    observations: Sequence[Any]
    terminated: bool = True
    truncated: bool = False
    infos: Sequence[dict[str, Any]] = ()
    reset_info: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return len(self.observations) - 1


class Scripted(gymnasium.Env):
    """Plays scripts: which one is drawn by the seed, and told in the reset info.

    Args:
        scripts: What to play.
        observation_space: What the scripts' observations belong to.
        reuse: Whether all observations, and the arrays in infos, are one array each, overwritten in each step.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, scripts: Sequence[Script], observation_space: spaces.Space = LINE, reuse: bool = False) -> None:
        self.scripts = list(scripts)
        self.observation_space = observation_space
        self.buffer = np.empty(observation_space.shape, observation_space.dtype) if reuse else None
        self.info_buffer = np.empty(2)

    def _observe(self) -> Any:
        observation = self.script.observations[self.t]
        if self.buffer is None:
            return observation
        self.buffer[...] = observation
        return self.buffer

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.buffer is None or "array" not in info:
            return info
        self.info_buffer[...] = info["array"]
        return {**info, "array": self.info_buffer}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        number = int(self.np_random.integers(len(self.scripts)))
        self.script = self.scripts[number]
        return self._observe(), {"script": number, **self._info(self.script.reset_info)}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        last = self.t == self.script.length
        info = self._info(self.script.infos[self.t - 1]) if self.script.infos else {}
        ends = (self.script.terminated, self.script.truncated) if last else (False, False)
        return self._observe(), -0.5 * self.t, *ends, info


# ---------------------------------------------------------------------- agents


class Linear:
    """Draws CartPole's action with a probability that depends on the observation."""

    def __init__(self, weights: Sequence[float] = (0.0, 0.0, 0.3, 0.3)) -> None:
        self.weights = np.array(weights)

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        logit = float(observation @ self.weights)
        return int(logit + self.rng.logistic() > 0), {"logit": logit}

    def set_param_values(self, weights: Any) -> None:
        self.weights = np.array(weights)


class Attentive(Linear):
    """Looks at all parts of a nested observation."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        kind, flags = observation["task"]
        features = np.array([*observation["position"], observation["image"].mean() / 255, kind + flags.sum()])
        action, info = super().get_action(features)
        return action + int(self.rng.random() < 0.5), info


class Drawing(Linear):
    """Draws from `random`, from `numpy.random` and from a generator of its own."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        draws = {"python": random.random(), "numpy": np.random.random(), "own": self.rng.random()}
        return int(sum(draws.values()) + self.weights[0]) % 3, draws


class Stamping:
    """Writes its version, which is its parameter, into its actions."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return self.version, {}

    def set_param_values(self, values: tuple[int]) -> None:
        (self.version,) = values
