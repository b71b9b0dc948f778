"""Worker processes with environments: their start, what they are given, and their end."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.descriptors import close_fd, own_fd
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import GRACE_SECONDS
from streamsampler.engines.processes.shared_memory import anonymous_file
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.errors import RemoteTraceback, RolloutError, WorkerError
from streamsampler.protocol.messages import Phase
from streamsampler.scheduling.restarts import Policy
from streamsampler.serialization import dumps, loads
from streamsampler.stepping.env_spaces import EnvSpaces
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.links import WorkerLink
from streamsampler.stepping.parameter_sets import NumberedParameters
from streamsampler.stepping.rows import Rows, buffer_rows, bytes_needed
from streamsampler.stepping.running import IDLE, running_env
from streamsampler.stepping.setbacks import Setbacks
from streamsampler.stepping.stepper import Stepper
from streamsampler.stepping.time_limits import TimeLimits
from streamsampler.stepping.transport import Event, Transport, warn_of_unclosed
from streamsampler.stepping.wire import PICKLE, pickle_frame

__all__ = ["WorkerPool", "original_of"]


_n_forks = 0  # between the first process of the program and this one: asking for the process id takes longer


def _count_fork() -> None:
    global _n_forks
    _n_forks += 1


os.register_at_fork(after_in_child=_count_fork)


class WorkerPool(Transport):
    """Starts worker processes when they are needed, and ends them.

    Args:
        updates: What makes each environment.
        n_workers: How many processes there are; environment e lives in process e * n_workers // n_envs.
        new_stepper: Makes what runs the environments of a process, from their updates and the number of the process.
        policy: Quotas, and which exceptions count.
        limits: How long a worker may take.
        start_method: How processes are started.
        threads: How many threads libraries compute on in a worker.
    """

    def __init__(
        self, updates: Mapping[int, Any], n_workers: int, new_stepper: Callable[[Any, int], Stepper], policy: Policy,
        limits: TimeLimits, start_method: StartMethod, threads: int | None,
    ) -> None:  # fmt: skip
        n_envs = len(updates)
        self._updates = updates
        self._new_stepper = new_stepper
        self._limits = limits
        self._start_method = start_method
        self._threads = threads
        self._worker_of = [env_id * n_workers // n_envs for env_id in range(n_envs)]
        self._envs_of = [[e for e in range(n_envs) if self._worker_of[e] == w] for w in range(n_workers)]
        self._links: list[WorkerLink | None] = [None] * n_workers
        self._setbacks = Setbacks(policy, self._envs_of)
        self._options: dict[int, dict[str, Any] | None] = {}
        self._parameters: dict[int, NumberedParameters] = {}
        self._reports: list[WorkerReport] = []
        self._pending: list[Event] = []
        self._opened = contextlib.ExitStack()
        self._owner = _n_forks
        self._poller = select.poll()
        self._link_of: dict[int, WorkerLink] = {}
        self._close = weakref.finalize(self, _end_all, self._links, self._opened, policy.close_timeout, self._owner)

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """Start the workers, all at once, and let each make its environments."""
        make_room(len(self._links))
        self._setup_fd = self._own(anonymous_file("streamsampler-setup"))
        self._write_setup(self._updates)
        self._rows_fd = self._own(anonymous_file("streamsampler-rows"))
        self._stacks_fd, self._stacks_write_fd = map(self._own, os.pipe())
        os.set_blocking(self._stacks_fd, False)
        for number in range(len(self._links)):
            self._links[number] = self._new_link(number)
        spaces = [pair for link in self._links if link is not None for pair in self._spaces_of(link)]
        self.spaces = EnvSpaces(spaces)
        observation_space, action_space = self.spaces.observation[0], self.spaces.action[0]
        n_envs = len(self._worker_of)
        size = bytes_needed(observation_space, action_space, n_envs)
        os.ftruncate(self._rows_fd, size)
        if hasattr(os, "posix_fallocate"):  # a full machine is an OSError here, and not a SIGBUS in a step
            os.posix_fallocate(self._rows_fd, 0, size)
        self.rows = Rows(observation_space, action_space, n_envs, buffer_rows(mmap.mmap(self._rows_fd, size)))
        for link in self._links:
            if link is not None:
                self._begin(link)

    def _write_setup(self, updates: Mapping[int, Any]) -> None:
        """Write what workers are given at their start."""
        by_worker = {w: {e: updates[e] for e in ids} for w, ids in enumerate(self._envs_of)}
        payload = dumps((by_worker, self._new_stepper), "the environment").owned()
        setup = ProcessSetup.of_this_process(payload, 0, self._threads)
        os.ftruncate(self._setup_fd, 0)
        with open(self._setup_fd, "wb", closefd=False) as file:
            file.seek(0)
            file.write(pickle.dumps(setup, protocol=5))

    def _own(self, fd: int) -> int:
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def _new_link(self, number: int) -> WorkerLink:
        fds = [self._setup_fd, self._rows_fd, self._stacks_write_fd]
        return WorkerLink(self._start_method, number, fds, self._stacks_fd, self._threads)

    def _spaces_of(self, link: WorkerLink) -> list[tuple[Any, Any]]:
        """Wait until a worker has made its environments; return their spaces."""
        message = link.next_message(self._limits.construction)
        if message is None:
            self._links[link.number] = None
            raise self._ended(link)
        kind, *about = pickle.loads(message[1])
        if kind == "spaces":
            link.is_making = False
            spaces: list[tuple[Any, Any]] = loads(about[0])
            return spaces
        raise self._raised(link, *about)

    def _begin(self, link: WorkerLink) -> None:
        """Let a worker open its rows when it has made its environments, and listen to it."""
        rows = self.rows
        options = {e: self._options[e] for e in self._envs_of[link.number] if e in self._options}
        parameters = {e: self._parameters[e] for e in self._envs_of[link.number] if e in self._parameters}
        spaces = rows.observation_space, rows.action_space
        given = dumps((*spaces, options, parameters), "the spaces, options and parameters of environments").owned()
        link.write(pickle_frame(("rows", len(self._worker_of), given)))
        for fd in link.filenos():
            self._poller.register(fd, select.POLLIN)
            self._link_of[fd] = link

    def _link(self, number: int) -> WorkerLink:
        """Return the link to a worker; start the worker again if it has ended, without waiting for it."""
        link = self._links[number]
        if link is None:
            link = self._links[number] = self._new_link(number)
            self._begin(link)
        return link

    def _write(self, link: WorkerLink, frame: bytes) -> None:
        if not link.is_busy:
            link.since = time.monotonic()
        link.write(frame)
        if link.unsent and link.commands_fd not in self._link_of:
            self._poller.register(link.commands_fd, select.POLLOUT)
            self._link_of[link.commands_fd] = link

    # ------------------------------------------------------------------ losses

    def _forget(self, link: WorkerLink) -> None:
        for fd in [fd for fd, known in self._link_of.items() if known is link]:
            self._poller.unregister(fd)
            del self._link_of[fd]
        self._links[link.number] = None

    def _ended(self, link: WorkerLink) -> WorkerError:
        """End a worker that died or hangs, and return the error."""
        env_id, phase = None, Phase.ENV_CONSTRUCTION
        if not link.is_making:
            env_id, phase = running_env(int(self.rows.running[link.number]))
            self.rows.running[link.number] = IDLE  # whoever wrote it is gone
        # A worker that has closed its pipe is about to end.
        if link.child.ended(GRACE_SECONDS if link.at_end else 0):
            return self._setbacks.died(link.number, link.end(), phase, env_id)
        stack = link.stacks()
        link.end()
        return self._setbacks.hung(link.number, stack, phase, env_id)

    def _raised(
        self, link: WorkerLink, env_id: int, phase: str, summary: str, text: str, pickled: bytes | None
    ) -> RolloutError:
        cause = RemoteTraceback(text or summary)
        return self._setbacks.raised(env_id, link.number, phase, summary, cause, original_of(pickled))

    # ------------------------------------------------------------------ the end

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it."""
        return self._owner == _n_forks

    def close(self) -> None:
        """End the workers; may be repeated."""
        self._close()


def original_of(pickled: bytes | None) -> BaseException | None:
    """Return an exception that could be pickled; None where it cannot be unpickled here."""
    try:
        return None if pickled is None else pickle.loads(pickled)
    except Exception:  # anything: it is user code
        return None


def _warn_of_unclosed(link: WorkerLink) -> None:
    with contextlib.suppress(Exception):  # after an interruption anything may be on its way
        for kind, data in link.take()[0]:
            if kind == PICKLE and (message := pickle.loads(data))[0] == "unclosed":
                for env_id, summary in message[1].items():
                    warn_of_unclosed(env_id, summary)


def _end_all(links: list[WorkerLink | None], opened: contextlib.ExitStack, timeout: float, owner: int) -> None:
    """Let workers close their environments, and end them, in the process that has started them.

    In a forked copy of it the numbers of the descriptors may belong to other files.
    """
    if owner != _n_forks:
        return
    running = [link for link in links if link is not None]
    for link in running:
        link.write(pickle_frame(("exit",)))
    deadline = time.monotonic() + timeout
    try:
        for link in running:
            link.drain(deadline)
            if link.child.ended(max(0.0, deadline - time.monotonic())):
                _warn_of_unclosed(link)
    finally:  # also where Ctrl-C ends the waiting
        for link in running:
            link.end()
        links[:] = [None] * len(links)
        opened.close()
