"""Run trajectories side by side in environments of other processes, in lanes or in blocks: all rows in each step."""

from __future__ import annotations

from typing import Any

from streamsampler.errors import DataError, UsageError, WorkerError
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.inference.environments import Environments
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import locate
from streamsampler.workers.trajectory_context import TrajectoryContext
from streamsampler.workers.vec.hooked import HookedRunner
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.tickets import RunningTicket

__all__ = ["HookedParentRunner", "ParentRunner"]


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
