"""Environments that do exactly what a test needs, in this process or in a worker's.

What digests are made of has the same numbers on every machine: integers, and fractions that floats hold. What goes
through a mathematical library (logarithms, matrix products, cosines) may differ in its last bit.
"""

from __future__ import annotations

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

from streamsampler.workers.fail_points import Records

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]

ZERO = np.zeros(1, np.float32)
LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Steps(gymnasium.Env[Any, Any]):
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
        return (np.full(2_000, self.t, np.float32), *rest)  # type: ignore[return-value]


class SlowOne(AnyLength):
    """Takes its time in one trajectory, the one with this seed, and is quick in all others."""

    def __init__(self, slow_seed: int, pause: float) -> None:
        super().__init__()
        self.slow_seed, self.slow_pause = slow_seed, pause

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.pause = self.slow_pause if seed == self.slow_seed else 0.001
        return super().reset(seed=seed)


class Jittery(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes its time, now more and now less, by dice that no seed reaches."""

    def __init__(self, env: gymnasium.Env[Any, Any], longest: float) -> None:
        super().__init__(env)
        self.dice = random.SystemRandom()
        self.longest = longest

    def step(self, action: Any) -> Any:
        if self.dice.random() < 0.3:
            time.sleep(self.dice.random() * self.longest)
        return super().step(action)


def jittery(make_env: MakeEnv, longest: float) -> MakeEnv:
    return partial(_jittery, make_env, longest)


def _jittery(make_env: MakeEnv, longest: float) -> gymnasium.Env[Any, Any]:
    return Jittery(make_env(), longest)


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records its "steps" and "resets" in a folder, together with those of other processes."""

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path) -> None:
        super().__init__(env)
        self.records = Records(folder)

    def reset(self, **options: Any) -> Any:
        self.records.record("resets")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.records.record("steps")
        return super().step(action)


def counted(make_env: MakeEnv, folder: Path) -> MakeEnv:
    return partial(_counted, make_env, folder)


def _counted(make_env: MakeEnv, folder: Path) -> gymnasium.Env[Any, Any]:
    return Counted(make_env(), folder)


class Marathon(Steps):
    """Has one trajectory of 100,000 slow steps, which are recorded; all others end once it is well under way.

    Args:
        folder: Where the long trajectory's steps are recorded.
        long_seed: The seed of the long trajectory.
        pause: Seconds of each of its steps.
        breaks: Whether the other trajectories raise instead of ending.
    """

    UNDER_WAY = 5
    LENGTH = 100_000
    SHORT = 4

    def __init__(self, folder: Path, long_seed: int, pause: float = 0.01, breaks: bool = False) -> None:
        super().__init__(self.SHORT)
        self.records = Records(folder)
        self.long_seed = long_seed
        self.long_pause = pause
        self.breaks = breaks

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.long = seed == self.long_seed
        self.length = self.LENGTH if self.long else self.SHORT
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.long:
            self.records.record("steps")
            self.records.wake()
            time.sleep(self.long_pause)
        else:
            self.records.wait(self.UNDER_WAY, 120.0)
            if self.breaks:
                raise RuntimeError("broken on purpose")
        return super().step(action)


class Nested(gymnasium.Env[Any, Any]):
    """Has nested observations, infos that come and go, and both ends."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "task": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, ending: float = 0.125) -> None:
        self.ending = ending

    def set_task(self, ending: float) -> None:
        """Change how likely a timestep is the last one."""
        self.ending = ending

    def _observe(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 256, (4, 4, 3), np.uint8)
        flags = self.np_random.integers(0, 2, 2).astype(np.int8)
        return {"place": self.place.copy(), "image": image, "task": (self.kind, flags)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.t = 0
        self.place = self.np_random.random(2)
        self.kind = np.int64(self.np_random.integers(-1, 2))
        return self._observe(), {"kind": int(self.kind)} if self.kind >= 0 else {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.place += (action - 1) + self.np_random.random(2)
        info: dict[str, Any] = {"sum": float(self.place.sum())}
        if self.np_random.random() < 0.25:
            info["event"] = {"where": self.place.copy(), "name": f"event {self.t}"}
        terminated = bool(self.np_random.random() < self.ending)
        return self._observe(), float(self.place[0]), terminated, self.t == 40, info


class GlobalNoise(Nested):
    """Draws from the global generators as well."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += random.random() - np.random.random()
        return super().step(action)


class Rough(Nested):
    """Raises in one trajectory of five."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.breaks = self.np_random.random() < 0.2
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.breaks and self.t == 2:
            raise RuntimeError("broken on purpose")
        return super().step(action)


class Counting(gymnasium.Env[Any, Any]):
    """Lasts 1 to `longest` timesteps; each observation is `width` times the number of the timestep."""

    action_space = spaces.Discrete(1 << 20)

    def __init__(self, longest: int = 10, width: int = 1) -> None:
        self.longest, self.width = longest, width
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.t = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.mark = int(self.np_random.integers(1 << 20))
        return np.full(self.width, self.mark, np.float32), {"mark": self.mark}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        last = self.t == self.length
        info: dict[str, Any] = {"t": self.t}
        if self.t % 3 == 0:
            info["third"] = {"of": np.array([self.mark, self.t])}
        observation = np.full(self.width, self.mark + self.t, np.float32)
        return observation, float(self.t), last and self.mark % 2 == 0, last and self.mark % 2 == 1, info


class Drawn(Counting):
    """Terminates, truncates or does both at once, and says more in its last info."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if last := terminated or truncated:
            info["last"] = True
        terminated, truncated = last and self.mark % 3 != 0, last and self.mark % 3 != 1
        return observation, reward + action, terminated, truncated, info


_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(7, start=-3),
    "binary": spaces.MultiBinary((2, 3)),
    "several": spaces.MultiDiscrete([3, 5], dtype=np.int32),
    "image": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    "integers": spaces.Box(-5, 5, (3,), np.int16),
    "tuple": spaces.Tuple((spaces.Discrete(4), spaces.Dict({"a": spaces.MultiBinary(3)}))),
}


class Shapes(gymnasium.Env[Any, Any]):
    """Shows elements of one space, drawn in each timestep."""

    action_space = spaces.Discrete(3)

    def __init__(self, name: str = "discrete") -> None:
        self.observation_space = _SPACES[name]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(1, 12))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observation_space.sample(), 0.5 * int(action), self.left == 0, False, {}


class Echo(gymnasium.Env[Any, Any]):
    """Shows the last action as its observation."""

    def __init__(self, space: spaces.Space[Any], length: int = 5) -> None:
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


class Scripted(gymnasium.Env[Any, Any]):
    """Plays scripts: which one is drawn by the seed, and told in the reset info.

    Args:
        scripts: What to play.
        observation_space: What the scripts' observations belong to.
        reuse: Whether all observations, and the arrays in infos, are one array each, overwritten in each step.
    """

    action_space = spaces.Discrete(2)

    def __init__(
        self, scripts: Sequence[Script], observation_space: spaces.Space[Any] = LINE, reuse: bool = False
    ) -> None:
        self.scripts = list(scripts)
        self.observation_space = observation_space
        self.buffer = np.empty_like(scripts[0].observations[0]) if reuse else None
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
