"""Run trajectories twice for the check of determinism: a runner that discards them, and infos for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.workers.vec.lanes import LaneRunner


class RehearsalRunner(LaneRunner):
    """Runs trajectories for a check, and continues the worker's count of timesteps.

    Otherwise the check's last reset and the first reset after it would show the same count: two long resets would look
    like a hang.
    """

    def forget(self) -> tuple[int, int]:
        """Forget all tickets, but keep the number of timesteps."""
        n_ran = self.n_ran
        forgotten = super().forget()
        self.n_ran = n_ran
        return forgotten


AgentT = TypeVar("AgentT")


def with_info_callback(agent: AgentT, note: Callable[..., None]) -> AgentT:
    """Return a `BatchedAgent` that calls `note(timestep, info[, row])` with the infos of `agent`."""
    return cast(AgentT, _WithInfoCallback(agent, note))


class _WithInfoCallback:
    def __init__(self, agent: Any, note: Callable[..., None]) -> None:
        self._agent, self._note, self._timestep = agent, note, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def choose(
        self, observations: Any, live: Sequence[int], worker: Any, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        timestep, self._timestep = self._timestep, self._timestep + 1

        def record(row: int, info: Any) -> None:
            self._note(timestep, info, row)
            record_info(row, info)

        actions, infos = self._agent.choose(observations, live, worker, record, masks)
        self._note(timestep, infos)
        return actions, infos
