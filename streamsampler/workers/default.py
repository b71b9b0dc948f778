"""Run trajectories in sequence in a single environment: the default worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from streamsampler.agents.base import Agent, acts_alone, is_agent, reset_agent_function
from streamsampler.agents.masks import MaskFinder
from streamsampler.agents.updates import has_rows_alone, name_of, updated_agent
from streamsampler.core.times import Times
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.spaces import same_spaces
from streamsampler.environments.closing import EnvCloseError, close_env
from streamsampler.environments.multi_agent import MultiAgentEnv, agents_of, refuse_other_agents
from streamsampler.environments.updates import AnyEnv, EnvUpdate, apply_env_update, as_given
from streamsampler.protocol.messages import Dropped, Phase, Ticket
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.explain import explain_rollout
from streamsampler.workers.finishing import timed
from streamsampler.workers.fragments import FragmentEnv, SequentialFragmentEnvs
from streamsampler.workers.hooks import HookCaller, Hooks
from streamsampler.workers.lending import LendingWorker
from streamsampler.workers.masks import finder_of
from streamsampler.workers.recorders import recorder_for
from streamsampler.workers.resets import reset_function
from streamsampler.workers.seams import OverridableSteps, WorkerWithSeams
from streamsampler.workers.several.fragments import MultiAgentFragmentEnv
from streamsampler.workers.several.parallel_loop import ParallelLoop
from streamsampler.workers.several.policy_set import EnvAgents, PolicySet
from streamsampler.workers.several.recorder import JointRecorder
from streamsampler.workers.single import SingleDriver


class DefaultWorker(LendingWorker, WorkerWithSeams):
    """Runs trajectories in sequence in a single environment.

    A subclass may override `begin_trajectory`, `before_step`, `after_step` and `end_trajectory`; see
    `streamsampler/docs/hooks-and-filters.md`, also for their cost.

    Args:
        context: The worker's construction arguments.
    """

    _running: SequentialFragmentEnvs | None

    can_drop = can_call_hooks = can_rehearse = can_play_several = can_continue = can_take_options = True

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._given: Any = None  # the user's agent, or agents by policy name
        self._agent: Agent | None = None  # returns the loops' actions; for several agents, their table
        self._players: PolicySet | None = None
        self._reset_agent: Callable[[int], None] | None = None
        self._masks: MaskFinder | None = None  # for an agent with an argument for masks
        self._env: gymnasium.Env[Any, Any] | None = None
        self._recorder: RolloutRecorder | None = None
        self._has_seams = self.overrides_seams()
        self.make_callers(1)
        self._last_info: Any = None  # of the last trajectory
        self._broken_off = Times()  # spent in `_roll` until the last exception

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent or load its new parameters."""
        self.phase = Phase.AGENT_CONSTRUCTION if self._agent is None else Phase.AGENT_UPDATE
        if self._players is not None and not is_agent(agent_update):
            self._players.update(agent_update)
            return
        several = self._env is not None and isinstance(self._env.unwrapped, MultiAgentEnv)
        spaces = None if self._env is None or several else self.spaces
        self._given = updated_agent(self._given, agent_update, spaces)
        self._seat()

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment.

        Raises:
            Exception: Any exception of the environment; the worker then has no environment until the next update.
        """
        self.phase = Phase.ENV_CONSTRUCTION
        self._leave_lent()
        old, self._env = self._env, None
        try:
            env = apply_env_update(env_update, old, several=True)
        except EnvCloseError:
            self.phase = Phase.CLOSE
            raise
        if as_given(env) is not as_given(old):
            self._tell_hooks_of(env)
        self._env = env
        self._seat()

    def _tell_hooks_of(self, env: AnyEnv) -> None:
        """Call the hook of a new environment; close the environment if that raises."""
        try:
            for caller in self.hook_callers:
                caller.created(env)
        except BaseException:
            with contextlib.suppress(Exception):
                close_env(env)
            raise

    def _seat(self) -> None:
        """Connect agent and environment, after an update of either. Several agents are represented by their table."""
        if self._env is None:
            return
        several, given, self._masks = self._env.unwrapped, self._given, None
        if not isinstance(several, MultiAgentEnv):
            self._players = None
            if given is not None and not (self.asks_for_rows or acts_alone(given)):
                raise has_rows_alone(name_of(given), type(self).__name__)
            self._agent, self._reset_agent = given, None if given is None else reset_agent_function(given)
            self._masks = None if given is None else finder_of(given, self._env, self.warn_once)
        elif given is not None:
            if self._players is not None and self._players.given is given:
                self._players.move_to([several])
            else:
                self._players = PolicySet(given, [several], self.warn_once)
            self._agent = table = self._players.tables[0]
            self._reset_agent = partial(self._begin_table, table)
        self._recorder = self._new_recorder(self.context.allocate)

    def _begin_table(self, table: EnvAgents, seed: int) -> None:
        assert self.trajectory is not None
        table.begin(self.trajectory, seed)

    def _new_recorder(self, allocate: Allocate = np.empty) -> RolloutRecorder | None:
        assert self._env is not None
        if self._players is None:
            # An environment of several agents is recorded only once its players are known.
            return None if agents_of(self._env) is not None else recorder_for(self._env, None, allocate)
        return recorder_for(self._env, self._players.tables[0], allocate)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of the environment."""
        assert self._env is not None
        return self._env.observation_space, self._env.action_space

    def environments(self) -> Sequence[AnyEnv]:
        """Return the environment, or an empty tuple before the first update."""
        return () if self._env is None else (self._env,)

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run a trajectory in a stand-in and record nothing."""
        env, self._env = self._env, stand_ins[0]
        recorder = self._new_recorder()
        assert recorder is not None
        recorder.record_agent_info = stand_ins[0].take_agent_info
        try:
            self._roll(version, indices, seeds, recorder, rehearsing=True)
        finally:
            self._env = env

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories."""
        if self.resets is not None and (order := self.resets.fragments) is not None:
            if self._running is None:
                kind = FragmentEnv if self._players is None else MultiAgentFragmentEnv
                self._running = SequentialFragmentEnvs(self, order.base_version, kind)
            return self._running.run(ticket, self.resets, order)
        self._take_environments()
        if self.context.drop_unless is not None:
            return self._rollout_dropping(ticket, seeds)
        recorder = self._recorder
        assert recorder is not None
        recorder.clear()
        abandoned_timesteps, seconds = self._roll(ticket.version, ticket.indices, seeds, recorder)
        return self._outcome(recorder, ticket.indices, abandoned_timesteps, seconds)

    def _outcome(
        self,
        recorder: RolloutRecorder,
        indices: Sequence[int],
        abandoned_timesteps: int,
        seconds: Times,
        dropped: tuple[Dropped, ...] = (),
    ) -> Outcome:
        n_trajectories, n_timesteps = recorder.n_trajectories, recorder.n_timesteps
        abandoned = abandoned_timesteps >= 0
        return Outcome(
            rollouts=self.finished(recorder.finish, indices, self._env) if n_trajectories and not abandoned else None,
            n_trajectories=n_trajectories,
            n_timesteps=n_timesteps,
            n_abandoned=int(abandoned),
            abandoned_timesteps=max(0, abandoned_timesteps),
            seconds=seconds,
            dropped=() if abandoned else dropped,
            metrics=tuple(recorder.metrics.items()),
        )

    def _rollout_dropping(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories and drop those which raise.

        After each drop, agent and environment are replaced: they may be in any state, and the next trajectory must not
        depend on it.
        """
        seconds = Times()
        if self.spoiled:
            self.spoiled = False
            seconds = timed(self.context.rebuild)
        seed_of = dict(zip(ticket.indices, seeds, strict=True))
        left_out: dict[int, Dropped] = {}
        assert self._recorder is not None
        self._recorder.clear()
        todo = kept = list(ticket.indices)
        while True:
            recorder, env, spaces, finishing = self._recorder, self._env, self.spaces, False
            try:
                abandoned, more = self._roll(ticket.version, todo, [seed_of[index] for index in todo], recorder)
                seconds = seconds.plus(more)
                finishing = True
                kept = [index for index in ticket.indices if index not in left_out]
                dropped = sorted(left_out.values())
                return self._outcome(recorder, kept, abandoned, seconds, tuple(dropped))
            except BaseException as error:
                if not self.drops(error):
                    raise
                if not finishing:
                    seconds = seconds.plus(self._broken_off)
                failed = self.trajectory
                assert failed is not None
                left_out.update(self.left_out_by(error, ticket, failed, kept))
            self.trajectory = None
            recorder.abandon()
            if not self.row.may_run(ticket.version):
                self.spoiled = True  # not rebuilt here: the payloads of this version may be freed already
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)
            seconds = seconds.plus(timed(self.context.rebuild))
            self._refuse_other_agents(env)
            if finishing or not same_spaces(self.spaces, spaces):
                # Recorded data is invalid, or has other spaces than later data: run the remaining trajectories again.
                self._recorder.clear()
                todo = [index for index in ticket.indices if index not in left_out]
            else:
                self._continue_recording(recorder)
                todo = todo[todo.index(failed) + 1 :]

    def _refuse_other_agents(self, env: AnyEnv | None) -> None:
        """Raise if the new environment has other agents than the old: batches identify agents by number."""
        assert env is not None
        assert self._env is not None
        self.phase = Phase.ENV_CONSTRUCTION
        refuse_other_agents(env.unwrapped, self._env.unwrapped)

    def _continue_recording(self, recorder: RolloutRecorder) -> None:
        if isinstance(recorder, JointRecorder) and isinstance(self._recorder, JointRecorder):
            recorder.use_env_agents(self._recorder.env, self._recorder.table)
        self._recorder = recorder

    def _roll(
        self, version: int, indices: Sequence[int], seeds: list[int], recorder: RolloutRecorder,
        rehearsing: bool = False,
    ) -> tuple[int, Times]:  # fmt: skip
        """Run trajectories in sequence.

        Returns:
            -1, or the timesteps after which a trajectory was abandoned; and the seconds of reset, agent and step.
        """
        hooks, env, agent = () if rehearsing else self.hook_callers, self._env, self._agent
        assert env is not None
        seams = None
        if hooks or self._has_seams:
            seams = OverridableSteps(
                self, hooks[0] if hooks else HookCaller(self, Hooks()), version, agent, env=env, recorder=recorder,
                reset_agent=self._reset_agent, masks=self._masks,
            )  # fmt: skip
        elif (
            isinstance(recorder, JointRecorder) and recorder.suits_fast_loop and not rehearsing
            and env.step == recorder.env.step  # no wrapper, such as for films, lies between
        ):  # fmt: skip
            return self._run_parallel(version, indices, seeds, recorder)
        driver = SingleDriver(
            self, version, recorder, env, reset_function(env, self.resets, indices), agent, self._reset_agent,
            seams=seams, masks=self._masks,
        )  # fmt: skip
        try:
            abandoned_timesteps = driver.run(driver.whole(indices, seeds))
        finally:
            self._broken_off = driver.seconds
        return abandoned_timesteps, driver.seconds

    def _run_parallel(
        self, version: int, indices: Sequence[int], seeds: list[int], recorder: JointRecorder
    ) -> tuple[int, Times]:
        assert self._env is not None
        assert self._reset_agent is not None
        loop = ParallelLoop(self, recorder, reset_function(self._env, self.resets, indices), self._reset_agent)
        try:
            abandoned_timesteps = loop.run(version, indices, seeds)
        except BaseException as error:
            self.phase, self._broken_off = loop.phase, loop.seconds
            explain_rollout(
                self, error, loop.actions, self._env, recorder, asking=loop.timesteps, stepping=loop.timesteps
            )
            raise
        return abandoned_timesteps, loop.seconds

    def shutdown(self) -> None:
        """Close the environment."""
        self.phase, self.trajectory = Phase.CLOSE, None
        self._leave_lent()
        env, self._env = self._env, None
        if env is not None:
            close_env(env)

    def _leave_lent(self) -> None:
        if self._lends():
            self._env = None
