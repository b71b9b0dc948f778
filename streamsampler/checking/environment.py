"""Run an environment with random actions, and look at all that it returns."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from streamsampler.checking.findings import (
    Finding,
    finding_of_buffers,
    finding_of_draws,
    finding_of_endless,
    finding_of_ends,
    finding_of_infos,
    finding_of_observations,
    finding_of_rewards,
    finding_of_wrappers,
)
from streamsampler.checking.several_agents import RolloutOfSeveral
from streamsampler.checking.values import BufferWatch, DrawWatch, InfoWatch, SpaceWatch, shown
from streamsampler.checking.worker import TaskWorker
from streamsampler.data.spaces import flag_of, number_of
from streamsampler.data.words import count
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.errors import DataError, UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.explain import begin_of, name_of_env, summary_of, traceback_of
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.known_wrappers import chain_of

_TRAJECTORIES = 20
_WATCHED = 100  # timesteps of a trajectory in which buffers and generators are looked at


@dataclass(frozen=True)
class Inspected:
    """What was seen of an environment.

    Attributes:
        name: What it is called.
        spaces: Its observation and action space, of one environment.
        n_slots: How many environments it has side by side; None for one that is no vector environment.
        findings: What was found.
        lengths: The lengths of the trajectories that ended.
        timesteps: How many timesteps were run.
        step_seconds: What a step took on average.
        construction_seconds: What it took to make it.
        time_limit: The timesteps after which it truncates; None where it does not say.
        refused: The finding because of which samplers refuse what it returns; empty where there is none.
        several: Whether it has several agents.
    """

    name: str
    spaces: tuple[Space[Any], Space[Any]]
    n_slots: int | None
    findings: tuple[Finding, ...]
    lengths: tuple[int, ...]
    timesteps: int
    step_seconds: float
    construction_seconds: float
    time_limit: int | None
    refused: str = ""
    several: bool = False


@dataclass(frozen=True)
class InspectEnvironment:
    """A task: run trajectories with random actions, look at what comes, and close the environment.

    Attributes:
        seconds: After so long no further timestep begins.
        timesteps: After so many timesteps a trajectory is taken not to end.
        max_episode_length: Timesteps after which samplers truncate it; None for never.
    """

    seconds: float
    timesteps: int
    max_episode_length: int | None

    def __call__(self, worker: TaskWorker) -> Inspected:
        """Run the task."""
        env = worker.env
        several = isinstance(env, MultiAgentEnv)
        rollout = RolloutOfSeveral(worker, self.seconds, self.timesteps) if several else _Rollout(worker, self)
        failure: Finding | None = None
        try:
            rollout.run(_TRAJECTORIES)
        except (Exception, SystemExit) as error:
            failure = _failure(worker, error, rollout.timesteps)
        findings = [*rollout.findings(failure), finding_of_wrappers(env)]
        name, spaces = name_of_env(env), _spaces_of(env)
        n_slots = env.num_envs if isinstance(env, VectorEnv) else None
        limit = _time_limit(env)
        try:
            worker.close_env()
            findings.append(Finding("close", "pass", "the environment closes"))
        except (Exception, SystemExit) as error:
            findings.append(
                Finding("close", "failure", f"closing the environment raised {summary_of(error)}",
                        "Let close be called once at any time, also after an exception, and give everything back",
                        traceback_of(error))
            )  # fmt: skip
        step_seconds = rollout.step_seconds / max(1, rollout.steps)
        return Inspected(
            name, spaces, n_slots, tuple(findings), tuple(rollout.lengths), rollout.timesteps, step_seconds,
            worker.construction_seconds, limit, rollout.refused, several,
        )  # fmt: skip


def _spaces_of(env: Any) -> tuple[Any, Any]:
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _time_limit(env: Any) -> int | None:
    """Return the timesteps after which an environment truncates, where it says so."""
    limits = [layer._max_episode_steps for layer in chain_of(env) if isinstance(layer, TimeLimit)]
    spec = getattr(env.unwrapped, "spec", None)
    stated = getattr(spec, "max_episode_steps", None) if isinstance(env, VectorEnv) else None
    return min([*limits, *([stated] if isinstance(stated, int) else [])], default=None)


def _failure(worker: TaskWorker, error: BaseException, timesteps: int) -> Finding:
    advice = (
        "A call that needs such a trajectory raises this error; where it is no bug, on_failure=\"drop\" leaves such "
        "trajectories out (what is left is biased where failures depend on the state)"
    )  # fmt: skip
    if isinstance(error, UsageError | DataError):
        advice = "Samplers refuse such an environment"
    what = f"{worker.phase} raised {summary_of(error)} (after {count(timesteps, 'timestep')} in all)"
    return Finding("runs", "failure", what, advice, traceback_of(error))


@dataclass
class _Rollout:
    """Trajectories with random actions; what is seen of them.

    Attributes:
        worker: Has the environment, and shows progress.
        task: The limits.
        lengths: The lengths of the trajectories that ended.
        timesteps: How many timesteps were run, in all environments together.
        steps: How often `step` was called.
        step_seconds: What that took.
    """

    worker: TaskWorker
    task: InspectEnvironment
    lengths: list[int] = field(default_factory=list)
    timesteps: int = 0
    steps: int = 0
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        env = self.worker.env
        self._is_vector = isinstance(env, VectorEnv)
        self._n_slots = env.num_envs if isinstance(env, VectorEnv) else 1
        observation_space, action_space = _spaces_of(env)
        if self._is_vector:  # of some, such as EnvPool's, the space says nothing of how many there are
            observation_space, action_space = (batch_space(each, self._n_slots) for each in _spaces_of(env))
        self._observations = SpaceWatch(observation_space, "observation")
        self._buffers, self._infos, self._draws = BufferWatch(), InfoWatch(), DrawWatch()
        self._actions = copy.deepcopy(action_space)
        self._actions.seed(self.worker.context.seed % 2**31)
        self._bad_reward = self._no_number = ""
        self._endless: int | None = None  # the length of a trajectory that did not end
        self._ended = {"terminated": 0, "truncated": 0}
        self._until = perf_counter() + self.task.seconds

    @property
    def _out_of_time(self) -> bool:
        return perf_counter() >= self._until

    def run(self, n_trajectories: int) -> None:
        """Run so many trajectories, of a vector environment one or more in each of its environments.

        Raises:
            BaseException: What the environment raises.
        """
        seeds = TrajectorySeeds(self.worker.context.seed, self.worker.version)
        for number in range(1 if self._is_vector else n_trajectories):
            self._begin(number, [seeds[self._n_slots * number + slot] for slot in range(self._n_slots)])
            (self._run_vector if self._is_vector else self._run_one)()
            if self._endless is not None or self._out_of_time:
                return

    def _begin(self, number: int, seeds: list[int]) -> None:
        env, worker = self.worker.env, self.worker
        worker.enter(Phase.RESET, number)
        seed_generators(seeds[0])
        self._draws.begin()
        observation, info = begin_of(self._reset(env, seeds))
        self._draws.end("reset")
        self._observations.take(observation, 0)
        self._buffers.take(observation, 0)
        self._infos.take(info, of_step=False)

    def _reset(self, env: Any, seeds: list[int]) -> Any:
        if not self._is_vector:
            return env.reset(seed=seeds[0])
        try:
            return env.reset(seed=seeds)
        except Exception:  # many native environments take one seed for all
            return env.reset(seed=seeds[0])

    def _step(self, timestep: int) -> tuple[Any, Any]:
        """Take a step, look at all it returns, and return terminated and truncated."""
        action = self._actions.sample()
        watched = timestep <= _WATCHED
        if watched:
            self._draws.begin()
        began = perf_counter()
        result: Any = self.worker.env.step(action)
        self.step_seconds += perf_counter() - began
        self.steps += 1
        self.timesteps += self._n_slots
        self.worker.progress(self.timesteps)
        if not isinstance(result, tuple) or len(result) != 5:
            size = f" of {len(result)}" if isinstance(result, tuple) else ""
            raise UsageError(
                "step must return (observation, reward, terminated, truncated, info), got "
                f"{type(result).__name__}{size}"
            )
        observation, reward, terminated, truncated, info = result
        self._observations.take(observation, timestep)
        if watched:
            self._draws.end("step")
            self._buffers.take(observation, timestep)
        self._look_at_reward(reward, timestep)
        terminated, truncated = self._flag("terminated", terminated), self._flag("truncated", truncated)
        if not self._is_vector:
            self._infos.take(info, last=bool(terminated or truncated))
        return terminated, truncated

    def _look_at_reward(self, reward: Any, timestep: int) -> None:
        if self._bad_reward:
            return
        try:
            values = [number_of(reward)] if not self._is_vector else np.asarray(reward, np.float64)
        except (DataError, TypeError, ValueError) as error:
            self._bad_reward = self._no_number = f"{error}, after timestep {timestep} of a trajectory"
            return
        if self._is_vector and np.shape(values) != (self._n_slots,):
            self._bad_reward = f"rewards have the shape {np.shape(values)}, and should have ({self._n_slots},)"
        elif not np.isfinite(values).all():
            self._bad_reward = f"the reward is {shown(reward)} after timestep {timestep} of a trajectory"

    def _flag(self, name: str, value: Any) -> Any:
        if self._is_vector:
            flags = np.asarray(value)
            if flags.shape != (self._n_slots,) or flags.dtype != np.bool_:
                raise DataError(f"{name} should be {self._n_slots} booleans, and is {shown(value)}")
            return flags
        return flag_of(name, value)

    def _run_one(self) -> None:
        self.worker.enter(Phase.STEP, self.worker.trajectory)
        length = 0
        for length in range(1, self.task.timesteps + 1):
            terminated, truncated = self._step(length)
            if terminated or truncated:
                self._end(length, terminated)
                return
            if length == self.task.max_episode_length:
                self.lengths.append(length)
                return
            if self._out_of_time:
                break
        self._endless = length

    def _run_vector(self) -> None:
        self.worker.enter(Phase.STEP, None)
        env: Any = self.worker.env
        disabled = getattr((env.metadata or {}).get("autoreset_mode"), "name", "") == "DISABLED"
        lengths = np.zeros(self._n_slots, np.int64)
        seen = np.zeros(self._n_slots, np.bool_)
        for number in range(1, self.task.timesteps + 1):
            terminated, truncated = self._step(number)
            lengths += 1
            ended = terminated | truncated
            for slot in np.flatnonzero(ended):
                self._end(int(lengths[slot]), bool(terminated[slot]))
            seen |= ended
            lengths[ended] = 0
            if seen.all():
                return
            if ended.any() and disabled:
                env.reset(options={"reset_mask": ended})
            if self._out_of_time:
                break
        self._endless = int(lengths.max())

    def _end(self, length: int, terminated: Any) -> None:
        self.lengths.append(length)
        self._ended["terminated" if terminated else "truncated"] += 1

    # ------------------------------------------------------------------ findings

    @property
    def refused(self) -> str:
        """The name of the finding because of which samplers refuse what the environment returns; or nothing."""
        reasons = {"observations": self._observations.refused, "rewards": self._no_number, "infos": self._infos.wrong}
        return next((name for name, reason in reasons.items() if reason), "")

    def findings(self, failure: Finding | None) -> Iterator[Finding]:
        """Yield what was found.

        Args:
            failure: What the environment raised; None where it raised nothing.
        """
        self._observations.look()
        ran = f"{count(len(self.lengths), 'trajectory')} ended, {count(self.timesteps, 'timestep')} with random actions"
        yield failure or Finding("runs", "pass", ran)
        yield finding_of_observations(self._observations)
        yield finding_of_rewards(self._bad_reward)
        yield finding_of_infos(self._infos, is_vector=self._is_vector)
        if self._endless is not None:
            limit = _time_limit(self.worker.env)
            yield finding_of_endless(self._endless, self.task.timesteps, self.task.seconds, limit)
        elif failure is None:
            yield finding_of_ends(self._ended, self.lengths, self.task.max_episode_length)
        yield finding_of_buffers(self._buffers)
        yield finding_of_draws(self._draws)
