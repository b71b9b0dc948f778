"""Run trajectories in lanes without waiting for slow environments: the agent is asked for the rows that are ready."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.recorder import Rollouts
from streamsampler.data.trees import snapshot
from streamsampler.errors import DataError, UsageError, WorkerError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.stepping.inference.asking import Asking
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import locate
from streamsampler.workers.seams import TrajectoryContext
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.hooked import HookedRunner
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.steps import RunningTicket, Trajectory

# ----------------------------------------------------------------------
# Run trajectories side by side in environments of other processes, in lanes or in blocks: all rows in each step.


class ParentRunner(LaneRunner):
    """Runs trajectories in environments of other processes: all step at the same time.

    Args:
        environments: The environments.
        worker: Shows phase and trajectory.
        more: What a subclass of another `LaneRunner` takes besides.
    """

    def __init__(self, environments: Environments, worker: Worker, *more: Any) -> None:
        self._environments, self._proxies = environments, environments.proxies
        super().__init__(list(environments.proxies), worker, *more)
        self._is_loss = False  # whether what was raised last is about a process, and no trajectory

    @property
    def failed_ahead(self) -> bool:
        """Whether what was raised last may have been raised for a trajectory of a later ticket."""
        return not self._is_loss and super().failed_ahead

    def _explain(self, error: BaseException) -> None:
        self._is_loss = isinstance(error, WorkerError)
        if self._is_loss:
            self._worker.trajectory = None  # the one in hand need not be the one that is lost
        else:
            super()._explain(error)

    def forget(self) -> tuple[int, int]:
        """Forget all tickets; see `LaneRunner.forget`. Steps under way are waited for, so that they are counted."""
        try:
            self._environments.give_up()
        except BaseException:
            super().forget()
            raise
        return super().forget()

    def _reset(self, row: int, index: int, seed: int) -> Any:
        self._environments.reset(row, index, seed, self._worker.resets)
        try:
            return self._proxies[row].begun()
        except DataError as error:
            self._note_bad_reset(error)
            raise

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool) -> None:
        self._environments.end(row)
        super()._end(row, observation, terminated, truncated)

    def _note_bad_reset(self, error: DataError) -> None:
        """Say that what a reset returned could not be recorded, where its process found that out."""
        self._worker.phase = Phase.RECORDING
        locate(error, self._proxies[0], 0)

    def _step_all(self) -> None:
        live, singles, proxies = self._live, self._singles, self._proxies
        self._environments.step(live, singles if len(live) == self._n_rows else [singles[row] for row in live])
        for row in live:
            proxies[row].is_requested = True
        super()._step_all()


class _EnvNotHere:
    """Stands for the context's `env` and `reset` in hooks: the environment is in another process."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UsageError(
            'hooks have no context.env and no context.reset with inference="parent": the environment is in another '
            'process. Let it say in its info what the hook needs, or use inference="worker"'
        )

    __getattr__ = __setattr__ = __call__ = _refuse


class HookedParentRunner(ParentRunner, HookedRunner):
    """Runs the same trajectories, calls hooks, and leaves out those that `drop_if` marks; see `HookedRunner`."""

    def __init__(self, environments: Environments, worker: Worker, *more: Any) -> None:
        super().__init__(environments, worker, *more)
        environments.copies = True  # hooks may keep what they are shown

    def _context_of(self, row: int, running: RunningTicket, position: int) -> TrajectoryContext:
        context = super()._context_of(row, running, position)
        context.env = context.reset = _EnvNotHere()  # type: ignore[assignment]
        return context

    def _reset(self, row: int, index: int, seed: int) -> Any:
        return self._noted(row, super()._reset(row, index, seed))

    def _leave_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        self._environments.end(row)
        super()._leave_out(row, error)


# ----------------------------------------------------------------------


_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)
_NOT_BEGUN = -1


class WaitingRunner(ParentRunner):
    """Runs trajectories in lanes, each at the pace of its environment, where the agent does not mind; see `Asking`.

    Blocks, and agents that remember something from step to step, are run as `ParentRunner` does.

    Args:
        environments: The environments.
        worker: Shows phase and trajectory.
        n_groups: Into how many groups rows are parted: environments of one step while the agent is asked for another.
    """

    def __init__(self, environments: Environments, worker: Worker, n_groups: int = 1) -> None:
        super().__init__(environments, worker)
        self._waits = False
        self._asking = Asking(environments, worker, self.spaces, n_groups, rounds=False)
        self._lengths = np.zeros(self._n_rows, np.int64)  # how many actions the trajectory of each row has had

    # ------------------------------------------------------------------ tickets

    def run_lanes(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent, *, alone: bool = False) -> bool:
        """Run a ticket's trajectories to their ends, and those of later tickets meanwhile."""
        if not self._tickets.holds_first(ticket):
            self.forget()
            self._waits = agent.can_wait
        if not self._waits:
            return super().run_lanes(ticket, seeds, agent, alone=alone)
        self._tickets.alone, self._in_lanes = alone, True
        if not self._tickets.holds_first(ticket):
            self._begin_ticket(ticket, seeds, agent)
            self._waits, self._environments.history_of = True, self._history_of
        return self._run_waiting(len(seeds))

    def gather(self, most: int | None) -> Rollouts:
        """Return the first trajectories of the ticket in hand, or all of them."""
        if not self._waits:
            return super().gather(most)
        return self._asking.timesteps.gather(self.ended()[:most], self._worker.context.allocate)

    def end_ticket(self) -> None:
        """Forget the ticket in hand."""
        if not self._waits:
            super().end_ticket()
            return
        self._tickets.end()
        self._asking.keep(self._tickets.begun())

    def forget(self) -> tuple[int, int]:
        """Forget all tickets; see `LaneRunner.forget`."""
        self._waits = False
        self._environments.history_of = None
        self._asking.clear()
        return super().forget()

    # ------------------------------------------------------------------ running

    def _run_waiting(self, n_ended: int) -> bool:
        worker, words, running = self._worker, self._worker.row.words, self._tickets.in_hand
        version, timesteps_word = running.ticket.version, worker.row.timesteps_word
        words[timesteps_word] = self.n_ran
        assert self._agent is not None
        try:
            self._begin_silent()
            while running.n_ended < n_ended:
                if None in self._running and self._tickets.look_ahead():
                    self._begin_silent()
                self._row = -1
                worker.phase = Phase.STEP
                words[worker.row.phase_word] = _STEP_NUMBER
                began = perf_counter()
                asked = self._asking.wait(self._take, lambda: running.n_ended)
                words[timesteps_word] = self.n_ran
                between = perf_counter()
                self.seconds[2] += between - began
                if words[0] > version:
                    return False
                if asked.any():
                    words[worker.row.phase_word] = _ACTION_NUMBER
                    self._asking.ask(self._agent, asked, self._count)
                    self.seconds[1] += perf_counter() - between
        except BaseException as error:
            self._explain(error)
            raise
        return True

    def _begin_silent(self) -> None:
        for row, trajectory in enumerate(self._running):
            if trajectory is None and (found := self._tickets.next_in(row)) is not None:
                self._begin(row, *found)

    def _begin(self, row: int, running: RunningTicket, position: int) -> None:
        """Begin a trajectory in a row: its environment is reset meanwhile."""
        if not self._waits:
            super()._begin(row, running, position)
            return
        worker, agent, index = self._worker, self._agent, running.ticket.indices[position]
        assert agent is not None
        self._row = row
        trajectory = self._running[row] = Trajectory(running, position, index, row, _NOT_BEGUN)
        running.begun.append(trajectory)
        worker.row.words[worker.row.trajectory_word] = index + 1
        worker.trajectory, worker.phase = index, Phase.RESET
        self._lengths[row] = 0
        self._asking.begin(row, ready=False)
        self._environments.reset(row, index, running.seeds[position], worker.resets)
        if running.prepared is not None:
            worker.phase = Phase.AGENT_RESET
            agent.begin(row, running.prepared, position)
        worker.phase = Phase.STEP

    # ------------------------------------------------------------------ results

    def _take(self, arrived: list[int]) -> None:
        """Take in the results of rows: of steps, or of resets."""
        stepped = []
        for row in arrived:
            trajectory = self._running[row]
            if trajectory is None:
                continue  # it was given up
            if self._environments.has_raised(row):
                self._raise(row, arrived)
            if self._asking.numbers[row] >= 0:
                stepped.append(row)
                continue
            trajectory.number = self._asking.timesteps.begin(self._environments.take_info(row))
            self._asking.ready[row] = True
        self._row = -1
        if stepped:
            self._take_steps(np.array(stepped))

    def _raise(self, row: int, arrived: list[int]) -> None:
        """Raise what a row's environment raised, after counting the steps that arrived with it."""
        environments = self._environments
        self._row = row
        self.n_ran += self._asking.n_stepped(arrived)
        if self._asking.numbers[row] < 0:
            self._worker.phase = Phase.RESET
        try:
            environments.check(row)
        except DataError as error:
            if self._asking.numbers[row] < 0:
                self._note_bad_reset(error)
            raise

    def _take_steps(self, rows: NDArray[np.int64]) -> None:
        self.n_ran += len(rows)
        terminated, truncated = self._asking.record_results(rows)
        truncated = truncated | (self._lengths[rows] >= self._limit)
        ended = terminated | truncated
        self._asking.ready[rows[~ended]] = True
        for place in np.flatnonzero(ended).tolist():
            self._end_row(int(rows[place]), bool(terminated[place]), bool(truncated[place]))

    def _end_row(self, row: int, terminated: bool, truncated: bool) -> None:
        trajectory = self._running[row]
        assert trajectory is not None
        trajectory.length = int(self._lengths[row])
        trajectory.last = snapshot(self._environments.observation(row))
        trajectory.terminated, trajectory.truncated = terminated, truncated
        trajectory.ticket.n_ended += 1
        self._running[row] = None
        self._asking.end(row)
        self._environments.end(row)
        self._fill_row(row)

    def _count(self, rows: NDArray[np.int64]) -> None:
        for row in rows[self._lengths[rows] == 0].tolist():
            trajectory = self._running[row]
            assert trajectory is not None
            trajectory.begun = int(self._asking.numbers[row])
        self._lengths[rows] += 1

    def _history_of(self, row: int, n: int) -> History:
        """Return the first actions of the trajectory in a row, and the rewards, as far as they are known."""
        trajectory = self._running[row]
        assert trajectory is not None
        return History(*self._asking.history_of(row, trajectory.begun, n))

    # ------------------------------------------------------------------ errors

    def _explain(self, error: BaseException) -> None:
        if self._waits and self._row >= 0 and self._lengths[self._row]:
            self._singles = [self._environments.last_action(self._row)] * self._n_rows
        super()._explain(error)

    def _timestep_of(self, trajectory: Trajectory) -> int:
        if not self._waits:
            return super()._timestep_of(trajectory)
        # Those that the agent was not asked for have their next timestep still before them.
        comes_next = self._worker.phase is not Phase.STEP and not self._asking.asked[trajectory.row]
        return int(self._lengths[trajectory.row]) + comes_next

    def _in_hand(self) -> list[Trajectory]:
        running = super()._in_hand()
        if not self._waits or self._worker.phase is Phase.STEP:
            return running
        # Environments of other rows step meanwhile: their observations may be ones that no agent is ever shown.
        return [each for each in running if self._asking.asked[each.row]]

    def _raises_alone(self, trajectory: Trajectory) -> bool:
        if not self._waits:
            return super()._raises_alone(trajectory)
        assert self._agent is not None
        return self._asking.raises_alone(self._agent, trajectory.row)
