"""The default worker's loop once more, in steps that a subclass may override.

`DefaultWorker` runs a loop written out for speed as long as no class overrides one of these four methods, and then this
loop costs nothing. A subclass that overrides one is run by this loop. Both give the same trajectories, to the last bit.
This one takes about 1 µs more for each timestep: CartPole-v1, whose trajectories are short, takes 1.15 times as long
with an agent that costs next to nothing (CPU time on Python 3.11, the two in turn).

Override them like this, and call `super()` unless you replace what they do:

    class WithBonus(DefaultWorker):
        def after_step(self, context, result):
            observation, reward, terminated, truncated, info = result
            return observation, reward + 0.1 * (context.timestep < 10), terminated, truncated, info

A trajectory must stay a function of the agent's parameters, the environment and its seed: keep what a trajectory needs
from one call to the next in `TrajectoryContext.memory`, which is empty at each trajectory's start, and draw
from generators that `TrajectoryContext.seed` seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import Agent
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.trees import Tree
from streamsampler.environments.updates import AnyEnv
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Phase, Times
from streamsampler.seeding import Stream, derived_seed
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.exact_actions import action_for_env
from streamsampler.workers.explain import begin_of
from streamsampler.workers.finishing import record_last_value
from streamsampler.workers.generators import seed_generators

# ----------------------------------------------------------------------
# The trajectory in hand, as seams and hooks see it.


class InHand(Protocol):
    """What records a trajectory."""

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards, as far as it was recorded."""


@dataclass(slots=True, eq=False)
class TrajectoryContext:
    """Shows the trajectory in hand. Read it; of its attributes only `metrics` and `memory` are yours to change.

    Attributes:
        env: The environment that the trajectory runs in.
        agent: The agent; with `VecWorker` it may choose the actions of other trajectories as well.
        index: The trajectory index.
        seed: The trajectory's seed.
        agent_version: The agent version.
        recorder: What records the trajectory.
        reset: Resets the environment with a seed, `reset(seed=…)`, and with the trajectory's reset options if the call
            was given any. Returns what the environment returns.
        reset_agent: The agent's `reset`, which takes a seed; None if it has none, or acts for several trajectories.
        reset_info: What the environment's reset returned as info.
        observation: The observation that comes next: the first one, or what the last step led to.
        action: The last action; None before the first.
        reward: The last reward.
        terminated: Whether the environment has terminated the trajectory.
        truncated: Whether the environment has truncated the trajectory, or `max_episode_length` has at its end.
        info: What the last step returned as info; before the first step what the reset did.
        agent_info: The agent's info of the last action.
        timestep: How many timesteps are recorded.
        metrics: Values by name, empty at the trajectory's start. They come back in `batch.episode_infos`.
        memory: Anything else by name, empty at the trajectory's start: what you keep from one timestep to the next.
    """

    env: AnyEnv
    agent: Agent
    index: int
    seed: int
    agent_version: int
    recorder: InHand
    reset: Callable[..., Any]
    reset_agent: Callable[[int], None] | None
    reset_info: dict[str, Any] = field(default_factory=dict)
    observation: Any = None
    action: Any = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    agent_info: dict[str, Any] = field(default_factory=dict)
    timestep: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def observations(self) -> Tree:
        """Copies of the observations that actions were chosen on so far, a tree of (timestep, *O)."""
        return self.recorder.copies_in_hand()[0]

    @property
    def actions(self) -> Tree:
        """Copies of the actions so far, a tree of (timestep, *A)."""
        return self.recorder.copies_in_hand()[1]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Copies of the rewards so far, (timestep,) float64."""
        return self.recorder.copies_in_hand()[2]


def refuse_hidden_infos(context: TrajectoryContext) -> None:
    """Check that no metric has the name of an info of the environment's reset.

    Raises:
        UsageError: One has.
    """
    if twice := sorted(context.metrics.keys() & context.reset_info.keys()):
        raise UsageError(
            f"the metrics {', '.join(twice)} have names that infos of the environment's reset have: both come back "
            "in batch.episode_infos. Give them other names"
        )


# ----------------------------------------------------------------------


# An enum's member costs 100 ns to look up on Python 3.11.
_RECORDING, _ACTION, _STEP = Phase.RECORDING, Phase.ACTION, Phase.STEP
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)

SEAMS = ("begin_trajectory", "before_step", "after_step", "end_trajectory")


class WorkerWithSeams(Worker):
    """A worker of one environment, with four methods that its slower loop calls; the module's docstring says when."""

    @classmethod
    def overrides_seams(cls) -> bool:
        """Return whether a subclass overrides one of the four methods."""
        return any(getattr(cls, name) is not getattr(WorkerWithSeams, name) for name in SEAMS)

    def begin_trajectory(self, context: TrajectoryContext) -> tuple[Any, dict[str, Any]]:
        """Seed the global generators, reset the environment and then the agent.

        Args:
            context: The trajectory that begins.

        Returns:
            The first observation, and the reset's info.
        """
        self.enter(Phase.RESET)
        seed_generators(context.seed)
        observation, info = begin_of(context.reset(seed=context.seed))
        if context.reset_agent is not None:
            self.enter(Phase.AGENT_RESET)
            context.reset_agent(derived_seed(context.seed, Stream.AGENT))
        return observation, info

    def before_step(self, context: TrajectoryContext) -> tuple[Any, dict[str, Any]]:
        """Ask the agent for an action on `TrajectoryContext.observation`, which is recorded already.

        Args:
            context: The trajectory in hand.

        Returns:
            The action that is recorded and that the environment gets, and the agent's info.
        """
        return context.agent.get_action(context.observation)

    def after_step(self, context: TrajectoryContext, result: Any) -> Any:  # noqa: ARG002 - for those who override it
        """Return what is recorded of a step; by default what the environment returned.

        Args:
            context: The trajectory in hand, as it was before the step; `TrajectoryContext.action` is this step's.
            result: What `env.step` returned: observation, reward, terminated, truncated, info.
        """
        return result

    def end_trajectory(self, context: TrajectoryContext) -> None:
        """Do nothing. Called when the last timestep is recorded, and not for trajectories that raise or are abandoned.

        Args:
            context: The trajectory that ends.
        """


def refuse_ignored_seams(worker_class: type[Worker]) -> None:
    """Check that a subclass of a kind of worker of this package overrides no method that nothing would call.

    Raises:
        UsageError: It has one of the four methods, and its kind of worker does not call it.
    """
    package = __package__.partition(".")[0]
    kinds = [kind for kind in worker_class.__mro__ if kind is not Worker and kind.__module__.startswith(f"{package}.")]
    found = [name for name in SEAMS if hasattr(worker_class, name)]
    if kinds and found and not issubclass(worker_class, WorkerWithSeams):
        raise UsageError(
            f"{worker_class.__name__} has {', '.join(found)}, which {kinds[0].__name__} does not call: only "
            "DefaultWorker does. Subclass DefaultWorker, or pass hooks= for what need not change the trajectory"
        )


class Observer:
    """Sees a trajectory's start, timesteps, end and loss. The default does nothing.

    Attributes:
        aggregation: How metrics become one number for a batch, by name; the mean where nothing is said.
    """

    aggregation: Mapping[str, str] = {}

    def start(self, context: TrajectoryContext) -> None:
        """See a trajectory whose environment and agent are reset."""

    def timestep(self, context: TrajectoryContext) -> None:
        """See a timestep that is recorded."""

    def end(self, context: TrajectoryContext) -> None:
        """See the end of a trajectory."""

    def lost(self, context: TrajectoryContext, error: BaseException) -> None:
        """See an exception in a trajectory."""


class SeamLoop:
    """Runs trajectories one after the other, and calls the seams of its worker.

    Args:
        worker: The worker whose seams are called.
        agent: The agent.
        env: The environment.
        recorder: Where the trajectories are recorded.
        reset_agent: The agent's `reset`, if it has one.
        reset_of: Returns what resets the environment for a trajectory index.
        observer: Sees the trajectories.

    Attributes:
        context: The trajectory in hand; None before the first.
        seconds: The seconds of resets, of the agent, and of all else.
    """

    def __init__(
        self,
        worker: WorkerWithSeams,
        agent: Any,
        env: Any,
        recorder: RolloutRecorder,
        reset_agent: Callable[[int], None] | None,
        reset_of: Callable[[int], Callable[..., Any]],
        observer: Observer,
    ) -> None:
        self._observer = observer
        self._worker, self._agent, self._env, self._recorder = worker, agent, env, recorder
        self._reset_agent, self._reset_of = reset_agent, reset_of
        self._row, self._max_length = worker.row, worker.context.max_episode_length
        self._in_reset = self._in_agent = self._all = 0.0
        self.context: TrajectoryContext | None = None

    @property
    def seconds(self) -> Times:
        """Seconds of resets, of the agent, and of all else."""
        return Times(self._in_reset, self._in_agent, self._all - self._in_reset - self._in_agent)

    @property
    def action(self) -> Any:
        """The last action; None before the first."""
        return None if self.context is None else self.context.action

    def run(self, version: int, indices: Sequence[int], seeds: Sequence[int]) -> int:
        """Run trajectories.

        Returns:
            -1, or the timesteps after which a trajectory was abandoned.
        """
        recorder, before, began = self._recorder, self._recorder.n_timesteps, perf_counter()
        abandoned_timesteps = -1
        try:
            for index, seed in zip(indices, seeds, strict=True):
                if not self._run_one(self._begin(version, index, seed), version):
                    abandoned_timesteps = len(recorder.float_rewards) - recorder.n_timesteps
                    break
        except BaseException as error:
            if self.context is not None:
                self._observer.lost(self.context, error)
            raise
        finally:
            self._worker.ran_timesteps += len(recorder.float_rewards) - before
            self._all = perf_counter() - began
        if abandoned_timesteps >= 0:
            recorder.abandon()
        return abandoned_timesteps

    def _begin(self, version: int, index: int, seed: int) -> TrajectoryContext:
        worker, recorder = self._worker, self._recorder
        reset_of = self._reset_of
        context = self.context = TrajectoryContext(
            self._env, self._agent, index, seed, worker.agent_version(version), recorder,
            lambda **arguments: reset_of(index)(**arguments), self._reset_agent,
        )  # fmt: skip
        worker.trajectory = index
        self._row.begin_trajectory(index)
        began = perf_counter()
        worker.enter(Phase.RESET)
        context.observation, info = begin_of(worker.begin_trajectory(context))
        self._in_reset += perf_counter() - began
        worker.enter(Phase.RECORDING)
        recorder.begin(info)
        context.reset_info = context.info = info
        return context

    def _run_one(self, context: TrajectoryContext, version: int) -> bool:
        """Run the timesteps of a trajectory that has begun. False means that its version may no longer run."""
        row, recorder, limit = self._row, self._recorder, self._max_length
        self._observer.start(context)
        observe = None if type(self._observer) is Observer else self._observer.timestep
        while context.timestep != limit:
            row.words[row.timesteps_word] = len(recorder.float_rewards)
            self.run_timestep(context)
            if observe is not None:
                observe(context)
            if context.terminated or context.truncated:
                break
            if row.attention and not row.may_run(version):
                row.words[row.timesteps_word] = len(recorder.float_rewards)
                return False
        context.truncated = context.truncated or context.timestep == limit
        self._worker.end_trajectory(context)
        self._observer.end(context)
        self._worker.enter(Phase.RECORDING)
        if context.metrics:
            self._record_metrics(context)
        if not context.terminated and context.agent_info.__class__ is dict and "value" in context.agent_info:
            self._worker.enter(Phase.ACTION)
            record_last_value(recorder, context.agent, context.observation)
            self._worker.enter(Phase.RECORDING)
        recorder.end(context.observation, context.terminated, context.truncated)
        return True

    def _record_metrics(self, context: TrajectoryContext) -> None:
        refuse_hidden_infos(context)
        self._recorder.record_metrics(context.metrics)
        for name in context.metrics:
            self._recorder.metrics[name] = self._observer.aggregation.get(name, "mean")

    def run_timestep(self, context: TrajectoryContext) -> None:
        """Run a timestep of the trajectory in hand, and record it."""
        worker, recorder, words, phase_word = self._worker, self._recorder, self._row.words, self._row.phase_word
        worker.phase = _RECORDING
        recorder.record_observation(context.observation)
        worker.phase = _ACTION
        words[phase_word] = _ACTION_NUMBER
        began = perf_counter()
        action, agent_info = worker.before_step(context)
        self._in_agent += perf_counter() - began
        context.action = action
        recorder.record_action(action)
        worker.phase = _STEP
        words[phase_word] = _STEP_NUMBER
        result = context.env.step(action_for_env(action))
        observation, reward, terminated, truncated, info = worker.after_step(context, result)
        worker.phase = _RECORDING
        recorder.record_reward(reward)
        number = len(recorder.float_rewards) - 1
        if info.__class__ is not dict or info:
            recorder.record_env_info(number, info)
        if agent_info.__class__ is not dict or agent_info:
            recorder.record_agent_info(number, agent_info)
        if terminated.__class__ is not bool or truncated.__class__ is not bool:
            terminated, truncated = recorder.flags(terminated, truncated)
        context.terminated, context.truncated = terminated, truncated
        context.observation, context.reward, context.info = observation, recorder.float_rewards[number], info
        context.agent_info = agent_info
        context.timestep += 1
