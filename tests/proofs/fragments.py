"""Fragments: 200 kills over 50 calls of each of 44 cases, and every batch equals the undisturbed one.

Parameters change from call to call, and sometimes the agent. Workers are killed by SIGKILL between calls and, at random
instants, within calls: while they start, restore episodes, run, and send. So are processes that have environments
alone. In some cases hooks keep what they see of an episode. A `LocalSampler` with one worker, which nobody disturbs,
says what must come out.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from streamsampler import Limits, LocalSampler, VecWorker
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.fragments.agents import Sticky
from tests.fragments.test_hooks import Diary
from tests.proofs._engines import kept_open, make_sampler
from tests.proofs._kills import disturbed
from tests.proofs._programs import Fleeting, Keeping, Mixed, Rows

_ENVS, _N_WORKERS = 25, (1, 2, 3, 7)
_SIDE_BY_SIDE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
_IN_PARENT: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": _ENVS}}
_FILTERS = {"observation_filter": RunningNorm(clip=5.0), "reward_filter": RunningReturnNorm(0.9)}
_HOOKS: dict[str, Any] = {"hooks": Diary(), "max_episode_length": 20}
_CASES: list[tuple[Any, dict[str, Any]]] = [
    *((Keeping, {}), (Keeping, _FILTERS)),
    *((Rows, _SIDE_BY_SIDE), (Mixed, _SIDE_BY_SIDE | _FILTERS), (Keeping, _SIDE_BY_SIDE | _FILTERS)),
    *((Rows, _IN_PARENT), (Fleeting, _IN_PARENT | _FILTERS), (Keeping, _IN_PARENT | _FILTERS)),
    *((Keeping, _HOOKS), (Rows, _SIDE_BY_SIDE | _HOOKS | _FILTERS), (Fleeting, _IN_PARENT | _HOOKS)),
]


def call(sampler: Any, agent: Any, number: int) -> Any:
    """Make a call, which depends on its number."""
    dice = random.Random(number)
    update: Any = (dice.randrange(9),) if dice.random() < 0.9 else agent(dice.randrange(9))
    return sampler.obtain_fragments(dice.choice([1, 9, 40]), _ENVS, agent_update=update)


def run_case(agent: Any, n_workers: int, options: dict[str, Any], n_calls: int, n_kills: int, engine: Any) -> int:
    """Make calls until there are enough calls and kills, and compare; return how many were killed within calls."""
    options = {"seed": 1000 + n_workers, **options}
    disturbing: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None), "engine": engine}
    if options.get("worker_args") == _IN_PARENT["worker_args"]:
        disturbing["inference"] = "parent"
    number, n_within, dice, killed = 0, 0, random.Random(n_workers), list[int]()
    sampler: Any

    def pauses() -> Iterator[float]:
        while len(killed) < due:
            yield dice.choice([0.001, 0.01, 0.05]) * dice.random()

    with (
        LocalSampler(agent(), Sticky, **options) as local,
        make_sampler(agent(), Sticky, n_workers=n_workers, **options, **disturbing) as sampler,
    ):
        while number < n_calls or len(killed) < n_kills:
            expected, due = call(local, agent, number), min(n_kills, -(-n_kills * (number + 1) // n_calls))
            alive = [pid for pid in sampler.worker_pids() if pid and pid not in killed]
            for pid in dice.sample(alive, min(len(alive), dice.randint(0, (due - len(killed) + 1) // 2))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            n_within -= len(killed)
            with disturbed(sampler.worker_pids, dice, pauses(), killed=killed):
                found = call(sampler, agent, number)
            n_within += len(killed)
            assert found == expected, f"{agent}, {n_workers} workers, {options}, call {number}: {found!r}"
            assert found.stats.metrics == expected.stats.metrics
            number += 1
    return n_within


def prove(scale: str, engine: str | None = None) -> None:
    """Run all cases on an engine, with 200 kills over 50 calls of each in the long form."""
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    n_calls, n_kills = (50, 200) if scale == "long" else (4, 8)
    cases = [case for case in _CASES if not (engine and case[1].get("worker_args") == _IN_PARENT["worker_args"])]
    tally: Counter[str] = Counter()
    with kept_open(engine):
        for n_workers in _N_WORKERS if scale == "long" else [3]:
            for agent, options in cases:
                n_within = run_case(agent, n_workers, options, n_calls, n_kills, engine)
                tally.update({"cases": 1, "kills": n_kills, "kills within calls": n_within})
    print(dict(tally))
    assert tally["kills within calls"] > tally["kills"] / 4
