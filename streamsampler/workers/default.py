"""The default worker: one environment, one trajectory after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.agents.base import Agent, acts_alone, is_agent, reset_agent_function
from streamsampler.agents.masks import MaskFinder
from streamsampler.agents.updates import has_rows_alone, name_of, updated_agent
from streamsampler.core.errors import ActionError
from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.core.timing import used
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.spaces import FLAGS
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import AnyEnv, EnvCloseError, EnvUpdate, apply_env_update, as_given
from streamsampler.protocol.messages import Dropped, Phase, Ticket, Times
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import begin_of, explain_rollout
from streamsampler.workers.finishing import record_last_value, shares, timed
from streamsampler.workers.fragments import Course, CourseSeams, RunningEnvs
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.hooks import HookCaller, Hooks, Seams, WorkerWithSeams, left_out_by
from streamsampler.workers.masks import finder_of, masked_loop
from streamsampler.workers.resets import reset_function
from streamsampler.workers.restoring import AS_GIVEN, Rounding, own_copy
from streamsampler.workers.several.loop import ParallelLoop
from streamsampler.workers.several.players import Players, refuse_for_several
from streamsampler.workers.several.recorder import JointRecorder

_NO_LIMIT = 2**62

_PROGRESS_SECONDS = 1e-2
"""How old a worker's progress on the board may be. Writing a word, or reading the clock twice, in each timestep costs 1
to 2 % of a cheap environment's speed. With a network, which pushes this code out of the processor's caches, doing so in
one timestep of eight cost 1 %. So it is done once in as many timesteps as take about this long, or in
`_MOST_APART` of them. `StatusBoard.request_progress` asks for each timestep."""
_MOST_APART = 64


class _NoClass:
    """The class of nothing."""


_RESET, _AGENT_RESET, _RECORDING = Phase.RESET, Phase.AGENT_RESET, Phase.RECORDING
_ACTION, _STEP = Phase.ACTION, Phase.STEP
_RESET_NUMBER, _AGENT_RESET_NUMBER = phase_number(Phase.RESET), phase_number(Phase.AGENT_RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)


class DefaultWorker(WorkerWithSeams):
    """Runs one trajectory after the other in one environment.

    A subclass may override `begin_trajectory`, `before_step`, `after_step` and `end_trajectory`: see `hooks`, which has
    what it costs.

    Args:
        context: What the worker is made with.
    """

    can_drop = can_call_hooks = can_rehearse = can_play_several = can_continue = can_take_options = True

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._given: Any = None  # the agent that the worker was given
        self._agent: Agent | None = None  # what the loops ask: of several agents, those who play them
        self._reset_agent: Callable[[int], None] | None = None
        self._masks: MaskFinder | None = None  # for an agent that takes them
        self._env: gymnasium.Env[Any, Any] | None = None
        self._recorder: RolloutRecorder | None = None
        self._running: RunningEnvs | None = None
        self.hook_callers = () if context.hooks is None else (HookCaller(self, context.hooks),)
        self._last_info: Any = None  # of the last trajectory
        self._broken_off = Times()  # what the trajectories took that ended with the last exception

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or hand it new parameters."""
        self.phase = Phase.AGENT_CONSTRUCTION if self._agent is None else Phase.AGENT_UPDATE
        if isinstance(self._agent, Players) and not is_agent(agent_update):
            self._agent.update(agent_update)
            return
        several = self._env is not None and isinstance(self._env.unwrapped, MultiAgentEnv)
        spaces = None if self._env is None or several else self.spaces
        self._given = updated_agent(self._given, agent_update, spaces)
        self._seat()

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment.

        Raises:
            Exception: What the environment raises; then there is no environment until the next update.
        """
        self._forget_running()
        self.phase = Phase.ENV_CONSTRUCTION
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
        """Call the hook of an environment that was made, and close it if that raises."""
        try:
            for caller in self.hook_callers:
                caller.created(env)
        except BaseException:
            with contextlib.suppress(Exception):
                env.close()
            raise

    def _seat(self) -> None:
        """Bring agent and environment together: of several agents, who plays them stands where an agent stands."""
        if self._env is None:
            return
        several, given, self._masks = self._env.unwrapped, self._given, None
        if not isinstance(several, MultiAgentEnv):
            if given is not None and not (self.asks_for_rows or acts_alone(given)):
                raise has_rows_alone(name_of(given), type(self).__name__)
            self._agent, self._reset_agent = given, None if given is None else reset_agent_function(given)
            self._masks = None if given is None else finder_of(given, self._env, self.warn_once)
        elif given is not None:
            if isinstance(self._agent, Players) and self._agent.given is given:
                self._agent.move_to(several)
            else:
                self._agent = Players(given, several, self.warn_once)
            self._reset_agent = partial(self._begin_players, self._agent)
        self._recorder = self._new_recorder(self.context.allocate)

    def _begin_players(self, players: Players, seed: int) -> None:
        assert self.trajectory is not None
        players.begin(self.trajectory, seed)

    def _new_recorder(self, allocate: Allocate = np.empty) -> RolloutRecorder | None:
        assert self._env is not None
        if not isinstance(self._env.unwrapped, MultiAgentEnv):
            return RolloutRecorder(self._env.observation_space, self._env.action_space, allocate)
        if not isinstance(self._agent, Players):  # there is no agent yet
            return None
        return JointRecorder(self._env.unwrapped, self._agent, allocate)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of the environment."""
        assert self._env is not None
        return self._env.observation_space, self._env.action_space

    def environments(self) -> Sequence[AnyEnv]:
        """Return the environment, if there is one."""
        return () if self._env is None else (self._env,)

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run a trajectory in a stand-in, and keep nothing of it."""
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
        if self.resets is not None and isinstance(self._agent, Players):
            refuse_for_several(self.resets)
        if self.resets is not None and (order := self.resets.fragments) is not None:
            if self._running is None or self._running.base_version != order.base_version:
                self._forget_running()
                self._running = RunningEnvs(self, order.base_version)
            return self._running.run(ticket, self.resets, order, self.run_course)
        if self.context.drop_unless is not None:
            return self._rollout_dropping(ticket, seeds)
        recorder = self._recorder
        assert recorder is not None
        recorder.clear()
        abandoned_timesteps, seconds = self._roll(ticket.version, ticket.indices, seeds, recorder)
        return self._outcome(recorder, ticket.indices, abandoned_timesteps, seconds)

    def run_course(self, version: int, course: Course, recorder: RolloutRecorder) -> tuple[int, Times]:
        """Run the episodes of an environment's fragment; returns what `_run` does."""
        own = self._env, self._agent, self._reset_agent, self.resets, self._masks
        env = cast("AnyEnv", course)  # which knows itself with which options to reset
        self._env, self._agent, self._reset_agent, self.resets = env, course.agent, course.reset_agent, None
        self._masks = course.masks
        try:
            seams = None if course.caller is None else CourseSeams(self, course, version, recorder)
            return self._run(
                version, course.indices(), course.seeds(), recorder, course.lengths(), course.rounding, seams
            )
        finally:
            course.info = self._last_info
            self._env, self._agent, self._reset_agent, self.resets, self._masks = own

    def _outcome(
        self,
        recorder: RolloutRecorder,
        indices: Sequence[int],
        abandoned_timesteps: int,
        seconds: Times,
        dropped: tuple[Dropped, ...] = (),
    ) -> Outcome:
        n_trajectories, n_timesteps = recorder.n_trajectories, recorder.n_timesteps
        given_up = abandoned_timesteps >= 0
        return Outcome(
            rollouts=self.finished(recorder.finish, indices, self._env) if n_trajectories and not given_up else None,
            n_trajectories=n_trajectories,
            n_timesteps=n_timesteps,
            n_abandoned=int(given_up),
            abandoned_timesteps=max(0, abandoned_timesteps),
            seconds=seconds,
            dropped=() if given_up else dropped,
            metrics=tuple(recorder.metrics.items()),
        )

    def _rollout_dropping(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, and leave out those that raise.

        After each of those agent and environment are replaced: they may be in any state, and the next trajectory must
        not depend on it.
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
            recorder, spaces, finishing = self._recorder, self.spaces, False
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
                left_out.update(left_out_by(error, self.phase, ticket, failed, kept))
            self.trajectory = None
            recorder.abandon()
            if not self.row.may_run(ticket.version):
                self.spoiled = True  # the payloads of this version may be freed already
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)
            seconds = seconds.plus(timed(self.context.rebuild))
            if finishing or self.spaces != spaces:
                # Recorded data is wrong, or of other spaces than the data to come: run the others once more.
                self._recorder.clear()
                todo = [index for index in ticket.indices if index not in left_out]
            else:
                self._go_on_with(recorder)
                todo = todo[todo.index(failed) + 1 :]

    def _go_on_with(self, recorder: RolloutRecorder) -> None:
        """Go on with a recorder, although agent and environment are new."""
        if isinstance(recorder, JointRecorder) and isinstance(self._recorder, JointRecorder):
            recorder.go_on_with(self._recorder)
        self._recorder = recorder

    def _roll(
        self, version: int, indices: Sequence[int], seeds: list[int], recorder: RolloutRecorder,
        rehearsing: bool = False,
    ) -> tuple[int, Times]:  # fmt: skip
        """Run trajectories in one of the two loops; see `_run`."""
        hooks, env, agent = () if rehearsing else self.hook_callers, self._env, self._agent
        assert env is not None
        seams = None
        if hooks or self.overrides_seams():
            seams = Seams(
                self, hooks[0] if hooks else HookCaller(self, Hooks()), version, agent, env=env, recorder=recorder,
                reset_agent=self._reset_agent, masks=self._masks,
            )  # fmt: skip
        elif (
            isinstance(recorder, JointRecorder) and recorder.suits_fast_loop and not rehearsing
            and env.step == recorder.env.step  # no wrapper, such as one that films, comes in between
        ):  # fmt: skip
            return self._run_parallel(version, indices, seeds, recorder)
        return self._run(version, indices, seeds, recorder, seams=seams)

    def _run_parallel(
        self, version: int, indices: Sequence[int], seeds: list[int], recorder: JointRecorder
    ) -> tuple[int, Times]:
        """Run trajectories of several agents; see `_run`."""
        assert self._env is not None
        assert self._reset_agent is not None
        loop = ParallelLoop(self, recorder, reset_function(self._env, self.resets, indices), self._reset_agent)
        try:
            abandoned_timesteps = loop.run(version, indices, seeds)
        except BaseException as error:
            self.phase, self._broken_off = loop.phase, loop.seconds
            self._explain(error, loop.phase, loop.actions, loop.timesteps)
            raise
        return abandoned_timesteps, loop.seconds

    def _run(  # noqa: C901 - see below
        self, version: int, indices: Iterable[int], seeds: Iterable[int], recorder: RolloutRecorder,
        lengths: Iterable[int] | None = None, rounding: Rounding = AS_GIVEN, seams: Seams | None = None,
    ) -> tuple[int, Times]:  # fmt: skip
        """Run trajectories, one after the other.

        This is what the package's speed is made of, so it is written out in one function, with everything it touches
        in local variables, the phases included (an enum's member costs 100 ns to look up on Python 3.11).

        Without `lengths` each may have `max_episode_length` timesteps. Of iterators the next items are asked for after
        each trajectory. The environment is stepped with actions as `rounding` gives them. With `seams` each timestep is
        due, and shown to them.

        Returns:
            -1, or the timesteps after which a trajectory was abandoned; and the seconds of reset, agent and step.
        """
        env, agent, reset_agent = self._env, self._agent, self._reset_agent
        n_before = recorder.n_timesteps
        assert env is not None
        assert agent is not None
        in_recording, in_action, in_step = _RECORDING, _ACTION, _STEP
        in_reset: Phase | None = _RESET
        reset, step = reset_function(env, self.resets, indices), env.step
        get_action, clock = agent.get_action, perf_counter
        record_observation, record_action = recorder.record_observation, recorder.record_action
        # Where a list may not be appended to, no observation has this dtype, and no action the class.
        observations = cast("list[bytes]", recorder.encoded_observations)
        dtype, shape = recorder.observation_dtype, recorder.observation_shape
        actions, rewards = cast("list[int]", recorder.integer_actions), recorder.float_rewards
        plain_action, flag_classes = _NoClass if actions is None else int, FLAGS
        plain_reward = _NoClass if isinstance(recorder, JointRecorder) else float  # of several agents it is a dict
        rounded_dtype, rounded = rounding
        row, lengths = self.row, lengths or repeat(self.context.max_episode_length or _NO_LIMIT)
        words, timesteps_word = row.words, row.timesteps_word
        attention: Any = row.attention
        phase_word, trajectory_word = row.phase_word, row.trajectory_word
        is_used = used()  # then each timestep is due: what user code times belongs to the phase on the board
        due = n_before
        terminated = truncated = False
        reset_seconds = agent_seconds = step_seconds = 0.0
        phase: Phase | None = in_recording  # None: what is called there notes the worker's phase itself
        observation: Any = None
        action: Any = None
        if seams is not None:
            reset, get_action, step, reset_agent = seams.reset, seams.get_action, seams.step, None
            attention, in_reset = True, None
        elif self._masks is not None:
            reset, get_action, step = masked_loop(self._masks, reset, get_action, step)
        began = clock()
        # A trajectory: a reset, then timesteps (record the observation, act, step, record the rest) until it ends.
        # The environment ends it, or the limit does (both break); a newer version ends the whole ticket (return).
        # The timestep that is due, number `due` of the ticket, looks at the limit, shows progress on the board, is
        # timed, and sets when the next one is due. While the sampler asks for attention, every timestep is due.
        try:
            for index, seed, max_length in zip(indices, seeds, lengths, strict=False):
                self.trajectory = index
                words[trajectory_word] = index + 1
                words[phase_word] = _RESET_NUMBER
                phase = in_reset
                begin = clock()
                seed_generators(seed)
                observation, info = begin_of(reset(seed=seed))
                if reset_agent is not None:
                    phase = _AGENT_RESET
                    words[phase_word] = _AGENT_RESET_NUMBER
                    reset_agent(derived_seed(seed, Stream.AGENT))
                reset_seconds += clock() - begin
                phase = in_recording
                start = recorder.begin(info)
                limit = start + max_length
                if seams is not None:
                    phase = None
                    seams.start(info)
                    phase = in_recording
                words[phase_word] = _STEP_NUMBER
                if attention:
                    due = 0
                while True:
                    if is_due := len(rewards) >= due:
                        if len(rewards) >= limit:
                            break
                        words[timesteps_word] = len(rewards)
                    # Before the agent sees it: the environment may reuse the array in its next step, the agent may
                    # change it. The way of few words is for an array of the right dtype and shape.
                    try:
                        if (observation.dtype is dtype or observation.dtype == dtype) and observation.shape == shape:
                            observations.append(observation.tobytes())
                        else:
                            record_observation(observation)
                    except AttributeError:
                        record_observation(observation)
                    phase = in_action
                    if is_due:
                        words[phase_word] = _ACTION_NUMBER
                        before = clock()
                    action, agent_info = get_action(observation)
                    if is_due:
                        between = clock()
                        words[phase_word] = _STEP_NUMBER
                    # `list.append` written like this is an instruction of its own: half the time of any call.
                    if action.__class__ is plain_action:
                        actions.append(action)
                    else:
                        record_action(action)
                        if rounded_dtype is not None and getattr(action, "dtype", None) is not rounded_dtype:
                            action = rounded(action)
                        action = own_copy(action)
                    phase = in_step
                    observation, reward, terminated, truncated, info = step(action)
                    if is_due:
                        after = clock()
                        agent_seconds += between - before
                        step_seconds += after - between
                        apart = 1 if is_used else min(int(_PROGRESS_SECONDS / (after - before + 1e-9)) + 1, _MOST_APART)
                        due = min(len(rewards) + (apart if due > n_before else 1), limit)  # soon shows that it runs
                    phase = in_recording
                    if reward.__class__ is plain_reward:
                        rewards.append(reward)
                    else:
                        recorder.record_reward(reward)
                    if info.__class__ is not dict or info:
                        recorder.record_env_info(len(rewards) - 1, info)
                    if agent_info.__class__ is not dict or agent_info:
                        recorder.record_agent_info(len(rewards) - 1, agent_info)
                    if terminated is not False or truncated is not False:
                        if terminated.__class__ not in flag_classes or truncated.__class__ not in flag_classes:
                            terminated, truncated = recorder.flags(terminated, truncated)
                        if terminated or truncated:
                            if seams is not None:
                                phase = None
                                seams.timestep(observation, terminated, truncated, info, agent_info)
                                phase = in_recording
                            break
                    if attention:
                        if seams is not None:
                            phase = None
                            seams.timestep(observation, terminated, truncated, info, agent_info)
                            phase = in_recording
                        words[timesteps_word] = len(rewards)
                        if not row.may_run(version):
                            n_abandoned = len(rewards) - start
                            self.ran_timesteps += len(rewards) - n_before
                            recorder.abandon()
                            spent = clock() - began
                            return n_abandoned, shares(spent, reset_seconds, agent_seconds, step_seconds)
                        due = 0
                if seams is not None:
                    phase = None
                    seams.end(limited=len(rewards) == limit)
                    phase = in_recording
                if not terminated and agent_info.__class__ is dict and "value" in agent_info:
                    phase = in_action
                    record_last_value(recorder, agent, observation)
                    phase = in_recording
                self._last_info = info
                recorder.end(observation, bool(terminated), bool(truncated), limited=len(rewards) == limit)
        except BaseException as error:
            self.ran_timesteps += len(rewards) - n_before
            self.phase = phase or self.phase
            self._broken_off = shares(clock() - began, reset_seconds, agent_seconds, step_seconds)
            if seams is not None:
                seams.lost(error)
            self._explain(error, self.phase, action, self._run)
            raise
        self.ran_timesteps += len(rewards) - n_before
        return -1, shares(clock() - began, reset_seconds, agent_seconds, step_seconds)

    def _explain(self, error: BaseException, phase: Phase, action: Any, unpacking: Any) -> None:
        """Raise a better error where the reason is known; otherwise return."""
        try:
            explain_rollout(error, phase, action, unpacking, self._env, self._recorder)
        except ActionError:
            self.phase = Phase.ACTION
            raise

    def shutdown(self) -> None:
        """Close the environment."""
        self.phase, self.trajectory = Phase.CLOSE, None
        try:
            self._forget_running()
        finally:
            env, self._env = self._env, None
            if env is not None:
                env.close()

    def _forget_running(self) -> None:
        """Close the environments of fragments, apart from the worker's own."""
        running, self._running = self._running, None
        if running is not None:
            self.phase = Phase.CLOSE
            running.close()
