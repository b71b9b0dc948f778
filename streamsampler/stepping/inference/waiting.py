"""Run trajectories side by side in environments of other processes, in lanes or in blocks."""

from __future__ import annotations

from typing import Any

from streamsampler.core.errors import DataError, UsageError, WorkerError
from streamsampler.data.recorder import Rollouts
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.stepping.inference.asking import Asking
from streamsampler.stepping.inference.environments import Environments
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import locate
from streamsampler.workers.seams import TrajectoryContext
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.hooked import HookedRunner
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.steps import RunningTicket, Trajectory


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
            self._worker.phase = Phase.RECORDING  # its process found out that it cannot be recorded
            locate(error, self._proxies[row], 0)
            raise

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool) -> None:
        self._environments.end(row)
        super()._end(row, observation, terminated, truncated)

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
# Without waiting for slow environments: the agent is asked for the rows that are ready.


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
        self._asking = Asking(self, environments, worker, self.spaces, n_groups, rounds=False)

    # ------------------------------------------------------------------ tickets

    def _begin_ticket(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        running = super()._begin_ticket(ticket, seeds, agent)
        self._waits = agent.can_wait and self._in_lanes
        self._environments.history_of = self._asking.history_of if self._waits else None
        return running

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
        self._waits, self._environments.history_of = False, None
        self._asking.clear()
        return super().forget()

    # ------------------------------------------------------------------ running

    def _run(self, n_ended: int) -> bool:
        if not self._waits:
            return super()._run(n_ended)
        running = self._tickets.in_hand
        assert self._agent is not None
        self.count(0)
        try:
            self._begin_silent()
            while running.n_ended < n_ended:
                if None in self._running and self._tickets.look_ahead():
                    self._begin_silent()
                self._row = -1
                if not self._asking.turn(self._agent, running.ticket.version, lambda: running.n_ended >= n_ended):
                    return False
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
        trajectory = self._running[row] = self._asking.begin(row, running, position, index)
        running.begun.append(trajectory)
        worker.row.words[worker.row.trajectory_word] = index + 1
        worker.trajectory, worker.phase = index, Phase.RESET
        self._environments.reset(row, index, running.seeds[position], worker.resets)
        if running.prepared is not None:
            worker.phase = Phase.AGENT_RESET
            agent.begin(row, running.prepared, position)
        worker.phase, self._row = Phase.STEP, -1

    def count(self, n: int) -> None:
        """Count timesteps that were run."""
        self.n_ran += n
        self._worker.row.words[self._worker.row.timesteps_word] = self.n_ran

    def take_in_hand(self, row: int) -> None:
        """Note that the next exception is about a row."""
        self._row = row

    def row_ended(self, row: int) -> None:
        """Begin the next trajectory in a row, if there is one."""
        self._asking.running[row].ticket.n_ended += 1
        self._running[row] = None
        self._fill_row(row)

    # ------------------------------------------------------------------ errors

    def _explain(self, error: BaseException) -> None:
        if self._waits:
            self._singles = self._asking.last_actions(self._row)
        super()._explain(error)

    def _timestep_of(self, trajectory: Trajectory) -> int:
        return self._asking.timestep_of(trajectory.row) if self._waits else super()._timestep_of(trajectory)

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
