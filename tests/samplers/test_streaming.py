"""Streams: one by one and in portions, and what ends them; and what is left over for the next call with staleness."""

import gc
from typing import Any

import pytest
from gymnasium.spaces import Discrete

from streamsampler import LocalSampler, MultiprocessingSampler, RandomAgent, TrajectoryBatch, VecWorker
from streamsampler.data.portions import Portion
from streamsampler.errors import SamplerError, UsageError
from tests.scripted.agents import always_zero
from tests.scripted.vectors import Vector

concatenate = TrajectoryBatch.concatenate


class FailsNowAndThen(RandomAgent):
    """An agent that raises in about every third trajectory."""

    def reset(self, seed):
        super().reset(seed)
        if seed % 3 == 0:
            raise ValueError(seed)


def make_sampler(agent=RandomAgent, **options):
    return LocalSampler(agent(Discrete(2)), "CartPole-v1", seed=5, **options)


@pytest.fixture(scope="module")
def whole():
    with make_sampler() as sampler:
        return sampler.obtain_trajectories(40)


def test_portions_are_what_one_call_returns(whole):
    seen = []
    with make_sampler(n_workers=3) as sampler:
        with sampler.stream(first_trajectory=7) as stream:
            stream.watch(lambda *so_far: seen.append(so_far), None)
            assert stream.take(Portion(None, 10)) == whole[7:17]
            batch = stream.take(Portion(100, None))
        stop = 17 + len(batch)
        assert batch == whole[17:stop]
        assert batch.n_timesteps >= 100 > batch[:-1].n_timesteps
        assert (sampler.stats.kept_trajectories, sampler.agent_version) == (stop - 7, 1)
        assert sampler.obtain_trajectories(1).agent_version == 2
        with pytest.raises(SamplerError, match="stream is closed"):
            stream.take(Portion(1, None))
    assert seen[-1][1] >= 10


def test_what_portions_leave_over_is_iterated_over_next(whole):
    with make_sampler(n_workers=3) as sampler, sampler.stream() as stream:
        assert stream.take(Portion(None, 3)) == whole[:3]
        assert [next(stream) for _ in range(17)] == list(whole[3:20])
        with pytest.raises(UsageError, match="before the stream is iterated over"):
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
            stream.watch(lambda *_: 1 // 0, None)
            with pytest.raises(ZeroDivisionError):
                stream.take(Portion(None, 1000))
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


def test_a_stream_that_has_an_end_is_what_one_call_returns():
    seeds = [9, 4, 4, *range(50, 90)]
    with make_sampler() as sampler:
        whole = sampler.obtain_trajectories(seeds=seeds)

    def stream_of(**arguments):
        sampler = make_sampler(n_workers=3)
        return sampler, sampler.stream(seeds=seeds, **arguments)

    sampler, stream = stream_of()
    assert concatenate(stream) == whole
    assert (sampler.stats.kept_trajectories, sampler.stats.surplus_trajectories) == (len(seeds), 0)
    assert concatenate(stream_of(first_trajectory=3, n_trajectories=20)[1]) == whole[3:23]
    _, stream = stream_of(first_trajectory=40)
    assert [stream.take(Portion(None, n)) for n in (2, 9)] == [whole[40:42], whole[42:]]
    with pytest.raises(SamplerError, match="no trajectories left"):
        stream.take(Portion(None, 1))


def test_with_agents_of_their_own_a_stream_goes_on_where_another_one_ended():
    def make():
        return LocalSampler([lambda _: 0, lambda _: 1], "CartPole-v1", seed=5)

    with make() as sampler:
        whole = sampler.obtain_trajectories(12)
    for first in (1, 6):
        with make() as sampler:
            assert concatenate(sampler.stream(first_trajectory=first, n_trajectories=12 - first)) == whole[first:]


def test_a_stream_gives_each_trajectory_the_options_of_its_index():
    options = [{"low": low / 1000, "high": low / 1000 + 1e-9} for low in range(1, 21)]
    with make_sampler(n_workers=2) as sampler:
        begun = [float(one.observations[0, 0]) for one in sampler.stream(reset_options=options, first_trajectory=5)]
    assert begun == pytest.approx([each["low"] for each in options[5:]], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"seeds": [1, 2], "first_trajectory": 2},
            "no seeds or reset_options for trajectory 2: they cover 2 trajectories",
        ),
        ({"seeds": [1, 2], "n_trajectories": 3}, "no seeds or reset_options for trajectories 0 to 2"),
        ({"seeds": [1, 2], "reset_options": [{}]}, "there are 2 trajectories, but reset_options has 1 items"),
        ({"seeds": []}, "seeds is empty"),
        ({"n_trajectories": 0}, "n_trajectories must be at least 1"),
        ({"reset_options": 5}, "reset_options must be a dict"),
        ({"reset_options": []}, "there are 1 trajectories, but reset_options has 0 items"),
        *(({"first_trajectory": first}, f"first_trajectory must be .*{first}") for first in (-1, 1.5, None, True)),
    ],
)
def test_streams_of_trajectories_that_are_not_there_are_refused(arguments, message):
    with make_sampler() as sampler, pytest.raises(UsageError, match=message):
        sampler.stream(**arguments)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_with_staleness_blocks_of_native_vector_environments_are_what_they_are_without(mode):
    """Also where an environment resets itself."""
    options: dict[str, Any] = {
        "seed": 5,
        "check": None,
        "worker_class": VecWorker,
        "worker_args": {"n_envs": 3, "block_size": 7},
    }
    batches = []
    for staleness in (1, 0):
        with LocalSampler(always_zero, Vector(mode), staleness=staleness, **options) as sampler:
            batches.append([sampler.obtain_trajectories(9) for _ in range(3)])
    lagging, same = batches
    assert (lagging[0], lagging[2]) == (same[0], same[1])


@pytest.mark.parametrize("kind", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_with_staleness_none_of_those_that_were_left_out_comes_again_in_the_second_batch(kind):
    batches = []
    for make, n_workers in ((kind, 2), (LocalSampler, 1)):
        options: dict[str, Any] = {"seed": 5, "n_workers": n_workers, "staleness": 1, "on_failure": "drop"}
        with make(FailsNowAndThen(Discrete(2)), "CartPole-v1", **options) as sampler:
            batches.append([sampler.obtain_trajectories(9), sampler.obtain_samples(200), sampler.obtain_samples(150)])
            dropped = [one.index for one in sampler.stats.dropped if one.version == 1]
    assert batches[0] == batches[1]
    first, second, _ = batches[0]
    assert [batch.agent_version for batch in batches[0]] == [1, 1, 2]
    assert dropped
    both = sorted([*dropped, *first.indices.tolist(), *second.indices.tolist()])
    assert both == list(range(len(both)))


def test_portions_account_for_what_they_left_out_and_for_nothing_after_them():
    with make_sampler(FailsNowAndThen, on_failure="drop") as sampler, sampler.stream() as stream:
        for _ in range(6):
            last = stream.take(Portion(None, 3)).indices[-1]
            n_left_out = last + 1 - sampler.stats.kept_trajectories
            assert sampler.stats.dropped_trajectories == len(sampler.stats.dropped) == n_left_out
            assert all(dropped.index < last for dropped in sampler.stats.dropped)
        assert n_left_out > 0


def test_what_is_left_out_of_a_stream_is_replaced_unless_it_had_a_seed_of_its_own():
    def sampler():
        return make_sampler(FailsNowAndThen, on_failure="drop", n_workers=2)

    with sampler() as called, sampler() as streamed:
        assert concatenate(streamed.stream(n_trajectories=20)) == called.obtain_trajectories(20)
    with sampler() as streamed:
        batch = concatenate(streamed.stream(seeds=range(30)))
        assert 0 < streamed.stats.dropped_trajectories == 30 - len(batch)
