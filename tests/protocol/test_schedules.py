"""How well calls are scheduled, by simulation: what workers wait, and what they run in vain."""

import functools
import random

import pytest

from streamsampler.protocol import copies as in_flight
from streamsampler.protocol import gathering
from streamsampler.protocol.plans import AtLeast, Exactly
from tests.protocol.simulation import Outcome, Simulation

STEP = 80e-6
ONE_SLOW = [8e-3] + [2e-3] * 7


@functools.cache
def varied(call, index):
    return random.Random(100_003 * call + index).randint(200, 1000)


@functools.cache
def heavy_tailed(call, index):
    """Twenty timesteps of log-normal times, 1 on average."""
    rng = random.Random(100_003 * call + index)
    return sum(rng.lognormvariate(-0.5, 1) for _ in range(20)) / 20


def always(length):
    return lambda call, index: length


twenty = always(20)


def bound(batch, n_calls):
    """Return the best share without knowing anything but what is needed, and without any cost."""
    delivered = spent = 0
    for call in range(2, 2 + n_calls):
        free, length, index = [0, 0], 0, 0
        while length < batch:
            trajectory, index = varied(call, index), index + 1
            free[free.index(min(free))] += trajectory
            length += trajectory
        delivered, spent = delivered + length, spent + max(free)
    return delivered / (2 * spent)


def test_lengths_that_vary_cost_hardly_more_than_they_must(monkeypatch):
    found, right = {}, gathering.SAFETY_MARGIN
    for margin in (0.0, right, 1.0, 2.0):
        monkeypatch.setattr(gathering, "SAFETY_MARGIN", margin)
        simulation = Simulation([STEP, STEP], varied)
        outcome = simulation.calls_of(AtLeast(4_000), 100)
        found[margin] = simulation.share(outcome), outcome.waste
    chosen, waste = found[right]
    assert chosen > 0.99 * max(other for other, _ in found.values())
    assert chosen > max(found[0.0][0], 0.975 * bound(4_000, 100))
    assert waste < 0.045
    assert found[2.0][1] > 1.8 * waste, "more margin would waste more"


@pytest.mark.parametrize(
    ("plan", "length", "effort", "most_copies", "most_waste"),
    [
        (AtLeast(2_000), always(1000), always(1.0), 0, 1e-9),
        pytest.param(AtLeast(4_000), twenty, heavy_tailed, 5, 0.001, marks=pytest.mark.slow),
        (Exactly(40), twenty, heavy_tailed, 5, 0.001),
        (Exactly(40), varied, heavy_tailed, 5, 0.2),
    ],
)
def test_equal_workers_run_nothing_twice(plan, length, effort, most_copies, most_waste):
    speeds = [1e-3] * 2 if length(0, 0) == 1000 else [1e-3 * (1 + 0.1 * (worker % 3)) for worker in range(8)]
    outcome = Simulation(speeds, length, effort).calls_of(plan, 30)
    assert outcome.copies <= most_copies
    assert abs(outcome.waste) < most_waste


@pytest.mark.parametrize(
    ("switched_off", "order", "shares", "waste", "copies"),
    [
        ([], "index", (0.96, 1), (0, 0.01), (1, 1000)),
        ([(gathering, "NOTABLY_SLOWER")], "index", (0.945, 1), (0, 0.02), (5, 1000)),
        ([(gathering, "NOTABLY_SLOWER"), (in_flight, "WORTH_A_COPY")], "index", (0, 0.92), (-1e-9, 1), (0, 0)),
        # All workers run until the last trajectory arrives. In vain is only what the seven others are in the midst of:
        # half a trajectory each, and more where durations spread, since long ones are in hand longer.
        ([], "arrival", (0.96, 1), (0.0221, 0.0271), (0, 0)),
    ],
)
def test_a_worker_four_times_slower_is_not_waited_for(monkeypatch, switched_off, order, shares, waste, copies):
    for module, name in switched_off:
        monkeypatch.setattr(module, name, float("inf"))
    simulation = Simulation(ONE_SLOW, twenty, heavy_tailed, order=order)
    outcome = simulation.calls_of(AtLeast(4_000), 15)
    found = (simulation.share(outcome), outcome.waste, outcome.copies)
    assert all(least <= value <= most for value, (least, most) in zip(found, (shares, waste, copies), strict=True)), (
        found
    )


@pytest.mark.parametrize("shows_steps", [True, False])
@pytest.mark.parametrize("each", [0.01, 1.0])
def test_workers_ten_times_slower_cost_hardly_more_than_they_must(each, shows_steps):
    """64 trajectories on four workers: 21 turns of three, and two of the slow one, where 16 turns of four would do."""

    def seconds(speeds, speeds_before, n_calls):
        simulation = Simulation(speeds_before, twenty, shows_steps=shows_steps)
        for _ in range(n_calls):
            simulation.call(Exactly(64))
        simulation.speeds = speeds
        outcome = Outcome()
        simulation.call(Exactly(64), outcome)
        return outcome.seconds

    fast = [each / 20] * 4
    slowed = [each / 2, *fast[1:]]
    for n_calls, before, most in [(0, fast, 1.33), (2, slowed, 1.33), (2, fast, 1.4 if shows_steps else 3.0)]:
        assert seconds(slowed, before, n_calls) < most * seconds(fast, fast, n_calls)
    four = [each / 2] * 4 + fast * 3
    assert seconds(four, four, 2) < 1.51 * seconds(fast * 4, fast * 4, 2), "six turns of twelve workers, where four do"


def test_one_trajectory_for_each_of_many_workers_takes_two_turns_of_a_fast_one():
    outcome = Simulation([2e-2] + [2e-3] * 7, twenty).calls_of(Exactly(8), 20)
    assert outcome.seconds < 20 * 0.083
    assert outcome.copies == 20


def test_what_a_worker_is_late_with_in_each_call_teaches_how_slow_it_is():
    """Its reports never come, since each call ends before."""
    simulation = Simulation([0.01 / 20] * 4, twenty)
    simulation.calls_of(Exactly(64), 1)
    simulation.speeds = [0.1 / 20, *simulation.speeds[1:]]
    outcomes = [Outcome() for _ in range(4)]
    for outcome in outcomes:
        simulation.call(Exactly(64), outcome)
    assert min(outcome.copies for outcome in outcomes[1:]) < outcomes[0].copies
    assert min(outcome.seconds for outcome in outcomes[1:]) < 1.33 * 0.16


def test_a_worker_that_was_slow_once_is_tried_again():
    """It may have been the machine's fault, and a worker that is given nothing shows nothing."""
    simulation = Simulation([1e-3] * 4, twenty)
    simulation.calls_of(Exactly(40), 1)
    simulation.throughput.measure([20], 10.0, 3)
    shares = []
    for _ in range(40):
        spans = simulation.call(Exactly(40)).spans()
        shares.append(sum(len(span.indices) for span in spans if span.report == 3))
    assert shares[0] == 0
    assert sum(shares[-5:]) >= 40


# Measured: a call of a network with two layers of 64 units, and a step of the environment with what is recorded.
CARTPOLE, CHEETAH, WALKER = (40e-6, 8e-6), (45e-6, 60e-6), (30e-6, 82e-6)


@functools.cache
def falling(call, index):
    """How long CartPole stays up with a fresh network: about 20 timesteps."""
    return 9 + int(random.Random(100_003 * call + index).expovariate(1 / 11))


def lanes(n_workers, n_rows, length, cost):
    return Simulation([1.0] * n_workers, length, latency=2e-4, report=2e-4, n_rows=n_rows, cost=cost)


@pytest.mark.parametrize(
    ("cost", "n_rows", "length", "plan", "at_least"),
    [
        (CARTPOLE, 32, twenty, AtLeast(30_000), {1: 0.985, 2: 0.98, 8: 0.95}),
        pytest.param(CARTPOLE, 32, falling, AtLeast(100_000), {1: 0.98, 2: 0.96, 8: 0.90}, marks=pytest.mark.slow),
        pytest.param(CARTPOLE, 32, falling, AtLeast(30_000), {1: 0.95, 2: 0.925, 8: 0.80}, marks=pytest.mark.slow),
        # 60 trajectories: on eight workers eight of 32 rows have one.
        (CARTPOLE, 32, always(500), AtLeast(30_000), {1: 0.98, 2: 0.98, 8: 0.65}),
        (CHEETAH, 8, always(1000), Exactly(20), {1: 0.98, 2: 0.945, 8: 0.72}),
        (WALKER, 8, varied, AtLeast(4_000), {1: 0.88, 2: 0.75, 8: 0.43}),
        (CHEETAH, 8, varied, AtLeast(100_000), {1: 0.97, 2: 0.95, 8: 0.84}),
        # Tickets that fill their time with one trajectory for each row, or less.
        pytest.param((3e-3, 2e-4), 32, falling, AtLeast(100_000), {1: 0.93, 2: 0.92, 8: 0.84}, marks=pytest.mark.slow),
    ],
    ids=range(8),
)
def test_lanes_lose_little(cost, n_rows, length, plan, at_least):
    """Next to a batched loop whose rows are always live, on each of the workers."""
    for n_workers, least in at_least.items():
        simulation = lanes(n_workers, n_rows, length, cost)
        outcome = simulation.calls_of(plan, 100 if plan.timesteps == 4_000 else 3)
        assert outcome.copies <= 7
        assert simulation.share(outcome) > least, n_workers


def test_the_margin_of_lanes_is_a_good_one(monkeypatch):
    found, right = {}, gathering.LANES_MARGIN
    for margin in (0.0, right, 0.5, 1.0):
        monkeypatch.setattr(gathering, "LANES_MARGIN", margin)
        for cost in (WALKER, (1e-3, 20e-6)):
            simulation = lanes(2, 8, varied, cost)
            outcome = simulation.calls_of(AtLeast(4_000), 100)
            found[margin, cost] = simulation.share(outcome), outcome.waste
    assert found[right, WALKER][0] > 0.99 * max(share for (_, cost), (share, _) in found.items() if cost == WALKER)
    assert found[right, cost][0] > 1.04 * found[0.0, cost][0], "where a call costs most, rows cost little"
    assert found[right, WALKER][1] < 0.12 < found[0.5, WALKER][1]


@pytest.mark.parametrize(("plan", "least"), [(Exactly(20), 0.75), (AtLeast(100_000), 0.85)])
def test_a_slow_worker_that_runs_lanes_is_not_waited_for(plan, least, monkeypatch):
    def share():
        simulation = lanes(8, 8, always(1000), CHEETAH)
        simulation.speeds = [4.0, *simulation.speeds[1:]]
        return simulation.share(simulation.calls_of(plan, 10))

    assert share() > least
    monkeypatch.setattr(in_flight, "WORTH_A_COPY", float("inf"))
    monkeypatch.setattr(gathering, "NOTABLY_SLOWER", float("inf"))
    assert share() < 0.7 * least
