"""Returns and lengths of episodes of which fragments are parts: all parts count, and each episode once."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryBatch, VecWorker, load
from streamsampler.data.segments import Segment
from streamsampler.errors import DataError, UsageError
from streamsampler.filters import RunningReturnNorm
from streamsampler.samplers import episode_parts
from streamsampler.samplers.fragments import FragmentLedger
from tests.faults.test_interrupts import raise_once
from tests.fragments.agents import Restorable, Sticky
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps

SEED = 31
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


def local(**options: Any) -> LocalSampler:
    return LocalSampler(Restorable(), Sticky, seed=SEED, **options)


def check(batches: list[TrajectoryBatch], *, least: int) -> None:
    """Compare with the rewards of consecutive calls, where so many episodes at least had parts in several of them."""
    rewards: dict[tuple[int, int], list[float]] = defaultdict(list)
    spread = 0
    for batch in batches:
        ended: list[list[float]] = []
        for part in batch:
            episode = rewards[int(part.env_numbers[0]), int(part.indices[0])]
            if not part.continued[0]:
                episode.clear()
            episode += part.raw_rewards.tolist()
            if part.terminated[0] or part.truncated[0]:
                ended.append(list(episode))
        np.testing.assert_allclose(batch.episode_returns, [sum(episode) for episode in ended], rtol=1e-12)
        assert batch.episode_lengths.tolist() == [len(episode) for episode in ended]
        assert batch.episode_returns.dtype == np.float64
        assert batch.episode_lengths.dtype == np.int64
        spread += int((batch.continued & ~batch.cut).sum())
    assert spread >= least


@pytest.mark.parametrize("options", [{}, {"n_workers": 3, **VEC}, {"reward_filter": RunningReturnNorm(0.9)}])
def test_all_parts_of_an_episode_count_whichever_calls_they_are_of(options):
    with local(**options) as sampler, local() as plain:
        sizes = (4, 9, 1, 1, 30, 2, 12, 20)
        batches = [sampler.obtain_fragments(n, 5) for n in sizes]
        check(batches, least=8)
        with pickle.loads(pickle.dumps(sampler)) as copied:  # goes on with the episodes
            check([*batches, *(copied.obtain_fragments(12) for _ in range(4))], least=11)
        if options.keys() == {"reward_filter"}:
            expected = [plain.obtain_fragments(n, 5) for n in sizes]
            assert not np.array_equal(batches[-1].rewards, batches[-1].raw_rewards)
            for batch, raw in zip(batches, expected, strict=True):
                for one in (batch, batch.unfiltered()):
                    assert one.episode_returns.tobytes() == raw.episode_returns.tobytes()
            whole = sampler.obtain_trajectories(7)
            assert whole.episode_returns.tobytes() == whole.raw_returns.tobytes()
            assert whole.episode_lengths.tobytes() == whole.lengths.tobytes()


@pytest.fixture(scope="module")
def two_batches() -> tuple[TrajectoryBatch, TrajectoryBatch]:
    with local() as sampler:
        sampler.obtain_fragments(20, 4)
        return sampler.obtain_fragments(20, 4), sampler.obtain_trajectories(2)


def test_files_lists_and_parts_of_batches_keep_earlier_parts(two_batches, tmp_path):
    batch, whole = two_batches
    ended = ~batch.cut
    assert batch.episode_lengths.sum() > batch.lengths[ended].sum(), "some began in an earlier call"
    for kept in (
        load(batch.save(tmp_path / "batch.npz")),
        pickle.loads(pickle.dumps(batch)),
        TrajectoryBatch.from_list(batch.to_list(), batch.observation_space, batch.action_space),
        TrajectoryBatch.concatenate(batch.split()),
        batch[np.flatnonzero(ended)],
        batch[ended],
    ):
        assert kept.episode_returns.tobytes() == batch.episode_returns.tobytes()
        assert kept.episode_lengths.tobytes() == batch.episode_lengths.tobytes()
    one = int(np.flatnonzero(ended & batch.continued)[0])
    assert batch[one].episode_lengths.tolist() == [batch.episode_lengths[int(ended[:one].sum())]]
    joined = TrajectoryBatch.concatenate(whole, batch)
    assert joined.episode_returns.tolist() == [*whole.raw_returns, *batch.episode_returns]
    assert joined.episode_lengths.tolist() == [*whole.lengths, *batch.episode_lengths]


def test_a_list_of_episodes_says_what_came_before_those_that_go_on(two_batches):
    batch, _ = two_batches
    episodes = batch[batch.continued].to_list()
    both = batch.observation_space, batch.action_space
    for missing in ("earlier_length", "earlier_return"):
        lacking = [{key: value for key, value in episode.items() if key != missing} for episode in episodes]
        with pytest.raises(UsageError, match=f"episode 0 is continued but has no {missing}"):
            TrajectoryBatch.from_list(lacking, *both)
    with pytest.raises(DataError, match="has 0 earlier timesteps, but is marked as continued"):
        TrajectoryBatch.from_list([{**episode, "earlier_length": 0} for episode in episodes], *both)


def raise_at_second_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an interrupt come when the first environment of a report has its place in the batch, and no other has."""

    def second(*given: Any) -> Segment:
        monkeypatch.setattr(episode_parts, "Segment", Segment)
        raise_once(monkeypatch, episode_parts, "Segment", KeyboardInterrupt)
        return Segment(*given)

    monkeypatch.setattr(episode_parts, "Segment", second)


@pytest.mark.parametrize("place", ["record", "_add_up", "in the middle of a report"])
def test_what_ctrl_c_leaves_of_a_call_has_earlier_parts_too(place, monkeypatch):
    with local() as sampler, local() as other:
        for each in (sampler, other):
            each.obtain_fragments(20, 4)
        if place == "in the middle of a report":
            raise_at_second_segment(monkeypatch)
        else:
            raise_once(monkeypatch, FragmentLedger, place, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(20, 4)
        salvaged, expected = sampler.salvage(), other.obtain_fragments(20, 4)
    assert salvaged == expected
    assert salvaged.continued.any()


def test_batches_accounts_and_progress_say_which_episodes_ended():
    seen: list[Any] = []
    with LocalSampler(always_zero, lambda: Steps(7), seed=SEED) as sampler:
        first = sampler.obtain_fragments(5, 2, progress=seen.append)
        assert (seen[-1].n_trajectories, seen[-1].note) == (0, "no episode ended")
        assert (seen[-1].target, seen[-1].unit, seen[-1].n_timesteps) == (10, "timesteps", 10)
        second = sampler.obtain_fragments(5, 2, progress=seen.append)
        assert (seen[-1].n_trajectories, seen[-1].note) == (2, "2 episodes, return 28")
        whole = sampler.obtain_trajectories(3, progress=seen.append)
        assert seen[-1].note == ""
        for _ in sampler.stream(n_trajectories=2):
            pass
        stats = sampler.stats
    assert "2 parts of episodes, 10 timesteps, return of parts 15 ± 0 standard error, no episode ended" in repr(first)
    assert "return of parts 9.5 ± 2.02 standard error, 2 episodes ended: return 28 ± 0 standard" in repr(second)
    assert repr(whole).startswith("TrajectoryBatch(3 trajectories, 21 timesteps, return 28 ± 0 standard error, agent")
    assert second.episode_returns.tolist() == [28.0, 28.0]
    assert second.returns.tolist() == [13.0, 6.0] * 2, "the returns of parts"
    assert first.stats.episodes.count == 0
    assert np.isnan(first.stats.episodes.mean_return)
    assert first.stats.flat()["episodes"] == 0
    assert np.isnan(first.stats.flat()["episode_return"])
    assert (second.stats.episodes.count, second.stats.episodes.mean_return) == (2, 28.0)
    assert second.stats.flat()["episode_length"] == 7.0
    assert (stats.episodes.count, stats.episodes.timesteps) == (7, 49)
    assert stats.flat()["episode_return"] == stats.flat()["recent/episode_return"] == 28.0
