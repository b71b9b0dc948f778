"""Fragments: 200 kills over 50 calls at random instants, and every batch equals the undisturbed one.

For each case (kind of worker, agent with memory, filters or none, 1, 2, 3 and 7 workers) parameters change from call to
call, and sometimes the agent. Workers are killed by SIGKILL between calls and, by a thread, within calls: while they
start, restore episodes, run, and send. So are processes that have environments alone. A `LocalSampler` with one worker,
whom nobody disturbs, says what must come out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamsampler import DefaultWorker, LocalSampler, VecWorker
from streamsampler.errors import SamplerError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.fragments.agents import Drawn, Fleeting, Mixing, Recurrent, Sticky
from tests.proofs._engines import kept_open, make_sampler

_SCALES = {"short": (4, 8), "long": (50, 200)}  # calls, kills
_ENVS = 25
_WORKERS = (1, 2, 3, 7)


@dataclass(frozen=True)
class Case:
    """What is sampled.

    Attributes:
        worker_class: The kind of worker.
        agent: The class of the agent.
        filtered: Whether observations and rewards are filtered.
        n_workers: How many workers the disturbed sampler has.
        in_parent: Whether its agent is in this process, and the workers have environments alone.
    """

    worker_class: Any
    agent: Any
    filtered: bool
    n_workers: int
    in_parent: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options of both samplers."""
        options: dict[str, Any] = {"seed": 1000 + self.n_workers, "worker_class": self.worker_class}
        if self.worker_class is VecWorker:
            options["worker_args"] = {"n_envs": _ENVS if self.in_parent else 3}
        if self.filtered:
            options |= {"observation_filter": RunningNorm(clip=5.0), "reward_filter": RunningReturnNorm(0.9)}
        return options

    def call(self, sampler: Any, number: int) -> Any:
        """Make a call, which depends on its number."""
        dice = random.Random(number)
        update: Any = np.array([0.0, 0.1 * dice.random(), 0.3, dice.random() - 0.5])
        if dice.random() < 0.1:
            update = self.agent()
        return sampler.obtain_fragments(dice.choice([1, 9, 40]), _ENVS, agent_update=update)


CASES = [
    Case(worker_class, agent, filtered, n_workers)
    for worker_class, agent, filtered in (
        (DefaultWorker, Recurrent, False),
        (DefaultWorker, Recurrent, True),
        (VecWorker, Drawn, False),
        (VecWorker, Mixing, True),
        (VecWorker, Recurrent, True),
    )
    for n_workers in _WORKERS
]
IN_PARENT = [
    Case(VecWorker, agent, filtered, n_workers, in_parent=True)
    for agent, filtered in ((Drawn, False), (Fleeting, True), (Recurrent, True))
    for n_workers in _WORKERS
]


class Killer:
    """Kills a sampler's workers, each process once.

    Args:
        sampler: The sampler.
        dice: Draws whom, and when.

    Attributes:
        killed: The processes.
        n_within: How many of them were killed within calls.
    """

    def __init__(self, sampler: Any, dice: random.Random) -> None:
        self._sampler, self._dice = sampler, dice
        self.killed: set[int] = set()
        self.n_within = 0

    def kill(self) -> bool:
        """Kill a worker that was not killed before; return whether there was one."""
        with contextlib.suppress(SamplerError, OSError):
            alive = [pid for pid in self._sampler.worker_pids() if pid and pid not in self.killed]
            if alive and os.getsid(pid := self._dice.choice(alive)) >= 0:
                os.kill(pid, signal.SIGKILL)
                self.killed.add(pid)
                return True
        return False

    @contextlib.contextmanager
    def within(self, most: int) -> Any:
        """Kill at random instants while the block runs.

        Args:
            most: How many workers at most.
        """
        over = threading.Event()

        def disturb() -> None:
            left = most
            while left and not over.wait(self._dice.choice([0.001, 0.01, 0.05]) * self._dice.random()):
                if self.kill():
                    left, self.n_within = left - 1, self.n_within + 1

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def run_case(case: Case, n_calls: int, n_kills: int, tally: Counter[str], engine: str | None = None) -> None:
    """Make calls of both samplers until there are enough calls and kills, and compare.

    Args:
        case: What is sampled.
        n_calls: How many calls at least.
        n_kills: How many kills, exactly.
        tally: Where it is counted what happened.
        engine: The engine; None for the default one of processes.

    Raises:
        AssertionError: A batch differs.
    """
    options = {**case.options, "max_restarts": None, "max_lifetime_restarts": None}
    if case.in_parent:
        options["inference"] = "parent"
    number = 0
    with (
        LocalSampler(case.agent(), Sticky, **case.options) as reference,
        make_sampler(case.agent(), Sticky, n_workers=case.n_workers, engine=engine, **options) as sampler,
    ):
        dice = random.Random(case.n_workers)
        killer = Killer(sampler, dice)
        while number < n_calls or len(killer.killed) < n_kills:
            expected = case.call(reference, number)
            due = min(n_kills, -(-n_kills * (number + 1) // n_calls))
            for _ in range(dice.randint(0, max(0, due - len(killer.killed)) // 2)):
                killer.kill()
            with killer.within(due - len(killer.killed)):
                found = case.call(sampler, number)
            assert found == expected, f"{case}, call {number}: {found!r}, not {expected!r}"
            number += 1
        tally["restarts"] += sampler.stats.restarts
    tally["calls"] += number
    tally["kills"] += len(killer.killed)
    tally["kills within calls"] += killer.n_within


def prove(scale: str, engine: str | None = None) -> None:
    """Run all cases, with 200 kills over 50 calls of each in the long form.

    Args:
        scale: "short" or "long".
        engine: The engine; None for the default one of processes.
    """
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    tally: Counter[str] = Counter()
    n_calls, n_kills = _SCALES[scale]
    cases = CASES if engine else CASES + IN_PARENT
    with kept_open(engine):
        for case in cases:
            run_case(case, n_calls, n_kills, tally, engine)
    print(f"{len(cases)} cases: {dict(tally)}")
    assert tally["kills"] == n_kills * len(cases)
    assert tally["kills within calls"] > tally["kills"] / 4
