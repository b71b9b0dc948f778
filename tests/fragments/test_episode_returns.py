"""Returns and lengths of episodes of which fragments are parts: all parts count, and each episode once."""

from __future__ import annotations

import os
import pickle
import signal
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker, load
from streamsampler.errors import DataError, UsageError
from streamsampler.filters import RunningReturnNorm
from streamsampler.samplers.fragments import FragmentLedger
from tests.faults.test_interrupts import raise_once
from tests.fragments.agents import Forgetful, Restorable, Sticky
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps

SEED = 31
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


def from_the_start(batches: list[TrajectoryBatch]) -> list[tuple[list[float], list[int]]]:
    """Return what `episode_returns` and `episode_lengths` should be in each call, from all of their timesteps."""
    rewards: dict[tuple[int, int], list[float]] = defaultdict(list)
    found = []
    for batch in batches:
        ended: list[list[float]] = []
        for part in batch:
            episode = rewards[int(part.env_numbers[0]), int(part.indices[0])]
            if not part.continued[0]:
                episode.clear()
            episode += part.raw_rewards.tolist()
            if part.terminated[0] or part.truncated[0]:
                ended.append(list(episode))
        found.append(([sum(episode) for episode in ended], [len(episode) for episode in ended]))
    return found


def check(batches: list[TrajectoryBatch], *, least: int) -> None:
    """Check the episodes of consecutive calls, of which so many at least had parts in several calls."""
    spread = 0
    for batch, (returns, lengths) in zip(batches, from_the_start(batches), strict=True):
        np.testing.assert_allclose(batch.episode_returns, returns, rtol=1e-12)
        assert batch.episode_returns.dtype == np.float64
        assert batch.episode_lengths.dtype == np.int64
        assert batch.episode_lengths.tolist() == lengths
        spread += int((batch.continued & ~batch.cut).sum())
    assert spread >= least


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("options", [{}, VEC])
def test_all_parts_of_an_episode_count_whichever_calls_they_are_of(options, n_workers):
    with LocalSampler(Restorable(), Sticky, seed=SEED, n_workers=n_workers, **options) as sampler:
        check([sampler.obtain_fragments(n, 5) for n in (4, 9, 1, 1, 30, 2, 12, 20)], least=8)


def test_two_calls_and_more_are_added_up():
    with LocalSampler(always_zero, lambda: Steps(7), seed=SEED) as sampler:
        first, second, third, fourth = (sampler.obtain_fragments(n, 2) for n in (3, 3, 3, 12))
    for batch in (first, second):
        assert batch.episode_returns.shape == batch.episode_lengths.shape == (0,)
    assert third.episode_returns.tolist() == [28.0, 28.0]
    assert third.episode_lengths.tolist() == [7, 7]
    assert fourth.episode_lengths.tolist() == [7, 7, 7, 7]
    assert fourth.returns.tolist() == [25.0, 28.0] * 2, "the returns of parts"


def test_the_limit_of_length_ends_episodes_too():
    with LocalSampler(always_zero, lambda: Steps(100), seed=SEED, max_episode_length=6) as sampler:
        batches = [sampler.obtain_fragments(4, 1) for _ in range(3)]
    assert [batch.episode_lengths.tolist() for batch in batches] == [[], [6], [6]]
    assert batches[1].episode_returns.tolist() == [21.0]


def test_raw_rewards_count_where_a_filter_changes_them():
    with (
        LocalSampler(Restorable(), Sticky, seed=SEED, reward_filter=RunningReturnNorm(0.9)) as sampler,
        LocalSampler(Restorable(), Sticky, seed=SEED) as plain,
    ):
        batches = [sampler.obtain_fragments(12, 4) for _ in range(5)]
        expected = [plain.obtain_fragments(12, 4) for _ in range(5)]
    check(batches, least=4)
    assert not np.array_equal(batches[-1].rewards, batches[-1].raw_rewards)
    for batch, raw in zip(batches, expected, strict=True):
        assert batch.episode_returns.tobytes() == raw.episode_returns.tobytes()
        assert batch.unfiltered().episode_returns.tobytes() == raw.episode_returns.tobytes()


def test_of_whole_trajectories_they_are_returns_and_lengths():
    with LocalSampler(Restorable(), Sticky, seed=SEED, reward_filter=RunningReturnNorm(0.9)) as sampler:
        sampler.obtain_fragments(9, 4)
        batch = sampler.obtain_trajectories(7)
    assert batch.episode_returns.tobytes() == batch.raw_returns.tobytes()
    assert batch.episode_lengths.tobytes() == batch.lengths.tobytes()


def two_batches() -> tuple[TrajectoryBatch, TrajectoryBatch]:
    with LocalSampler(Restorable(), Sticky, seed=SEED) as sampler:
        sampler.obtain_fragments(20, 4)
        return sampler.obtain_fragments(20, 4), sampler.obtain_trajectories(2)


def test_files_and_lists_keep_earlier_parts(tmp_path):
    batch, _ = two_batches()
    assert batch.episode_lengths.sum() > batch.lengths[~batch.cut].sum(), "some began in an earlier call"
    spaces = batch.observation_space, batch.action_space
    for kept in (
        load(batch.save(tmp_path / "batch.npz")),
        pickle.loads(pickle.dumps(batch)),
        TrajectoryBatch.from_list(batch.to_list(), *spaces),
    ):
        assert kept.episode_returns.tobytes() == batch.episode_returns.tobytes()
        assert kept.episode_lengths.tobytes() == batch.episode_lengths.tobytes()


def test_parts_and_wholes_of_batches_keep_earlier_parts():
    batch, whole = two_batches()
    ended = ~batch.cut
    for selected in (TrajectoryBatch.concatenate(batch.split()), batch[:], batch[np.flatnonzero(ended)], batch[ended]):
        assert selected.episode_returns.tobytes() == batch.episode_returns.tobytes()
    one = int(np.flatnonzero(ended & batch.continued)[0])
    assert batch[one].episode_lengths.tolist() == [batch.episode_lengths[int(ended[:one].sum())]]
    joined = TrajectoryBatch.concatenate(whole, batch)
    assert joined.episode_returns.tolist() == [*whole.raw_returns, *batch.episode_returns]
    assert joined.episode_lengths.tolist() == [*whole.lengths, *batch.episode_lengths]


def test_a_list_of_episodes_says_what_came_before_those_that_go_on():
    batch, _ = two_batches()
    episodes = batch[batch.continued].to_list()
    for missing in ("earlier_length", "earlier_return"):
        lacking = [{key: value for key, value in episode.items() if key != missing} for episode in episodes]
        with pytest.raises(UsageError, match=f"episode 0 was continued, and has no {missing}"):
            TrajectoryBatch.from_list(lacking, batch.observation_space, batch.action_space)
    wrong = [{**episode, "earlier_length": 0} for episode in episodes]
    with pytest.raises(DataError, match="has 0 earlier timesteps, and was continued"):
        TrajectoryBatch.from_list(wrong, batch.observation_space, batch.action_space)


def test_an_episode_that_is_replayed_from_all_its_parts_began_with_the_first():
    with LocalSampler(Restorable(), Sticky, seed=SEED) as sampler:
        batches = [sampler.obtain_fragments(11, 2) for _ in range(4)]
        joined = TrajectoryBatch.concatenate(batches)
        row = int(np.flatnonzero(joined.continued & ~joined.cut)[0])
        one = joined[row]
        replay = sampler.replay(int(one.agent_versions[0]), int(one.indices[0]), recorded=joined, actions=True)
    assert replay.recorded is not None
    assert replay.same
    for whole in (replay.trajectory, replay.recorded):
        assert whole.episode_lengths.tolist() == one.episode_lengths.tolist()
        assert whole.episode_returns.tolist() == pytest.approx(one.episode_returns.tolist())


def test_a_pickled_sampler_counts_its_new_episodes_from_their_start():
    with LocalSampler(Restorable(), Sticky, seed=SEED) as sampler:
        sampler.obtain_fragments(6, 3)
        with pickle.loads(pickle.dumps(sampler)) as copied:
            check([copied.obtain_fragments(12) for _ in range(4)], least=3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(VEC, marks=pytest.mark.slow),
        pytest.param({"inference": "parent", "worker_args": {"n_envs": 5}}, marks=pytest.mark.slow),
    ],
)
def test_restored_workers_lose_no_parts(options):
    local = VEC if options == VEC else {}
    with (
        LocalSampler(Restorable(), Sticky, seed=SEED, **local) as reference,
        MultiprocessingSampler(Restorable(), Sticky, seed=SEED, n_workers=2, **options) as sampler,
    ):
        batches = [sampler.obtain_fragments(20, 5)]
        os.kill(sampler.worker_pids()[1], signal.SIGKILL)
        batches.append(sampler.obtain_fragments(20, 5))
        expected = [reference.obtain_fragments(20, 5) for _ in range(2)]
    assert batches[1].continued.sum() == 5
    check(batches, least=3)
    for batch, undisturbed in zip(batches, expected, strict=True):
        assert batch.episode_returns.tolist() == undisturbed.episode_returns.tolist()


@pytest.mark.parametrize("method", ["take", "_add_up"])
def test_what_ctrl_c_leaves_of_a_call_has_earlier_parts_too(method, monkeypatch):
    with (
        LocalSampler(Restorable(), Sticky, seed=SEED) as sampler,
        LocalSampler(Restorable(), Sticky, seed=SEED) as other,
    ):
        for each in (sampler, other):
            each.obtain_fragments(20, 4)
        raise_once(monkeypatch, FragmentLedger, method, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(20, 4)
        salvaged, expected = sampler.salvage(), other.obtain_fragments(20, 4)
    assert salvaged == expected
    assert salvaged.continued.any()


def test_an_episode_that_could_not_be_restored_is_not_counted_as_one_that_ended():
    with MultiprocessingSampler(
        always_zero, Forgetful, seed=SEED, n_workers=1, check=None, max_episode_length=7
    ) as sampler:
        batches = [sampler.obtain_fragments(5, 2)]
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batches += [sampler.obtain_fragments(5, 2) for _ in range(2)]
    assert not batches[1].continued.any()
    assert batches[2].episode_lengths.tolist() == [7, 7]
    check(batches, least=2)


# ---------------------------------------------------------------------- what is said of them


def test_a_batch_of_parts_says_so_and_what_episodes_returned():
    with LocalSampler(always_zero, lambda: Steps(7), seed=SEED) as sampler:
        first, second = sampler.obtain_fragments(5, 2), sampler.obtain_fragments(5, 2)
        whole = sampler.obtain_trajectories(2)
    assert repr(first) == (
        "TrajectoryBatch(2 parts of episodes, 10 timesteps, return of parts 15 ± 0 standard error, no episode ended, "
        "agent version 1)"
    )
    assert repr(second) == (
        "TrajectoryBatch(4 parts of episodes, 10 timesteps, return of parts 9.5 ± 2.02 standard error, "
        "2 episodes ended: return 28 ± 0 standard error, agent version 2)"
    )
    assert repr(whole) == (
        "TrajectoryBatch(2 trajectories, 14 timesteps, return 28 ± 0 standard error, agent version 3)"
    )


def test_the_accounts_have_the_episodes_that_ended():
    with LocalSampler(always_zero, lambda: Steps(7), seed=SEED) as sampler:
        first, second = sampler.obtain_fragments(5, 2), sampler.obtain_fragments(5, 2)
        assert first.stats.episodes.count == 0
        assert np.isnan(first.stats.episodes.mean_return)
        assert not {"episodes", "episode_return"} & first.stats.flat().keys()
        assert second.stats.episodes.count == 2
        assert second.stats.episodes.mean_return == 28.0
        assert second.stats.flat()["episode_length"] == 7.0
        sampler.obtain_trajectories(3)
        for _ in sampler.stream(n_trajectories=2):
            pass
        assert sampler.stats.episodes.count == 7
        assert sampler.stats.episodes.timesteps == 49
        assert sampler.stats.flat()["episode_return"] == sampler.stats.flat()["recent/episode_return"] == 28.0


def test_progress_counts_the_episodes_that_ended_and_tells_their_return():
    seen: list[Any] = []
    with LocalSampler(always_zero, lambda: Steps(7), seed=SEED) as sampler:
        sampler.obtain_fragments(5, 2, progress=seen.append)
        assert seen[-1].trajectories == 0
        assert seen[-1].note == "no episode ended"
        sampler.obtain_fragments(5, 2, progress=seen.append)
        assert seen[-1].trajectories == 2
        assert seen[-1].timesteps == 10
        assert seen[-1].note == "2 episodes, return 28"
        sampler.obtain_trajectories(2, progress=seen.append)
        assert seen[-1].note == ""
