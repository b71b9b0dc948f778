"""The environments of the workloads.

Work that a real environment would do is simulated by spinning until the thread has used so much CPU time. That is the
same amount of work however many processes share the cores, which a spin on the wall clock is not.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.problems.marks import mark, scratch


def spin(seconds: float) -> None:
    """Use so much CPU time in this thread."""
    clock = time.thread_time
    end = clock() + seconds
    while clock() < end:
        pass


@dataclass(frozen=True)
class Costs:
    """Describe work that is paid for by sleeping, which takes longer, so that what samplers do is little next to it.

    Attributes:
        step: Seconds of a step of the environment, as measured, with its share of resets.
        call: Seconds of a batched call of the agent, as measured.
        scale: By what factor both take longer.
    """

    step: float
    call: float
    scale: float


COSTS = {
    "cartpole": Costs(10e-6, 54e-6, 20.0),
    "cheetah": Costs(54e-6, 39e-6, 5.0),
    "walker": Costs(84e-6, 3e-6, 5.0),
}
_debt = [0.0]


def pay(seconds: float) -> None:
    """Sleep so long: now and then, and on average exactly."""
    _debt[0] += seconds
    if _debt[0] > 1e-3:
        began = time.monotonic()
        time.sleep(_debt[0])
        _debt[0] -= time.monotonic() - began


def make_cartpole() -> gymnasium.Env:
    """CartPole-v1 without the checker, which the library switches off as well."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


class _Costlier(gymnasium.Wrapper):
    """Work for some seconds more in each step."""

    def __init__(self, env: gymnasium.Env, work: float) -> None:
        super().__init__(env)
        self._work = work

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """Step, then work."""
        stepped = self.env.step(action)
        spin(self._work)
        return stepped


def make_costlier_cartpole(work: float) -> gymnasium.Env:
    """CartPole-v1, with so many seconds of work more in each step."""
    return _Costlier(make_cartpole(), work)


def make_pendulum() -> gymnasium.Env:
    """Pendulum-v1 without the checker."""
    return gymnasium.make("Pendulum-v1", disable_env_checker=True)


def make_cheetah() -> gymnasium.Env:
    """HalfCheetah-v5 without the checker."""
    return gymnasium.make("HalfCheetah-v5", disable_env_checker=True)


class Still(gymnasium.Env):
    """Says the same in each step; trajectories of 500 timesteps."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._observation, self._t = np.zeros(4, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin."""
        self._t = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Count."""
        self._t += 1
        return self._observation, 1.0, False, self._t == 500, {}


class ShortCartPole(gymnasium.Env):
    """CartPole that is truncated after 5 to 20 timesteps, equally likely."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self) -> None:
        self._env = make_cartpole().unwrapped
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin, and draw the length."""
        observation, info = self._env.reset(seed=seed, options=options)
        self._left = int(self._env.np_random.integers(5, 21))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step CartPole."""
        observation, reward, terminated, _, info = self._env.step(action)
        self._left -= 1
        return observation, reward, terminated, self._left == 0, info


class Pixels(gymnasium.Env):
    """Observations of uint8 4x84x84 (28 KB), 50 µs of work per step, trajectories of 500 timesteps.

    Each observation is a fresh array: three earlier frames and a new one, as from a frame stack.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self, work: float = 50e-6, length: int = 500) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._bank = np.random.default_rng(0).integers(0, 256, (64, 84, 84), np.uint8)
        self._work, self._length, self._t, self._at = work, length, 0, 0
        self._last = np.zeros((4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin at a random frame."""
        super().reset(seed=seed)
        self._t, self._at = 0, int(self.np_random.integers(64))
        self._last = np.repeat(self._bank[self._at][None], 4, axis=0)
        return self._last, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Work, and show the next frame, which depends on the action."""
        spin(self._work)
        self._t += 1
        self._at = (self._at + int(action) + 1) % 64
        observation = np.empty((4, 84, 84), np.uint8)
        observation[:3] = self._last[1:]
        observation[3] = self._bank[self._at]
        self._last = observation
        return observation, 1.0, False, self._t == self._length, {}


class Walker(gymnasium.Env):
    """80 µs of work per step (about what a small physics simulation takes), trajectories of known lengths.

    Lengths are drawn at reset, from `shortest` to `longest` timesteps, equally likely.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self, shortest: int = 1000, longest: int = 1000, work: float = 80e-6) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float64)
        self._mixer = np.random.default_rng(0).normal(0, 0.3, (17, 6))
        self._shortest, self._longest, self._work = shortest, longest, work
        self._left, self._state = 0, np.zeros(17)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin at a random state, and draw the length."""
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(self._shortest, self._longest + 1))
        self._state = self.np_random.normal(0, 1, 17)
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Work, and drift."""
        spin(self._work)
        self._state = 0.9 * self._state + self._mixer @ action
        self._left -= 1
        return self._state, float(self._state[0]), False, self._left == 0, {}


class Sleeper(gymnasium.Env):
    """Sleep in each step, as an environment does that waits for an external program.

    Args:
        mean: Seconds, on average.
        sigma: Of the logarithm of the times, which are normally distributed: 0 is constant, 1 has a heavy tail (one
            step in a hundred takes six times the mean).
        length: Timesteps of a trajectory.
        slowness: One of a contender's processes is so many times slower: the one that steps first.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self, mean: float, sigma: float = 0.0, length: int = 20, slowness: float = 1.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._median, self._sigma, self._length, self._slowness = (
            mean * np.exp(-(sigma**2) / 2),
            sigma,
            length,
            slowness,
        )
        self._factor, self._t, self._times = 0.0, 0, np.zeros(0)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin, and draw how long each step will take."""
        super().reset(seed=seed)
        self._t = 0
        self._times = self._median * np.exp(self._sigma * self.np_random.standard_normal(self._length))
        return np.zeros(4), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleep."""
        if not self._factor:
            self._factor = self._slowness if self._slowness != 1.0 and _is_the_slow_one() else 1.0
        time.sleep(self._factor * self._times[self._t])
        self._t += 1
        return np.full(4, float(self._t)), 1.0, False, self._t == self._length, {}


class SleepingPixels(Sleeper):
    """Sleep in each step, and return observations of uint8 4x84x84; see `Sleeper`."""

    def __init__(self, mean: float, sigma: float = 0.0, length: int = 20, slowness: float = 1.0) -> None:
        super().__init__(mean, sigma, length, slowness)
        self.observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._frames = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin, and draw how long each step will take."""
        super().reset(seed=seed)
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleep."""
        _, reward, terminated, truncated, info = super().step(action)
        return self._frames[self._t % len(self._frames)], reward, terminated, truncated, info


class Slowed(gymnasium.Env):
    """Sleep in each step; so many times longer in the process whose id is in the file `path`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self, path: str, seconds: float, length: int = 10, slowness: float = 10.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._path, self._seconds, self._length, self._slowness = Path(path), seconds, length, slowness
        self._t, self._factor = 0, 1.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin, and look whether this is the slow process."""
        super().reset(seed=seed)
        self._t, self._factor = 0, 1.0
        with contextlib.suppress(OSError):
            self._factor = self._slowness if self._path.read_text() == str(os.getpid()) else 1.0
        return np.zeros(4), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleep."""
        time.sleep(self._factor * self._seconds)
        self._t += 1
        return np.full(4, float(self._t)), 1.0, False, self._t == self._length, {}


def _is_the_slow_one() -> bool:
    """Return whether this process is the contender's slow one: the first that calls this."""
    path = scratch() / "slow"
    try:
        os.close(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return path.read_text() == str(os.getpid())
    path.write_text(str(os.getpid()))
    return True


class Paid(gymnasium.Env):
    """Stands for work by sleeping, in many processes on few cores.

    Args:
        kind: Whose costs it has.
        shortest: Timesteps of the shortest trajectories.
        longest: Of the longest, with all lengths equally likely; None for a heavy tail, with 14 more on average.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name and kind

    def __init__(self, kind: str, shortest: int, longest: int | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float64)
        self._seconds, self._shortest, self._longest = COSTS[kind].scale * COSTS[kind].step, shortest, longest
        self._left, self._observation = 0, np.zeros(17)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin, and draw the length."""
        super().reset(seed=seed)
        if self._longest is None:
            self._left = self._shortest - 1 + int(self.np_random.geometric(1 / 15))
        else:
            self._left = int(self.np_random.integers(self._shortest, self._longest + 1))
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleep."""
        pay(self._seconds)
        self._left -= 1
        return self._observation, 1.0, False, self._left == 0, {}


def make_paid_cartpole() -> Paid:
    """Costs and lengths of CartPole-v1 under a network that draws its actions."""
    return Paid("cartpole", 8)


def make_paid_cheetah() -> Paid:
    """Costs and lengths of HalfCheetah-v5."""
    return Paid("cheetah", 1000, 1000)


def make_paid_walker() -> Paid:
    """Costs and lengths of the varied `Walker`."""
    return Paid("walker", 200, 1000)


def make_straggler() -> Sleeper:
    """2 ms on average, heavy-tailed; 20 timesteps; one process four times slower."""
    return Sleeper(2e-3, sigma=1.0, length=20, slowness=4.0)


def make_sleeper() -> Sleeper:
    """20 ms in each step, 20 timesteps."""
    return Sleeper(20e-3, length=20)


def make_ten_ms_sleeper() -> Sleeper:
    """10 ms in each step, 20 timesteps."""
    return Sleeper(10e-3, length=20)


def make_ten_ms_walker() -> Walker:
    """Trajectories of 10 ms: 125 timesteps."""
    return Walker(125, 125)


def make_short_sleeper() -> Sleeper:
    """2 ms in each step, 5 timesteps."""
    return Sleeper(2e-3, length=5)


def make_varied_walker() -> Walker:
    """Trajectories of 200 to 1,000 timesteps."""
    return Walker(200, 1000)


def make_marked() -> Sleeper:
    """One step of 1 ms; marks (with 0) that there is an environment now."""
    env = Sleeper(1e-3, length=1)
    mark(0)
    return env


STEP_TIMES: dict[str, dict[str, float]] = {
    "constant": {},
    "jittered": {"sigma": 0.25},
    "heavy": {"sigma": 1.0},
    "one_slow": {"slowness": 10.0},
}
"""How long a step of `make_timed` takes, next to 5 ms."""


def make_timed(times: str, kind: type[Sleeper]) -> Sleeper:
    """5 ms on average, by the name of `STEP_TIMES`; 100 timesteps."""
    return kind(5e-3, length=100, **STEP_TIMES[times])  # type: ignore[arg-type]
