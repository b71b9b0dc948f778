"""The base class of workers, and the result of a ticket.

A worker runs tickets: ranges of trajectories of one agent version. A subclass writes four methods and a property, and
is passed as `worker_class`. The guide is `streamsampler/docs/extending.md`.
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
from streamsampler.data.taken import check_taken
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
    """The result of a ticket.

    Attributes:
        rollouts: The ticket's trajectories in order; None if the ticket was given up.
            The arrays may be the recorder's own memory, valid until the next rollout.
        n_trajectories: Trajectories that were finished, those of `rollouts` if there are any.
        n_timesteps: Their timesteps.
        n_abandoned: Rollouts that were cut short.
        abandoned_timesteps: Their timesteps.
        seconds: Seconds of resets, of the agent and of steps; a tuple of three will do. Where all are 0, as by default,
            the worker loop measures the whole rollout, and counts it as steps.
        dropped: The trajectories that raised and were left out; see `messages.Report`.
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
    """A trajectory is to be left out, although nothing raised in it: `drop_if` was true."""


def _nothing() -> None:
    """Do nothing."""


def _never() -> bool:
    """Have received nothing."""
    return False


def _no_ticket(_number: int) -> None:
    """Hold no later ticket."""


def _anomaly_error(anomaly: Anomaly, env: Any) -> DataError:
    error = DataError(anomaly.what, position=anomaly.position)
    locate(error, env, anomaly.timestep)
    return error


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a worker is made with: its place, its limits, and what to do about bad data and failing trajectories.

    Attributes:
        row: The worker's row of the shared board. Call `row.may_run(ticket.version)` between timesteps.
        worker_number: 0 to n-1.
        seed: The sampler's seed. Trajectories do not draw from it: `rollout` is given a seed for each.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
        check: What to do about data that may be wrong: "warn", "error", or None for nothing.
        drop_unless: None, or trajectories that raise are left out, unless this function returns True for the names of
            the exception's classes.
        allocate: Makes the arrays that large rows are best recorded into: what lies there need not be copied to be
            sent. Make new ones for each ticket.
        hooks: The pickled hooks and `drop_if` (`workers.hooks.Hooks`); None for none.
        record_taken: In which info environments say which action they took (`data.taken`); None where they do not.
        rebuild: Replaces agent and environment by new ones, as they were at the last update.
        step_timeout: Seconds that a reset, a step or an action may take, for workers that wait.
        trajectory_timeout: Seconds that a trajectory may take, likewise.
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
    """Runs rollouts: one agent in one environment, or in several. See `streamsampler/docs/extending.md`.

    What a worker does is a function of its updates, the ticket and the seeds alone, not of its number, nor of what it
    ran before.

    Args:
        context: What the worker is made with. A subclass may take further keyword arguments: `worker_args`.

    Attributes:
        context: The same.
        row: The context's row of the shared board.
        phase: What it is doing, for error messages.
        trajectory: Index of the trajectory in hand, or None.
        ran_timesteps: Timesteps of the ticket in hand that environments were asked for, those included that are in no
            outcome because something raised; for the accounts. The worker loop sets it to 0 before each ticket.
        running_timesteps: Timesteps of later tickets' trajectories that run already, and are in no outcome yet.
        look_ahead: Takes a number, 1 for the next, and returns that ticket after the one in hand, with its seeds; None
            if the worker does not hold it yet. The worker loop sets it.
        is_called_off: Returns whether a message has come that ends the tickets in hand. The worker loop sets it.
        descriptor: Of a file that can be read when a message may have come; None where there is none. The worker loop
            sets it.
        in_force: The payloads of the last updates, by "agent", "parameters", "filters" and "env". The worker loop sets
            it.
        load: Returns a new copy of what a payload stands for. The worker loop sets it.
        spoiled: Whether a trajectory was left out after which agent and environment were not replaced.
        can_drop: Whether this kind of worker can leave out trajectories.
        resets: The seeds and the reset options that a call was given; None if it was given none. The seeds are those
            that `rollout` gets.
        waits: Whether its environments and agents may have to be awaited. It keeps `step_timeout` and
            `trajectory_timeout` itself, and goes on.
        can_take_options: Whether this kind of worker hands `resets.options_of(index)` to its environment's reset.
        can_call_hooks: Whether this kind of worker calls `WorkerContext.hooks`.
        hook_callers: What calls them, for each of its own environments (`workers.hooks.HookCaller`); none without
            hooks.
        can_rehearse: Whether this kind of worker has `rehearse`.
        can_play_several: Whether this kind of worker runs environments of several agents.
        can_continue: Whether this kind of worker runs fragments, of which `resets.fragments` says what is to be run.
        continues_side_by_side: Whether a ticket of fragments has one group of environments, as many as `layout` has
            rows; otherwise it has all environments that the worker has.
        further_envs: How many environments were made for whole trajectories, because fragments go on in those that the
            worker had. The worker loop sets it to 0 with each report.
        has_ended_fragments: Whether the worker has none of the environments any more that fragments went on in. The
            worker loop sets it to False with each report.
        further_args: Names in `worker_args` that are for the engine.
        runs_lanes: Whether no trajectory influences another one, although the layout's blocks say that some may: it is
            known after the first updates, and holds until agent or environment are replaced. Then tickets need not be
            whole blocks.
        runs_longer_blocks: Whether a ticket's blocks are run as they are, where the layout's blocks get longer within a
            call; otherwise in blocks of the layout's size. It is known as `runs_lanes` is.
        asks_for_rows: Whether agents need nothing but `get_actions`.
        shares_agent: Whether its agent is the user's own, which has its parameters, and may have learnt since.
        can_differ_side_by_side: Whether this kind of worker takes a `PerEnv`: other environments for its rows.
        revision: What this kind of worker does otherwise than it once did, where that makes other trajectories of the
            same seeds: a folder of shards says so, and one that was begun before is not resumed.
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
        """Whether an environment in force is to be made again: something was left in the one that the worker has."""
        return self.spoiled or (self.resets is not None and self.resets.tasks is not None)

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:  # noqa: ARG003 - for those whose layout depends on them
        """Return how such a worker runs the trajectories of consecutive indices.

        The trajectories of a block may influence each other, as long as each is a function of the whole block: tickets
        are whole blocks, whatever the number of workers. The sampler calls this in its own process.

        Args:
            worker_args: The further keyword arguments that workers are made with.
        """
        return Layout()

    @abstractmethod
    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or hand it new parameters (see `agents.updates.apply_agent_update`).

        A new agent gets the environment's spaces (see `agents.base.give_spaces`): `update_env` is called first.
        """

    @abstractmethod
    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment."""

    def need_environments(self, n: int) -> None:  # noqa: B027 - for those that make them as they are needed
        """Make environments until there are n, or as many as the worker may have."""

    def keep_fragments(self, base_version: int) -> None:  # noqa: B027 - for those that run fragments
        """Close the environments of fragments, unless their episodes go on; the worker's own stay open.

        Args:
            base_version: The version in which the fragments began whose episodes go on; 0 where none do.
        """

    @abstractmethod
    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, trajectory `ticket.indices[k]` from `seeds[k]`.

        What agent or environment raise is not caught; `phase` and `trajectory` say where it was raised.
        """

    def enter(self, phase: Phase) -> None:
        """Note what the worker is doing, for error messages, progress bars and `step_timeout`."""
        self.phase = phase
        self.row.set_phase(phase)

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning, unless there was one about the same thing."""
        if about not in self._warned_of:
            self._warned_of.add(about)
            _LOG.warning("%s", text)

    def take_in_hand(self, index: int) -> None:
        """Note which trajectory the worker has in hand, for error messages and progress bars."""
        self.trajectory = index
        self.row.begin_trajectory(index)

    def abandon(self) -> tuple[int, int]:
        """Forget the trajectories of later tickets that run already: their tickets are given up.

        Returns:
            How many they are, and how many timesteps they had.
        """
        return 0, 0

    def environments(self) -> Sequence[AnyEnv | AnyVectorEnv]:
        """Return the worker's environments, for `rehearse` and to look for wrappers that do not go with workers."""
        return ()

    def make_env(self, update: EnvUpdate) -> AnyEnv:
        """Return a new environment, for `fragments`."""
        return apply_env_update(update, None, several=self.can_play_several, waits=self.waits)

    def close_env(self, env: AnyEnv) -> None:
        """Close an environment that `make_env` returned."""
        close_env(env)

    def stepped(self, env: Any) -> Any:
        """Return what is reset and stepped for one of `environments`."""
        return env

    def agent_version(self, ticket_version: int) -> int:
        """Return the agent version of a ticket in hand; see `Ticket`."""
        given = None if self.resets is None else self.resets.version
        return ticket_version if given is None else given

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run trajectories side by side, in `stand_ins` for the worker's environments, and keep nothing of them.

        With it the sampler checks that a trajectory depends on its seed alone.

        Args:
            version: The agent version in hand.
            indices: As many trajectories as the worker runs side by side, which is one in each environment.
            seeds: Their seeds.
            stand_ins: What to call instead of `environments`, in their order. `take_agent_info(timestep, info)` of the
                first one is to be called with each info of the agent; with a row, too, where each has its own.

        Raises:
            BaseException: What agent, environment or stand-in raises.
        """
        raise NotImplementedError

    def drops(self, error: BaseException) -> bool:
        """Return whether to leave out the trajectory in hand because of an exception, instead of raising it."""
        drop_unless = self.context.drop_unless
        if drop_unless is None or self.trajectory is None or self.phase not in _ROLLOUT_PHASES:
            return False
        if isinstance(error, AbnormalTrajectoryError):
            return True
        return isinstance(error, (Exception, SystemExit)) and not drop_unless(class_names(error))

    def left_out_by(
        self, error: BaseException, ticket: Ticket, failed: int, kept: Sequence[int] = ()
    ) -> dict[int, Dropped]:
        """Return the trajectories to leave out because of an exception, by their indices.

        Args:
            error: The exception.
            ticket: The ticket in hand.
            failed: The trajectory that the exception is about.
            kept: The indices that the positions in the exception's `others` count.
        """
        found = {failed: summary_of(error)}
        for position, summary in error.others if isinstance(error, DataError) else ():
            found[kept[position]] = summary
        phase = str(self.phase)
        return {index: Dropped(ticket.indices.index(index), phase, summary) for index, summary in found.items()}

    def finished(self, finish: Callable[[], Rollouts], indices: Sequence[int], env: Any = None) -> Rollouts:
        """Return what a recorder's `finish` returns; if that raises, set `phase` and `trajectory`.

        Args:
            finish: The recorder's method.
            indices: The ticket's trajectory indices.
            env: The environment, for error messages.
        """
        self.phase, self.trajectory = Phase.RECORDING, None
        self.row.set_phase(Phase.RECORDING)
        try:
            rollouts = finish()
            if self.context.record_taken is not None:
                check_taken(rollouts, self.context.record_taken, self.spaces[1])
            return rollouts if self.context.check is None else self._looked_through(rollouts, env)
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
        """Return what `finished` returns; if several trajectories are wrong, raise the error of the first one.

        So the error does not depend on what is looked at first.

        Args:
            finish: The recorder's method, which takes the number of trajectories it is to return at most, or None.
            indices: The ticket's trajectory indices.
            env: The environment, for error messages.
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

    def _looked_through(self, rollouts: Rollouts, env: Any) -> Rollouts:
        """Add the trajectories that may be wrong.

        Raises:
            DataError: There is one, and `check` is "error"; where trajectories are left out, `others` has
                the others.
        """
        space = self.spaces[0]
        if isinstance(space, SpacesOfAgents) and not rollouts.policies:
            return rollouts  # of fragments in which no agent was answered
        if self._finder is None or self._finder.space is not space:
            self._finder = AnomalyFinder(space)
        anomalies = self._finder.find_in(rollouts)
        if not anomalies:
            return rollouts
        if self.context.check == "error":
            errors = [_anomaly_error(anomaly, env) for anomaly in anomalies]
            if self.context.drop_unless is not None:
                # All at once, since all others are run again.
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
        """Close what the worker had besides environments: it is used no more."""
