"""Run loops in one process per core, forked, and started together by a pipe each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness.contender import Measure

__all__ = ["Loop", "all_at_once", "batch_after_batch"]

Loop = Callable[[float, int], tuple[int, int, float]]
"""Runs for so many seconds, or until so many timesteps; gives timesteps, trajectories and seconds it took."""


def batch_after_batch(collect: Callable[[], tuple[int, int]]) -> Loop:
    """Make a loop of a function that collects a batch and returns its timesteps and trajectories."""

    def loop(seconds: float, enough: int) -> tuple[int, int, float]:
        timesteps = trajectories = 0
        now = start = time.perf_counter()
        while now - start < seconds and timesteps < enough:
            n, ended = collect()
            timesteps, trajectories = timesteps + n, trajectories + ended
            now = time.perf_counter()
        return timesteps, trajectories, now - start

    return loop


@contextmanager
def all_at_once(n_processes: int, make_loop: Callable[[int], Loop]) -> Iterator[Measure]:
    """Fork the processes, and return the function that measures them.

    A process ends a measurement at a trajectory's end, so each has its own time. Their speeds are added, and `seconds`
    is the time of all timesteps at that speed: that of processes that never wait for each other.
    """
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for number in range(n_processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make_loop, number), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    assert [pipe.recv() for pipe in pipes] == ["ready"] * n_processes

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        share = request.get("timesteps", 2**62) / n_processes
        for pipe in pipes:
            pipe.send((request.get("seconds", 1e9), share))
        results = [pipe.recv() for pipe in pipes]
        timesteps = sum(result[0] for result in results)
        speed = sum(result[0] / result[2] for result in results)
        return {
            "timesteps": timesteps,
            "trajectories": sum(result[1] for result in results),
            "seconds": timesteps / speed,
        }

    try:
        yield measure
    finally:
        # Closing would not do: the processes forked later hold the earlier pipes' other ends.
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(10)


def _serve(pipe: Connection, make_loop: Callable[[int], Loop], number: int) -> None:
    loop = make_loop(number)
    loop(0.2, 2**62)
    pipe.send("ready")
    while (request := pipe.recv()) is not None:
        pipe.send(loop(*request))
