"""Run trajectories in several environments of this process: in lanes, or in blocks.

`LaneRunner` adds tickets to `RowsDriver`: it starts the next trajectory in a free row, also of later tickets. An
exception may belong to such a later ticket: `failed_ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.core.errors import ActionError, DataError, ObservationError, UsageError
from streamsampler.data.recorder import Rollouts
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import End
from streamsampler.rollouts.script import trajectory as trajectory_script
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import locate, note_missing_action, row_at_fault, step_error
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.resets import reset_function
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.driver import RowsDriver
from streamsampler.workers.vec.row_recorders import RowTrajectory
from streamsampler.workers.vec.several_agents import MultiAgentRows, PolicyBatches
from streamsampler.workers.vec.tickets import RunningTicket, RunningTickets, positions_by_row

# An enum's member costs 100 ns to look up on Python 3.11.
_RESET, _AGENT_RESET, _RECORDING, _STEP = Phase.RESET, Phase.AGENT_RESET, Phase.RECORDING, Phase.STEP
_RESET_NUMBER, _AGENT_RESET_NUMBER = phase_number(Phase.RESET), phase_number(Phase.AGENT_RESET)
_STEP_NUMBER = phase_number(Phase.STEP)


MULTIPLE = 16
"""With multiples of this, rows do not depend on their place in the batch, so that free rows can run any trajectory.
(With oneMKL and AVX-512, some rows do with 2, 4, 7, 8 and 31 rows.)
"""


def rows_of_lanes(n_envs: int) -> int:
    """Return the rows of an agent's batches in lanes, for at most `n_envs` environments.

    Whole multiples of 16 let any free row run any trajectory: 1.17 rows are computed for each timestep, not 1.42
    (CartPole of 20 timesteps in 32 rows). If padding would add more than a third, the result is `n_envs`: networks with
    a cost for each row, such as convolutions, would lose more.
    """
    n_rows = -(-n_envs // MULTIPLE) * MULTIPLE
    return n_rows if 3 * n_rows <= 4 * n_envs else n_envs


class LaneRunner(RowsDriver):
    """Runs trajectories in several environments, each of which is a row.

    *In lanes* a row begins its next trajectory as soon as the last has ended, later tickets of the worker included;
    these trajectories continue when their ticket's turn comes. If rows do not depend on their place, a row takes the
    next trajectory of all; otherwise trajectory i runs in row i mod n.

    *In blocks* the rows begin the first trajectories of a block, and free rows begin the next, in the order of rows
    within a step; the next block begins when all have ended.

    Each batch has all rows; silent rows have a copy of a live row's observation. So batches of a block are a function
    of the block alone; and in lanes trajectories do not influence each other if the agent's rows are independent.

    `n_rows` are the rows of the agent's batches in blocks. With `fixed_rows` trajectory i runs in row i mod n in
    blocks, too: the environments differ.
    """

    def __init__(
        self, envs: list[gymnasium.Env[Any, Any]], worker: Worker, *, n_rows: int | None = None,
        fixed_rows: bool = False, callers: Sequence[HookCaller] = (), **more: Any,
    ) -> None:  # fmt: skip
        # Through wrappers a lookup of the spaces takes a microsecond.
        spaces = envs[0].observation_space, envs[0].action_space
        super().__init__(worker, envs, spaces, n_rows or len(envs), callers, **more)
        self._limit = worker.context.max_episode_length
        self._tickets = RunningTickets(worker, len(envs))
        self._running: list[RowTrajectory | None] = [None] * len(envs)
        self._in_lanes = True
        self._fixed_rows = fixed_rows
        self._at_fault: RowTrajectory | None = None
        self._n_wanted = 0  # trajectories of the current ticket that have to end

    @property
    def n_slots(self) -> int:
        return self._n_rows

    @property
    def is_idle(self) -> bool:
        """Whether every trajectory begun is in a report."""
        return not self._tickets.begun()

    def set_rows(self, n_rows: int) -> None:
        if n_rows != self._n_rows:
            self.forget()
        super().set_rows(n_rows)

    def allow_any_row(self, any_row: bool) -> None:
        """Set whether free rows may run any trajectory, in lanes too."""
        self._tickets.any_row = any_row and not self._fixed_rows

    @property
    def failed_ahead(self) -> bool:
        """Whether the last exception may belong to a later ticket's trajectory."""
        tickets, at_fault = self._tickets, self._at_fault
        return tickets.ran_ahead and (at_fault is None or at_fault.ticket is not tickets.current)

    def run_lanes(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent, *, alone: bool = False) -> bool:
        """Run a ticket's trajectories to their ends, and later tickets' meanwhile unless `alone`.

        Returns whether the ticket's version may still run.
        """
        self._tickets.alone, self._in_lanes = alone, True
        if not self._tickets.holds_first(ticket):
            self._begin_ticket(ticket, seeds, agent)
        return self._run(len(seeds))

    def run_blocks(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> bool:
        """Run a ticket's trajectories block by block; return whether its version may still run."""
        worker, self._tickets.alone, self._in_lanes = self._worker, True, False
        running = self._begin_ticket(ticket, seeds, agent)
        for first in range(0, len(seeds), ticket.block):
            stop = min(first + ticket.block, len(seeds))
            if self._fixed_rows:
                running.waiting = positions_by_row(ticket.indices, range(first, stop), len(self._envs))
            else:
                running.waiting = [iter(range(first, stop))] * len(self._envs)
            worker.trajectory, worker.phase = ticket.indices[first], _AGENT_RESET
            worker.row.begin_trajectory(ticket.indices[first])
            seed_generators(seeds[first])
            agent.begin_block(seeds[first])
            if not self._run(stop):
                return False
        return True

    def _begin_ticket(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        self.forget()
        self._bind()
        self._agent = agent
        if isinstance(self._recorder, MultiAgentRows):
            self._recorder.use_policies(cast("PolicyBatches", agent).players)
        if agent.takes_masks != (self._masks is not None):
            masks = RowMasks(self._worker.warn_once, self._envs, self.spaces[1], self._n_rows)
            self._masks = masks if agent.takes_masks else None
        return self._tickets.begin(ticket, seeds, agent)

    def ended(self) -> list[RowTrajectory]:
        return self._tickets.current.ended()

    def left_out(self) -> list[RowTrajectory]:
        return self._tickets.current.left_out()

    def gather(self, most: int | None) -> Rollouts:
        return self._recorder.gather(self.ended()[:most], self._worker.context.allocate)

    def metrics(self) -> tuple[tuple[str, str], ...]:
        return tuple({name: how for each in self.ended() for name, how in each.metrics}.items())

    def end_ticket(self) -> None:
        self._tickets.end()
        self._recorder.keep(self._tickets.begun())

    def forget(self) -> tuple[int, int]:
        """Forget all tickets; return the number of trajectories begun, and the unreported timesteps."""
        forgotten = sum(each.left_out is None for each in self._tickets.begun()), self.n_ran
        self._tickets.clear()
        self._running = [None] * len(self._envs)
        self.release()
        self._live = []
        self._recorder.clear()
        for hooks in self._hooks:
            hooks.context = None
        self.n_ran = 0
        return forgotten

    def _fill(self) -> None:
        began, order = perf_counter(), self._live
        for row, trajectory in enumerate(self._running):
            if trajectory is None and (found := self._tickets.next_in(row)) is not None:
                self._begin(row, *found)
        self._find_live()
        if 0 < len(order) < len(self._live):
            self._recorder.put_in_order([*order, *sorted(set(self._live).difference(order))])
        self.seconds[0] += perf_counter() - began

    def _find_live(self) -> None:
        running = self._running
        live = self._live = [row for row, trajectory in enumerate(running) if trajectory is not None]
        self._sources = None
        if live and len(live) < self._n_rows:
            self._sources = np.full(self._n_rows, live[0])
            self._sources[live] = live

    def _begin(self, row: int, running: RunningTicket, position: int) -> None:
        """Begin a trajectory in a row; if hooks drop it at its start, begin the next."""
        worker, index, seed = self._worker, running.ticket.indices[position], running.seeds[position]
        trajectory = self._running[row] = self._recorder.begin(running, position, index, row)
        running.begun.append(trajectory)
        words, phase_word = worker.row.words, worker.row.phase_word
        words[worker.row.trajectory_word] = index + worker.row.index_base
        words[phase_word] = _RESET_NUMBER
        worker.trajectory, worker.phase = index, _RESET
        if self._hooks:
            self._hooks[row].context = self._context_of(row, index, seed, running.ticket.version)
        begin = None if running.prepared is None else partial(self._begin_agent, row, running.prepared, position)
        reset = self._reset_function(row, index)
        try:
            self._start(row, trajectory_script(reset, self._bound(row), seed, begin, self._limit))
        except AbnormalTrajectoryError as error:
            self._hooks[row].lost(error)
            self._end_left_out(row, error)
            if (found := self._tickets.next_in(row)) is not None:
                self._begin(row, *found)
        except DataError as error:
            if worker.phase is _RECORDING:
                locate(error, self._envs[row], 0)
            raise
        words[phase_word] = _STEP_NUMBER

    def _reset_function(self, row: int, index: int) -> Callable[..., Any]:
        return reset_function(self._envs[row], self._worker.resets, (index,))

    def _begin_agent(self, row: int, prepared: Any, position: int, _seed: int) -> None:
        worker, agent, trajectory = self._worker, self._agent, self._running[row]
        assert agent is not None
        assert trajectory is not None
        worker.row.words[worker.row.phase_word] = _AGENT_RESET_NUMBER
        worker.phase, worker.trajectory = _AGENT_RESET, trajectory.index
        agent.begin(row, prepared, position)

    def _take_end(self, row: int, end: End) -> None:
        trajectory = self._running[row]
        assert trajectory is not None
        assert self._agent is not None
        trajectory.length = end.n_timesteps
        self._worker.phase = _RECORDING
        self._recorder.end(trajectory, end, self._agent, self._worker)
        trajectory.ticket.n_ended += 1
        self._running[row] = None
        self._fill_row(row)
        self._worker.phase = _STEP

    def _leave_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        self._end_left_out(row, error)
        self._fill_row(row)
        self._worker.phase = _STEP

    def _end_left_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        trajectory, hooks = self._running[row], self._hooks[row]
        assert trajectory is not None
        assert hooks.context is not None
        trajectory.leave_out(hooks.context.timestep, self._worker.phase, error)
        self._recorder.leave_out(row)
        trajectory.ticket.n_ended += 1
        self._running[row] = None

    def _fill_row(self, row: int) -> None:
        """Begin a row's next trajectory, if any; the step's seconds exclude the reset's."""
        began = perf_counter()
        if (found := self._tickets.next_in(row)) is not None:
            self._begin(row, *found)
        elapsed = perf_counter() - began
        self.seconds[0] += elapsed
        self.seconds[2] -= elapsed

    def _run(self, n_ended: int) -> bool:
        """Step the environments until `n_ended` trajectories of the ticket have ended, or its version may not run."""
        words, running = self._worker.row.words, self._tickets.current
        words[self._worker.row.timesteps_word] = self.n_ran
        version = self._version = running.ticket.version
        self._n_wanted = n_ended
        try:
            self._fill()
            while running.n_ended < n_ended:
                if len(self._live) < len(self._envs) and self._tickets.look_ahead():
                    self._fill()
                self._round()
                if words[0] > version:
                    return False
        except BaseException as error:
            self._explain(error)
            raise
        return True

    def _step_all(self) -> None:
        """Send the scripts their actions, and find rows without a next trajectory."""
        super()._step_all()
        # Only when their number has changed: batches keep arrays for the list of live rows as long as it is the same
        # object.
        if self._running.count(None) != len(self._running) - len(self._live):
            self._find_live()

    def _explain(self, error: BaseException) -> None:
        """Find the trajectory at fault, and raise a better error if possible."""
        worker, agent = self._worker, self._agent
        assert agent is not None
        at_fault = self._found_at_fault(error)
        self._at_fault = at_fault
        row, timestep = -1, None
        if at_fault is not None:
            worker.trajectory, row = at_fault.index, at_fault.row
            timestep = self._timestep_of(at_fault)
            # A later ticket's exception is raised again at its turn.
            if self._hooks and at_fault.ticket is self._tickets.current:
                self._hooks[row].lost(error)
        # A UsageError says it already.
        if worker.phase is _STEP and self._singles and not isinstance(error, UsageError):
            better = step_error(error, self._singles[row], self.spaces[1])
            if better is not None:
                worker.phase = Phase.ACTION if isinstance(better, ActionError) else worker.phase
                raise better from error
            note_missing_action(error, self._envs[row], self._singles[row])
        recorded = isinstance(error, ActionError) or (isinstance(error, DataError) and worker.phase is _RECORDING)
        if recorded and timestep is not None:
            # A step's observation is recorded as the next timestep's.
            locate(cast("DataError", error), self._envs[0], timestep - (not isinstance(error, ObservationError)))

    def _timestep_of(self, trajectory: RowTrajectory) -> int:
        return self._recorder.n_asked(trajectory.row, trajectory.begun)

    def _found_at_fault(self, error: BaseException) -> RowTrajectory | None:
        """Return the trajectory at fault; None if several may be."""
        agent, worker = self._agent, self._worker
        assert agent is not None
        row = agent.row if agent.row >= 0 else self._row
        if row < 0:
            row = row_at_fault(error, -1)
        if row >= 0 and self._running[row] is not None:
            return self._running[row]
        running = sorted(self._running_trajectories(), key=lambda each: each.index)
        if not running or self._tickets.ran_ahead:
            return None  # the current ticket is run again alone
        names = ", ".join(str(each.index) for each in running)
        error.add_note(f"get_actions had the observations of trajectories {names}")
        if worker.phase is Phase.ACTION and isinstance(error, Exception) and self._in_lanes:
            return next((each for each in running if self._raises_alone(each.row)), running[0])
        return running[0]

    def _running_trajectories(self) -> list[RowTrajectory]:
        return [each for each in self._running if each is not None]
