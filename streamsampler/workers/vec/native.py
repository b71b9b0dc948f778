"""Run tickets in a native vector environment: cut its stream of steps into trajectories.

A `NativeRunner` steps all slots at once. Unlike `LaneRunner` it runs no fragments and calls no hooks, takes no tasks,
and takes a single dict of reset options for all trajectories. If the environment resets itself, only the environment
can end a trajectory, and only a slot's first trajectory begins from its own seed.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, ObservationError, UsageError
from streamsampler.data.trees import Tree, map_tree, owned, take
from streamsampler.environments.updates import AnyVectorEnv
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import locate, name_of_env, raised_in, row_at_fault
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.masks import SlotMasks
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.native_recorder import (
    NativeRecorder,
    check_infos,
    column_of_slots,
    for_env,
    without_final,
)
from streamsampler.workers.vec.native_seeds import reset_from
from streamsampler.workers.vec.rows import row_of

_LOG = logging.getLogger("streamsampler")
# An enum's member costs 100 ns to look up on Python 3.11.
_ACTION, _STEP, _RECORDING = Phase.ACTION, Phase.STEP, Phase.RECORDING
_RESET_NUMBER = phase_number(Phase.RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)
_BOOL = np.dtype(np.bool_)
_SILENT_SHARE = 0.25
"""The share of silent slots in all steps from which a hint is logged."""
_FEWEST_TRAJECTORIES = 4
"""Trajectories for each slot before the hint."""

NEXT_STEP, SAME_STEP, DISABLED = "NEXT_STEP", "SAME_STEP", "DISABLED"


def _mode_of(env: AnyVectorEnv) -> str:
    mode = (env.metadata or {}).get("autoreset_mode", NEXT_STEP)
    name = str(getattr(mode, "name", mode))
    if name not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise UsageError(
            f"the autoreset mode of the vector environment is {mode!r}, not {NEXT_STEP}, {SAME_STEP} or {DISABLED}"
        )
    return name


class NativeRunner:
    """Runs blocks in a `gymnasium.vector.VectorEnv`; slots are its environments.

    The slots begin the first trajectories of a block. A free slot begins the next, in the order of slots within a step;
    if the block has none left, the slot falls silent: it is stepped with the agent's action on a live slot's
    observation. The environment's autoreset mode (`gymnasium.vector.AutoresetMode`) decides how a slot begins its next
    trajectory:

    - NEXT_STEP: the last step's observation is the final one; the next step resets the slot, ignores the action, and is
      not recorded.
    - SAME_STEP: the observation is the new trajectory's first; the final one is in ``final_obs``.
    - DISABLED: ``reset(seed=…, options={"reset_mask": …})`` resets the slot, from the trajectory's own seed.

    Each block begins with a reset of the whole environment, from the seeds of the first trajectories. With the first
    two modes a slot's later trajectories continue the environment's own random numbers.

    Args:
        env: The environment.
        worker: Shows phase and trajectory; has the call's seeds and reset options.

    Attributes:
        n_slots: The number of slots.
        spaces: Observation and action space of a single environment.

    Raises:
        UsageError: `max_episode_length` is set, which only the mode DISABLED can apply.
    """

    def __init__(self, env: Any, worker: Worker) -> None:
        self._env, self._worker, self._mode = env, worker, _mode_of(env)
        limit = worker.context.max_episode_length
        if limit is not None and self._mode != DISABLED:
            raise UsageError(
                f"max_episode_length={limit} needs a vector environment with AutoresetMode.DISABLED, but this one has "
                f"{self._mode}, so only the environment can end a trajectory. Give it its own limit: "
                f"gymnasium.make_vec(…, max_episode_steps={limit})"
            )
        self._limit = limit or math.inf
        self.spaces = env.single_observation_space, env.single_action_space
        n_slots = self.n_slots = int(env.num_envs)
        self._recorder = NativeRecorder(*self.spaces, n_slots)
        self._takes_list = True  # until a reset has refused a list
        self._slots, self._shape = np.arange(n_slots), (n_slots,)
        self._live = np.zeros(n_slots, dtype=np.bool_)
        self._silent = np.zeros(n_slots, dtype=np.bool_)  # neither live nor about to begin a trajectory
        self._n_live = self._n_silent = 0
        self._resetting = self._slots[:0]  # slots that the environment resets in the next step
        self._stop = 0  # the ticket position after the block
        self._in_reset = False
        self._masks: SlotMasks | None = None  # for agents that take masks
        self._seconds = [0.0, 0.0, 0.0]
        self._hinted = worker.context.worker_number > 0
        self._n_silent_rows = 0  # steps of silent slots
        # For the hint: blocks, their trajectories, their timesteps and silent steps.
        self._n_blocks, self._n_trajectories, self._n_seen_steps = 0, 0, np.zeros(2, np.int64)
        self._version = 0

    def rollout(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> Outcome:
        """Run a ticket, block by block; see `Worker.rollout`."""
        recorder, worker = self._recorder, self._worker
        # An environment that resets itself takes a call's seeds and options only at a reset of all slots: then a block
        # has a single trajectory for each slot.
        given = worker.resets is not None and not worker.resets.says_only_version
        one_each = given and self._mode != DISABLED
        size = min(self.n_slots, ticket.block) if one_each else ticket.block
        may_run = self.run(ticket, seeds, agent, size, hints=not one_each)
        seconds = tuple(self._seconds)
        if may_run:
            finish = partial(recorder.finish, worker.context.allocate)
            rollouts = worker.finished_in_order(finish, ticket.indices, self._env)
            return Outcome(rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=seconds)
        abandoned = int((recorder.step - recorder.begun[self._live]).sum())
        n_ran, n_running = worker.ran_timesteps - abandoned, recorder.n_begun - recorder.n_ended
        return Outcome(None, recorder.n_ended, n_ran, n_running, abandoned, seconds)

    def run(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent, size: int, *, hints: bool = False) -> bool:
        """Run a ticket in blocks of `size` trajectories; return whether its version may still run."""
        self._ticket, self._seeds, self._agent = ticket, seeds, agent
        longer = self._worker.runs_longer_blocks
        if longer and self._version != ticket.version:  # within a call, blocks get longer
            self._hint_at_longer_blocks()
        self._version = ticket.version
        self._recorder.begin_ticket(len(seeds))
        self._seconds = [0.0, 0.0, 0.0]
        for first in range(0, len(seeds), size):
            ran, silent = self._worker.ran_timesteps, self._n_silent_rows
            if not self._run_block(first, min(first + size, len(seeds))):
                return False
            if hints and self._stop == first + size:
                self._n_blocks += 1
                self._n_trajectories += size
                self._n_seen_steps += self._worker.ran_timesteps - ran, self._n_silent_rows - silent
                if not longer:
                    self._hint_at_longer_blocks()
        return True

    def _hint_at_longer_blocks(self) -> None:
        if self._hinted or self._n_trajectories < _FEWEST_TRAJECTORIES * self.n_slots:
            return
        share = self._n_seen_steps[1] / self._n_seen_steps.sum()
        if share < _SILENT_SHARE:
            return
        self._hinted = True
        size = self._n_trajectories // self._n_blocks
        which, how = f"block of {size} trajectories", "Longer blocks are idle less: pass "
        if self._worker.runs_longer_blocks:
            which = f"block, of {size} trajectories on average,"
            how = "Longer blocks are idle less: request more trajectories in a batch, or pass "
        # The end of a block takes about the same time in any block: with this size it is a tenth of the block.
        longer = size * math.ceil(9 * share / (1 - share))
        _LOG.warning(
            "VecWorker: the environments of %s stand silent in %.0f %% of all steps: at the end of each %s "
            'they wait for its longest trajectory. %sworker_args={"block_size": %d}, which leaves about 10 %%, '
            "if a batch has enough trajectories to share among workers.",
            name_of_env(self._env), 100 * share, which, how, longer,
        )  # fmt: skip

    def _run_block(self, first: int, stop: int) -> bool:
        worker, agent, indices = self._worker, self._agent, self._ticket.indices
        self._first, self._stop, seeds = first, stop, self._seeds[first:stop]
        worker.phase, worker.trajectory = Phase.AGENT_RESET, indices[first]
        worker.row.begin_trajectory(indices[first])
        seed_generators(seeds[0])
        agent.row = -1
        agent.begin_block(seeds[0])
        self._prepared = agent.prepare(seeds)
        try:
            self._begin_block(seeds)
            return self._step_until_all_end()
        except BaseException as error:
            self._explain(error)
            raise

    def _begin_block(self, seeds: list[int]) -> None:
        worker, n_slots = self._worker, self.n_slots
        worker.phase = Phase.RESET
        worker.row.words[worker.row.phase_word] = _RESET_NUMBER
        began = perf_counter()
        slots = self._slots[: len(seeds)]
        self._live[:], self._silent[:] = False, self._slots >= len(seeds)
        self._n_live, self._n_silent = 0, self.n_slots - len(slots)
        self._resetting = self._slots[:0]
        self._in_reset = True
        observations, infos = self._begin_of(self._reset([seeds[slot % len(seeds)] for slot in range(n_slots)]))
        self._recorder.begin_block(observations, self._silent)
        self._masks = None
        if self._agent.takes_masks:  # each block may have another environment
            self._masks = SlotMasks(self._worker.warn_once, self._env, self.spaces[1])
            self._masks.keep(infos, range(n_slots))
        self._in_reset = False
        self._begin(slots, infos)
        self._seconds[0] += perf_counter() - began

    def _reset(self, seeds: list[int]) -> Any:
        """Reset all slots from their seeds; from the first seed only, where the environment takes no list.

        Raises:
            UsageError: The environment takes no list, but the call has seeds; or the options are a dict for each
                trajectory.
        """
        resets = self._worker.resets
        options = {} if resets is None else resets.vector_arguments
        result, self._takes_list = reset_from(self._env, seeds, takes_list=self._takes_list, **options)
        if not self._takes_list and resets is not None and resets.seeds is not None and self.n_slots > 1:
            raise UsageError(
                "seeds needs a vector environment with reset(seed=[…]), a seed for each environment; "
                f"{type(self._env.unwrapped).__qualname__} takes one seed for all"
            )
        return result

    def _begin_of(self, result: Any) -> tuple[Any, Any]:
        observations, infos = begin_of(result)
        self._worker.phase = _RECORDING
        check_infos("episode_infos", infos)
        return observations, infos

    def _begin(self, slots: NDArray[np.int64], infos: Any) -> None:
        worker, indices, first = self._worker, self._ticket.indices, self._recorder.n_begun
        self._recorder.begin(slots, without_final(infos) if infos else infos)
        self._live[slots] = True
        self._n_live += len(slots)
        worker.row.begin_trajectory(indices[first])
        if self._prepared is not None:
            worker.phase = Phase.AGENT_RESET
            for position, slot in enumerate(slots.tolist(), first):
                worker.trajectory = indices[position]
                self._agent.begin(slot, self._prepared, position - self._first)

    def _reset_masked(self, refilled: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        """Reset ended slots of an environment without autoreset, silent slots included."""
        began, first = perf_counter(), self._recorder.n_begun
        worker, resets = self._worker, self._worker.resets
        worker.phase, self._in_reset = Phase.RESET, True
        seeds = [self._seeds[self._first]] * self.n_slots
        for position, slot in enumerate(refilled.tolist(), first):
            seeds[slot] = self._seeds[position]
        if len(refilled):
            worker.trajectory = self._ticket.indices[first]
        given = {} if resets is None else resets.vector_arguments.get("options", {})
        # A single seed would reseed the other slots, too.
        result = self._env.reset(seed=seeds if self._takes_list else None, options={**given, "reset_mask": ended})
        observations, infos = self._begin_of(result)
        self._recorder.record_resets(observations, refilled, np.flatnonzero(ended))
        if self._masks is not None:
            self._masks.keep(infos, np.flatnonzero(ended).tolist())
        self._in_reset = False
        if len(refilled):
            self._begin(refilled, infos)
        elapsed = perf_counter() - began
        self._seconds[0] += elapsed
        self._seconds[2] -= elapsed

    def _step_until_all_end(self) -> bool:
        """Step the environment; return whether the version may still run.

        The inner loop: it is measured.
        """
        worker, recorder, seconds = self._worker, self._recorder, self._seconds
        step_env, version = self._env.step, self._ticket.version
        words, phase_word, timesteps_word = worker.row.words, worker.row.phase_word, worker.row.timesteps_word
        while self._n_live or len(self._resetting):
            began = perf_counter()
            words[phase_word] = _ACTION_NUMBER
            actions = self._choose(recorder.step)
            between = perf_counter()
            words[phase_word] = _STEP_NUMBER
            worker.phase = _STEP
            try:
                observations, rewards, terminated, truncated, infos = step_env(actions)
            except (TypeError, ValueError) as error:
                if raised_in(error, self._step_until_all_end):
                    problem = "step must return (observations, rewards, terminated, truncated, infos)"
                    raise UsageError(problem) from error
                raise
            worker.phase = _RECORDING
            recorder.record(observations, rewards, self._silent, self._live)
            if infos.__class__ is not dict:
                check_infos("env_infos", infos)
            if self._masks is not None:
                self._masks.keep(infos, range(self.n_slots))
            worker.ran_timesteps = words[timesteps_word] = worker.ran_timesteps + self._n_live
            self._n_silent_rows += self._n_silent
            self._finish_step(terminated, truncated, infos)
            seconds[1] += between - began
            seconds[2] += perf_counter() - between
            if words[0] > version:
                return False
        return True

    def _choose(self, step: int) -> Any:
        """Ask the agent, record its actions, and return the environment's copy of them."""
        worker, recorder, agent = self._worker, self._recorder, self._agent
        if self._n_live:
            live = np.flatnonzero(self._live).tolist() if agent.one_by_one else ()
            masks = None
            if self._masks is not None:
                masks = self._masks.of_slots(recorder.observations.row_batch(step), self._live, self._silent)
            actions, infos = agent.choose(self._shown(step), live, worker, self._record_agent_info, masks)
            worker.phase = _ACTION
            recorder.actions.append(actions)
            if infos:
                worker.phase = _RECORDING
                recorder.agent_infos.record(step * self.n_slots + self._slots, infos)
        else:
            # The environment only resets, and ignores the actions.
            recorder.actions.append(recorder.actions.row_batch(step - 1))
        rows = recorder.actions.row_batch(step)
        rows = rows.copy() if rows.__class__ is np.ndarray and not rows.dtype.hasobject else for_env(rows)
        if self._n_silent and self._masks is not None:
            self._masks.step_along(rows, self._silent)
        return rows

    def _record_agent_info(self, slot: int, info: Any) -> None:
        self._recorder.record_agent_info(self._recorder.step * self.n_slots + slot, info)

    def _shown(self, step: int) -> Tree:
        """Return the agent's copy of the observations, in which silent slots copy a live slot."""
        rows = self._recorder.observations.row_batch(step)
        source = np.where(self._silent, self._live.argmax(), self._slots) if self._n_silent else None
        if rows.__class__ is np.ndarray and not rows.dtype.hasobject:
            # `take` costs a twentieth of writing to the silent slots of a copy.
            return rows.copy() if source is None else rows.take(source, 0)
        return owned(map_tree(np.copy, rows) if source is None else take(rows, source))

    def _flags(self, values: Any, name: str) -> NDArray[np.bool_]:
        if values.__class__ is np.ndarray and values.dtype is _BOOL and values.shape == self._shape:
            return values
        return column_of_slots(values, self.n_slots, name, "b")

    def _finish_step(self, terminated: Any, truncated: Any, infos: Any) -> None:
        """Record infos, end trajectories, and begin others in their slots."""
        recorder = self._recorder
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        if self._limit is not math.inf:
            truncated = truncated | (self._live & (recorder.step - recorder.begun >= self._limit))
        flags = terminated | truncated
        ended = (flags & self._live if self._n_live < self.n_slots else flags).nonzero()[0]
        if infos:
            self._record_infos(ended, infos)
        begin_now = self._resetting
        going_on = ended[: self._stop - recorder.n_begun - len(begin_now)]
        if len(ended):
            final = self._final_observations(infos)
            self._ask_for_values(ended, terminated, final)
            recorder.end(ended, terminated[ended], truncated[ended], final)
            self._live[ended] = False
            self._silent[ended[len(going_on) :]] = True
            self._n_live -= len(ended)
            self._n_silent += len(ended) - len(going_on)
        if self._mode == NEXT_STEP:
            self._resetting = going_on
        elif self._mode == SAME_STEP:
            begin_now = going_on
        elif flags.any():
            self._reset_masked(going_on, flags)
        if len(begin_now):
            self._begin(begin_now, infos)

    def _ask_for_values(self, ended: NDArray[np.int64], terminated: Any, final: Any) -> None:
        """Record the agent's values of last observations, before the agent forgets the trajectories."""
        if not self._agent.has_values:
            return
        worker, recorder = self._worker, self._recorder
        rows = recorder.observations.row_batch(recorder.step) if final is None else final
        phase, worker.phase = worker.phase, _ACTION
        for slot in ended[~terminated[ended]].tolist():
            if (value := self._agent.value_of(slot, row_of(rows, slot))) is not None:
                recorder.values[int(recorder.positions[slot])] = value
        worker.phase = phase

    def _final_observations(self, infos: Any) -> Any:
        """Return the last observations of ended trajectories; None if the recorded ones are final."""
        if self._mode == NEXT_STEP:
            return None
        if self._mode == DISABLED:
            return self._recorder.observations.row_batch(self._recorder.step)
        if "final_obs" not in infos:
            raise DataError("a vector environment with AutoresetMode.SAME_STEP must have final_obs in its infos")
        return infos["final_obs"]

    def _record_infos(self, ended: NDArray[np.int64], infos: Any) -> None:
        env_infos = self._recorder.env_infos
        numbers = self._slots + (self._recorder.step - 1) * self.n_slots
        if self._mode != SAME_STEP or not len(ended):
            env_infos.record(numbers, infos)
            return
        going_on = np.ones(self.n_slots, dtype=np.bool_)
        going_on[ended] = False
        env_infos.record(numbers[going_on], without_final(infos), self._slots[going_on])
        env_infos.record(numbers[ended], infos.get("final_info", {}), ended)

    def _explain(self, error: BaseException) -> None:
        """Find the trajectory at fault."""
        worker, recorder, indices = self._worker, self._recorder, self._ticket.indices
        asked = worker.row.words[worker.row.phase_word] == _ACTION_NUMBER
        timestep: int | None = None
        slots = np.flatnonzero(self._live).tolist()
        if slots and not self._in_reset and worker.phase in (_ACTION, _STEP, _RECORDING):
            slot = self._agent.row if self._agent.row >= 0 else row_at_fault(error, slots[0])
            slot = slot if self._live[slot] else slots[0]
            worker.trajectory = indices[recorder.positions[slot]]
            # A step's observation is recorded as the next timestep's.
            follows = not asked and not isinstance(error, ObservationError)
            timestep = int(recorder.step - recorder.begun[slot]) - follows
            if self._agent.row < 0:
                whose = "get_actions had the observations of" if asked else "the vector environment was running"
                running = ", ".join(str(indices[position]) for position in recorder.positions[slots].tolist())
                error.add_note(f"{whose} trajectories {running}")
        if isinstance(error, DataError) and worker.phase is _RECORDING:
            locate(error, self._env, timestep)
