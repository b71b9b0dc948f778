"""Choose what fails, where, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from streamsampler.agents.base import as_agent
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, as_env_update
from streamsampler.errors import UsageError
from streamsampler.seeding import Stream, TrajectorySeeds, check_seed, derived_seed
from streamsampler.testing.failures import KINDS, InjectedError, Kind, fail
from streamsampler.testing.records import Records
from streamsampler.testing.wrappers import FaultyAgent, make_faulty_env
from streamsampler.workers.traces import is_checking

__all__ = ["Fault", "Faults", "InjectedError", "Place"]

Place = Literal["construct", "reset", "step", "close", "agent_construct", "agent_reset", "action", "agent_update"]
PLACES: tuple[Place, ...] = get_args(Place)

_IN_TRAJECTORIES: dict[str, Stream | None] = {
    "reset": None,
    "step": None,
    "agent_reset": Stream.AGENT,
    "action": Stream.AGENT,
}
"""The places inside trajectories, and the stream of the seed there: an agent is reset with a seed of its own."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: "raise" raises `InjectedError`, "system_exit" raises SystemExit; "exit" ends the process at once with code
            7, "abort" by SIGABRT, "kill" by SIGKILL; "stop" stops it (SIGSTOP); "hang" sleeps for ever, "hang_gil"
            waits for ever in native code that holds the interpreter's lock; "leak" takes `n_bytes` and goes on.
        where: In the environment: "construct", "reset", "step" or "close". In the agent: "agent_construct" (when it is
            unpickled), "agent_reset", "action" or "agent_update" (`set_param_values`).
        trajectory: The index of the trajectory in which it happens; None for any.
        step: The timestep in which it happens, from 1; for "step" and "action".
        version: The agent version that `trajectory` belongs to: 1 in a sampler's first call, 2 in its second.
        times: How often it happens, in all processes together; None for each time.
        n_bytes: What "leak" takes each time.

    Raises:
        UsageError: There is no such kind or place, or a number cannot be.
    """

    kind: Kind
    where: Place = "step"
    trajectory: int | None = None
    step: int = 1
    version: int = 1
    times: int | None = 1
    n_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"the kind of a fault is one of {', '.join(KINDS)}; got {self.kind!r}")
        if self.where not in PLACES:
            raise UsageError(f"a fault happens in one of {', '.join(PLACES)}; got {self.where!r}")
        if self.trajectory is not None and self.where not in _IN_TRAJECTORIES:
            raise UsageError(f"{self.where} is outside trajectories: leave trajectory={self.trajectory} out")
        for name, least in {"trajectory": 0, "step": 1, "version": 1, "times": 1, "n_bytes": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is at least {least}, got {value}")

    def seed(self, sampler_seed: int) -> int | None:
        """Return the seed that the environment or the agent is given in the fault's trajectory; None for any."""
        if self.trajectory is None:
            return None
        seed = TrajectorySeeds(sampler_seed, self.version)[self.trajectory]
        stream = _IN_TRAJECTORIES[self.where]
        return seed if stream is None else derived_seed(seed, stream)


class Faults:
    """Some faults, and the record of those that happened.

    No fault happens while a sampler checks that trajectories depend on their seeds alone (its argument `check`).

    Args:
        folder: Where the record is kept; made if need be. Take a fresh one, or what was recorded there counts.
        faults: The faults.
        seed: The sampler's seed; needed where a fault names a trajectory.

    Attributes:
        folder: As given, absolute.
        faults: As given.

    Raises:
        UsageError: A fault names a trajectory, and there is no seed; or the seed is invalid.
    """

    def __init__(self, folder: str | os.PathLike[str], *faults: Fault, seed: int | None = None) -> None:
        if seed is None and any(fault.trajectory is not None for fault in faults):
            raise UsageError("a fault names a trajectory: pass the sampler's seed, from which trajectories are known")
        self.faults = faults
        self._records = Records(folder)
        known = check_seed(seed) if seed is not None else 0
        self._due: dict[str, list[tuple[int, Fault, int | None]]] = {}
        for number, fault in enumerate(faults):
            self._due.setdefault(fault.where, []).append((number, fault, fault.seed(known)))

    @property
    def folder(self) -> Path:
        """Where the record is kept."""
        return self._records.folder

    def env(self, env: Any) -> EnvUpdate:
        """Return `env` with these faults, to be passed to a sampler.

        Args:
            env: Whatever a sampler takes as an environment.

        Raises:
            UsageError: `env` is no environment.
        """
        return NewEnvUpdate(partial(make_faulty_env, as_env_update(env), self))

    def agent(self, agent: Any) -> FaultyAgent:
        """Return `agent`, or a function that acts, with these faults."""
        return FaultyAgent(as_agent(agent), self)

    def maybe(self, place: Place, seed: int | None = None, step: int | None = None) -> None:
        """Fail, if a fault is due here. What wraps anything else than environments and agents may call it, too.

        Args:
            place: Where this is.
            seed: What the environment or the agent was seeded with, inside trajectories.
            step: The timestep, from 1, in "step" and "action".
        """
        for number, fault, its_seed in self._due.get(place, ()):
            if its_seed not in (None, seed) or step not in (None, fault.step) or is_checking():
                continue
            if self._records.add(str(number), fault.times) is not None:
                self._records.wake()
                fail(fault.kind, place, fault.n_bytes)

    def fired(self, fault: int | None = None) -> int:
        """Return how often the fault of a position has happened, or all faults together."""
        return self._records.count(None if fault is None else str(fault))

    def pids(self, fault: int | None = None) -> list[int]:
        """Return the ids of the processes that faults happened in."""
        return self._records.pids(None if fault is None else str(fault))

    def wait(self, n: int = 1, timeout: float = 30.0) -> None:
        """Wait until faults have happened `n` times in all; without polling.

        Raises:
            TimeoutError: They have not happened within `timeout` seconds.
        """
        self._records.wait(n, timeout)
