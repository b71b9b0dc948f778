"""Measure where the time of one environment goes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

from streamsampler.agents.base import reset_agent_function
from streamsampler.benchmarking.costs import Spinning
from streamsampler.benchmarking.report import BenchReport
from streamsampler.checking.findings import Finding, not_checked
from streamsampler.checking.worker import TaskWorker
from streamsampler.data.words import count
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.explain import begin_of
from streamsampler.workers.generators import seed_generators

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
class Speed:
    """How fast environment and agent are.

    Attributes:
        construction_seconds: What it takes to make the environment.
        costs: Where the time goes; None where that was not measured.
    """

    construction_seconds: float
    costs: Costs | None


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
        spinning = Spinning()
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


def finding_of_obstacles(measured: BenchReport) -> Finding:
    """Return why no workers could be measured."""
    obstacle = measured.ways[0].obstacle
    if obstacle.startswith(("given up", "not measured")):
        return not_checked("workers", f"none could be measured: {obstacle}", "Check with a longer time limit")
    return Finding(
        "workers", "warning", f"none could be measured: {obstacle}",
        "Several run the environment at the same time: let them share no file, port or device",
    )  # fmt: skip
