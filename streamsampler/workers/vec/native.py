"""Run a block of trajectories in an environment that is vectorised natively: cut its stream into trajectories."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.step_values import check_rewards
from streamsampler.data.trees import Tree, leaves, map_tree, owned, take
from streamsampler.errors import DataError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import begin_of, locate, raised_in, row_at_fault
from streamsampler.workers.vec.agents import BatchedAgent, Rows
from streamsampler.workers.vec.block import Block, BlockCursor, Seconds, explain_batch
from streamsampler.workers.vec.infos import info_of
from streamsampler.workers.vec.native_env import NEXT_STEP, SAME_STEP, NativeEnv
from streamsampler.workers.vec.native_values import check_infos, column_of_slots, filled, for_env, without_final
from streamsampler.workers.vec.recorder import BatchRecorder
from streamsampler.workers.vec.rows import BatchRows, row_of

__all__ = ["NativeRunner"]

_RESET_NUMBER = phase_number(Phase.RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)
_SILENT = -1


class NativeRunner(NativeEnv):
    """Runs blocks in a `gymnasium.vector.VectorEnv`; slots are its environments.

    Slots are filled as `slots.SlotRunner` does it. How a slot begins its next trajectory depends on the environment's
    autoreset mode (see `gymnasium.vector.AutoresetMode`):

    - NEXT_STEP: the observation of the last step is the final one; in the slot's next step the environment resets, and
      ignores the action: that step is not recorded.
    - SAME_STEP: the observation is the new trajectory's first one already; the final one is in ``final_obs``.
    - DISABLED: the slot is reset by ``reset(seed=…, options={"reset_mask": …})``, from the trajectory's own seed.

    At the start of each block the whole environment is reset, with the seeds of the first trajectories. With the first
    two modes a slot's later trajectories go on with what its environment draws.
    """

    def run(self, block: Block, agent: BatchedAgent, recorder: BatchRecorder, seconds: Seconds) -> bool:
        """Run a block, as far as it is needed.

        Returns:
            Whether its version may still run.
        """
        return _Run(self, block, agent, recorder, seconds, self._worker).run()


class _Run:
    """One block. Arrays have one entry for each slot."""

    def __init__(
        self, env: NativeEnv, block: Block, agent: BatchedAgent, recorder: BatchRecorder, seconds: Seconds,
        worker: Worker,
    ) -> None:  # fmt: skip
        self._env, self._agent, self._recorder, self._seconds, self._worker = env, agent, recorder, seconds, worker
        self._cursor = BlockCursor(block, agent, recorder, worker)
        self._running: list[int] = []  # the positions of the trajectories that are stepped
        self._n_slots = n_slots = env.n_slots
        self._positions = np.full(n_slots, _SILENT, dtype=np.int64)
        self._begun = np.zeros(n_slots, dtype=np.int64)
        self._resetting = np.zeros(n_slots, dtype=np.bool_)
        self._reader = BatchRows(env.spaces[0], "observation", ObservationError)
        self._observations: Tree = ()
        self._filler: Tree | None = None
        self._step = 0

    def run(self) -> bool:
        live = np.arange(0)
        try:
            self._reset_all()
            while (self._positions != _SILENT).any():
                live = np.flatnonzero((self._positions != _SILENT) & ~self._resetting)
                self._one_step(live)
                if not self._cursor.goes_on():
                    break
        except BaseException as error:
            self._explain(error, live)
            raise
        return not self._cursor.abandoned

    # ------------------------------------------------------------------ resetting

    def _reset_all(self) -> None:
        worker, seeds = self._worker, self._cursor.block.seeds
        worker.phase, worker.trajectory = Phase.RESET, self._cursor.block.indices[0]
        worker.row.words[worker.row.phase_word] = _RESET_NUMBER
        began = perf_counter()
        n_begun = min(self._n_slots, len(seeds))
        result = self._env.reset([seeds[slot % len(seeds)] for slot in range(self._n_slots)])
        self._observations, infos = self._first_of(result, np.arange(n_begun))
        for slot in range(n_begun):
            self._begin(slot, infos)
        worker.row.words[worker.row.phase_word] = _STEP_NUMBER
        self._seconds.reset += perf_counter() - began

    def _reset_masked(self, ended: NDArray[np.int64]) -> None:
        """Reset slots whose environment does not do it itself, the silent ones among them, which are stepped along."""
        if not len(ended):
            return
        began = perf_counter()
        self._running = []
        mask = np.zeros(self._n_slots, dtype=np.bool_)
        mask[ended] = True
        seeds = [self._cursor.block.seeds[0]] * self._n_slots
        refilled = ended[self._resetting[ended]]
        for position, slot in enumerate(refilled.tolist(), self._cursor.next_position):
            seeds[slot] = self._cursor.seed_at(position)
        self._worker.phase = Phase.RESET
        if len(refilled):
            self._worker.trajectory = self._cursor.index_at(self._cursor.next_position)
        observations, infos = self._first_of(self._env.reset_slots(seeds, mask), refilled)
        filled(self._observations, take(observations, ended), ended)
        for slot in refilled.tolist():
            self._begin(slot, infos)
        elapsed = perf_counter() - began
        self._seconds.reset += elapsed
        self._seconds.step -= elapsed

    def _first_of(self, result: Any, slots: NDArray[np.int64]) -> tuple[Tree, Any]:
        """Return a copy of the observations that a reset returned, which `slots` begin with, and the infos."""
        observations, infos = begin_of(result)
        self._worker.phase = Phase.RECORDING
        check_infos("episode_infos", infos)
        return self._checked(observations, slots), infos

    def _begin(self, slot: int, infos: Any) -> None:
        """Begin the block's next trajectory in a slot that has just been reset."""
        self._positions[slot] = self._cursor.begin()
        self._begun[slot] = self._step
        self._resetting[slot] = False
        self._cursor.begin_recording(slot, info_of(without_final(infos), slot))

    # ------------------------------------------------------------------ stepping

    def _one_step(self, live: NDArray[np.int64]) -> None:
        worker, seconds = self._worker, self._seconds
        self._running = self._positions[live].tolist()
        first = len(self._recorder.rewards)
        began = perf_counter()
        words, phase_word = worker.row.words, worker.row.phase_word
        words[phase_word] = _ACTION_NUMBER
        if len(live):
            self._choose(first, live)
        between = perf_counter()
        words[phase_word] = _STEP_NUMBER
        worker.phase = Phase.STEP
        actions = self._actions()
        try:
            observations, rewards, terminated, truncated, infos = self._env.env.step(actions)
        except (TypeError, ValueError) as error:
            if raised_in(error, self._one_step):
                raise UsageError("step must return (observations, rewards, terminated, truncated, infos)") from error
            raise
        worker.phase = Phase.RECORDING
        self._step += 1
        check_infos("env_infos", infos)
        self._observations = self._checked(observations, np.flatnonzero(self._positions != _SILENT))
        self._recorder.rewards.extend(self._checked_rewards(rewards, live))
        self._recorder.positions.extend(self._running)
        flags = [
            column_of_slots(values, self._n_slots, name, "b")
            for name, values in (("terminated", terminated), ("truncated", truncated))
        ]
        self._finish_step(first, live, flags, infos)
        seconds.agent += between - began
        seconds.step += perf_counter() - between

    def _finish_step(self, first: int, live: NDArray[np.int64], flags: list[NDArray[np.bool_]], infos: Any) -> None:
        terminated, truncated = flags
        ended_itself = terminated | truncated
        if self._worker.context.max_episode_length is not None:
            truncated = truncated | (self._step - self._begun >= self._worker.context.max_episode_length)
        ended = live[(terminated | truncated)[live]]
        if infos:
            self._record_infos(first, live, ended, infos)
        reset_in_this_step = np.flatnonzero(self._resetting)
        for slot in ended.tolist():
            self._end(slot, bool(terminated[slot]), bool(truncated[slot]), infos)
        if not self._env.resets_itself:
            self._reset_masked(np.union1d(np.flatnonzero(ended_itself), ended))
        else:
            for slot in (reset_in_this_step if self._env.mode == NEXT_STEP else ended[self._resetting[ended]]).tolist():
                self._begin(slot, infos)

    def _choose(self, first: int, live: NDArray[np.int64]) -> None:
        recorder, worker = self._recorder, self._worker
        mine = take(self._observations, live)
        recorder.observations.keep(mine)
        rows = Rows(first, owned(map_tree(np.copy, mine)), live, self._begun[live], self._step)
        chosen, singles = self._agent.choose(rows, recorder, worker)
        if chosen is None:
            chosen = recorder.actions.checked(singles, len(singles))
        if self._filler is None or len(live) < self._n_slots:
            self._filler = map_tree(lambda rows: np.repeat(rows[:1], self._n_slots, axis=0), chosen)
        self._filler = filled(self._filler, chosen, live)

    def _actions(self) -> Any:
        """Return actions for all slots; slots that need none get those of the first row."""
        assert self._filler is not None
        return for_env(self._filler)

    def _checked(self, observations: Any, used: NDArray[np.int64]) -> Tree:
        """Return a copy of observations, of the space's dtypes.

        Slots that are not used go on with any actions: whatever their observations hold is no error.
        """
        try:
            return self._reader.checked(observations, self._n_slots)
        except DataError as error:
            is_array = all(isinstance(leaf, np.ndarray) for _, leaf in leaves(observations))
            if error.row is None or not is_array:
                raise
        try:
            rows = self._reader.checked(take(observations, used), len(used))
        except DataError as error:
            error.row = int(used[error.row or 0])
            raise
        whole = map_tree(lambda leaf: np.zeros((self._n_slots, *leaf.shape[1:]), leaf.dtype), rows)
        return filled(whole, rows, used)

    def _checked_rewards(self, rewards: Any, live: NDArray[np.int64]) -> list[float]:
        found = column_of_slots(rewards, self._n_slots, "rewards", "biuf")[live]
        try:
            check_rewards(found)
        except DataError as error:
            error.row = int(live[error.row or 0])
            raise
        numbers: list[float] = found.astype(np.float64).tolist()
        return numbers

    def _end(self, slot: int, terminated: bool, truncated: bool, infos: Any) -> None:
        last = row_of(self._observations, slot)
        if self._env.mode == SAME_STEP:
            if "final_obs" not in infos:
                raise DataError("a vector environment with AutoresetMode.SAME_STEP must have final_obs in its infos")
            last = row_of(infos["final_obs"], slot)
        length = int(self._step - self._begun[slot])
        try:
            self._cursor.end(int(self._positions[slot]), length, last, terminated, truncated)
        except DataError as error:
            error.row = slot
            raise
        # A slot that is to be reset keeps its position, so that it is not silent, until `_begin` gives it another one.
        self._resetting[slot] = self._cursor.left > int(self._resetting.sum())
        if not self._resetting[slot]:
            self._positions[slot] = _SILENT

    def _record_infos(self, first: int, live: NDArray[np.int64], ended: NDArray[np.int64], infos: Any) -> None:
        steps = np.arange(first, first + len(live))
        if self._env.mode != SAME_STEP or not len(ended):
            self._recorder.env_infos.record(steps, infos, live)
            return
        going_on = ~np.isin(live, ended)
        self._recorder.env_infos.record(steps[going_on], without_final(infos), live[going_on])
        self._recorder.env_infos.record(steps[~going_on], infos.get("final_info", {}), ended)

    def _explain(self, error: BaseException, live: NDArray[np.int64]) -> None:
        worker = self._worker
        running = [self._cursor.index_at(position) for position in self._running]
        if worker.phase not in (Phase.ACTION, Phase.STEP, Phase.RECORDING):
            return
        timestep: int | None = None
        if self._agent.row >= 0 and running:
            worker.trajectory = running[self._agent.row]
        elif worker.phase is Phase.ACTION and running:
            explain_batch(error, worker, running)
        elif running:
            slot = row_at_fault(error, int(live[0]))
            if slot in live:
                worker.trajectory = running[int(np.flatnonzero(live == slot)[0])]
                # What a step returned is recorded as the next timestep's observation.
                timestep = int(self._step - self._begun[slot]) - (not isinstance(error, ObservationError))
            error.add_note(f"the vector environment was running trajectories {', '.join(map(str, running))}")
        if isinstance(error, DataError) and worker.phase is Phase.RECORDING:
            locate(error, self._env.env, timestep)
