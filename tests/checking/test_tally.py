"""`Tally`: rates that count resets in, from timesteps that came at known times. No clock and no process."""

import pytest

from streamsampler.checking.tally import Tally


def tally_of(arrivals, n_envs=1, length=1_000.0):
    """Return the tally of a round in which so many timesteps in all had arrived after so many seconds."""
    tally = Tally(n_envs, length)
    for seconds, timesteps in arrivals:
        tally.add(timesteps, seconds)
    return tally


def arrivals_of(reset, step, length, n_envs=1, until=10.0):
    """Return when timesteps arrive from environments that are reset and stepped in turn, in one process."""
    now, timesteps, found = 0.0, 0, []
    while now < until:
        now += n_envs * reset
        for _ in range(length):
            now += n_envs * step
            timesteps += n_envs
            found.append((now, timesteps))
    return found


@pytest.mark.parametrize("until", [0.1, 0.31, 1.0, 5.0])
@pytest.mark.parametrize("n_envs", [1, 8])
def test_slow_resets_are_counted_in(until, n_envs):
    """60 fast timesteps after each reset of 0.3 s: 200 a second, however few trajectories the round holds."""
    tally = tally_of(arrivals_of(0.3, 1e-6, 60, n_envs, until), n_envs, length=60)
    assert tally.rate == pytest.approx(200, rel=0.01)


def test_whole_trajectories_that_arrive_at_once_all_count():
    assert tally_of([(0.3, 60), (0.6, 120), (0.9, 180)], length=60).rate == pytest.approx(200)


@pytest.mark.parametrize("n_known", [20, 60, 100])
def test_the_rate_is_never_above_what_there_is_wherever_the_round_ends(n_known):
    arrivals = arrivals_of(0.3, 1e-3, 60, n_envs=4, until=3.0)
    truth = 60 / (0.3 + 60 * 1e-3)
    for end in range(1, len(arrivals)):
        rate = tally_of(arrivals[:end], 4, length=min(n_known, 60)).rate
        assert rate <= truth * 1.1


def test_slow_timesteps_are_counted_from_the_beginning():
    """The first of two workers may be a moment ahead of the second: no rate lies in that moment."""
    assert tally_of([(2.0, 1)]).rate == pytest.approx(0.5)
    assert tally_of([(2.0, 1), (2.01, 2)], 2).rate == pytest.approx(1.0, rel=0.01)
    assert tally_of([(2.0, 1), (2.02, 2), (4.0, 3), (4.02, 4)], 2).rate == pytest.approx(1.0, rel=0.01)


def test_time_without_timesteps_at_the_end_does_not_count():
    assert tally_of([(1.0, 10), (1.5, 10), (1.9, 10)]).rate == pytest.approx(10)


def test_resets_count_in_proportion_to_what_was_stepped_of_the_trajectories():
    """A hundredth of the trajectories was stepped: a hundredth of the resets belongs to it."""
    arrivals = [(0.5 + 0.001 * n, n) for n in range(1, 101)]
    assert tally_of(arrivals, 1, length=10_000).rate == pytest.approx(1 / (0.001 + 0.5 / 10_000), rel=0.02)
    assert tally_of(arrivals, 1, length=100).rate == pytest.approx(100 / 0.6, rel=0.02)


def test_few_timesteps_make_a_rate_uncertain():
    assert not tally_of([(2.0, 2), (4.0, 4)], 2).certain
    assert tally_of([(2.0, 2), (4.0, 20)], 2).certain


def test_a_round_ends_when_each_environment_had_its_turn():
    tally = tally_of([(2.0, 1)], 2)
    assert not tally.ends(2.01, window=0.1)
    tally.add(2, 2.02)
    assert tally.ends(2.02, window=0.1)
    assert not tally.ends(2.02, window=3.0)
    assert tally_of([(2.0, 1)], 16).ends(2.5, window=0.1)  # the others would have had it by now
    assert not tally_of([], 16).ends(100.0, window=0.1)


def test_a_round_with_few_timesteps_goes_on_while_it_may():
    tally = tally_of([(0.1, 2)], 2)
    assert not tally.ends(0.3, window=0.1, most=0.5)
    assert tally.ends(0.6, window=0.1, most=0.5)
    tally.add(20, 0.4)
    assert tally.ends(0.4, window=0.1, most=0.5)


def test_slow_resets_do_not_take_the_window_of_the_timesteps():
    tally = Tally(1, length=60, resets=0.3)
    tally.add(10, 0.31)
    assert not tally.ends(0.31, window=0.1)
    assert tally.ends(0.41, window=0.1)


def test_nothing_is_known_without_timesteps():
    tally = tally_of([(1.0, 0)])
    assert tally.rate == 0
    assert not tally.certain
