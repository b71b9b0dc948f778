"""Run an environment for a check in a sampler of a single worker, which may die, and is killed if it hangs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from streamsampler.agents.base import (
    acts_alone,
    agent_waits,
    as_agent,
    give_spaces,
    is_agent,
    is_row_independent,
    takes_masks,
)
from streamsampler.agents.masks import ACTION_MASK, method_of
from streamsampler.agents.policies import Policies, with_policies
from streamsampler.checking.ordinary_env import OrdinaryEnv, ordinary
from streamsampler.checking.report import Finding, finding_of_wrappers, not_checked
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import SamplerError, UsageError, WorkerError
from streamsampler.core.progress import Snapshot
from streamsampler.core.words import count
from streamsampler.data.differences import first_difference, shown
from streamsampler.environments.multi_agent import agents_of
from streamsampler.environments.updates import EnvUpdate, apply_any_env_update
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import chain_of
from streamsampler.workers.logs import quiet
from streamsampler.workers.masks import has_masks_by_call
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.worker import VecWorker

IN_FLIGHT = "in flight"
"""Name of the finding on trajectories in flight in the same process."""

_TRAJECTORIES, _COMPARED = 20, 3
_RESULT = "result"
_GRACE = 10.0
"""Seconds after the deadline at which a task is killed. A task checks its own limit between timesteps, and normally
ends earlier, unless the machine is busy or the construction takes longer.
"""
_CLOSING = 2.0  # seconds: closing has a check of its own
_CONSTRUCTION = 3_600.0  # seconds, more than any time limit: the deadline ends a slow construction


class TimeIsUpError(SamplerError):
    """The time limit of the whole check is over."""


class EnoughError(SamplerError):
    """Ends a call after its seconds are over.

    Attributes:
        timesteps: Timesteps of the call.
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__("the time for this is over")
        self.timesteps = timesteps


@dataclass(frozen=True)
class CheckSetup:
    """The limits of a check.

    Attributes:
        deadline: End of the check, by `time.monotonic`.
        step_timeout: Longest time of a reset, an action or a timestep, in seconds.
        seed: Source of all seeds.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
        watch: Called now and then with the number of timesteps so far.
    """

    deadline: float
    step_timeout: float
    seed: int
    max_episode_length: int | None
    watch: Callable[[int], Any]

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())

    def sampler(self, agent: Any, env: EnvUpdate, facts: Facts | None = None, **options: Any) -> MultiprocessingSampler:
        """Return a sampler with a single worker, which is not replaced after a failure.

        Raises:
            TimeIsUpError: No time is left.
            SerializationError: The environment or the agent cannot be pickled.
        """
        if not self.seconds_left:
            raise TimeIsUpError("no time is left")
        if facts is not None and facts.n_slots is not None:
            options = {"worker_class": VecWorker, "worker_args": {"n_envs": facts.n_slots}, **options}
        elif waits(agent, facts):
            options = {"worker_args": {"in_flight": 1}, **options}
        elif is_agent(agent) and not acts_alone(as_agent(agent)):
            options = {"worker_class": VecWorker, **options}
        defaults = {
            "n_workers": 1,
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "check": None,
            "fingerprint": None,
            "max_restarts": 0,
            "step_timeout": self.step_timeout,
            "limits": Limits(
                close_timeout=_CLOSING,
                construction_timeout=max(self.step_timeout, self.seconds_left, _CONSTRUCTION),
            ),
        }
        return MultiprocessingSampler(agent, env, **{**defaults, **options})

    def guard(self, seconds: float | None = None) -> Callable[[Snapshot], None]:
        """Return a `progress` argument that ends a call when the time is over, or after some seconds.

        A hang without progress is left to the sampler to detect.
        """
        before = 0

        def look(snapshot: Snapshot) -> None:
            nonlocal before
            goes_on, before = snapshot.n_timesteps > before and not snapshot.complete, snapshot.n_timesteps
            if not snapshot.complete and monotonic() > self.deadline + _GRACE:
                raise TimeIsUpError("the time limit is reached")
            if goes_on and seconds is not None and snapshot.seconds > seconds:
                raise EnoughError(snapshot.n_timesteps)
            self.watch(snapshot.n_timesteps)

        return look


@contextlib.contextmanager
def _closing(sampler: MultiprocessingSampler) -> Iterator[MultiprocessingSampler]:
    """Yield a sampler, and close it afterwards, without errors: closing environments has a check of its own."""
    try:
        yield sampler
    finally:
        with contextlib.suppress(WorkerError):
            sampler.close()


class _Apart(EnvUpdate):
    """Makes an environment, and calls a function with it as a timestep."""

    def __init__(self, env: EnvUpdate, function: Callable[[Any], Any]) -> None:
        self.env, self.function = env, function

    def __call__(self, old_env: Any) -> Any:
        del old_env
        began = perf_counter()
        env = ordinary(apply_any_env_update(self.env, None, several=True, waits=True))
        return _Called(env, self.function, perf_counter() - began)


class _Called(gymnasium.Env[Any, Any]):
    observation_space = action_space = spaces.Discrete(1)

    def __init__(self, made: Any, function: Callable[[Any], Any], seconds: float) -> None:
        self._made, self._function, self._seconds = made, function, seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del seed, options
        return 0, {}

    def step(self, action: Any) -> Any:
        del action
        result = dumps_by_value((self._seconds, self._function(self._made)))
        # The result travels as bytes in an array, which samplers do not interpret.
        return 0, 0.0, True, False, {_RESULT: np.frombuffer(result, np.uint8)}

    def close(self) -> None:
        """Close the environment without errors: closing has a check of its own."""
        with contextlib.suppress(Exception, SystemExit):
            self._made.close()


def call_apart(function: Callable[[Any], Any], env: EnvUpdate, limits: CheckSetup) -> tuple[float, Any]:
    """Call a function with an environment, in a separate process.

    Args:
        function: The function, which must be picklable.
        env: The environment.
        limits: The limits of the check.

    Returns:
        The seconds of making the environment, and the function's result.

    Raises:
        TimeIsUpError: The time limit of the check is over.
        WorkerError: Making the environment failed, or the function raised, or its process died or hung.
        SerializationError: The environment cannot be pickled.
    """
    with _closing(limits.sampler("random", _Apart(env, function), max_episode_length=None)) as sampler:
        batch = sampler.obtain_trajectories(1, progress=limits.guard())
    seconds, result = pickle.loads(batch.env_infos[_RESULT][0].tobytes())
    return seconds, result


@dataclass(frozen=True)
class Facts:
    """Facts of an environment.

    Attributes:
        name: Its name.
        spaces: Observation space and action space of a single environment.
        n_slots: Number of environments of a vector environment; None otherwise.
        several: Whether it has several agents.
        time_limit: Timesteps after which it truncates; None if unknown.
        wrappers: The finding on its wrappers.
        has_masks: Whether it has a method `action_masks`.
        waits: Whether it is asynchronous.
        is_refused: Whether samplers refuse its wrappers.
    """

    name: str
    spaces: tuple[Any, Any]
    n_slots: int | None
    several: bool
    time_limit: int | None
    wrappers: Finding
    has_masks: bool = False
    waits: bool = False
    is_refused: bool = False


def waits(agent: Any, facts: Facts | None) -> bool:
    """Return whether environment or agent are asynchronous."""
    return (facts is not None and facts.waits) or agent_waits(agent)


def facts_of(env: Any) -> Facts:
    """Return the facts of an environment; an asynchronous environment is passed as an `OrdinaryEnv`."""
    is_vector = isinstance(env, VectorEnv)
    parts = (env.single_observation_space, env.single_action_space) if is_vector else None
    limits = [layer._max_episode_steps for layer in chain_of(env) if isinstance(layer, TimeLimit)]
    stated = getattr(getattr(env.unwrapped, "spec", None), "max_episode_steps", None) if is_vector else None
    limit = min([*limits, *([stated] if isinstance(stated, int) else [])], default=None)
    several = agents_of(env) is not None
    has_masks = has_masks_by_call(env) if is_vector else not several and method_of(env) is not None
    facts = Facts(
        name_of_env(env), parts or (env.observation_space, env.action_space), env.num_envs if is_vector else None,
        several, limit, finding_of_wrappers(env), has_masks,
    )  # fmt: skip
    if not isinstance(env, OrdinaryEnv):
        return facts
    what, _, advice = env.refusal.partition(". ")
    wrappers = Finding("wrappers", "failure", what, advice) if what else facts.wrappers
    return replace(facts, wrappers=wrappers, waits=True, is_refused=bool(what))


def close_after_use(env: Any) -> None:
    env.reset()
    env.close()


@dataclass
class Ran:
    """The result of a run of an environment in a sampler.

    Attributes:
        batches: The batches.
        endless: Length of an unfinished trajectory; None if all ended.
        error: The error that ended the run, or None.
        stats: The sampler's statistics.
    """

    batches: list[Any] = field(default_factory=list)
    endless: int | None = None
    error: SamplerError | None = None
    stats: Any = None

    @property
    def lengths(self) -> list[int]:
        """Lengths of the trajectories that ended, or would be truncated by samplers."""
        lengths = [length for batch in self.batches for length in batch.lengths.tolist()]
        return [length for length in lengths if length != self.endless]

    @property
    def n_terminated(self) -> int:
        return sum(int(batch.terminated.sum()) for batch in self.batches)

    @property
    def timesteps(self) -> int:
        """Number of timesteps, at least."""
        return max(sum(int(batch.n_timesteps) for batch in self.batches), self.endless or 0)

    @property
    def step_seconds(self) -> float:
        """Seconds per timestep, about."""
        seconds = sum(float(batch.stats.seconds) for batch in self.batches)
        return max(seconds / max(1, self.timesteps), 1e-9)

    @property
    def n_bad_rewards(self) -> int:
        """Number of rewards that are not finite, those of all agents included."""
        batches = [each for batch in self.batches for each in getattr(batch, "policies", {"": batch}).values()]
        return sum(int((~np.isfinite(batch.rewards)).sum()) for batch in batches)


def run(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, within: int, seconds: float) -> Ran:
    """Run trajectories, one per call; of a vector environment, one per call in each of its environments.

    Raises:
        TimeIsUpError: The time limit of the check is over.
        SerializationError: The environment or the agent cannot be pickled.
    """
    ran, until, n_slots = Ran(), monotonic() + seconds, facts.n_slots or 1
    longest = limits.max_episode_length
    if facts.n_slots is None:  # vector environments truncate their own trajectories
        longest = min(within, longest or within)
    sampler = limits.sampler(agent, env, facts, check="warn", max_episode_length=longest)
    with quiet(), _closing(sampler):
        try:
            for _ in range(_TRAJECTORIES if facts.n_slots is None else 1):
                batch = sampler.obtain_trajectories(n_slots, progress=limits.guard(seconds))
                ran.batches.append(batch)
                cut = facts.n_slots is None and within != limits.max_episode_length and not batch.terminated.all()
                if cut and batch.lengths.max() == within:
                    ran.endless = within
                if ran.endless is not None or monotonic() >= until:
                    break
        except EnoughError as error:
            ran.endless = error.timesteps // n_slots
        except TimeIsUpError:
            raise
        except SamplerError as error:
            ran.error = error
        finally:
            ran.stats = sampler.stats
    return ran


def finding_of_masks(agent: Any, facts: Facts, ran: Ran) -> Finding | None:
    """Return whether the environment's masks of actions reach the agent; None without any sign of masks."""
    batches = [each for batch in ran.batches for each in getattr(batch, "policies", {"": batch}).values()]
    seen = any(isinstance(each.observations, dict) and ACTION_MASK in each.observations for each in batches)
    told = any(ACTION_MASK in each.env_infos or ACTION_MASK in each.episode_infos for each in batches)
    where = {"observations": seen, "infos": told, "action_masks()": facts.has_masks}
    places = " and ".join(place for place, has in where.items() if has)
    if not places:
        return None
    given = with_policies(agent, None)
    agents = given.agents if isinstance(given, Policies) else {"": as_agent(given)}
    lacking = [name for name, it in agents.items() if not (takes_masks(it) or takes_masks(it, together=True))]
    if not lacking:
        return Finding("masks", "pass", f"the environment's masks of actions ({places}) reach the agent")
    who = f"the agent{' ' if any(lacking) else ''}{', '.join(lacking)}"
    what = f"the environment has masks of actions ({places}), and {who} takes no action_mask"
    if seen:
        return Finding("masks", "pass", f"{what}: it sees them only in its observations")
    return Finding(
        "masks", "warning", f"{what}: it may choose forbidden actions",
        "Let get_action take the keyword action_mask, and get_actions action_masks: see streamsampler/docs/agents.md",
    )  # fmt: skip


def run_twice(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float) -> tuple[Finding, Any]:
    """Run trajectories twice in the same process; return the finding, and a batch for `run_elsewhere`.

    Raises:
        SamplerError: User code raised, or its process died or hung, or no time is left.
    """
    n, guard = _COMPARED * (facts.n_slots or 1), limits.guard(seconds)
    with _closing(limits.sampler(agent, env, facts)) as sampler:
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
    with _closing(limits.sampler(agent, env, facts, n_workers=2, start_method="spawn")) as sampler:
        there = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared("processes", "in a new process, and after other trajectories,", "in other processes", here, there)


def run_in_flight(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories at the same time in one process, and compare them with a batch; see `run_twice`."""
    sampler = limits.sampler(agent, env, facts, worker_args={"in_flight": len(here)})
    with _closing(sampler):
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


_ROWS = 8, 32


def probe_rows(agent: Any, spaces: tuple[Any, Any], env: Any) -> Finding:
    """Probe whether the rows of an agent's batches depend on one another."""
    del env
    agent = as_agent(agent)
    if not callable(getattr(agent, "get_actions", None)):
        return Finding("rows", "pass", "the agent has no get_actions: VecWorker asks it for one action at a time")
    give_spaces(agent, *spaces)
    try:
        says, conclusive = is_row_independent(agent), True
        for n_rows in _ROWS:
            pool = AgentPool(hint=False)
            pool.update(agent, None)
            with quiet():
                conclusive = pool.probe(spaces, n_rows).conclusive and conclusive
    except UsageError as error:
        what, _, advice = str(error).partition(". ")
        if getattr(agent, "row_independent", False) or "row_independent of the agent" in what:
            return Finding("rows", "failure", what, advice)
        what = "rows of batches depend on one another, or on draws: VecWorker runs in blocks"
        return Finding("rows", "pass", what)
    alone = f"each row of batches of {' and '.join(map(str, _ROWS))} depends on this row alone"
    if says:
        return Finding("rows", "pass", f"{alone}, as it says")
    if not conclusive:
        return Finding("rows", "pass", "VecWorker runs trajectories in blocks")
    return Finding(
        "rows", "pass", f"{alone}, but the agent does not say so",
        "With row_independent = True VecWorker runs trajectories in lanes, which is faster, if that holds for all "
        "parameters",
    )  # fmt: skip
