"""Run trajectories side by side in several environments of this process: in lanes, or in blocks."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.core.errors import ActionError, DataError, ObservationError, UsageError
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import FLAGS, flag_of, number_of
from streamsampler.data.trees import snapshot
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import locate, row_at_fault, step_error
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.resets import reset_one
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.rows import padded, singles_of
from streamsampler.workers.vec.steps import RunningTicket, RunningTickets, StepRecorder, Trajectory, positions_by_row

_NO_LIMIT = 2**62
# An enum's member costs 100 ns to look up on Python 3.11.
_RESET, _AGENT_RESET, _RECORDING = Phase.RESET, Phase.AGENT_RESET, Phase.RECORDING
_STEP, _ACTION = Phase.STEP, Phase.ACTION
_RESET_NUMBER, _AGENT_RESET_NUMBER = phase_number(Phase.RESET), phase_number(Phase.AGENT_RESET)
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)


class SideBySide:
    """Lets an agent choose the actions of several rows together, and records them.

    Args:
        worker: Shows the phase.
        spaces: Observation and action space of one environment.
        n_rows: How many rows there are.

    Attributes:
        spaces: The same.
        seconds: The seconds of resets, of the agent and of steps since they were last set to 0.
    """

    def __init__(self, worker: Worker, spaces: tuple[Any, Any], n_rows: int) -> None:
        self._worker, self.spaces, self._n_rows = worker, spaces, n_rows
        self._recorder = StepRecorder(*spaces, n_rows)
        self._agent: BatchedAgent | None = None
        self._live: list[int] = []  # the rows that are not silent
        self._sources: list[int] | None = None  # where some are silent: for each row the one that it is a copy of
        self._singles: list[Any] = []  # the last actions, by row
        self._masks: RowMasks | None = None  # for an agent that takes them
        self._rounds = False  # whether environments get actions as they are recorded, and not as they were chosen
        self.seconds = [0.0, 0.0, 0.0]

    def metrics(self) -> tuple[tuple[str, str], ...]:
        """Return how each metric of the ticket in hand becomes one number; see `messages.Report`."""
        return ()

    def _choose(self) -> None:
        """Let the agent choose actions on the rows' observations, and record them."""
        worker, recorder = self._worker, self._recorder
        assert self._agent is not None
        worker.phase = _RECORDING
        sources = self._sources
        batch = recorder.batch(sources)
        masks = None if self._masks is None else self._masks.of(batch, self._take_infos(), self._live, sources)
        actions, infos = self._agent.choose(batch, self._live, worker, self._record_agent_info, masks)
        worker.phase = _ACTION
        if sources is not None:
            actions = padded(self.spaces[1], actions, sources)
        columns = recorder.actions
        columns.append(actions)
        if self._rounds:
            actions = columns.row_batch(columns.n_steps - 1)
        self._singles = singles_of(self.spaces[1], actions)
        if infos:
            worker.phase = _RECORDING
            self._record_agent_infos(infos)

    def _take_infos(self) -> dict[int, Any]:
        """Return the infos that came with the rows' observations, for masks; they are not needed again."""
        raise NotImplementedError

    def _record_agent_infos(self, infos: dict[str, Any]) -> None:
        self._recorder.record_agent_infos(infos)

    def _record_agent_info(self, row: int, info: Any) -> None:
        self._recorder.record_agent_info((self._recorder.step - 1) * self._n_rows + row, info)


class LaneRunner(SideBySide):
    """Runs trajectories in a fixed number of environments, each of which is a row.

    *In lanes* the trajectory of index i runs in row i mod n. A row begins its next trajectory as soon as one has ended,
    those of the tickets that the worker holds ahead included; these go on when their ticket's turn has come.

    *In blocks* the rows begin the first trajectories of a block, and a row whose trajectory ends begins the next one of
    the block, rows in order within a step; the next block begins when all have ended.

    Each batch has all rows. Those that are silent have a copy of a live one's observation. So what is batched together
    is, with blocks, a function of the block alone; and with lanes no trajectory sees another one, if the agent's rows
    do not depend on each other.

    Args:
        envs: The environments.
        worker: Shows phase and trajectory.
        fixed_rows: Whether trajectory i runs in row i mod n in blocks, too: the environments differ.

    Attributes:
        n_ran: Timesteps that were run and are in no answer yet.
    """

    def __init__(self, envs: list[gymnasium.Env[Any, Any]], worker: Worker, *, fixed_rows: bool = False) -> None:
        # Through wrappers it takes a microsecond to look the spaces up.
        super().__init__(worker, (envs[0].observation_space, envs[0].action_space), len(envs))
        self._envs = envs
        self._limit = _NO_LIMIT if worker.context.max_episode_length is None else worker.context.max_episode_length
        self._tickets = RunningTickets(worker, self._n_rows)
        self._running: list[Trajectory | None] = [None] * self._n_rows
        self._step_of: list[Any] = []  # the step methods of all environments
        self._steps: list[Any] = []  # those of the rows that are not silent
        self._in_lanes = True
        self._fixed_rows = fixed_rows
        self._row = -1  # the row in hand; -1 while it is about all of them
        self._at_fault: Trajectory | None = None
        self._record_env_info: Callable[[int, Any], None] | None = None  # the recorder's, where infos are kept as well
        self._infos: dict[int, Any] = {}  # by row, for masks
        self.n_ran = 0

    @property
    def n_slots(self) -> int:
        """How many trajectories run side by side."""
        return self._n_rows

    @property
    def failed_ahead(self) -> bool:
        """Whether what was raised last may have been raised for a trajectory of a later ticket."""
        tickets, at_fault = self._tickets, self._at_fault
        return tickets.ran_ahead and (at_fault is None or at_fault.ticket is not tickets.in_hand)

    # ------------------------------------------------------------------ tickets

    def run_lanes(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent, *, alone: bool = False) -> bool:
        """Run a ticket's trajectories to their ends, and those of later tickets meanwhile.

        Args:
            ticket: The ticket.
            seeds: Its trajectories' seeds.
            agent: The agent.
            alone: Whether no trajectory of a later ticket is to begin.

        Returns:
            Whether its version may still run.
        """
        self._tickets.alone, self._in_lanes = alone, True
        if not self._tickets.holds_first(ticket):
            self._begin_ticket(ticket, seeds, agent)
        return self._run(len(seeds))

    def run_blocks(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> bool:
        """Run a ticket's trajectories, one block after the other.

        Returns:
            Whether its version may still run.
        """
        worker, self._tickets.alone, self._in_lanes = self._worker, True, False
        running = self._begin_ticket(ticket, seeds, agent)
        for first in range(0, len(seeds), ticket.block):
            stop = min(first + ticket.block, len(seeds))
            if self._fixed_rows:
                running.waiting = positions_by_row(ticket.indices, range(first, stop), self._n_rows)
            else:
                running.waiting = [iter(range(first, stop))] * self._n_rows
            worker.trajectory, worker.phase = ticket.indices[first], _AGENT_RESET
            worker.row.begin_trajectory(ticket.indices[first])
            seed_generators(seeds[first])
            agent.begin_block(seeds[first])
            if not self._run(stop):
                return False
        return True

    def _begin_ticket(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        self.forget()
        self._agent = agent
        if agent.takes_masks != (self._masks is not None):
            self._find_masks(agent.takes_masks)
        return self._tickets.begin(ticket, seeds, agent)

    def _find_masks(self, wanted: bool) -> None:
        """Find masks for the agent from now on, or for none: then infos are recorded, and not looked at."""
        recorder = self._recorder
        self._record_env_info = self._record_env_info or recorder.record_env_info
        recorder.record_env_info = self._record_and_keep_info if wanted else self._record_env_info
        self._masks = RowMasks(self._worker.warn_once, self._envs, self.spaces[1], self._n_rows) if wanted else None

    def _record_and_keep_info(self, number: int, info: Any) -> None:
        assert self._record_env_info is not None
        self._record_env_info(number, info)
        self._infos[number % self._n_rows] = info

    def _take_infos(self) -> dict[int, Any]:
        infos, self._infos = self._infos, {}
        return infos

    def ended(self) -> list[Trajectory]:
        """Return the trajectories of the ticket in hand that have ended, in its order."""
        return self._tickets.in_hand.ended()

    def left_out(self) -> list[Trajectory]:
        """Return the trajectories of the ticket in hand that were left out, in its order."""
        return self._tickets.in_hand.left_out()

    def gather(self, most: int | None) -> Rollouts:
        """Return the first trajectories of the ticket in hand, or all of them; see `StepRecorder.gather`."""
        return self._recorder.gather(self.ended()[:most], self._worker.context.allocate)

    def end_ticket(self) -> None:
        """Forget the ticket in hand."""
        self._tickets.end()
        self._recorder.keep(self._tickets.begun())

    def forget(self) -> tuple[int, int]:
        """Forget all tickets, and return how many trajectories had begun, and the timesteps that are in no answer."""
        forgotten = sum(each.left_out is None for each in self._tickets.begun()), self.n_ran
        self._tickets.clear()
        self._running = [None] * self._n_rows
        self._live, self._steps = [], []
        self._recorder.clear()
        self._infos.clear()
        self.n_ran = 0
        return forgotten

    # ------------------------------------------------------------------ beginning and ending trajectories

    def _fill(self) -> None:
        """Begin trajectories in the rows that are silent."""
        began = perf_counter()
        for row, trajectory in enumerate(self._running):
            if trajectory is None and (found := self._tickets.next_in(row)) is not None:
                self._begin(row, *found)
        self._step_of = [env.step for env in self._envs]
        self._find_live()
        self.seconds[0] += perf_counter() - began

    def _find_live(self) -> None:
        running = self._running
        live = self._live = [row for row, trajectory in enumerate(running) if trajectory is not None]
        self._steps, self._sources = self._step_of, None
        if live and len(live) < self._n_rows:
            self._steps = [self._step_of[row] for row in live]
            self._sources = [live[0] if each is None else row for row, each in enumerate(running)]

    def _begin(self, row: int, running: RunningTicket, position: int) -> None:
        """Begin a trajectory in a row, and record its first observation."""
        worker, recorder, agent, env = self._worker, self._recorder, self._agent, self._envs[row]
        assert agent is not None
        self._row = row
        index = running.ticket.indices[position]
        trajectory = Trajectory(running, position, index, row, recorder.step)
        self._running[row] = trajectory
        running.begun.append(trajectory)
        words, phase_word = worker.row.words, worker.row.phase_word
        words[worker.row.trajectory_word] = index + 1
        words[phase_word] = _RESET_NUMBER
        worker.trajectory, worker.phase = index, _RESET
        observation, info = begin_of(self._reset(row, index, running.seeds[position]))
        if running.prepared is not None:
            words[phase_word] = _AGENT_RESET_NUMBER
            worker.phase = _AGENT_RESET
            agent.begin(row, running.prepared, position)
        worker.phase = _RECORDING
        try:
            trajectory.number = recorder.begin(row, observation, info)
        except DataError as error:
            locate(error, env, 0)
            raise
        if self._masks is not None:
            self._infos[row] = info
        words[phase_word] = _STEP_NUMBER

    def _reset(self, row: int, index: int, seed: int) -> Any:
        return reset_one(self._envs[row], self._worker.resets, index, seed)

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool) -> None:
        """End a row's trajectory, and begin its next one, if there is one."""
        trajectory = self._running[row]
        assert trajectory is not None
        assert self._agent is not None
        trajectory.length = self._recorder.step - trajectory.begun
        trajectory.end(snapshot(observation), terminated, truncated, self._agent, self._worker)
        trajectory.ticket.n_ended += 1
        self._running[row] = None
        self._fill_row(row)
        self._worker.phase = _STEP

    def _fill_row(self, row: int) -> None:
        """Begin a row's next trajectory, if there is one."""
        began = perf_counter()
        if (found := self._tickets.next_in(row)) is not None:
            self._begin(row, *found)
        elapsed = perf_counter() - began
        self.seconds[0] += elapsed
        self.seconds[2] -= elapsed

    # ------------------------------------------------------------------ stepping

    def _run(self, n_ended: int) -> bool:
        """Step the environments until so many of the ticket's trajectories have ended, or its version may not run."""
        worker, words, running = self._worker, self._worker.row.words, self._tickets.in_hand
        version = running.ticket.version
        phase_word, timesteps_word, seconds = worker.row.phase_word, worker.row.timesteps_word, self.seconds
        words[timesteps_word] = self.n_ran
        try:
            self._fill()
            while running.n_ended < n_ended:
                if len(self._live) < self._n_rows and self._tickets.look_ahead():
                    self._fill()
                self._row = -1
                words[phase_word] = _ACTION_NUMBER
                began = perf_counter()
                self._choose()
                between = perf_counter()
                words[phase_word] = _STEP_NUMBER
                worker.phase = _STEP
                self._step_all()
                words[timesteps_word] = self.n_ran
                seconds[1] += between - began
                seconds[2] += perf_counter() - between
                if words[0] > version:
                    return False
        except BaseException as error:
            self._explain(error)
            raise
        return True

    def _step_all(self) -> None:  # noqa: C901 - see below
        """Step the environments, and record what they return.

        The inner loop: it is measured, and nothing else belongs here.
        """
        recorder, live = self._recorder, self._live
        n_rows, n_ran = self._n_rows, self.n_ran
        # Where rows are not kept as bytes, no observation has this dtype.
        encoded, dtype, shape = recorder.encoded, recorder.dtype, recorder.shape
        record, record_info = recorder.record, recorder.record_env_info
        first = (recorder.step - 1) * n_rows
        rewards = [0.0] * n_rows
        limit, float64, flags = self._limit, np.float64, FLAGS
        begun = recorder.step - limit  # of a trajectory that is over
        at_limit = limit < _NO_LIMIT and any(each is not None and each.begun <= begun for each in self._running)
        board_row = self._worker.row
        words, timesteps_word, watched = board_row.words, board_row.timesteps_word, board_row.attention
        singles = self._singles if len(live) == n_rows else [self._singles[row] for row in live]
        row = n_ended = 0
        try:
            for row, step, action in zip(live, self._steps, singles, strict=True):
                observation, reward, terminated, truncated, info = step(action)
                if watched:
                    self.n_ran += 1
                    words[timesteps_word] = self.n_ran
                kind = reward.__class__
                rewards[row] = reward if kind is float or kind is float64 else number_of(reward)
                if info.__class__ is not dict or info:
                    record_info(first + row, info)
                if terminated is not False or truncated is not False or at_limit:
                    if terminated.__class__ not in flags or truncated.__class__ not in flags:
                        terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
                    cut = at_limit and cast("Trajectory", self._running[row]).begun <= begun
                    if terminated or truncated or cut:
                        n_ended += 1
                        self._end(row, observation, bool(terminated), bool(truncated) or cut)
                        continue
                try:
                    if (observation.dtype is dtype or observation.dtype == dtype) and observation.shape == shape:
                        encoded[row] = observation.tobytes()
                    else:
                        record(row, observation)
                except AttributeError:
                    record(row, observation)
        except BaseException:
            self._row = row
            self.n_ran = n_ran + live.index(row)
            raise
        self.n_ran = n_ran + len(live)
        recorder.rewards.fromlist(rewards)
        if n_ended and None in self._running:
            self._find_live()

    # ------------------------------------------------------------------ errors

    def _explain(self, error: BaseException) -> None:
        """Say which trajectory was in hand, and raise a better error where the reason is known."""
        worker, agent = self._worker, self._agent
        assert agent is not None
        at_fault = self._found_at_fault(error)
        self._at_fault = at_fault
        row, timestep = -1, None
        if at_fault is not None:
            worker.trajectory, row = at_fault.index, at_fault.row
            timestep = self._timestep_of(at_fault)
        in_step = worker.phase is Phase.STEP
        if in_step and isinstance(error, DataError):
            worker.phase = _RECORDING
        elif in_step and self._singles and not isinstance(error, UsageError):  # which says what is wrong already
            better = step_error(error, self._singles[row], self.spaces[1], self._step_all)
            if better is not None:
                worker.phase = Phase.ACTION if isinstance(better, ActionError) else worker.phase
                raise better from error
        recorded = isinstance(error, ActionError) or (isinstance(error, DataError) and worker.phase is _RECORDING)
        if recorded and timestep is not None:
            # What a step returned is recorded as the next timestep's observation.
            follows = in_step and isinstance(error, ObservationError)
            locate(cast("DataError", error), self._envs[0], timestep - (not follows))

    def _timestep_of(self, trajectory: Trajectory) -> int:
        return self._recorder.step - trajectory.begun

    def _found_at_fault(self, error: BaseException) -> Trajectory | None:
        """Return the trajectory that an exception is about; None if it may be one of several."""
        agent, worker = self._agent, self._worker
        assert agent is not None
        row = agent.row if agent.row >= 0 else self._row
        if row < 0:
            row = row_at_fault(error, -1)
        if row >= 0 and self._running[row] is not None:
            return self._running[row]
        running = sorted(self._in_hand(), key=lambda each: each.index)
        if not running or self._tickets.ran_ahead:
            return None  # the ticket in hand is run again alone
        names = ", ".join(str(each.index) for each in running)
        error.add_note(f"get_actions had the observations of trajectories {names}")
        if worker.phase is Phase.ACTION and isinstance(error, Exception) and self._in_lanes:
            return next((each for each in running if self._raises_alone(each)), running[0])
        return running[0]

    def _in_hand(self) -> list[Trajectory]:
        return [each for each in self._running if each is not None]

    def _raises_alone(self, trajectory: Trajectory) -> bool:
        """Return whether the agent raises when all rows have one trajectory's observation."""
        assert self._agent is not None
        batch = self._recorder.repeated(trajectory.row)
        masks = None if self._masks is None else self._masks.repeated(trajectory.row)
        try:
            self._agent.choose(batch, [trajectory.row], self._worker, lambda _row, _info: None, masks)
        except Exception:
            return True
        finally:
            self._worker.phase = Phase.ACTION
        return False
