import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import example, given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.assembly import Delivery, GrowingBatch, Origins
from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.errors import DataError
from streamsampler.protocol.result import Segment

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


def batch_of(growing, space=SMALL):
    return growing.batch(
        observation_space=space, action_space=S.Discrete(2), seeds_of=lambda indices: indices.tolist(),
        agent_version=1, seed=1,
    )  # fmt: skip


def whole(segments, space=SMALL):
    growing = GrowingBatch()
    growing.append(segments)
    return batch_of(growing, space)


@given(
    parts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    group=st.integers(1, 3),
    expected=st.tuples(st.integers(0, 60), st.integers(0, 30)),
    space=st.sampled_from([LARGE, SMALL, MIXED, S.Dict()]),
)
def test_what_is_appended_is_what_joining_gives(parts, group, expected, space):
    growing = GrowingBatch(allocate)
    segments = [segment(rollouts_of(space, lengths, 10 * n), 0, len(lengths)) for n, lengths in enumerate(parts)]
    for start in range(0, len(segments), group):
        growing.append(segments[start : start + group], expected)
        assert growing.n_appended == min(start + group, len(segments))
    batch = batch_of(growing, space)
    for name, field in joined(segments).items():
        assert trees.same(getattr(batch, name), field), name
        for _, leaf in trees.leaves(getattr(batch, name)):
            assert leaf.flags.c_contiguous
            assert leaf.flags.writeable


def test_infos_that_are_alike_are_copied_once():
    """A batch would be in memory twice."""
    growing = GrowingBatch(allocate)
    growing.append([segment(rollouts_of(SMALL, [1, 1], 2 * n), 0, 2) for n in range(2)], (4, 4))
    one, again = batch_of(growing), batch_of(growing)
    assert np.shares_memory(one.episode_infos["number"], again.episode_infos["number"])


@pytest.mark.parametrize("space", [LARGE, SMALL])
def test_a_part_of_a_delivery_is_copied_in_part(space):
    rollouts = rollouts_of(space, [2, 3, 4])
    batch = whole([segment(rollouts, 1, 2)], space)
    assert np.array_equal(batch.observations, rollouts.observations[2:5])
    assert batch.lengths.tolist() == [3]


def test_large_rows_are_due_at_once_and_small_ones_by_the_megabyte():
    growing = GrowingBatch(allocate)
    growing.count(segment(rollouts_of(LARGE, [2]), 0, 1))
    assert growing.due
    growing = GrowingBatch(allocate)
    growing.count(segment(rollouts_of(SMALL, [2]), 0, 1, 3_000_000))
    assert not growing.due
    growing.count(segment(rollouts_of(SMALL, [2]), 0, 1, 3_000_000))
    assert growing.due
    assert (growing.n_counted, growing.n_appended) == (2, 0)


def test_what_an_interrupt_cut_short_is_written_again():
    growing, segments = GrowingBatch(allocate), [segment(rollouts_of(SMALL, [2, 3], n), 0, 2) for n in range(3)]
    growing.append(segments[:1], (1, 1))
    with pytest.raises(KeyboardInterrupt):
        growing.append([segments[1], segment(Interrupting(segments[2].delivery.rollouts), 0, 2)], (1, 1))
    assert growing.n_appended == 1
    growing.append(segments[1:], (1, 1))
    batch = batch_of(growing)
    assert all(trees.same(getattr(batch, name), field) for name, field in joined(segments).items())
    assert batch.indices.tolist() == [0, 1] * 3


class Interrupting:
    """Rollouts that are interrupted when half of their fields were copied."""

    def __init__(self, rollouts):
        self._rollouts = rollouts

    def __getattr__(self, name):
        if name == "last_observations":
            raise KeyboardInterrupt
        return getattr(self._rollouts, name)


def test_rows_with_objects_are_left_for_the_end():
    growing = GrowingBatch(allocate)
    growing.count(segment(rollouts_of(S.Sequence(S.Discrete(3)), [2]), 0, 1, 10**9))
    assert not growing.due


def test_rows_of_two_forms_are_an_error_at_the_end():
    growing = GrowingBatch(allocate)
    growing.append([segment(rollouts_of(LARGE, [2]), 0, 1)], (10, 5))
    growing.append([segment(rollouts_of(S.Box(0, 255, (6000,), np.uint8), [2]), 0, 1)], (10, 5))
    growing.append([segment(rollouts_of(LARGE, [2]), 0, 1)], (10, 5))
    with pytest.raises(DataError, match="of the same shapes and dtypes"):
        batch_of(growing, LARGE)


def test_objects_among_large_rows_share_nothing_with_what_they_came_in():
    space = S.Dict(camera=LARGE, words=S.Sequence(S.Box(0, 1, (2,), np.float64)))
    rollouts = rollouts_of(space, [3])
    objects = [leaf for _, leaf in trees.leaves(rollouts.observations) if leaf.dtype == object]
    assert objects
    for leaf in objects:
        leaf[0] = np.arange(4.0)
    batch = whole([segment(rollouts, 0, 1)], space)
    ours = [leaf for _, leaf in trees.leaves(batch.observations) if leaf.dtype == object]
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
    growing = GrowingBatch(allocate)
    only = segment(rollouts, 0, 1)
    growing.append([only], (3, 1))
    expected = whole([only])
    for infos in (rollouts.env_infos, rollouts.agent_infos):
        for column in infos.columns.values():
            if column.values.dtype == object:
                column.values[-1][0][:] = 7
            else:
                column.values[:] = 7
            if column.steps is not None:
                column.steps[:] = 0
    assert trees.same(batch_of(growing).env_infos, expected.env_infos)
    assert trees.same(batch_of(growing).agent_infos, expected.agent_infos)


@pytest.mark.parametrize("space", [LARGE, SMALL, MIXED])
@pytest.mark.parametrize("lengths", [[3, 4], [1, 200]])
@pytest.mark.parametrize("expected", [(0, 0), (4, 1), (1000, 1000)])
def test_the_expected_number_is_a_guess(space, lengths, expected):
    rollouts = rollouts_of(space, lengths)
    growing = GrowingBatch(allocate)
    growing.append([segment(rollouts, 0, 1)], expected)
    growing.append([segment(rollouts, 1, 2)], expected)
    assert trees.same(batch_of(growing, space).observations, rollouts.observations)


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
def test_infos_do_not_depend_on_how_they_are_appended(reports, group, expected):
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
        one = segment(recorder.finish(), 0, 3)
        halves = [one._replace(stop=1, indices=range(1)), one._replace(start=1, indices=range(1, 3))]
        segments += halves if in_parts else [one]
    expected_batch = whole(segments)
    growing = GrowingBatch(allocate)
    for start in range(0, len(segments), group):
        taken = segments[start : start + group]
        growing.append(taken, expected)
        for it in taken:
            if it.delivery.ends_with(it):
                del it.delivery.rollouts
    batch = batch_of(growing)
    assert batch == expected_batch
    assert [list(infos) for infos in (batch.env_infos, batch.agent_infos, batch.episode_infos)] == [
        list(infos) for infos in (expected_batch.env_infos, expected_batch.agent_infos, expected_batch.episode_infos)
    ]
    columns = trees.leaves((batch.env_infos, batch.agent_infos, batch.episode_infos))
    assert all(leaf.flags.writeable and leaf.flags.c_contiguous for _, leaf in columns)


def test_a_key_that_has_the_name_of_a_mask_is_refused():
    always = InfoColumn(None, np.ones(1, np.bool_))
    infos = InfoColumns(1, {("a",): always, ("_a",): always})
    with pytest.raises(DataError, match="agent_infos"):
        whole([segment(replace(rollouts_of(SMALL, [1]), agent_infos=infos), 0, 1)])


def test_bytes_of_infos_count_as_well():
    rollouts = rollouts_of(SMALL, [1])
    column = InfoColumn(None, np.zeros((1, 600_000)))
    growing = GrowingBatch(allocate)
    growing.count(segment(replace(rollouts, agent_infos=InfoColumns(1, {("a",): column})), 0, 1))
    assert growing.due


def test_indices_of_many_trajectories_take_no_more_memory_than_their_array():
    """A million short trajectories took three times as much in lists of Python integers."""
    n_segments, n = 100, 1_000
    segments = [segment(None, w * n, w * n + n) for w in range(n_segments)]
    tracemalloc.start()
    try:
        indices = Origins.of(segments).indices
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert indices.tolist() == list(range(n_segments * n))
    assert peak < 3 * indices.nbytes


def test_the_last_segment_of_a_delivery_ends_it():
    whole = segment(rollouts_of(SMALL, [2, 3, 4]), 0, 3)
    assert whole.delivery.ends_with(whole)
    assert not whole.delivery.ends_with(whole._replace(stop=2))
    assert whole.delivery.ends_with(whole._replace(start=2))
