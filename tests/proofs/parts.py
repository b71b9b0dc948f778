"""Parts: evaluations and comparisons of one run and of several parts are the same, byte for byte, under kills.

A case is drawn from one number: how many trajectories, in how many parts, of which environment and kind of worker, on
how many workers. It is run as a whole and in parts; a process that runs one of the parts is killed by SIGKILL at a
random instant, and the part is run again. The parts are merged in random order, also by a merge that is
killed and done again, and compared with the whole.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamsampler
from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, compare, evaluate
from streamsampler.errors import UsageError
from tests.scripted.envs import Nested

_CASES = {"short": 12, "long": 400}


def killed(dice: random.Random, work: Callable[[], object]) -> bool:
    """Do something in a process that is killed at a random instant; return whether it still ran."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            work()
        os._exit(0)
    descriptor = os.pidfd_open(pid)
    runs = not select.select([descriptor], [], [], dice.choice([0.002, 0.02, 0.1]) * dice.random())[0]
    if runs:
        os.kill(pid, signal.SIGKILL)
    os.close(descriptor)
    os.waitpid(pid, 0)
    return runs


def run_case(number: int, folder: Path, tally: Counter[str]) -> None:
    """Run a case as a whole and in parts, and compare."""
    dice = random.Random(number)
    seed, n, block = dice.randrange(10**6), dice.randint(1, 60), dice.choice([0, 0, 0, 1, 2, 5])
    env: Any = "CartPole-v1" if block else Nested
    options: dict[str, Any] = {"seed": seed}
    if block:
        options |= {"worker_class": VecWorker, "worker_args": {"n_envs": block}}
    amount: dict[str, Any] = {"seeds": range(seed, seed + n)} if dice.random() < 0.3 else {"num_trajectories": n}
    n_parts = min(dice.choice([1, 2, 3, 7]), -(-n // (block or 1)))
    compares = dice.random() < 0.5

    def run(part: Any, path: Path) -> None:
        if compares:
            agents = {"random": "random", "first": lambda _: 0}
            compare(agents, env, part=part, n_workers=0, **amount, **options).save(path)
            return
        n_workers = dice.choice([0, 0, 1, 2])
        how = {"n_workers": n_workers, **options} if n_workers else options
        make: Any = MultiprocessingSampler if n_workers else LocalSampler
        with make("random", env, **how) as sampler:
            evaluate(sampler=sampler, part=part, **amount).save(path)

    run(None, folder / "whole")
    parts, victim = [folder / f"part-{one}" for one in range(1, n_parts + 1)], dice.randint(1, n_parts)
    for one, path in enumerate(parts, 1):
        if one == victim:
            tally["kills"] += killed(dice, lambda one=one, path=path: run((one, n_parts), path))  # type: ignore[misc]
        run((one, n_parts), path)
    dice.shuffle(parts)
    if n_parts > 1:
        with pytest.raises(UsageError, match="missing"):
            streamsampler.merge(parts[1:], folder / "x")
    tally["kills"] += killed(dice, lambda: streamsampler.merge(parts, folder / "merged"))
    streamsampler.merge(parts, folder / "merged")
    assert (folder / "merged").read_bytes() == (folder / "whole").read_bytes(), f"case {number}"
    tally.update(cases=1, parts=n_parts)


def prove(scale: str) -> None:
    """Run cases: 400 in the long form."""
    tally: Counter[str] = Counter()
    for number in range(_CASES[scale]):
        with tempfile.TemporaryDirectory() as folder:
            run_case(number, Path(folder), tally)
    print(dict(tally))
