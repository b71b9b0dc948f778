"""The ways to step an environment with an agent, each measurable for a short time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler.agents.base import as_agent, give_spaces, reset_agent_function, takes_masks
from streamsampler.agents.random import RandomAgent
from streamsampler.checking.benchmark_report import RoundTally
from streamsampler.core.errors import SamplerError
from streamsampler.core.progress import Snapshot
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.words import count
from streamsampler.data.trees import map_tree, n_rows_of
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.stepping.steps import Steps
from streamsampler.workers.vec.worker import VecWorker

_CLOSE_SECONDS = 1.0
"""Seconds for closing a way's environments: an environment that hangs must not take the time of the other ways."""
_ENDLESS = 1 << 40


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


def ways_of(problem: Problem) -> list[Way]:
    """Return all ways, in ascending order of their needs."""
    if problem.is_vector or problem.in_flight:
        return ways_in_workers(problem)
    local = Way(
        "LocalSampler", f"LocalSampler(agent, {problem.env_code})",
        lambda: LocalSampler(problem.agent, problem.env, **_of_samplers(problem)), run_sampler, "--workers 0",
    )  # fmt: skip
    return [local, *ways_in_workers(problem), _with_agent_here(problem), *_managers(problem)]


def ways_in_workers(problem: Problem) -> list[Way]:
    """Return the ways with agent and environments in worker processes, which may hang or die."""
    if problem.in_flight:
        return _in_flight(problem)
    return [_native(problem)] if problem.is_vector else [_workers(problem), _vec_workers(problem), _native(problem)]


class _RoundIsOverError(SamplerError):
    """Ends a call. A SamplerError, after which the sampler keeps its workers and environments."""


class Stopwatch:
    """A `progress` argument that ends a call after a time, and counts timesteps of unfinished trajectories."""

    interval = 0.02

    def __init__(self, measured: Round) -> None:
        self._round = measured

    def __call__(self, snapshot: Snapshot) -> None:
        """Record the timesteps, and end the call when the round is over."""
        self._round.watch()
        self._round.tally.note(snapshot.n_timesteps, snapshot.seconds)
        if self._round.ends(snapshot.seconds):
            raise _RoundIsOverError
        if not self._round.tally.timesteps and snapshot.seconds > self._round.patience:
            raise TooSlowError(self._round.patience)


def run_sampler(sampler: Any, measured: Round) -> None:
    """Let a sampler run trajectories until a round ends, in a call for an endless batch."""
    with contextlib.suppress(_RoundIsOverError):
        sampler.obtain_samples(_ENDLESS, progress=Stopwatch(measured))


def _of_samplers(problem: Problem) -> dict[str, Any]:
    return {"seed": 0, "max_episode_length": problem.max_episode_length, "check": None, "fingerprint": None}


def _of_processes(problem: Problem) -> dict[str, Any]:
    return {
        "n_workers": problem.n_workers,
        "max_restarts": 0,
        "step_timeout": problem.step_timeout,
        "limits": Limits(construction_timeout=problem.construction_timeout, close_timeout=_CLOSE_SECONDS),
    }


def _sampler(problem: Problem, **arguments: Any) -> MultiprocessingSampler[Any, Any]:
    arguments = {**_of_samplers(problem), **_of_processes(problem), "envs": problem.env, **arguments}
    return MultiprocessingSampler(problem.agent, arguments.pop("envs"), **arguments)


def _call(problem: Problem, env: str, *more: str) -> str:
    return f"MultiprocessingSampler({', '.join(['agent', env, f'n_workers={problem.n_workers}', *more])})"


def _vec(problem: Problem) -> tuple[str, str]:
    return "worker_class=VecWorker", f'worker_args={{"n_envs": {problem.n_envs}}}'


def _workers(problem: Problem) -> Way:
    """Return the way with a single environment in each worker."""
    n = problem.n_workers
    call = _call(problem, problem.env_code)
    return Way("MultiprocessingSampler", call, lambda: _sampler(problem), run_sampler, f"--workers {n}", n_processes=n)


def _vec_workers(problem: Problem) -> Way:
    """Return the way with several environments in each worker."""
    return Way(
        f"MultiprocessingSampler, VecWorker of {problem.n_envs}",
        _call(problem, problem.env_code, *_vec(problem)),
        lambda: _sampler(problem, worker_class=VecWorker, worker_args={"n_envs": problem.n_envs}),
        run_sampler,
        f"--workers {problem.n_workers} --vec {problem.n_envs}",
        n_processes=problem.n_workers,
        n_in_turn=problem.n_envs,
    )


def _in_flight(problem: Problem) -> list[Way]:
    """Return the ways with several trajectories in flight in a worker, and the largest number in several workers."""

    def way(number: int, n_workers: int) -> Way:
        several, arguments = replace(problem, n_workers=n_workers), {"in_flight": number}
        each = "" if n_workers == 1 else " in each"
        return Way(
            f"{count(n_workers, 'worker')}, {number:,} in flight{each}",
            _call(several, several.env_code, f'worker_args={{"in_flight": {number}}}'),
            lambda: _sampler(several, worker_args=arguments),
            run_sampler,
            n_processes=n_workers,
            in_flight=number,
        )

    most = problem.in_flight[-1]
    further = [way(most, problem.n_workers)] if problem.n_workers > 1 else []
    return [*(way(number, 1) for number in problem.in_flight), *further]


def _native(problem: Problem) -> Way:
    """Return the way with a vector environment in each worker: the given one, or the environment's own kind."""
    env, code = problem.env, problem.env_code
    native: EnvUpdate | None = env
    if not problem.is_vector:
        native = None
        env_id, _, kwargs = code.partition(", env_kwargs=")
        options = f'num_envs={problem.n_envs}, vectorization_mode="vector_entry_point"{kwargs and f", **{kwargs}"}'
        code = f"lambda: gymnasium.make_vec({env_id}, {options})"
        if isinstance(env, SpecEnvUpdate) and env.spec.vector_entry_point is not None:
            vectors = {"id": env.spec, "num_envs": problem.n_envs, "vectorization_mode": "vector_entry_point"}
            make_vec: Any = gymnasium.make_vec
            native = NewEnvUpdate(make_vec, vectors)
    arguments: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": problem.n_envs}}
    return Way(
        f"MultiprocessingSampler, native vectors of {problem.n_envs}",
        _call(problem, code, *_vec(problem)),
        lambda: _sampler(problem, envs=native, max_episode_length=None, **arguments),
        run_sampler,
        n_processes=problem.n_workers,
        n_in_turn=problem.n_envs,
        lacking="the environment has no vector environment of its own" if native is None else "",
    )


def _with_agent_here(problem: Problem) -> Way:
    """Return the way with several environments per process, and a single agent in this process."""
    n_envs = problem.n_workers * problem.n_envs
    where = ('inference="parent"', f'worker_args={{"n_envs": {n_envs}}}')

    def run(sampler: Any, measured: Round) -> None:
        """Obtain whole trajectories repeatedly, at first one per environment: nothing interrupts a ticket."""
        n_each, timesteps, elapsed, began = 1, 0, 0.0, perf_counter()
        while not measured.ends(elapsed):
            before = elapsed
            timesteps += sampler.obtain_trajectories(n_envs * n_each).n_timesteps
            elapsed = perf_counter() - began
            measured.tally.note(timesteps, elapsed)
            n_each = max(1, int(n_each * measured.seconds / (elapsed - before)))
            measured.watch()

    return Way(
        f'MultiprocessingSampler, inference="parent" of {n_envs}',
        _call(problem, problem.env_code, *where),
        lambda: _sampler(problem, inference="parent", worker_args={"n_envs": n_envs}),
        run,
        in_parent=True,
        n_processes=problem.n_workers,
        n_in_turn=problem.n_envs,
    )


class _Truncated(EnvUpdate):
    """Makes an environment with the truncation of a sampler's `max_episode_length`."""

    def __init__(self, env: EnvUpdate, length: int) -> None:
        self.env, self.length = env, length

    def __call__(self, old_env: Any) -> Any:
        if old_env is not None:
            old_env.close()
        return gymnasium.wrappers.TimeLimit(self.env(None), self.length)


def _managers(problem: Problem) -> list[Way]:
    """Return the ways stepped from this process: Gymnasium's and managers' environments, here or in processes."""
    env = _Truncated(problem.env, problem.max_episode_length) if problem.cuts else problem.env
    n_workers, n_each, code = problem.n_workers, problem.n_envs, problem.env_code
    n_envs = n_workers * n_each
    half = max(1, n_envs // 2)
    made = f"EnvManager({code}, n_envs={n_envs}, n_workers={n_workers})"

    def serial() -> BaseEnvManager:
        return _launched(SerialEnvManager(env, n_envs=n_each, seed=0, on_failure="raise"))

    def in_processes() -> BaseEnvManager:
        return _launched(EnvManager(env, n_envs=n_envs, seed=0, on_failure="raise", **_of_processes(problem)))

    acting = as_agent(problem.agent)
    takes = takes_masks(acting, together=callable(getattr(acting, "get_actions", None)))
    lacking = "managers pass no masks of actions to agents" if takes and not isinstance(acting, RandomAgent) else ""

    def way(name: str, call: str, make: Callable[[], Any], least: int, n_processes: int) -> Way:
        n = max(1, n_processes) * n_each
        return Way(
            name, call, make, lambda manager, measured: _step(manager, problem.agent, least, n, measured),
            in_parent=True, n_processes=n_processes, n_in_turn=n_each, lacking=lacking,
        )  # fmt: skip

    here = f"SerialEnvManager({code}, n_envs={n_each})"
    return [
        Way(
            f"SyncVectorEnv of {n_each}",
            f"{_made_by_gymnasium(code, n_each)}.step(actions)",
            lambda: SyncVectorEnv([partial(env, None)] * n_each, autoreset_mode=AutoresetMode.SAME_STEP),
            lambda vector, measured: _step_vector(vector, problem.agent, measured),
            in_parent=True,
            n_in_turn=n_each,
            lacking=lacking.replace("managers give", "vector environments give"),
            steps_only=True,
        ),
        way(f"SerialEnvManager of {n_each}", f"{here}.step(actions)", serial, n_each, 0),
        way(f"EnvManager of {n_envs}, synchronous", f"{made}.step(actions)", in_processes, n_envs, n_workers),
        way(f"EnvManager of {n_envs}, asynchronous", f"{made}.recv(min_envs={half})", in_processes, half, n_workers),
    ]


def _made_by_gymnasium(code: str, n_envs: int) -> str:
    """Return the Python code of a `SyncVectorEnv`."""
    env_id, _, kwargs = code.partition(", env_kwargs=")
    if env_id == "env":
        return f"SyncVectorEnv([env{kwargs and f'(**{kwargs})'}] * {n_envs})"
    return f'gymnasium.make_vec({env_id}, {n_envs}, "sync"{kwargs and f", **{kwargs}"})'


def _step_vector(vector: SyncVectorEnv, agent: Any, measured: Round) -> None:
    """Reset and step Gymnasium's vector environment until a round ends."""
    choose = _chooser(agent, vector.single_observation_space, vector.single_action_space)
    timesteps, began = 0, perf_counter()
    observations, _ = vector.reset(seed=0)
    while not measured.ends(perf_counter() - began):
        observations, *_ = vector.step(choose(observations))
        timesteps += vector.num_envs
        measured.tally.note(timesteps, perf_counter() - began)
        measured.watch()


def _launched(manager: BaseEnvManager) -> BaseEnvManager:
    manager.launch()
    return manager


def _step(manager: BaseEnvManager, agent: Any, least: int, n_envs: int, measured: Round) -> None:
    """Reset and step a manager's environments until a round ends, and leave no step pending for the next way."""
    choose = _chooser(agent, manager.observation_space, manager.action_space)
    timesteps, began = 0, perf_counter()
    manager.async_reset()
    steps = _received(manager, least, measured)
    while not measured.ends(perf_counter() - began):
        manager.send(choose(steps.observations), steps.env_ids)
        steps = _received(manager, least, measured)
        timesteps += int(np.count_nonzero(steps.timesteps))  # the others are resets
        measured.tally.note(timesteps, perf_counter() - began)
        measured.watch()
    if len(steps) < n_envs:
        _received(manager, n_envs - len(steps), measured)


def _received(manager: BaseEnvManager, least: int, measured: Round) -> Steps:
    steps = manager.recv(min_envs=least, timeout=measured.patience)
    if len(steps) < least:
        raise TooSlowError(measured.patience)
    return steps


def ready_agent(agent: Any, observation_space: Any, action_space: Any) -> Any:
    """Return the agent with its spaces, reset for a new trajectory."""
    acting = as_agent(agent)
    give_spaces(acting, observation_space, action_space)
    reset = reset_agent_function(acting)
    if reset is not None:
        reset(derived_seed(0, SeedUse.AGENT))
    return acting


def _chooser(agent: Any, observation_space: Any, action_space: Any) -> Callable[[Any], Any]:
    """Return a function that chooses actions for stacked observations, in a single call if the agent can."""
    acting = ready_agent(agent, observation_space, action_space)
    together = getattr(acting, "get_actions", None)

    def choose(observations: Any) -> Any:
        if together is not None:
            return _stacked(together(observations)[0])
        n = n_rows_of(observations)
        rows = (map_tree(lambda leaf, row=row: leaf[row], observations) for row in range(n))  # type: ignore[misc]
        return _stacked([acting.get_action(row)[0] for row in rows])

    return choose


def _stacked(actions: Any) -> Any:
    """Stack actions that come as a list."""
    if not isinstance(actions, list):
        return actions
    first = actions[0]
    if isinstance(first, dict):
        return {key: _stacked([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([action[i] for action in actions]) for i in range(len(first)))
    return np.array(actions)
