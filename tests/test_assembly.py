import dataclasses
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import trees
from streamsampler.assembly import EarlyObservations, without_observations
from streamsampler.collector import indices_of, workers_of
from streamsampler.gathering import Run
from streamsampler.recording import RolloutRecorder

LARGE = S.Box(0, 255, (5000,), np.uint8)
SMALL = S.Box(0, 255, (5,), np.uint8)
MIXED = S.Dict(camera=LARGE, joints=S.Tuple([SMALL, S.Text(3)]))


def allocate(shape, dtype):
    return np.empty(shape, dtype)


def rollouts_of(space, lengths, first=0):
    recorder = RolloutRecorder(space, S.Discrete(2))
    for number, length in enumerate(lengths, first):
        space.seed(number)
        recorder.begin({"number": number})
        for _ in range(length):
            recorder.record_observation(space.sample())
            recorder.record_action(0)
            recorder.record_reward(1.0)
        recorder.end(space.sample(), True, False)
    return recorder.finish()


@given(
    parts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5),
    expected=st.integers(1, 60),
    space=st.sampled_from([LARGE, MIXED]),
)
def test_copied_run_by_run_is_what_joining_gives(parts, expected, space):
    early, runs = EarlyObservations(allocate), []
    for number, lengths in enumerate(parts):
        rollouts = rollouts_of(space, lengths, 10 * number)
        runs.append((rollouts, 0, len(lengths)))
        assert early.take(runs[-1], expected)
        # A view of it, too, is of no use to the batch.
        assert early.n_runs == number + 1
    assert trees.same(early.tree(), trees.concatenate([run[0].observations for run in runs]))


def test_a_part_of_a_run_is_copied_in_part():
    rollouts = rollouts_of(LARGE, [2, 3, 4])
    early = EarlyObservations(allocate)
    assert early.take((rollouts, 1, 2), 1)
    assert np.array_equal(early.tree(), rollouts.observations[2:5])


def test_small_rows_are_left_for_the_end():
    early = EarlyObservations(allocate)
    assert not early.take((rollouts_of(SMALL, [2]), 0, 1), 1)
    assert early.tree() is None
    assert not early.take((rollouts_of(LARGE, [2]), 0, 1), 1)


def test_rows_of_two_forms_are_left_for_whoever_complains():
    early = EarlyObservations(allocate)
    assert early.take((rollouts_of(LARGE, [2]), 0, 1), 10)
    assert not early.take((rollouts_of(S.Box(0, 255, (6000,), np.uint8), [2]), 0, 1), 10)
    assert early.tree() is None


def test_what_is_left_of_rollouts_shares_nothing_with_them():
    rollouts = rollouts_of(MIXED, [2, 3])
    rest = without_observations(rollouts)
    assert rest.observations == ()
    for field in dataclasses.fields(rollouts):
        if field.name == "observations":
            continue
        ours, theirs = getattr(rest, field.name), getattr(rollouts, field.name)
        if isinstance(ours, np.ndarray):
            assert trees.equal(ours, theirs)
            assert not np.shares_memory(ours, theirs)
    assert trees.same(rest.last_observations, rollouts.last_observations)
    assert not np.shares_memory(rest.last_observations["camera"], rollouts.last_observations["camera"])


@pytest.mark.parametrize("expected", [0, 4, 1000])
def test_the_expected_number_is_a_guess(expected):
    rollouts = rollouts_of(LARGE, [3, 4])
    early = EarlyObservations(allocate)
    assert early.take((rollouts, 0, 1), expected)
    assert early.take((rollouts, 1, 2), expected)
    assert np.array_equal(early.tree(), rollouts.observations)


def test_indices_of_many_trajectories_take_no_more_memory_than_their_array():
    """A million short trajectories took three times as much in lists of Python integers."""
    n_runs, n = 100, 1_000
    runs = [
        Run(SimpleNamespace(worker=w % 3), range(w * n, w * n + n), 0, n, [0] + [1] * (n - 1)) for w in range(n_runs)
    ]
    tracemalloc.start()
    try:
        indices, workers = indices_of(runs), workers_of(runs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = [index for index in range(n_runs * n) if index % n]
    assert indices.tolist() == kept
    assert workers.tolist() == [index // n % 3 for index in kept]
    assert peak < 2 * (indices.nbytes + workers.nbytes)
