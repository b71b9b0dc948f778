"""Data that may be wrong are counted, warned of once, or an error, whatever runs the trajectories."""

import logging
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.data.anomalies import Anomaly, AnomalyFinder
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.statistics import FoundAnomaly, Stats
from streamsampler.errors import DataError, RolloutError
from streamsampler.samplers.accounts import CallAccounts

BOX = S.Box(np.array([-1, -np.inf], np.float32), np.array([1, 2], np.float32))


class Doubtful(gymnasium.Env):
    """Five timesteps each; in every third trajectory two observations, the final one and a reward are doubtful."""

    observation_space = S.Dict(a=BOX, b=S.Tuple([S.Discrete(3, start=1), S.MultiBinary(2)]))
    action_space = S.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t, self.odd = 0, seed % 3 == 0
        return self._observation(), {}

    def _observation(self) -> Any:
        a = np.array([np.nan if self.odd and self.t in (1, 5) else 0, 0], np.float32)
        return {"a": a, "b": (4 if self.odd and self.t in (1, 3) else 1, np.zeros(2, np.int8))}

    def step(self, action):
        self.t += 1
        return self._observation(), np.nan if self.odd and self.t == 4 else 0.5, self.t == 5, False, {}


class Zeros:
    def get_action(self, observation):
        return 0, {}

    def get_actions(self, observations):
        return np.zeros(len(observations["a"]), np.int64), {}


VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 3}}


@pytest.mark.parametrize(
    ("make", "options"),
    [(LocalSampler, {}), (LocalSampler, VEC), (MultiprocessingSampler, {"n_workers": 2})],
    ids=["local", "vec", "processes"],
)
def test_what_is_returned_is_counted_and_told_once(make, options, caplog):
    what = "Doubtful: observation['a'] holds nan: ndarray array([nan, 0.], dtype=float32)"
    with caplog.at_level(logging.WARNING, "streamsampler"), make(Zeros(), Doubtful, seed=4, **options) as sampler:
        batch = sampler.obtain_samples(60)
        odd = [index for index, seed in enumerate(batch.seeds) if seed % 3 == 0]
        assert batch.stats.anomalies == sampler.stats.anomalies == 4 * len(odd)
        assert batch.stats.first_anomaly == FoundAnomaly(1, odd[0], 1, what)
        again = sampler.obtain_trajectories(20)
        n_odd = sum(seed % 3 == 0 for seed in again.seeds)
        assert again.stats.anomalies == 4 * n_odd
        streamed = [trajectory.seeds[0] % 3 == 0 for _, trajectory in zip(range(10), sampler.stream(), strict=False)]
        assert sampler.stats.anomalies == 4 * (len(odd) + n_odd + sum(streamed))
        assert sampler.stats.first_anomaly == batch.stats.first_anomaly
    [told] = [record.getMessage() for record in caplog.records if "anomalies" in record.getMessage()]
    assert told.startswith(f"{what}, at timestep 1 of trajectory {odd[0]} of agent version 1. ")


def test_it_is_an_error_or_not_looked_for_or_trajectories_are_left_out():
    workers: list[dict[str, Any]] = [{}, VEC]
    for options in workers:
        sampler = LocalSampler(Zeros(), Doubtful, seed=4, check="error", **options)
        with sampler, pytest.raises(RolloutError, match=r"\['a'\] holds nan: .*at timestep 1 of its") as caught:
            sampler.obtain_samples(60)
        assert isinstance(caught.value.original, DataError)
        assert caught.value.phase == "recording the trajectory"
    with LocalSampler(Zeros(), Doubtful, seed=4, check=None) as sampler:
        stats = sampler.obtain_trajectories(12).stats
    assert (stats.anomalies, stats.first_anomaly) == (0, None)
    resets = []

    class Counted(Doubtful):
        def reset(self, **options):
            resets.append(1)
            return super().reset(**options)

    with LocalSampler(Zeros(), Counted, seed=4, check="error", on_failure="drop") as sampler:
        batch = sampler.obtain_trajectories(300)
    assert not any(seed % 3 == 0 for seed in batch.seeds)
    assert batch.stats.dropped_trajectories > 0
    assert {it.error for it in batch.stats.dropped} == {batch.stats.dropped[0].error}
    assert "Counted: observation['a'] holds nan" in batch.stats.dropped[0].error
    assert len(resets) < 3 * 450, "leaving many out costs no more than running the others twice"


def find(space, values, lengths, rewards=None):
    """`values` has the observations of each trajectory, the final one included."""
    ends = np.cumsum(np.array(lengths) + 1) - 1
    array = np.array(values, space.dtype or object).reshape(sum(lengths) + len(lengths), *(space.shape or ()))
    rewards = np.zeros(sum(lengths)) if rewards is None else np.array(rewards, float)
    return AnomalyFinder(space).find(np.delete(array, ends, axis=0), array[ends], rewards, np.array(lengths))


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1.5, -2.0, np.nan, np.inf, -np.inf])
LENGTHS = st.lists(st.integers(1, 3), min_size=1, max_size=3)
BOUNDS = st.sampled_from([(-np.inf, np.inf), (-1, 1), (-np.inf, 1), (-1.5, np.inf)])


@given(bounds=st.lists(BOUNDS, min_size=2, max_size=2), lengths=LENGTHS, data=st.data())
def test_found_is_what_the_space_does_not_contain(bounds, lengths, data):
    space = S.Box(*np.array(bounds, np.float32).T)
    n, t = sum(lengths) + len(lengths), sum(lengths)
    rows = data.draw(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=n, max_size=n))
    rewards = data.draw(st.lists(st.sampled_from([1.0, np.inf, np.nan]), min_size=t, max_size=t))
    expected, row, step = [], 0, 0
    for position, length in enumerate(lengths):
        wrong = [t for t in range(length + 1) if not space.contains(np.array(rows[row + t], np.float32))]
        wrong += [t for t in range(length) if np.isnan(rewards[step + t])]
        if wrong:
            expected.append((position, len(wrong), min(wrong)))
        row, step = row + length + 1, step + length
    found = find(space, rows, lengths, rewards)
    assert [(it.position, it.count, it.timestep) for it in found] == expected


LIMITS = np.array([1, 2], np.float32)
LONG = np.zeros((40_001, 2), np.float32)
LONG[30_000, 1] = -np.inf


@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (S.Box(0, 255, (1,), np.uint8), [0, 255, 7, 255], None),
        (S.Box(-128, 127, (1,), np.int8), [0, 127, -128, 7], None),
        (S.Box(0, 254, (1,), np.uint8), [0, 255, 7, 255], (2, 1, "observation is outside its space: ndarray array")),
        (S.Discrete(3), [0, 1, 2, 3], (1, 3, "final observation is outside its space")),
        (S.MultiBinary(1), [0, 1, 2, 1], (1, 2, "observation is outside its space")),
        (S.Box(-1, 1, (), np.float64), [0, 1, np.nan, 1], (1, 2, "observation holds nan")),
        (S.Box(-1, 1, (0,), np.float64), np.zeros((4, 0)), None),
        (S.Sequence(S.Discrete(3)), [(7,)] * 4, None),
        (S.Box(-LIMITS, LIMITS), LONG, (1, 30_000, "observation is outside")),
    ],
    ids=range(9),
)
def test_spaces_of_each_kind(space, values, expected):
    found = [(it.position, it.count, it.timestep, it.what) for it in find(space, values, [len(values) - 1])]
    assert [it[:3] for it in found] == ([] if expected is None else [(0, *expected[:2])])
    assert all(it[3].startswith(expected[2]) for it in found)


class Clashing(gymnasium.Env):
    """Five timesteps each; some trajectories have NaN, some infos that clash, some what their space cannot hold."""

    observation_space = S.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = S.Discrete(2)

    def __init__(self, kinds=None):
        self.kinds = kinds or {}

    def reset(self, *, seed=None, options=None):
        self.t, self.kind = 0, self.kinds.get(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        odd = self.kind if self.t == 5 else None
        value = {"nan": np.nan, "lossy": 123456789.0}.get(str(odd), 0.5)
        return np.array([value]), 0.5, self.t == 5, False, {"x": 1, "_x": 2} if odd == "clash" else {}


@pytest.mark.parametrize("kinds", [("nan", "clash"), ("clash", "nan"), ("lossy", "nan"), ("nan", "lossy")], ids=str)
@pytest.mark.parametrize("is_vec", [False, True])
def test_the_error_is_that_of_the_first_wrong_trajectory_that_is_needed(kinds, is_vec):
    def make(n_workers, block_size, kind_of):
        vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2, "block_size": block_size}}
        env = lambda: Clashing(kind_of)  # noqa: E731
        return LocalSampler(lambda _: 0, env, n_workers=n_workers, seed=4, check="error", **vec if is_vec else {})

    with make(1, 6, {}) as sampler:
        seeds = sampler.obtain_trajectories(6).seeds
    kind_of = {seeds[2]: kinds[0], seeds[4]: kinds[1]}
    for n_workers in (1, 2):
        with make(n_workers, 6, kind_of) as sampler:
            with pytest.raises(RolloutError) as caught:
                sampler.obtain_trajectories(6)
            assert caught.value.trajectory == 2
            assert {"nan": "nan", "clash": "mask", "lossy": "123456789"}[kinds[0]] in str(caught.value)
        # A block fails as a whole. Of blocks of two, the call does not need the one that fails.
        with make(n_workers, 2, kind_of) as sampler:
            assert sampler.obtain_samples(10).lengths.tolist() == [5, 5]
            assert sampler.stats.anomalies == 0


def test_of_a_delivery_only_what_is_returned_counts():
    stand_in: Any = SimpleNamespace
    found = tuple(Anomaly(position, 10**position, 3, "odd") for position in (0, 1, 2, 4))
    delivery = Delivery(0, stand_in(anomalies=found))
    stats = Stats.of(1)
    accounts = CallAccounts(stand_in(warn_of=lambda *_: None), stand_in(), stats, 7)
    accounts.add_dropped([Segment(delivery, 1, 4, range(11, 14))], [])
    rows = {"raw_rewards": np.ones(9), "lengths": np.array([2, 3, 4])}
    for indices, count in ((np.array([12, 13, 14]), 100), (np.array([10, 11]), 110)):
        accounts.add_yielded(stand_in(n_trajectories=3, n_timesteps=9, indices=indices, **rows))
        assert (stats.anomalies, stats.first_anomaly) == (count, FoundAnomaly(7, 12, 3, "odd"))
