"""Where two runs of a trajectory differ first."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler, TrajectoryBatch
from streamsampler.data.differences import first_difference
from tests.scripted.agents import Attentive
from tests.scripted.envs import Nested, Steps


def run(env: Any = Steps, agent: Any = lambda _: 0, **options: Any) -> TrajectoryBatch[Any, Any]:
    with LocalSampler(agent, env, seed=1, check=None, **options) as sampler:
        return sampler.obtain_trajectories(1)


def changed(batch: Any, name: str, row: int, by: float) -> Any:
    values = getattr(batch, name).copy()
    values[row] += by
    return dataclasses.replace(batch, **{name: values})


LENGTH = 6
ONE = run(lambda: Steps(LENGTH))
PLACES = {
    **{("observations", t): (t, "observation") for t in range(LENGTH)},
    **{("actions", t): (t, "action") for t in range(LENGTH)},
    **{("rewards", t): (t, "reward") for t in range(LENGTH)},
    ("last_observations", 0): (LENGTH, "observation"),
}


def test_nothing_differs():
    assert first_difference(ONE, run(lambda: Steps(LENGTH))) is None


@given(st.sets(st.sampled_from(sorted(PLACES)), min_size=1))
def test_the_first_of_several_in_the_order_in_which_they_happen(places):
    other = ONE
    for name, row in places:
        other = changed(other, name, row, 1)
    order = ["observation", "action", "reward"]
    expected = min((PLACES[place] for place in places), key=lambda place: (place[0], order.index(place[1])))
    found = first_difference(ONE, other)
    assert (found.timestep, found.what) == expected


@pytest.mark.parametrize("goes_on", [False, True])
def test_ends(goes_on):
    long = run(lambda: Steps(LENGTH + 2))
    one, other = (ONE, long) if goes_on else (long, ONE)
    found = first_difference(one, other)
    words = {True: "it goes on", False: "it is terminated after 6 timesteps"}
    assert (found.timestep, found.what) == (LENGTH - 1, "end")
    assert (found.recorded, found.replayed) == (words[not goes_on], words[goes_on])
    flags = first_difference(ONE, dataclasses.replace(ONE, truncated=np.array([True])))
    assert flags.what == "end"
    assert flags.replayed == "it is terminated and truncated after 6 timesteps"


def test_what_was_cut_is_compared_as_far_as_it_goes():
    long = run(lambda: Steps(LENGTH + 2))
    cut = run(lambda: Steps(LENGTH + 2), max_episode_length=LENGTH)
    assert first_difference(cut, long).what == "end"
    assert first_difference(cut, long, prefix=True) is None
    assert first_difference(changed(cut, "last_observations", 0, 1), long, prefix=True).timestep == LENGTH
    assert first_difference(long, cut, prefix=True).what == "end", "the replay is what ends early"


def test_a_part_of_a_nested_observation_is_named():
    one = run(Nested, Attentive())
    places = one.observations["place"].copy()
    places[-1, 1] = np.nextafter(places[-1, 1], np.inf)
    other = dataclasses.replace(one, observations={**one.observations, "place": places})
    found = first_difference(one, other)
    assert (found.timestep, found.path) == (len(one.rewards) - 1, "['place']")
    assert found.is_rounding
    assert not first_difference(ONE, changed(ONE, "rewards", 2, 1)).is_rounding


def test_equal_digits_are_told_apart_by_their_bits():
    rewards = ONE.rewards.copy()
    rewards[0] = -0.0
    one = dataclasses.replace(ONE, rewards=np.where(ONE.rewards == ONE.rewards[0], 0.0, ONE.rewards))
    assert "recorded 0.0, now -0.0" in str(first_difference(one, dataclasses.replace(one, rewards=rewards)))
    nan = [dataclasses.replace(ONE, rewards=np.array([value, *rewards[1:]])) for value in (np.nan, -np.nan)]
    assert first_difference(nan[0], nan[0]) is None
    assert "with the bits" in str(first_difference(*nan))
