"""The ways in which a sampler steps environments."""

from __future__ import annotations

import abc
import contextlib
from time import perf_counter
from typing import Any

import gymnasium

from streamsampler.benchmarking.way import CLOSE_SECONDS, Problem, Round, Tally, TooSlowError, Way
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.errors import SamplerError
from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
from streamsampler.samplers.progress import Snapshot
from streamsampler.workers.vec.worker import VecWorker

_INTERVAL = 0.02
_ENDLESS = 1 << 40


class _TimeIsUpError(SamplerError):
    """Ends a call. After any other exception the sampler would begin with new workers, and new environments."""


class Stopwatch:
    """A `progress` argument that ends a call after a time; timesteps of unfinished trajectories count.

    Args:
        measured: How long the call is measured.
        tally: Where timesteps are noted.
    """

    interval = _INTERVAL

    def __init__(self, measured: Round, tally: Tally) -> None:
        self._round, self.tally = measured, tally

    def __call__(self, snapshot: Snapshot) -> None:
        """Note the timesteps, and end the call when it is time."""
        self._round.watch()
        self.tally.add(snapshot.timesteps, snapshot.seconds)
        if self._round.ends(self.tally, snapshot.seconds):
            raise _TimeIsUpError
        if not self.tally.timesteps and snapshot.seconds > self._round.patience:
            raise TooSlowError(self._round.patience)


class _Sampled(Way):
    """A sampler that is asked for a batch without end."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._sampler: Any = None

    @abc.abstractmethod
    def _make(self, **options: Any) -> Any:
        """Return the sampler."""

    def start(self) -> None:
        self._sampler = self._make(
            seed=0, max_episode_length=self.problem.max_episode_length, check=None, fingerprint=None
        )

    def run(self, measured: Round) -> Tally:
        stopwatch = Stopwatch(measured, self._new_tally())
        with contextlib.suppress(_TimeIsUpError):
            self._sampler.obtain_samples(_ENDLESS, progress=stopwatch)
        return stopwatch.tally

    def close(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()


class Local(_Sampled):
    """Everything in this process."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.name = "LocalSampler"
        self.call = f"LocalSampler(agent, {problem.env_code})"
        self.options = "--workers 0"

    def _make(self, **options: Any) -> Any:
        return LocalSampler(self.problem.agent, self.problem.env, **options)


class Workers(_Sampled):
    """One environment in each worker."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.n_processes = problem.n_workers
        self.name = "MultiprocessingSampler"
        self.call = f"MultiprocessingSampler(agent, {problem.env_code}, n_workers={problem.n_workers})"
        self.options = f"--workers {problem.n_workers}"

    def _arguments(self) -> tuple[EnvUpdate, dict[str, Any]]:
        return self.problem.env, {}

    def _make(self, **options: Any) -> Any:
        env, arguments = self._arguments()
        problem = self.problem
        return MultiprocessingSampler(
            problem.agent, env, n_workers=problem.n_workers, max_restarts=0, step_timeout=problem.step_timeout,
            construction_timeout=problem.construction_timeout, close_timeout=CLOSE_SECONDS, **options, **arguments,
        )  # fmt: skip


class VecWorkers(Workers):
    """Several environments in each worker."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.n_in_turn = problem.n_envs
        self.name = f"MultiprocessingSampler, VecWorker of {problem.n_envs}"
        self.call = self._call(problem.env_code)
        self.options += f" --vec {problem.n_envs}"

    def _call(self, env: str) -> str:
        vec = f'worker_class=VecWorker, worker_args={{"n_envs": {self.problem.n_envs}}}'
        return f"MultiprocessingSampler(agent, {env}, n_workers={self.problem.n_workers}, {vec})"

    def _arguments(self) -> tuple[EnvUpdate, dict[str, Any]]:
        worker_args = {"n_envs": self.problem.n_envs}
        return self.problem.env, {"worker_class": VecWorker, "worker_args": worker_args}


class NativeWorkers(VecWorkers):
    """A vector environment in each worker: the given one, or of the environment's own kind."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.name = f"MultiprocessingSampler, native vectors of {problem.n_envs}"
        self.options = ""
        self._native: EnvUpdate | None = problem.env
        if problem.is_vector:
            return
        env_id, _, kwargs = problem.env_code.partition(", env_kwargs=")
        options = f'num_envs={problem.n_envs}, vectorization_mode="vector_entry_point"{kwargs and f", **{kwargs}"}'
        self.call = self._call(f"lambda: gymnasium.make_vec({env_id}, {options})")
        self._native = _native_of(problem.env, problem.n_envs)
        if self._native is None:
            self.lacking = "the environment has no vector environment of its own"

    def _arguments(self) -> tuple[EnvUpdate, dict[str, Any]]:
        env, arguments = super()._arguments()
        return self._native or env, arguments

    def _make(self, **options: Any) -> Any:
        return super()._make(**{**options, "max_episode_length": None})


class ParentAgent(VecWorkers):
    """Several environments in each process, and one agent for all of them in this one.

    Nothing interrupts a ticket in this process, so calls are for as many trajectories as fit into the time, beginning
    with one of each environment.
    """

    in_parent = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.name = f'MultiprocessingSampler, inference="parent" of {self.n_envs}'
        self.options = ""
        self._n_each = 1

    def _call(self, env: str) -> str:
        where = f'inference="parent", worker_args={{"n_envs": {self.n_envs}}}'
        return f"MultiprocessingSampler(agent, {env}, n_workers={self.problem.n_workers}, {where})"

    def _arguments(self) -> tuple[EnvUpdate, dict[str, Any]]:
        worker_args = {"n_envs": self.n_envs}
        return self.problem.env, {"inference": "parent", "worker_args": worker_args}

    def run(self, measured: Round) -> Tally:
        """Obtain whole trajectories, again and again."""
        tally, timesteps, began = self._new_tally(), 0, perf_counter()
        elapsed = 0.0
        while not measured.ends(tally, elapsed):
            before = elapsed
            timesteps += self._sampler.obtain_trajectories(self.n_envs * self._n_each).n_timesteps
            elapsed = perf_counter() - began
            tally.add(timesteps, elapsed)
            self._n_each = max(1, int(self._n_each * measured.seconds / (elapsed - before)))
            measured.watch()
        return tally


def _native_of(env: EnvUpdate, n_envs: int) -> EnvUpdate | None:
    """Return what makes a vector environment of an id that has one of its own; None where it has none."""
    if not isinstance(env, SpecEnvUpdate) or env.spec.vector_entry_point is None:
        return None
    vectors = {"id": env.spec, "num_envs": n_envs, "vectorization_mode": "vector_entry_point"}
    make: Any = gymnasium.make_vec
    return NewEnvUpdate(make, vectors)
