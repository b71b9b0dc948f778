"""Environments in worker processes, stepped from this one.

::

                     rows: actions, seeds ─▶            ◀─ observations, rewards, ends
    ┌────────┐                                                                  ┌──────────┐
    │ parent │─── commands: which environments to step, resets (pipe) ─────────▶│ worker w │
    │        │◀── answers: whose results are there, infos (pipe) ───────────────│          │
    └────────┘                                                                  └──────────┘

All rows lie in one anonymous memory file, and each has one writer. A message wakes the other end for a group of
environments. Nothing is locked, and nothing is pickled in a step but infos that are not empty.
"""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamsampler.errors import (
    DataError,
    ProtocolError,
    SerializationError,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.protocol.messages import Phase
from streamsampler.serialization import dumps, loads
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.histories import RestoreOrder
from streamsampler.stepping.links import WorkerLink
from streamsampler.stepping.running import running_env
from streamsampler.stepping.transport import Broken, Done, Event, Restored, UnansweredError
from streamsampler.stepping.wire import IDS, ids_frame, ids_in, pickle_frame, request_frame
from streamsampler.stepping.worker_pool import WorkerPool, original_of
from streamsampler.workers.explain import summary_of

__all__ = ["ProcessTransport"]


_REPORT_SECONDS = 1.0
"""How long workers may take that have nothing to do, to say where their time went."""


class ProcessTransport(WorkerPool):
    """Carries requests to worker processes; see `WorkerPool`."""

    # ------------------------------------------------------------------ requests

    def step(self, env_ids: Sequence[int]) -> None:
        """Request steps, with one message to each worker."""
        for number, ids in self._by_worker(env_ids):
            self._post(number, ids, ids_frame(ids))

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets."""
        self._options.update(options)
        for number, ids in self._by_worker(env_ids):
            of_these = dumps({e: options[e] for e in ids if e in options}, "the options of a reset").owned()
            self._post(number, ids, pickle_frame(("reset", ids, of_these)))

    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        """Request that environments become what they were, from workers that are started for it if need be."""
        of_env = {order.env_id: order for order in orders}
        for number, ids in self._by_worker(list(of_env)):
            link = self._link(number)
            orders_of_one = dumps([of_env[env_id] for env_id in ids], "what restores environments").owned()
            self._write(link, pickle_frame(("restore", orders_of_one)))
            link.restoring.update(ids)

    def give_up(self, env_ids: Sequence[int]) -> None:
        """Let environments take steps again that could not be restored."""
        for number, ids in self._by_worker(env_ids):
            link = self._link(number)
            self._write(link, pickle_frame(("give_up", ids)))
            link.waiting.difference_update(ids)  # it has ignored what they were sent

    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Let later resets of environments have no options; return those that they had."""
        had = {env_id: self._options.pop(env_id, None) for env_id in env_ids}
        for number, ids in self._by_worker(env_ids):
            link = self._links[number]
            if link is not None:
                self._write(link, pickle_frame(("options", dumps(dict.fromkeys(ids), "no options").owned())))
        return had

    def _by_worker(self, env_ids: Sequence[int]) -> list[tuple[int, list[int]]]:
        grouped: dict[int, list[int]] = {}
        worker_of = self._worker_of
        for env_id in env_ids:
            grouped.setdefault(worker_of[env_id], []).append(env_id)
        return list(grouped.items())

    def _post(self, number: int, env_ids: list[int], frame: bytes) -> None:
        link = self._link(number)
        self._write(link, frame)
        link.waiting.update(env_ids)

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out what is no step, in all workers at once."""
        of_one = dict(zip(env_ids, arguments, strict=True))
        if kind == "parameters":
            self._parameters.update(of_one)  # for workers that are started later
        asked = []
        for number, ids in self._by_worker(env_ids):
            frame = request_frame(ids, kind, name, [of_one[env_id] for env_id in ids])
            asked.append((self._link(number), ids, frame))
        for link, _, frame in asked:
            self._write(link, frame)
        values, lost = self._gathered([(link, ids) for link, ids, _ in asked], name)
        if lost is not None and kind != "parameters":  # a new worker has the parameters from its start
            raise UnansweredError(lost, values)
        return [values.get(env_id) for env_id in env_ids]

    def _gathered(
        self, asked: Sequence[tuple[WorkerLink, list[int]]], name: str
    ) -> tuple[dict[int, Any], WorkerError | None]:
        """Return what workers answer to a request, and the error of the first one that is lost."""
        values: dict[int, Any] = {}
        tried: dict[int, bool] = {}
        self.tried = tried
        raised: BaseException | None = None
        lost: WorkerError | None = None
        for link, ids in asked:
            try:
                values.update(zip(ids, self._values(link, ids, name, tried), strict=True))
            except (WorkerDiedError, WorkerHungError) as error:
                lost = lost or error
            except Exception as error:  # the others answer, too
                raised = raised or error
        if raised is not None:
            raise raised
        return values, lost

    def _values(self, link: WorkerLink, env_ids: list[int], name: str, tried: dict[int, bool]) -> list[Any]:
        """Return what a worker answers to a request, and note which of its environments were reached."""
        kind, *about = self._answer(link)
        tried.update(about[0] if kind == "raised" else dict.fromkeys(env_ids, False))
        if kind == "raised":
            raise original_of(about[3]) or self._raised(link, env_ids[0], name, *about[1:])
        try:
            values: list[Any] = loads(about[0])
        except Exception as error:
            ids = ", ".join(map(str, env_ids))
            what = f"what {name} of environments {ids} returned cannot be unpickled here: {summary_of(error)}"
            raise SerializationError(what) from error
        return values

    def _answer(self, link: WorkerLink) -> Any:
        """Return a worker's answer to a request; what it says before is kept."""
        while True:
            is_hung, left = self._look(link, time.monotonic())
            message = link.next_message(0.0 if is_hung else left)
            if message is None and not (is_hung or link.at_end):
                continue  # it may have made progress that it does not tell
            if message is None:
                broken = self._lost(link)
                self._pending.append(broken)
                raise broken.error
            kind, data = message
            if kind != IDS and (answer := pickle.loads(data))[0] in ("values", "raised"):
                return answer
            self._pending += self._event(link, kind, data)

    # ------------------------------------------------------------------ results

    def collect(self, timeout: float | None) -> Sequence[Event]:
        """Return what has happened; sleep until something does, a time limit of a worker passes, or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            events = self._events(0.0 if self._pending else self._patience(left))
            if events or (left is not None and left <= 0):
                return events

    def _patience(self, left: float | None) -> float | None:
        now = time.monotonic()
        waits = [self._look(link, now)[1] for link in self._links if link is not None and link.is_busy]
        return min([wait for wait in [*waits, left] if wait is not None], default=None)

    def _look(self, link: WorkerLink, now: float) -> tuple[bool, float | None]:
        """Return whether a worker that is busy hangs, and in how many seconds to look again; None for never."""
        if link.is_making:
            return self._limits.look(Phase.ENV_CONSTRUCTION, now - link.since)
        if (replayed := int(self.rows.replayed[link.number])) != link.replayed:
            link.replayed, link.since = replayed, now
        return self._limits.look(running_env(int(self.rows.running[link.number]))[1], now - link.since)

    def _events(self, timeout: float | None) -> list[Event]:
        self.in_hand = False
        ready = self._poller.poll(None if timeout is None else 1000 * timeout)
        self.in_hand = True
        events, self._pending = self._pending, []
        for link in dict.fromkeys(self._link_of[fd] for fd, _ in ready):
            events += self._heard(link)
        if self._limits.any:
            now = time.monotonic()
            busy = [link for link in self._links if link is not None and link.is_busy]
            events += [self._lost(link) for link in busy if self._look(link, now)[0]]
        return events

    def _heard(self, link: WorkerLink) -> list[Event]:
        events: list[Event] = []
        if link.unsent:
            link.flush()
        if not link.unsent and link.commands_fd in self._link_of:
            del self._link_of[link.commands_fd]
            self._poller.unregister(link.commands_fd)
        messages, ended = link.take()
        for kind, data in messages:
            events += self._event(link, kind, data)
        if ended and self._links[link.number] is link:
            events.append(self._lost(link))
        return events

    def _event(self, link: WorkerLink, kind: int, data: bytes) -> list[Event]:
        link.since = time.monotonic()
        if kind == IDS:
            env_ids = ids_in(data)
            link.waiting.difference_update(env_ids)
            infos, link.infos = link.infos, {}  # they came just before
            return self._readable(link, env_ids, infos) if link.unreadable else [Done(env_ids, infos)]
        match pickle.loads(data):
            case ("infos", infos):
                link.keep_infos(infos)
                return []
            case ("spaces", _):
                link.is_making = False
                return []
            case ("failed", env_id, "its construction" as phase, *about):
                error = self._raised(link, env_id, phase, *about)
                self._forget(link)
                link.end()
                return [Broken(self._envs_of[link.number], error, link.number, is_new=True, is_final=True)]
            case ("report", report):
                self._reports.append(WorkerReport(*report))
                return []
            case ("restored", env_id, n_timesteps, why_not):
                link.restoring.discard(env_id)
                return [Restored(env_id, n_timesteps, why_not)]
            case (_, env_id, phase, *about):
                link.waiting.discard(env_id)
                return [Broken.alone(env_id, self._raised(link, env_id, phase, *about))]
        raise ProtocolError("a worker sent what is no message")

    def _readable(self, link: WorkerLink, env_ids: list[int], infos: dict[int, dict[str, Any]]) -> list[Event]:
        """Return the results of environments of which some have infos that cannot be unpickled: these have failed."""
        unreadable, link.unreadable = link.unreadable, {}
        self._write(link, pickle_frame(("ended", list(unreadable))))  # the worker does not know that they failed
        events: list[Event] = [Done([env_id for env_id in env_ids if env_id not in unreadable], infos)]
        for env_id, (phase, reason) in unreadable.items():
            error = DataError(f"its info cannot be unpickled here: {summary_of(reason)}")
            error.__cause__ = reason
            raised = self._setbacks.raised(env_id, link.number, phase, summary_of(error), error, error)
            events.append(Broken.alone(env_id, raised))
        return events

    def reports(self) -> Sequence[WorkerReport]:
        """Return what workers have said of their time since the last call; ask those that have nothing to do."""
        idle = [link for link in self._links if link is not None and not link.is_busy and not link.at_end]
        for link in idle:
            self._write(link, pickle_frame(("report",)))
        deadline = time.monotonic() + _REPORT_SECONDS
        for link in idle:
            n_reports = len(self._reports)
            while len(self._reports) == n_reports:
                message = link.next_message(max(0.0, deadline - time.monotonic()))
                if message is None:
                    break  # it has died, which is noticed later, or is stopped
                self._pending += self._event(link, *message)
        reports, self._reports = self._reports, []
        return reports

    def pids(self) -> list[int | None]:
        """Return the workers' process ids; None for one that is to be started again."""
        return [None if link is None else link.child.pid for link in self._links]

    # ------------------------------------------------------------------ failures

    def interrupted(self, waiting: Collection[int]) -> Sequence[Broken]:  # noqa: ARG002 - all of them are lost
        """End all workers: a message may have been read or written in part."""
        self._pending, self._link_of, self._poller = [], {}, select.poll()
        for number, link in enumerate(self._links):
            if link is not None:
                link.end()
            self._links[number] = None
        error = InterruptedError("a call was interrupted in the middle, and its workers are replaced")
        return [Broken(ids, error, number, is_new=True) for number, ids in enumerate(self._envs_of)]

    def _lost(self, link: WorkerLink) -> Broken:
        """Give up a worker that died or hangs; a new one is started when its environments are needed."""
        env_id, _ = running_env(int(self.rows.running[link.number]))
        self._forget(link)
        error = self._ended(link)
        spent = error.quota is not None
        return Broken(self._envs_of[link.number], error, link.number, env_id, is_new=True, is_final=spent)
