"""The ways with samplers, each asked for an endless batch."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from time import perf_counter
from typing import Any

import gymnasium

from streamsampler.checking.way import Problem, Round, TooSlowError, Way
from streamsampler.core.errors import SamplerError
from streamsampler.core.progress import Snapshot
from streamsampler.core.words import count
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.workers.vec.worker import VecWorker

_CLOSE_SECONDS = 1.0
"""Seconds for closing a way's environments: an environment that hangs must not take the time of the other ways."""
_ENDLESS = 1 << 40


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


def of_samplers(problem: Problem) -> dict[str, Any]:
    return {"seed": 0, "max_episode_length": problem.max_episode_length, "check": None, "fingerprint": None}


def of_processes(problem: Problem) -> dict[str, Any]:
    return {
        "n_workers": problem.n_workers,
        "max_restarts": 0,
        "step_timeout": problem.step_timeout,
        "limits": Limits(construction_timeout=problem.construction_timeout, close_timeout=_CLOSE_SECONDS),
    }


def _sampler(problem: Problem, **arguments: Any) -> MultiprocessingSampler[Any, Any]:
    arguments = {**of_samplers(problem), **of_processes(problem), "envs": problem.env, **arguments}
    return MultiprocessingSampler(problem.agent, arguments.pop("envs"), **arguments)


def _call(problem: Problem, env: str, *more: str) -> str:
    return f"MultiprocessingSampler({', '.join(['agent', env, f'n_workers={problem.n_workers}', *more])})"


def _vec(problem: Problem) -> tuple[str, str]:
    return "worker_class=VecWorker", f'worker_args={{"n_envs": {problem.n_envs}}}'


def way_of_workers(problem: Problem) -> Way:
    """Return the way with a single environment in each worker."""
    n = problem.n_workers
    call = _call(problem, problem.env_code)
    return Way("MultiprocessingSampler", call, lambda: _sampler(problem), run_sampler, f"--workers {n}", n_processes=n)


def way_of_vec_workers(problem: Problem) -> Way:
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


def ways_in_flight(problem: Problem) -> list[Way]:
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


def way_of_native(problem: Problem) -> Way:
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


def way_with_agent_here(problem: Problem) -> Way:
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
