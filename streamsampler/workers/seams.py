"""Make the default worker's loop overridable in four methods, and show trajectories to hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamsampler.agents.masks import MaskFinder
from streamsampler.core.errors import UsageError
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import Worker
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.restoring import AS_GIVEN, Rounding, own_copy
from streamsampler.workers.trajectory_context import StoredContext, TrajectoryContext, reset_of

SEAMS = ("begin_trajectory", "before_step", "after_step", "end_trajectory")


class WorkerWithSeams(Worker):
    """Declares the four methods around a timestep which a subclass of `DefaultWorker` may override."""

    @classmethod
    def overrides_seams(cls) -> bool:
        """Return whether a subclass overrides a seam."""
        return any(getattr(cls, name) is not getattr(WorkerWithSeams, name) for name in SEAMS)

    def begin_trajectory(self, context: TrajectoryContext) -> tuple[Any, dict[str, Any]]:
        """Seed the global generators, reset the environment and then the agent.

        Args:
            context: The new trajectory.

        Returns:
            The first observation, and the reset's info.
        """
        self.enter(Phase.RESET)
        seed_generators(context.seed)
        observation, info = begin_of(context.reset(seed=context.seed))
        if context.reset_agent is not None:
            self.enter(Phase.AGENT_RESET)
            context.reset_agent(derived_seed(context.seed, SeedUse.AGENT))
        return observation, info

    def before_step(self, context: TrajectoryContext) -> tuple[Any, dict[str, Any]]:
        """Return the agent's action for `TrajectoryContext.observation`, which is already recorded.

        Args:
            context: The current trajectory.

        Returns:
            The action to record and execute, and the agent's info.
        """
        if not context.takes_mask:
            return context.agent.get_action(context.observation)
        return context.agent.get_action(context.observation, action_mask=context.action_mask)  # type: ignore[call-arg]

    def after_step(self, context: TrajectoryContext, result: Any) -> Any:  # noqa: ARG002 - for those who override it
        """Return the step's result to record; by default the environment's own.

        Args:
            context: The current trajectory, as before the step; `TrajectoryContext.action` is this step's.
            result: The result of `env.step`: observation, reward, terminated, truncated, info.
        """
        return result

    def end_trajectory(self, context: TrajectoryContext) -> None:
        """Do nothing. Called after the last timestep is recorded, except for trajectories which raise or are abandoned.

        Args:
            context: The ending trajectory.
        """


def refuse_ignored_seams(worker_class: type[Worker]) -> None:
    """Raise if a subclass of a worker of this package overrides a seam which its kind of worker never calls."""
    package = __package__.partition(".")[0]
    kinds = [kind for kind in worker_class.__mro__ if kind is not Worker and kind.__module__.startswith(f"{package}.")]
    found = [name for name in SEAMS if hasattr(worker_class, name)]
    if kinds and found and not issubclass(worker_class, WorkerWithSeams):
        raise UsageError(
            f"{worker_class.__name__} has {', '.join(found)}, which {kinds[0].__name__} does not call: only "
            "DefaultWorker does. Subclass DefaultWorker, or pass hooks= for code which does not change the trajectory"
        )


class ShownTrajectory:
    """Shows a script's trajectory to hooks. An episode starts and ends once, possibly in different calls.

    Attributes:
        context: The current trajectory; None between trajectories, so errors found after an end are not shown.
        agent_info: The agent's info with the current action.
    """

    def __init__(self, worker: Worker, caller: HookCaller) -> None:
        self._worker, self._caller = worker, caller
        self.context: TrajectoryContext | None = None
        self.agent_info: Any = None

    def resume(self, context: TrajectoryContext, timestep: int, kept: StoredContext | None, info: Any) -> None:
        """Resume an episode shown in earlier calls; `kept` is None if its metrics and memory are lost."""
        self.context = context
        if kept is not None:
            context.go_on(kept, timestep)
        context.info = info

    def kept(self) -> StoredContext:
        assert self.context is not None
        kept, self.context = self.context.kept(), None
        return kept

    def start(self, observation: Any, info: Any) -> None:
        assert self.context is not None
        self._worker.enter(Phase.RECORDING)
        self.context.observation, self.context.reset_info, self.context.info = observation, own_copy(info), info
        self._caller.start(self.context)

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        context = self.context
        assert context is not None
        context.terminated, context.truncated = bool(terminated), bool(truncated)
        context.observation, context.reward, context.info = observation, context.recorder.float_rewards[-1], info
        context.agent_info = self.agent_info
        context.timestep += 1
        self._caller.timestep(context)

    def end(self, *, limited: bool) -> None:
        """Show the end of a trajectory, and record its metrics."""
        context, worker = self.context, self._worker
        assert context is not None
        context.truncated = context.truncated or limited
        if isinstance(worker, WorkerWithSeams):
            worker.end_trajectory(context)
        self._caller.end(context)
        worker.enter(Phase.RECORDING)
        check_metrics(context)
        if context.metrics:
            context.recorder.record_metrics(context.metrics)
            for name in context.metrics:
                context.recorder.metrics[name] = self._caller.aggregation.get(name, "mean")
        self.context = None

    def lost(self, error: BaseException) -> None:
        if self.context is not None:
            self._caller.lost(self.context, error)


class OverridableSteps(ShownTrajectory):
    """Replaces environment and agent in the driver: calls a worker's seams and its hooks."""

    _worker: WorkerWithSeams

    def __init__(
        self, worker: WorkerWithSeams, caller: HookCaller, version: int, agent: Any, env: Any,
        recorder: RolloutRecorder, reset_agent: Callable[[int], None] | None, rounding: Rounding = AS_GIVEN,
        masks: MaskFinder | None = None, reset: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(worker, caller)
        self._recorder, self._version, self._env, self._agent = recorder, worker.agent_version(version), env, agent
        self._reset, self._reset_agent, self._rounding = reset, reset_agent, rounding
        self._chosen: Any = None  # an action and an info
        self._masks = masks
        self._info: Any = None  # the last info; hooks receive a copy

    def context_of(self, index: int, seed: int) -> TrajectoryContext:
        worker = self._worker
        return TrajectoryContext(
            self._env, self._agent, index, seed, self._version, worker.context.worker_number, self._recorder,
            reset=self._reset or reset_of(self._env, worker, index), reset_agent=self._reset_agent,
        )  # fmt: skip

    def resume(self, context: TrajectoryContext, timestep: int, kept: StoredContext | None, info: Any) -> None:
        super().resume(context, timestep, kept, info)
        self._info = info

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        worker, index = self._worker, self._worker.trajectory
        assert index is not None
        context = self.context = self.context_of(index, seed)
        worker.enter(Phase.RESET)
        context.observation, self._info = begin_of(worker.begin_trajectory(context))
        return context.observation, self._info

    def get_action(self, observation: Any) -> Any:
        context = self.context
        assert context is not None
        context.observation = observation  # hooks received a copy, and may have modified it
        if self._masks is not None:
            context.takes_mask, context.action_mask = True, self._masks(observation, self._info)
        self._chosen = self._worker.before_step(context)
        return self._chosen

    def step(self, action: Any) -> Any:
        context = self.context
        assert context is not None
        context.action, self.agent_info = self._rounding.round(self._chosen[0]), self._chosen[1]
        return self._worker.after_step(context, context.env.step(action))

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        self._info = info
        super().timestep(observation, terminated, truncated, info)


def check_metrics(context: TrajectoryContext) -> None:
    """Check that metrics are a dict, without the names of the reset's infos."""
    if not isinstance(context.metrics, dict):
        raise UsageError(f"context.metrics must be a dict of values by name, but a hook set it to {context.metrics!r}")
    if twice := sorted(context.metrics.keys() & context.reset_info.keys()):
        raise UsageError(
            f"the metrics {', '.join(twice)} have the names of infos of the environment's reset, and "
            "batch.episode_infos contains both: rename the metrics"
        )
