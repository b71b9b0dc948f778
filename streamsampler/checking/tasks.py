"""Run an environment for a check in a sampler of one worker, which is killed if it hangs, and may die."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from streamsampler.checking.findings import Finding, finding_of_wrappers, not_checked
from streamsampler.checking.looking import SEEN, LookedAt, Seen
from streamsampler.data.differences import Difference, first_difference, shown
from streamsampler.data.words import count
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import EnvUpdate, apply_any_env_update
from streamsampler.errors import CheckMode, DataError, NotReproducibleError, RolloutError, SamplerError, WorkerError
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.samplers.progress import Snapshot
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import chain_of
from streamsampler.workers.logs import quiet
from streamsampler.workers.purity import WAYS_OUT
from streamsampler.workers.vec.worker import VecWorker

_RESULT = "result"
_GRACE = 10.0
"""Seconds after the deadline at which a task is ended. It looks at its own limit between two timesteps, and ends
before, unless the machine is busy or its environment takes that long to make."""
_CLOSING = 2.0  # seconds: what does not close is found by closing it apart
_CONSTRUCTION = 3_600.0  # seconds, more than any time limit: the deadline ends what takes too long to make


class TimeIsUpError(SamplerError):
    """The time limit of the whole check is reached."""


class EnoughError(SamplerError):
    """Ends a call after the seconds that it was given."""


@dataclass(frozen=True)
class Limits:
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

    def sampler(self, agent: Any, env: EnvUpdate, n_slots: int | None = None, **options: Any) -> MultiprocessingSampler:
        """Return a sampler with one worker, which is not replaced where it fails.

        Args:
            agent: The agent, as samplers take it.
            env: The environment.
            n_slots: How many environments a vector environment has; None for one that is none.
            **options: Other arguments of the sampler.

        Raises:
            TimeIsUpError: No time is left.
            SerializationError: The environment or the agent cannot be pickled.
        """
        if not self.seconds_left:
            raise TimeIsUpError("no time is left")
        if n_slots is not None:
            options = {"worker_class": VecWorker, "worker_args": {"n_envs": n_slots}, **options}
        defaults = {
            "n_workers": 1,
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "fingerprint": None,
            "max_restarts": 0,
            "step_timeout": self.step_timeout,
            "close_timeout": _CLOSING,
            "construction_timeout": max(self.step_timeout, self.seconds_left, _CONSTRUCTION),
        }
        return MultiprocessingSampler(agent, env, **{**defaults, **options})

    def guard(self, seconds: float | None = None) -> Callable[[Snapshot], None]:
        """Return a `progress` argument that ends a call when the time is up, or after so many seconds.

        It lets what makes no progress hang, until the sampler finds that out.
        """
        before = 0

        def look(snapshot: Snapshot) -> None:
            nonlocal before
            goes_on, before = snapshot.timesteps > before and not snapshot.complete, snapshot.timesteps
            if not snapshot.complete and monotonic() > self.deadline + _GRACE:
                raise TimeIsUpError("the time limit is reached")
            if goes_on and seconds is not None and snapshot.seconds > seconds:
                raise EnoughError(f"{snapshot.timesteps}")
            self.watch(snapshot.timesteps)

        return look


@contextlib.contextmanager
def _closing(sampler: MultiprocessingSampler) -> Iterator[None]:
    """Close a sampler in the end; that its environment cannot be closed is found apart."""
    try:
        yield
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
        env = apply_any_env_update(self.env, None, several=True)
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
        result = cloudpickle.dumps((self._seconds, self._function(self._made)))
        # As bytes in an array: nothing is made of what is in it.
        return 0, 0.0, True, False, {_RESULT: np.frombuffer(result, np.uint8)}

    def close(self) -> None:
        """Close it; what that raises is found by the function that closes it."""
        with contextlib.suppress(Exception, SystemExit):
            self._made.close()


def call_apart(function: Callable[[Any], Any], env: EnvUpdate, limits: Limits) -> tuple[float, Any]:
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
    sampler = limits.sampler("random", _Apart(env, function), check=None, max_episode_length=None)
    with _closing(sampler):
        batch = sampler.obtain_trajectories(1, progress=limits.guard())
    seconds, result = cloudpickle.loads(batch.env_infos[_RESULT][0].tobytes())
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
    """

    name: str
    spaces: tuple[Any, Any]
    n_slots: int | None
    several: bool
    time_limit: int | None
    wrappers: Finding


def facts_of(env: Any) -> Facts:
    """Return what an environment says of itself."""
    is_vector = isinstance(env, VectorEnv)
    parts = (env.single_observation_space, env.single_action_space) if is_vector else None
    limits = [layer._max_episode_steps for layer in chain_of(env) if isinstance(layer, TimeLimit)]
    stated = getattr(getattr(env.unwrapped, "spec", None), "max_episode_steps", None) if is_vector else None
    limit = min([*limits, *([stated] if isinstance(stated, int) else [])], default=None)
    several = isinstance(env, MultiAgentEnv)
    return Facts(
        name_of_env(env), parts or (env.observation_space, env.action_space), env.num_envs if is_vector else None,
        several, limit, finding_of_wrappers(env),
    )  # fmt: skip


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
        seen: What was seen of it besides.
        error: What ended it; None where nothing did.
        stats: The sampler's.
    """

    batches: list[Any] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    error: SamplerError | None = None
    stats: Any = None

    @property
    def n_bad_rewards(self) -> int:
        """How many rewards are no finite numbers; of several agents, those of each."""
        batches = [each for batch in self.batches for each in getattr(batch, "policies", {"": batch}).values()]
        return sum(int((~np.isfinite(batch.rewards)).sum()) for batch in batches)


def run_looked_at(
    agent: Any, looked_at: LookedAt, facts: Facts, limits: Limits, n_trajectories: int, check: Any = "warn"
) -> Ran:
    """Run trajectories, one in each call, of a vector environment one in each of its environments; more to measure.

    Args:
        agent: The agent, as samplers take it.
        looked_at: The environment.
        facts: What it says of itself.
        limits: What bounds it.
        n_trajectories: How many are run, if there is time.
        check: The sampler's argument.

    Raises:
        TimeIsUpError: The time limit of the check is reached.
        SerializationError: The environment or the agent cannot be pickled.
    """
    ran, until = Ran(), monotonic() + looked_at.seconds
    n, left = 1, 1 if facts.n_slots else n_trajectories
    is_plain = facts.n_slots is None and not facts.several
    lengths = [length for length in (looked_at.within, looked_at.longest) if length is not None]
    longest = limits.max_episode_length if facts.n_slots is not None else min(lengths)
    guard = limits.guard(None if is_plain else looked_at.seconds)
    env = looked_at if is_plain else looked_at.env
    sampler = limits.sampler(agent, env, facts.n_slots, check=check, max_episode_length=longest)
    with quiet(), _closing(sampler):
        try:
            while left > 0:
                began = monotonic()
                batch = sampler.obtain_trajectories(facts.n_slots or n, progress=guard)
                ran.batches.append(batch)
                ran.seen = batch.env_infos[SEEN][-1] if is_plain else _counted(ran.batches, looked_at)
                if ran.seen.endless is not None or monotonic() >= until:
                    break
                left -= n
                if not looked_at.watches and monotonic() - began < looked_at.seconds / 10:
                    n = min(2 * n, left)
        except EnoughError as error:
            ran.seen.endless = int(str(error)) // (facts.n_slots or 1)
            ran.seen.timesteps += int(str(error))
        except TimeIsUpError:
            raise
        except SamplerError as error:
            ran.error = error
        finally:
            ran.stats = sampler.stats
    return ran


def _counted(batches: Sequence[Any], looked_at: LookedAt) -> Seen:
    """Return what batches say of trajectories that no wrapper looked at."""
    seen = Seen()
    for batch in batches:
        seen.wall_seconds += batch.stats.seconds
        for length, terminated in zip(batch.lengths.tolist(), batch.terminated, strict=True):
            seen.timesteps += length
            if terminated or length != looked_at.within or length == looked_at.longest:
                seen.add(length)
            else:
                seen.endless = length
            if terminated or length not in (looked_at.within, looked_at.longest):
                seen.ended["terminated" if terminated else "truncated"] += 1
    return seen


# ----------------------------------------------------------------------
# Run trajectories again: after another one, and in other processes.


_TRAJECTORIES = 3
_AGAIN = "the same seed, before and after another trajectory"


class _Heard(logging.Handler):
    """Keeps what samplers warn of."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    logger, handler = logging.getLogger("streamsampler"), _Heard()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def run_twice(
    agent: Any, env: EnvUpdate, n_slots: int | None, limits: Limits, seconds: float, mode: CheckMode = "error"
) -> tuple[Finding, Any]:
    """Run a trajectory before and after another one, and return what was found, and a batch for `run_elsewhere`.

    Args:
        agent: The agent, as samplers take it.
        env: The environment.
        n_slots: How many environments a vector environment has; None for one that is none.
        limits: What bounds it.
        seconds: After so long it is ended.
        mode: The sampler's argument `check`: "warn", which takes less time for it, where "error" refuses the data.

    Raises:
        SamplerError: Something raised, or its process died or hung, or there is no time.
    """
    sampler = limits.sampler(agent, env, n_slots, check=mode)
    with _heard() as warned, _closing(sampler):
        try:
            batch = sampler.obtain_trajectories(_TRAJECTORIES * (n_slots or 1), progress=limits.guard(seconds))
        except NotReproducibleError as error:
            return _of_difference(error.what.partition(": ")[2]), None
        except RolloutError as error:
            if mode == "warn" or not isinstance(error.original, DataError):
                raise
            return run_twice(agent, env, n_slots, limits, seconds, "warn")
        n_timesteps = sampler.stats.checked_timesteps
    if different := [text for text in warned if "before and after another trajectory" in text]:
        return _of_difference(different[0]), None
    if not n_timesteps:
        return not_checked("seed", "no trajectory could be run twice"), batch
    if unstable := [text for text in warned if "run from the same seed" in text]:
        return Finding("seed", "warning", unstable[0], "Leave it out of the infos, or ignore it in batches"), batch
    compared = count(int(batch.lengths[: n_slots or 1].sum()), "timestep")
    return Finding("seed", "pass", f"{compared} came out the same from {_AGAIN}"), batch


def _of_difference(text: str) -> Finding:
    for advice in WAYS_OUT.values():
        what, found, _ = text.partition(f". {advice}")
        if found:
            return Finding("seed", "failure", what, advice)
    return not_checked("seed", "see wrappers")


def run_elsewhere(
    agent: Any, env: EnvUpdate, n_slots: int | None, limits: Limits, seconds: float, here: Any
) -> Finding:
    """Run trajectories in two other processes, and compare them with those of a batch.

    Args:
        agent: As of `run_twice`, which the next ones are, too.
        env: The environment.
        n_slots: How many environments a vector environment has.
        limits: What bounds it.
        seconds: After so long it is ended.
        here: The batch.

    Raises:
        SamplerError: Something raised, or its process died or hung, or there is no time.
    """
    # Not by the fork server, all of whose children have one order of sets.
    sampler = limits.sampler(agent, env, n_slots, check=None, n_workers=2, start_method="spawn")
    with _closing(sampler):
        there = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    for number in range(len(here)):
        if difference := first_difference(here[number], there[number]):
            return _of_processes(number, difference)
    compared = count(int(here.lengths.sum()), "timestep")
    return Finding("processes", "pass", f"{compared} came out the same in other processes and order")


def _of_processes(number: int, difference: Difference) -> Finding:
    culprit = "agent" if difference.what == "action" else "environment"
    was, now = shown(difference.recorded), shown(difference.replayed)
    return Finding(
        "processes", "failure",
        f"in a new process, and after other trajectories, trajectory {number} came out differently: "
        f"its {difference.what}{difference.path} of timestep {difference.timestep} was {was} and then {now}: batches "
        "differ from run to run",
        "It depends on something of the process or its past: the order of a set of strings (sort it), hash(), id(), "
        "the time, the process id, a class attribute, a file or a server that trajectories change; or on a trajectory "
        f"long before. {WAYS_OUT[culprit]}",
    )  # fmt: skip
