"""What is recorded of a ticket's trajectories, and the batch that it becomes, however tickets are cut."""

import copy
import itertools
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import example, given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.assembly import GrowingBatch, Origins, assemble
from streamsampler.data.info_columns import InfoColumn, InfoColumns
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.segments import Delivery, Segment
from streamsampler.errors import ActionError, DataError, ObservationError
from tests.data.test_spaces import nested_spaces

OBSERVATIONS = S.Box(-100, 100, (2,), np.float32)
ACTIONS = S.Discrete(3)


def run(recorder, number, length, observation_space=OBSERVATIONS, action_space=ACTIONS):
    """Record trajectory `number`, the same one whatever was recorded before."""
    observation_space.seed(number)
    action_space.seed(number)
    step = recorder.begin({"number": number} if number % 2 else {})
    for time in range(length):
        recorder.record_observation(observation_space.sample())
        recorder.record_action(action_space.sample())
        recorder.record_reward(number + time)
        recorder.record_env_info(step, {"time": time, **({"odd": "x" if number > 4 else 1} if time % 2 else {})})
        recorder.record_agent_info(step, {"p": np.float32(time)} if number % 3 else {"p": time})
        step += 1
    recorder.end(observation_space.sample(), number % 2 == 0, number % 2 == 1)


def tickets(lengths, cuts, observation_space=OBSERVATIONS, action_space=ACTIONS):
    """Runs of all trajectories, recorded in tickets that end at the cuts."""
    bounds = [0, *sorted(cuts), len(lengths)]
    recorder = RolloutRecorder(observation_space, action_space)
    runs = []
    for start, stop in itertools.pairwise(bounds):
        recorder.clear()
        for number in range(start, stop):
            run(recorder, number, lengths[number], observation_space, action_space)
        runs.append((pickle.loads(pickle.dumps(recorder.finish(), protocol=5)), 0, stop - start))
    return runs


def batch_of(runs, observation_space=OBSERVATIONS, action_space=ACTIONS):
    segments, n = [], 0
    for rollouts, start, stop in runs:
        segments.append(Segment(Delivery(0, rollouts), start, stop, range(n, n := n + stop - start)))
    return assemble(
        segments, observation_space=observation_space, action_space=action_space, agent_version=1, seed=7,
        seeds_of=lambda indices: [2**100 + i for i in indices.tolist()],
    )  # fmt: skip


@given(
    observation_space=nested_spaces(),
    action_space=nested_spaces(),
    lengths=st.lists(st.integers(1, 5), max_size=7),
    data=st.data(),
)
def test_the_batch_does_not_depend_on_the_tickets(observation_space, action_space, lengths, data):
    spaces = observation_space, action_space
    cuts = data.draw(st.lists(st.integers(0, len(lengths)), max_size=3))
    whole = tickets(lengths, [], *spaces)
    one_by_one = [(whole[0][0], i, i + 1) for i in range(len(lengths))]
    expected = batch_of(whole, *spaces)
    assert batch_of(tickets(lengths, cuts, *spaces), *spaces) == batch_of(one_by_one, *spaces) == expected


def test_a_part_of_a_ticket_owns_its_memory():
    [(part, _, _)] = tickets([2, 3, 1], [])
    assert batch_of([(part, 0, 2)]) == batch_of(tickets([2, 3], []))
    middle = batch_of([(part, 1, 2)])
    assert (middle.lengths.tolist(), middle.rewards.tolist()) == ([3], [1, 2, 3])
    assert middle.episode_infos["number"].tolist() == [1]
    for name in ("observations", "actions", "last_observations", "rewards", "lengths", "terminated"):
        assert not np.shares_memory(getattr(middle, name), getattr(part, name))


def one_step(recorder, action=0, reward=0.0):
    recorder.begin({})
    recorder.record_observation([0, 0])
    recorder.record_action(action)
    recorder.record_reward(reward)


def test_an_abandoned_trajectory_leaves_nothing():
    recorder = RolloutRecorder(OBSERVATIONS, ACTIONS)
    run(recorder, 0, 2)
    step = recorder.begin({"surprise": 1})
    recorder.record_observation([0, 0])
    recorder.record_action(1)
    recorder.record_env_info(step, {"surprise": 1})
    recorder.abandon()
    one_step(recorder)
    with pytest.raises(ObservationError, match=r"\(3,\).*\(2,\)"):
        recorder.end([0, 0, 0], True, False)
    recorder.abandon()
    run(recorder, 1, 3)
    recorder.begin({"surprise": 2})
    recorder.record_observation([0, 0])
    assert (recorder.n_trajectories, recorder.n_timesteps) == (2, 5)
    assert batch_of([(recorder.finish(), 0, 2)]) == batch_of(tickets([2, 3], []))


def test_both_ends_in_one_step_and_a_reused_reward():
    recorder = RolloutRecorder(OBSERVATIONS, ACTIONS)
    reward = np.zeros(())
    for value in (1, 2):
        reward[()] = value
        one_step(recorder, reward=reward)
        recorder.end([1, 1], np.True_, np.True_)  # type: ignore[arg-type]
    rollouts = recorder.finish()
    assert rollouts.terminated.tolist() == rollouts.truncated.tolist() == [True, True]
    assert rollouts.rewards.tolist() == [1, 2]


def test_an_action_outside_its_space_names_its_trajectory():
    recorder = RolloutRecorder(OBSERVATIONS, S.Box(-1, 1, (1,), np.float32))
    for action in (0.5, 1.5):
        one_step(recorder, [0.0])
        recorder.record_observation([0, 0])
        recorder.record_action([action])
        recorder.record_reward(0)
        recorder.end([0, 0], True, False)
    with pytest.raises(ActionError, match=r"1\.5.*Box\(-1.*timestep 1 .*clip.*ClipAction") as caught:
        recorder.finish()
    assert pickle.loads(pickle.dumps(caught.value)).position == caught.value.position == 1


@pytest.mark.parametrize("n_observations", [0, 2])
def test_counts_that_differ(n_observations):
    recorder = RolloutRecorder(OBSERVATIONS, ACTIONS)
    recorder.begin({})
    for _ in range(n_observations):
        recorder.record_observation([0, 0])
    recorder.record_action(0)
    recorder.record_reward(0.0)
    with pytest.raises(DataError, match=f"{n_observations} observations, 1 actions and 1 rewards"):
        recorder.end([0, 0], True, False)


def test_large_observations_are_not_encoded_and_no_dtype_says_that_they_are():
    dtypes: list[Any] = [np.float64, np.uint8]  # to NumPy, None equals float64
    for dtype in dtypes:
        recorder = RolloutRecorder(S.Box(0, 100, (10_000,), dtype), ACTIONS)
        assert recorder.encoded_observations is None
        assert recorder.observation_dtype != dtype


def test_what_is_wrong_with_a_reset_is_of_no_timestep():
    with pytest.raises(DataError) as caught:
        RolloutRecorder(OBSERVATIONS, ACTIONS).begin({1: "a key that is no string"})  # type: ignore[dict-item]
    assert caught.value.row == -1


LARGE = S.Box(0, 255, (5000,), np.uint8)
SMALL = S.Box(0, 255, (5,), np.uint8)
MIXED = S.Dict(camera=LARGE, joints=S.Tuple([SMALL, S.Text(3)]), words=S.Sequence(S.Box(0, 1, (2,), np.float64)))
NAMES = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths")


def segment(rollouts, start, stop, n_bytes=0):
    return Segment(Delivery(0, rollouts, n_bytes), start, stop, range(start, stop))


def nothing(_):
    return {}


def rollouts_of(space, lengths, first=0, episode_info=lambda number: {"number": number}, infos=(nothing, nothing)):
    recorder = RolloutRecorder(space, S.Discrete(2))
    for number, length in enumerate(lengths, first):
        space.seed(number)
        step = recorder.begin(episode_info(number))
        for time in range(step, step + length):
            recorder.record_observation(space.sample())
            recorder.record_action(0)
            recorder.record_reward(1.0)
            recorder.record_env_info(time, infos[0](time))
            recorder.record_agent_info(time, infos[1](time))
        recorder.end(space.sample(), True, False)
    return recorder.finish()


def batch_from(growing, space=SMALL):
    return growing.batch(
        observation_space=space, action_space=S.Discrete(2), seeds_of=lambda indices: indices.tolist(),
        agent_version=1, seed=1,
    )  # fmt: skip


def grown(segments, group=100, expected=(0, 0)):
    growing = GrowingBatch(np.empty)
    for start in range(0, len(segments), group):
        growing.append(segments[start : start + group], expected)
        assert growing.n_appended == min(start + group, len(segments))
    return growing


def assert_joined(batch, segments):
    """Check that a batch of whole rollouts has the rows of all of them."""
    for name in NAMES:
        field = trees.concatenate([getattr(it.delivery.rollouts, name) for it in segments])
        assert trees.same(getattr(batch, name), field), name
        assert all(it.flags.c_contiguous and it.flags.writeable for _, it in trees.leaves(getattr(batch, name))), name


EXPECTED = st.tuples(st.integers(0, 60), st.integers(0, 30))


@given(
    parts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    group=st.integers(1, 3),
    expected=EXPECTED,
    space=st.sampled_from([LARGE, SMALL, MIXED, S.Dict()]),
)
@example(parts=[[1], [200, 1]], group=1, expected=(4, 1), space=MIXED)
@example(parts=[[1], [200, 1]], group=1, expected=(1000, 1000), space=MIXED)
def test_what_is_appended_is_what_joining_gives(parts, group, expected, space):
    segments = [segment(rollouts_of(space, lengths, 10 * n), 0, len(lengths)) for n, lengths in enumerate(parts)]
    batch = batch_from(grown(segments, group, expected), space)
    assert_joined(batch, segments)
    before = copy.deepcopy(batch.observations)
    for it in segments:  # its memory is used again
        for _, leaf in trees.leaves(it.delivery.rollouts.observations):
            for value in leaf if leaf.dtype == object else [leaf]:
                for array in value if isinstance(value, tuple) else [value] * isinstance(value, np.ndarray):
                    array[...] = 7
    assert trees.same(batch.observations, before)


def test_infos_are_copied_once():
    """A batch would be in memory twice."""
    growing = grown([segment(rollouts_of(SMALL, [1, 1], 2 * n), 0, 2) for n in range(2)], expected=(4, 4))
    one, again = batch_from(growing), batch_from(growing)
    assert np.shares_memory(one.episode_infos["number"], again.episode_infos["number"])


@pytest.mark.parametrize("space", [LARGE, SMALL])
def test_a_part_of_a_delivery_is_copied_in_part(space):
    whole = segment(rollouts_of(space, [2, 3, 4]), 0, 3)
    middle = whole._replace(start=1, stop=2, indices=range(1))
    batch = batch_from(grown([middle]), space)
    assert np.array_equal(batch.observations, whole.delivery.rollouts.observations[2:5])
    assert batch.lengths.tolist() == [3]
    assert [whole.delivery.ends_with(it) for it in (whole, whole._replace(start=2), middle)] == [True, True, False]


def test_large_rows_and_infos_are_due_at_once_small_ones_by_the_megabyte_and_objects_at_the_end():
    column = InfoColumn(None, np.zeros((1, 600_000)))
    infos = replace(rollouts_of(SMALL, [1]), agent_infos=InfoColumns(1, {("a",): column}))
    objects = rollouts_of(S.Sequence(S.Discrete(3)), [2])
    for rollouts, n_bytes, due in ((rollouts_of(LARGE, [2]), 0, True), (infos, 0, True), (objects, 10**9, False)):
        growing = GrowingBatch(np.empty)
        growing.count(segment(rollouts, 0, 1, n_bytes))
        assert growing.due == due
    growing = GrowingBatch(np.empty)
    for due in (False, True):
        growing.count(segment(rollouts_of(SMALL, [2]), 0, 1, 3_000_000))
        assert growing.due == due
    assert (growing.n_counted, growing.n_appended) == (2, 0)


class Interrupting:
    """Rollouts that are interrupted when half of their fields were copied."""

    def __init__(self, rollouts):
        self._rollouts = rollouts

    def __getattr__(self, name):
        if name == "last_observations":
            raise KeyboardInterrupt
        return getattr(self._rollouts, name)


def test_what_an_interrupt_cut_short_is_written_again():
    segments = [segment(rollouts_of(SMALL, [2, 3], n), 0, 2) for n in range(3)]
    growing = grown(segments[:1], expected=(1, 1))
    with pytest.raises(KeyboardInterrupt):
        growing.append([segments[1], segment(Interrupting(segments[2].delivery.rollouts), 0, 2)], (1, 1))
    assert growing.n_appended == 1
    growing.append(segments[1:], (1, 1))
    batch = batch_from(growing)
    assert_joined(batch, segments)
    assert batch.indices.tolist() == [0, 1] * 3


def test_rows_of_two_forms_and_keys_that_are_masks_of_others_are_errors_at_the_end():
    spaces = LARGE, S.Box(0, 255, (6000,), np.uint8), LARGE
    growing = grown([segment(rollouts_of(space, [2]), 0, 1) for space in spaces], 1, (10, 5))
    with pytest.raises(DataError, match="of the same shapes and dtypes"):
        batch_from(growing, LARGE)
    always = InfoColumn(None, np.ones(1, np.bool_))
    masks = replace(rollouts_of(SMALL, [1]), agent_infos=InfoColumns(1, {("a",): always, ("_a",): always}))
    with pytest.raises(DataError, match="agent_infos"):
        batch_from(grown([segment(masks, 0, 1)]))


INFOS = {
    "none": nothing,
    "integer": lambda step: {"a": step},
    "float": lambda step: {"a": step / 2},
    "vector": lambda step: {"a": np.arange(2.0) + step, "in": {"x": step}},
    "other_order": lambda step: {"in": {"x": step}, "a": np.arange(2.0) + step},
    "promoted": lambda step: {"a": step if step % 2 else step / 2},
    "mixed": lambda step: {"a": [np.ones(2)] if step % 2 else "odd"},
    "sometimes": lambda step: {"a": step} if step % 2 else {},
    "large": lambda step: {"a": np.full(1_000, step * 1.0)},
}
FIELDS = "env_infos", "agent_infos", "episode_infos"


def overwrite(rollouts):
    """Write over all memory of a report's infos, as the next report does."""
    for name in FIELDS:
        for column in getattr(rollouts, name).columns.values():
            for value in column.values if column.values.dtype == object else [column.values]:
                if isinstance(value, list):
                    value.clear()
                elif isinstance(value, np.ndarray):
                    value[:] = 7
            if column.steps is not None:
                column.steps[:] = 0


@given(
    reports=st.lists(st.tuples(*[st.sampled_from(sorted(INFOS))] * 3, st.booleans()), min_size=1, max_size=6),
    group=st.integers(1, 3),
    expected=EXPECTED,
)
@example(reports=[("vector", "integer", "float", False)] * 3, group=2, expected=(9, 9))
@example(reports=[("promoted", "mixed", "sometimes", False)] * 2, group=1, expected=(9, 9))
@example(reports=[(kind, kind, kind, True) for kind in INFOS], group=3, expected=(9, 9))
def test_infos_do_not_depend_on_how_they_are_appended_and_keep_no_memory_of_reports(reports, group, expected):
    segments = []
    for env, agent, episode, in_parts in reports:
        one = segment(rollouts_of(SMALL, [1, 2, 3], 0, INFOS[episode], (INFOS[env], INFOS[agent])), 0, 3)
        halves = [one._replace(stop=1, indices=range(1)), one._replace(start=1, indices=range(1, 3))]
        segments += halves if in_parts else [one]
    whole = batch_from(grown(segments))
    growing = GrowingBatch(np.empty)
    for start in range(0, len(segments), group):
        taken = segments[start : start + group]
        growing.append(taken, expected)
        for it in taken:
            if it.delivery.ends_with(it):
                overwrite(it.delivery.rollouts)
                del it.delivery.rollouts
    batch = batch_from(growing)
    assert batch == whole
    for name in FIELDS:
        assert list(getattr(batch, name)) == list(getattr(whole, name))
        columns = trees.leaves(getattr(batch, name))
        assert all(leaf.flags.writeable and leaf.flags.c_contiguous for _, leaf in columns)


def test_indices_of_many_trajectories_take_no_more_memory_than_their_array():
    """A million short trajectories took three times as much in lists of Python integers."""
    segments = [segment(None, start, start + 1_000) for start in range(0, 100_000, 1_000)]
    tracemalloc.start()
    try:
        indices = Origins.of(segments).indices
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert indices.tolist() == list(range(100_000))
    assert peak < 3 * indices.nbytes
