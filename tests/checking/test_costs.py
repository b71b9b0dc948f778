"""What is measured of environments and agents: how many processes follow from it, and rates that count resets in.

No clock and no process: timesteps come at known times.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.checking.costs import Costs, Spinning, processes_for
from streamsampler.checking.in_flight import enough_in_flight, hint_of_in_flight, numbers_in_flight, why_in_flight
from streamsampler.checking.round_tally import RoundTally
from streamsampler.checking.sampler_ways import Stopwatch
from streamsampler.checking.way import Round, TooSlowError
from streamsampler.core.progress import Snapshot


@pytest.mark.parametrize(
    ("cpu_share", "free_share", "n_cores", "n_processes"),
    [
        (0.1, 1.0, 2, 8),  # environments that wait get more processes
        (0.4, 1.0, 2, 5),
        (0.1, 1.0, 64, 64),  # as many as there are cores are costly enough to start
        (0.95, 1.0, 2, 2),
        (3.0, 1.0, 16, 5),  # those with threads get fewer
        (3.0, 1.0, 2, 1),
        (1.7, 0.1, 4, 4),  # on a busy machine only what is sure counts
        (0.6, 0.1, 4, 4),
        (0.2, 0.5, 1, 5),
    ],
)
def test_how_many_processes_are_used(cpu_share, free_share, n_cores, n_processes):
    assert processes_for(cpu_share, free_share, n_cores)[0] == n_processes


@given(st.floats(0, 64), st.floats(0.01, 1), st.integers(1, 256))
def test_there_is_at_least_one_process_and_a_reason(cpu_share, free_share, n_cores):
    assert 1 <= processes_for(cpu_share, free_share, n_cores)[0] <= max(8, n_cores)
    why = processes_for(0.4, 1.0, 2)[1]
    assert why == "environment and agent compute for 40% of the time and wait otherwise"


def test_an_agent_computes_while_environments_wait():
    waiting = Costs(construction=0.0, reset=0.0, step=3e-3, cpu_share=0.0)
    assert waiting.with_agent(1e-3, batched=True) == Costs(0.0, 0.0, 3e-3, 1e-3, True, 0.25)
    assert waiting.with_agent(0.0, batched=False).cpu_share == 0.0
    assert waiting.with_agent(1e-3, batched=False, waiting=1e-3).cpu_share == 0.0
    assert Costs(0.0, 0.0, 0.0).with_agent(0.0, batched=True).cpu_share == 1.0
    spinning = Spinning()
    assert spinning.share == 1.0
    spinning.run(1e-3)
    assert 0 < spinning.share <= 1.0


def test_what_takes_long_is_tried_with_fewer_environments_and_shorter_trajectories():
    none: Any = {"construction": 0.0, "reset": 0.0, "step": 0.0}
    n_envs = {(0.01, 1e-4, 1e-4): 8, (3.0, 0.0, 0.0): 1, (0.0, 0.1, 0.0): 4, (0.0, 0.0, 2.0): 1}
    assert {costs: Costs(*costs).n_envs(8, seconds=10) for costs in n_envs} == n_envs
    assert Costs(**none, agent=1.0).n_envs(8, seconds=10) == 8  # all in one call
    assert Costs(0.0, 0.0, 1e-5).longest(8, 2, seconds=10) > 1_000
    assert Costs(0.0, 0.0, 0.01).longest(1, 2, seconds=10) == 49
    assert Costs(**none, agent=0.05, batched=False).longest(8, 2, seconds=10) == 2
    assert Costs(0.0, 0.0, 7.0).longest(1, 1, seconds=10) == 1


@pytest.mark.parametrize(
    ("step", "computed", "agent", "agent_computed", "enough", "numbers"),
    [
        (2e-3, 2e-3, 0.0, 0.0, 1, (1,)),  # nothing waits
        (50e-3, 0.25e-3, 0.0, 0.0, 499, (1, 10, 50, 200)),  # more than a check may ask a service for
        (50e-3, 1.15e-3, 0.0, 0.0, 50, (1, 2, 10, 50)),
        (50e-3, 1.15e-3, 4e-3, 4e-3, 11, (1, 5, 20)),  # an agent that computes
        (50e-3, 1.15e-3, 50e-3, 0.0, 100, (1, 5, 20, 100)),  # and one that waits
    ],
)
def test_how_many_in_flight_are_measured(step, computed, agent, agent_computed, enough, numbers):
    alone = Costs(construction=0.0, reset=0.0, step=step, waiting=step - computed)
    costs = alone.with_agent(agent, batched=False, waiting=agent - agent_computed)
    assert (enough_in_flight(costs), numbers_in_flight(costs)) == (enough, numbers)
    why = why_in_flight(costs)
    assert why.startswith(f"a timestep waits {1e3 * (step - computed + agent - agent_computed):.3g} ms")
    assert ("the agent's included" in why) == (agent > agent_computed)
    assert f"So about {enough} in flight keep a process busy" in why
    shared = replace(costs, step=2 * step - costs.waiting, agent=2 * agent - costs.agent_waiting, free_share=0.5)
    assert enough_in_flight(shared) == enough  # with another program on the core
    assert hint_of_in_flight(costs, enough) == ""
    assert hint_of_in_flight(costs, enough - 1).startswith(f"{enough} in flight in a worker")


def tally_of(arrivals, n_envs=1, length=1_000.0):
    """Return the tally of a round in which so many timesteps in all had arrived after so many seconds."""
    tally = RoundTally(n_envs, length)
    for seconds, timesteps in arrivals:
        tally.note(timesteps, seconds)
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


@pytest.mark.parametrize(
    ("arrivals", "n_envs", "length", "rate"),
    [
        # Slow resets are counted in: 60 fast timesteps after each of 0.3 s, however few trajectories the round holds.
        *((arrivals_of(0.3, 1e-6, 60, n, until), n, 60, 200) for until in (0.1, 0.31, 5.0) for n in (1, 8)),
        ([(0.3, 60), (0.6, 120), (0.9, 180)], 1, 60, 200),  # whole trajectories that arrive at once all count
        # Slow timesteps from the beginning: of two workers the first may be a moment ahead, in which no rate lies.
        ([(2.0, 1)], 1, 1_000, 0.5),
        ([(2.0, 1), (2.01, 2)], 2, 1_000, 1.0),
        ([(2.0, 1), (2.02, 2), (4.0, 3), (4.02, 4)], 2, 1_000, 1.0),
        ([(1.0, 10), (1.5, 10), (1.9, 10)], 1, 1_000, 10),  # time without timesteps at the end does not count
        # Resets count in proportion to what was stepped of the trajectories: here a hundredth, or all of it.
        ([(0.5 + 0.001 * n, n) for n in range(1, 101)], 1, 10_000, 1 / (0.001 + 0.5 / 10_000)),
        ([(0.5 + 0.001 * n, n) for n in range(1, 101)], 1, 100, 100 / 0.6),
        ([(1.0, 0)], 1, 1_000, 0),
    ],
)
def test_rates(arrivals, n_envs, length, rate):
    assert tally_of(arrivals, n_envs, length).rate == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("n_known", [20, 60])
def test_the_rate_is_never_above_what_there_is_wherever_the_round_ends(n_known):
    arrivals = arrivals_of(0.3, 1e-3, 60, n_envs=4, until=3.0)
    for end in range(1, len(arrivals)):
        assert tally_of(arrivals[:end], 4, length=n_known).rate <= 60 / (0.3 + 60 * 1e-3) * 1.1


def test_few_timesteps_make_a_rate_uncertain():
    assert not tally_of([(2.0, 2), (4.0, 4)], 2).certain
    assert tally_of([(2.0, 2), (4.0, 20)], 2).certain
    assert not tally_of([(1.0, 0)]).certain


def test_a_round_ends_when_each_environment_had_its_turn():
    tally = tally_of([(2.0, 1)], 2)
    assert not tally.ends(2.01, window=0.1)
    tally.note(2, 2.02)
    assert tally.ends(2.02, window=0.1)
    assert not tally.ends(2.02, window=3.0)
    assert tally_of([(2.0, 1)], 16).ends(2.5, window=0.1)  # the others would have had it by now
    assert not tally_of([], 16).ends(100.0, window=0.1)
    few = tally_of([(0.1, 2)], 2)  # goes on while it may
    assert not few.ends(0.3, window=0.1, most=0.5)
    assert few.ends(0.6, window=0.1, most=0.5)
    few.note(20, 0.4)
    assert few.ends(0.4, window=0.1, most=0.5)
    slow = RoundTally(1, length=60, resets=0.3)  # resets do not take the window of the timesteps
    slow.note(10, 0.31)
    assert not slow.ends(0.31, window=0.1)
    assert slow.ends(0.41, window=0.1)


def test_a_way_without_timesteps_is_given_up():
    stopwatch = Stopwatch(Round(RoundTally(1, 100), 0.1, 0.1, 5.0, lambda: None))
    stopwatch(Snapshot(0, 0, 1, "timesteps", 4.9))
    with pytest.raises(TooSlowError, match="no timestep within 5 s"):
        stopwatch(Snapshot(0, 0, 1, "timesteps", 5.1))
