"""Where two runs of a trajectory differ first."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler, TrajectoryBatch
from streamsampler.data.differences import first_difference
from tests.scripted.agents import Attentive
from tests.scripted.envs import Nested, Steps

LENGTH = 6


def run(env: Any, agent: Any = lambda _: 0, **options: Any) -> TrajectoryBatch[Any, Any]:
    with LocalSampler(agent, env, seed=1, check=None, **options) as sampler:
        return sampler.obtain_trajectories(1)


def changed(batch: Any, name: str, row: int, by: float) -> Any:
    values = getattr(batch, name).copy()
    values[row] += by
    return dataclasses.replace(batch, **{name: values})


ONE, LONG = run(lambda: Steps(LENGTH)), run(lambda: Steps(LENGTH + 2))
WHAT = ["observation", "action", "reward"]  # in the order in which they happen
PLACES = {(f"{what}s", t): (t, place) for place, what in enumerate(WHAT) for t in range(LENGTH)}
PLACES["last_observations", 0] = LENGTH, 0


@given(st.sets(st.sampled_from(sorted(PLACES)), min_size=1))
def test_the_first_of_several_in_the_order_in_which_they_happen(places):
    other = ONE
    for name, row in places:
        other = changed(other, name, row, 1)
    found = first_difference(ONE, other)
    timestep, place = min(PLACES[it] for it in places)
    assert (found.timestep, found.what, found.is_rounding) == (timestep, WHAT[place], False)


def test_ends():
    assert first_difference(ONE, run(lambda: Steps(LENGTH))) is None
    words = "it is terminated after 6 timesteps", "it continues"
    for pair, told in (((ONE, LONG), words), ((LONG, ONE), words[::-1])):
        found = first_difference(*pair)
        assert (found.timestep, found.what, found.recorded, found.replayed) == (LENGTH - 1, "end", *told)
    flags = first_difference(ONE, dataclasses.replace(ONE, truncated=np.array([True])))
    assert (flags.what, flags.replayed) == ("end", "it is terminated and truncated after 6 timesteps")


def test_what_was_cut_is_compared_as_far_as_it_goes():
    cut = run(lambda: Steps(LENGTH + 2), max_episode_length=LENGTH)
    assert first_difference(cut, LONG).what == "end"
    assert first_difference(cut, LONG, prefix=True) is None
    assert first_difference(changed(cut, "last_observations", 0, 1), LONG, prefix=True).timestep == LENGTH
    assert first_difference(LONG, cut, prefix=True).what == "end", "the replay is what ends early"


def test_a_part_of_a_nested_observation_is_named_and_rounding_is_told():
    one = run(Nested, Attentive())
    places = one.observations["place"].copy()
    places[-1, 1] = np.nextafter(places[-1, 1], np.inf)
    found = first_difference(one, dataclasses.replace(one, observations={**one.observations, "place": places}))
    assert (found.timestep, found.path, found.is_rounding) == (len(one.rewards) - 1, "['place']", True)


def test_equal_digits_are_told_apart_by_their_bits():
    def with_first(reward):
        return dataclasses.replace(ONE, rewards=np.array([reward, *ONE.rewards[1:]]))

    assert "recorded 0.0, now -0.0" in str(first_difference(with_first(0.0), with_first(-0.0)))
    assert first_difference(with_first(np.nan), with_first(np.nan)) is None
    assert "with the bits" in str(first_difference(with_first(np.nan), with_first(-np.nan)))
