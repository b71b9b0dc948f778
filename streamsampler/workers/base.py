"""Define the base class of workers and the result of a ticket.

A subclass implements four methods and a property; see `streamsampler/docs/extending.md`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from streamsampler.core.errors import ActionError, CheckMode, DataError
from streamsampler.data.anomalies import Anomaly, AnomalyFinder
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import Rollouts
from streamsampler.data.taken_actions import check_taken
from streamsampler.environments.closing import close_env
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.environments.updates import AnyEnv, AnyVectorEnv, EnvUpdate, apply_env_update
from streamsampler.protocol.messages import Dropped, Phase, Ticket
from streamsampler.protocol.plans import Layout
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import class_names, locate, name_of_env, summary_of
from streamsampler.workers.resets import Resets

__all__ = ["AbnormalTrajectoryError", "Outcome", "Worker", "WorkerContext"]

_LOG = logging.getLogger("streamsampler")
_ROLLOUT_PHASES = {Phase.RESET, Phase.AGENT_RESET, Phase.ACTION, Phase.STEP, Phase.RECORDING}
_ROLLOUT_PHASES |= {Phase.HOOK_START, Phase.HOOK_TIMESTEP, Phase.HOOK_END, Phase.DROP_IF}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of a ticket.

    Attributes:
        rollouts: The ticket's trajectories in order; None if it was abandoned. Arrays may be views of the recorder's
            memory, valid until the next rollout.
        n_trajectories: Number of finished trajectories, including those of an abandoned ticket.
        n_timesteps: Their timesteps.
        n_abandoned: Number of trajectories stopped before their end.
        abandoned_timesteps: Their timesteps.
        seconds: Seconds of resets, of the agent and of steps. If all are 0, as by default, the worker loop times the
            whole rollout and counts it as steps.
        dropped: See `messages.Report`.
        metrics: See `messages.Report`.
        n_timed_out: See `messages.Report`.
    """

    rollouts: Rollouts | None
    n_trajectories: int
    n_timesteps: int
    n_abandoned: int = 0
    abandoned_timesteps: int = 0
    seconds: tuple[float, ...] = (0.0, 0.0, 0.0)
    dropped: tuple[Dropped, ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()
    n_timed_out: int = 0


class AbnormalTrajectoryError(Exception):
    """Drops a trajectory because `drop_if` returned true, although no code raised."""


def _nothing() -> None: ...


def _never() -> bool:
    return False


def _no_ticket(_number: int) -> None: ...


def _anomaly_error(anomaly: Anomaly, env: Any) -> DataError:
    error = DataError(anomaly.what, position=anomaly.position)
    locate(error, env, anomaly.timestep)
    return error


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Holds a worker's construction arguments.

    Attributes:
        row: The worker's row of the status board. Call `row.may_run(ticket.version)` between timesteps.
        worker_number: 0 to n-1.
        seed: The sampler's seed. Trajectories do not draw from it: `rollout` receives a seed for each.
        max_episode_length: Timesteps after which a trajectory is truncated; None for the environment's own limit.
        check: Treatment of suspicious data: "warn", "error", or None.
        drop_unless: If given, trajectories are dropped when they raise, unless it returns True for the names of the
            exception's classes.
        allocate: Allocates arrays for large rows, which are sent without a copy. Allocate new arrays for each ticket.
        hooks: The pickled hooks and `drop_if` (`workers.hooks.Hooks`), or None.
        record_taken: Key of the info with the executed action (`data.taken_actions`), or None.
        rebuild: Replaces agent and environment by new ones, in their state after the last update.
        step_timeout: Maximum seconds of a reset, step or action, for workers that wait.
        trajectory_timeout: Maximum seconds of a trajectory, for workers that wait.
    """

    row: WorkerRow
    worker_number: int = 0
    seed: int = 0
    max_episode_length: int | None = None
    check: CheckMode = None
    drop_unless: Callable[[tuple[str, ...]], bool] | None = None
    allocate: Allocate = np.empty
    rebuild: Callable[[], None] = _nothing
    hooks: Any = None
    record_taken: str | None = None
    step_timeout: float = math.inf
    trajectory_timeout: float = math.inf


class Worker(ABC):
    """Runs rollouts of an agent in one or several environments. See `streamsampler/docs/extending.md`.

    A trajectory depends on the worker's updates, the ticket and the seeds alone, neither on the worker's number nor on
    earlier tickets.

    Args:
        context: The construction arguments. A subclass may declare further keyword arguments: `worker_args`.

    Attributes:
        context: The construction arguments.
        row: The context's row of the status board.
        phase: The current activity, for error messages.
        trajectory: Index of the current trajectory, or None.
        ran_timesteps: Timesteps requested from environments for the current ticket, including those lost to an
            exception. The worker loop sets it to 0 before each ticket.
        running_timesteps: Timesteps already run of later tickets' trajectories.
        look_ahead: Returns the n-th ticket after the current ticket with its seeds, from n = 1; None if not received
            yet. Set by the worker loop.
        is_called_off: Returns whether a received message ends the current tickets. Set by the worker loop.
        descriptor: A file descriptor, readable when a message may have arrived, or None. Set by the worker loop.
        in_force: The payloads of the last updates, by "agent", "parameters", "filters" and "env". Set by the worker
            loop.
        load: Returns a new copy of a payload's object. Set by the worker loop.
        spoiled: Whether a trajectory was dropped without replacing agent and environment afterwards.
        can_drop: Whether this kind of worker can drop trajectories.
        resets: The call's seeds and reset options, or None. `rollout` receives these seeds.
        waits: Whether environments and agents may return awaitables. The worker then enforces `step_timeout` and
            `trajectory_timeout` itself and continues after them.
        can_take_options: Whether this kind of worker passes `resets.options_of(index)` to its environment's reset.
        can_call_hooks: Whether this kind of worker calls `WorkerContext.hooks`.
        hook_callers: A `workers.hooks.HookCaller` for each of the worker's own environments; empty without hooks.
        can_rehearse: Whether this kind of worker implements `rehearse`.
        can_play_several: Whether this kind of worker runs environments of several agents.
        can_continue: Whether this kind of worker runs fragments, described by `resets.fragments`.
        continues_side_by_side: Whether a ticket of fragments covers a group of as many environments as `layout` has
            rows, instead of all environments of the worker.
        further_envs: Number of environments made for whole trajectories while fragments occupy the earlier ones. The
            worker loop sets it to 0 with each report.
        has_ended_fragments: Whether the worker has lost all environments of suspended fragments. The worker loop sets
            it to False with each report.
        further_args: Names in `worker_args` meant for the engine.
        runs_lanes: Whether trajectories are independent although the layout's blocks allow influence. Known after the
            first updates. Tickets then need not be whole blocks.
        runs_longer_blocks: Whether a ticket's blocks run at their full length where the layout's blocks grow within a
            call, instead of at the layout's size.
        asks_for_rows: Whether agents need only `get_actions`.
        shares_agent: Whether the worker uses the user's agent object itself, with its current parameters.
        can_differ_side_by_side: Whether this kind of worker accepts a `PerEnv`: different environments for its rows.
        revision: Version of this kind of worker's algorithm, changed when equal seeds give other trajectories. Folders
            of shards refuse to resume under another revision.
    """

    can_drop = False
    can_call_hooks = False
    can_rehearse = False
    can_play_several = False
    can_continue = False
    continues_side_by_side = False
    can_take_options = False
    waits = False
    further_args: frozenset[str] = frozenset()
    runs_lanes = False
    runs_longer_blocks = False
    asks_for_rows = False
    shares_agent = False
    can_differ_side_by_side = False
    revision = ""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.row = context.row
        self.phase = Phase.WAITING
        self.trajectory: int | None = None
        self.ran_timesteps = 0
        self.running_timesteps = 0
        self.look_ahead: Callable[[int], tuple[Ticket, list[int]] | None] = _no_ticket
        self.is_called_off: Callable[[], bool] = _never
        self.descriptor: int | None = None
        self.in_force: Mapping[str, Any] = {}
        self.load: Callable[[Any], Any] = _no_ticket
        self.spoiled = False
        self.further_envs = 0
        self.has_ended_fragments = False
        self.resets: Resets | None = None
        self.hook_callers: Sequence[Any] = ()
        self._finder: AnomalyFinder | None = None
        self._warned_of: set[str] = set()

    @property
    def must_renew(self) -> bool:
        """Whether an environment update must make a new environment because the current one is in an unknown state."""
        return self.spoiled or (self.resets is not None and self.resets.tasks is not None)

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:  # noqa: ARG003 - for those whose layout depends on them
        """Return how this kind of worker runs trajectories of consecutive indices. Called in the sampler's process.

        Trajectories of a block may influence each other, as long as each is a function of the whole block: tickets are
        whole blocks, whatever the number of workers.

        Args:
            worker_args: The workers' further keyword arguments.
        """
        return Layout()

    @abstractmethod
    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent or load its new parameters (see `agents.updates.apply_agent_update`).

        A new agent receives the environment's spaces (see `agents.base.give_spaces`): `update_env` is called first.
        """

    @abstractmethod
    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment."""

    def need_environments(self, n: int) -> None:  # noqa: B027 - for those that make them as they are needed
        """Make environments until the worker has n, or its maximum."""

    def keep_fragments(self, base_version: int) -> None:  # noqa: B027 - for those that run fragments
        """Close the environments of fragments unless their episodes can resume; the worker's own stay open.

        Args:
            base_version: The version in which the resumable fragments started; 0 without such fragments.
        """

    @abstractmethod
    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, trajectory `ticket.indices[k]` with seed `seeds[k]`.

        Exceptions of agent and environment pass through; `phase` and `trajectory` then name the place.
        """

    def enter(self, phase: Phase) -> None:
        """Set the current phase, for error messages, progress bars and `step_timeout`."""
        self.phase = phase
        self.row.set_phase(phase)

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning, at most once for each subject."""
        if about not in self._warned_of:
            self._warned_of.add(about)
            _LOG.warning("%s", text)

    def set_trajectory(self, index: int) -> None:
        """Set the current trajectory, for error messages and progress bars."""
        self.trajectory = index
        self.row.begin_trajectory(index)

    def abandon(self) -> tuple[int, int]:
        """Abandon the running trajectories of later tickets.

        Returns:
            Their number and their timesteps.
        """
        return 0, 0

    def environments(self) -> Sequence[AnyEnv | AnyVectorEnv]:
        """Return the worker's environments, for `rehearse` and for the search for stateful wrappers."""
        return ()

    def make_env(self, update: EnvUpdate) -> AnyEnv:
        """Return a new environment for fragments."""
        return apply_env_update(update, None, several=self.can_play_several, waits=self.waits)

    def close_env(self, env: AnyEnv) -> None:
        """Close an environment made by `make_env`."""
        close_env(env)

    def stepped(self, env: Any) -> Any:
        """Return the object which is reset and stepped in place of an environment of `environments`."""
        return env

    def agent_version(self, ticket_version: int) -> int:
        """Return the agent version of the current ticket; see `Ticket`."""
        given = None if self.resets is None else self.resets.version
        return ticket_version if given is None else given

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run trajectories in stand-ins for the worker's environments and record nothing, to check their purity.

        Args:
            version: The current agent version.
            indices: As many trajectories as the worker runs side by side.
            seeds: Their seeds.
            stand_ins: Replacements for `environments`, in the same order. Call `take_agent_info(timestep, info)` of the
                first with each info of the agent, with `row` where each row has its own.

        Raises:
            BaseException: Any exception of agent, environment or stand-in.
        """
        raise NotImplementedError

    def drops(self, error: BaseException) -> bool:
        """Return whether an exception drops the current trajectory instead of ending the call."""
        drop_unless = self.context.drop_unless
        if drop_unless is None or self.trajectory is None or self.phase not in _ROLLOUT_PHASES:
            return False
        if isinstance(error, AbnormalTrajectoryError):
            return True
        return isinstance(error, (Exception, SystemExit)) and not drop_unless(class_names(error))

    def left_out_by(
        self, error: BaseException, ticket: Ticket, failed: int, kept: Sequence[int] = ()
    ) -> dict[int, Dropped]:
        """Return the trajectories which an exception drops, by index.

        These are `failed`, and those of `kept` at the positions in the exception's `others`.
        """
        found = {failed: summary_of(error)}
        for position, summary in error.others if isinstance(error, DataError) else ():
            found[kept[position]] = summary
        phase = str(self.phase)
        return {index: Dropped(ticket.indices.index(index), phase, summary) for index, summary in found.items()}

    def finished(self, finish: Callable[[], Rollouts], indices: Sequence[int], env: Any = None) -> Rollouts:
        """Return the rollouts of a recorder's `finish`; if it raises, set `phase` and `trajectory`.

        `env` is for error messages.
        """
        self.phase, self.trajectory = Phase.RECORDING, None
        self.row.set_phase(Phase.RECORDING)
        try:
            rollouts = finish()
            if self.context.record_taken is not None:
                check_taken(rollouts, self.context.record_taken, self.spaces[1])
            return rollouts if self.context.check is None else self._with_anomalies(rollouts, env)
        except DataError as error:
            if error.position is not None:
                self.trajectory = indices[error.position]
            locate(error, env, error.timestep)
            if isinstance(error, ActionError):
                self.phase = Phase.ACTION
            raise

    def finished_in_order(
        self, finish: Callable[[int | None], Rollouts], indices: Sequence[int], env: Any = None
    ) -> Rollouts:
        """Return the rollouts of `finished`; if several trajectories are invalid, raise the first one's error.

        `finish` receives the maximum number of trajectories to return, or None. The error does not depend on the order
        of the checks.
        """
        first: tuple[DataError, Phase, int | None] | None = None
        most: int | None = None
        while most != 0:
            try:
                rollouts = self.finished(partial(finish, most), indices, env)
            except DataError as error:
                first, most = (error, self.phase, self.trajectory), error.position or 0
                continue
            if first is None:
                return rollouts
            break
        assert first is not None
        earliest, self.phase, self.trajectory = first
        raise earliest

    def _with_anomalies(self, rollouts: Rollouts, env: Any) -> Rollouts:
        """Add anomalies to rollouts, or raise the first if `check` is "error", with the others in its `others`."""
        space = self.spaces[0]
        if isinstance(space, SpacesOfAgents) and not rollouts.policies:
            return rollouts  # fragments in which no agent received an observation
        if self._finder is None or self._finder.space is not space:
            self._finder = AnomalyFinder(space)
        anomalies = self._finder.find_in(rollouts)
        if not anomalies:
            return rollouts
        if self.context.check == "error":
            errors = [_anomaly_error(anomaly, env) for anomaly in anomalies]
            if self.context.drop_unless is not None:
                # All in a single error: after it, the remaining trajectories run again.
                found = zip(anomalies[1:], errors[1:], strict=True)
                errors[0].others = [(anomaly.position, summary_of(error)) for anomaly, error in found]
            raise errors[0]
        name = name_of_env(env)
        return replace(
            rollouts, anomalies=tuple(replace(anomaly, what=f"{name}: {anomaly.what}") for anomaly in anomalies)
        )

    @property
    @abstractmethod
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of a single trajectory."""

    @abstractmethod
    def shutdown(self) -> None:
        """Close the environment."""

    def end(self) -> None:  # noqa: B027 - for those that have more than environments
        """Release the worker's resources other than environments; the worker is not used afterwards."""
