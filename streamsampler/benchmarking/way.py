"""A way to step an environment with an agent, which can be measured for a short time."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamsampler.environments.updates import EnvUpdate
from streamsampler.errors import SamplerError

# ----------------------------------------------------------------------
# Compute timesteps per second from when timesteps arrived. Pure: no clock.


_MANY = 10
"""Timesteps of each environment from which a rate can be told. With fewer, where they begin and end decides it."""
_LATE = 1.25
"""An environment without a timestep so many times as long as the first one's took is not waited for."""


class Tally:
    """Timesteps of a round, which begins before any environment is reset.

    The rate counts from the beginning to the arrival of the last timestep: each timestep has what led to it in that
    time, its reset included, and nothing that leads to a later one. Resets belong to whole trajectories, of which a
    short round steps only a part. So only that part of the time until the first timesteps is counted, where there are
    many later ones. How long trajectories are is not known but that they are that long at least: the rate may be too
    low, and not too high.

    Args:
        n_envs: How many environments are stepped, in all processes.
        length: Timesteps that trajectories are known to have; they may have more.
        resets: Seconds that the first resets take, about.

    Attributes:
        timesteps: How many there are.
        seconds: When the last one arrived.
    """

    def __init__(self, n_envs: int, length: float, resets: float = 0.0) -> None:
        self._n_envs, self._length, self._resets = n_envs, length, resets
        self._first: tuple[int, float] | None = None
        self.timesteps, self.seconds = 0, 0.0

    def add(self, timesteps: int, seconds: float) -> None:
        """Note that there are so many timesteps in all, so many seconds after the beginning."""
        if timesteps <= self.timesteps:
            return
        self.timesteps, self.seconds = timesteps, seconds
        if self._first is None:
            self._first = timesteps, seconds

    def ends(self, seconds: float, window: float, most: float = 0.0) -> bool:
        """Return whether the round ends: its window is over, and each environment had time for a timestep.

        Args:
            seconds: Seconds since the beginning.
            window: How long the round is to be, besides the first resets.
            most: How long it may be for the sake of a rate that is certain, besides the first resets.
        """
        if self._first is None or seconds - self._resets < window:
            return False
        if self.certain:
            return True
        if seconds - self._resets < most:
            return False
        return self.timesteps >= self._n_envs or seconds >= _LATE * self._first[1]

    @property
    def certain(self) -> bool:
        """Whether there are timesteps enough for a rate that another round would confirm."""
        return self.timesteps >= _MANY * self._n_envs

    @property
    def rate(self) -> float:
        """Timesteps per second; 0 where there were none."""
        if self._first is None:
            return 0.0
        plain = self.timesteps / max(self.seconds, 1e-9)
        first, until_first = self._first
        later = self.timesteps - first
        if later < _MANY * self._n_envs:
            return plain
        stepped = min(1.0, later / (self._n_envs * self._length))
        return max(plain, later / (self.seconds - until_first + stepped * until_first))


# ----------------------------------------------------------------------


CLOSE_SECONDS = 1.0
"""How long processes may take to close environments: one that hangs must not take the time of the other ways."""


class TooSlowError(SamplerError):
    """No timestep came within the time that a way has for its first ones."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"given up: no timestep within {seconds:.3g} s")


def env_code(env: Any, env_kwargs: Mapping[str, Any] | None) -> str:
    """Return what stands for an environment in a call, as Python code."""
    return (repr(env) if isinstance(env, str) else "env") + (f", env_kwargs={dict(env_kwargs)!r}" if env_kwargs else "")


@dataclass(frozen=True)
class Problem:
    """What is measured, and on how many processes.

    Attributes:
        env: What makes the environment.
        env_code: What stands for it in a call, as Python code, arguments for making it included.
        agent: The agent, as samplers take it.
        n_workers: How many processes there are.
        n_envs: How many environments each has, where it has several.
        max_episode_length: Timesteps after which samplers truncate trajectories: one that never ends would never
            give this process back.
        cuts: Whether that is before environments end them, so that it must be the same in all ways.
        length: Timesteps that trajectories are known to have.
        reset_seconds: What a reset takes, about.
        step_timeout: Seconds that a timestep or a reset may take in a process.
        construction_timeout: Seconds that making the environments of a process may take.
        is_vector: Whether the environment is a vector environment, of `n_envs`.
    """

    env: EnvUpdate
    env_code: str
    agent: Any
    n_workers: int
    n_envs: int
    max_episode_length: int
    cuts: bool
    length: float
    reset_seconds: float
    step_timeout: float
    construction_timeout: float
    is_vector: bool = False


@dataclass(frozen=True)
class Round:
    """How long a way is measured.

    Attributes:
        seconds: How long its timesteps are counted, besides the first resets; longer where they come later.
        most: How long they are counted where there are few.
        patience: After how many seconds without any it is given up.
        watch: Called now and then; what it raises ends the measurement.
    """

    seconds: float
    most: float
    patience: float
    watch: Callable[[], Any]

    def ends(self, tally: Tally, seconds: float) -> bool:
        """Return whether it ends, so many seconds after its beginning."""
        return tally.ends(seconds, self.seconds, self.most)


class Way(abc.ABC):
    """A way to step environments, which can be measured between `start` and `close`.

    Args:
        problem: What is measured.

    Attributes:
        name: What it is called.
        call: How to use it, as Python code.
        options: The options of the command line for it; empty where there are none.
        in_parent: Whether the agent lives in the caller's process.
        n_processes: How many processes it has besides that.
        n_in_turn: How many environments are stepped in each process, one after the other.
        lacking: What it lacks; empty where it can be tried.
    """

    name: str
    call: str
    options = ""
    in_parent = False
    n_processes = 0
    n_in_turn = 1
    lacking = ""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def n_envs(self) -> int:
        """How many environments there are in all processes."""
        return max(1, self.n_processes) * self.n_in_turn

    @abc.abstractmethod
    def start(self) -> None:
        """Make what steps environments, and processes for it.

        Raises:
            Exception: It cannot run.
        """

    @abc.abstractmethod
    def run(self, measured: Round) -> Tally:
        """Reset environments, and step them for about so long.

        Raises:
            TooSlowError: There was no timestep for too long.
            Exception: It cannot run.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End what was started; may be repeated."""

    def _new_tally(self) -> Tally:
        return Tally(self.n_envs, self.problem.length, self.n_in_turn * self.problem.reset_seconds)
