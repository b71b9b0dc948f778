"""Run tickets in an environment that is vectorised natively: cut its stream into trajectories."""

from __future__ import annotations

import logging
import math
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from streamsampler.data.trees import Tree, leaves, map_tree, owned
from streamsampler.environments.updates import AnyVectorEnv
from streamsampler.errors import DataError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import begin_of, locate, name_of_env, raised_in, row_at_fault
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.native_recorder import (
    NativeRecorder,
    check_infos,
    column_of_slots,
    for_env,
    without_final,
)

# ----------------------------------------------------------------------
# Reset an environment that is vectorised natively, in each of Gymnasium's autoreset modes.


NEXT_STEP, SAME_STEP, DISABLED = "NEXT_STEP", "SAME_STEP", "DISABLED"


class NativeEnv:
    """A `gymnasium.vector.VectorEnv`, whose environments are a worker's slots.

    Args:
        env: The environment.
        worker: The worker, which has the seeds and the reset options that a call was given.

    Attributes:
        env: The environment.
        mode: Its autoreset mode: NEXT_STEP, SAME_STEP or DISABLED.

    Raises:
        UsageError: There is a limit to trajectories' lengths, which only the mode DISABLED can take.
    """

    def __init__(self, env: AnyVectorEnv, worker: Worker) -> None:
        self.env = env
        self._worker = worker
        self._takes_one_seed = False  # seen at a reset: the environment draws for all slots from one seed
        mode = (env.metadata or {}).get("autoreset_mode", NEXT_STEP)
        self.mode = str(getattr(mode, "name", mode))
        if self.mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise UsageError(f"the vector environment has the autoreset mode {mode!r}, which is none of Gymnasium's")
        if worker.context.max_episode_length is not None and self.resets_itself:
            raise UsageError(
                f"max_episode_length needs a vector environment with AutoresetMode.DISABLED; this one has "
                f"{self.mode}, so that only it can end a trajectory. Give the environment its own limit, as "
                "gymnasium.make_vec(…, max_episode_steps=…) does"
            )

    @property
    def resets_itself(self) -> bool:
        """Whether the environment begins trajectories by itself."""
        return self.mode != DISABLED

    @property
    def n_slots(self) -> int:
        """How many trajectories run side by side."""
        return int(self.env.num_envs)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of one environment."""
        return self.env.single_observation_space, self.env.single_action_space

    def reset(self, seeds: list[int]) -> Any:
        """Reset all slots, from one seed for each; from the first seed, where the environment takes no list.

        Raises:
            UsageError: The environment takes no list, and the seeds are those that a call was given; or the options
                are one dict for each trajectory.
        """
        given: Any = seeds
        options = self._options()
        if not self._takes_one_seed:
            try:
                return self.env.reset(seed=given, **options)
            except Exception as refused:
                # Many native environments draw for all slots from one generator, and refuse a list.
                try:
                    result = self.env.reset(seed=seeds[0], **options)
                except Exception as error:
                    raise error from refused
                self._takes_one_seed = True
                self._refuse_given_seeds()
                return result
        self._refuse_given_seeds()
        return self.env.reset(seed=seeds[0], **options)

    def reset_slots(self, seeds: list[int], mask: NDArray[np.bool_]) -> Any:
        """Reset the slots of a mask, each from its seed."""
        # One seed for all would be the other slots' seed, too.
        given: Any = None if self._takes_one_seed else seeds
        options = {**self._options().get("options", {}), "reset_mask": mask}
        return self.env.reset(seed=given, options=options)

    def _options(self) -> dict[str, Any]:
        """Return what `reset` gets besides seeds: the options of the call, if there are any."""
        resets = self._worker.resets
        return {} if resets is None else resets.vector_arguments

    def _refuse_given_seeds(self) -> None:
        resets = self._worker.resets
        if resets is not None and resets.seeds is not None and self.n_slots > 1:
            raise UsageError(
                "seeds needs a vector environment whose reset takes a list with one for each environment; "
                f"{type(self.env.unwrapped).__qualname__} takes one for all"
            )


# ----------------------------------------------------------------------


_LOG = logging.getLogger("streamsampler")
# An enum's member costs 100 ns to look up on Python 3.11.
_ACTION, _STEP, _RECORDING = Phase.ACTION, Phase.STEP, Phase.RECORDING
_RESET_NUMBER = phase_number(Phase.RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)
_BOOL = np.dtype(np.bool_)
_SILENT_SHARE = 0.25
"""Where slots stand silent for more of the steps than this, a hint says so."""
_FEWEST_TRAJECTORIES = 4
"""Trajectories for each slot that are looked at for the hint."""


class NativeRunner(NativeEnv):
    """Runs blocks in a `gymnasium.vector.VectorEnv`; slots are its environments.

    The slots begin the first trajectories of a block. A slot whose trajectory ends begins the next one, slots in order
    within a step; where the block has none left the slot falls silent, and is stepped along with whatever the agent
    does on the first live slot's observation. How a slot begins its next trajectory depends on the environment's
    autoreset mode (see `gymnasium.vector.AutoresetMode`):

    - NEXT_STEP: the observation of the last step is the final one; in the slot's next step the environment resets, and
      ignores the action, which the agent chose on the final observation: of that step nothing is recorded.
    - SAME_STEP: the observation is the new trajectory's first one already; the final one is in ``final_obs``.
    - DISABLED: the slot is reset by ``reset(seed=…, options={"reset_mask": …})``, from the trajectory's own seed.

    At the start of each block the whole environment is reset, with the seeds of the first trajectories. With the first
    two modes a slot's later trajectories go on with what its environment draws.

    Args:
        env: The environment.
        worker: Shows phase and trajectory.
    """

    def __init__(self, env: Any, worker: Worker) -> None:
        super().__init__(env, worker)
        self._recorder = NativeRecorder(*self.spaces, self.n_slots)
        self._hinted = worker.context.worker_number > 0
        self._trajectories = self._ran_timesteps = self._silent_rows = 0

    def rollout(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> Outcome:
        """Run a ticket, block by block; see `Worker.rollout`."""
        recorder, worker = self._recorder, self._worker
        recorder.clear()
        # Where a call has given some seeds or options, an environment that resets itself takes them only when the whole
        # of it is reset: then a block has one trajectory for each of its environments.
        one_each = self.resets_itself and worker.resets is not None and not worker.resets.says_only_version
        size = min(self.n_slots, ticket.block) if one_each else ticket.block
        seconds = [0.0, 0.0, 0.0]
        may_run = True
        for first in range(0, len(seeds), size):
            ran = worker.ran_timesteps
            block = slice(first, first + size)
            run = _Run(self, ticket.version, ticket.indices[block], seeds[block], agent, recorder, worker)
            may_run = run.run(seconds)
            if not may_run:
                break
            if len(seeds) >= first + size and not one_each:
                self._look_at_silence(size, worker.ran_timesteps - ran, run.n_silent_rows)
        if may_run:
            rollouts = worker.finished_in_order(
                partial(recorder.finish, worker.context.allocate), ticket.indices, self.env
            )
            return Outcome(rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=tuple(seconds))
        abandoned = run.running_timesteps()
        return Outcome(
            None,
            n_trajectories=recorder.n_ended,
            n_timesteps=worker.ran_timesteps - abandoned,
            n_abandoned=recorder.n_begun - recorder.n_ended,
            abandoned_timesteps=abandoned,
            seconds=tuple(seconds),
        )

    def rehearse(self, version: int, indices: range, seeds: list[int], agent: BatchedAgent) -> None:
        """Run a block, and keep nothing of it."""
        _Run(self, version, indices, seeds, agent, self._recorder, self._worker).run([0.0, 0.0, 0.0])

    def _look_at_silence(self, size: int, ran_timesteps: int, n_silent_rows: int) -> None:
        """Say once what longer blocks would save; count a block of so many trajectories."""
        self._trajectories += size
        self._ran_timesteps += ran_timesteps
        self._silent_rows += n_silent_rows
        share = self._silent_rows / (self._silent_rows + self._ran_timesteps)
        if self._hinted or self._trajectories < _FEWEST_TRAJECTORIES * self.n_slots or share < _SILENT_SHARE:
            return
        self._hinted = True
        # A block's end is about as long whatever the block: with blocks so many times as long it is a tenth of them.
        longer = size * math.ceil(9 * share / (1 - share))
        _LOG.warning(
            "VecWorker: the environments of %s stand silent in %.0f %% of all steps: at the end of each block of %d "
            'trajectories they wait for the longest one. Longer blocks cost less: worker_args={"block_size": %d} '
            "for about 10 %%, where a batch has enough trajectories to share.",
            name_of_env(self.env), 100 * share, size, longer,
        )  # fmt: skip


class _Run:
    """One block of a ticket. Arrays have one entry for each slot.

    Attributes:
        n_silent_rows: Steps of slots that had no trajectory left.
    """

    def __init__(
        self, env: NativeEnv, version: int, indices: range, seeds: list[int], agent: BatchedAgent,
        recorder: NativeRecorder, worker: Worker,
    ) -> None:  # fmt: skip
        self._env, self._agent, self._recorder, self._worker = env, agent, recorder, worker
        self._mode, self._resets_itself = env.mode, env.resets_itself
        self._version, self._indices, self._seeds = version, indices, seeds
        self._left = len(seeds)  # how many trajectories have not begun
        self._first = recorder.n_begun  # the position of the first one in the ticket
        n_slots = self._n_slots = env.n_slots
        self._shape = (n_slots,)
        self._slots = np.arange(n_slots)
        self._begun = np.zeros(n_slots, dtype=np.int64)  # the steps in which the slots' trajectories began
        self._live = np.zeros(n_slots, dtype=np.bool_)
        self._silent = np.zeros(n_slots, dtype=np.bool_)
        self._resetting = self._slots[:0]  # slots that the environment resets in the step to come
        self._n_live = self._n_silent = 0
        self._in_reset = False
        self._limit = worker.context.max_episode_length or math.inf
        self.n_silent_rows = 0
        self._seconds = [0.0, 0.0, 0.0]
        self._prepared: Any = None

    def run(self, seconds: list[float]) -> bool:
        """Run the block.

        Args:
            seconds: Of resets, of the agent and of steps; the block's are added.

        Returns:
            Whether its version may still run.
        """
        worker, row = self._worker, self._worker.row
        self._seconds = seconds
        worker.phase, worker.trajectory = Phase.AGENT_RESET, self._indices[0]
        row.begin_trajectory(self._indices[0])
        seed_generators(self._seeds[0])
        agent = self._agent
        agent.row = -1
        agent.begin_block(self._seeds[0])
        self._prepared = agent.prepare(self._seeds)
        try:
            self._reset_all()
            return self._step_until_all_end()
        except BaseException as error:
            self._explain(error)
            raise

    # ------------------------------------------------------------------ beginning

    def _reset_all(self) -> None:
        worker, seeds = self._worker, self._seeds
        worker.phase = Phase.RESET
        worker.row.words[worker.row.phase_word] = _RESET_NUMBER
        began = perf_counter()
        slots = self._slots[: len(seeds)]
        self._silent[len(seeds) :] = True
        self._n_silent = self._n_slots - len(slots)
        self._in_reset = True
        result = self._env.reset([seeds[slot % len(seeds)] for slot in range(self._n_slots)])
        observations, infos = self._begin_of(result)
        self._recorder.begin_block(observations, self._silent)
        self._in_reset = False
        self._begin(slots, infos)
        self._seconds[0] += perf_counter() - began

    def _begin_of(self, result: Any) -> tuple[Any, Any]:
        observations, infos = begin_of(result)
        self._worker.phase = _RECORDING
        check_infos("episode_infos", infos)
        return observations, infos

    def _begin(self, slots: NDArray[np.int64], infos: Any) -> None:
        """Begin the block's next trajectories in slots that have just been reset."""
        worker, agent, recorder = self._worker, self._agent, self._recorder
        first = len(self._seeds) - self._left
        recorder.begin(slots, without_final(infos) if infos else infos)
        self._begun[slots] = recorder.step
        self._live[slots] = True
        self._n_live += len(slots)
        self._left -= len(slots)
        worker.row.begin_trajectory(self._indices[first])
        if self._prepared is not None:
            worker.phase = Phase.AGENT_RESET
            for number, slot in enumerate(slots.tolist(), first):
                worker.trajectory = self._indices[number]
                agent.begin(slot, self._prepared, number)

    def _reset_masked(self, refilled: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        """Reset slots whose environment does not do it itself, the silent ones among them, which are stepped along."""
        began = perf_counter()
        worker = self._worker
        worker.phase, self._in_reset = Phase.RESET, True
        seeds = self._seeds[:1] * self._n_slots
        first = len(self._seeds) - self._left
        for number, slot in enumerate(refilled.tolist(), first):
            seeds[slot] = self._seeds[number]
        if len(refilled):
            worker.trajectory = self._indices[first]
        observations, infos = self._begin_of(self._env.reset_slots(seeds, ended))
        self._recorder.begin_again(observations, refilled, np.flatnonzero(ended))
        self._in_reset = False
        if len(refilled):
            self._begin(refilled, infos)
        elapsed = perf_counter() - began
        self._seconds[0] += elapsed
        self._seconds[2] -= elapsed

    # ------------------------------------------------------------------ stepping

    def _step_until_all_end(self) -> bool:
        """Step the environment; return whether the version may still run.

        The inner loop: it is measured.
        """
        worker, recorder, seconds = self._worker, self._recorder, self._seconds
        step_env, version = self._env.env.step, self._version
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
            worker.ran_timesteps = words[timesteps_word] = worker.ran_timesteps + self._n_live
            if self._n_silent:
                self.n_silent_rows += self._n_silent
            self._finish_step(terminated, truncated, infos)
            seconds[1] += between - began
            seconds[2] += perf_counter() - between
            if words[0] > version:
                return False
        return True

    def _choose(self, step: int) -> Any:
        """Let the agent choose actions, record them, and return those that the environment gets."""
        worker, recorder, agent = self._worker, self._recorder, self._agent
        if self._n_live:
            live = np.flatnonzero(self._live).tolist() if agent.one_by_one else ()
            actions, infos = agent.choose(self._shown(step), live, worker, self._record_agent_info)
            worker.phase = _ACTION
            recorder.actions.append(actions)
            if infos:
                worker.phase = _RECORDING
                recorder.agent_infos.record(step * self._n_slots + self._slots, infos)
        else:
            # The environment will only reset, and ignores them.
            recorder.actions.append(recorder.actions.row_batch(step - 1))
        rows = recorder.actions.row_batch(step)
        return rows.copy() if rows.__class__ is np.ndarray and not rows.dtype.hasobject else for_env(rows)

    def _record_agent_info(self, slot: int, info: Any) -> None:
        self._recorder.record_agent_info(self._recorder.step * self._n_slots + slot, info)

    def _shown(self, step: int) -> Tree:
        """Return the observations that the agent gets: its own, and with something to act on for silent slots."""
        rows = self._recorder.observations.row_batch(step)
        if rows.__class__ is np.ndarray and not (self._n_silent or rows.dtype.hasobject):
            return rows.copy()
        shown = owned(map_tree(np.copy, rows))
        if self._n_silent:
            first = int(self._live.argmax())
            for _, leaf in leaves(shown):
                leaf[self._silent] = leaf[first]
        return shown

    def _flags(self, values: Any, name: str) -> NDArray[np.bool_]:
        if values.__class__ is np.ndarray and values.dtype is _BOOL and values.shape == self._shape:
            return values
        return column_of_slots(values, self._n_slots, name, "b")

    def _finish_step(self, terminated: Any, truncated: Any, infos: Any) -> None:
        """Record infos, end trajectories, and begin others in their slots."""
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        if self._limit is not math.inf:
            truncated = truncated | (self._live & (self._recorder.step - self._begun >= self._limit))
        flags = terminated | truncated
        ended = (flags & self._live if self._n_live < self._n_slots else flags).nonzero()[0]
        if infos:
            self._record_infos(ended, infos)
        begin_now = self._resetting
        going_on = ended[: self._left - len(begin_now)]
        if len(ended):
            self._end(ended, going_on, terminated, truncated, infos)
        if self._mode == NEXT_STEP:
            self._resetting = going_on
        elif self._resets_itself:
            begin_now = going_on
        elif flags.any():
            self._reset_masked(going_on, flags)
        if len(begin_now):
            self._begin(begin_now, infos)

    def _end(
        self, ended: NDArray[np.int64], going_on: NDArray[np.int64], terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_], infos: Any,
    ) -> None:  # fmt: skip
        recorder, final = self._recorder, None
        if self._mode == SAME_STEP:
            if "final_obs" not in infos:
                raise DataError("a vector environment with AutoresetMode.SAME_STEP must have final_obs in its infos")
            final = infos["final_obs"]
        elif not self._resets_itself:
            final = recorder.observations.row_batch(recorder.step)
        recorder.end(ended, terminated[ended], truncated[ended], final)
        self._live[ended] = False
        self._n_live -= len(ended)
        if len(going_on) < len(ended):
            self._silent[ended[len(going_on) :]] = True
            self._n_silent += len(ended) - len(going_on)

    def _record_infos(self, ended: NDArray[np.int64], infos: Any) -> None:
        env_infos = self._recorder.env_infos
        numbers = self._slots + (self._recorder.step - 1) * self._n_slots
        if self._mode != SAME_STEP or not len(ended):
            env_infos.record(numbers, infos)
            return
        going_on = np.ones(self._n_slots, dtype=np.bool_)
        going_on[ended] = False
        env_infos.record(numbers[going_on], without_final(infos), self._slots[going_on])
        env_infos.record(numbers[ended], infos.get("final_info", {}), ended)

    def running_timesteps(self) -> int:
        """Return how many timesteps the trajectories have that have not ended."""
        return int((self._recorder.step - self._begun[self._live]).sum())

    # ------------------------------------------------------------------ errors

    def _explain(self, error: BaseException) -> None:
        """Say which trajectory was in hand."""
        worker, asked = self._worker, self._worker.row.words[self._worker.row.phase_word] == _ACTION_NUMBER
        timestep: int | None = None
        slots = np.flatnonzero(self._live).tolist()
        if slots and not self._in_reset and worker.phase in (_ACTION, _STEP, _RECORDING):
            slot = self._agent.row if self._agent.row >= 0 else row_at_fault(error, slots[0])
            slot = slot if self._live[slot] else slots[0]
            numbers = self._recorder.running_positions() - self._first
            indices = {each: self._indices[numbers[each]] for each in slots}
            worker.trajectory = indices[slot]
            # What a step returned is recorded as the next timestep's observation.
            follows = not asked and not isinstance(error, ObservationError)
            timestep = int(self._recorder.step - self._begun[slot]) - follows
            if self._agent.row < 0:
                whose = "get_actions had the observations of" if asked else "the vector environment was running"
                error.add_note(f"{whose} trajectories {', '.join(map(str, indices.values()))}")
        if isinstance(error, DataError) and worker.phase is _RECORDING:
            locate(error, self._env.env, timestep)
