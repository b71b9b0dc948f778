"""Publish updates once for all workers of an engine, and hold them while a worker needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.core.serialization import dumps
from streamsampler.core.settings import ProcessSettings
from streamsampler.engines.base import Engine
from streamsampler.samplers.payloads import put
from streamsampler.samplers.task_payloads import PublishedTasks, needs
from streamsampler.samplers.updates import Kind, Snapshot, Updates
from streamsampler.workers.logs import levels_here


class UpdateStore:
    """The updates of an engine's workers, and which of them each worker was sent."""

    def __init__(self, engine: Engine, updates: Updates[Any]) -> None:
        self._engine = engine
        # `latest`: the last call's updates; `used`: those sent to workers, older than `latest` with `staleness=1`;
        # `sampled`: those of the last call's trajectories.
        self.latest = self.used = self.sampled = updates
        self._published: dict[int, Any] = updates.payloads()
        self._may_have_old = False  # whether a replaced payload may still be published
        self._serials: list[dict[Kind, int]] = [{} for _ in range(engine.n_workers)]  # by worker, of sent updates
        self._unanswered: list[tuple[Any, ...]] = [()] * engine.n_workers  # by worker, payloads of its last `Start`

    def publish(self, payload: Any) -> Any:
        handle = self._engine.publish(payload)
        self._published[id(handle)] = handle
        self._may_have_old = True
        return handle

    def put(self, updates: Mapping[Kind, Any], filters: Filters) -> None:
        latest = self.latest
        for kind, payloads in updates.items():
            put(latest, kind, payloads, self.publish)
        if "env" in updates and any(traits.takes_spaces for traits in latest.about("agent")):
            # The agent's parts made from spaces must not depend on the spaces before.
            latest.repeat("agent")
            latest.repeat("parameters")
        if filters is not self.filters and filters:
            latest.put("filters", self.publish(dumps(filters, "the filters")), filters)

    @property
    def filters(self) -> Filters | None:
        return self.latest.about("filters")[0] if "filters" in self.latest else None

    def put_settings(self) -> str:
        """Publish this process's settings and log levels for the workers; return torch's default device here."""
        here = ProcessSettings.of_this_process(), levels_here()
        if "settings" not in self.latest or self.latest.about("settings")[0] != here:
            self.latest.put("settings", self.publish(dumps(here, "the settings of this process")), here)
        return here[0].torch_device

    def use(self, snapshot: Snapshot) -> None:
        """Send workers the updates of a snapshot from now on, whatever updates follow."""
        self.used = Updates.of(snapshot, self._engine.n_workers)

    def agent_of_first_worker(self) -> Any:
        return None if self.tasks is not None else self.latest.of_workers("agent")[0]

    def need(self, package: str) -> bool:
        """Whether the current agents or environments need a package, as far as visible in pickles."""
        if (tasks := self.tasks) is not None:
            return needs(self._engine, [*tasks.payloads.agents, *tasks.payloads.environments], package)
        return needs(self._engine, [*self.latest.payloads(("agent", "parameters", "env")).values()], package)

    @property
    def tasks(self) -> PublishedTasks | None:
        return self.latest.of_workers("tasks")[0] if "tasks" in self.latest else None

    def task_needs(self, task: int, package: str) -> bool:
        return self.tasks is not None and needs(self._engine, self.tasks.of_task(task), package)

    def contents_for(self, worker: int, resets: Any) -> dict[str, Any]:
        """Return the payloads of a `Start`: the updates that the worker lacks, and the call's published `Resets`.

        They are held until the worker has answered.
        """
        contents: dict[str, Any] = self.used.missing(worker, self._serials[worker])
        if resets is not None:
            contents["resets"] = resets
        self._unanswered[worker] = tuple(contents.values())
        if "tasks" in contents:
            contents["tasks"] = contents["tasks"].table
        return contents

    def record_answer(self, worker: int, *, is_failure: bool) -> None:
        """Record a worker's answer to a ticket.

        A failure may leave its agent and environments in any state, so its next `Start` brings all updates.
        """
        self._unanswered[worker] = ()
        if is_failure:
            self._serials[worker].clear()

    def forget(self, worker: int) -> None:
        self._serials[worker], self._unanswered[worker] = {}, ()

    def withdraw(self, kind: Kind) -> None:
        self.latest.forget(kind)
        self._may_have_old = True

    def restore(self, snapshot: Snapshot, accepted: Snapshot | None = None) -> list[int]:
        """Return to the updates of a snapshot after a worker refused the updates since.

        `accepted` are updates known to be accepted by agents, for `sampled`. Returns the workers that have other
        updates and will be sent theirs again.
        """
        self.latest.restore(snapshot)
        self._may_have_old = True
        if self.used is not self.latest:
            self.use(snapshot)
            self.sampled = self.used if accepted is None else Updates.of(accepted, self._engine.n_workers)
        others = [
            worker for worker, serials in enumerate(self._serials) if not self.latest.are_in_force(worker, serials)
        ]
        for worker in others:
            self._serials[worker].clear()
        return others

    def unpublish_old(self) -> None:
        """Free payloads that are neither current nor in an unanswered message."""
        if not self._may_have_old:
            return
        in_use = {id(handle) for payloads in self._unanswered for handle in payloads}
        in_force = self.latest.payloads().keys()
        for updates in (self.used, self.sampled):
            in_use |= updates.payloads().keys()
        in_use |= in_force
        for key in self._published.keys() - in_use:
            self._engine.unpublish(self._published.pop(key))
        self._may_have_old = len(self._published) > len(in_force)
