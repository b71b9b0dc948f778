"""Start a contender's process, freeze it, let it measure, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.harness import processes
from benchmarks.problems.marks import SCRATCH

__all__ = ["BENCHMARKS", "ROOT", "Broken", "Contender", "FragmentEnvs", "start_all"]

BENCHMARKS = Path(__file__).resolve().parent.parent
ROOT = BENCHMARKS.parent
_LIBRARY = "streamsampler"
_START_SECONDS = 180.0
_SLACK_SECONDS = 120.0


class Broken(Exception):
    """This contender cannot go on; the message says why, in a few words."""


@dataclass(frozen=True)
class Contender:
    """Describe a contender.

    Attributes:
        name: The contender's name in tables.
        module: Its module in `contenders`.
        settings: The arguments of `--set`.
        peer: Whether it is another library, in a virtual environment of its own.
        n_processes: How many processes step environments; None leaves that to the workload.
        checkout: Another checkout of this project, to measure its library with the same contender; None for this one.
    """

    name: str
    module: str
    settings: dict[str, Any] = field(default_factory=dict)
    peer: bool = False
    n_processes: int | None = None
    checkout: Path | None = None

    def python(self) -> str:
        """Return the interpreter that runs the contender.

        A peer's is `.venvs/MODULE`, or that of the library alone (`.venvs/torchrl` serves `torchrl_sync`).

        Raises:
            Broken: It is not installed.
        """
        if not self.peer:
            return sys.executable
        words = self.module.split("_")
        for n_words in range(len(words), 0, -1):
            venv = BENCHMARKS / ".venvs" / "_".join(words[:n_words])
            # Left by `contenders.peers`, next to what is there of the environment.
            failed, python = venv.with_suffix(".failed"), venv / "bin" / "python"
            if failed.exists():
                raise Broken(f"not installed: {failed.read_text().strip()}")
            if python.exists():
                return str(python)
        raise Broken("not installed: run python -m benchmarks peers")

    def command(self, workload: str) -> list[str]:
        """Return the command line.

        Raises:
            Broken: It is not installed.
        """
        if not (BENCHMARKS / "contenders" / f"{self.module}.py").exists():
            raise Broken("there is no such contender")
        if self.checkout is not None and not (self.checkout / _LIBRARY).is_dir():
            raise Broken(f"there is no {_LIBRARY} in {self.checkout}")
        command = [self.python(), "-m", f"benchmarks.contenders.{self.module}", workload]
        if self.n_processes is not None:
            command += ["--processes", str(self.n_processes)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command


class FragmentEnvs:
    """A contender's process, ready to measure; frozen, but while it measures.

    A frozen process does not notice that the harness has ended. So SIGTERM ends the harness by SystemExit from now
    on, and the harness ends its contenders on the way out.

    Args:
        contender: The contender.
        workload: The workload's name.

    Attributes:
        versions: Of Python and of the packages that matter.
        start_seconds: How long it took to be ready.

    Raises:
        Broken: It cannot do this workload, or it failed or took too long.
    """

    def __init__(self, contender: Contender, workload: str) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit)
        self.contender = contender
        command = contender.command(workload)
        self._folder = tempfile.mkdtemp(prefix="benchmark-")
        self._mark = uuid.uuid4().hex
        self._errors = Path(self._folder) / "stderr"
        begin = time.perf_counter()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                **self._place(contender.checkout),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        self._unread = b""
        self._pids: list[int] = []
        try:
            self.versions: dict[str, str] = self._answer(_START_SECONDS)["versions"]
            self.start_seconds = time.perf_counter() - begin
            self._freeze()
        except BaseException:
            self.end(kindly=False)
            raise

    def _place(self, checkout: Path | None) -> dict[str, Any]:
        """Return the folder and the variables to run with: these benchmarks, and the library of the checkout.

        The current directory comes first, then the path, then what is installed. Workers look for the library in the
        path, and not through links.
        """
        variables = {**os.environ, processes.MARK: self._mark, SCRATCH: self._folder}
        if checkout is None:
            return {"cwd": ROOT, "env": variables}
        code = Path(self._folder, "code")
        code.mkdir()
        (code / BENCHMARKS.name).symlink_to(BENCHMARKS)
        return {"cwd": code, "env": {**variables, "PYTHONPATH": str(checkout.resolve())}}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let the process run, and measure once.

        Returns:
            Its answer, with the seconds of CPU time of all its processes as `cpu`.

        Raises:
            Broken: It failed or took too long. Then it is not frozen.
        """
        # As little as possible lies between the thaw and its measurement's beginning, and between that one's end and
        # the freeze: contenders whose workers need not be asked go on there, and it counts as theirs. So the request
        # waits for its reader, and CPU time is read while all processes stand still.
        before = processes.cpu_seconds(self._pids)
        self._send(request)
        self._thaw()
        answer = self._answer(5 * request.get("seconds", 0.0) + _SLACK_SECONDS)
        self._freeze()
        return {**answer, "cpu": processes.cpu_seconds(self._pids) - before}

    def _freeze(self) -> None:
        self._pids = processes.freeze(self._process.pid, self._mark, self._pids)

    def _thaw(self) -> None:
        processes.thaw(self._process.pid, self._pids)

    def end(self, *, kindly: bool = True) -> int:
        """End the process; a second call does nothing.

        Returns:
            How many processes had to be killed.
        """
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return 0
        if kindly:
            # Not just those it knows of: an interrupt may have come between freezing and taking note of it.
            root = self._process.pid
            processes.thaw(root, processes.processes_of(root, self._mark))
            with contextlib.suppress(Broken, subprocess.TimeoutExpired):
                self._send({"stop": True})
                self._process.wait(20)
        left = processes.end(self._process.pid, self._mark)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise Broken(self._last_words()) from None

    def _answer(self, seconds: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line(seconds))
        for kind in ("unsupported", "failed"):
            if kind in answer:
                raise Broken(f"{kind}: {answer[kind]}")
        return answer

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise Broken(f"no answer within {seconds:.0f} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise Broken(self._last_words())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return f"ended: {lines[-1][:200]}" if lines else "ended without a word"


def _exit(signal_number: int, _frame: Any) -> NoReturn:
    sys.exit(128 + signal_number)


def start_all(contenders: Sequence[Contender], workload: str) -> tuple[dict[str, FragmentEnvs], dict[str, str]]:
    """Start contenders one after the other.

    Returns:
        Those that run, and the others with the reasons.
    """
    running: dict[str, FragmentEnvs] = {}
    broken: dict[str, str] = {}
    try:
        for contender in contenders:
            try:
                running[contender.name] = FragmentEnvs(contender, workload)
            except Broken as why:
                broken[contender.name] = str(why)
    except BaseException:
        for started in running.values():
            started.end(kindly=False)
        raise
    return running, broken
