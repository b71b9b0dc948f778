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

import contextlib
import mmap
import os
import pickle
import select
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.descriptors import close_fd, own_fd
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import GRACE_SECONDS
from streamsampler.engines.processes.shared_memory import anonymous_file
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.errors import RemoteTraceback, WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.protocol.messages import Phase
from streamsampler.scheduling.restarts import Incident, Losses, Policy, cause_of_death
from streamsampler.serialization import Payload, dumps
from streamsampler.stepping.links import WorkerLink
from streamsampler.stepping.options import Updates
from streamsampler.stepping.rows import Rows, buffer_rows, bytes_needed
from streamsampler.stepping.serial import raised_error
from streamsampler.stepping.stepper import Autoreset
from streamsampler.stepping.transport import Broken, Done, Transport, common_spaces
from streamsampler.stepping.wire import IDS, ids_frame, ids_in, pickle_frame

__all__ = ["ProcessTransport"]


class ProcessTransport(Transport):
    """Carries requests to worker processes.

    Args:
        updates: What makes each environment.
        n_workers: How many processes there are; environment e lives in process e * n_workers // n_envs.
        autoreset: What becomes of an environment whose episode has ended.
        policy: Time limits and quotas.
        start_method: How processes are started.
        threads: How many threads libraries compute on in a worker.
    """

    def __init__(
        self, updates: Updates, n_workers: int, autoreset: Autoreset, policy: Policy, start_method: StartMethod,
        threads: int | None,
    ) -> None:  # fmt: skip
        n_envs = len(updates)
        self._updates = updates
        self._autoreset = autoreset
        self._policy = policy
        self._start_method = start_method
        self._threads = threads
        self._worker_of = [env_id * n_workers // n_envs for env_id in range(n_envs)]
        self._envs_of = [[e for e in range(n_envs) if self._worker_of[e] == w] for w in range(n_workers)]
        self._links: list[WorkerLink | None] = [None] * n_workers
        self._losses = Losses(policy, n_workers)
        self._began = time.monotonic()
        self._options: dict[int, dict[str, Any] | None] = {}
        self._pending: list[Done | Broken] = []
        self._opened = contextlib.ExitStack()
        self._poller = select.poll()
        self._link_of: dict[int, WorkerLink] = {}
        self._close = weakref.finalize(self, _end_all, self._links, self._opened, policy.close_timeout)

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """Start the workers, all at once, and let each make its environments."""
        make_room(len(self._links))
        by_worker = {w: {e: self._updates[e] for e in ids} for w, ids in enumerate(self._envs_of)}
        payload = dumps((by_worker, self._autoreset), "the environment")
        payload = Payload(payload.data, tuple(bytes(buffer) for buffer in payload.buffers))
        setup = ProcessSetup.of_this_process(payload, 0, self._threads)
        self._setup_fd = self._own(anonymous_file("streamsampler-setup", pickle.dumps(setup, protocol=5)))
        self._rows_fd = self._own(anonymous_file("streamsampler-rows"))
        self._stacks_fd, self._stacks_write_fd = map(self._own, os.pipe())
        os.set_blocking(self._stacks_fd, False)
        for number in range(len(self._links)):
            self._links[number] = self._new_link(number)
        spaces = [pair for link in self._links if link is not None for pair in self._spaces_of(link)]
        observation_space, action_space = common_spaces(spaces)
        n_envs = len(self._worker_of)
        size = bytes_needed(observation_space, action_space, n_envs)
        os.ftruncate(self._rows_fd, size)
        if hasattr(os, "posix_fallocate"):  # a full machine is an OSError here, and not a SIGBUS in a step
            os.posix_fallocate(self._rows_fd, 0, size)
        self.rows = Rows(observation_space, action_space, n_envs, buffer_rows(mmap.mmap(self._rows_fd, size)))
        for link in self._links:
            if link is not None:
                self._begin(link)

    def _own(self, fd: int) -> int:
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def _new_link(self, number: int) -> WorkerLink:
        fds = [self._setup_fd, self._rows_fd, self._stacks_write_fd]
        return WorkerLink(self._start_method, number, fds, self._stacks_fd, self._threads)

    def _spaces_of(self, link: WorkerLink) -> list[tuple[Any, Any]]:
        """Wait until a worker has made its environments; return their spaces."""
        message = link.next_message(self._policy.construction_timeout)
        if message is None:
            phase = Phase.ENV_CONSTRUCTION
            ended = link.child.ended(GRACE_SECONDS if link.at_end else 0)
            raise self._died(link, phase) if ended else self._hung(link, phase)
        kind, *about = pickle.loads(message[1])
        if kind == "spaces":
            spaces: list[tuple[Any, Any]] = about[0]
            return spaces
        raise self._raised(link, self._envs_of[link.number][0], "its construction", *about[2:])

    def _begin(self, link: WorkerLink) -> None:
        """Let a worker that has made its environments open its rows, and listen to it."""
        rows = self.rows
        options = {e: self._options[e] for e in self._envs_of[link.number] if e in self._options}
        link.write(pickle_frame(("rows", rows.observation_space, rows.action_space, len(self._worker_of), options)))
        for fd in link.filenos():
            self._poller.register(fd, select.POLLIN)
            self._link_of[fd] = link

    def _link(self, number: int) -> WorkerLink:
        """Return the link to a worker; start the worker again if it has ended."""
        link = self._links[number]
        if link is None:
            link = self._links[number] = self._new_link(number)
            try:
                self._spaces_of(link)
            except BaseException:
                self._links[number] = None
                link.end()
                raise
            self._begin(link)
        return link

    # ------------------------------------------------------------------ requests

    def step(self, env_ids: Sequence[int]) -> None:
        """Request steps, with one message to each worker."""
        for number, ids in self._by_worker(env_ids):
            self._post(number, ids, ids_frame(ids))

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets."""
        self._options.update(options)
        for number, ids in self._by_worker(env_ids):
            self._post(number, ids, pickle_frame(("reset", ids, {e: options[e] for e in ids if e in options})))

    def _by_worker(self, env_ids: Sequence[int]) -> list[tuple[int, list[int]]]:
        grouped: dict[int, list[int]] = {}
        worker_of = self._worker_of
        for env_id in env_ids:
            grouped.setdefault(worker_of[env_id], []).append(env_id)
        return list(grouped.items())

    def _post(self, number: int, env_ids: list[int], frame: bytes) -> None:
        try:
            link = self._link(number)
        except WorkerError as error:
            self._pending.append(Broken(env_ids, error, number, is_new=True, is_final=True))
            return
        if not link.waiting:
            link.since = time.monotonic()
        link.waiting.update(env_ids)
        link.write(frame)

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out what is no step, one worker after the other."""
        values: dict[int, Any] = {}
        for number, ids in self._by_worker(env_ids):
            link = self._link(number)
            of_one = dict(zip(env_ids, arguments, strict=True))
            link.write(pickle_frame(("request", ids, kind, name, [of_one[e] for e in ids])))
            while True:
                message = link.next_message(self._policy.step_timeout)
                if message is None:
                    raise self._lost(link, Phase.WAITING).error
                if message[0] == IDS or (answer := pickle.loads(message[1]))[0] not in ("values", "raised"):
                    self._pending += self._event(link, *message)
                    continue
                break
            if answer[0] == "raised":
                raise _original(answer[4]) or self._raised(link, ids[0], name, *answer[2:])
            values.update(zip(ids, answer[1], strict=True))
        return [values[env_id] for env_id in env_ids]

    # ------------------------------------------------------------------ results

    def collect(self, timeout: float | None) -> Sequence[Done | Broken]:
        """Return what has happened; sleep until something does, a time limit of a worker passes, or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            events = self._events(0.0 if self._pending else self._patience(left))
            if events or (left is not None and left <= 0):
                return events

    def _patience(self, left: float | None) -> float | None:
        limit = self._policy.step_timeout
        if limit is None:
            return left
        now = time.monotonic()
        until = [link.since + limit - now for link in self._links if link is not None and link.waiting]
        return max(0.0, min([*until, *([] if left is None else [left])])) if until else left

    def _events(self, timeout: float | None) -> list[Done | Broken]:
        events, self._pending = self._pending, []
        ready = self._poller.poll(None if timeout is None else 1000 * timeout)
        for link in dict.fromkeys(self._link_of[fd] for fd, _ in ready):
            messages, ended = link.take()
            for kind, data in messages:
                events += self._event(link, kind, data)
            if ended:
                events.append(self._lost(link, Phase.STEP))
        limit = self._policy.step_timeout
        if limit is not None:
            now = time.monotonic()
            late = [link for link in self._links if link is not None and link.waiting and now - link.since >= limit]
            events += [self._lost(link, Phase.STEP) for link in late]
        return events

    def _event(self, link: WorkerLink, kind: int, data: bytes) -> list[Done | Broken]:
        link.since = time.monotonic()
        if kind == IDS:
            env_ids = ids_in(data)
            link.waiting.difference_update(env_ids)
            infos, link.infos = link.infos, {}  # they came just before
            return [Done(env_ids, infos)]
        message = pickle.loads(data)
        if message[0] == "infos":
            link.infos = {env_id: pickle.loads(info) for env_id, info in message[1].items()}
            return []
        _, env_id, phase, *about = message
        link.waiting.discard(env_id)
        return [Broken([env_id], self._raised(link, env_id, phase, *about), link.number)]

    def pids(self) -> list[int | None]:
        """Return the workers' process ids; None for one that is to be started again."""
        return [None if link is None else link.child.pid for link in self._links]

    # ------------------------------------------------------------------ failures

    def _lost(self, link: WorkerLink, phase: Phase) -> Broken:
        """Give up a worker that died or hangs; a new one is started when its environments are needed."""
        for fd in [fd for fd, known in self._link_of.items() if known is link]:
            self._poller.unregister(fd)
            del self._link_of[fd]
        # A worker that has closed its pipe is about to end.
        ended = link.child.ended(GRACE_SECONDS if link.at_end else 0)
        error = self._died(link, phase) if ended else self._hung(link, phase)
        self._links[link.number] = None
        spent = error.quota is not None
        return Broken(self._envs_of[link.number], error, link.number, is_new=True, is_final=spent)

    def _died(self, link: WorkerLink, phase: Phase) -> WorkerError:
        exitcode = link.end()
        return self._loss(WorkerDiedError, link, cause_of_death(exitcode), phase, exitcode=exitcode)

    def _hung(self, link: WorkerLink, phase: Phase) -> WorkerError:
        stack = link.stacks()
        link.end()
        error = self._loss(WorkerHungError, link, "made no progress, and was killed,", phase, stack=stack)
        error.__cause__ = RemoteTraceback(stack)
        return error

    def _loss(self, kind: type[WorkerError], link: WorkerLink, what: str, phase: Phase, **fields: Any) -> WorkerError:
        seconds = time.monotonic() - self._began
        incident = Incident(link.number, what, phase, None, None, seconds)
        quota = self._losses.add(incident)
        incidents = self._losses.history() if quota is not None else ()
        envs = ", ".join(map(str, self._envs_of[link.number]))
        return kind(
            f"{incident}; in it are environments {envs}", worker_number=link.number, phase=phase, trajectory=None,
            quota=quota, incidents=incidents, **fields,
        )  # fmt: skip

    def _raised(
        self, link: WorkerLink, env_id: int, phase: str, summary: str, text: str, pickled: bytes | None
    ) -> WorkerError:
        error = raised_error(env_id, phase, link.number, summary, RemoteTraceback(text or summary))
        error.original = _original(pickled)
        return error

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the workers; may be repeated."""
        self._close()


def _original(pickled: bytes | None) -> BaseException | None:
    return None if pickled is None else pickle.loads(pickled)


def _end_all(links: list[WorkerLink | None], opened: contextlib.ExitStack, timeout: float) -> None:
    """Let workers close their environments, and end them."""
    running = [link for link in links if link is not None]
    for link in running:
        link.write(pickle_frame(("exit",)))
    deadline = time.monotonic() + timeout
    for link in running:
        link.child.ended(max(0.0, deadline - time.monotonic()))
        link.end()
    links[:] = [None] * len(links)
    opened.close()
