"""Run an environment for a check in a sampler of one worker, which is killed if it hangs, and may die."""

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
"""The name of the finding of trajectories that run at the same time in one process."""

_TRAJECTORIES, _COMPARED = 20, 3
_RESULT = "result"
_GRACE = 10.0
"""Seconds after the deadline at which a task is ended. It looks at its own limit between two timesteps, and ends
before, unless the machine is busy or its environment takes that long to make."""
_CLOSING = 2.0  # seconds: what does not close is found by closing it apart
_CONSTRUCTION = 3_600.0  # seconds, more than any time limit: the deadline ends what takes too long to make


class TimeIsUpError(SamplerError):
    """The time limit of the whole check is reached."""


class EnoughError(SamplerError):
    """Ends a call after the seconds that it was given.

    Attributes:
        timesteps: How many there were.
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__("the time for this is over")
        self.timesteps = timesteps


@dataclass(frozen=True)
class CheckSetup:
    """What bounds a check.

    Attributes:
        deadline: When all of it is to end, as `time.monotonic` says it.
        step_timeout: Seconds that a reset, an action or a timestep may take.
        seed: What all is derived from.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
        watch: Called now and then with the timesteps so far.
    """

    deadline: float
    step_timeout: float
    seed: int
    max_episode_length: int | None
    watch: Callable[[int], Any]

    @property
    def seconds_left(self) -> float:
        """How many seconds are left."""
        return max(0.0, self.deadline - monotonic())

    def sampler(self, agent: Any, env: EnvUpdate, facts: Facts | None = None, **options: Any) -> MultiprocessingSampler:
        """Return a sampler with one worker, which is not replaced where it fails.

        Args:
            agent: The agent, as samplers take it.
            env: The environment.
            facts: What the environment says of itself; None for an ordinary one.
            **options: Other arguments of the sampler.

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
        """Return a `progress` argument that ends a call when the time is up, or after so many seconds.

        It lets what makes no progress hang, until the sampler finds that out.
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
    """Yield a sampler, and close it in the end; that its environment cannot be closed is found apart."""
    try:
        yield sampler
    finally:
        with contextlib.suppress(WorkerError):
            sampler.close()


# ----------------------------------------------------------------------
# Call a function with an environment, in a process of its own.


class _Apart(EnvUpdate):
    """Makes an environment, and hands it to a function in the place of a timestep."""

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
        # As bytes in an array: nothing is made of what is in it.
        return 0, 0.0, True, False, {_RESULT: np.frombuffer(result, np.uint8)}

    def close(self) -> None:
        """Close it; what that raises is found by the function that closes it."""
        with contextlib.suppress(Exception, SystemExit):
            self._made.close()


def call_apart(function: Callable[[Any], Any], env: EnvUpdate, limits: CheckSetup) -> tuple[float, Any]:
    """Call a function with an environment in a process of its own.

    Args:
        function: What to do with the environment; it can be pickled.
        env: The environment.
        limits: What bounds it.

    Returns:
        What it took to make the environment, in seconds, and what the function returned.

    Raises:
        TimeIsUpError: The time limit of the check is reached.
        WorkerError: The environment cannot be made, or the function raised, or its process died or hung.
        SerializationError: The environment cannot be pickled.
    """
    with _closing(limits.sampler("random", _Apart(env, function), max_episode_length=None)) as sampler:
        batch = sampler.obtain_trajectories(1, progress=limits.guard())
    seconds, result = pickle.loads(batch.env_infos[_RESULT][0].tobytes())
    return seconds, result


@dataclass(frozen=True)
class Facts:
    """What an environment says of itself.

    Attributes:
        name: What it is called.
        spaces: Its observation and action space, of one environment.
        n_slots: How many environments it has side by side; None for one that is no vector environment.
        several: Whether it has several agents.
        time_limit: The timesteps after which it truncates; None where it does not say.
        wrappers: What was found of its wrappers.
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
    """Return whether an environment or an agent are asynchronous."""
    return (facts is not None and facts.waits) or agent_waits(agent)


def facts_of(env: Any) -> Facts:
    """Return what an environment says of itself; an asynchronous one as an `OrdinaryEnv`."""
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
    """Reset an environment, and close it."""
    env.reset()
    env.close()


# ----------------------------------------------------------------------
# Run an environment.


@dataclass
class Ran:
    """What a sampler obtained of an environment.

    Attributes:
        batches: The batches.
        endless: The length of a trajectory that did not end; None where all ended.
        error: What ended it; None where nothing did.
        stats: The sampler's.
    """

    batches: list[Any] = field(default_factory=list)
    endless: int | None = None
    error: SamplerError | None = None
    stats: Any = None

    @property
    def lengths(self) -> list[int]:
        """The lengths of the trajectories that ended, or are going to be truncated by samplers."""
        lengths = [length for batch in self.batches for length in batch.lengths.tolist()]
        return [length for length in lengths if length != self.endless]

    @property
    def n_terminated(self) -> int:
        """How many trajectories were terminated."""
        return sum(int(batch.terminated.sum()) for batch in self.batches)

    @property
    def timesteps(self) -> int:
        """How many timesteps were run, at least."""
        return max(sum(int(batch.n_timesteps) for batch in self.batches), self.endless or 0)

    @property
    def step_seconds(self) -> float:
        """What a timestep took, about."""
        seconds = sum(float(batch.stats.seconds) for batch in self.batches)
        return max(seconds / max(1, self.timesteps), 1e-9)

    @property
    def n_bad_rewards(self) -> int:
        """How many rewards are no finite numbers; of several agents, those of each."""
        batches = [each for batch in self.batches for each in getattr(batch, "policies", {"": batch}).values()]
        return sum(int((~np.isfinite(batch.rewards)).sum()) for batch in batches)


def run(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, within: int, seconds: float) -> Ran:
    """Run trajectories, one in each call; of a vector environment one in each of its environments.

    Args:
        agent: The agent, as samplers take it.
        env: The environment.
        facts: What it says of itself.
        limits: What bounds it.
        within: Timesteps within which a trajectory is to end.
        seconds: After so long it is ended.

    Raises:
        TimeIsUpError: The time limit of the check is reached.
        SerializationError: The environment or the agent cannot be pickled.
    """
    ran, until, n_slots = Ran(), monotonic() + seconds, facts.n_slots or 1
    longest = limits.max_episode_length
    if facts.n_slots is None:  # vector environments truncate theirs themselves
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
    """Return whether the masks of an environment's actions reach an agent; None where nothing says that there are any.

    Args:
        agent: The agent, as samplers take it.
        facts: What the environment says of itself.
        ran: What was obtained with the agent.
    """
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
        return Finding("masks", "pass", f"{what}: it sees them in its observations alone")
    return Finding(
        "masks", "warning", f"{what}: it may choose actions that are not allowed",
        "Let get_action take the keyword action_mask, and get_actions action_masks: see streamsampler/docs/agents.md",
    )  # fmt: skip


# ----------------------------------------------------------------------
# Run trajectories again: after others, and in other processes.


def run_twice(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float) -> tuple[Finding, Any]:
    """Run trajectories twice in one process, and return what was found, and a batch for `run_elsewhere`.

    Args:
        agent: The agent, as samplers take it.
        env: The environment.
        facts: What it says of itself.
        limits: What bounds it.
        seconds: After so long it is ended.

    Raises:
        SamplerError: Something raised, or its process died or hung, or there is no time.
    """
    n, guard = _COMPARED * (facts.n_slots or 1), limits.guard(seconds)
    with _closing(limits.sampler(agent, env, facts)) as sampler:
        batch = sampler.obtain_trajectories(n, progress=guard)
        if facts.n_slots is not None:  # many of them take one seed for all that they have
            return not_checked("seed", "of vector environments other processes are compared alone"), batch
        again = sampler.obtain_trajectories(n, seeds=batch.seeds, progress=guard)
    return _compared("seed", "run again after others", "the same seed, before and after others", batch, again), batch


def run_elsewhere(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories in two other processes, and compare them with those of a batch; see `run_twice`."""
    # Not by the fork server, all of whose children have one order of sets.
    with _closing(limits.sampler(agent, env, facts, n_workers=2, start_method="spawn")) as sampler:
        there = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared("processes", "in a new process, and after other trajectories,", "other processes", here, there)


def run_in_flight(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories at the same time in one process, and compare them with those of a batch; see `run_twice`."""
    sampler = limits.sampler(agent, env, facts, worker_args={"in_flight": len(here)})
    with _closing(sampler):
        together = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared(IN_FLIGHT, "in flight together with others", "trajectories in flight together", here, together)


def _compared(name: str, how: str, passed: str, first: Any, second: Any) -> Finding:
    """Return whether two batches have the same trajectories.

    Args:
        name: What is checked.
        how: How the second batch was run.
        passed: Where trajectories come out the same.
        first: A batch.
        second: The other batch.
    """
    for number in range(len(first)):
        if difference := first_difference(first[number], second[number]):
            was, now = shown(difference.recorded), shown(difference.replayed)
            return Finding(
                name, "failure",
                f"{how} trajectory {number} came out differently: its {difference.what}{difference.path} of timestep "
                f"{difference.timestep} was {was} and then {now}: batches differ from run to run",
                f"{_ADVICE_BEFORE.get(name, '')}{_WAYS_OUT[difference.what == 'action']}",
            )  # fmt: skip
    compared = count(int(first.lengths.sum()), "timestep")
    return Finding(name, "pass", f"{compared} came out the same from {passed}")


_ADVICE_BEFORE = {
    "processes": "It depends on something of the process or its past: id(), the time, the process id, a class "
    "attribute, a file or a server that trajectories change; or on a trajectory before. ",
    IN_FLIGHT: "It depends on something that all environments or agents of a process have: a class attribute, a global "
    "variable, a session of a service, or an agent without a reset that remembers. ",
}
_WAYS_OUT = {
    True: (
        "The agent keeps something from one trajectory to the next, or draws from a generator that is not seeded: let "
        "its reset(seed=…), which is called at each trajectory's start, set back what it keeps and seed what it draws "
        "from; random, numpy.random and torch are seeded already"
    ),
    False: (
        "The environment or a wrapper keeps something from one trajectory to the next, or draws from a generator that "
        "is not seeded: let its reset set back what it keeps, and draw from self.np_random after "
        "super().reset(seed=seed); random, numpy.random and torch are seeded already"
    ),
}
"""What to do where a trajectory came out differently, by whether that was first seen in an action."""


# ----------------------------------------------------------------------
# Probe whether an agent's rows are independent.


_ROWS = 8, 32


def probe_rows(agent: Any, spaces: tuple[Any, Any], env: Any) -> Finding:
    """Probe whether the rows of an agent's batches depend on one another.

    Args:
        agent: The agent, as samplers take it.
        spaces: The observation space and the action space of one environment.
        env: The environment, which is not used.
    """
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
    alone = f"each row of batches of {' and '.join(map(str, _ROWS))} is computed from that row alone"
    if says:
        return Finding("rows", "pass", f"{alone}, as it says")
    if not conclusive:
        return Finding("rows", "pass", "VecWorker runs trajectories in blocks")
    return Finding(
        "rows", "pass", f"{alone}, but the agent does not say so",
        "With row_independent = True VecWorker runs trajectories in lanes, which is faster, if that holds for all "
        "parameters",
    )  # fmt: skip
