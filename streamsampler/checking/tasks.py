"""Run an environment for a check in a sampler of one worker, which is killed if it hangs, and may die."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import env_checker
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from streamsampler.agents.base import acts_alone, as_agent, give_spaces, is_agent, is_row_independent, takes_masks
from streamsampler.agents.masks import ACTION_MASK, method_of
from streamsampler.agents.policies import Policies, with_policies
from streamsampler.checking.report import Finding, finding_of_wrappers, not_checked
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import SamplerError, UsageError, WorkerError
from streamsampler.core.extras import install_hint
from streamsampler.core.progress import Snapshot
from streamsampler.core.words import count
from streamsampler.data.differences import first_difference, shown
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import EnvUpdate, apply_any_env_update
from streamsampler.protocol.limits import Limits
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.workers.explain import name_of_env, summary_of, traceback_of
from streamsampler.workers.known_wrappers import chain_of
from streamsampler.workers.logs import quiet
from streamsampler.workers.masks import has_masks_by_call
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.worker import VecWorker

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
    """

    name: str
    spaces: tuple[Any, Any]
    n_slots: int | None
    several: bool
    time_limit: int | None
    wrappers: Finding
    has_masks: bool = False


def facts_of(env: Any) -> Facts:
    """Return what an environment says of itself."""
    is_vector = isinstance(env, VectorEnv)
    parts = (env.single_observation_space, env.single_action_space) if is_vector else None
    limits = [layer._max_episode_steps for layer in chain_of(env) if isinstance(layer, TimeLimit)]
    stated = getattr(getattr(env.unwrapped, "spec", None), "max_episode_steps", None) if is_vector else None
    limit = min([*limits, *([stated] if isinstance(stated, int) else [])], default=None)
    several = isinstance(env, MultiAgentEnv)
    has_masks = has_masks_by_call(env) if is_vector else not several and method_of(env) is not None
    return Facts(
        name_of_env(env), parts or (env.observation_space, env.action_space), env.num_envs if is_vector else None,
        several, limit, finding_of_wrappers(env), has_masks,
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
    sampler = limits.sampler(agent, env, facts.n_slots, check="warn", max_episode_length=longest)
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
    with _closing(limits.sampler(agent, env, facts.n_slots)) as sampler:
        batch = sampler.obtain_trajectories(n, progress=guard)
        if facts.n_slots is not None:  # many of them take one seed for all that they have
            return not_checked("seed", "of vector environments other processes are compared alone"), batch
        again = sampler.obtain_trajectories(n, seeds=batch.seeds, progress=guard)
    return _compared("seed", "run again after others", "the same seed, before and after others", batch, again), batch


def run_elsewhere(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, seconds: float, here: Any) -> Finding:
    """Run trajectories in two other processes, and compare them with those of a batch; see `run_twice`."""
    # Not by the fork server, all of whose children have one order of sets.
    with _closing(limits.sampler(agent, env, facts.n_slots, n_workers=2, start_method="spawn")) as sampler:
        there = sampler.obtain_trajectories(len(here), progress=limits.guard(seconds))
    return _compared("processes", "in a new process, and after other trajectories,", "other processes", here, there)


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
                f"{_OF_PROCESSES if name == 'processes' else ''}{_WAYS_OUT[difference.what == 'action']}",
            )  # fmt: skip
    compared = count(int(first.lengths.sum()), "timestep")
    return Finding(name, "pass", f"{compared} came out the same from {passed}")


_OF_PROCESSES = (
    "It depends on something of the process or its past: id(), the time, the process id, a class attribute, a file or "
    "a server that trajectories change; or on a trajectory before. "
)
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
# Let others check: Gymnasium's checker, PettingZoo's tests, and the probe of whether an agent's rows are independent.
#
# What the first two find are warnings here: what samplers need is seen where trajectories are run.


_CYCLES = 100  # steps of each of PettingZoo's tests
_ROWS = 8, 32
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_NO_FAULT = {
    "Gymnasium": (
        "minimum value is -infinity", "maximum value is infinity", "symmetric and normalized", "render mode",
        "is different from the unwrapped version", "Not able to test",
    ),
    "PettingZoo": (
        "possible_agents", "render() method", "all zeros", "more than 3 dimensions", "different classes",
        "different shapes", "different number of dimensions", "different observation space", "different action space",
        "class of observation spaces", "class of action spaces", "minimum value is -infinity",
        "maximum value is infinity",
    ),
}  # fmt: skip
"""What they warn of, and is a matter of taste, or about what samplers do not use."""

_ADVICE = {
    "Gymnasium": "Gymnasium's documentation of environments says what it expects: help(gymnasium.Env)",
    "PettingZoo": (
        "PettingZoo's documentation says what it expects: help(pettingzoo.ParallelEnv), help(pettingzoo.AECEnv)"
    ),
}


_OF_BASES = (
    "Where a base class of PettingZoo's has the attribute, derive the environment from it: pettingzoo.ParallelEnv or "
    "AECEnv; or ignore this: samplers do without"
)


def run_gymnasium_checker(env: Any) -> list[Finding]:
    """Run `gymnasium.utils.env_checker.check_env` without rendering: a dozen resets and steps."""

    def check_env() -> None:
        env_checker.check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)

    return _findings_of("Gymnasium", "its checker", check_env)


def run_pettingzoo_tests(env: Any) -> list[Finding]:
    """Run PettingZoo's `parallel_api_test` or `api_test`: a few resets, and some hundred steps."""
    try:
        from pettingzoo.test import api_test, parallel_api_test
    except ImportError:
        return [not_checked("PettingZoo", "it is not installed, and has tests of its own", install_hint("pettingzoo"))]
    test: Any = api_test if env.takes_turns else parallel_api_test
    return _findings_of("PettingZoo", test.__name__, lambda: test(env.env, _CYCLES))


def _findings_of(name: str, what: str, run: Callable[[], Any]) -> list[Finding]:
    """Run a test, and make findings of what it raises and warns of."""
    found: list[Finding] = []
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            run()
        except AssertionError as error:
            why = _plain(str(error)) or traceback.extract_tb(error.__traceback__)[-1].line or "an assertion"
            advice = "Samplers copy what they record; others must, too" if "share an object" in why else _ADVICE[name]
            found.append(Finding(name, "warning", f"{what} finds: {why}", advice, traceback_of(error)))
        except (Exception, SystemExit) as error:
            text = f"{what} ended with {_plain(summary_of(error))}"
            advice = _OF_BASES if name == "PettingZoo" and isinstance(error, AttributeError) else _ADVICE[name]
            found.append(Finding(name, "warning", text, advice, traceback_of(error)))
    texts = dict.fromkeys(_plain(str(each.message)) for each in warned if issubclass(each.category, UserWarning))
    said = [text for text in texts if not any(part in text for part in _NO_FAULT[name])]
    found += [Finding(name, "warning", f"{what} warns: {text}", _ADVICE[name]) for text in said]
    return found or [Finding(name, "pass", f"{what} finds nothing")]


def _plain(text: str) -> str:
    return " ".join(_COLOUR.sub("", text).replace("WARN: ", "", 1).split())


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
