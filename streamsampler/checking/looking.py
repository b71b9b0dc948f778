"""Look at what an environment returns that neither samplers nor Gymnasium's checker tell, from a wrapper around it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.benchmarking.costs import Spinning
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import same, snapshot
from streamsampler.environments.updates import EnvUpdate
from streamsampler.workers.generators import generator_states
from streamsampler.workers.purity import is_checking

SEEN = "streamsampler check"
"""The info of a trajectory's last timestep that has what was seen so far."""

_WATCHED = 100  # timesteps of a trajectory in which buffers and generators are looked at
_GENERATORS = "random", "numpy.random", "torch", "torch (on a device)"
_SPUN_SECONDS = 0.02


@dataclass
class Seen:
    """What was seen of an environment, and of the agent that acted in it.

    Attributes:
        trajectories: How many ended, or are going to be truncated by samplers.
        shortest, longest: The lengths of the shortest and of the longest of them.
        timesteps: How many timesteps were run.
        ended: How many trajectories were terminated, and truncated by the environment.
        endless: The length of a trajectory that did not end; None where all ended.
        mistyped: The first observation, and the first action, that is no array of its space's dtype.
        reused: When an observation that was handed out was first seen to be overwritten; empty where none was.
        draws: The global generators that were drawn from, by who drew: "reset", "step" or "get_action".
        info_timesteps: How many infos of timesteps there were that did not end a trajectory.
        info_counts: In how many of those each key was.
        last_infos: The keys of those that ended one.
        changed: The first key whose values changed their kind, and how; empty where there is none.
        step_seconds: What stepping took.
        own_seconds: What looking took besides.
        wall_seconds, cpu_seconds: What whole trajectories took, in time and in processor time.
        free_share: Seconds of processor time for each second that code got that only computes.
    """

    trajectories: int = 0
    shortest: int = 0
    longest: int = 0
    timesteps: int = 0
    ended: dict[str, int] = field(default_factory=lambda: {"terminated": 0, "truncated": 0})
    endless: int | None = None
    mistyped: dict[str, str] = field(default_factory=dict)
    reused: str = ""
    draws: dict[str, set[str]] = field(default_factory=dict)
    info_timesteps: int = 0
    info_counts: Counter[str] = field(default_factory=Counter)
    last_infos: set[str] = field(default_factory=set)
    changed: str = ""
    step_seconds: float = 0.0
    own_seconds: float = 0.0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    free_share: float = 1.0

    def add(self, length: int) -> None:
        """Count a trajectory."""
        self.shortest = min(self.shortest, length) if self.trajectories else length
        self.longest = max(self.longest, length)
        self.trajectories += 1


@dataclass
class LookedAt(EnvUpdate):
    """Makes an environment of one agent, with a wrapper that looks at it.

    Attributes:
        env: The environment.
        seconds: After so long a trajectory is cut.
        within: After so many timesteps, too: it was to end before.
        longest: Timesteps after which samplers are going to truncate it; None for never.
        watches: Whether to look at more than times.
    """

    env: EnvUpdate
    seconds: float
    within: int
    longest: int | None
    watches: bool = True

    def __call__(self, old_env: Any) -> Any:
        """Make it."""
        return _Looking(self.env(old_env), self)


class _Looking(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, task: LookedAt) -> None:
        super().__init__(env)
        self._task, self._seen, self._kinds = task, Seen(), dict[str, str]()
        self._spinning = Spinning()
        self._spin()
        self._until = perf_counter() + task.seconds
        self._length = 0
        self._handed: Any = None
        self._kept: Any = None
        self._states: tuple[Any, ...] = ()

    def _spin(self) -> None:
        self._spinning.run(_SPUN_SECONDS)
        self._seen.free_share, self._spun = self._spinning.share, perf_counter()

    def reset(self, **arguments: Any) -> Any:
        if is_checking():
            return self.env.reset(**arguments)
        self._length, self._began = 0, (perf_counter(), process_time())
        self._states = generator_states() if self._task.watches else ()
        result: Any = self.env.reset(**arguments)
        if self._task.watches and isinstance(result, tuple) and result:
            self._look(result[0], "reset")
        return result

    def step(self, action: Any) -> Any:
        if is_checking():
            return self.env.step(action)
        entered, before = perf_counter(), self._seen.step_seconds
        result = self._step(action)
        self._seen.own_seconds += perf_counter() - entered - (self._seen.step_seconds - before)
        return result

    def _step(self, action: Any) -> Any:
        watched = self._task.watches and self._length < _WATCHED
        if watched and self._length:  # before the first action the agent was reset, too
            self._drawn("get_action")
        if watched:
            self._mistyped(self.env.action_space, action, "action")
            self._states = generator_states()
        began = perf_counter()
        result: Any = self.env.step(action)
        self._seen.step_seconds += perf_counter() - began
        self._length += 1
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], dict):
            return result  # the sampler says what is wrong
        observation, reward, terminated, truncated, info = result
        if watched:
            self._look(observation, "step")
        truncated, ends = self._end(terminated, truncated)
        if self._task.watches:
            self._look_at_info(info, last=ends)
        if ends:
            info = {**info, SEEN: copy.deepcopy(self._seen)}
        return observation, reward, terminated, truncated, info

    def _end(self, terminated: Any, truncated: Any) -> tuple[Any, bool]:
        """Return whether it is truncated now, and whether the trajectory ends."""
        seen, task, length = self._seen, self._task, self._length
        if terminated or truncated:
            seen.ended["terminated" if terminated else "truncated"] += 1
        elif length != task.longest:
            if length < task.within and perf_counter() < self._until:
                return truncated, False
            seen.endless = length
        seen.timesteps += length
        if seen.endless is None:
            seen.add(length)
        seen.wall_seconds += perf_counter() - self._began[0]
        seen.cpu_seconds += process_time() - self._began[1]
        if perf_counter() - self._spun > 10 * _SPUN_SECONDS:  # now and then, since other programs come and go
            self._spin()
        return truncated if terminated or truncated else True, True

    def _look(self, observation: Any, doing: str) -> None:
        self._drawn(doing)
        self._mistyped(self.env.observation_space, observation, "observation")
        if not self._seen.reused and self._handed is not None and not same(self._handed, self._kept):
            when = f"in timestep {self._length} of a trajectory" if self._length else "in a reset"
            self._seen.reused = when
        self._handed, self._kept = observation, snapshot(observation)
        self._states = generator_states()

    def _drawn(self, doing: str) -> None:
        pairs = zip(_GENERATORS, self._states, generator_states())  # noqa: B905 - torch may have been loaded meanwhile
        if names := {name for name, one, other in pairs if one != other}:
            self._seen.draws.setdefault(doing, set()).update(names)

    def _mistyped(self, space: AnySpace, value: Any, name: str) -> None:
        if name not in self._seen.mistyped and (problem := next(_dtype_problems(space, value, name), "")):
            self._seen.mistyped[name] = problem

    def _look_at_info(self, info: Mapping[Any, Any], *, last: bool) -> None:
        seen = self._seen
        for key, value in info.items():
            kind = _kind_of(value)
            before = self._kinds.setdefault(key, kind)
            if before != kind:
                seen.changed = seen.changed or f"{key!r} is {before} and then {kind}"
        if last:
            seen.last_infos.update(info)
        else:
            seen.info_timesteps += 1
            seen.info_counts.update(info.keys())


def _dtype_problems(space: AnySpace, value: Any, name: str) -> Iterator[str]:
    """Yield the leaves of a value that are no arrays, or have another dtype than their space."""
    if isinstance(space, gym_spaces.Dict) and isinstance(value, Mapping):
        for key in space.spaces.keys() & value.keys():
            yield from _dtype_problems(space[key], value[key], f"{name}[{key!r}]")
    elif isinstance(space, gym_spaces.Tuple) and isinstance(value, tuple | list):
        for position, (child, part) in enumerate(zip(space.spaces, value, strict=False)):
            yield from _dtype_problems(child, part, f"{name}[{position}]")
    elif isinstance(space, gym_spaces.Box | gym_spaces.MultiBinary | gym_spaces.MultiDiscrete):
        if not isinstance(value, np.ndarray | np.generic):
            yield f"{name} is a {type(value).__name__}, and its space has arrays of {space.dtype}"
        elif value.dtype != space.dtype:
            yield f"{name} has the dtype {value.dtype}, and its space has {space.dtype}"


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"an array of {value.dtype} and shape {value.shape}" if value.shape else str(value.dtype)
    return type(value).__name__
