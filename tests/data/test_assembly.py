import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import example, given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.assembly import Delivery, EarlyRows, assemble, indices_of
from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.errors import DataError
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
    assert fields.keys() == {*NAMES, "env_infos", "agent_infos", "episode_infos"}
    for name, field in joined(segments).items():
        assert trees.same(fields[name], field), name
        for (_, ours), (_, theirs) in zip(trees.leaves(fields[name]), trees.leaves(field), strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            assert ours.flags.c_contiguous
            assert ours.flags.writeable


def test_infos_that_were_all_copied_early_are_not_copied_again():
    """A batch would be in memory twice."""
    segments = [segment(rollouts_of(SMALL, [1, 1], 2 * n), 0, 2) for n in range(2)]
    early = EarlyRows(allocate)
    assert early.take(segments, (4, 4))
    batch = assembled([], early)
    ((_, column),) = early.fields()["episode_infos"][0].columns.items()
    assert np.shares_memory(batch.episode_infos["number"], column.values)


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
    assert [len(origins.indices) for origins in early.origins] == [2, 4]


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


def test_infos_that_are_not_alike_are_kept_in_memory_of_their_own():
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
    early = EarlyRows(allocate)
    assert early.take([segment(rollouts, 0, 1)], (3, 1))
    kept = {}
    for name in ("env_infos", "agent_infos"):
        columns, ((ours, start, stop),) = early.fields()[name]
        assert columns.length == 0
        assert (start, stop) == (0, 3)
        kept[name], theirs = ours, getattr(rollouts, name)
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
    mixed, same = (part.columns[("mixed",)].values for part in (kept["agent_infos"], rollouts.agent_infos))
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


INFOS = {
    "none": lambda _: {},
    "integer": lambda step: {"a": step},
    "float": lambda step: {"a": step / 2},
    "vector": lambda step: {"a": np.arange(2.0) + step, "in": {"x": step}},
    "other_order": lambda step: {"in": {"x": step}, "a": np.arange(2.0) + step},
    "promoted": lambda step: {"a": step if step % 2 else step / 2},
    "mixed": lambda step: {"a": step if step % 2 else "odd"},
    "sometimes": lambda step: {"a": step} if step % 2 else {},
    "large": lambda step: {"a": np.full(1_000, step * 1.0)},
}


@given(
    reports=st.lists(st.tuples(*[st.sampled_from(sorted(INFOS))] * 3, st.booleans()), min_size=1, max_size=6),
    group=st.integers(1, 3),
    expected=st.tuples(st.integers(0, 60), st.integers(0, 30)),
)
@example(reports=[("vector", "integer", "float", False)] * 3, group=2, expected=(9, 9))
@example(
    reports=[("vector", "integer", "float", True), ("vector", "float", "none", False)] * 2, group=1, expected=(9, 9)
)
@example(reports=[("promoted", "mixed", "sometimes", False)] * 2, group=1, expected=(9, 9))
@example(reports=[(kind, kind, kind, True) for kind in INFOS], group=3, expected=(9, 9))
def test_infos_copied_early_are_what_joining_gives(reports, group, expected):
    segments = []
    for *kinds, in_parts in reports:
        recorder = RolloutRecorder(SMALL, S.Discrete(2))
        env_info, agent_info, episode_info = (INFOS[kind] for kind in kinds)
        for number in range(3):
            recorder.begin(episode_info(number))
            for step in range(recorder.n_timesteps, recorder.n_timesteps + number + 1):
                recorder.record_observation(np.zeros(5, np.uint8))
                recorder.record_action(0)
                recorder.record_reward(1.0)
                recorder.record_env_info(step, env_info(step))
                recorder.record_agent_info(step, agent_info(step))
            recorder.end(np.zeros(5, np.uint8), True, False)
        whole = segment(recorder.finish(), 0, 3)
        halves = [whole._replace(stop=1, indices=range(1)), whole._replace(start=1, indices=range(1, 3))]
        segments += halves if in_parts else [whole]
    expected_batch = assembled(segments)
    early = EarlyRows(allocate)
    for start in range(0, len(segments), group):
        taken = segments[start : start + group]
        assert early.take(taken, expected)
        for it in taken:
            if it.delivery.ends_with(it):
                del it.delivery.rollouts
    batch = assembled([], early)
    assert batch == expected_batch
    assert [list(infos) for infos in (batch.env_infos, batch.agent_infos, batch.episode_infos)] == [
        list(infos) for infos in (expected_batch.env_infos, expected_batch.agent_infos, expected_batch.episode_infos)
    ]
    columns = trees.leaves((batch.env_infos, batch.agent_infos, batch.episode_infos))
    assert all(leaf.flags.writeable and leaf.flags.c_contiguous for _, leaf in columns)


def assembled(segments, early=None):
    return assemble(
        segments, observation_space=SMALL, action_space=S.Discrete(2), seeds_of=lambda indices: indices.tolist(),
        agent_version=1, seed=1, joined=early.fields() if early else {}, origins=early.origins if early else (),
    )  # fmt: skip


@pytest.mark.parametrize("is_early", [False, True])
def test_a_key_that_has_the_name_of_a_mask_is_refused(is_early):
    always = InfoColumn(None, np.ones(1, np.bool_))
    infos = InfoColumns(1, {("a",): always, ("_a",): always})
    only = segment(replace(rollouts_of(SMALL, [1]), agent_infos=infos), 0, 1)
    early = EarlyRows(allocate)
    assert early.take([only], (1, 1))
    with pytest.raises(DataError, match="agent_infos"):
        assembled([] if is_early else [only], early if is_early else None)


def test_bytes_of_infos_count_as_well():
    rollouts = rollouts_of(SMALL, [1])
    column = InfoColumn(None, np.zeros((1, 600_000)))
    early = EarlyRows(allocate)
    early.count(segment(replace(rollouts, agent_infos=InfoColumns(1, {("a",): column})), 0, 1))
    assert early.due


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
