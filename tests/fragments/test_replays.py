"""Episodes of fragments are run again: from their resets with recorded actions, or with the agent where they began."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryBatch, VecWorker, replay
from streamsampler.errors import UsageError
from streamsampler.filters import RunningNorm
from tests.fragments.agents import Offset, Recurrent, Sticky
from tests.tiers import mostly_slow

SEED = 3
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


def three_calls(sampler: Any) -> list[Any]:
    return [sampler.obtain_fragments(9, 4, agent_update=np.array([0.0, 0.1, 0.3, 0.2 * call])) for call in range(3)]


@pytest.mark.parametrize("options", mostly_slow([TWO, {"observation_filter": RunningNorm()}]))
def test_recorded_actions_lead_to_the_end_of_each_part(options):
    with LocalSampler(Recurrent(), Sticky, seed=SEED, **options) as sampler:
        batches = three_calls(sampler)
        everything, lengths = TrajectoryBatch.concatenate(batches), dict[int, int]()
        for one in (one for batch in batches for one in batch):
            index, version = int(one.indices[0]), int(one.agent_versions[0])
            found = sampler.replay(version, index, recorded=everything, actions=True)
            assert found.same, str(found)
            lengths[index] = lengths.get(index, 0) + one.n_timesteps
            assert len(found.recorded.rewards) == lengths[index]
            for whole in () if one.cut[0] else (found.trajectory, found.recorded):
                assert whole.episode_lengths.tolist() == one.episode_lengths.tolist() == [lengths[index]]
                assert whole.episode_returns.tolist() == pytest.approx(one.episode_returns.tolist())
            assert replay(everything, index, version=version, env=Sticky, actions=True).same
    assert batches[2].continued.any()
    assert batches[2].cut.any()


def test_what_differs_is_found_in_the_part_where_it_is():
    with LocalSampler(Recurrent(), Sticky, seed=SEED) as sampler:
        batches = three_calls(sampler)
        row = int(np.flatnonzero(batches[1].continued & (batches[1].lengths > 2))[0])
        wrong = batches[1].rewards.copy()
        wrong[batches[1].starts[row] + 1] += 1.0
        changed = TrajectoryBatch.concatenate(batches[0], dataclasses.replace(batches[1], rewards=wrong))
        index = int(batches[1].indices[row])
        found = sampler.replay(2, index, recorded=changed, actions=True)
        before = int(batches[0].lengths[np.flatnonzero(batches[0].indices == index)[0]])
        assert found.difference is not None
        assert (found.difference.what, found.difference.timestep) == ("reward", before + 1)


def test_parts_that_began_in_a_call_are_run_again_with_the_agent():
    with LocalSampler(Recurrent(), Offset, seed=SEED, max_episode_length=20) as sampler:
        sampler.obtain_fragments(9, 4, reset_options={"offset": [1.0]})
        batch = sampler.obtain_fragments(50, 4, reset_options={"offset": [2.0]})
        began = [one for one in batch if not one.continued[0]]
        assert any(one.cut[0] for one in began)
        assert any(one.terminated[0] or one.truncated[0] for one in began)
        for one in began:
            index = int(one.indices[0])
            assert sampler.replay(2, index, recorded=batch).same
            given: dict[str, Any] = {"max_episode_length": 20, "reset_options": {"offset": [2.0]}}
            assert replay(batch, index, agent=Recurrent(), env=Offset, **given).same
        some = batch.cut & ~batch.continued
        first = sampler.replay(2, int(batch.indices[some][0]), recorded=batch, agent=Recurrent((-50.0,) * 4))
        assert first.difference is not None
        assert "another agent" in str(first)


def test_what_cannot_be_replayed_says_what_is_missing():
    with LocalSampler(Recurrent(), Sticky, seed=SEED) as sampler:
        batches = three_calls(sampler)
        index = int(batches[2].indices[batches[2].continued][0])
        with pytest.raises(UsageError, match="pass recorded=batch"):
            sampler.replay(3, index)
        for again in (
            lambda: sampler.replay(3, index, recorded=batches[2]),
            lambda: replay(batches[2], index, agent=Recurrent(), env=Sticky),
        ):
            with pytest.raises(
                UsageError, match="started in an earlier call, with other parameters: pass actions=True"
            ):
                again()
        with pytest.raises(UsageError, match="the batch has only its parts of agent versions 3"):
            sampler.replay(3, index, recorded=batches[2], actions=True)
    with LocalSampler(Recurrent(), Sticky, seed=SEED, **TWO) as sampler:
        batch = sampler.obtain_fragments(9, 4)
        with pytest.raises(UsageError, match="side by side with others can only be replayed without the agent"):
            sampler.replay(1, 0, recorded=batch)
        with pytest.raises(UsageError, match="side by side with others can only be replayed without the agent"):
            replay(batch, 0, agent=Recurrent(), env=Sticky, **TWO)
