"""Measure where the time goes, and how fast workers of several kinds are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from streamsampler.agents.base import reset_agent_function
from streamsampler.checking.findings import Finding
from streamsampler.checking.worker import Limits, TaskWorker, quiet
from streamsampler.data.words import count
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.errors import SamplerError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.explain import begin_of
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.vec.worker import VecWorker

__all__ = ["Candidate", "Costs", "MeasureCosts", "Rate", "Speed", "candidates_of", "finding_of_costs", "measured_rate"]

_ROUNDS = 5
_MUCH = 0.5
_FREE = 0.7


@dataclass(frozen=True, slots=True)
class Costs:
    """Where the time of one worker goes, in milliseconds for each timestep.

    Attributes:
        reset: Seeding and resetting environment and agent, spread over the timesteps of a trajectory.
        agent: Choosing actions.
        step: Stepping the environment.
        recording: What a worker does besides: copying, looking for bad data.
        milliseconds_per_reset: What one reset takes.
        mean_length: Timesteps of a trajectory on average.
        cpu_share: Seconds of processor time for each second, as a share of what code gets that only computes: below 1
            environment or agent wait, above 1 they use threads.
        free_share: Seconds of processor time for each second that such code got: below 1 other programs were running,
            and all figures are too high.
        timesteps: How many timesteps this was measured in.
    """

    reset: float
    agent: float
    step: float
    recording: float
    milliseconds_per_reset: float
    mean_length: float
    cpu_share: float
    free_share: float
    timesteps: int

    @property
    def total(self) -> float:
        """All of it."""
        return self.reset + self.agent + self.step + self.recording

    @property
    def shares(self) -> dict[str, float]:
        """The parts' shares of all, largest first."""
        parts = {name: getattr(self, name) for name in ("step", "agent", "reset", "recording")}
        return {name: part / self.total for name, part in sorted(parts.items(), key=lambda item: -item[1])}


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one worker of a kind was.

    Attributes:
        worker: "DefaultWorker" or "VecWorker".
        n_envs: How many environments it had side by side.
        native: Whether they were one vector environment.
        timesteps_per_second: Timesteps for each second, as a sampler delivered them.
    """

    worker: str
    n_envs: int
    native: bool
    timesteps_per_second: float


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast environment and agent are.

    Attributes:
        construction_seconds: What it takes to make the environment.
        costs: Where the time goes; None where that was not measured.
        rates: How fast workers of several kinds were, one worker each.
        cut_after: Timesteps after which trajectories were cut, in order to measure; None where they were not.
    """

    construction_seconds: float
    costs: Costs | None
    rates: tuple[Rate, ...]
    cut_after: int | None = None


@dataclass(frozen=True)
class MeasureCosts:
    """A task: run the same trajectories with nothing but resets, actions and steps, and as a worker does.

    Attributes:
        seconds: What all of it takes, about.
        mean_length: Timesteps of a trajectory on average, as far as that is known; for trajectories that are cut.
    """

    seconds: float
    mean_length: float

    def __call__(self, worker: TaskWorker) -> Costs:
        """Run the task."""
        bare = _BareLoop(worker)
        until = perf_counter() + self.seconds
        recorded = 0.0
        bare.run(range(1), perf_counter() + self.seconds / _ROUNDS)  # the first timesteps are slower
        bare.forget()
        spinning = _Spinning()
        while perf_counter() < until or not bare.timesteps:
            spinning.run(self.seconds / (10 * _ROUNDS))
            first = bare.trajectories
            bare.run(range(first, first + 1_000), perf_counter() + self.seconds / (2 * _ROUNDS))
            indices = range(first, bare.trajectories)
            seeds = TrajectorySeeds(worker.context.seed, worker.version).of(indices)
            began = perf_counter()
            with worker.by_inner() as inner:
                inner.rollout(Ticket(worker.version, indices, len(indices)), seeds)
            recorded += perf_counter() - began
        return bare.costs(recorded, self.mean_length, spinning.share)


class _Spinning:
    """Computes, and nothing else: how much of a core is to be had."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, seconds: float) -> None:
        """Compute for so long."""
        began, cpu = perf_counter(), process_time()
        while perf_counter() - began < seconds:
            sum(range(1_000))
        self._wall += perf_counter() - began
        self._cpu += process_time() - cpu

    @property
    def share(self) -> float:
        """Seconds of processor time for each second."""
        return max(0.01, min(1.0, self._cpu / self._wall)) if self._wall else 1.0


class _BareLoop:
    """Resets, acts and steps, and records nothing."""

    def __init__(self, worker: TaskWorker) -> None:
        self._worker = worker
        self._most = worker.context.max_episode_length
        self._seeds = TrajectorySeeds(worker.context.seed, worker.version)
        self.forget()

    def forget(self) -> None:
        """Begin to measure."""
        self.trajectories = self.timesteps = self.cut = 0
        self._reset = self._agent = self._step = self._wall = self._cpu = 0.0

    def run(self, indices: range, until: float) -> None:
        """Run whole trajectories, at least one, until it is time."""
        worker, agent = self._worker, self._worker.agent
        env: Any = worker.env
        assert agent is not None
        reset_agent, clock = reset_agent_function(agent), perf_counter
        began, cpu = clock(), process_time()
        for index in indices:
            worker.enter(Phase.RESET, index)
            seed = self._seeds[index]
            begin = clock()
            seed_generators(seed)
            observation, _ = begin_of(env.reset(seed=seed))
            if reset_agent is not None:
                reset_agent(derived_seed(seed, Stream.AGENT))
            self._reset += clock() - begin
            worker.enter(Phase.STEP, index)
            length = 0
            while True:
                before = clock()
                action, _ = agent.get_action(observation)
                between = clock()
                observation, _, terminated, truncated, _ = env.step(action)
                after = clock()
                self._agent += between - before
                self._step += after - between
                length += 1
                worker.progress(self.timesteps + length)
                if terminated or truncated or length == self._most:
                    break
            self.cut += not (terminated or truncated)
            self.timesteps += length
            self.trajectories += 1
            if clock() >= until:
                break
        self._wall += clock() - began
        self._cpu += process_time() - cpu

    def costs(self, recorded: float, mean_length: float, free_share: float) -> Costs:
        """Return the costs.

        Args:
            recorded: The seconds that the same trajectories took a worker, which records them.
            mean_length: See `MeasureCosts`.
            free_share: See `Costs`.
        """
        ms = 1_000 / self.timesteps
        bare = self._reset + self._agent + self._step
        per_reset = 1_000 * self._reset / self.trajectories
        measured = self.timesteps / self.trajectories
        length = max(measured, mean_length) if self.cut else measured
        return Costs(
            reset=per_reset / length,
            agent=self._agent * ms,
            step=self._step * ms,
            recording=max(0.0, recorded - bare) * ms,
            milliseconds_per_reset=per_reset,
            mean_length=length,
            cpu_share=self._cpu / self._wall / free_share,
            free_share=free_share,
            timesteps=self.timesteps,
        )


def finding_of_costs(costs: Costs, *, asked_together: bool) -> Finding:
    """Return what is notable about costs.

    Args:
        costs: The costs.
        asked_together: Whether the agent has `get_actions`.
    """
    shares = ", ".join(f"{name} {share:.0%}" for name, share in costs.shares.items())
    what = f"{costs.total:.3g} ms for each timestep of one environment: {shares}"
    if costs.shares["reset"] > _MUCH:
        return Finding(
            "speed", "warning", f"{what}; a reset takes {costs.milliseconds_per_reset:.3g} ms",
            "Keep in the environment what resets need not make again",
        )  # fmt: skip
    if costs.shares["agent"] > _MUCH and not asked_together:
        return Finding(
            "speed", "warning", what,
            "Give the agent get_actions(observations): VecWorker then asks once for the actions of all environments",
        )  # fmt: skip
    if costs.free_share < _FREE:
        return Finding(
            "speed", "warning", f"{what}; but other programs were running, and left {costs.free_share:.0%} of a core",
            "Measure again on an idle machine",
        )  # fmt: skip
    return Finding("speed", "pass", f"{what}; measured in {count(costs.timesteps, 'timestep')}")


# ---------------------------------------------------------------------- rates


@dataclass(frozen=True)
class Candidate:
    """A kind of worker to measure.

    Attributes:
        env: Its environment.
        n_envs: How many it has side by side.
        vec: Whether it is a `VecWorker`.
        native: Whether the environment is a vector environment.
    """

    env: EnvUpdate
    n_envs: int = 1
    vec: bool = False
    native: bool = False

    def options(self) -> dict[str, Any]:
        """Return the arguments of a sampler."""
        if not self.vec:
            return {"worker_class": DefaultWorker}
        return {"worker_class": VecWorker, "worker_args": {"n_envs": self.n_envs, "independent": "fallback"}}


def measured_rate(
    candidate: Candidate, agent: Any, limits: Limits, seconds: float, watch: Callable[[int], Any]
) -> Rate | None:
    """Return how fast one worker is; None where it does not work.

    Args:
        candidate: The kind of worker.
        agent: The agent.
        limits: What bounds it.
        seconds: How long it is measured, about.
        watch: Called now and then with the timesteps so far.
    """
    if candidate.native:
        limits = replace(limits, max_episode_length=None)
    rate = 0.0
    try:
        options = candidate.options() | limits.sampler_options()
        with quiet(), MultiprocessingSampler(agent, candidate.env, **options) as sampler:  # fmt: skip
            guard = limits.guard(watch)
            n = sampler.obtain_trajectories(candidate.n_envs, progress=guard).n_timesteps  # starts, and imports
            for _ in range(_ROUNDS):
                stats = sampler.obtain_samples(n, progress=guard).stats
                rate = stats.kept_timesteps / stats.seconds
                if stats.seconds >= seconds / 2 or limits.seconds_left < 2 * seconds:
                    break
                n = max(2 * n, min(20 * n, int(rate * seconds)))
    except SamplerError:
        if not rate:
            return None
    kind = "VecWorker" if candidate.vec else "DefaultWorker"
    return Rate(kind, candidate.n_envs, candidate.native, rate)


def native_of(env: EnvUpdate, n_envs: int) -> EnvUpdate | None:
    """Return what makes a vector environment of an id that has one of its own; None where it has none."""
    if not isinstance(env, SpecEnvUpdate) or env.spec.vector_entry_point is None:
        return None
    return NewEnvUpdate(_MakesNative(env.spec, n_envs))


@dataclass(frozen=True)
class _MakesNative:
    spec: EnvSpec
    n_envs: int

    def __call__(self) -> Any:
        return gymnasium.make_vec(self.spec, num_envs=self.n_envs, vectorization_mode="vector_entry_point")


def candidates_of(
    env: EnvUpdate, n_slots: int | None, costs: Costs | None, sizes: Sequence[int], *, asked_together: bool
) -> Iterator[Candidate]:
    """Yield the kinds of workers that are worth measuring.

    Args:
        env: The environment.
        n_slots: How many environments it has side by side; None for one that is no vector environment.
        costs: Where the time goes.
        sizes: How many environments a `VecWorker` may have.
        asked_together: Whether the agent has `get_actions`.
    """
    if n_slots is not None:
        yield Candidate(env, n_slots, vec=True, native=True)
        return
    yield Candidate(env)
    if not asked_together or costs is None or costs.agent + costs.recording < costs.total / 10:
        return  # side by side only what the agent and the recording cost is saved
    for n_envs in sizes:
        yield Candidate(env, n_envs, vec=True)
    if sizes and (native := native_of(env, sizes[-1])) is not None:
        yield Candidate(native, sizes[-1], vec=True, native=True)
