"""Limit the runs of a check: its deadline, and samplers of a single worker, which is killed if it hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from streamsampler.agents.base import (
    acts_alone,
    as_agent,
    is_agent,
)
from streamsampler.checking.env_facts import Facts, waits
from streamsampler.core.errors import SamplerError, WorkerError
from streamsampler.core.progress import Snapshot
from streamsampler.environments.updates import EnvUpdate
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.workers.vec.worker import VecWorker

_GRACE = 10.0
"""Seconds after the deadline at which a task is killed. A task checks its own limit between timesteps, and normally
ends earlier, unless the machine is busy or the construction takes longer.
"""
_CLOSING = 2.0  # seconds: closing has a check of its own
_CONSTRUCTION = 3_600.0  # seconds, more than any time limit: the deadline ends a slow construction


class TimeIsUpError(SamplerError):
    """The time limit of the whole check is over."""


class EnoughError(SamplerError):
    """Ends a call after its seconds are over.

    Attributes:
        timesteps: Timesteps of the call.
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__("the time for this is over")
        self.timesteps = timesteps


@dataclass(frozen=True)
class CheckSetup:
    """The limits of a check.

    Attributes:
        deadline: End of the check, by `time.monotonic`.
        step_timeout: Longest time of a reset, an action or a timestep, in seconds.
        seed: Source of all seeds.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
        watch: Called now and then with the number of timesteps so far.
    """

    deadline: float
    step_timeout: float
    seed: int
    max_episode_length: int | None
    watch: Callable[[int], Any]

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())

    def sampler(self, agent: Any, env: EnvUpdate, facts: Facts | None = None, **options: Any) -> MultiprocessingSampler:
        """Return a sampler with a single worker, which is not replaced after a failure.

        Raises:
            TimeIsUpError: No time is left.
            SerializationError: The environment or the agent cannot be pickled.
        """
        if not self.seconds_left:
            raise TimeIsUpError("no time is left")
        if facts is not None and facts.n_slots is not None:
            options = {"worker_class": VecWorker, "worker_args": {"n_envs": facts.n_slots}, **options}
        elif waits(agent, facts):
            options = {"worker_args": {"in_flight": 1}, **options}
        elif is_agent(agent) and not acts_alone(as_agent(agent)):
            options = {"worker_class": VecWorker, **options}
        defaults = {
            "n_workers": 1,
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "check": None,
            "fingerprint": None,
            "max_restarts": 0,
            "step_timeout": self.step_timeout,
            "limits": Limits(
                close_timeout=_CLOSING,
                construction_timeout=max(self.step_timeout, self.seconds_left, _CONSTRUCTION),
            ),
        }
        return MultiprocessingSampler(agent, env, **{**defaults, **options})

    def guard(self, seconds: float | None = None) -> Callable[[Snapshot], None]:
        """Return a `progress` argument that ends a call when the time is over, or after some seconds.

        A hang without progress is left to the sampler to detect.
        """
        before = 0

        def look(snapshot: Snapshot) -> None:
            nonlocal before
            goes_on, before = snapshot.n_timesteps > before and not snapshot.complete, snapshot.n_timesteps
            if not snapshot.complete and monotonic() > self.deadline + _GRACE:
                raise TimeIsUpError("the time limit is reached")
            if goes_on and seconds is not None and snapshot.seconds > seconds:
                raise EnoughError(snapshot.n_timesteps)
            self.watch(snapshot.n_timesteps)

        return look


@contextlib.contextmanager
def closing(sampler: MultiprocessingSampler) -> Iterator[MultiprocessingSampler]:
    """Yield a sampler, and close it afterwards, without errors: closing environments has a check of its own."""
    try:
        yield sampler
    finally:
        with contextlib.suppress(WorkerError):
            sampler.close()
