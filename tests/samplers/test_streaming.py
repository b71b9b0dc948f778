"""Streams: one by one and in portions, and what ends them."""

import gc

import pytest
from gymnasium.spaces import Discrete

from streamsampler import LocalSampler, RandomAgent
from streamsampler.errors import SamplerError, UsageError
from streamsampler.scheduling.plans import Portion


def make_sampler(**options):
    agent = RandomAgent(Discrete(2))
    return LocalSampler(agent, "CartPole-v1", seed=5, **options)


def test_portions_are_what_one_call_returns():
    with make_sampler() as sampler:
        whole = sampler.obtain_trajectories(40)
    seen = []
    with make_sampler(n_workers=3) as sampler:
        with sampler.stream(first_trajectory=7) as stream:
            assert stream.take(Portion(None, 10), lambda *so_far: seen.append(so_far)) == whole[7:17]
            batch = stream.take(Portion(100, None))
        stop = 17 + len(batch)
        assert batch == whole[17:stop]
        assert batch.n_timesteps >= 100 > batch[:-1].n_timesteps
        assert (sampler.stats.kept_trajectories, sampler.agent_version) == (stop - 7, 1)
        assert sampler.obtain_trajectories(1).agent_version == 2
        with pytest.raises(SamplerError, match="stream is closed"):
            stream.take(Portion(1, None))
    assert seen
    assert seen[-1][1] >= 10


def test_what_portions_leave_over_is_iterated_over_next():
    with make_sampler() as sampler:
        whole = sampler.obtain_trajectories(20)
    with make_sampler(n_workers=3) as sampler, sampler.stream() as stream:
        assert stream.take(Portion(None, 3)) == whole[:3]
        assert [next(stream) for _ in range(17)] == list(whole[3:])
        with pytest.raises(UsageError, match="before it is iterated over"):
            stream.take(Portion(None, 1))


def test_a_stream_begins_with_the_first_trajectory_that_is_asked_for():
    with make_sampler() as sampler:
        stream = sampler.stream()
        assert sampler.obtain_trajectories(1).agent_version == 1
        assert next(stream).agent_version == 2


@pytest.mark.parametrize("end", ["close", "delete", "raise"])
def test_a_stream_that_ended_has_stopped_its_call(end):
    with make_sampler() as sampler:
        stream = sampler.stream()
        stream.take(Portion(None, 1))
        arrived = sampler.stats.kept_trajectories
        if end == "close":
            stream.close()
            stream.close()
        elif end == "raise":
            with pytest.raises(ZeroDivisionError):
                stream.take(Portion(None, 1000), lambda *_: 1 // 0)
        if end == "delete":
            del stream
            gc.collect()
        else:
            assert list(stream) == []
            with pytest.raises(SamplerError, match="stream is closed"):
                stream.take(Portion(None, 1))
        assert sampler.stats.kept_trajectories == arrived
        assert end == "raise" or sampler.stats.seconds > 0, "the call goes on"
        assert sampler.obtain_trajectories(2).agent_version == 2


def test_a_later_call_ends_portions():
    with make_sampler() as sampler:
        stream = sampler.stream()
        stream.take(Portion(None, 2))
        sampler.obtain_trajectories(1)
        with pytest.raises(SamplerError, match="ended by a later call"):
            stream.take(Portion(None, 1))


class FailsNowAndThen(RandomAgent):
    """An agent that raises in about every third trajectory."""

    def reset(self, seed):
        super().reset(seed)
        if seed % 3 == 0:
            raise ValueError(seed)


def test_portions_account_for_what_they_left_out_and_for_nothing_after_them():
    sampler = LocalSampler(FailsNowAndThen(Discrete(2)), "CartPole-v1", seed=5, on_failure="drop")
    with sampler, sampler.stream() as stream:
        for _ in range(6):
            last = stream.take(Portion(None, 3)).indices[-1]
            n_left_out = last + 1 - sampler.stats.kept_trajectories
            assert sampler.stats.dropped_trajectories == len(sampler.stats.dropped) == n_left_out
            assert all(dropped.index < last for dropped in sampler.stats.dropped)
        assert n_left_out > 0
