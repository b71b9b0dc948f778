"""Faults for tests of failure handling: their kind, their place, and how often they happen.

A folder holds the record of past faults for all processes: a fault with `times=1` happens once in all of them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import gymnasium

from streamsampler.agents.base import Agent, as_agent, give_spaces, reset_agent_function, takes_masks
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, check_seed, derived_seed
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, apply_env_update, as_env_update
from streamsampler.workers.fail_points import Records
from streamsampler.workers.purity import is_checking


def make_faulty_env(update: EnvUpdate, faults: Faults) -> FaultyEnv:
    """Make an environment with faults; "construct" fails before it exists."""
    faults.maybe("construct")
    return FaultyEnv(apply_env_update(update, None), faults)


class FaultyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with faults; `Faults.env` makes it in the workers."""

    @suggesting()
    def __init__(self, env: gymnasium.Env[Any, Any], faults: Faults) -> None:
        super().__init__(env)
        self._faults = faults
        self._seed: int | None = None
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, unless a fault is due."""
        self._seed, self._step = seed, 0
        self._faults.maybe("reset", seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, unless a fault is due."""
        self._step += 1
        self._faults.maybe("step", self._seed, self._step)
        return self.env.step(action)

    def close(self) -> None:
        """Close the environment, unless a fault is due."""
        self._faults.maybe("close")
        self.env.close()


class FaultyAgent:
    """An agent with faults, for single observations; see `Faults.agent`."""

    @suggesting()
    def __init__(self, agent: Agent, faults: Faults) -> None:
        self._agent = agent
        self._faults = faults
        self._seed: int | None = None
        self._step = 0
        if takes_masks(agent):  # callers inspect the signature
            self.get_action = self._get_masked_action  # type: ignore[method-assign]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._faults.maybe("agent_construct")

    def set_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Pass the environment's spaces to the agent."""
        give_spaces(self._agent, observation_space, action_space)

    def reset(self, seed: int) -> None:
        """Reset the agent for a new trajectory, unless a fault is due."""
        self._seed, self._step = seed, 0
        self._faults.maybe("agent_reset", seed)
        if (reset := reset_agent_function(self._agent)) is not None:
            reset(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Return the agent's action, unless a fault is due."""
        self._before_action()
        return self._agent.get_action(observation)

    def _get_masked_action(self, observation: Any, *, action_mask: Any = None) -> Any:
        self._before_action()
        return self._agent.get_action(observation, action_mask=action_mask)  # type: ignore[call-arg]

    def _before_action(self) -> None:
        self._step += 1
        self._faults.maybe("action", self._seed, self._step)

    def get_state(self) -> Any:
        """Return the agent's state, if any, and this wrapper's place in its trajectory."""
        get_state = getattr(self._agent, "get_state", None)
        return self._seed, self._step, get_state() if callable(get_state) else None

    def set_state(self, state: Any) -> None:
        """Resume from a state that `get_state` returned."""
        self._seed, self._step, of_agent = state
        if callable(set_state := getattr(self._agent, "set_state", None)):
            set_state(of_agent)

    def get_param_values(self) -> Any:
        """Return the agent's parameters."""
        return self._agent.get_param_values()  # type: ignore[attr-defined]

    def set_param_values(self, values: Any) -> None:
        """Set the agent's parameters, unless a fault is due."""
        self._faults.maybe("agent_update")
        self._agent.set_param_values(values)  # type: ignore[attr-defined]

    def get_param_converter(self) -> Any:
        """Return the agent's converter of updates."""
        get_converter = getattr(self._agent, "get_param_converter", None)
        return get_converter() if callable(get_converter) else _of_no_kind


def _of_no_kind(update: Any) -> Any:  # noqa: ARG001 - the signature is a converter's
    return NotImplemented


Kind = Literal["raise", "system_exit", "exit", "abort", "kill", "stop", "hang", "hang_gil", "leak"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EXIT_CODE = 7

_PTHREAD_MUTEX_BYTES = 128  # more than any system's

_leaked: list[bytes] = []


class InjectedError(SamplerError):
    """The error of a fault of kind "raise"."""


def fail(kind: Kind, place: str, n_bytes: int) -> None:
    """Fail; return only from "leak", and from "stop" after SIGCONT."""
    if kind == "raise":
        raise InjectedError(f"injected in {place}")
    if kind == "leak":
        _leaked.append(b"x" * n_bytes)  # not zeros: the system allocates no memory for pages of zeros
    else:
        _WAYS[kind]()


def _system_exit() -> NoReturn:
    raise SystemExit(EXIT_CODE)


def _send_self(name: str) -> Callable[[], None]:
    # Looked up by name when it fails: not every system has every signal.
    return lambda: os.kill(os.getpid(), signal.Signals[name])


def _hang() -> None:
    threading.Event().wait()


def _hang_gil() -> None:
    """Wait for a locked mutex in native code with the GIL held; no signal handler can run."""
    native = ctypes.PyDLL(None)  # unlike CDLL, keeps the GIL during calls
    mutex = ctypes.create_string_buffer(_PTHREAD_MUTEX_BYTES)
    native.pthread_mutex_init(mutex, None)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)


_WAYS: dict[str, Callable[[], object]] = {
    "system_exit": _system_exit,
    "exit": lambda: os._exit(EXIT_CODE),
    "abort": os.abort,
    "kill": _send_self("SIGKILL"),
    "stop": _send_self("SIGSTOP"),
    "hang": _hang,
    "hang_gil": _hang_gil,
}


Place = Literal["construct", "reset", "step", "close", "agent_construct", "agent_reset", "action", "agent_update"]
PLACES: tuple[Place, ...] = get_args(Place)

_IN_TRAJECTORIES: dict[str, SeedUse | None] = {
    "reset": None,
    "step": None,
    "agent_reset": SeedUse.AGENT,
    "action": SeedUse.AGENT,
}
"""The places inside trajectories, with the use of the trajectory's seed: agents are reset with a derived seed."""


@suggesting()
@dataclass(frozen=True)
class Fault:
    """A fault: its kind, place and number of occurrences.

    Attributes:
        kind: "raise" raises `InjectedError`, "system_exit" raises SystemExit; "exit" ends the process immediately with
            code 7, "abort" by SIGABRT, "kill" by SIGKILL; "stop" stops it (SIGSTOP); "hang" waits forever, "hang_gil"
            waits forever in native code with the GIL held; "leak" allocates `n_bytes` and continues.
        where: In the environment: "construct", "reset", "step" or "close". In the agent: "agent_construct" (when it is
            unpickled), "agent_reset", "action" or "agent_update" (`set_param_values`).
        trajectory: The failing trajectory's index; None for any.
        step: The failing timestep, from 1; for "step" and "action".
        version: The agent version of `trajectory`: 1 in a sampler's first call, 2 in its second.
        times: How often it happens, in all processes together; None for every time.
        n_bytes: The bytes allocated by each "leak".

    Raises:
        UsageError: The kind or place does not exist, or a number is out of range.
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
            raise UsageError(f"the kind of a fault must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.where not in PLACES:
            raise UsageError(f"the place of a fault must be one of {', '.join(PLACES)}, not {self.where!r}")
        if self.trajectory is not None and self.where not in _IN_TRAJECTORIES:
            raise UsageError(
                f"a fault in {self.where!r} belongs to no trajectory: leave trajectory={self.trajectory} out"
            )
        for name, least in {"trajectory": 0, "step": 1, "version": 1, "times": 1, "n_bytes": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")

    def seed(self, sampler_seed: int) -> int | None:
        """Return the environment's or agent's seed in the fault's trajectory, or None."""
        if self.trajectory is None:
            return None
        seed = TrajectorySeeds(sampler_seed, self.version)[self.trajectory]
        stream = _IN_TRAJECTORIES[self.where]
        return seed if stream is None else derived_seed(seed, stream)


@suggesting()
class Faults:
    """Faults, and the record of those that happened.

    No fault happens while a sampler checks the dependence on seeds (its argument `check`).

    Args:
        folder: The folder of the record; created if it does not exist. Use a new folder: earlier records count.
        faults: The faults.
        seed: The sampler's seed; required if a fault names a trajectory.

    Attributes:
        folder: As given, absolute.
        faults: As given.

    Raises:
        UsageError: A fault names a trajectory and `seed` is missing, or the seed is invalid.
    """

    def __init__(self, folder: str | os.PathLike[str], *faults: Fault, seed: int | None = None) -> None:
        if seed is None and any(fault.trajectory is not None for fault in faults):
            raise UsageError(
                "a fault names a trajectory: pass the sampler's seed, which determines the trajectories' seeds"
            )
        self.faults = faults
        self._records = Records(folder)
        known = check_seed(seed) if seed is not None else 0
        self._due: dict[str, list[tuple[int, Fault, int | None]]] = {}
        for number, fault in enumerate(faults):
            self._due.setdefault(fault.where, []).append((number, fault, fault.seed(known)))

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return self._records.folder

    def env(self, env: Any) -> EnvUpdate:
        """Return `env`, any environment for a sampler, with these faults."""
        return NewEnvUpdate(partial(make_faulty_env, as_env_update(env), self))

    def agent(self, agent: Any) -> FaultyAgent:
        """Return `agent`, an agent or a function, with these faults."""
        return FaultyAgent(as_agent(agent), self)

    def maybe(self, place: Place, seed: int | None = None, step: int | None = None) -> None:
        """Fail if a fault is due here. Your own wrappers may call it, too.

        Args:
            place: The place.
            seed: The environment's or agent's seed, inside trajectories.
            step: The timestep, from 1, in "step" and "action".
        """
        for number, fault, its_seed in self._due.get(place, ()):
            if its_seed not in (None, seed) or step not in (None, fault.step) or is_checking():
                continue
            if self._records.record(str(number), fault.times) is not None:
                self._records.wake()
                fail(fault.kind, place, fault.n_bytes)

    def fired(self, fault: int | None = None) -> int:
        """Return how often a fault, or any, has happened."""
        return self._records.count(None if fault is None else str(fault))

    def pids(self, fault: int | None = None) -> list[int]:
        """Return the ids of the processes in which faults happened."""
        return self._records.pids(None if fault is None else str(fault))

    def wait(self, n: int = 1, timeout: float = 30.0) -> None:
        """Wait without polling until `n` faults have happened.

        Raises:
            TimeoutError: Fewer have happened after `timeout` seconds.
        """
        self._records.wait(n, timeout)
