"""The current agent, parameters and environment, and which of them a worker still lacks. Pure.

Only the latest update of each kind is held. This suffices because a new agent invalidates earlier parameters,
parameters are complete, and an environment update does not depend on earlier ones (see
`environments.updates.EnvUpdate`). So a single message of bounded size brings a worker up to date, even if it was busy
during three updates, or started after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from streamsampler.protocol.run_modes import Structure

Payload = TypeVar("Payload")
Other = TypeVar("Other")
Kind = Literal["agent", "parameters", "env", "filters", "settings", "tasks"]
_KINDS: tuple[Kind, ...] = ("agent", "parameters", "env", "filters", "settings", "tasks")


class LatestUpdate(NamedTuple):
    """The latest update of a kind for a worker."""

    serial: int  # changes with the payload
    payload: Any
    about: Any  # the sampler's facts about the pickled object


@dataclass(frozen=True)
class UpdatesByWorker:
    """The latest updates of a kind: the same for all workers, or one each."""

    items: tuple[LatestUpdate, ...]  # by worker
    shared: bool


_IS_SHARED = attrgetter("shared")
Snapshot = dict[Kind, UpdatesByWorker]


class Updates(Generic[Payload]):
    """The current updates by kind and worker."""

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._serial = 0
        self._in_force: dict[Kind, UpdatesByWorker] = {}

    def put(self, kind: Kind, payloads: Sequence[Payload | None] | Payload, about: Any = None) -> None:
        """Make an update current: a payload, or a list with a payload for each worker (None changes nothing).

        `about` has the facts about the pickled object, for the method `about`; for a list of payloads, a list.
        """
        shared = not isinstance(payloads, list)
        each = payloads if isinstance(payloads, list) else [payloads] * self._n_workers
        notes = about if isinstance(about, list) else [about] * self._n_workers
        self._serial += 1
        items = tuple(LatestUpdate(self._serial, payload, note) for payload, note in zip(each, notes, strict=True))
        if (before := self._in_force.get(kind)) is not None:
            items = tuple(old if new.payload is None else new for new, old in zip(items, before.items, strict=True))
        self._in_force[kind] = UpdatesByWorker(items, shared)
        if kind == "agent" and "parameters" in self._in_force:
            self._void_parameters(payloads if isinstance(payloads, list) else None)

    def _void_parameters(self, agents: list[Payload | None] | None) -> None:
        parameters = self._in_force.pop("parameters")
        kept = tuple(
            it if agents is not None and agents[number] is None else it._replace(payload=None)
            for number, it in enumerate(parameters.items)
        )
        if any(it.payload is not None for it in kept):
            self._in_force["parameters"] = UpdatesByWorker(kept, shared=False)

    def forget(self, kind: Kind) -> None:
        self._in_force.pop(kind, None)

    def repeat(self, kind: Kind) -> None:
        """Let all workers be sent the update of a kind again, if any."""
        update = self._in_force.get(kind)
        if update is not None:
            self._serial += 1
            self._in_force[kind] = replace(update, items=tuple(it._replace(serial=self._serial) for it in update.items))

    def about(self, kind: Kind) -> tuple[Any, ...]:
        """Return the facts about the updates of a kind, by worker; they survive `restore` and `mapped`."""
        return tuple(it.about for it in self._in_force[kind].items)

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._in_force

    def of_workers(self, kind: Kind) -> tuple[Payload | None, ...]:
        return tuple(it.payload for it in self._in_force[kind].items)

    @property
    def differ(self) -> bool:
        return False in map(_IS_SHARED, self._in_force.values())

    def missing(self, worker: int, sent: dict[Kind, int]) -> dict[str, Payload]:
        missing: dict[str, Payload] = {}
        for kind in _KINDS:
            update = self._in_force.get(kind)
            if update is None or sent.get(kind) == update.items[worker].serial:
                continue
            if kind == "agent":
                sent.pop("parameters", None)  # a new agent has its own parameters
            sent[kind], payload, _ = update.items[worker]
            if payload is not None:
                missing[kind] = payload
        return missing

    def structures(self) -> list[Structure]:
        """Return the structure of each queue of indices: a single one for all workers, or one for each.

        It changes with the agent or the environment; with tasks, never.
        """
        if "tasks" in self._in_force:
            return [()]
        agents, environments = self._in_force["agent"].items, self._in_force["env"].items
        n_queues = self._n_workers if self.differ else 1
        return [(agents[worker].serial, environments[worker].serial) for worker in range(n_queues)]

    def are_in_force(self, worker: int, sent: dict[Kind, int]) -> bool:
        updates = [(self._in_force.get(kind), serial) for kind, serial in sent.items()]
        return all(update is not None and update.items[worker].serial == serial for update, serial in updates)

    @classmethod
    def of(cls, snapshot: Snapshot, n_workers: int) -> Updates[Any]:
        updates: Updates[Any] = cls(n_workers)
        updates.restore(snapshot)
        return updates

    def snapshot(self) -> Snapshot:
        return dict(self._in_force)

    def restore(self, snapshot: Snapshot) -> None:
        self._in_force = dict(snapshot)

    def payloads(self, kinds: Sequence[Kind] = _KINDS) -> dict[int, Payload]:
        return {
            id(it.payload): it.payload
            for kind in kinds
            if kind in self._in_force
            for it in self._in_force[kind].items
            if it.payload is not None
        }

    def mapped(self, convert: Callable[[Payload], Other]) -> Updates[Other]:
        converted = {key: convert(payload) for key, payload in self.payloads().items()}
        other: Updates[Other] = Updates(self._n_workers)
        for kind, update in self._in_force.items():
            other._serial += 1
            items = [LatestUpdate(other._serial, converted.get(id(it.payload)), it.about) for it in update.items]
            other._in_force[kind] = UpdatesByWorker(tuple(items), update.shared)
        return other
