import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.assembly import Delivery, EarlyRows, indices_of, infos_alone
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.scheduling.result import Segment

LARGE = S.Box(0, 255, (5000,), np.uint8)
SMALL = S.Box(0, 255, (5,), np.uint8)
MIXED = S.Dict(camera=LARGE, joints=S.Tuple([SMALL, S.Text(3)]))


def allocate(shape, dtype):
    return np.empty(shape, dtype)


def segment(rollouts, start, stop, n_bytes=0):
    return Segment(Delivery(0, rollouts, lambda: None, n_bytes), start, stop, range(start, stop))


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


NAMES = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths")


def joined(segments):
    """What the fields of a batch of whole rollouts are."""
    return {name: trees.concatenate([getattr(it.delivery.rollouts, name) for it in segments]) for name in NAMES}


@given(
    parts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    group=st.integers(1, 3),
    expected=st.tuples(st.integers(1, 60), st.integers(1, 30)),
    space=st.sampled_from([LARGE, SMALL, MIXED, S.Dict()]),
)
def test_copied_early_is_what_joining_gives(parts, group, expected, space):
    early = EarlyRows(allocate)
    segments = [segment(rollouts_of(space, lengths, 10 * n), 0, len(lengths)) for n, lengths in enumerate(parts)]
    for start in range(0, len(segments), group):
        assert early.take(segments[start : start + group], expected)
        assert early.n_taken == min(start + group, len(segments))
    fields = early.fields()
    assert fields.keys() == set(NAMES)
    for name, field in joined(segments).items():
        assert trees.same(fields[name], field), name
        for (_, ours), (_, theirs) in zip(trees.leaves(fields[name]), trees.leaves(field), strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            assert ours.flags.c_contiguous
            assert ours.flags.writeable


@pytest.mark.parametrize("space", [LARGE, SMALL])
def test_a_part_of_a_delivery_is_copied_in_part(space):
    rollouts = rollouts_of(space, [2, 3, 4])
    early = EarlyRows(allocate)
    assert early.take([segment(rollouts, 1, 2)], (1, 1))
    fields = early.fields()
    assert np.array_equal(fields["observations"], rollouts.observations[2:5])
    assert fields["lengths"].tolist() == [3]


def test_large_rows_are_due_at_once_and_small_ones_by_the_megabyte():
    early = EarlyRows(allocate)
    early.count(segment(rollouts_of(LARGE, [2]), 0, 1))
    assert early.due
    early = EarlyRows(allocate)
    early.count(segment(rollouts_of(SMALL, [2]), 0, 1, 3_000_000))
    assert not early.due
    early.count(segment(rollouts_of(SMALL, [2]), 0, 1, 3_000_000))
    assert early.due
    assert early.n_counted == 2
    assert early.fields() == {}


def test_what_an_interrupt_cut_short_is_written_again():
    early, segments = EarlyRows(allocate), [segment(rollouts_of(SMALL, [2, 3], n), 0, 2) for n in range(3)]
    assert early.take(segments[:1], (1, 1))
    with pytest.raises(KeyboardInterrupt):
        early.take([segments[1], segment(Interrupting(segments[2].delivery.rollouts), 0, 2)], (1, 1))
    assert early.n_taken == 1
    assert early.take(segments[1:], (1, 1))
    fields = early.fields()
    assert all(trees.same(fields[name], field) for name, field in joined(segments).items())


class Interrupting:
    """Rollouts that are interrupted when half of their fields were copied."""

    def __init__(self, rollouts):
        self._rollouts = rollouts

    def __getattr__(self, name):
        if name == "last_observations":
            raise KeyboardInterrupt
        return getattr(self._rollouts, name)


def test_rows_with_objects_are_left_for_the_end():
    early = EarlyRows(allocate)
    early.count(segment(rollouts_of(S.Sequence(S.Discrete(3)), [2]), 0, 1, 10**9))
    assert not early.due


def test_rows_of_two_forms_are_left_for_the_error_at_the_end():
    early = EarlyRows(allocate)
    assert early.take([segment(rollouts_of(LARGE, [2]), 0, 1)], (10, 5))
    assert not early.take([segment(rollouts_of(S.Box(0, 255, (6000,), np.uint8), [2]), 0, 1)], (10, 5))
    assert early.fields() == {}
    early.count(segment(rollouts_of(LARGE, [2]), 0, 1, 10**9))
    assert not early.due


def test_objects_among_large_rows_share_nothing_with_what_they_came_in():
    space = S.Dict(camera=LARGE, words=S.Sequence(S.Box(0, 1, (2,), np.float64)))
    rollouts = rollouts_of(space, [3])
    objects = [leaf for _, leaf in trees.leaves(rollouts.observations) if leaf.dtype == object]
    assert objects
    for leaf in objects:
        leaf[0] = np.arange(4.0)
    early = EarlyRows(allocate)
    assert early.take([segment(rollouts, 0, 1)], (3, 1))
    ours = [leaf for _, leaf in trees.leaves(early.fields()["observations"]) if leaf.dtype == object]
    for copied, leaf in zip(ours, objects, strict=True):
        assert np.array_equal(copied[0], leaf[0])
        assert not np.shares_memory(copied[0], leaf[0])


def test_what_is_left_of_rollouts_shares_nothing_with_them():
    recorder = RolloutRecorder(SMALL, S.Discrete(2))
    recorder.begin({"number": 1})
    for step in range(3):
        recorder.record_observation(SMALL.sample())
        recorder.record_action(0)
        recorder.record_reward(1.0)
        recorder.record_env_info(step, {"where": np.ones(2), "sometimes": 1.0} if step else {"where": np.ones(2)})
        recorder.record_agent_info(step, {"mixed": [np.ones(2)] if step else 1})
    recorder.end(SMALL.sample(), True, False)
    rollouts = recorder.finish()
    rest = infos_alone(rollouts)
    assert rest.lengths.tolist() == [3]
    assert not np.shares_memory(rest.lengths, rollouts.lengths)
    for name in ("env_infos", "agent_infos", "episode_infos"):
        ours, theirs = getattr(rest, name), getattr(rollouts, name)
        assert ours.columns.keys() == theirs.columns.keys() != set()
        for key, column in theirs.columns.items():
            copied = ours.columns[key]
            assert (copied.raw, copied.values.dtype) == (column.raw, column.values.dtype)
            assert trees.same(copied.values, column.values)
            assert not np.shares_memory(copied.values, column.values)
            assert (copied.steps is None) == (column.steps is None)
            if column.steps is not None:
                assert np.array_equal(copied.steps, column.steps)
                assert not np.shares_memory(copied.steps, column.steps)
    mixed, same = (part.agent_infos.columns[("mixed",)].values for part in (rest, rollouts))
    assert mixed[1][0] is not same[1][0]


@pytest.mark.parametrize("space", [LARGE, SMALL, MIXED])
@pytest.mark.parametrize("lengths", [[3, 4], [1, 200]])
@pytest.mark.parametrize("expected", [(0, 0), (4, 1), (1000, 1000)])
def test_the_expected_number_is_a_guess(space, lengths, expected):
    rollouts = rollouts_of(space, lengths)
    early = EarlyRows(allocate)
    assert early.take([segment(rollouts, 0, 1)], expected)
    assert early.take([segment(rollouts, 1, 2)], expected)
    assert trees.same(early.fields()["observations"], rollouts.observations)


def test_indices_of_many_trajectories_take_no_more_memory_than_their_array():
    """A million short trajectories took three times as much in lists of Python integers."""
    n_segments, n = 100, 1_000
    segments = [segment(None, w * n, w * n + n) for w in range(n_segments)]
    tracemalloc.start()
    try:
        indices = indices_of(segments)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert indices.tolist() == list(range(n_segments * n))
    assert peak < 2 * indices.nbytes


def test_the_last_segment_of_a_delivery_ends_it():
    whole = segment(rollouts_of(SMALL, [2, 3, 4]), 0, 3)
    assert whole.delivery.ends_with(whole)
    assert not whole.delivery.ends_with(whole._replace(stop=2))
    assert whole.delivery.ends_with(whole._replace(start=2))
