"""Serve the harness in a contender's process: report ready, measure on request, end on request.

    PYTHON -m benchmarks.contenders.NAME WORKLOAD [--processes 2] [--set key=value ...]

with a checkout of this project as the current directory. The protocol, one JSON object a line:

==================================  ====================================================================================
from the contender, once            `{"ready": true, "versions": {"numpy": "2.0", …}}` when its workers are warm;
                                    `{"unsupported": "why"}` if it cannot do this workload;
                                    `{"failed": "why"}` if it broke
to the contender, again and again   `{"seconds": 2.0}`, `{"timesteps": 5000}`, or what its question needs
its answers                         `{"timesteps": n, "trajectories": k, "seconds": wall, …}`
to the contender, at the end        `{"stop": true}`, or the end of the stream
==================================  ====================================================================================

Its `timesteps` are those that it delivered: environment steps that a learner can use. Steps that only reset an
environment, or that are thrown away, do not count. What libraries print goes to stderr.

A contender's module looks like this::

    from contextlib import contextmanager
    from benchmarks.harness.contender import serve

    @contextmanager
    def contender(workload, n_processes, settings):
        collector = start(workload.make_env, workload.make_agent(), n_processes, **settings)
        def measure(request):
            begin = time.perf_counter()
            ...
            return {"timesteps": n, "trajectories": k, "seconds": time.perf_counter() - begin}
        try:
            yield measure
        finally:
            collector.close()

    if __name__ == "__main__":
        serve(contender, packages=["numpy", "gymnasium"])

Python 3.8, numpy and gymnasium only.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

from benchmarks.problems.marks import SCRATCH
from benchmarks.problems.workloads import WORKLOADS, Workload

__all__ = ["Measure", "Unsupported", "repeated", "serve"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Measure = Callable[[dict[str, Any]], dict[str, Any]]
    Contender = Callable[[Workload, int, dict[str, Any]], AbstractContextManager[Measure]]
else:
    Measure = Any  # Python 3.8 has no subscripts for these


class Unsupported(Exception):
    """This contender cannot do this workload; the message says why, in a few words."""


def serve(contender: Contender, packages: list[str] | None = None) -> None:
    """Run a contender by the protocol; its module's main function.

    Args:
        contender: Given the workload, the number of processes and the settings, returns a context manager for the
            function that measures.
        packages: The distributions whose versions are reported.
    """
    # Whatever libraries print must not get between the answers, so stdout becomes stderr for all but this file.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**contents: Any) -> None:
        answers.write(json.dumps(contents) + "\n")
        answers.flush()

    workload, n_processes, settings = _arguments()
    try:
        with _scratch(), contender(workload, n_processes, settings) as measure:
            answer(ready=True, versions=_versions(packages or []))
            _answer_requests(measure, answer)
    except Unsupported as why:
        answer(unsupported=str(why))
    except Exception as error:
        traceback.print_exc()
        answer(failed=f"{type(error).__name__}: {error}")
        sys.exit(1)


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    """Return a folder for marks, where the harness has not made one."""
    if SCRATCH in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SCRATCH] = folder
        yield


def _arguments() -> tuple[Workload, int, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--processes", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload]
    settings = {}
    for item in arguments.set:
        key, _, text = item.partition("=")
        settings[key] = _value(text)
    return workload, arguments.processes or workload.n_processes, settings


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _versions(packages: list[str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def _answer_requests(measure: Measure, answer: Callable[..., None]) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("stop"):
            return
        answer(**measure(request))


def repeated(collect: Callable[[], tuple[int, int]]) -> Measure:
    """Make a measuring function of one that collects a batch.

    Args:
        collect: Collects once, and returns the numbers of timesteps and trajectories.

    Returns:
        Measures: collects again and again until the request's `seconds` or `timesteps` are reached. The time between
        the collecting calls counts.
    """

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        timesteps = trajectories = calls = 0
        begin = now = time.perf_counter()
        while now - begin < seconds and timesteps < enough:
            more_timesteps, more_trajectories = collect()
            timesteps, trajectories, calls = timesteps + more_timesteps, trajectories + more_trajectories, calls + 1
            now = time.perf_counter()
        return {"timesteps": timesteps, "trajectories": trajectories, "seconds": now - begin, "calls": calls}

    return measure
