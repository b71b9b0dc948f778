"""Run a block of trajectories in several environments of this process."""

from __future__ import annotations

from array import array
from time import perf_counter
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.data.step_values import FLAGS, flag_of, number_of
from streamsampler.errors import ActionError, DataError, ObservationError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import begin_of, locate, row_at_fault, step_error
from streamsampler.workers.vec.agents import BatchedAgent, Rows
from streamsampler.workers.vec.block import Block, BlockCursor, Seconds, explain_batch
from streamsampler.workers.vec.recorder import BatchRecorder

__all__ = ["SlotRunner"]

_NO_LIMIT = 2**62
# An enum's member costs 100 ns to look up on Python 3.11.
_RESET, _RECORDING, _STEP = Phase.RESET, Phase.RECORDING, Phase.STEP
_RESET_NUMBER = phase_number(Phase.RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)


class SlotRunner:
    """Runs blocks in a fixed number of environments, each of which is a slot.

    The slots begin the first trajectories of a block. A slot whose trajectory ends begins the next one at once, slots
    in order within a step; where the block has none left the slot falls silent, and the batch shrinks. So what is
    batched together is a function of the block alone.

    Args:
        envs: The environments.
        worker: Shows phase and trajectory.
    """

    def __init__(self, envs: list[gymnasium.Env[Any, Any]], worker: Worker) -> None:
        self._envs = envs
        self._worker = worker
        self._limit = _NO_LIMIT if worker.context.max_episode_length is None else worker.context.max_episode_length

    @property
    def n_slots(self) -> int:
        """How many trajectories run side by side."""
        return len(self._envs)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of one environment."""
        return self._envs[0].observation_space, self._envs[0].action_space

    def run(self, block: Block, agent: BatchedAgent, recorder: BatchRecorder, seconds: Seconds) -> bool:
        """Run a block, as far as it is needed.

        Returns:
            Whether its version may still run.
        """
        return _Run(self._envs, block, agent, recorder, seconds, self._worker, self._limit).run()


class _Run:
    """One block. Lists and arrays have one entry for each row, that is, for each slot that is not silent."""

    def __init__(
        self, envs: list[gymnasium.Env[Any, Any]], block: Block, agent: BatchedAgent, recorder: BatchRecorder,
        seconds: Seconds, worker: Worker, limit: int,
    ) -> None:  # fmt: skip
        self._envs, self._agent, self._recorder = envs, agent, recorder
        self._seconds, self._worker, self._limit = seconds, worker, limit
        self._cursor = BlockCursor(block, agent, recorder, worker)
        self._slots: list[int] = []
        self._positions = array("q")
        self._begun = array("q")
        self._steps: list[Any] = []
        self._step = 0
        self._row = -1  # the one that was stepped last; -1 while it is about all of them
        self._actions: list[Any] = []
        self._rows = Rows(0, (), np.arange(0), self._begun, 0)
        self._resetting = 0.0

    def run(self) -> bool:
        for slot in range(min(len(self._envs), self._cursor.left)):
            self._slots.append(slot)
            self._steps.append(self._envs[slot].step)
            self._positions.append(0)
            self._begun.append(0)
            self._begin(slot)
        self._rows.slots = np.array(self._slots)
        self._seconds.reset += self._resetting
        first = len(self._recorder.rewards)
        try:
            while self._slots:
                n_rows = len(self._slots)
                self._one_step(first, n_rows)
                first += n_rows
                if not self._cursor.goes_on():
                    break
        except BaseException as error:
            self._explain(error, first)
            raise
        return not self._cursor.abandoned

    def _one_step(self, first: int, n_rows: int) -> None:
        """Choose actions for, and step, every environment whose slot is not silent."""
        worker, recorder, seconds = self._worker, self._recorder, self._seconds
        worker.phase = _RECORDING
        self._row = -1
        observations = recorder.observations.rows(first, first + n_rows)
        words, phase_word = worker.row.words, worker.row.phase_word
        words[phase_word] = _ACTION_NUMBER
        began = perf_counter()
        rows = self._rows
        rows.first, rows.observations, rows.step = first, observations, self._step
        self._actions = self._agent.choose(rows, recorder, worker)[1]
        between = perf_counter()
        words[phase_word] = _STEP_NUMBER
        recorder.positions.extend(self._positions)
        self._resetting = 0.0
        worker.phase = _STEP
        silent = self._step_all(first)
        self._step += 1
        if silent:
            for row in reversed(silent):
                for rows_of in (self._slots, self._positions, self._begun, self._steps):
                    del rows_of[row]
            self._rows.slots = np.array(self._slots)
        seconds.agent += between - began
        seconds.reset += self._resetting
        seconds.step += perf_counter() - between - self._resetting

    def _step_all(self, first: int) -> list[int]:  # noqa: C901 - see below
        """Step the environments, and return the rows that fall silent.

        The inner loop: it is measured, and nothing else belongs here. It records the observations of the next step.
        """
        recorder = self._recorder
        rewards, record_info, record = recorder.rewards, recorder.record_env_info, recorder.observations.record
        # Where a list may not be appended to, no observation has this dtype.
        encoded, dtype = cast("list[bytes]", recorder.observations.encoded), recorder.observations.dtype
        shape = recorder.observations.shape
        limit, float64 = self._limit, np.float64
        at_limit = limit < _NO_LIMIT and self._step + 1 - min(self._begun) >= limit
        board_row = self._worker.row
        words, timesteps_word, watched = board_row.words, board_row.timesteps_word, board_row.attention
        silent: list[int] = []
        row = -1
        try:
            for row, (step, action) in enumerate(zip(self._steps, self._actions, strict=True)):
                observation, reward, terminated, truncated, info = step(action)
                if watched:
                    words[timesteps_word] = first + row + 1
                kind = reward.__class__
                # `list.append` written like this is an instruction of its own: half the time of any call.
                rewards.append(reward if kind is float or kind is float64 else number_of(reward))
                if info.__class__ is not dict or info:
                    record_info(first + row, info)
                if terminated is not False or truncated is not False or at_limit:
                    if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
                        terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
                    cut = at_limit and self._step + 1 - self._begun[row] >= limit
                    if terminated or truncated or cut:
                        self._end(row, observation, bool(terminated), bool(truncated) or cut, silent)
                        continue
                try:
                    if (observation.dtype is dtype or observation.dtype == dtype) and observation.shape == shape:
                        encoded.append(observation.tobytes())
                    else:
                        record(observation)
                except AttributeError:
                    record(observation)
        finally:
            self._row = row
        return silent

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool, silent: list[int]) -> None:
        """End a row's trajectory and begin its slot's next one, if there is one."""
        length = self._step + 1 - self._begun[row]
        self._cursor.end(self._positions[row], length, observation, terminated, truncated)
        if self._cursor.left:
            self._begun[row] = self._step + 1
            self._begin(row)
        else:
            silent.append(row)
        self._worker.phase = _STEP

    def _begin(self, row: int) -> None:
        """Begin the block's next trajectory in a row's slot, and record its first observation."""
        worker, cursor, slot = self._worker, self._cursor, self._slots[row]
        began = perf_counter()
        self._positions[row] = position = cursor.begin()
        words, phase_word = worker.row.words, worker.row.phase_word
        words[phase_word] = _RESET_NUMBER
        worker.phase = _RESET
        seed, resets = cursor.seed, worker.resets
        if resets is None or resets.options is None:
            result = self._envs[slot].reset(seed=seed)
        else:
            options = resets.options_of(cursor.index_at(position))
            result = self._envs[slot].reset(seed=seed, options=options)
        observation, info = begin_of(result)
        try:
            cursor.begin_recording(slot, info)
            self._recorder.observations.record(observation)
        except DataError as error:
            locate(error, self._envs[slot], 0)
            raise
        words[phase_word] = _STEP_NUMBER
        self._resetting += perf_counter() - began

    def _explain(self, error: BaseException, first: int) -> None:
        """Say which trajectory was in hand, and raise a better error where the reason is known."""
        worker = self._worker
        running = [self._cursor.index_at(position) for position in self._positions]
        row = 0
        if worker.phase is Phase.STEP:
            row = self._row
            worker.trajectory = running[row]
            if isinstance(error, DataError):
                worker.phase = _RECORDING
            else:
                better = step_error(error, self._actions[row], self._envs[0].action_space, self._step_all)
                if better is not None:
                    worker.phase = Phase.ACTION if isinstance(better, ActionError) else worker.phase
                    raise better from error
        elif self._agent.row >= 0:
            row = self._agent.row
            worker.trajectory = running[row]
        elif self._row < 0 and (worker.phase is Phase.ACTION or isinstance(error, ActionError)):
            row = row_at_fault(error, 0)
            explain_batch(error, worker, running)
        elif self._row < 0:
            row = max(0, row_at_fault(error, first) - first)
            worker.trajectory = running[row]
        else:
            row = self._row
        if isinstance(error, ActionError) or (isinstance(error, DataError) and worker.phase is _RECORDING):
            # What a step returned is recorded as the next timestep's observation.
            follows = isinstance(error, ObservationError) and self._row >= 0
            locate(error, self._envs[0], self._step + follows - self._begun[row])
