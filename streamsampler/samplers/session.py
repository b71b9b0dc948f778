"""What outlives an obtaining call."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium

from streamsampler.data.memory import Pool
from streamsampler.engines.base import Engine
from streamsampler.protocol.messages import Answer
from streamsampler.samplers.supervisor import Supervisor
from streamsampler.samplers.updates import Updates
from streamsampler.samplers.verdicts import Verdicts
from streamsampler.scheduling.blocks import Blocks
from streamsampler.scheduling.dispatch import CAPACITY, Dispatcher
from streamsampler.scheduling.restarts import Policy
from streamsampler.scheduling.result import Order
from streamsampler.scheduling.throughput import Pace
from streamsampler.seeding import Indices, TrajectorySeeds
from streamsampler.serialization import Payload, dumps
from streamsampler.workers.episodes import Episodes
from streamsampler.workers.logs import Levels, levels_here

__all__ = ["Session", "Spaces"]

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


class Session:
    """The engine, who owes what, who is alive, and what each worker has been told.

    Args:
        engine: Where the workers live.
        updates: The agent and the environment in force, as payloads that the engine published.
        seed: The sampler's seed.
        order: How batches are ordered.
        version: The last agent version that was used up.
        capacity: How many unanswered tickets a worker may have.
        blocks: Which trajectories workers run together; see `Worker.blocks`.
        policy: What is done about losses; None for what is done by default.
        verdicts: What became of checking the environment; None to check nothing.
        clock: Seconds, from any beginning.
    """

    def __init__(
        self,
        engine: Engine,
        updates: Updates[Any],
        *,
        seed: int,
        order: Order,
        version: int,
        capacity: int = CAPACITY,
        blocks: Blocks | None = None,
        policy: Policy | None = None,
        verdicts: Verdicts | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.engine = engine
        self.updates = updates
        self.seed = seed
        self.order: Order = order
        self.blocks = blocks
        self.dispatcher = Dispatcher(engine.n_workers, capacity)
        self.dispatcher.version = version
        self.pace = Pace()
        self.clock = clock
        self.pool = Pool()
        self.spaces: list[Spaces | None] = [None] * engine.n_workers
        self.supervisor = Supervisor(engine, policy or Policy(), clock)
        self.verdicts = verdicts or Verdicts(None)
        self._episodes: Episodes | None = None
        self._episodes_handle: Any = None
        self.cancelled = False
        self.suspect = False  # whether an interrupt may have hit between two steps of the bookkeeping
        self.told_of_anomalies = False
        self.published: dict[int, Any] = updates.payloads()
        self._levels: Levels | None = None
        self._told = [0] * engine.n_workers  # timesteps that were accounted for, by worker process
        self._ran_by_dead = 0
        self._settled = False
        self.reading: list[list[Any]] = [[] for _ in range(engine.n_workers)]

    def give(self, episodes: Episodes | None, payload: Payload | None) -> None:
        """Begin a call.

        Args:
            episodes: What it says of its trajectories.
            payload: The same, pickled.
        """
        self._episodes = episodes
        self._episodes_handle = None if payload is None else self.publish(payload)

    def seeds_of(self, version: int, indices: Indices) -> list[int]:
        """Return the seeds of trajectories of the call in hand."""
        return (self._episodes or Episodes()).seeds_of(TrajectorySeeds(self.seed, version), indices)

    def told_at_start(self, worker: int) -> dict[str, Any]:
        """Return what a worker is told with its first ticket of a call, and take it for told; see `messages.Start`."""
        told: dict[str, Any] = dict(self.updates.lacking(worker).items())
        if self._episodes_handle is not None:
            told["episodes"] = self._episodes_handle
        self.reading[worker] = list(told.values())
        return {**told, "check": self.verdicts.order_for(worker)}

    def cancel(self) -> None:
        """Let the call that is under way in another thread fail at once; nothing is to be called afterwards."""
        self.cancelled = True
        self.engine.kill()

    def forget(self, worker: int) -> None:
        """Forget what is known of a worker that has ended: the one in its place knows nothing."""
        self.updates.forget(worker)
        self.pace.forget(worker)
        self.verdicts.lost(worker)
        self.reading[worker] = []

    def publish(self, payload: Any) -> Any:
        """Publish a payload, and keep account of it."""
        handle = self.engine.publish(payload)
        self.published[id(handle)] = handle
        return handle

    def tell_levels(self) -> None:
        """Let workers in other processes make the log records that this process's loggers let through now."""
        if self.engine.has_own_loggers and (levels := levels_here()) != self._levels:
            self.updates.put("levels", self.publish(dumps(levels, "the levels of loggers")))
            self._levels = levels

    def told(self, worker: int, answer: Answer) -> None:
        """Add to what a worker's answers have told of its timesteps."""
        self._told[worker] += answer.ran_timesteps

    def lost_with(self, worker: int) -> int:
        """Return how many timesteps a worker that died had shown, and told of in no answer."""
        lost = max(0, self.engine.ran_timesteps(worker) - self._told[worker])
        self._told[worker] += lost
        return lost

    def revive(self, worker: int) -> bool:
        """Start a new worker if this one is dead; return whether it was."""
        ran = self.engine.ran_timesteps(worker)
        revived = self.supervisor.revive(worker)
        if revived:
            self._ran_by_dead += ran
            self._told[worker] = 0
        return revived

    def settle(self) -> int:
        """Return all timesteps that workers ran, as far as they showed them; 0 where they were returned before."""
        if self._settled:
            return 0
        self._settled = True
        return self._ran_by_dead + sum(map(self.engine.ran_timesteps, range(self.engine.n_workers)))

    def unpublish_old(self) -> None:
        """Let go of what is neither in force nor in a message that is unanswered."""
        needed = self.updates.payloads().keys() | {id(handle) for handles in self.reading for handle in handles}
        for key in self.published.keys() - needed:
            self.engine.unpublish(self.published.pop(key))
