"""Who of the workers works, who is dead, and who is to go: the decisions of `restarts`, carried out on an engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamsampler.engines.base import Died, Engine
from streamsampler.errors import WorkerError
from streamsampler.protocol.messages import Failure, Phase, Ticket
from streamsampler.samplers.setbacks import Setback
from streamsampler.scheduling.restarts import Incident, Losses, Policy, cause_of_death
from streamsampler.workers.board import Progress

__all__ = ["Supervisor", "logger"]

logger = logging.getLogger("streamsampler")

_UNSTEADY = {
    *(Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION),
    *(Phase.RECORDING, Phase.SENDING),  # on the board: packing a whole ticket, which takes the longer the more there is
}


@dataclass(slots=True)
class _Hang:
    seen: Progress
    seconds: float
    stack: str


class Supervisor:
    """The workers of an engine, over all calls.

    Args:
        engine: Where they live.
        policy: What is done about losses.
        clock: Seconds, from any beginning.
    """

    def __init__(self, engine: Engine, policy: Policy, clock: Callable[[], float]) -> None:
        self.policy = policy
        self.losses = Losses(policy, engine.n_workers)
        self._engine = engine
        self._clock = clock
        self._made = clock()
        self._watch = policy.watch(engine.n_workers)
        self._dead: set[int] = set()
        self._leaving: dict[int, float | None] = {}  # until when it may take, once it was told to
        self._hung: dict[int, _Hang] = {}
        self._fresh = set(range(engine.n_workers))  # who has not answered yet
        self._warned = False

    # ------------------------------------------------------------------ waiting

    def planned(self, timeout: float | None) -> float | None:
        """Return how long to wait for workers at most, when `timeout` is all the caller knows."""
        deadlines = [until - self._clock() for until in self._leaving.values() if until not in (None, math.inf)]
        if self._watch is not None:
            deadlines.append(self._watch.interval)
        if timeout is not None:
            deadlines.append(timeout)
        return max(0.0, min(deadlines)) if deadlines else None

    def waited(self, planned: float | None, elapsed: float, owing: Callable[[], Mapping[int, Ticket]]) -> None:
        """Take note of a wait, after its events were taken in; kill those that hang, and those that do not go.

        Args:
            planned: What `planned` returned.
            elapsed: Seconds that it took.
            owing: Returns the oldest ticket of each worker that has work.
        """
        for worker, until in self._leaving.items():
            if until is not None and self._clock() >= until:
                self._leaving[worker] = math.inf
                self._engine.kill_worker(worker)
        if self._watch is None or planned is None or not self._watch.waited(planned, elapsed):
            return
        seen = {worker: self._engine.progress(worker) for worker in owing().keys() - self._dead - self._hung.keys()}
        begun = {worker: ticket.version for worker, ticket in owing().items()}
        suspects, hung = self._watch.look(
            {
                worker: (progress, progress.version < begun[worker] or progress.phase in _UNSTEADY)
                for worker, progress in seen.items()
            }
        )
        for worker in suspects:
            self._engine.request_progress(worker)
        for worker, seconds in hung.items():
            self._hung[worker] = _Hang(seen[worker], seconds, self._engine.stacks(worker))
            self._engine.kill_worker(worker)

    def moved(self, worker: int) -> None:
        """Take note that a worker answered, or was given work while it had none."""
        if self._watch is not None:
            self._watch.moved(worker)

    # ------------------------------------------------------------------ coming and going

    def works(self, worker: int) -> bool:
        """Whether a worker is there, or a new one can be, to be given work."""
        return worker not in self._leaving

    def is_alive(self, worker: int) -> bool:
        """Whether there is anybody to be told anything."""
        return worker not in self._dead

    def revive(self, worker: int) -> bool:
        """Start a new worker if this one is dead; return whether it was."""
        if worker not in self._dead:
            return False
        self._engine.restart(worker)
        self._dead.discard(worker)
        self._fresh.add(worker)
        return True

    def is_too_large(self, worker: int) -> bool:
        """Whether a worker has more memory than it may, and is not on its way out already."""
        limit = self.policy.max_worker_memory
        if limit is None or worker in self._leaving:
            return False
        fresh, memory = worker in self._fresh, self._engine.memory_bytes(worker)
        self._fresh.discard(worker)
        if fresh and memory > limit and not self._warned:
            self._warned = True
            logger.warning(
                "worker %d has %d bytes after its first answer: with max_worker_memory=%d every worker is replaced all "
                "the time",
                worker,
                memory,
                limit,
            )
        return memory > limit

    def replace(self, worker: int) -> None:
        """Let a worker end as soon as it owes nothing; see `may_go`."""
        self._leaving.setdefault(worker, None)

    def may_go(self, worker: int) -> None:
        """Take note that a worker owes nothing: if it is to be replaced, it goes now."""
        if worker in self._leaving and self._leaving[worker] is None and worker not in self._dead:
            if self._engine.retire(worker):
                self._leaving[worker] = self._clock() + self.policy.close_timeout
            else:
                del self._leaving[worker]

    # ------------------------------------------------------------------ losses

    def buried(self, event: Died, seen: Progress, version: int | None) -> Incident | None:
        """Take in a death.

        Args:
            event: The death.
            seen: What the worker was last seen doing.
            version: The agent version that it had begun; None if it had not begun the one in hand.

        Returns:
            The loss; None if it went as it was told to.
        """
        worker = event.worker
        self._dead.add(worker)
        self.moved(worker)
        hang = self._hung.pop(worker, None)
        # Who was to go and had not been told yet had work still.
        if self._leaving.pop(worker, None) is not None:
            return None
        what = event.why or cause_of_death(event.exitcode)
        if hang is not None:
            seen = hang.seen
            what = f"made no progress for {hang.seconds:.3g} s"
        return Incident(
            worker,
            what,
            seen.phase,
            None if version is None else seen.trajectory,
            version,
            self._clock() - self._made,
            exitcode=event.exitcode if hang is None else None,
            stack="" if hang is None else hang.stack,
            hung=hang is not None,
            hopeless=event.hopeless and version is not None,  # in this call's work, and not in that of an earlier one
        )

    def raised(self, worker: int, failure: Failure, exception: object) -> Setback:
        """Return what an exception of user code is: a loss if `restart_on` names it; then the worker is replaced."""
        if not self.policy.restarts_on(failure.kinds):
            return Setback(worker, failure, exception)
        version = None if failure.ticket is None else failure.ticket.version
        seconds = self._clock() - self._made
        incident = Incident(worker, f"raised {failure.summary}", failure.phase, failure.trajectory, version, seconds)
        self.replace(worker)
        return Setback(worker, failure, exception, incident)

    def decide(self, setback: Setback) -> WorkerError | None:
        """Return the error that ends the call because of a setback; None if what was lost is to be run again."""
        error = setback.verdict(self.losses)
        if error is None and setback.incident is not None:
            told = setback.incident.stack if setback.failure is None else setback.failure.traceback
            logger.warning("%s; a new one takes its place%s", setback.incident, f"\n{told}" if told else "")
        return error
