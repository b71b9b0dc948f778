"""Check that a trajectory depends on its seed alone: run it twice, before and after another trajectory.

The worker's own environment and agent are used, through stand-ins that note what passes between them. What is noted the
second time is compared at once with the first, so that the first difference shows where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import files_of, kind_of, stateful_wrapper
from streamsampler.workers.traces import BrokenOff, Difference, Limits, Trace, n_slots_of, run_traced

__all__ = ["SECONDS", "TIMESTEPS", "WAYS_OUT", "Outcome", "check_purity"]

SECONDS = 0.2
"""With "warn": after that long no further reset or step begins."""

TIMESTEPS = 200
"""How many timesteps of a trajectory are run and compared."""

WAYS_OUT = {
    "agent": (
        "The agent keeps something from one trajectory to the next, or draws from a generator that is not seeded: let "
        "its reset(seed=…), which is called at each trajectory's start, set back what it keeps and seed what it draws "
        "from; random, numpy.random and torch are seeded already"
    ),
    "environment": (
        "The environment or a wrapper keeps something from one trajectory to the next, or draws from a generator that "
        "is not seeded: let its reset set back what it keeps, and draw from self.np_random after "
        "super().reset(seed=seed); random, numpy.random and torch are seeded already"
    ),
}
"""What to do where a trajectory came out differently, by where that was first seen."""


@dataclass
class Outcome:
    """The result of a check.

    Attributes:
        checked: What the answer says of it.
        spoiled: Whether environment and agent are to be replaced by new ones: they carry something, or raised.
        compared_timesteps: How many timesteps were run twice, and compared.
        difference: What came out differently; None where nothing did.
    """

    checked: Checked
    spoiled: bool = False
    compared_timesteps: int = 0
    difference: Difference | None = None


def check_purity(
    worker: Worker,
    order: CheckOrder,
    version: int,
    seeds_of: Callable[[range], list[int]],
    *,
    seconds: float = SECONDS,
    timesteps: int = TIMESTEPS,
) -> Outcome:
    """Check that trajectories of a worker depend on their seeds alone.

    Args:
        worker: The worker, with its agent and its environments.
        order: What was checked before.
        version: The agent version in hand. The check ends when it may no longer run.
        seeds_of: Gives the seeds of trajectories.
        seconds: After that long no further reset or step begins, unless the worker's `check` is "error".
        timesteps: How many timesteps of a trajectory are run and compared.

    Returns:
        What the answer says of it, and whether agent and environment are to be replaced.

    Raises:
        KeyboardInterrupt: The user's.
    """
    envs = worker.environments()
    if not envs or not worker.can_rehearse:
        return Outcome(Checked(complete=True))
    kind, strict = kind_of(envs[0]), worker.context.check == "error"
    if kind == order.done:
        return Outcome(Checked(kind, complete=True))
    finding = next(filter(None, map(stateful_wrapper, envs)), "")
    # A check would write files of its own, over the user's or among them. Where it must be, all begins again after it.
    writes = bool(files_of(envs))
    if finding or (writes and not strict):
        return Outcome(Checked(kind, complete=True, finding=finding))
    began = perf_counter()
    until = None if strict else began + seconds - (order.seconds if kind == order.begun else 0.0)
    limits = Limits(lambda: worker.row.may_run(version), until, timesteps, perf_counter)
    outcome = Outcome(Checked(), spoiled=writes)
    traces: list[Trace] = []
    try:
        _compare(worker, version, seeds_of, limits, traces)
    except BrokenOff:
        pass
    except Difference as difference:
        finding, outcome.spoiled, outcome.difference = _finding(difference, envs[0]), True, difference
    except KeyboardInterrupt:
        raise
    except BaseException:  # no verdict: the rollout to come raises it again
        outcome.spoiled = True
    took = perf_counter() - began + (order.seconds if kind == order.begun else 0.0)
    complete = bool(finding) or worker.row.may_run(version) or (not strict and took >= seconds)
    outcome.checked = Checked(kind, complete, limits.trajectories, limits.timesteps, took, finding)
    outcome.compared_timesteps = sum(each.compared_timesteps for each in traces if each.position >= 0)
    return outcome


def _compare(
    worker: Worker, version: int, seeds_of: Callable[[range], list[int]], limits: Limits, traces: list[Trace]
) -> None:
    """Run a trajectory, another one, and the first one again; of several environments, one in each at a time."""
    envs = worker.environments()
    n_slots = sum(map(n_slots_of, envs))
    first, other = range(n_slots), range(n_slots, 2 * n_slots)

    def run(indices: range, notes: list[Trace]) -> None:
        run_traced(worker, version, indices, seeds_of(indices), notes, limits)

    names = [f"one of trajectories 0 to {n_slots - 1}"] if len(envs) < n_slots else map("trajectory {}".format, first)
    traces += map(Trace, names)
    run(first, traces)
    run(other, [Trace("") for _ in envs])
    for each in traces:
        each.position = 0
    run(first, traces)


def _finding(difference: Difference, env: Any) -> str:
    return (
        f"{name_of_env(env)} was run twice from the same seed, before and after another trajectory, and "
        f"{difference.text}. So batches differ with the number of workers and with timing. "
        f"{WAYS_OUT[difference.culprit]}. (check=None switches this check off)"
    )
