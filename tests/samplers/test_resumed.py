"""A sampler that has resumed a folder goes on as one that was never interrupted: versions, statistics, batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, sample_to_folder
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm

FILTERS = {"observation_filter": RunningNorm(clip=3.0), "reward_filter": RunningReturnNorm(0.9)}
AMOUNT: dict[str, Any] = {"num_samples": 400, "shard_size": 60}


class Listing:
    """A user's filter, which changes nothing and keeps what each of its merges was given."""

    def __init__(self, merges: tuple[Any, ...] = ()) -> None:
        self.merges = merges

    def apply(self, data: Any) -> Any:
        return data

    def summarise(self, data: Any) -> float:
        return float(data.sum())

    def merge(self, summaries: Any) -> Listing:
        return Listing((*self.merges, tuple(summaries)))


class Stop(Exception):
    """Ends a call."""


def sampled(folder: Path, *, kind: Any = LocalSampler, filters: Any, stop_at: int = 0, **how: Any) -> Any:
    """Sample into a folder, and then what a learner samples next; None if the call is interrupted."""

    def progress(seen: Any) -> None:
        if stop_at and seen.timesteps >= stop_at:
            raise Stop

    with kind("random", "CartPole-v1", seed=3, **filters) as sampler:
        if filters:
            sampler.warm_up(80)
        try:
            sample_to_folder(sampler, folder, **AMOUNT, **how, progress=progress)
        except Stop:
            return None
        after = sampler.filters
        return after, sampler.obtain_samples(100), sampler.agent_version


def agree(one: tuple[Filters, TrajectoryBatch[Any, Any], int], other: Any) -> None:
    assert one[1] == other[1]
    assert one[2] == other[2]
    for name in ("observation", "reward"):
        mine, its = getattr(one[0], name), getattr(other[0], name)
        assert getattr(mine, "merges", mine) == getattr(its, "merges", its)


@pytest.mark.parametrize(
    "filters",
    [
        pytest.param(FILTERS, id="norms"),
        pytest.param({"observation_filter": Listing()}, marks=pytest.mark.slow, id="own"),
        pytest.param({}, marks=pytest.mark.slow, id="none"),
    ],
)
@pytest.mark.slow
def test_what_follows_a_resumed_folder_is_what_follows_a_whole_one(tmp_path: Path, filters: Any) -> None:
    expected = sampled(tmp_path / "whole", filters=filters)
    assert sampled(tmp_path / "cut", filters=filters, stop_at=200) is None
    agree(expected, sampled(tmp_path / "cut", filters=filters, resume=True))
    agree(expected, sampled(tmp_path / "cut", filters=filters, resume=True))  # now there is nothing to sample


def test_with_processes(tmp_path: Path) -> None:
    expected = sampled(tmp_path / "whole", filters=FILTERS)
    assert sampled(tmp_path / "cut", filters=FILTERS, stop_at=200) is None
    agree(expected, sampled(tmp_path / "cut", kind=MultiprocessingSampler, filters=FILTERS, resume=True))
