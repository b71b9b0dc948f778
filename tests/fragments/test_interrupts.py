"""Ctrl-C in a call for fragments: the next one begins new episodes, the same for any number of workers."""

from __future__ import annotations

from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.samplers.call import Call
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.session import Session
from tests.faults.test_interrupts import raise_once
from tests.fragments.agents import Restorable, Sticky

SEED = 4
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
PLACES = [(Session, "begin_fragments"), (Call, "pump"), (FragmentLedger, "take"), (Call, "complete")]


def four_calls(sampler: Any, monkeypatch: Any, place: Any) -> list[Any]:
    """Return the batches of four calls, of which the second one is interrupted."""
    first = sampler.obtain_fragments(9, 3)
    with monkeypatch.context() as patch:
        owner, method = place
        raise_once(patch, owner, method, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(9, 3)
    return [first, *(sampler.obtain_fragments(9, 3) for _ in range(2)), sampler.agent_version]


@pytest.mark.parametrize("options", [{}, pytest.param(TWO, marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.slow
def test_an_interrupted_call(place, options, monkeypatch):
    with LocalSampler(Restorable(), Sticky, seed=SEED, **options) as sampler:
        first, second, third, version = expected = four_calls(sampler, monkeypatch, place)
    assert first.cut.any()
    assert not second.continued.any()
    assert second.seeds[0] != first.seeds[0]
    assert third.continued.any()
    assert version == (3 if place == PLACES[0] else 4)
    with MultiprocessingSampler(Restorable(), Sticky, seed=SEED, n_workers=2, **options) as sampler:
        assert four_calls(sampler, monkeypatch, place) == expected


class Interrupting(Sticky):
    """Interrupts once, in the middle of an episode."""

    left = 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Interrupting.left -= 1
        if Interrupting.left == 0:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("options", [{}, TWO])
def test_an_interrupt_in_an_environment_of_this_process(options):
    with (
        LocalSampler(Restorable(), Interrupting, seed=SEED, check=None, **options) as sampler,
        LocalSampler(Restorable(), Sticky, seed=SEED, n_workers=2, check=None, **options) as reference,
    ):
        for sampled in (sampler, reference):
            sampled.obtain_fragments(9, 3)
        Interrupting.left = 11
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(9, 3)
        reference.obtain_trajectories(1)  # uses up a version, and ends the episodes
        for _ in range(2):
            assert sampler.obtain_fragments(9, 3) == reference.obtain_fragments(9, 3)
