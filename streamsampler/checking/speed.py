"""Measure where the time of one environment goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamsampler.benchmarking.report import BenchReport
from streamsampler.checking.findings import Finding, not_checked
from streamsampler.checking.looking import Seen
from streamsampler.data.words import count

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


def costs_of(stats: Any, seen: Seen, mean_length: float) -> Costs:
    """Return where the time of a worker went.

    Args:
        stats: Those of its sampler.
        seen: What was seen of its environment.
        mean_length: How long trajectories are on average, as far as it is known: for those that were cut.
    """
    times, n = stats.times, seen.trajectories + (seen.endless is not None)
    measured = seen.timesteps / n
    length = measured if sum(seen.ended.values()) == n else max(measured, mean_length)
    # How a sampler shares the time of a rollout between agent and steps is an estimate; what it is in all is known.
    besides = max(0.0, times.agent + times.step - seen.step_seconds - seen.own_seconds)
    agent = min(times.agent, besides)
    per_reset, ms = 1_000 * times.reset / n, 1_000 / seen.timesteps
    return Costs(
        reset=per_reset / length,
        agent=agent * ms,
        step=seen.step_seconds * ms,
        recording=(besides - agent) * ms,
        milliseconds_per_reset=per_reset,
        mean_length=length,
        cpu_share=seen.cpu_seconds / seen.wall_seconds / seen.free_share,
        free_share=seen.free_share,
        timesteps=seen.timesteps,
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
