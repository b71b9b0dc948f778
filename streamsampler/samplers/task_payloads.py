"""The agents and environments of several tasks, pickled and published as a single update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamsampler.core.serialization import Payload, refers_to
from streamsampler.engines.base import Engine
from streamsampler.samplers.updates import Updates
from streamsampler.workers.task_loops import TaskTable


@dataclass(frozen=True)
class TaskPayloads:
    """The pickled agents and environments, by task; equal ones are the same object."""

    agents: tuple[Payload, ...]
    environments: tuple[Payload, ...]
    open_envs: int

    @classmethod
    def of(cls, updates: Sequence[Updates[Payload]], open_envs: int) -> TaskPayloads:
        agents = _each_once([first_payload(each.of_workers("agent")) for each in updates])
        environments = _each_once([first_payload(each.of_workers("env")) for each in updates])
        return cls(agents, environments, open_envs)


def _each_once(payloads: Sequence[Payload]) -> tuple[Payload, ...]:
    """Replace equal payloads by the same object."""
    found: dict[bytes, Payload] = {}
    return tuple(found.setdefault(_digest(payload), payload) for payload in payloads)


def _digest(payload: Payload) -> bytes:
    digest = hashlib.sha256(payload.data)
    for buffer in payload.buffers:
        digest.update(buffer)
    return digest.digest()


@dataclass(frozen=True, eq=False)
class PublishedTasks:
    """The handles of several tasks' agents and environments."""

    payloads: TaskPayloads  # with handles in place of payloads
    table: Any  # the handle sent in messages, of a table of all handles

    def of_task(self, number: int) -> tuple[Any, Any]:
        return self.payloads.agents[number], self.payloads.environments[number]


def publish(engine: Engine, payload: Any) -> Any:
    if not isinstance(payload, TaskPayloads):
        return engine.publish(payload)
    agents, environments = (_converted(each, engine.publish) for each in (payload.agents, payload.environments))
    table = engine.publish_table(TaskTable(agents, environments, payload.open_envs))
    return PublishedTasks(TaskPayloads(agents, environments, payload.open_envs), table)


def published(engine: Engine, handle: Any) -> Any:
    if not isinstance(handle, PublishedTasks):
        return engine.published(handle)
    return replace(
        handle.payloads,
        agents=_converted(handle.payloads.agents, engine.published),
        environments=_converted(handle.payloads.environments, engine.published),
    )


def _converted(payloads: Sequence[Any], convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    found = {id(payload): convert(payload) for payload in {id(each): each for each in payloads}.values()}
    return tuple(found[id(payload)] for payload in payloads)


def needs(engine: Engine, handles: Sequence[Any], package: str) -> bool:
    """Whether any of these agents and environments needs a package, as far as visible in pickles."""
    return any(refers_to(engine.published(handle), package) for handle in handles)


def first_payload(payloads: Sequence[Payload | None]) -> Payload:
    assert payloads[0] is not None
    return payloads[0]
