"""The engine of a sampler whose agent stays in its own process: one worker here, its environments in processes."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streamsampler.core.errors import WorkerHungError
from streamsampler.core.serialization import HeldPayload, Payload
from streamsampler.engines.base import Answered, Event, Logged, Restored
from streamsampler.engines.local import LocalChannel, LocalEngine
from streamsampler.protocol.restarts import Policy
from streamsampler.samplers.payloads import EnvironmentFacts
from streamsampler.stepping.inference.asking import checked_groups
from streamsampler.stepping.inference.env_processes import RolloutTransport
from streamsampler.stepping.inference.stepper import RolloutStepper
from streamsampler.stepping.inference.worker import ParentWorker
from streamsampler.stepping.options import watch_of
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.threads import ThreadLimit

# ----------------------------------------------------------------------
# The modes of a user's own torch modules while a sampler asks them: evaluation, as in the copies that workers have.


class EvaluationMode:
    """Puts the module of a `TorchAgent` into evaluation mode while a call runs, and back into its own mode afterwards.

    In training mode, dropout would make actions random, and batch normalisation would learn from what is sampled. The
    learner's module is in training mode between calls, as its owner left it.
    """

    def __init__(self) -> None:
        self._agent: Any = None
        self._is_running = False
        self._training: list[Any] = []  # the submodules that were in training mode

    def hold(self, agent: Any) -> Any:
        """Return an agent, whose module is the one to put into evaluation mode from now on."""
        self._agent = agent
        if self._is_running:
            self._evaluate()
        return agent

    def __enter__(self) -> None:
        self._is_running = True
        self._evaluate()

    def __exit__(self, *_: object) -> None:
        self._is_running = False
        training, self._training = self._training, []
        for module in training:
            module.training = True

    def _evaluate(self) -> None:
        for module in _modules_of(self._agent):
            self._training += [each for each in module.modules() if each.training]
            module.eval()


def _modules_of(agent: Any) -> Iterator[Any]:
    """Return the module of an agent that evaluates in workers, whatever it is wrapped into; nothing for others."""
    adapter = sys.modules.get("streamsampler.agents.torch")  # loaded where there is such an agent
    kind = getattr(adapter, "TorchAgent", ())
    while agent is not None:
        if isinstance(agent, kind):
            yield agent.module
        agent = vars(agent).get("agent") if hasattr(agent, "__dict__") else None


# ----------------------------------------------------------------------


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

    Raises:
        UsageError: There are fewer environments than groups of them.
    """

    def __init__(self, setup: WorkerSetup, *, policy: Policy) -> None:
        self._worker: ParentWorker | None = None
        self._mode = EvaluationMode()
        factory = copy.copy(setup.factory)
        factory.worker_class = ParentWorker
        here = replace(setup, factory=factory)
        checked_groups(factory.worker_args, factory.layout.rows)

        limits = policy.step_timeout, None, policy.construction_timeout
        of_losses = replace(policy, restart_on=())  # what environments raise is the sampler's business

        def launch(updates: Mapping[int, Payload]) -> RolloutTransport:
            new_stepper = partial(RolloutStepper, seed=setup.seed, max_episode_length=factory.max_episode_length)
            return RolloutTransport(updates, setup.n_workers, new_stepper, of_losses, watch_of(*limits), setup.threads)

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
