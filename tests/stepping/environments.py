"""Environments whose data show what was lost, repeated or mixed up."""

import contextlib
import functools
import os
import signal
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler.environments.updates import apply_env_update, as_env_update
from streamsampler.stepping.episode_seeds import EpisodeSeeds


class Counting(gymnasium.Env):
    """Shows its seed and its timestep in a buffer that it uses again; ends after `length` timesteps.

    At the action 9 it raises, at 7 it kills its process, at 8 it hangs.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(10)

    def __init__(self, length=3, info_at=None, key="note"):
        self.length, self.info_at, self.key = length, info_at, key
        self.level = 0
        self.options = None
        self._buffer = np.zeros(2)
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self._t = 0
        self._buffer[:] = seed, 0
        return self._buffer, {}

    def step(self, action):
        self._t += 1
        if action == 9:
            raise RuntimeError("the gearbox is stuck")
        if action == 8:
            threading.Event().wait()
        if action == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        self._buffer[1] = self._t
        info = {self.key: self._t} if self._t == self.info_at else {}
        return self._buffer, float(action), self._t == self.length, False, info

    def set_level(self, level, *, factor=1):
        self.level = level * factor
        return self.level

    def render(self):
        return f"frame {self._t}"


class Gated(Counting):
    """Ends no step before there is a byte for it in a pipe; see `gate`."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def step(self, action):
        reading = os.open(self.pipe, os.O_RDONLY)
        os.read(reading, 1)
        os.close(reading)
        return super().step(action)


@contextlib.contextmanager
def gate(pipe):
    """Make a pipe, and yield what lets so many steps of `Gated` end: those that wait for it, or come later."""
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)  # so that nobody waits for the other end
    try:
        yield lambda n_steps=1: os.write(descriptor, b"!" * n_steps)
    finally:
        os.close(descriptor)


class Graded(gymnasium.Env):
    """Shows the action, of which it takes as many as it is told to; raises on others."""

    def __init__(self, n=2):
        self.action_space = spaces.Discrete(n)
        self.observation_space = spaces.Box(0, n, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise RuntimeError("there is no such grade")
        return np.full(1, float(action)), 0.0, False, False, {}


class Varied(gymnasium.Env):
    """Draws data of many kinds from its own generator; its infos come and go, and so do their keys."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 5}  # type: ignore[misc]
    observation_space: Any = spaces.Dict(
        position=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        parts=spaces.Tuple([spaces.Discrete(7, start=-2), spaces.MultiBinary(3)]),
        image=spaces.Box(0, 255, (2, 2), np.uint8),
    )
    action_space: Any = spaces.Dict(choice=spaces.Discrete(5), force=spaces.Box(-1, 1, (2,), np.float32))
    options: Any = None

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self._t = 0
        return self._observation(np.zeros(2)), self._info()

    def step(self, action):
        self._t += 1
        ends = self.np_random.random(2) < 0.15
        return self._observation(action["force"]), float(action["choice"]), bool(ends[0]), bool(ends[1]), self._info()

    def _observation(self, force):
        draw = self.np_random
        return {
            "position": (draw.normal(size=2) + force).astype(np.float32),
            "parts": (np.int64(draw.integers(-2, 5)), draw.integers(0, 2, 3).astype(np.int8)),
            "image": draw.integers(0, 256, (2, 2)).astype(np.uint8),
        }

    def _info(self):
        every: dict[str, Any] = {
            "time": self._t,
            "name": f"step {self._t}",
            "place": np.full((2, 1), self._t, np.float32),
            "deep": {"share": self._t / 7, "more": {"is_even": self._t % 2 == 0}},
            "empty": {},
        }
        return {key: value for key, value in every.items() if self.np_random.random() < 0.4}

    def render(self):
        return np.full((4, 4, 3), self._t, np.uint8)


class Strolling(gymnasium.Env):
    """Moves by its actions, and shows what they exactly were: as long as its seed says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length=None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length or int(self.np_random.integers(1, 12))
        self.place = self.np_random.random(2)
        return self.place, {"left": self.left} if self.left % 2 else {}

    def step(self, action):
        self.left -= 1
        self.place = self.place + action + 0.1 * self.np_random.random(2)
        return self.place, float(action[0]), self.left == 0, False, {"x": self.left} if self.left % 3 == 0 else {}


class FollowsSeeds(gymnasium.Wrapper):
    """Gives an episode that is begun without a seed the one that a manager would give it.

    The vector environments of other libraries reset an environment without a seed when its episode has ended.
    """

    def __init__(self, env, env_id, n_envs):
        super().__init__(env)
        self._env_id = env_id
        self._seeds = EpisodeSeeds(0, n_envs)

    def reset(self, *, seed=None, options=None):
        if seed is None:
            seed = self._seeds.next(self._env_id)
        else:
            self._seeds.restart([self._env_id], [seed])
        return self.env.reset(seed=seed, options=options)


def following(env, n_envs):
    """Return a function that makes each environment, for managers whose seed is 0 and for their peers."""
    update = as_env_update(env)
    return [
        functools.partial(lambda env_id: FollowsSeeds(apply_env_update(update, None), env_id, n_envs), env_id)
        for env_id in range(n_envs)
    ]
