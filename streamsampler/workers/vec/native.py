"""Running a block of trajectories in an environment that is vectorised natively: its stream, cut into trajectories."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from streamsampler.data.step_values import check_rewards
from streamsampler.data.trees import Tree, leaves, map_tree, owned, take
from streamsampler.environments.updates import AnyVectorEnv
from streamsampler.errors import DataError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.seeding import Stream, derived_seed
from streamsampler.workers.base import Worker, tell_where
from streamsampler.workers.board import phase_number
from streamsampler.workers.vec.agents import BatchedAgent, Rows
from streamsampler.workers.vec.infos import info_of
from streamsampler.workers.vec.native_values import check_infos, column_of_slots
from streamsampler.workers.vec.recorder import BatchRecorder
from streamsampler.workers.vec.rows import BatchRows, row_of
from streamsampler.workers.vec.slots import Block, FinishedPrefix, Seconds, begin_of, explain_batch

__all__ = ["NativeRunner"]

_RESET_NUMBER = phase_number(Phase.RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)
_SILENT = -1
_FINAL = ("final_obs", "final_info")

NEXT_STEP, SAME_STEP, DISABLED = "NEXT_STEP", "SAME_STEP", "DISABLED"


class NativeRunner:
    """Runs blocks in a `gymnasium.vector.VectorEnv`; slots are its environments.

    Slots are filled as `slots.SlotRunner` does it. What differs is how a slot begins its next trajectory, which the
    environment's autoreset mode tells (see `gymnasium.vector.AutoresetMode`):

    - NEXT_STEP: the observation of the last step is the final one; in the slot's next step the environment resets, and
      ignores the action: that step is not recorded.
    - SAME_STEP: the observation is the new trajectory's first one already; the final one is in ``final_obs``.
    - DISABLED: the slot is reset by ``reset(seed=…, options={"reset_mask": …})``, from the trajectory's own seed.

    At the start of each block the whole environment is reset, with the seeds of the first trajectories. With the first
    two modes a slot's later trajectories go on with what its environment draws.

    Args:
        env: The environment.
        worker: Told what is being done.

    Attributes:
        takes_one_seed: Whether its `reset` was seen to take one seed only: then it draws for all slots from that one.

    Raises:
        UsageError: There is a limit to trajectories' lengths, which only the mode DISABLED can take.
    """

    def __init__(self, env: AnyVectorEnv, worker: Worker) -> None:
        self._env = env
        self._worker = worker
        self.takes_one_seed = False
        mode = (env.metadata or {}).get("autoreset_mode", NEXT_STEP)
        self._mode = str(getattr(mode, "name", mode))
        if self._mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise UsageError(f"the vector environment has the autoreset mode {mode!r}, which is none of Gymnasium's")
        if worker.context.max_episode_length is not None and self._mode != DISABLED:
            raise UsageError(
                f"max_episode_length needs a vector environment with AutoresetMode.DISABLED; this one has "
                f"{self._mode}, so that only it can end a trajectory. Give the environment its own limit, as "
                "gymnasium.make_vec(…, max_episode_steps=…) does"
            )

    @property
    def resets_itself(self) -> bool:
        """Whether the environment begins trajectories by itself."""
        return self._mode != DISABLED

    @property
    def n_slots(self) -> int:
        """How many trajectories run side by side."""
        return int(self._env.num_envs)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of one environment."""
        return self._env.single_observation_space, self._env.single_action_space

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def reset_from(self, seeds: list[int]) -> Any:
        """Reset the whole environment, from one seed for each slot; from the first one, where it takes no list.

        Raises:
            UsageError: It takes no list, and the seeds are those that a call was given; or the options are one dict
                for each trajectory.
        """
        given: Any = seeds
        more = self.options()
        if not self.takes_one_seed:
            try:
                return self._env.reset(seed=given, **more)
            except Exception as refused:
                # Many native ones draw for all their environments from one generator, and refuse a list.
                try:
                    result = self._env.reset(seed=seeds[0], **more)
                except Exception as error:
                    raise error from refused
                self.takes_one_seed = True
                self._check_that_one_will_do()
                return result
        self._check_that_one_will_do()
        return self._env.reset(seed=seeds[0], **more)

    def _check_that_one_will_do(self) -> None:
        episodes = self._worker.episodes
        if episodes is not None and episodes.seeds is not None and self.n_slots > 1:
            raise UsageError(
                "seeds needs a vector environment whose reset takes a list with one for each environment; "
                f"{type(self._env.unwrapped).__qualname__} takes one for all"
            )

    def options(self) -> dict[str, Any]:
        """Return what `reset` gets besides seeds: the options of the call, if there are any."""
        episodes = self._worker.episodes
        return {} if episodes is None else episodes.vector_arguments

    def run(self, block: Block, agent: BatchedAgent, recorder: BatchRecorder, seconds: Seconds) -> bool:
        """Run a block, as far as it is wanted.

        Returns:
            Whether its version still is.
        """
        return _Run(self, self._env, self._mode, block, agent, recorder, seconds, self._worker).run()


class _Run:
    """One block. Arrays have one entry for each slot."""

    def __init__(
        self, runner: NativeRunner, env: AnyVectorEnv, mode: str, block: Block, agent: BatchedAgent,
        recorder: BatchRecorder, seconds: Seconds, worker: Worker,
    ) -> None:  # fmt: skip
        self._runner, self._env, self._mode, self._block, self._agent = runner, env, mode, block, agent
        self._recorder, self._seconds, self._worker = recorder, seconds, worker
        self._prefix = FinishedPrefix(block)
        self._n_slots = n_slots = int(env.num_envs)
        self._positions = np.full(n_slots, _SILENT, dtype=np.int64)
        self._begun = np.zeros(n_slots, dtype=np.int64)
        self._resetting = np.zeros(n_slots, dtype=np.bool_)
        self._reader = BatchRows(env.single_observation_space, "observation", ObservationError)
        self._observations: Tree = ()
        self._filler: Tree | None = None
        self._next = 0
        self._step = 0

    def run(self) -> bool:
        worker, words = self._worker, self._worker.row.words
        live = np.arange(0)
        try:
            self._reset_all()
            while (self._positions != _SILENT).any():
                worker.done_timesteps = self._prefix.n_timesteps
                live = np.flatnonzero((self._positions != _SILENT) & ~self._resetting)
                self._one_step(live)
                words[worker.row.timesteps_word] = len(self._recorder.rewards)
                if words[0] > self._block.version:
                    return False
                if self._block.enough and self._prefix.suffices:
                    break
        except BaseException as error:
            self._explain(error, live)
            raise
        return True

    # ------------------------------------------------------------------ resetting

    def _reset_all(self) -> None:
        worker, seeds = self._worker, self._block.seeds
        worker.phase, worker.trajectory = Phase.RESET, self._block.indices[0]
        worker.row.words[worker.row.phase_word] = _RESET_NUMBER
        began = perf_counter()
        n_seeds = len(seeds)
        result = self._runner.reset_from([seeds[slot % n_seeds] for slot in range(self._n_slots)])
        observations, infos = begin_of(result)
        self._worker.phase = Phase.RECORDING
        check_infos("episode_infos", infos)
        self._observations = self._checked(observations, np.arange(min(self._n_slots, n_seeds)))
        for slot in range(min(self._n_slots, len(seeds))):
            self._begin(slot, infos)
        worker.row.words[worker.row.phase_word] = _STEP_NUMBER
        self._seconds.reset += perf_counter() - began

    def _reset_masked(self, ended: NDArray[np.int64]) -> None:
        """Reset slots whose environment does not do it itself, the silent ones among them, which are stepped along."""
        if not len(ended):
            return
        began = perf_counter()
        mask = np.zeros(self._n_slots, dtype=np.bool_)
        mask[ended] = True
        seeds = [self._block.seeds[0]] * self._n_slots
        refilled = ended[self._resetting[ended]]
        for number, slot in enumerate(refilled.tolist()):
            seeds[slot] = self._block.seeds[self._next + number]
        self._worker.phase = Phase.RESET
        if len(refilled):
            self._worker.trajectory = self._block.indices[self._next]
        # One seed for all would be the other slots' seed, too.
        given: Any = None if self._runner.takes_one_seed else seeds
        options = {**self._runner.options().get("options", {}), "reset_mask": mask}
        observations, infos = begin_of(self._env.reset(seed=given, options=options))
        self._worker.phase = Phase.RECORDING
        check_infos("episode_infos", infos)
        _filled(self._observations, take(self._checked(observations, refilled), ended), ended)
        for slot in refilled.tolist():
            self._begin(slot, infos)
        elapsed = perf_counter() - began
        self._seconds.reset += elapsed
        self._seconds.step -= elapsed

    def _begin(self, slot: int, infos: Any) -> None:
        """Begin the block's next trajectory in a slot that has just been reset."""
        worker, block, number = self._worker, self._block, self._next
        self._next += 1
        self._positions[slot] = block.first + number
        self._begun[slot] = self._step
        self._resetting[slot] = False
        worker.trajectory = block.indices[number]
        worker.row.begin_trajectory(block.indices[number])
        if self._agent.by_slot:
            worker.phase = Phase.AGENT_RESET
            self._agent.begin_trajectory(slot, derived_seed(block.seeds[number], Stream.AGENT))
        worker.phase = Phase.RECORDING
        self._recorder.begin(info_of(_without_final(infos), slot))

    # ------------------------------------------------------------------ stepping

    def _one_step(self, live: NDArray[np.int64]) -> None:
        worker, seconds, positions = self._worker, self._seconds, self._positions[live]
        first = len(self._recorder.rewards)
        began = perf_counter()
        words, phase_word = worker.row.words, worker.row.phase_word
        words[phase_word] = _ACTION_NUMBER
        if len(live):
            self._choose(first, live)
        between = perf_counter()
        words[phase_word] = _STEP_NUMBER
        worker.phase = Phase.STEP
        try:
            observations, rewards, terminated, truncated, infos = self._env.step(self._actions())
        except (TypeError, ValueError) as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:
                raise UsageError("step must return (observations, rewards, terminated, truncated, infos)") from error
            raise
        worker.phase = Phase.RECORDING
        self._step += 1
        check_infos("env_infos", infos)
        self._observations = self._checked(observations, np.flatnonzero(self._positions != _SILENT))
        self._recorder.rewards.extend(self._checked_rewards(rewards, live))
        self._recorder.positions.extend(positions.tolist())
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
        if self._mode == DISABLED:
            self._reset_masked(np.union1d(np.flatnonzero(ended_itself), ended))
        else:
            for slot in (reset_in_this_step if self._mode == NEXT_STEP else ended[self._resetting[ended]]).tolist():
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
        self._filler = _filled(self._filler, chosen, live)

    def _actions(self) -> Any:
        """Actions for all slots: those that need none get the first one's, which is as good as any."""
        assert self._filler is not None
        return _for_env(self._filler)

    def _checked(self, observations: Any, wanted: NDArray[np.int64]) -> Tree:
        """A copy of observations, of the space's dtypes.

        Slots that are not wanted go on with any actions, and nobody looks: what their observations hold is no error.
        """
        try:
            return self._reader.checked(observations, self._n_slots)
        except DataError as error:
            is_array = all(isinstance(leaf, np.ndarray) for _, leaf in leaves(observations))
            if getattr(error, "row", None) is None or not is_array:
                raise
        try:
            rows = self._reader.checked(take(observations, wanted), len(wanted))
        except DataError as error:
            error.row = int(wanted[getattr(error, "row", 0)])  # type: ignore[attr-defined]
            raise
        whole = map_tree(lambda leaf: np.zeros((self._n_slots, *leaf.shape[1:]), leaf.dtype), rows)
        return _filled(whole, rows, wanted)

    def _checked_rewards(self, rewards: Any, live: NDArray[np.int64]) -> list[float]:
        found = column_of_slots(rewards, self._n_slots, "rewards", "biuf")[live]
        try:
            check_rewards(found)
        except DataError as error:
            error.row = int(live[getattr(error, "row", 0)])  # type: ignore[attr-defined]
            raise
        numbers: list[float] = found.astype(np.float64).tolist()
        return numbers

    def _end(self, slot: int, terminated: bool, truncated: bool, infos: Any) -> None:
        last = row_of(self._observations, slot)
        if self._mode == SAME_STEP:
            if "final_obs" not in infos:
                raise DataError("a vector environment with AutoresetMode.SAME_STEP must tell final_obs in its infos")
            last = row_of(infos["final_obs"], slot)
        position, length = int(self._positions[slot]), int(self._step - self._begun[slot])
        self._recorder.end(position, length, last, terminated, truncated)
        self._prefix.end(position, length)
        waiting = int(self._resetting.sum())
        left = len(self._block.indices) - self._next - waiting
        self._resetting[slot] = left > 0
        # A slot that waits for its reset has a position, so that it is not silent; it gets its own in `_begin`.
        if left <= 0:
            self._positions[slot] = _SILENT

    def _record_infos(self, first: int, live: NDArray[np.int64], ended: NDArray[np.int64], infos: Any) -> None:
        steps = np.arange(first, first + len(live))
        if self._mode != SAME_STEP or not len(ended):
            self._recorder.env_infos.record(steps, infos, live)
            return
        going_on = ~np.isin(live, ended)
        self._recorder.env_infos.record(steps[going_on], _without_final(infos), live[going_on])
        self._recorder.env_infos.record(steps[~going_on], infos.get("final_info", {}), ended)

    def _explain(self, error: BaseException, live: NDArray[np.int64]) -> None:
        worker, block = self._worker, self._block
        running = [block.indices[position - block.first] for position in self._positions[live].tolist()]
        if worker.phase not in (Phase.ACTION, Phase.STEP, Phase.RECORDING):
            return
        timestep: int | None = None
        if self._agent.row >= 0 and running:
            worker.trajectory = running[self._agent.row]
        elif worker.phase is Phase.ACTION and running:
            explain_batch(error, worker, running)
        elif running:
            slot = getattr(error, "row", int(live[0]))
            if slot in live:
                worker.trajectory = running[int(np.flatnonzero(live == slot)[0])]
                # What a step returned is recorded as the next timestep's observation.
                timestep = int(self._step - self._begun[slot]) - (not isinstance(error, ObservationError))
            error.add_note(f"the vector environment was running trajectories {', '.join(map(str, running))}")
        if isinstance(error, DataError) and worker.phase is Phase.RECORDING:
            tell_where(error, self._env, timestep)


def _without_final(infos: Any) -> dict[str, Any]:
    return {key: value for key, value in infos.items() if key.removeprefix("_") not in _FINAL}


def _filled(whole: Tree, rows: Tree, slots: NDArray[np.int64]) -> Tree:
    """Write rows into a batch; returns it."""
    for (_, target), (_, source) in zip(leaves(whole), leaves(rows), strict=True):
        target[slots] = source
    return whole


def _for_env(tree: Tree) -> Any:
    """How a batch of stored actions looks to a vector environment: in its own arrays, objects in a tuple."""
    if isinstance(tree, dict):
        return {key: _for_env(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_for_env(child) for child in tree)
    return tuple(tree.tolist()) if tree.dtype == object else tree.copy()
