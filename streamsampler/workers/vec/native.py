"""Run trajectories in an environment that is vectorised natively, a `gymnasium.vector.VectorEnv`, in blocks."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import check_rewards, short
from streamsampler.data.trees import Tree, concatenate, leaves, map_tree, same, snapshot, take
from streamsampler.environments.updates import AnyVectorEnv, EnvUpdate, NewEnvUpdate
from streamsampler.errors import DataError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import begin_of, locate, name_of_env, raised_in, row_at_fault
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.columns import Columns
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.rows import row_of
from streamsampler.workers.vec.steps import RunningTickets, StepRecorder

NEXT_STEP, SAME_STEP, DISABLED = "NEXT_STEP", "SAME_STEP", "DISABLED"
_LOG = logging.getLogger("streamsampler")
_ACTION, _STEP, _RECORDING = Phase.ACTION, Phase.STEP, Phase.RECORDING
_ACTION_NUMBER = phase_number(_ACTION)
_BOOL = np.dtype(np.bool_)
_FINAL = ("final_obs", "final_info")
_EXACT = "?bBhHiIefd"  # the dtypes whose numbers a float64 holds
_SILENT_SHARE = 0.25
"""Where slots stand silent for more of the steps than this, a hint says so."""
_FEWEST_TRAJECTORIES = 4
"""Trajectories for each slot that are looked at for the hint."""
_SINGLE = "pass an environment that is not vectorised, of which VecWorker makes several itself"
_NO_HOOKS = (
    "a vector environment calls no hooks and no drop_if, because nothing can be called between the timesteps of one "
    f"trajectory: it steps all its environments in one call; {_SINGLE}"
)


class NativeRunner(LaneRunner):
    """Runs blocks in a `gymnasium.vector.VectorEnv`; the rows are its environments, here called slots.

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

    All trajectories are kept in arrays, by slot or by position in the ticket: an environment may have a thousand slots.

    Args:
        env: The environment.
        worker: Shows phase and trajectory, and has the seeds and the reset options that a call was given.
        n_envs: How many environments the user wants; None for as many as there are.
        block: How many trajectories make a block.

    Raises:
        UsageError: It cannot do what the user wants.
    """

    only_blocks = f"a vector environment runs no fragments: {_SINGLE}"

    def __init__(self, env: AnyVectorEnv, worker: Worker, n_envs: int | None = None, block: int | None = None) -> None:
        n_slots = int(env.num_envs)
        spaces = env.single_observation_space, env.single_action_space
        super().__init__([env], worker, StepRecorder(*spaces, n_slots, together=True))
        mode = (env.metadata or {}).get("autoreset_mode", NEXT_STEP)
        self._env, self._mode = env, str(getattr(mode, "name", mode))
        self._refuse_what_it_cannot_do(n_envs, n_slots if block is None else block)
        self._resets_itself = self._mode != DISABLED
        self._takes_one_seed = False  # seen at a reset: the environment draws for all slots from one seed
        self._is_limited = worker.context.max_episode_length is not None
        self._apart = Columns(spaces[0], n_slots, "observation", ObservationError)
        self._actions: Any = None
        self._tickets = RunningTickets(worker, 0)  # no row waits for trajectories of its own
        self._slots, self._shape = np.arange(n_slots), (n_slots,)
        # By slot: whether it has a trajectory, or no more; its trajectory's position, and the step in which it began.
        self._alive, self._silent = np.zeros(n_slots, np.bool_), np.zeros(n_slots, np.bool_)
        self._position, self._begun = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.int64)
        self._none = self._slots[:0], self._slots[:0]  # no slots, and no positions
        self._resetting = self._none  # what the environment resets in the next step
        # Trajectories that have ended, step by step: positions, numbers of their first values, lengths, terminated,
        # truncated, last observations.
        self._ended: list[tuple[Any, ...]] = []
        self._n_begun = 0
        self._first = self._next = self._stop = 0  # the block's first position, that of its next trajectory, its end
        self._is_resetting = False
        self._is_hinted = worker.context.worker_number > 0
        self._n_silent = self._n_silent_rows = 0  # now, and in all steps of the block in hand
        self._seen = np.zeros(3, np.int64)  # of blocks: their trajectories, timesteps, and steps of silent slots

    def _refuse_what_it_cannot_do(self, n_envs: int | None, block: int) -> None:
        context, n_slots = self._worker.context, self._n_rows
        if n_envs is not None and n_envs != n_slots:
            raise UsageError(f"n_envs is {n_envs}, but the vector environment has {n_slots}")
        if n_slots > block:
            raise UsageError(
                f"a block of {block} trajectories cannot fill a vector environment of {n_slots}: "
                f'pass worker_args={{"n_envs": {n_slots}}}'
            )
        if context.hooks is not None:
            raise UsageError(_NO_HOOKS)
        if self._mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise UsageError(
                f"the vector environment has the autoreset mode {self._mode!r}, which is none of Gymnasium's"
            )
        if context.max_episode_length is not None and self._mode != DISABLED:
            raise UsageError(
                f"max_episode_length needs a vector environment with AutoresetMode.DISABLED; this one has "
                f"{self._mode}, so that only it can end a trajectory. Give the environment its own limit, as "
                "gymnasium.make_vec(…, max_episode_steps=…) does"
            )

    # ------------------------------------------------------------------ tickets

    def run_blocks(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> bool:
        """Run a ticket's trajectories, one block after the other; see `LaneRunner.run_blocks`."""
        if self._are_starts_given:  # a block has one trajectory for each slot
            ticket = ticket._replace(block=min(self._n_rows, ticket.block))
        return super().run_blocks(ticket, seeds, agent)

    def ended_so_far(self) -> tuple[int, int]:
        """Return how many trajectories of the ticket in hand have ended, and their timesteps."""
        return self._tickets.in_hand.n_ended, sum(int(lengths.sum()) for _, _, lengths, *_ in self._ended)

    def gather(self, most: int | None) -> Rollouts:
        """Return the first trajectories of the ticket in hand, or all of them; see `StepRecorder.gathered`."""
        *columns, last = zip(*self._ended, strict=True)
        positions, *others = map(np.concatenate, columns)
        order = np.argsort(positions)[:most]
        first, lengths, terminated, truncated = (column[order] for column in others)
        return self._recorder.gathered(
            first, lengths, np.arange(len(order)), self._worker.context.allocate,
            lambda: take(concatenate(last), order), terminated, truncated,
        )  # fmt: skip

    def end_ticket(self) -> None:
        """Forget the ticket in hand."""
        super().end_ticket()
        self._ended.clear()
        self._next = self._n_begun = 0

    def forget(self) -> tuple[int, int]:
        """Forget the ticket; see `LaneRunner.forget`."""
        n_begun = self._n_begun
        self._ended.clear()
        self._next = self._n_begun = 0
        self._alive[:] = False
        self._resetting = self._none
        return n_begun, super().forget()[1]

    @property
    def _are_starts_given(self) -> bool:
        """Whether a call has given seeds or options, which take effect only where all slots are reset."""
        resets = self._worker.resets
        return self._resets_itself and resets is not None and not resets.says_only_version

    def _run(self, n_ended: int) -> bool:
        self._first, self._stop, self._n_silent_rows = self._next, n_ended, 0
        n_ran, size = self.n_ran, self._tickets.in_hand.ticket.block
        may_run = super()._run(n_ended)
        if may_run and n_ended - self._first == size and not self._are_starts_given:
            self._seen += size, self.n_ran - n_ran, self._n_silent_rows
            self._look_at_silence(size)
        return may_run

    def _look_at_silence(self, size: int) -> None:
        """Say once what longer blocks would save."""
        n_trajectories, n_timesteps, n_silent_rows = self._seen.tolist()
        share = n_silent_rows / (n_silent_rows + n_timesteps)
        if self._is_hinted or n_trajectories < _FEWEST_TRAJECTORIES * self._n_rows or share < _SILENT_SHARE:
            return
        self._is_hinted = True
        # A block's end is about as long whatever the block: with blocks so many times as long it is a tenth of them.
        longer = size * math.ceil(9 * share / (1 - share))
        _LOG.warning(
            "VecWorker: the environments of %s stand silent in %.0f %% of all steps: at the end of each block of %d "
            'trajectories they wait for the longest one. Longer blocks cost less: worker_args={"block_size": %d} '
            "for about 10 %%, where a batch has enough trajectories to share.",
            name_of_env(self._env), 100 * share, size, longer,
        )  # fmt: skip

    # ------------------------------------------------------------------ beginning and ending trajectories

    def _fill(self) -> None:
        """Reset all slots, and begin the block's first trajectories."""
        began = perf_counter()
        worker, recorder, seeds = self._worker, self._recorder, self._tickets.in_hand.seeds
        worker.enter(Phase.RESET)
        slots, positions = self._next_in(self._slots)
        self._silent[:] = False
        self._silent[len(slots) :] = True
        self._n_silent = self._n_rows - len(slots)
        observations, infos = self._checked_begin(
            self._reset_all([seeds[self._first + slot % len(slots)] for slot in range(self._n_rows)])
        )
        _write(recorder.observations, recorder.step, observations, self._silent)
        self._begin_in(slots, positions, infos)
        self._find_live()
        self.seconds[0] += perf_counter() - began

    def _next_in(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first ones of free slots, one for each trajectory that the block has left, and their positions."""
        positions = np.arange(self._next, min(self._next + len(slots), self._stop))
        self._next += len(positions)
        return slots[: len(positions)], positions

    def _checked_begin(self, result: Any) -> tuple[Any, Any]:
        observations, infos = begin_of(result)
        self._worker.phase = _RECORDING
        _check_infos("episode_infos", infos)
        return observations, infos

    def _begin_in(self, slots: NDArray[np.int64], positions: NDArray[np.int64], infos: Any) -> None:
        """Begin trajectories in slots that have just been reset."""
        worker, running, agent, step = self._worker, self._tickets.in_hand, self._agent, self._recorder.step
        assert agent is not None
        if infos and (infos := _without_final(infos)):
            self._recorder.record_reset_info(positions, infos, slots)
        self._begun[slots], self._position[slots], self._alive[slots] = step, positions, True
        self._n_begun += len(slots)
        worker.row.begin_trajectory(running.ticket.indices[positions[0]])
        if running.prepared is not None:
            worker.phase = Phase.AGENT_RESET
            for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
                worker.trajectory = running.ticket.indices[position]
                agent.begin(slot, running.prepared, position)

    def _reset_ended(self, slots: NDArray[np.int64], positions: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        """Reset slots whose environment does not do it itself, the silent ones among them, which are stepped along."""
        began = perf_counter()
        worker, recorder, running = self._worker, self._recorder, self._tickets.in_hand
        worker.phase, self._is_resetting = Phase.RESET, True
        seeds = [running.seeds[self._first]] * self._n_rows
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            seeds[slot] = running.seeds[position]
        if len(slots):
            worker.trajectory = running.ticket.indices[positions[0]]
        observations, infos = self._checked_begin(self._reset_some(seeds, ended))
        apart = self._written_apart(observations, slots)
        for (_, whole), (_, rows) in zip(
            leaves(recorder.observations.row_batch(recorder.step)), leaves(apart), strict=True
        ):
            whole[ended] = rows[ended]
        self._is_resetting = False
        if len(slots):
            self._begin_in(slots, positions, infos)
        elapsed = perf_counter() - began
        self.seconds[0] += elapsed
        self.seconds[2] -= elapsed

    def _written_apart(self, observations: Any, used: NDArray[np.int64]) -> Tree:
        """Return a checked copy of observations of which only those of some slots matter."""
        unused = np.ones(self._n_rows, np.bool_)
        unused[used] = False
        _write(self._apart, 0, observations, unused)
        return self._apart.row_batch(0)

    def _find_live(self) -> None:
        assert self._agent is not None
        live = self._alive.nonzero()[0]
        self._live = live.tolist() if self._agent.one_by_one else live
        self._sources = np.where(self._silent, live[0], self._slots) if self._n_silent and len(live) else None

    # ------------------------------------------------------------------ resetting the environment

    def _reset_all(self, seeds: list[int]) -> Any:
        """Reset all slots, from one seed for each; from the first seed, where the environment takes no list.

        Raises:
            UsageError: The environment takes no list, and the seeds are those that a call was given; or the options
                are one dict for each trajectory.
        """
        resets, env = self._worker.resets, self._env
        options = {} if resets is None else resets.vector_arguments
        given: Any = seeds[0] if self._takes_one_seed else seeds
        try:
            result = env.reset(seed=given, **options)
        except Exception as refused:
            if self._takes_one_seed:
                raise
            # Many native environments draw for all slots from one generator, and refuse a list.
            try:
                result = env.reset(seed=seeds[0], **options)
            except Exception as error:
                raise error from refused
            self._takes_one_seed = True
        if self._takes_one_seed and resets is not None and resets.seeds is not None and self._n_rows > 1:
            raise UsageError(
                "seeds needs a vector environment whose reset takes a list with one for each environment; "
                f"{type(env.unwrapped).__qualname__} takes one for all"
            )
        return result

    def _reset_some(self, seeds: list[int], mask: NDArray[np.bool_]) -> Any:
        """Reset the slots of a mask, each from its seed."""
        # One seed for all would be the other slots' seed, too.
        given: Any = None if self._takes_one_seed else seeds
        resets = self._worker.resets
        options = {} if resets is None else resets.vector_arguments.get("options", {})
        return self._env.reset(seed=given, options={**options, "reset_mask": mask})

    # ------------------------------------------------------------------ stepping

    def _choose(self) -> None:
        if len(self._live):
            super()._choose()
            return
        # The environment will only reset, and ignores actions.
        recorder = self._recorder
        recorder.batch(None)
        self._record_actions(recorder.actions.row_batch(recorder.step - 2))

    def _record_actions(self, actions: Any) -> None:
        recorded = self._recorder.actions
        recorded.append(actions)
        self._actions = _for_env(recorded.row_batch(recorded.n_steps - 1))

    def _step_all(self) -> None:
        """Step the environment, record what it returns, and end and begin trajectories."""
        worker, recorder = self._worker, self._recorder
        try:
            observations, rewards, terminated, truncated, infos = self._env.step(self._actions)
        except (TypeError, ValueError) as error:
            if raised_in(error, self._step_all):
                raise UsageError("step must return (observations, rewards, terminated, truncated, infos)") from error
            raise
        worker.phase = _RECORDING
        _write(recorder.observations, recorder.step, observations, self._silent)
        recorder.rewards.frombytes(self._checked_rewards(rewards))
        if infos.__class__ is not dict:
            _check_infos("env_infos", infos)
        self.n_ran += len(self._live)
        self._n_silent_rows += self._n_silent
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        if self._is_limited:
            truncated = truncated | (self._alive & (recorder.step - self._begun >= self._limit))
        self._finish_step(terminated, truncated, infos)

    def _checked_rewards(self, rewards: Any) -> bytes:
        if rewards.__class__ is not np.ndarray or rewards.shape != self._shape or rewards.dtype.char not in _EXACT:
            rewards = self._column(rewards, "rewards", "biuf")
            try:
                check_rewards(rewards[self._alive])
            except DataError as error:
                error.row = int(self._live[error.row or 0])
                raise
        return np.asarray(rewards, np.float64).tobytes()

    def _flags(self, values: Any, name: str) -> NDArray[np.bool_]:
        if values.__class__ is np.ndarray and values.dtype is _BOOL and values.shape == self._shape:
            return values
        return self._column(values, name, "b")

    def _column(self, values: Any, name: str, kinds: str) -> NDArray[Any]:
        """Return rewards or ends as an array with one entry for each slot.

        Raises:
            DataError: It has another shape or kind; says both.
        """
        column = np.asarray(values)
        if column.shape != self._shape or column.dtype.kind not in kinds:
            raise DataError(
                f"{name} should be an array of shape {self._shape}, and is {column.dtype} of shape {column.shape}"
            )
        return column

    def _finish_step(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], infos: Any) -> None:
        """Record infos, end trajectories, and begin others in their slots."""
        flags = terminated | truncated
        ended = (flags & self._alive).nonzero()[0]
        if infos:
            self._record_infos(ended, infos)
        begin_now, going_on = self._resetting, self._none
        if len(ended):
            self._end_in(ended, terminated, truncated, infos)
            going_on = self._next_in(ended)
            self._silent[ended[len(going_on[0]) :]] = True
            self._n_silent += len(ended) - len(going_on[0])
        if self._mode == NEXT_STEP:
            self._resetting = going_on
        elif self._mode == SAME_STEP:
            begin_now = going_on
        elif flags.any():
            self._reset_ended(*going_on, flags)
        if len(begin_now[0]):
            self._begin_in(*begin_now, infos)
        if len(ended) or len(begin_now[0]):
            self._find_live()

    def _end_in(
        self, ended: NDArray[np.int64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], infos: Any
    ) -> None:
        recorder, positions = self._recorder, self._position[ended]
        if self._mode == SAME_STEP:
            if "final_obs" not in infos:
                raise DataError("a vector environment with AutoresetMode.SAME_STEP must have final_obs in its infos")
            final = self._written_apart(infos["final_obs"], ended)
        else:
            final = recorder.observations.row_batch(recorder.step)
        begun, last = self._begun[ended], take(final, ended)
        self._ended.append((
            positions, begun * self._n_rows + ended, recorder.step - begun, terminated[ended], truncated[ended], last,
        ))  # fmt: skip
        self._alive[ended] = False
        self._tickets.in_hand.n_ended += len(ended)

    def _record_infos(self, ended: NDArray[np.int64], infos: Any) -> None:
        record = self._recorder.record_env_info
        numbers = self._slots + (self._recorder.step - 1) * self._n_rows
        if self._mode != SAME_STEP or not len(ended):
            record(numbers, infos)
            return
        going_on = np.delete(self._slots, ended)
        record(numbers[going_on], _without_final(infos), going_on)
        record(numbers[ended], infos.get("final_info", {}), ended)

    # ------------------------------------------------------------------ errors

    def _explain(self, error: BaseException) -> None:
        """Say which trajectory was in hand."""
        worker, agent = self._worker, self._agent
        assert agent is not None
        asked = worker.row.words[worker.row.phase_word] == _ACTION_NUMBER
        timestep: int | None = None
        slots = self._alive.nonzero()[0].tolist()
        if slots and not self._is_resetting and worker.phase in (_ACTION, _STEP, _RECORDING):
            slot = agent.row if agent.row >= 0 else row_at_fault(error, slots[0])
            slot = slot if self._alive[slot] else slots[0]
            indices = {each: self._tickets.in_hand.ticket.indices[self._position[each]] for each in slots}
            worker.trajectory = indices[slot]
            # What a step returned is recorded as the next timestep's observation.
            follows = not asked and isinstance(error, ObservationError)
            timestep = int(self._recorder.step - self._begun[slot]) - (not follows)
            if agent.row < 0:
                whose = "get_actions had the observations of" if asked else "the vector environment was running"
                error.add_note(f"{whose} trajectories {', '.join(map(str, indices.values()))}")
        if isinstance(error, DataError) and worker.phase is _RECORDING:
            locate(error, self._env, timestep)


def _check_infos(path: str, infos: Any) -> None:
    """Check that the infos of a vector environment are a dict.

    Raises:
        DataError: They are something else.
    """
    if not isinstance(infos, Mapping):
        raise DataError(f"{path}: the infos of a vector environment must be a dict, got {short(infos)}")


def _without_final(infos: Any) -> dict[str, Any]:
    """Return infos without the final observations and infos of AutoresetMode.SAME_STEP."""
    return {key: value for key, value in infos.items() if key.removeprefix("_") not in _FINAL}


def _for_env(tree: Tree) -> Any:
    """Return a batch of stored actions as a vector environment takes it: in arrays of its own, objects in a tuple."""
    if isinstance(tree, dict):
        return {key: _for_env(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_for_env(child) for child in tree)
    return tuple(tree.tolist()) if tree.dtype.hasobject else tree.copy()


def _write(columns: Columns, step: int, batch: Any, unused: NDArray[np.bool_]) -> None:
    """Write a batch as a step of columns, in which it is no error whatever unused rows hold."""
    columns.n_steps = step
    try:
        columns.append(batch)
    except DataError as error:
        holds_rows = isinstance(batch, np.ndarray) and batch.dtype == object
        if not holds_rows and (error.row is None or not unused[error.row]):
            raise
    else:
        return
    rows = np.flatnonzero(~unused)
    for row in rows.tolist():
        try:
            columns.put(step, row, row_of(batch, row))
        except DataError as error:
            error.row = row
            raise
    for _, leaf in leaves(columns.row_batch(step)):
        leaf[unused] = leaf[rows[0]] if len(rows) else 0
    columns.n_steps = step + 1


# ----------------------------------------------------------------------
# Check that a native vector environment uses the seeds of its resets; otherwise make it from a seed each time.


if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # which takes no parameters in older versions of Gymnasium


def using_seeds(env: AnyVectorEnv, update: EnvUpdate) -> AnyVectorEnv:
    """Return a vector environment whose beginning is a function of the seeds that it is reset with.

    It is reset twice and compared: some environments, such as EnvPool's, draw from the seed that they are made with,
    and ignore any other. Such an environment is replaced at each reset by one that its factory makes from a seed.

    Args:
        env: The environment.
        update: What made it.

    Returns:
        The environment, or one that is made again for each seed.

    Raises:
        UsageError: It ignores seeds, and nothing takes one to make it; or the update changed one that is made again.
    """
    if isinstance(env, _MadeFromSeeds):
        raise UsageError(
            f"{name_of_env(env)} is made again for each block of trajectories, because it ignores the seeds of resets, "
            "so that a change of it would be lost: pass a function that makes the environment as it is to be"
        )
    seeds = list(range(env.num_envs))
    if _begins_alike(env, seeds):
        return env
    name, seeded = name_of_env(env), None
    if isinstance(update, NewEnvUpdate) and update.with_seed(0) is not None:
        seeded = _MadeFromSeeds(env, update)
        if _begins_alike(seeded, 0):
            return seeded
    why = "reset twice with the same seeds" if seeded is None else "made twice from the same seed"
    raise UsageError(
        f"the vector environment {name} began differently when it was {why}, so that no trajectory could be run again. "
        "Where reset ignores its seed, pass a function that makes the environment from one, which is called for each "
        "block of trajectories: lambda seed=0: envpool.make(…, seed=seed)"
    )


class _MadeFromSeeds(_Wrapper):
    """Makes a new environment at each reset that has a seed."""

    def __init__(self, env: AnyVectorEnv, update: NewEnvUpdate) -> None:
        super().__init__(env)
        self._update, self._context = update, copy_context()  # which has the worker's number

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Make the environment from a seed, if there is one, and reset it."""
        if seed is not None:
            if not isinstance(seed, int):
                raise TypeError(f"one seed makes all environments, got {seed!r}")
            self.env.close()
            make: Any = self._update.with_seed(seed)
            self.env = self._context.run(make, None)
        return self.env.reset() if options is None else self.env.reset(options=options)


def _begins_alike(env: AnyVectorEnv, seeds: Any) -> bool:
    """Return whether an environment begins in the same way from the same seeds."""
    begun = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as EnvPool's, that it ignores the seed
        for _ in range(2):
            try:
                observations, _ = env.reset(seed=seeds)
            except Exception:
                if not isinstance(seeds, list):
                    return True  # no verdict: it is raised again when the first block begins
                return _begins_alike(env, seeds[0])
            begun.append(map_tree(_kept, observations))
    return same(*begun)


def _kept(observation: Any) -> Any:
    return np.array(observation) if hasattr(observation, "__array__") else snapshot(observation)
