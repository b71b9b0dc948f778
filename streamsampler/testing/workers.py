"""Kill workers at a chosen place inside this package's own code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from streamsampler.core.errors import UsageError
from streamsampler.engines.base import FAIL_POINT_VARIABLE
from streamsampler.testing import fail_points
from streamsampler.testing.fail_points import Records


class FailPoint:
    """Lets a worker process kill itself (SIGKILL) at a place in its loop, once.

    ::

        point = FailPoint("sent", worker=1, occurrence=2, folder=tmp_path)
        with point.armed(), MultiprocessingSampler(agent, env, n_workers=3, seed=1) as sampler:
            batch = sampler.obtain_trajectories(30)
        assert point.fired()

    Args:
        point: "start": it has read a `Start`, and done nothing yet. "continue": the same with further tickets.
            "rollout": in a trajectory's second step. "write": its rollouts lie in shared memory, if they are large, and
            nothing is sent. "send": half of the message is sent. "sent": all of it is, and nothing else happened.
            "stop" and "exit": it has read that message, and done nothing yet.
        worker: The worker number.
        occurrence: At which time that worker gets there, from 1; those before it in the same place are counted, too.
        folder: Where the record is kept; a fresh one.

    Raises:
        UsageError: There is no such point, or a number cannot be.
    """

    def __init__(self, point: str, *, worker: int, folder: str | os.PathLike[str], occurrence: int = 1) -> None:
        if point not in fail_points.POINTS:
            raise UsageError(f"a fail point is one of {', '.join(fail_points.POINTS)}; got {point!r}")
        if worker < 0 or occurrence < 1:
            raise UsageError(f"worker is at least 0 and occurrence at least 1, got {worker} and {occurrence}")
        self._records = Records(folder)
        self._occurrence = occurrence
        self._value = fail_points.encode(point, worker, occurrence, self._records.folder)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Switch the fail point on, for all the life of workers of samplers that are made inside."""
        before = os.environ.get(FAIL_POINT_VARIABLE)
        os.environ[FAIL_POINT_VARIABLE] = self._value
        try:
            yield
        finally:
            if before is None:
                del os.environ[FAIL_POINT_VARIABLE]
            else:
                os.environ[FAIL_POINT_VARIABLE] = before

    def fired(self) -> bool:
        """Whether the worker has died there."""
        return self._records.count() >= self._occurrence
