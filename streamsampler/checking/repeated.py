"""Run trajectories again, after others, in other processes and in flight together, and compare them."""

from __future__ import annotations

from typing import Any

from streamsampler.checking.env_facts import Facts
from streamsampler.checking.findings import Finding, not_checked
from streamsampler.checking.limits import CheckSetup, closing
from streamsampler.core.words import count
from streamsampler.data.differences import first_difference, shown
from streamsampler.environments.updates import EnvUpdate

IN_FLIGHT = "in flight"
"""Name of the finding on trajectories in flight in the same process."""
_COMPARED = 3


def run_twice(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float) -> tuple[Finding, Any]:
    """Run trajectories twice in the same process; return the finding, and a batch for `run_elsewhere`.

    Raises:
        SamplerError: User code raised, or its process died or hung, or no time is left.
    """
    n, guard = _COMPARED * (facts.n_slots or 1), limits.guard(seconds)
    with closing(limits.sampler(agent, env, facts)) as sampler:
        batch = sampler.obtain_trajectories(n, progress=guard)
        if facts.n_slots is not None:  # many of them take a single seed for all their environments
            return not_checked("seed", "vector environments are compared in other processes only"), batch
        again = sampler.obtain_trajectories(n, seeds=batch.seeds, progress=guard)
    return _compared(
        "seed", "run again after others", "with the same seed, before and after others", batch, again
    ), batch


def run_elsewhere(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories in two other processes, and compare them with a batch; see `run_twice`."""
    # Spawned, because all children of the fork server share the iteration order of sets.
    with closing(limits.sampler(agent, env, facts, n_workers=2, start_method="spawn")) as sampler:
        there = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared("processes", "in a new process, and after other trajectories,", "in other processes", here, there)


def run_in_flight(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories at the same time in one process, and compare them with a batch; see `run_twice`."""
    sampler = limits.sampler(agent, env, facts, worker_args={"in_flight": len(here)})
    with closing(sampler):
        together = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared(
        IN_FLIGHT, "in flight together with others", "with trajectories in flight together", here, together
    )


def _compared(name: str, how: str, passed: str, first: Any, second: Any) -> Finding:
    """Return whether two batches have the same trajectories."""
    for number in range(len(first)):
        if difference := first_difference(first[number], second[number]):
            was, now = shown(difference.recorded), shown(difference.replayed)
            return Finding(
                name, "failure",
                f"{how} trajectory {number} differs: its {difference.what}{difference.path} of timestep "
                f"{difference.timestep} was {was} and then {now}: batches differ from run to run",
                f"{_ADVICE_BEFORE.get(name, '')}{_WAYS_OUT[difference.what == 'action']}",
            )  # fmt: skip
    compared = count(int(first.lengths.sum()), "timestep")
    return Finding(name, "pass", f"{compared} are the same {passed}")


_ADVICE_BEFORE = {
    "processes": "It depends on the process or its past: id(), the time, the process id, a class attribute, a file or "
    "a server that trajectories change; or on an earlier trajectory. ",
    IN_FLIGHT: "It depends on state shared by all environments or agents of a process: a class attribute, a global "
    "variable, a session of a service, or an agent with memory and without reset. ",
}
_WAYS_OUT = {
    True: (
        "The agent carries state from trajectory to trajectory, or draws from a generator without a seed: let its "
        "reset(seed=…), called at each trajectory's start, reset its state and seed its generators; random, "
        "numpy.random and torch are seeded already"
    ),
    False: (
        "The environment or a wrapper carries state from trajectory to trajectory, or draws from a generator without "
        "a seed: let its reset clear this state, and draw from self.np_random after super().reset(seed=seed); random, "
        "numpy.random and torch are seeded already"
    ),
}
"""Advice on trajectories that differ, by whether an action differed first."""
