"""Call hooks in workers: user code at the start and the end of trajectories, and at each timestep.

Hooks are an object with any of `on_environment_created`, `on_trajectory_start`, `on_timestep`, `on_trajectory_end` and
`on_trajectory_lost`; subclasses of `DefaultWorker` may override its four methods around a timestep. Without either, the
loop calls nothing. The guide is `streamsampler/docs/hooks-and-filters.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import Agent
from streamsampler.agents.masks import MaskFinder
from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.statistics import check_aggregation
from streamsampler.data.trees import Tree
from streamsampler.environments.updates import AnyEnv
from streamsampler.protocol.messages import Dropped, Phase, Ticket
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import summary_of
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.resets import reset_function
from streamsampler.workers.restoring import AS_GIVEN, Rounding, own_copy

# ----------------------------------------------------------------------
# The steps of the default worker's loop that a subclass may override, and that hooks see.


# ----------------------------------------------------------------------
# The trajectory in hand, as seams and hooks see it.


class InHand(Protocol):
    """What records a trajectory; see `RolloutRecorder`."""

    float_rewards: list[float]
    metrics: dict[str, str]

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record metrics of the trajectory."""

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards, as far as it was recorded."""


class Kept(NamedTuple):
    """What is kept of an episode's `TrajectoryContext` from one call for fragments to the next."""

    metrics: dict[str, Any]
    memory: dict[str, Any]
    reset_info: dict[str, Any]


@dataclass(slots=True, eq=False)
class TrajectoryContext:
    """Shows the trajectory in hand. Read it; of its attributes only `metrics` and `memory` are yours to replace.

    Seams see observations, actions and infos themselves, as the environment and the agent gave them; hooks see copies.

    Attributes:
        env: The environment that the trajectory runs in.
        agent: The agent; with `VecWorker` it may choose the actions of other trajectories as well.
        index: The trajectory index.
        seed: The trajectory's seed.
        agent_version: The agent version.
        worker_number: The worker, 0 to n-1; in a batch nothing may depend on it.
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
        takes_mask: Whether `before_step` gives the agent masks; with `VecWorker` it gives none.
        action_mask: If so, the mask of the action that the agent is asked for.
        timestep: How many timesteps are recorded.
        metrics: Values by name, empty at the trajectory's start. They come back in `batch.episode_infos`.
        memory: Anything else by name, empty at the trajectory's start: what you keep from one timestep to the next.
    """

    env: AnyEnv
    agent: Agent
    index: int
    seed: int
    agent_version: int
    worker_number: int
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
    takes_mask: bool = False
    action_mask: NDArray[np.bool_] | None = None
    timestep: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> Kept:
        """Return what is kept of it from one call to the next."""
        return Kept(self.metrics, self.memory, self.reset_info)

    def go_on(self, kept: Kept, timestep: int) -> None:
        """Go on with an episode that had so many timesteps in earlier calls."""
        self.metrics, self.memory, self.reset_info = kept
        self.timestep = timestep

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


def reset_of(env: AnyEnv, worker: Worker, index: int) -> Callable[..., Any]:
    """Return what resets a worker's environment for a trajectory, as the call says at that time."""
    return lambda **arguments: reset_function(env, worker.resets, (index,))(**arguments)


def check_metrics(context: TrajectoryContext) -> None:
    """Check that metrics are values by name, none of which is the name of an info of the environment's reset.

    Raises:
        UsageError: They are not.
    """
    if not isinstance(context.metrics, dict):
        raise UsageError(f"context.metrics must be a dict, values by name; a hook made it {context.metrics!r}")
    if twice := sorted(context.metrics.keys() & context.reset_info.keys()):
        raise UsageError(
            f"the metrics {', '.join(twice)} have names that infos of the environment's reset have: both come back "
            "in batch.episode_infos. Give them other names"
        )


# ----------------------------------------------------------------------


SEAMS = ("begin_trajectory", "before_step", "after_step", "end_trajectory")


class WorkerWithSeams(Worker):
    """A worker of one environment, with four methods that a subclass may override; see the module's docstring."""

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
            context.reset_agent(derived_seed(context.seed, SeedUse.AGENT))
        return observation, info

    def before_step(self, context: TrajectoryContext) -> tuple[Any, dict[str, Any]]:
        """Ask the agent for an action on `TrajectoryContext.observation`, which is recorded already.

        Args:
            context: The trajectory in hand.

        Returns:
            The action that is recorded and that the environment gets, and the agent's info.
        """
        if not context.takes_mask:
            return context.agent.get_action(context.observation)
        return context.agent.get_action(context.observation, action_mask=context.action_mask)  # type: ignore[call-arg]

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


class ShownTrajectory:
    """Shows a script's trajectory to hooks: an episode starts and ends once, in whichever calls.

    Args:
        worker: The worker, whose phase names the hook that is being called.
        caller: Calls the hooks.

    Attributes:
        context: The trajectory in hand; None between trajectories: what is found wrong after the end is not shown.
        agent_info: The agent's info of the action in hand.
    """

    def __init__(self, worker: Worker, caller: HookCaller) -> None:
        self._worker, self._caller = worker, caller
        self.context: TrajectoryContext | None = None
        self.agent_info: Any = None

    def resume(self, context: TrajectoryContext, timestep: int, kept: Kept | None, info: Any) -> None:
        """Go on with an episode, which was shown in earlier calls.

        Args:
            context: Its context in this call.
            timestep: The timesteps that it had in earlier calls.
            kept: Its metrics and memory; None if these are lost.
            info: The info that came with its last observation.
        """
        self.context = context
        if kept is not None:
            context.go_on(kept, timestep)
        context.info = info

    def kept(self) -> Kept:
        """Return the metrics and the memory of an episode that goes on in the next call."""
        assert self.context is not None
        kept, self.context = self.context.kept(), None
        return kept

    def start(self, observation: Any, info: Any) -> None:
        """Show a trajectory whose reset is recorded."""
        assert self.context is not None
        self._worker.enter(Phase.RECORDING)
        self.context.observation, self.context.reset_info, self.context.info = observation, own_copy(info), info
        self._caller.start(self.context)

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Show a timestep that is recorded."""
        context = self.context
        assert context is not None
        context.terminated, context.truncated = bool(terminated), bool(truncated)
        context.observation, context.reward, context.info = observation, context.recorder.float_rewards[-1], info
        context.agent_info = self.agent_info
        context.timestep += 1
        self._caller.timestep(context)

    def end(self, *, limited: bool) -> None:
        """Show the end of a trajectory, and record the metrics.

        Args:
            limited: Whether it has as many timesteps as it may have.
        """
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
        """Show an exception in a trajectory that has begun."""
        if self.context is not None:
            self._caller.lost(self.context, error)


class Seams(ShownTrajectory):
    """Stands where environment and agent stand: calls the seams of a worker, and its hooks.

    Args:
        worker: The worker whose seams are called.
        caller: Calls the hooks.
        version: The version of the ticket.
        agent: The agent.
        env: The environment.
        recorder: Where the trajectories are recorded.
        reset_agent: The agent's `reset`, if it has one.
        rounding: Gives actions the floats of their space.
        masks: Finds masks of actions, for an agent that takes them.
        reset: Resets the environment; None where the call says how.
    """

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
        self._info: Any = None  # the last one, of which hooks have a copy

    def context_of(self, index: int, seed: int) -> TrajectoryContext:
        """Return the context of a trajectory that begins, or goes on."""
        worker = self._worker
        return TrajectoryContext(
            self._env, self._agent, index, seed, self._version, worker.context.worker_number, self._recorder,
            reset=self._reset or reset_of(self._env, worker, index), reset_agent=self._reset_agent,
        )  # fmt: skip

    def resume(self, context: TrajectoryContext, timestep: int, kept: Kept | None, info: Any) -> None:
        """Go on with an episode, which was shown in earlier calls."""
        super().resume(context, timestep, kept, info)
        self._info = info

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin the trajectory that the worker has in hand; return the first observation, and the reset's info."""
        worker, index = self._worker, self._worker.trajectory
        assert index is not None
        context = self.context = self.context_of(index, seed)
        worker.enter(Phase.RESET)
        context.observation, self._info = begin_of(worker.begin_trajectory(context))
        return context.observation, self._info

    def get_action(self, observation: Any) -> Any:
        """Return what the worker's `before_step` does: an action, and the agent's info."""
        context = self.context
        assert context is not None
        context.observation = observation  # hooks had a copy, and may have changed it
        if self._masks is not None:
            context.takes_mask, context.action_mask = True, self._masks(observation, self._info)
        self._chosen = self._worker.before_step(context)
        return self._chosen

    def step(self, action: Any) -> Any:
        """Step the environment; return what the worker's `after_step` makes of it."""
        context = self.context
        assert context is not None
        context.action, self.agent_info = self._rounding.round(self._chosen[0]), self._chosen[1]
        return self._worker.after_step(context, context.env.step(action))

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Show a timestep that is recorded."""
        self._info = info
        super().timestep(observation, terminated, truncated, info)


# ----------------------------------------------------------------------


def with_copies(context: TrajectoryContext) -> TrajectoryContext:
    """Let a context show copies: environments may write to the same arrays again, and hooks may write to theirs."""
    context.observation, context.action = own_copy(context.observation), own_copy(context.action)
    if context.info:
        context.info = own_copy(context.info)
    if context.agent_info:
        context.agent_info = {**context.agent_info}  # its arrays are the agent's: to copy them, too, would take 1 µs
    return context


_LOG = logging.getLogger("streamsampler")
CREATED = "on_environment_created"
_NAMES = (CREATED, "on_trajectory_start", "on_timestep", "on_trajectory_end", "on_trajectory_lost")


@dataclass(frozen=True)
class Hooks:
    """The pickled arguments `hooks` and `drop_if` of a sampler.

    Attributes:
        hooks: The hooks; None if there are none.
        drop_if: The function; None if there is none.
        spared: The index of a trajectory that is run whatever its infos are; None for none.
    """

    hooks: Payload | None = None
    drop_if: Payload | None = None
    spared: int | None = None

    def sparing(self, index: int) -> Hooks:
        """Return the same, but for a trajectory that is run whatever its infos are."""
        return replace(self, spared=index)


def pickled_hooks(hooks: Any, drop_if: Any) -> Hooks | None:
    """Return what workers get of the two arguments of a sampler; None where there is neither.

    Raises:
        UsageError: The hooks have none of the methods, or one with another name, or `drop_if` is no function.
        SerializationError: One of them cannot be pickled.
    """
    if hooks is not None:
        _check_hooks(hooks)
    if drop_if is not None and not callable(drop_if):
        raise UsageError(f"drop_if must be a function of an info, got {drop_if!r}")
    if hooks is None and drop_if is None:
        return None
    return Hooks(_pickled(hooks, "hooks"), _pickled(drop_if, "drop_if"))


def _check_hooks(hooks: Any) -> None:
    if isinstance(hooks, type):
        raise UsageError(f"hooks must be an object, got the class {hooks.__qualname__}: pass {hooks.__qualname__}(…)")
    own = [name for name in dir(hooks) if name.startswith("on_") and callable(getattr(hooks, name))]
    if not own or not set(own) <= set(_NAMES):
        which = f"it has {', '.join(own)}" if own else "it has none of them"
        raise UsageError(f"hooks must be an object with methods {', '.join(_NAMES)}, or some of them; {which}")
    check_aggregation(getattr(hooks, "aggregation", {}))


def _pickled(given: Any, what: str) -> Payload | None:
    if given is None:
        return None
    payload = dumps(given, what)
    return Payload(payload.data, tuple(map(bytes, payload.buffers)))


class HookCaller:
    """Calls a worker's hooks, and `drop_if`.

    Args:
        worker: The worker, whose phase names the hook that is being called.
        given: What is called: copies of its own.

    Attributes:
        aggregation: How metrics become one number for a batch, by name; the mean where nothing is said.
    """

    def __init__(self, worker: Worker, given: Hooks) -> None:
        self._worker, self._spared = worker, given.spared
        hooks = None if given.hooks is None else loads(given.hooks)
        self._drop_if: Callable[[dict[str, Any]], Any] | None = None if given.drop_if is None else loads(given.drop_if)
        created, start, timestep, end, lost = (getattr(hooks, name, None) for name in _NAMES)
        self._on_created: Callable[[Any, int], Any] | None = created
        self._on_start, self._on_timestep, self._on_end, self._on_lost = start, timestep, end, lost
        self.aggregation: Mapping[str, str] = getattr(hooks, "aggregation", {})

    def created(self, env: AnyEnv) -> None:
        """Call the hook of an environment that was made."""
        if self._on_created is not None:
            phase = self._worker.phase
            self._worker.enter(Phase.HOOK_CREATED)
            self._on_created(env, self._worker.context.worker_number)
            self._worker.enter(phase)

    def start(self, context: TrajectoryContext) -> None:
        """Call the hook of the start, and look at the reset's info."""
        if self._on_start is not None:
            self._worker.enter(Phase.HOOK_START)
            self._on_start(with_copies(context))
        self._refuse_abnormal(context)

    def timestep(self, context: TrajectoryContext) -> None:
        """Call the hook of timesteps, and look at the step's info."""
        if self._on_timestep is not None:
            self._worker.enter(Phase.HOOK_TIMESTEP)
            self._on_timestep(with_copies(context))
        self._refuse_abnormal(context)

    def end(self, context: TrajectoryContext) -> None:
        """Call the hook of the end."""
        if self._on_end is not None:
            self._worker.enter(Phase.HOOK_END)
            self._on_end(with_copies(context))

    def lost(self, context: TrajectoryContext, error: BaseException) -> None:
        """Call the hook of lost trajectories; what it raises is a note of the error."""
        if self._on_lost is None or not isinstance(error, Exception | SystemExit):
            return
        phase = self._worker.phase
        self._worker.enter(Phase.HOOK_LOST)
        try:
            self._on_lost(with_copies(context), error)
        except (Exception, SystemExit) as further:
            note = f"on_trajectory_lost raised as well: {summary_of(further)}"
            error.add_note(note)
            _LOG.warning("%s, in trajectory %d", note, context.index)
        self._worker.enter(phase)

    def _refuse_abnormal(self, context: TrajectoryContext) -> None:
        if self._drop_if is None or context.index == self._spared:
            return
        self._worker.enter(Phase.DROP_IF)
        if self._drop_if(context.info):
            when = f"the info of timestep {context.timestep - 1}" if context.timestep else "the reset's info"
            raise AbnormalTrajectoryError(f"drop_if is true for {when}")


# ----------------------------------------------------------------------
# Say which trajectories of a ticket are left out, and why.


def raises_all(kinds: tuple[str, ...]) -> bool:  # noqa: ARG001 - it is a `WorkerContext.drop_unless`
    """Return true: what user code raises is raised, and only `drop_if` leaves out trajectories."""
    return True


def left_out_by(
    error: BaseException, phase: Phase, ticket: Ticket, failed: int, kept: Sequence[int]
) -> dict[int, Dropped]:
    """Return the trajectories to leave out because of an error, by their indices.

    Args:
        error: The exception.
        phase: What the worker was doing.
        ticket: The ticket in hand.
        failed: The trajectory that the error is about.
        kept: The indices that the positions in the error's `others` count.
    """
    others = {kept[position]: summary for position, summary in (error.others if isinstance(error, DataError) else ())}
    return {
        index: Dropped(ticket.indices.index(index), str(phase), summary)
        for index, summary in {failed: summary_of(error), **others}.items()
    }
