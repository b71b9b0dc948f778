"""A worker process whose environments are stepped from the parent."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from streamsampler.engines.launch.child import ignore_terminal
from streamsampler.engines.processes.stacks import answer_with_stacks
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.serialization import loads
from streamsampler.stepping.rows import Rows, buffer_rows
from streamsampler.stepping.stepper import Stepper
from streamsampler.stepping.wire import IDS, FrameReader, ids_frame, ids_in, pickle_frame
from streamsampler.workers.explain import summary_of
from streamsampler.workers.tracebacks import traceback_of

__all__ = ["main"]

_TOGETHER_SECONDS = 1e-4
"""Results that are there wait for others for this long at most, so that one wake-up of the parent serves several."""


def main(number: int, fds: Sequence[int]) -> None:
    """Run a worker until it is to exit.

    Args:
        number: The worker number.
        fds: Descriptors of: commands, answers, the pipe at whose end the kernel kills this process, the setup, rows,
            the pipe for stacks.
    """
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork would inherit a handler of the user's program
    commands_fd, answers_fd, _, setup_fd, rows_fd, stacks_fd = fds
    answer_with_stacks(stacks_fd)
    setup: ProcessSetup = pickle.loads(mmap.mmap(setup_fd, 0, access=mmap.ACCESS_READ))
    threads = setup.apply()
    updates, autoreset = loads(setup.make_worker)
    stepper = Stepper(updates[number], number, autoreset)
    _Worker(stepper, commands_fd, answers_fd, rows_fd, threads.hold).run()


class _Worker:
    def __init__(
        self, stepper: Stepper, commands_fd: int, answers_fd: int, rows_fd: int, limit_threads: Callable[[], None]
    ) -> None:
        self._stepper = stepper
        self._reader = FrameReader(commands_fd)
        self._answers_fd = answers_fd
        self._rows_fd = rows_fd
        self._limit_threads = limit_threads
        self._seconds: dict[int, float] = {}  # what a step of each environment takes, on the average
        self._done: list[int] = []
        self._infos: dict[int, bytes] = {}
        self._sent_at = 0.0

    def run(self) -> None:
        """Carry out messages until there are no more."""
        try:
            spaces = self._stepper.make()
        except Exception as error:
            self._write(pickle_frame(("failed", None, "construction", *_about(error))))
            return
        self._limit_threads()
        self._write(pickle_frame(("spaces", spaces)))
        while (messages := self._reader.read()) is not None:
            for kind, data in messages:
                if kind == IDS:
                    self._steps(ids_in(data))
                elif not self._carry_out(*pickle.loads(data)):
                    self._stepper.close()
                    return

    def _carry_out(self, kind: str, *arguments: Any) -> bool:
        match kind:
            case "rows":
                self._open_rows(*arguments)
            case "reset":
                self._resets(*arguments)
            case "request":
                self._request(*arguments)
            case "exit":
                return False
        return True

    def _open_rows(self, observation_space: Any, action_space: Any, n_envs: int, options: dict[int, Any]) -> None:
        rows = Rows(observation_space, action_space, n_envs, buffer_rows(mmap.mmap(self._rows_fd, 0)))
        self._stepper.rows = rows
        for env_id, of_one in options.items():
            self._stepper.set_options(env_id, of_one)

    def _steps(self, env_ids: list[int]) -> None:
        seconds, step = self._seconds, self._stepper.step
        now = self._sent_at = perf_counter()
        for env_id in env_ids:
            expected = seconds.get(env_id, 0.0)
            if self._done and now + expected - self._sent_at > _TOGETHER_SECONDS:
                self._send_done()
                self._sent_at = now
            self._run(env_id, "step", step)
            before, now = now, perf_counter()
            seconds[env_id] = expected + 0.1 * (now - before - expected)
        self._send_done()

    def _resets(self, env_ids: list[int], options: dict[int, Any]) -> None:
        for env_id in env_ids:
            if env_id in options:
                self._stepper.set_options(env_id, options[env_id])
            self._run(env_id, "reset", self._stepper.reset)
            self._send_done()

    def _run(self, env_id: int, phase: str, carry_out: Callable[[int], dict[str, Any]]) -> None:
        try:
            info = carry_out(env_id)
            if info:
                self._infos[env_id] = pickle.dumps(info, protocol=5)
        except Exception as error:
            self._send_done()
            self._write(pickle_frame(("failed", env_id, phase, *_about(error))))
        else:
            self._done.append(env_id)

    def _send_done(self) -> None:
        if self._infos:
            self._write(pickle_frame(("infos", self._infos)))
            self._infos = {}
        if self._done:
            self._write(ids_frame(self._done))
            self._done = []

    def _request(self, env_ids: list[int], kind: str, name: str, arguments: list[Any]) -> None:
        try:
            answer = pickle_frame(
                (
                    "values",
                    [self._stepper.request(it, kind, name, arg) for it, arg in zip(env_ids, arguments, strict=True)],
                )
            )
        except Exception as error:
            answer = pickle_frame(("raised", env_ids, *_about(error)))
        self._write(answer)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._answers_fd, view) :]


def _about(error: BaseException) -> tuple[str, str, bytes | None]:
    """Return an exception in one line, its traceback, and the exception itself where it can be pickled."""
    try:
        pickled: bytes | None = pickle.dumps(error)
        pickle.loads(pickled or b"")
    except Exception:
        pickled = None
    return summary_of(error), traceback_of(error), pickled
