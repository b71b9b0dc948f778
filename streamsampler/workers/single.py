"""Drive scripts in a single environment, in sequence: ask the agent for each action, and show progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, cast

from streamsampler.agents.masks import MaskFinder
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.times import Times
from streamsampler.core.timing import used
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.outer_wrappers import OuterWrappers
from streamsampler.rollouts.script import Binding, Cut, End, Script, own_error, phase_of, trajectory
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import explain_rollout
from streamsampler.workers.finishing import record_last_value, shares
from streamsampler.workers.generators import seeding
from streamsampler.workers.masks import masked_loop
from streamsampler.workers.restoring import AS_GIVEN, Rounding, own_copy
from streamsampler.workers.seams import OverridableSteps

_PROGRESS_SECONDS = 1e-2
"""Maximum age of a worker's progress on the board. Writing a word, or reading the clock twice, at each timestep costs 1
to 2 % of a cheap environment's speed. With a network, which evicts this code from the processor's caches, every eighth
timestep still cost 1 %. Hence progress is written after about this time, and at least every `_MOST_APART` timesteps.
`StatusBoard.request_progress` requests it at each timestep."""
_MOST_APART = 63
WHOLE = 2**62
"""The timesteps of a part which is never cut."""


class _NoClass:
    """Is no object's class."""


_RECORDING, _ACTION = Phase.RECORDING, Phase.ACTION
_RESET_NUMBER, _AGENT_RESET_NUMBER = phase_number(Phase.RESET), phase_number(Phase.AGENT_RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)

Part = tuple[int, Callable[[], object] | None, Script, Binding | None, int]
"""A trajectory index; a function to seed the global generators, None if their states are set; the script; the binding
for a resumed script, None for a new script; and the number of timesteps after which the script is cut."""


class SingleDriver:
    """Drives scripts in sequence, with a single environment and agent, or the `PolicySet` of several agents.

    It abandons a trajectory whose version may no longer run. `seams` replace environment and agent, and receive each
    timestep; `info` belongs to the observation on which an episode resumes.

    Attributes:
        binding: For the scripts.
        seconds: Seconds of resets, agent and remainder, after `run`.
    """

    def __init__(
        self, worker: Worker, version: int, recorder: RolloutRecorder, env: Any, reset: Callable[..., Any], agent: Any,
        reset_agent: Callable[[int], None] | None, *, seams: OverridableSteps | None = None,
        masks: MaskFinder | None = None,
        info: Any = None, rounding: Rounding = AS_GIVEN,
    ) -> None:  # fmt: skip
        self._worker, self._version, self._recorder = worker, version, recorder
        self._env, self._agent, self._seams, self._rounding = env, agent, seams, rounding
        step, self._get_action = env.step, agent.get_action
        if seams is not None:
            reset, self._get_action, step, reset_agent = seams.reset, seams.get_action, seams.step, None
        elif masks is not None:
            reset, self._get_action, step = masked_loop(masks, reset, agent.get_action, step, info)
        self._reset, self._reset_agent = reset, reset_agent
        self._begin_agent = None if reset_agent is None else self._begin
        sees_steps = seams is not None or masks is not None
        self.binding = Binding(step, recorder, seams, outer=None if sees_steps else OuterWrappers(env))
        self.seconds = Times()

    def script(self, seed: int, limit: int | None) -> Script:
        return trajectory(self._reset, self.binding, seed, self._begin_agent, limit)

    def _begin(self, seed: int) -> None:
        assert self._reset_agent is not None
        self._worker.row.words[self._worker.row.phase_word] = _AGENT_RESET_NUMBER
        self._reset_agent(derived_seed(seed, SeedUse.AGENT))

    def whole(self, indices: Iterable[int], seeds: Sequence[int]) -> Iterator[Part]:
        limit = self._worker.context.max_episode_length
        reset, binding, begin, seed_generators = self._reset, self.binding, self._begin_agent, seeding(seeds).__next__
        for index, seed in zip(indices, seeds, strict=True):
            yield index, seed_generators, trajectory(reset, binding, seed, begin, limit), None, WHOLE

    def run(  # noqa: C901 - see below
        self, parts: Iterable[Part], take_end: Callable[[End], None] | None = None
    ) -> int:
        """Drive scripts, each to its end or for the timesteps of its part.

        The package's speed depends on this function and on the script, hence the local variables. With seams each
        timestep is due, and shown to them.

        Returns:
            -1, or the timesteps after which a trajectory was abandoned; the recorder still holds it.

        Raises:
            BaseException: Any exception of agent, environment or hooks; the worker has the phase and the trajectory.
        """
        worker, recorder, agent, seams = self._worker, self._recorder, self._agent, self._seams
        version, in_action, in_recording = self._version, _ACTION, _RECORDING
        get_action, clock, record_action = self._get_action, perf_counter, recorder.record_action
        # If the recorder has no list of integers, `plain_action` is no action's class.
        actions, rewards = cast("list[int]", recorder.integer_actions), recorder.float_rewards
        plain_action = _NoClass if actions is None else int
        rounded_dtype, rounded = self._rounding
        row = worker.row
        words, timesteps_word = row.words, row.timesteps_word
        phase_word, trajectory_word, index_base = row.phase_word, row.trajectory_word, row.index_base
        attention: Any = row.attention if seams is None else True
        is_used = used()  # then each timestep is due: times measured by user code belong to the board's phase
        n_before = due = recorder.n_timesteps
        reset_seconds = agent_seconds = step_seconds = 0.0
        phase: Phase | None = None  # None: the worker's own
        action: Any = None
        began = clock()
        # At timestep number `due` of the ticket, the loop checks for the part's end, writes progress to the board,
        # measures time, and sets the next `due`. While the sampler requests attention, every timestep is due.
        try:
            for index, seed_generators, script, binding, n_timesteps in parts:
                worker.trajectory = index
                words[trajectory_word] = index + index_base
                words[phase_word] = _RESET_NUMBER
                begin = clock()
                if seed_generators is not None:
                    seed_generators()
                send, end = script.send, None
                observation = send(binding)
                reset_seconds += clock() - begin
                words[phase_word] = _STEP_NUMBER
                stop = recorder.n_timesteps + n_timesteps
                if attention:
                    due = 0
                while end is None:
                    if is_due := len(rewards) >= due:
                        if len(rewards) >= stop:
                            end = script.throw(Cut())
                            break
                        words[timesteps_word] = len(rewards)
                        words[phase_word] = _ACTION_NUMBER
                        before = clock()
                    phase = in_action
                    action, agent_info = get_action(observation)
                    if is_due:
                        between = clock()
                        words[phase_word] = _STEP_NUMBER
                    # `list.append` in this form is specialised by the interpreter: half the time of any call.
                    if action.__class__ is plain_action:
                        actions.append(action)
                    else:
                        record_action(action)
                        if rounded_dtype is not None and getattr(action, "dtype", None) is not rounded_dtype:
                            action = rounded(action)
                        action = own_copy(action)
                    phase = in_recording
                    if agent_info.__class__ is not dict or agent_info:
                        recorder.record_agent_info(len(rewards), agent_info)
                    try:  # around `send` alone: a `StopIteration` of the agent is an error
                        observation = send(action)
                    except StopIteration as stopped:
                        end = stopped.value
                    if is_due:
                        after = clock()
                        agent_seconds += between - before
                        step_seconds += after - between
                        apart = 0 if is_used else min(int(_PROGRESS_SECONDS / (after - before + 1e-9)), _MOST_APART)
                        due = min(len(rewards) + (apart if due > n_before else 0), stop)  # early first progress
                    if attention and end is None:
                        words[timesteps_word] = len(rewards)
                        if not row.may_run(version):
                            script.close()
                            return len(rewards) - recorder.n_timesteps
                        due = 0
                if not end.terminated and agent_info.__class__ is dict and "value" in agent_info:
                    phase = in_action
                    record_last_value(recorder, agent, end.observation)
                phase = in_recording
                if take_end is None:
                    recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)
                else:
                    take_end(end)
                phase = None
        except BaseException as error:
            worker.phase = phase_of(own_error(error), phase, worker.phase)
            if seams is not None:
                seams.lost(own_error(error))
            explain_rollout(worker, own_error(error), action, self._env, recorder, asking=SingleDriver.run)
            if own_error(error) is not error:
                raise own_error(error) from None
            raise
        finally:
            worker.ran_timesteps += len(rewards) - n_before
            self.seconds = shares(clock() - began, reset_seconds, agent_seconds, step_seconds)
        return -1
