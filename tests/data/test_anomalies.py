"""Data that may be wrong are counted, warned of once, or an error: the same for any number of workers."""

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
from streamsampler.data.assembly import Delivery
from streamsampler.data.statistics import FoundAnomaly, Stats
from streamsampler.errors import DataError, RolloutError
from streamsampler.protocol.result import Segment
from streamsampler.samplers.accounts import CallAccounts

BOX = S.Box(np.array([-1, -np.inf], np.float32), np.array([1, 2], np.float32))
PARTS = S.Dict(a=BOX, b=S.Tuple([S.Discrete(3, start=1), S.Box(0, 9, (2, 2), np.uint8), S.MultiBinary(2)]))


class Doubtful(gymnasium.Env):
    """Five timesteps each; in every third trajectory two observations, the final one and a reward are doubtful."""

    observation_space = PARTS
    action_space = S.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.odd = seed % 3 == 0
        return self._observation(), {}

    def _observation(self) -> Any:
        a = np.zeros(2, np.float32)
        if self.odd and self.t in (1, 5):
            a[0] = np.nan
        return {
            "a": a,
            "b": (4 if self.odd and self.t in (1, 3) else 1, np.zeros((2, 2), np.uint8), np.zeros(2, np.int8)),
        }

    def step(self, action):
        self.t += 1
        reward = np.nan if self.odd and self.t == 4 else 0.5
        return self._observation(), reward, self.t == 5, False, {}


class Zeros:
    def get_action(self, observation):
        return 0, {}

    def get_actions(self, observations):
        return np.zeros(len(observations["a"]), np.int64), {}


VEC = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 3}}
SAMPLERS = [
    (LocalSampler, {}),
    (LocalSampler, {"n_workers": 3}),
    (MultiprocessingSampler, {"n_workers": 2}),
    (LocalSampler, VEC),
    (LocalSampler, VEC | {"n_workers": 2}),
]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(*sampler, marks=pytest.mark.slow if name in ("three", "vec of two") else [], id=name)
        for name, sampler in zip(["local", "three", "processes", "vec", "vec of two"], SAMPLERS, strict=True)
    ],
)
def test_what_is_returned_is_counted_and_told_once(make, options, caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), make(Zeros(), Doubtful, seed=4, **options) as sampler:
        batch = sampler.obtain_samples(60)
        odd = [index for index, seed in enumerate(batch.seeds) if seed % 3 == 0]
        assert batch.n_trajectories == 12
        assert batch.stats.anomalies == sampler.stats.anomalies == 4 * len(odd)
        what = "Doubtful: observation['a'] holds nan: ndarray array([nan, 0.], dtype=float32)"
        assert batch.stats.first_anomaly == sampler.stats.first_anomaly == FoundAnomaly(1, odd[0], 1, what)
        again = sampler.obtain_trajectories(20)
        n_odd = sum(seed % 3 == 0 for seed in again.seeds)
        assert again.stats.anomalies == 4 * n_odd
        streamed = [trajectory.seeds[0] % 3 == 0 for _, trajectory in zip(range(10), sampler.stream(), strict=False)]
        assert sampler.stats.anomalies == 4 * (len(odd) + n_odd + sum(streamed))
        assert sampler.stats.first_anomaly.version == 1
    told = [record.getMessage() for record in caplog.records if "anomalies" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"{what}, at timestep 1 of trajectory {odd[0]} of agent version 1; ")


@pytest.mark.parametrize(("make", "options"), SAMPLERS[:1] + SAMPLERS[2:4], ids=["local", "processes", "vec"])
def test_an_error_where_one_is_wanted(make, options):
    with make(Zeros(), Doubtful, seed=4, check="error", **options) as sampler:
        with pytest.raises(
            RolloutError, match=r"Doubtful: observation\['a'\] holds nan: .*at timestep 1 of its"
        ) as caught:
            sampler.obtain_samples(60)
        assert isinstance(caught.value.original, DataError)
        assert caught.value.phase == "recording the trajectory"
        with LocalSampler(Zeros(), Doubtful, seed=4, check=None) as other:
            batch = other.obtain_trajectories(12)
        assert caught.value.trajectory == [seed % 3 for seed in batch.seeds].index(0)
        assert (batch.stats.anomalies, batch.stats.first_anomaly) == (0, None)


def test_trajectories_that_may_be_wrong_can_be_left_out():
    with LocalSampler(Zeros(), Doubtful, seed=4, check="error", on_failure="drop") as sampler:
        batch = sampler.obtain_trajectories(12)
        assert not any(seed % 3 == 0 for seed in batch.seeds)
        assert batch.stats.dropped_trajectories > 0
        assert "Doubtful: observation['a'] holds nan" in batch.stats.dropped[0].error
        assert len({dropped.error for dropped in batch.stats.dropped}) == 1


def test_leaving_many_out_costs_no_more_than_running_the_others_twice():
    resets = []

    class Counted(Doubtful):
        def reset(self, **options):
            resets.append(1)
            return super().reset(**options)

    with LocalSampler(Zeros(), Counted, seed=4, check="error", on_failure="drop") as sampler:
        sampler.obtain_trajectories(300)
    assert len(resets) < 3 * 450


def find(space, values, lengths, rewards=None):
    """`values` has the observations of each trajectory, the final one included."""
    ends = np.cumsum(np.array(lengths) + 1) - 1
    array = np.array(values, space.dtype).reshape(-1, *space.shape)
    rewards = np.zeros(sum(lengths)) if rewards is None else np.array(rewards, float)
    return AnomalyFinder(space).find(np.delete(array, ends, axis=0), array[ends], rewards, np.array(lengths))


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1.5, -2.0, np.nan, np.inf, -np.inf])
BOUNDS = st.sampled_from([(-np.inf, np.inf), (-1, 1), (-np.inf, 1), (-1.5, np.inf)])


@given(bounds=st.lists(BOUNDS, min_size=2, max_size=2), data=st.data())
def test_found_is_what_the_space_does_not_contain(bounds, data):
    low, high = np.array(bounds, np.float32).T
    space = S.Box(low, high)
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rows = data.draw(
        st.lists(
            st.tuples(NUMBERS, NUMBERS), min_size=sum(lengths) + len(lengths), max_size=sum(lengths) + len(lengths)
        )
    )
    rewards = data.draw(st.lists(st.sampled_from([1.0, np.inf, np.nan]), min_size=sum(lengths), max_size=sum(lengths)))
    expected, row, step = [], 0, 0
    for position, length in enumerate(lengths):
        wrong = [t for t in range(length + 1) if not space.contains(np.array(rows[row + t], np.float32))]
        wrong += [t for t in range(length) if np.isnan(rewards[step + t])]
        if wrong:
            expected.append((position, len(wrong), min(wrong)))
        row, step = row + length + 1, step + length
    found = find(space, rows, lengths, rewards)
    assert [(it.position, it.count, it.timestep) for it in found] == expected


@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (S.Box(0, 255, (1,), np.uint8), [0, 255, 7, 255], ()),
        (S.Box(-128, 127, (1,), np.int8), [0, 127, -128, 7], ()),
        (
            S.Box(0, 254, (1,), np.uint8),
            [0, 255, 7, 255],
            ((0, 2, 1, "observation is outside its space: ndarray array([255], dtype=uint8)"),),
        ),
        (S.Discrete(3), [0, 1, 2, 3], ((0, 1, 3, "final observation is outside its space"),)),
        (S.MultiBinary(1), [0, 1, 2, 1], ((0, 1, 2, "observation is outside its space"),)),
        (S.Box(-1, 1, (), np.float64), [0, 1, np.nan, 1], ((0, 1, 2, "observation holds nan"),)),
        (S.Box(-1, 1, (0,), np.float64), [], ()),
    ],
    ids=str,
)
def test_spaces(space, values, expected):
    found = (
        find(space, values, [3])
        if values
        else AnomalyFinder(space).find(np.zeros((3, 0)), np.zeros((1, 0)), np.zeros(3), np.array([3]))
    )
    assert len(found) == len(expected)
    for it, (*numbers, words) in zip(found, expected, strict=True):
        assert [it.position, it.count, it.timestep] == numbers
        assert it.what.startswith(words)


def test_many_rows_are_compared_in_parts():
    space = S.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
    rows = np.zeros((40_001, 2), np.float32)
    assert find(space, rows, [40_000]) == ()
    rows[30_000, 1] = -1
    assert [it.timestep for it in find(space, rows, [40_000])] == [30_000]
    assert find(space, rows, [40_000])[0] == Anomaly(0, 1, 30_000, find(space, rows, [40_000])[0].what)


def test_objects_are_not_looked_at():
    assert (
        AnomalyFinder(S.Text(3)).find(np.array(["long"], object), np.array(["x"], object), np.zeros(1), np.array([1]))
        == ()
    )


class Clashing(gymnasium.Env):
    """Five timesteps each; some trajectories have NaN, some infos that clash, some what their space cannot hold."""

    observation_space = S.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = S.Discrete(2)

    def __init__(self, kinds=None):
        self.kinds = kinds or {}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.kind = self.kinds.get(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        odd = self.kind if self.t == 5 else None
        value = {"nan": np.nan, "lossy": 123456789.0}.get(str(odd), 0.5)
        info = {"x": 1, "_x": 2} if odd == "clash" else {}
        return np.array([value]), 0.5, self.t == 5, False, info


@pytest.mark.parametrize("kinds", [("nan", "clash"), ("clash", "nan"), ("lossy", "nan"), ("nan", "lossy")], ids=str)
@pytest.mark.parametrize("options", [{}, VEC | {"worker_args": {"n_envs": 2, "block_size": 6}}], ids=["default", "vec"])
def test_the_error_is_that_of_the_first_wrong_trajectory_that_is_needed(kinds, options):
    with LocalSampler(lambda _: 0, Clashing, seed=4) as sampler:
        seeds = sampler.obtain_trajectories(6).seeds
    kind_of = {seeds[2]: kinds[0], seeds[4]: kinds[1]}
    for n_workers in (1, 2):
        options |= {"n_workers": n_workers, "seed": 4, "check": "error"}
        with LocalSampler(lambda _: 0, lambda: Clashing(kind_of), **options) as sampler:
            with pytest.raises(RolloutError) as caught:
                sampler.obtain_trajectories(6)
            assert caught.value.trajectory == 2
            assert {"nan": "nan", "clash": "mask", "lossy": "123456789"}[kinds[0]] in str(caught.value)
        # A block fails as a whole. Of blocks of two, the call does not need the one that fails.
        needed = options | ({"worker_args": {"n_envs": 2, "block_size": 2}} if "worker_args" in options else {})
        with LocalSampler(lambda _: 0, lambda: Clashing(kind_of), **needed) as sampler:
            assert sampler.obtain_samples(10).lengths.tolist() == [5, 5]
            assert sampler.stats.anomalies == 0


def test_of_a_delivery_only_what_is_returned_counts():
    found = tuple(Anomaly(position, 10**position, 3, "odd") for position in range(5))
    delivery = Delivery(0, SimpleNamespace(anomalies=found), lambda: None)  # type: ignore[arg-type]
    stats = Stats.of(1)
    session = SimpleNamespace(warn_of_anomaly=lambda _: None)
    accounts = CallAccounts(session, SimpleNamespace(), stats, 7)  # type: ignore[arg-type]
    accounts.add_dropped([Segment(delivery, 1, 4, range(11, 14))], [])
    rows = {"raw_rewards": np.ones(9), "lengths": np.array([2, 3, 4])}
    yielded = SimpleNamespace(n_trajectories=3, n_timesteps=9, indices=np.array([12, 13, 14]), **rows)
    accounts.add_yielded(yielded)  # type: ignore[arg-type]
    assert (stats.anomalies, stats.first_anomaly) == (1100, FoundAnomaly(7, 12, 3, "odd"))
    yielded.indices = np.array([10, 11])
    accounts.add_yielded(yielded)  # type: ignore[arg-type]
    assert stats.anomalies == 1110
