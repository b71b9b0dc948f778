"""Measure roughly the time of an environment and an agent, to plan the measurements of `bench`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter, process_time

from streamsampler.core.words import count

_WAITS, _THREADS = 0.7, 1.3
_FREE, _SURELY_WAITS = 0.7, 0.3
_MOST = 8
"""Most processes, if environments wait and fewer cores are usable."""


class Spinning:
    """Computes for a while, to measure the free share of a core."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, seconds: float) -> None:
        began, cpu = perf_counter(), process_time()
        while perf_counter() - began < seconds:
            sum(range(1_000))
        self._wall += perf_counter() - began
        self._cpu += process_time() - cpu

    @property
    def share(self) -> float:
        """Processor time per second."""
        return max(0.01, min(1.0, self._cpu / self._wall)) if self._wall else 1.0


def processes_for(cpu_share: float, free_share: float, n_cores: int) -> tuple[int, str]:
    """Return the number of processes, and the reason. Pure.

    Args:
        cpu_share: Processor time per second of environment and agent, relative to code that only computes: below 1
            they wait, above 1 they use threads.
        free_share: Processor time per second of code that only computes.
        n_cores: Number of usable cores.
    """
    cores = count(n_cores, "core")
    if free_share < _FREE and cpu_share > _SURELY_WAITS:
        cpu_share = 1.0  # beside other programs the share is too uncertain
    if cpu_share < _WAITS:
        n = max(n_cores, min(_MOST, math.ceil(n_cores / max(cpu_share, 1e-9))))
        return n, f"environment and agent compute for {cpu_share:.0%} of the time and wait otherwise"
    if cpu_share > _THREADS:
        return max(1, int(n_cores / cpu_share)), f"one keeps {cpu_share:.1f} of {cores} busy, with threads of its own"
    return n_cores, f"there {'is' if n_cores == 1 else 'are'} {cores} to use, and each process keeps a core busy"


PROBED_SECONDS = 0.2
LONGEST = 0.5
"""Longest trajectory in this process, in seconds: nothing can interrupt it."""
_OURS_HERE, _OURS_FROM_HERE = 20e-6, 0.5e-3
"""This library's seconds per timestep, at most: in this process, and for all environments stepped from here."""


@dataclass(frozen=True)
class Costs:
    """Seconds of each act in one process.

    Attributes:
        construction: Making an environment.
        reset: A reset.
        step: A step of an environment.
        agent: A call of the agent: for all environments if it is `batched`, otherwise for a single environment.
        batched: Whether the agent chooses actions for several environments at once.
        cpu_share, free_share: See `processes_for`.
        waiting: Part of an asynchronous step in which the process could do other work.
        agent_waiting: The same part of an asynchronous agent's call.
    """

    construction: float
    reset: float
    step: float
    agent: float = 0.0
    batched: bool = True
    cpu_share: float = 1.0
    free_share: float = 1.0
    waiting: float = 0.0
    agent_waiting: float = 0.0

    def with_agent(self, seconds: float, *, batched: bool, waiting: float = 0.0) -> Costs:
        """Return these costs with an agent, which computes whenever it does not wait.

        Several threads here count as a single thread, since each worker has only one.
        """
        all_of_it = self.step + seconds
        computed = min(1.0, self.cpu_share) * self.step + seconds - waiting
        share = computed / all_of_it if all_of_it else 1.0
        return replace(self, agent=seconds, batched=batched, cpu_share=share, agent_waiting=waiting)

    def n_envs(self, most: int, seconds: float) -> int:
        """Return the environments per process that can be made and stepped within their share of the time.

        Args:
            most: Largest number.
            seconds: Seconds of the whole measurement.
        """
        n_envs, share = most, min(LONGEST, max(PROBED_SECONDS, seconds / 20))
        # Each of the four ways with several environments makes its own, and the other ways share a fifth set.
        while n_envs > 1 and (
            5 * n_envs * self.construction > seconds / 4
            or n_envs * self.reset + self.of_a_timestep(n_envs) > max(share, self.of_a_timestep(1))
        ):
            n_envs //= 2
        return n_envs

    def of_a_timestep(self, n_envs: int) -> float:
        """Return the seconds of a timestep of all environments, stepped in turn."""
        return n_envs * self.step + self.agent * (1 if self.batched else n_envs)

    def first_timesteps(self, n_envs: int, *, made: bool) -> float:
        """Return the seconds until all environments of a process are reset and stepped once."""
        return n_envs * (self.reset + (0.0 if made else self.construction)) + self.of_a_timestep(n_envs)

    def longest(self, n_envs: int, n_processes: int, seconds: float) -> int:
        """Return the most timesteps of a trajectory that cannot be interrupted.

        Args:
            n_envs: Environments per process.
            n_processes: Number of processes: an agent in this process acts for all their environments.
            seconds: Seconds of the whole measurement.
        """
        asked = n_envs * self.step + self.agent * (1 if self.batched else n_envs * n_processes)
        here = LONGEST / (self.of_a_timestep(1) + _OURS_HERE)
        return max(1, int(min(here, max(2 * LONGEST, seconds / 6) / (asked + _OURS_FROM_HERE))))
