"""Whether a call fails, and for which trajectory, is a function of the seed: 600 calls, 150 streams, many samplers.

One in 80 trajectories raises, so that most calls have one within reach, which they need or do not need. Each sampler
makes the same calls, and each outcome, a batch or an error, must be the one of a `LocalSampler`, bit for bit.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, WorkerError
from tests.scripted.agents import above_half
from tests.scripted.failing import Brittle

SEED = 2024
ONE_IN = 80


class EitherWay(Brittle):
    """Raises in `step`, or in `reset`."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        if self.left == self.wrong_at + 1 and self.np_random.random() < 0.3:
            self.fail()
        return result


ENV = partial(EitherWay, 24, ONE_IN)


@dataclass
class Tally:
    """What was found.

    Attributes:
        calls: By number of workers: how many calls, streams, errors, and outcomes that differ.
        differences: What differs, in words.
    """

    calls: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


def tried(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except WorkerError as error:
        original = getattr(error, "original", None)
        return type(error).__name__, error.trajectory, error.phase, str(original)


def streamed(sampler: Any, n_most: int) -> list[Any]:
    """What a stream hands out until it raises, or its consumer has had enough."""
    found: list[Any] = []
    stream = sampler.stream()
    while len(found) < n_most and not (found and isinstance(found[-1], tuple)):
        found.append(tried(next, stream))
    stream.close()
    return found


def outcomes(sampler: Any, n_calls: int, n_streams: int) -> list[Any]:
    """The outcomes of a fixed sequence of calls and streams, which goes on after each error."""
    dice = random.Random(SEED)
    kinds = ["samples"] * (n_calls - n_calls // 3) + ["trajectories"] * (n_calls // 3) + ["stream"] * n_streams
    dice.shuffle(kinds)
    found: list[Any] = []
    with sampler:
        for kind in kinds:
            if kind == "samples":
                found.append(tried(sampler.obtain_samples, 300))
            elif kind == "trajectories":
                found.append(tried(sampler.obtain_trajectories, dice.randint(1, 60)))
            else:
                found.append(streamed(sampler, dice.randint(1, 300)))
    return found


def compare(name: str, workers: list[int], n_calls: int, n_streams: int, tally: Tally, **options: Any) -> None:
    """Make the same calls on a `LocalSampler`, twice, and on processes."""
    local: Any = partial(LocalSampler, above_half, ENV, seed=SEED, **options)
    expected = outcomes(local(), n_calls, n_streams)
    samplers = {f"{name}, local": local, f"{name}, local as 3": partial(local, n_workers=3)} | {
        f"{name}, {n} workers": partial(MultiprocessingSampler, above_half, ENV, seed=SEED, n_workers=n, **options)
        for n in workers
    }
    for title, make in samplers.items():
        counter = tally.calls[title] = Counter()
        for number, (one, other) in enumerate(zip(expected, outcomes(make(), n_calls, n_streams), strict=True)):
            counter["streams" if isinstance(one, list) else "calls"] += 1
            last = one[-1] if isinstance(one, list) else one
            counter["errors"] += isinstance(last, tuple)
            if one != other:
                counter["different"] += 1
                tally.differences.append(f"{title}, call {number}: {shown(other)} instead of {shown(one)}")
        print(f"{title}: " + ", ".join(f"{n} {what}" for what, n in counter.items()), flush=True)


def shown(outcome: Any) -> str:
    if isinstance(outcome, list):
        return f"a stream of {len(outcome)}, the last {shown(outcome[-1])}"
    return str(outcome) if isinstance(outcome, tuple) else repr(outcome)


def prove(scale: str) -> None:
    """Compare outcomes; "long" makes 600 calls and 150 streams on each of 1, 2, 3 and 8 workers."""
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    long = scale == "long"
    tally = Tally()
    workers = [1, 2, 3, 8] if long else [1, 3, 8]
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    compare("raise", workers, *((600, 150) if long else (40, 10)), tally)
    compare("drop", workers, *((300, 75) if long else (20, 5)), tally, on_failure="drop")
    # Each of these losses replaces a process.
    restarts: dict[str, Any] = {"restart_on": OSError, "max_restarts": 2, "restart_window": None}
    compare("restart_on", workers if long else [3], *((60, 15) if long else (8, 2)), tally, **restarts)
    compare("blocks", workers if long else [3], *((300, 75) if long else (20, 5)), tally, **vec)
    assert not tally.differences, "\n".join(tally.differences[:20])
    errors = sum(counter["errors"] for counter in tally.calls.values())
    assert errors > 10, f"{errors} errors show nothing"
    assert issubclass(RolloutError, WorkerError)
