"""Kill workers of environment managers hundreds of times: every environment's stream is that of an undisturbed run.

Worlds are drawn: the environment, how many workers, the autoreset mode, and whether steps are waited for. In each of
them workers are killed at random instants: while they make environments, restore them, step, write results, or wait.
Actions depend on what was seen, so that a stream that has differed once does not meet the other one again. What is
compared is everything that `Steps` has.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import EnvManager, Limits, SerialEnvManager
from streamsampler.data.digests import digest
from streamsampler.data.trees import leaves

N_ENVS, N_ROWS, N_KILLS = 7, 60, 10
MOST_SECONDS_LATER = 2e-3
MODES: Any = ("next_step", "same_step", "disabled")
Stream = list[list[tuple[Any, ...]]]


class Maze(gymnasium.Env[Any, Any]):
    """Has nested observations in buffers that it uses again, infos that come and go, and both kinds of ends."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (16, 16), np.uint8),
        parts=spaces.Tuple([spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Discrete(1000)]),
    )
    action_space = spaces.Dict(turn=spaces.Discrete(3), force=spaces.Box(-1, 1, (2,), np.float32))

    def __init__(self) -> None:
        self._image, self._place, self._t = np.zeros((16, 16), np.uint8), np.zeros(3), 0

    def _observation(self) -> dict[str, Any]:
        return {"image": self._image, "parts": (self._place, self._t)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        self._image[:] = self.np_random.integers(256, size=(16, 16))
        self._place[:] = self.np_random.normal(size=3) + (options or {}).get("start", 0.0)
        return self._observation(), {"begun": True} if self.np_random.random() < 0.5 else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._image[self.np_random.integers(16)] += np.uint8(action["turn"] + 1)
        self._place[:2] += action["force"]
        self._place[2] = np.sin(self._place.sum() + self.np_random.normal())
        luck = self.np_random.random()
        info = {"luck": luck} if luck > 0.7 else {}
        return self._observation(), float(self._place[2] * luck), luck > 0.97, self._t >= 40, info


class Tale(Maze):
    """Shows what is no array of one size, too, in a list that it uses again; is told words."""

    observation_space = spaces.Dict(
        maze=Maze.observation_space, words=spaces.Text(99), places=spaces.Sequence(spaces.Box(-np.inf, np.inf, (3,)))
    )
    action_space = spaces.Dict({**Maze.action_space.spaces, "word": spaces.Text(9)})

    def __init__(self) -> None:
        super().__init__()
        self._words, self._places = "", list[Any]()

    def _observation(self) -> dict[str, Any]:
        if not self._t:
            self._words = ""
            self._places.clear()
        self._places[self._t % 5 :] = [self._place.astype(np.float32)]
        return {"maze": super()._observation(), "words": self._words or "once", "places": self._places}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._words = f"{self._words[-9:]} {action['word']}"
        return super().step(action)


def tale_actions(digests: list[int]) -> dict[str, Any]:
    """Return actions that depend on what was seen."""
    return {**maze_actions(digests), "word": [f"{each:x}" for each in digests]}


def maze_actions(digests: list[int]) -> dict[str, Any]:
    """Return actions that depend on what was seen."""
    values = np.array(digests)
    return {"turn": values % 3, "force": np.stack([values % 7 / 7, values % 5 / 5], 1).astype(np.float32)}


ENVS: dict[str, tuple[Any, Callable[[list[int]], Any]]] = {
    "maze": (Maze, maze_actions),
    "tale": (Tale, tale_actions),
    "CartPole-v1": ("CartPole-v1", lambda digests: np.array(digests) % 2),
}


class World(NamedTuple):
    """What is drawn: a key of `ENVS`, the mode, how many workers there are and results are waited for, and what is
    compared of restored environments."""  # fmt: skip

    env: str
    autoreset: Literal["next_step", "same_step", "disabled"]
    n_workers: int
    min_envs: int
    verify: Literal["last", "steps"]
    seed: int


def worlds(n: int) -> Iterator[World]:
    """Yield n worlds: every mode with every number of workers is among any twelve."""
    rng = random.Random(7)
    for number in range(n):
        env, min_envs, verify = rng.choice(tuple(ENVS)), rng.choice((1, 3, N_ENVS)), rng.choice(("last", "steps"))
        yield World(env, MODES[number % 3], (1, 2, 3, 7)[number % 4], min_envs, verify, number)  # type: ignore[arg-type]


def bytes_of(tree: Any) -> tuple[bytes, ...]:
    """Return the bytes of all leaves; of objects their digests."""
    return tuple(
        b"%d" % digest(leaf) if leaf.dtype.hasobject else np.ascontiguousarray(leaf).tobytes()
        for _, leaf in leaves(tree)
    )


def stream_of(manager: Any, world: World, after_results: Callable[[int], None]) -> Stream:
    """Return the first results of each environment of a manager, which is closed.

    Args:
        manager: The manager.
        world: How it is driven.
        after_results: Called with the number of results so far, while steps are under way.
    """
    stream: Stream = [[] for _ in range(N_ENVS)]
    n = 0
    with manager:
        manager.async_reset(options={"start": 2.0})
        while n < N_ENVS * N_ROWS:
            steps = manager.recv(min_envs=world.min_envs)
            ended, going, digests = [], [], []
            for env_id, step in steps.by_env().items():
                n += 1
                stream[env_id].append(row_of(step))
                if len(stream[env_id]) == N_ROWS:
                    continue
                if world.autoreset == "disabled" and step.ended[0]:
                    ended.append(env_id)
                else:
                    going.append(env_id)
                    digests.append(zlib.crc32(b"".join(bytes_of(step.observations))))
            if ended:
                manager.async_reset(ended)
            if going:
                manager.send(ENVS[world.env][1](digests), going)
            after_results(n)
    return stream


def row_of(step: Any) -> tuple[Any, ...]:
    """Return all of one environment's result that means something."""
    led = () if step.timesteps[0] == 0 else (bytes_of(step.actions), bytes_of(step.previous_observations))
    return (
        bytes_of(step.observations), bytes_of(step.last_observations), step.rewards.tobytes(), *led,
        bool(step.terminated[0]), bool(step.truncated[0]), bool(step.failed[0]), int(step.episodes[0]),
        int(step.timesteps[0]), repr(step.info_by_row),
    )  # fmt: skip


class Killer:
    """Kills workers of a manager after numbers of results that are drawn, and a part of a millisecond later."""

    def __init__(self, manager: EnvManager, seed: int) -> None:
        self._manager, self._rng, self.n_kills = manager, random.Random(seed), 0
        self._due = sorted(self._rng.randrange(N_ENVS, N_ENVS * N_ROWS) for _ in range(N_KILLS))

    def __call__(self, n_results: int) -> None:
        """Kill a worker, if it is time: this one again, soon, if that is drawn."""
        while self._due and self._due[0] <= n_results:
            self._due.pop(0)
            later = time.perf_counter() + self._rng.random() * MOST_SECONDS_LATER
            while time.perf_counter() < later:
                pass
            if pids := [pid for pid in self._manager.worker_pids() if pid is not None]:
                try:
                    os.kill(self._rng.choice(pids), signal.SIGKILL)
                    self.n_kills += 1
                except ProcessLookupError:  # killed before, which the manager does not know yet
                    pass


@functools.cache
def undisturbed(env: str, autoreset: Any) -> Stream:
    """Return the streams of a run in this process."""
    manager = SerialEnvManager(ENVS[env][0], n_envs=N_ENVS, seed=3, autoreset=autoreset)
    return stream_of(manager, World(env, autoreset, 0, N_ENVS, "last", 0), lambda _: None)


def run(world: World) -> tuple[int, int]:
    """Run one world; return how many workers were killed, and how many losses the manager has counted."""
    manager = EnvManager(
        ENVS[world.env][0], n_envs=N_ENVS, n_workers=world.n_workers, seed=3, autoreset=world.autoreset,
        on_failure="restore", max_restarts=None, limits=Limits(max_lifetime_restarts=None), verify=world.verify,
    )  # fmt: skip
    killer = Killer(manager, world.seed)
    stream = stream_of(manager, world, killer)
    for env_id, (found, expected) in enumerate(zip(stream, undisturbed(world.env, world.autoreset), strict=True)):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one == other, f"{world}: environment {env_id} differs at result {number}\n{one}\n{other}"
    return killer.n_kills, manager.failures


def prove(scale: str) -> None:
    """Run worlds: 4, or 54 with more than 500 kills."""
    counted = [run(world) for world in worlds(4 if scale == "short" else 54)]
    n_kills, n_losses = map(sum, zip(*counted, strict=True))
    print(f"{n_kills} workers killed in {len(counted)} worlds, {n_losses} in their work; all results are the same")
    assert scale == "short" or n_kills >= 500, f"only {n_kills} workers were killed"
    assert n_losses >= 0.8 * n_kills, f"{n_kills} workers were killed, and only {n_losses} losses were noticed"
