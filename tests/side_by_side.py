"""Run many tests in eight processes side by side: much of their time is spent waiting for other processes.

Each of the eight takes the number of the next file of tests from a pipe that all read, and sends what happened in it
to the process that was started, which reports it as if it had run the tests itself. Where somebody looks into a running
test (`-x`, `--pdb`, `-s`), or with `--one-process`, pytest runs all tests in one process, as usual.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import traceback
from multiprocessing import connection
from time import monotonic
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

__all__ = ["pytest_addoption", "pytest_runtestloop"]

N_PROCESSES = 8  # with four, two cores were idle for a quarter of the time
MANY = 500  # tests; fewer are not worth it
EACH = 5.0  # seconds between two reports of a file's tests: each takes a line
NUMBER = 2  # bytes of a file's number in the pipe


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that switches this off."""
    parser.addoption("--one-process", action="store_true", help="run all tests in one process")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in eight processes, if there are many; else leave them to pytest."""
    option = session.config.option
    looks_into_tests = option.one_process or option.usepdb or option.maxfail or option.capture == "no"
    if looks_into_tests or option.collectonly or session.testsfailed or len(session.items) < MANY:
        return None
    files = [list(items) for _, items in itertools.groupby(session.items, lambda item: item.path)]
    files.sort(key=len, reverse=True)  # or one process is alone with the longest file in the end
    numbers, writing_end = os.pipe()
    os.write(writing_end, b"".join(number.to_bytes(NUMBER, "big") for number in range(len(files))))
    os.close(writing_end)
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    capture = session.config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # a process's own, or each would see what the other one writes
    _begin_properties()
    gc.collect()
    gc.freeze()  # what was collected is never garbage: looking at it again in each process took a tenth of the time
    gc.set_threshold(20_000, 20, 20)  # a parser's trees, for example, are looked through dozens of times by default
    processes = dict(_started(session, files, numbers) for _ in range(N_PROCESSES))
    capture.start_global_capturing()
    capture.suspend_global_capture()  # as pytest does between tests, or what is reported is shown at the end only
    os.close(numbers)
    _relay(session, list(processes.values()))
    for pid in processes:
        os.waitpid(pid, 0)
    return True


@given(st.none())
def _begin_properties(_: None) -> None:
    """Let Hypothesis make its generator before the freeze, after which it would not see who holds it."""


def _started(
    session: pytest.Session, files: list[list[pytest.Item]], numbers: int
) -> tuple[int, connection.Connection]:
    reading, writing = connection.Pipe(duplex=False)
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        reading.close()
        _run(session, files, numbers, writing)
    writing.close()
    return pid, reading


class _Recorder:
    """Record what pytest says of tests, for the process that reports it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.calls = config, []

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.calls.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.calls.append(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.calls.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))


def _run(
    session: pytest.Session, files: list[list[pytest.Item]], numbers: int, writing: connection.Connection
) -> NoReturn:
    """Run one file after the other until none is left, and end this process."""
    plugins, recorder = session.config.pluginmanager, _Recorder(session.config)
    plugins.unregister(name="terminalreporter")
    plugins.register(recorder)
    plugins.getplugin("capturemanager").start_global_capturing()
    protocol = session.config.hook.pytest_runtest_protocol
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of its pool are not in this copy of the process, and would be waited for

    def take() -> list[pytest.Item]:
        number = os.read(numbers, NUMBER)
        return files[int.from_bytes(number, "big")] if number else []

    told = monotonic()
    try:
        items = take()
        while items:
            for item, following in itertools.pairwise(items):
                protocol(item=item, nextitem=following)
                if monotonic() > told + EACH:  # whoever looks at the run sees that it goes on
                    writing.send(recorder.calls)
                    recorder.calls.clear()
                    told = monotonic()
            # What the next file shares with this one is not torn down.
            last, items = items[-1], take()
            protocol(item=last, nextitem=items[0] if items else None)
            writing.send(recorder.calls)
            recorder.calls.clear()
            told = monotonic()
        writing.send(None)
        os._exit(0)
    except BaseException:
        with contextlib.suppress(OSError):  # after Ctrl-C nobody reads it
            writing.send(traceback.format_exc())
        os._exit(1)


def _relay(session: pytest.Session, connections: list[connection.Connection]) -> None:
    """Report what the processes send, file by file, until all have come to their end."""
    unfinished = len(connections)
    while connections:
        for ready in connection.wait(connections):
            assert isinstance(ready, connection.Connection)
            try:
                sent = ready.recv()
            except EOFError:
                connections.remove(ready)
                continue
            if sent is None:
                unfinished -= 1
            elif isinstance(sent, str):  # the traceback of a process that dies
                print(sent, file=sys.stderr)
            else:
                _report(session, sent)
    if unfinished:
        session.shouldfail = "a process that ran tests has died, and did not report the tests of its file"
        raise session.Failed(session.shouldfail)


def _report(session: pytest.Session, calls: list[tuple[str, dict[str, Any]]]) -> None:
    hook = session.config.hook
    for name, arguments in calls:
        if "report" in arguments:
            data = arguments["report"]
            arguments["report"] = hook.pytest_report_from_serializable(config=session.config, data=data)
        getattr(hook, name)(**arguments)
