"""The engine of a sampler whose agent stays in its own process: one worker here, its environments in processes."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streamsampler.engines.base import Answered, Event, Logged, Restored
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.local import LocalChannel, LocalEngine
from streamsampler.errors import WorkerHungError
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.scheduling.restarts import Policy
from streamsampler.serialization import HeldPayload, Payload
from streamsampler.stepping.inference.groups import checked_groups
from streamsampler.stepping.inference.modes import EvaluationMode
from streamsampler.stepping.inference.stepper import RolloutStepper
from streamsampler.stepping.inference.transport import RolloutTransport
from streamsampler.stepping.inference.worker import ParentWorker
from streamsampler.stepping.options import watch_of
from streamsampler.stepping.setbacks import Setbacks
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.threads import ThreadLimit

__all__ = ["ParentEngine"]


class _Channel(LocalChannel):
    """The worker's connection to its sampler: the agent is here already, and environments are made elsewhere."""

    def __init__(self, mode: EvaluationMode, worker: int, events: deque[Event], threads: ThreadLimit) -> None:
        super().__init__(worker, events, threads)
        self._mode = mode

    def load(self, payload: Payload) -> Any:
        if isinstance(payload, HeldPayload):
            return self._mode.hold(payload.held)
        return payload if isinstance(payload.about, EnvironmentFacts) else super().load(payload)


class ParentEngine(LocalEngine):
    """One worker in this process, whose environments are in others.

    Args:
        setup: What the sampler says of its workers: as many processes as there are workers.
        policy: Time limits and quotas of the processes.
        start_method: How they are started.

    Raises:
        UsageError: There are fewer environments than groups of them.
    """

    def __init__(self, setup: WorkerSetup, *, policy: Policy, start_method: StartMethod) -> None:
        self._worker: ParentWorker | None = None
        self._mode = EvaluationMode()
        factory = copy.copy(setup.factory)
        factory.worker_class = ParentWorker
        here = replace(setup, factory=factory)
        checked_groups(factory.worker_args, factory.layout.rows)

        limits = policy.step_timeout, None, policy.construction_timeout
        of_losses = replace(policy, restart_on=())  # what environments raise is the sampler's business

        def launch(updates: Mapping[int, Payload], setbacks: Setbacks | None) -> RolloutTransport:
            new_stepper = partial(RolloutStepper, seed=setup.seed, max_episode_length=factory.max_episode_length)
            return RolloutTransport(
                updates, setup.n_workers, new_stepper, of_losses, watch_of(*limits), start_method, setup.threads,
                setbacks=setbacks,
            )  # fmt: skip

        def make(context: WorkerContext) -> Worker:
            worker = here.make_worker(context)
            assert isinstance(worker, ParentWorker)
            worker.launch, worker.close_timeout = launch, policy.close_timeout
            self._worker = worker
            return worker

        super().__init__(1, make, setup.seed, threads=setup.threads)

    def _channel(self, worker: int, events: deque[Event], threads: ThreadLimit) -> LocalChannel:
        return _Channel(self._mode, worker, events, threads)

    def publish(self, payload: Payload) -> Any:
        """Return the handle of a payload, which still tells what it is about."""
        if isinstance(payload, HeldPayload):
            return payload
        return Payload(payload.data, tuple(bytes(buffer) for buffer in payload.buffers), payload.about)

    def wait(self, timeout: float | None) -> list[Event]:
        """Let the worker run until it has answered."""
        with self._mode:
            events = super().wait(timeout)
        losses = [] if self._worker is None else self._worker.take_losses()
        return [*(Restored(0, isinstance(error, WorkerHungError)) for error in losses), *events]

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Close the environments, and end their processes."""
        try:
            return super().close(read_answers=read_answers)
        finally:
            if self._worker is not None:
                self._worker.end()

    def pids(self) -> list[int]:
        """Return the ids of the processes that are there."""
        return [] if self._worker is None else self._worker.pids()
