"""Check that a trajectory depends on its seed alone: run it twice, before and after another trajectory.

The worker's own environment and agent are used, through stand-ins that note what passes between them. What is noted the
second time is compared at once with the first, so that the first difference shows where it comes from. Infos are
compared at the end: what differs there may be read off a clock. Then new environments run the trajectory first, twice,
and what differs between these, too, is no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import files_of, kind_of, stateful_wrapper
from streamsampler.workers.traces import BrokenOff, Difference, InfoKey, Limits, Trace, n_slots_of, run_traced

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
    renew: Callable[[], Worker] | None = None,
) -> Outcome:
    """Check that trajectories of a worker depend on their seeds alone.

    Args:
        worker: The worker, with its agent and its environments.
        order: What was checked before.
        version: The agent version in hand. The check ends when it may no longer run.
        seeds_of: Gives the seeds of trajectories.
        seconds: After that long no further reset or step begins, unless the worker's `check` is "error".
        timesteps: How many timesteps of a trajectory are run and compared.
        renew: Gives the worker a new agent and new environments, and returns it; None for its context's `rebuild`.

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
    run = _Run(worker, version, seeds_of, limits, renew or partial(_rebuilt, worker))
    try:
        run.check()
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
    warning = _warning(run.unstable, envs[0])
    outcome.checked = Checked(kind, complete, limits.trajectories, limits.timesteps, took, finding, warning)
    outcome.spoiled |= run.has_renewed
    outcome.compared_timesteps = sum(each.compared_timesteps for each in run.traces if each.position >= 0)
    return outcome


@dataclass
class _Run:
    """A check that goes on.

    Attributes:
        traces: What was noted of the first trajectory, one for each environment.
        unstable: Which infos differ from run to run, whatever was run before.
        has_renewed: Whether agent and environments were replaced on the way.
    """

    worker: Worker
    version: int
    seeds_of: Callable[[range], list[int]]
    limits: Limits
    renew: Callable[[], Worker]
    traces: list[Trace] = field(default_factory=list)
    unstable: set[InfoKey] = field(default_factory=set)
    has_renewed: bool = False

    def check(self) -> None:
        """Run the first trajectory, the second one, and the first one again; look at infos that differ.

        Raises:
            Difference: The first trajectory came out differently.
            BrokenOff: It was broken off.
        """
        first = self.traces = self._new_traces()
        self._trajectories(0, first)
        self._trajectories(1, self._new_traces())
        self.traces = [replace(trace, position=0, infos={}) for trace in first]
        self._trajectories(0, self.traces)
        differing = _info_differences(first, self.traces)
        if differing:
            self.unstable = self._unstable()
        for key, difference in differing.items():
            if key not in self.unstable:
                raise difference

    def _unstable(self) -> set[InfoKey]:
        """Return which infos differ where new environments run the trajectory first: in these there is no memory."""
        found = []
        for _ in range(2):
            self.worker, self.has_renewed = self.renew(), True
            found.append(self._new_traces())
            self._trajectories(0, found[-1])
        return set(_info_differences(*found))

    def _new_traces(self) -> list[Trace]:
        envs = self.worker.environments()
        n_slots = sum(map(n_slots_of, envs))
        if len(envs) < n_slots:
            return [Trace(f"one of trajectories 0 to {n_slots - 1}")]
        return [Trace(f"trajectory {number}") for number in range(n_slots)]

    def _trajectories(self, number: int, traces: list[Trace]) -> None:
        """Run the first or the second trajectory; of several environments, one in each at a time."""
        n_slots = sum(map(n_slots_of, self.worker.environments()))
        indices = range(number * n_slots, (number + 1) * n_slots)
        run_traced(self.worker, self.version, indices, self.seeds_of(indices), traces, self.limits)


def _rebuilt(worker: Worker) -> Worker:
    worker.context.rebuild()
    return worker


def _info_differences(traces: list[Trace], others: list[Trace]) -> dict[InfoKey, Difference]:
    found: dict[InfoKey, Difference] = {}
    for trace, other in zip(traces, others, strict=True):
        found = trace.info_differences(other) | found
    return found


def _warning(unstable: set[InfoKey], env: Any) -> str:
    if not unstable:
        return ""
    named = " and ".join(f"its {whose} {key!r}" for whose, key in sorted(unstable))
    return (
        f"{name_of_env(env)} was made twice and run from the same seed, and {named} differed, as what is read off a "
        "clock does: batches differ in that from run to run, and in nothing else that was seen"
    )


def _finding(difference: Difference, env: Any) -> str:
    return (
        f"{name_of_env(env)} was run twice from the same seed, before and after another trajectory, and "
        f"{difference.text}. So batches differ with the number of workers and with timing. "
        f"{WAYS_OUT[difference.culprit]}. (check=None switches this check off)"
    )
