"""A way to step environments, and a round of its measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamsampler.checking.round_tally import RoundTally
from streamsampler.core.errors import SamplerError
from streamsampler.environments.updates import EnvUpdate


class TooSlowError(SamplerError):
    """No timestep arrived within the time for a way's first timesteps."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"skipped: no timestep within {seconds:.3g} s")


def env_code(env: Any, env_kwargs: Mapping[str, Any] | None) -> str:
    """Return the Python code of an environment in a call."""
    return (repr(env) if isinstance(env, str) else "env") + (f", env_kwargs={dict(env_kwargs)!r}" if env_kwargs else "")


@dataclass(frozen=True)
class Problem:
    """The environment and the agent to measure, and the number of processes.

    Attributes:
        env: Makes the environment.
        env_code: Its Python code in a call, with its keyword arguments.
        agent: The agent, as samplers take it.
        n_workers: Number of processes.
        n_envs: Environments per process, in ways with several.
        max_episode_length: Timesteps after which samplers truncate trajectories: endless trajectories would block
            this process.
        cuts: Whether this happens before environments end them, so that it must be the same in all ways.
        length: Known timesteps of a trajectory.
        reset_seconds: Seconds of a reset, about.
        step_timeout: Longest time of a timestep or a reset in a process, in seconds.
        construction_timeout: Longest time of making the environments of a process, in seconds.
        is_vector: Whether the environment is a vector environment, of `n_envs`.
        in_flight: Numbers of trajectories in flight per process to try; empty if nothing waits.
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
    in_flight: tuple[int, ...] = ()


@dataclass(frozen=True)
class Round:
    """A short time in which a way is measured.

    Attributes:
        tally: The record of timesteps.
        seconds: Planned seconds of the round, without the first resets.
        most: Longest duration if timesteps are few, in seconds.
        patience: Seconds without any timestep after which the round fails.
        watch: Called now and then; its exceptions end the measurement.
    """

    tally: RoundTally
    seconds: float
    most: float
    patience: float
    watch: Callable[[], Any]

    def ends(self, elapsed: float) -> bool:
        return self.tally.ends(elapsed, self.seconds, self.most)


@dataclass(frozen=True, eq=False)
class Way:
    """A way to step environments.

    Attributes:
        name: Name of the way.
        call: Its use, as Python code.
        make: Makes the sampler or the manager, with its processes.
        run: Resets and steps the environments of `make`'s result until a round ends.
        options: Its command-line options, or empty.
        in_parent: Whether the agent lives in the caller's process.
        n_processes: Number of further processes.
        n_in_turn: Environments per process that are stepped in turn.
        in_flight: Trajectories in flight per process.
        lacking: Missing requirement; empty if the way can be tried.
        steps_only: Whether another library steps the environments, and neither records nor restores them.
    """

    name: str
    call: str
    make: Callable[[], Any]
    run: Callable[[Any, Round], None]
    options: str = ""
    in_parent: bool = False
    n_processes: int = 0
    n_in_turn: int = 1
    in_flight: int = 1
    lacking: str = ""
    steps_only: bool = False

    @property
    def n_envs(self) -> int:
        """Number of environments in all processes."""
        return max(1, self.n_processes) * self.n_in_turn * self.in_flight
