"""What is recorded of a ticket's trajectories, and the batch that it becomes, however tickets are cut."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data.assembly import Delivery, assemble
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.errors import ActionError, DataError, ObservationError
from streamsampler.protocol.result import Segment
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
        segments.append(Segment(Delivery(0, rollouts, lambda: None), start, stop, range(n, n := n + stop - start)))
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
