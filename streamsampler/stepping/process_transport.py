"""Step environments in worker processes.

::

                      rows: actions, seeds ─▶            ◀─ observations, rewards, ends
    ┌─────────┐                                                                  ┌──────────┐
    │ manager │─── commands: which environments to step, resets (pipe) ─────────▶│ worker w │
    │         │◀── answers: finished environments, infos (pipe) ─────────────────│          │
    └─────────┘                                                                  └──────────┘

All rows lie in an anonymous memory file, each with a single writer. A message wakes the other end for a group of
environments. Nothing is locked; a step pickles only non-empty infos and values without a fixed size (see
`stepping.carried_values`). Processes are started, watched and ended by the samplers' engines: `processes`, as drawn
here, or `queues`, with queues for the pipes and the rows' contents in the messages.
"""

from __future__ import annotations

import logging
import pickle
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from streamsampler.core.errors import (
    DataError,
    ProtocolError,
    RemoteTraceback,
    RolloutError,
    SerializationError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.core.settings import ProcessSettings
from streamsampler.engines.base import Died
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.hangs import HangWatch
from streamsampler.protocol.losses import Losses, Policy, cause_of_death, unready
from streamsampler.protocol.messages import Phase
from streamsampler.samplers.failures import unpickled
from streamsampler.stepping.carried_values import step_frame, unpacked_result
from streamsampler.stepping.env_messages import EnvReport, EnvsFailed, RequestsDone, Restored
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.failures import EnvErrors, count_loss
from streamsampler.stepping.frames import IDS, LOG, PICKLE, ids_in, pickle_frame, request_frame
from streamsampler.stepping.links import EnvLink, EnvPool, NewPool
from streamsampler.stepping.parameter_sets import NumberedParameters
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces
from streamsampler.stepping.server import EnvServer
from streamsampler.stepping.transport import Transport, UnansweredError, warn_of_unclosed
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import summary_of
from streamsampler.workers.logs import handle_records, levels_here

NewServer = Callable[[Any, int, WorkerRow], EnvServer]
"""Makes the server of a process's environments, from their updates, the worker number and the worker's row."""

_LOG = logging.getLogger("streamsampler")

_REPORT_SECONDS = 1.0
"""How long to wait for the reports of idle workers."""

_LONGEST_SLEEP = 1e6
"""Seconds of the longest sleep: the system accepts at most 2**31 milliseconds. Longer waits sleep again."""

_WATCHED = (Phase.RESET, Phase.ENV_CONSTRUCTION)
"""Phases with a time limit of their own; all others have the limit of steps."""


class ProcessTransport(Transport):
    """Carries requests to worker processes, and starts lost ones again when they are needed.

    Environment e lives in process e * n_workers // n_envs. `watch` finds hung workers; None without a time limit.
    """

    _pool: EnvPool[Any]

    def __init__(
        self, updates: Mapping[int, Any], n_workers: int, new_server: NewServer, policy: Policy,
        watch: HangWatch | None, threads: int | None, restart_wait: float = 0.0, *, new_pool: NewPool,
    ) -> None:  # fmt: skip
        n_envs = len(updates)
        self._updates = updates
        self._new_server, self._new_pool = new_server, new_pool
        self._watch = watch
        self._threads = threads
        self._close_timeout, self._restart_wait = policy.close_timeout, restart_wait
        self._worker_of = [env_id * n_workers // n_envs for env_id in range(n_envs)]
        self._envs_of = [[e for e in range(n_envs) if self._worker_of[e] == w] for w in range(n_workers)]
        self._everyone = list(range(n_envs))
        self._all_by_worker = list(enumerate(self._envs_of))
        self.losses = Losses(policy, n_workers)
        self._errors = EnvErrors(policy, self._envs_of)
        self._options: dict[int, dict[str, Any] | None] = {}
        self._parameters: dict[int, NumberedParameters] = {}
        self._reports: list[WorkerReport] = []
        self._pending: list[EnvReport] = []
        self._hangs: dict[int, Hang] = {}

    def start(self) -> None:
        self._pool = self._new_pool(self._given(self._updates), len(self._envs_of), self._threads, self._close_timeout)
        self._close = weakref.finalize(self, _end, self._pool)
        self._settings = ProcessSettings.of_this_process(), levels_here()
        while True:
            self._await(lambda: all(link.spaces is not None or link.error is not None for link in self._pool))
            broken = [event for event in self._pending if isinstance(event, EnvsFailed)]
            if not broken:
                break
            self._pending = [event for event in self._pending if not isinstance(event, EnvsFailed)]
            self._start_lost(broken)
        self.spaces = EnvSpaces([pair for link in self._pool for pair in loads(link.spaces)])
        self.rows = self._pool.new_rows(self.spaces)
        for link in self._pool:
            self._begin(link)

    def _start_lost(self, broken: Sequence[EnvsFailed]) -> None:
        for event in broken:
            is_spent = count_loss(event.error, self.losses)
            if is_spent or event.is_final or isinstance(event.error, WorkerHungError):
                raise event.error
        for event in broken:
            assert isinstance(event.error, WorkerError)
            _LOG.warning("%s; a new one takes its place", event.error.what)
        self._await(lambda: False, self._restart_wait)
        for event in broken:
            self._pool.restart(event.worker_number)

    def _given(self, updates: Mapping[int, Any]) -> Payload:
        by_worker = {w: {e: updates[e] for e in ids} for w, ids in enumerate(self._envs_of)}
        return dumps((by_worker, self._new_server), "the environment").owned()

    def _begin(self, link: EnvLink) -> None:
        ids = self._envs_of[link.number]
        options = {e: self._options[e] for e in ids if e in self._options}
        parameters = {e: self._parameters[e] for e in ids if e in self._parameters}
        given = self.spaces, self.rows.slots, options, parameters, self._pickled_settings()
        link.write(pickle_frame(("rows", dumps(given, "the spaces, options and parameters of environments").owned())))

    def _link(self, number: int) -> EnvLink:
        """Return the link to a worker; start a dead worker again, without waiting for it.

        Until it may start, its messages are kept.
        """
        link: EnvLink = self._pool[number]
        if not (link.ended and link.is_reported):
            return link
        if link.start_at > time.monotonic():
            link.held = [] if link.held is None else link.held
            return link
        self._pool.restart(number)
        new: EnvLink = self._pool[number]
        self._begin(new)
        new.inherit(link)
        return new

    def _seconds_to_start(self, limit: float | None) -> float | None:
        """Return how long to wait: at most until a needed worker may start."""
        times = [link.start_at for link in self._pool if link.held is not None]
        if times:
            seconds = max(0.0, min(times) - time.monotonic())
            limit = seconds if limit is None else min(seconds, limit)
        return limit

    def _start_due(self) -> None:
        now = time.monotonic()
        for ended in [link for link in self._pool if link.held is not None and link.start_at <= now]:
            self._link(ended.number)

    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:
        for number, ids in self._by_worker(env_ids):
            self._post(number, ids, step_frame(self.rows, ids, together=together))

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        self._options.update(options)
        for number, ids in self._by_worker(env_ids):
            of_these = dumps({e: options[e] for e in ids if e in options}, "the options of a reset").owned()
            self._post(number, ids, pickle_frame(("reset", ids, of_these, self.rows.carried_seeds(ids))))

    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        of_env = {order.env_id: order for order in orders}
        for number, ids in self._by_worker(list(of_env)):
            link = self._link(number)
            orders_of_one = dumps([of_env[env_id] for env_id in ids], "the orders to restore environments").owned()
            link.write(pickle_frame(("restore", orders_of_one)))
            link.restoring.update(ids)

    def release(self, env_ids: Sequence[int]) -> None:
        for number, ids in self._by_worker(env_ids):
            link = self._link(number)
            link.write(pickle_frame(("release", ids)))
            link.waiting.difference_update(ids)  # it has ignored their steps

    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        had = {env_id: self._options.pop(env_id, None) for env_id in env_ids}
        for number, ids in self._by_worker(env_ids):
            self._pool[number].write(pickle_frame(("options", dumps(dict.fromkeys(ids), "no options").owned())))
        return had

    def send_settings(self) -> None:
        if (settings := (ProcessSettings.of_this_process(), levels_here())) != self._settings:
            self._settings = settings
            frame = pickle_frame(("settings", self._pickled_settings()))
            for link in self._pool:
                link.write(frame)

    def _pickled_settings(self) -> Payload:
        return dumps(self._settings, "the settings of this process").owned()

    def _by_worker(self, env_ids: Sequence[int]) -> list[tuple[int, list[int]]]:
        if len(env_ids) == len(self._everyone) and env_ids == self._everyone:
            return self._all_by_worker
        grouped: dict[int, list[int]] = {}
        worker_of = self._worker_of
        for env_id in env_ids:
            grouped.setdefault(worker_of[env_id], []).append(env_id)
        return list(grouped.items())

    def _post(self, number: int, env_ids: list[int], frame: bytes) -> None:
        link = self._link(number)
        link.write(frame)
        link.waiting.update(env_ids)

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        of_one = dict(zip(env_ids, arguments, strict=True))
        if kind == "parameters":
            self._parameters.update(of_one)  # for later starts
        by_worker = self._by_worker(env_ids)
        frames = [request_frame(ids, kind, name, [of_one[env_id] for env_id in ids]) for _, ids in by_worker]
        for (number, ids), frame in zip(by_worker, frames, strict=True):
            self._send_request(number, ids, frame)
        self._await(lambda: not any(self._pool[number].requested for number, _ in by_worker))
        values, lost = self._answered(by_worker, name)
        if lost is not None and kind != "parameters":  # a new worker has the parameters from its start
            raise UnansweredError(lost, values)
        return [values.get(env_id) for env_id in env_ids]

    def _send_request(self, number: int, env_ids: list[int], frame: bytes) -> None:
        link = self._link(number)
        link.write(frame)
        link.requested, link.answer = env_ids, None
        if link.error is not None and not link.is_reported:
            link.requested = []  # it has ended

    def _answered(
        self, by_worker: Sequence[tuple[int, list[int]]], name: str
    ) -> tuple[dict[int, Any], WorkerError | None]:
        values: dict[int, Any] = {}
        self.tried = tried = dict[int, bool]()
        raised: Exception | None = None
        lost: WorkerError | None = None
        for number, env_ids in by_worker:
            link = self._pool[number]
            if link.answer is None:
                lost = lost or link.error
                continue
            try:
                values.update(zip(env_ids, self._values(number, link.answer, env_ids, name, tried), strict=True))
            except Exception as error:  # other workers answered, too
                raised = raised or error
        if raised is not None:
            raise raised
        return values, lost

    def _values(
        self, number: int, answer: tuple[Any, ...], env_ids: list[int], name: str, tried: dict[int, bool]
    ) -> list[Any]:
        kind, *about = answer
        tried.update(about[0] if kind == "raised" else dict.fromkeys(env_ids, False))
        if kind == "raised":
            _, summary, _, pickled = about
            original = self._original(summary, pickled)
            # Any other exception would end the caller's program.
            raise original if isinstance(original, Exception) else self._raised(number, env_ids[0], name, *about[1:])
        try:
            values: list[Any] = loads(about[0])
        except Exception as error:
            of = ", ".join(map(str, env_ids))
            what = f"the results of {name} of environments {of} cannot be unpickled here: {summary_of(error)}"
            raise SerializationError(what) from error
        return values

    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:
        deadline = None if timeout is None else time.monotonic() + timeout
        by_worker = self._by_worker(awaited) if awaited else ()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            limit, link = (0.0, None) if self._pending else (left, self._first_at_work(by_worker))
            events, self._pending = self._pending + self._turn(limit, collects=True, awaited=link), []
            if events or (left is not None and left <= 0):
                self._mark_reported(events)
                return events

    def receive_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        while True:
            n_done, infos = 0, dict[int, dict[str, Any]]()
            for event in self._pending:
                if not isinstance(event, RequestsDone):
                    return None
                n_done += len(event.env_ids)
                infos.update(event.infos)
            if n_done == n:
                self.in_critical_section, self._pending = True, []
                return infos
            self._pending += self._turn(None, collects=True, awaited=self._first_at_work(self._all_by_worker))

    def _first_at_work(self, by_worker: Sequence[tuple[int, list[int]]]) -> EnvLink | None:
        for number, ids in by_worker:
            link: EnvLink = self._pool[number]
            if not link.waiting.isdisjoint(ids):
                return link
        return None

    def _mark_reported(self, events: Sequence[EnvReport]) -> None:
        for event in events:
            if isinstance(event, EnvsFailed) and event.is_new:
                self._pool[event.worker_number].is_reported = True

    def _await(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Receive messages until `done` or the time is up; keep events for `collect`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._pending += self._turn(left)

    def _turn(
        self, timeout: float | None, *, collects: bool = False, awaited: EnvLink | None = None
    ) -> list[EnvReport]:
        """Sleep until a worker sends a message or dies, for at most `timeout` seconds; kill hung workers.

        With `collects`, an interrupted sleep leaves nothing half done.
        """
        watch = self._watch
        limit = timeout if watch is None else min(watch.interval, watch.interval if timeout is None else timeout)
        if self._restart_wait:
            limit = self._seconds_to_start(limit)
        limit = None if limit is None else min(limit, _LONGEST_SLEEP)
        began = 0.0 if watch is None else time.monotonic()
        if collects:
            self.in_critical_section = False
        ready = self._pool.sleep(limit, awaited)
        if collects:
            self.in_critical_section = True
        events: list[EnvReport] = []
        for said in self._pool.read(ready):
            events += self._lost(said) if isinstance(said, Died) else self._event(*said)
        if self._restart_wait:
            self._start_due()
        if watch is not None and limit is not None and watch.is_due(limit, time.monotonic() - began):
            self._kill_hung(watch)
        return events

    def _kill_hung(self, watch: HangWatch) -> None:
        rows, seen = {}, {}
        for link in self._pool:
            if link.is_busy and not link.ended:
                progress = seen[link.number] = self._pool.board.progress(link.number)
                phase = Phase.ENV_CONSTRUCTION if link.is_making else progress.phase
                doing = phase if phase in _WATCHED else Phase.STEP
                rows[link.number] = link.stillness, (progress, link.n_moved), doing
        for number, seconds in watch.look(rows)[1].items():
            self._hangs[number] = Hang(seen[number], seconds, self._pool.stacks(number))
            self._pool.kill_worker(number)

    def _event(self, number: int, kind: int, data: bytes) -> list[EnvReport]:
        link = self._pool[number]
        link.stillness.reset()
        if kind == IDS:
            return self._done(link, list(ids_in(data)), {})
        if kind == LOG:
            handle_records(number, data)
            return []
        message = pickle.loads(data)
        return [] if self._keep_message(link, message) else self._outcome(link, message)

    def _keep_message(self, link: EnvLink, message: Any) -> bool:
        """Keep a message that is no environment's outcome; return whether it was kept."""
        match message:
            case ("spaces", spaces):
                link.is_making, link.spaces = False, spaces
                self.losses.forget(unready(link.number))
            case ("values" | "raised", *_):
                link.requested, link.answer = [], message
            case ("report", report):
                self._reports.append(WorkerReport(*report))
            case ("unclosed", raised):
                warn_of_unclosed(raised)
            case ("draws", *about):
                self._warn_of_draws(*about)
            case _:
                return False
        return True

    def _outcome(self, link: EnvLink, message: Any) -> list[EnvReport]:
        match message:
            case ("done", env_ids, infos):
                return self._done(link, env_ids, infos)
            case ("failed", env_id, "its construction" as phase, *about):
                self._pool.discard_worker(link)
                return self._end(link, self._raised(link.number, env_id, phase, *about), is_final=True)
            case ("failed", env_id, phase, *about):
                link.waiting.discard(env_id)
                link.restoring.discard(env_id)
                return [EnvsFailed.alone(env_id, self._raised(link.number, env_id, phase, *about))]
            case ("restored", env_id, n_timesteps, why_not):
                link.restoring.discard(env_id)
                return [Restored(env_id, n_timesteps, why_not)]
        raise ProtocolError(f"worker {link.number} sent an unknown message: {message!r:.80}")

    def _done(self, link: EnvLink, env_ids: list[int], infos: Mapping[int, tuple[str, bytes]]) -> list[EnvReport]:
        """Return results; those failing to unpickle are failures.

        `infos` has the parts of results outside the rows: the phase, and the pickle.
        """
        link.waiting.difference_update(env_ids)
        readable: dict[int, Any] = {}
        unreadable: list[int] = []
        failed: list[EnvReport] = []
        for env_id, (phase, info) in infos.items():
            try:
                result = unpacked_result(self.rows, env_id, info)
            except Exception as reason:  # any error: this runs user code
                what = "its observation or info" if self.rows.observations_have_objects else "its info"
                error = DataError(f"{what} cannot be unpickled here: {summary_of(reason)}")
                error.__cause__ = reason
                raised = self._errors.raised(env_id, link.number, phase, summary_of(error), error, error)
                failed.append(EnvsFailed.alone(env_id, raised))
                unreadable.append(env_id)
            else:
                if result:
                    readable[env_id] = result
        if not failed:
            return [RequestsDone(env_ids, readable)]
        link.write(pickle_frame(("ended", unreadable)))  # the worker does not know these failures
        return [RequestsDone([env_id for env_id in env_ids if env_id not in unreadable], readable), *failed]

    def reports(self) -> Sequence[WorkerReport]:
        idle = [link for link in self._pool if not (link.is_busy or link.ended)]
        for link in idle:
            link.write(pickle_frame(("report",)))
        n_before = len(self._reports)
        # Workers that die or stop meanwhile do not answer; the time limit covers the stopped ones.
        self._await(lambda: len(self._reports) - n_before >= sum(not link.ended for link in idle), _REPORT_SECONDS)
        reports, self._reports = self._reports, []
        return reports

    def pids(self) -> list[int | None]:
        """Return the workers' process ids; None for a worker to be started again."""
        links = getattr(self, "_pool", ())  # another thread may ask before the start
        return [None if link.ended else link.pid for link in links]

    def interrupted(self, waiting: Collection[int]) -> Sequence[EnvsFailed]:  # noqa: ARG002 - all of them are lost
        """End all workers: a message may be half read or written."""
        self._pending = []
        for link in self._pool:
            self._pool.discard_worker(link)
        error = InterruptedError("a call was interrupted in the middle, and its workers are replaced")
        events = [EnvsFailed(ids, error, number, is_new=True) for number, ids in enumerate(self._envs_of)]
        self._mark_reported(events)
        return events

    def _lost(self, death: Died) -> list[EnvReport]:
        """Return the failure of a dead worker's environments; its replacement starts when they are needed."""
        link, hang = self._pool[death.worker], self._hangs.pop(death.worker, None)
        seen = self._pool.board.progress(link.number) if hang is None else hang.progress
        phase = Phase.ENV_CONSTRUCTION if link.is_making else seen.phase
        culprit = None if link.is_making else seen.trajectory
        if hang is not None:
            error = self._errors.hung(link.number, hang, phase, culprit)
        else:
            what = death.why or cause_of_death(death.exitcode)
            error = self._errors.died(link.number, death.exitcode, what, phase, culprit)
        return self._end(link, error, culprit, is_final=death.hopeless)

    def _end(self, link: EnvLink, error: WorkerError, culprit: int | None = None, *, is_final: bool) -> list[EnvReport]:
        link.error = error
        link.start_at = time.monotonic() + self._restart_wait if self._restart_wait else 0.0
        link.forget()
        return [EnvsFailed(self._envs_of[link.number], error, link.number, culprit, is_new=True, is_final=is_final)]

    def _raised(
        self, number: int, env_id: int, phase: str, summary: str, text: str, pickled: bytes | None
    ) -> RolloutError:
        cause = RemoteTraceback(text or summary)
        return self._errors.raised(env_id, number, phase, summary, cause, self._original(summary, pickled))

    def _original(self, summary: str, pickled: bytes | None) -> BaseException | None:  # noqa: ARG002 - for a subclass
        return unpickled(pickled)

    @property
    def is_ours(self) -> bool:
        return self._pool.is_ours

    def close(self) -> None:
        if hasattr(self, "_close"):
            _end(self._pool, read_answers=not self.in_critical_section)
            self._close.detach()


def _end(pool: EnvPool[Any], *, read_answers: bool = True) -> None:
    """Let workers close their environments, and end them; log exceptions of `close`."""
    for said in pool.close(read_answers=read_answers):
        if isinstance(said, Died):
            continue
        if said.kind == LOG:
            handle_records(said.worker, said.data)
        elif said.kind == PICKLE and (message := pickle.loads(said.data))[0] == "unclosed":
            warn_of_unclosed(message[1])
