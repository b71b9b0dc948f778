"""How well calls are scheduled, by simulation: what workers wait, and what they run in vain."""

import functools
import random

import pytest

from streamsampler.protocol import gathering, in_flight
from streamsampler.protocol.plans import AtLeast, Exactly
from tests.protocol.lane_simulation import Costs, LaneSimulation
from tests.protocol.simulation import Outcome, Simulation

STEP = 80e-6


@functools.cache
def varied(call, index):
    return random.Random(100_003 * call + index).randint(200, 1000)


def fixed(call, index):
    return 1000


def twenty(call, index):
    return 20


@functools.cache
def heavy_tailed(call, index):
    """Twenty timesteps of log-normal times, 1 on average."""
    rng = random.Random(100_003 * call + index)
    return sum(rng.lognormvariate(-0.5, 1) for _ in range(20)) / 20


def share(outcome, speeds):
    """What is left of the timesteps that the workers could have run in that time."""
    return outcome.timesteps / outcome.seconds / sum(1 / speed for speed in speeds)


def bound(batch, n_calls):
    """The same without knowing anything but what is needed, and without any cost: see benchmarks/on_policy.py."""
    delivered = spent = 0
    for call in range(2, 2 + n_calls):
        free, length, index = [0, 0], 0, 0
        while length < batch:
            trajectory, index = varied(call, index), index + 1
            free[free.index(min(free))] += trajectory
            length += trajectory
        delivered, spent = delivered + length, spent + max(free)
    return delivered / (2 * spent)


@pytest.mark.parametrize(("batch", "most_waste"), [pytest.param(2_000, 0.07, marks=pytest.mark.slow), (4_000, 0.045)])
def test_lengths_that_vary_cost_hardly_more_than_they_must(monkeypatch, batch, most_waste):
    n_calls, speeds = 200, [STEP, STEP]
    found, right = {}, gathering.SAFETY_MARGIN
    for margin in (0.0, right, 1.0, 2.0):
        monkeypatch.setattr(gathering, "SAFETY_MARGIN", margin)
        outcome = Simulation(speeds, varied).calls_of(AtLeast(batch), n_calls)
        found[margin] = share(outcome, speeds), outcome.waste
    chosen, waste = found[right]
    assert chosen > 0.99 * max(other for other, _ in found.values())
    assert chosen > found[0.0][0]
    assert chosen > 0.975 * bound(batch, n_calls)
    assert waste < most_waste
    assert found[2.0][1] > 1.8 * waste, "more margin would waste more"


@pytest.mark.parametrize("n_workers", [2, 4])
def test_lengths_that_never_vary_waste_nothing(n_workers):
    speeds = [STEP] * n_workers
    outcome = Simulation(speeds, fixed).calls_of(AtLeast(2_000), 50)
    assert outcome.waste == pytest.approx(0, abs=1e-9)
    assert outcome.copies == 0
    assert outcome.timesteps == 50 * 2_000


def test_a_worker_four_times_slower_is_not_waited_for(monkeypatch):
    speeds = [8e-3] + [2e-3] * 7
    plan = AtLeast(4_000)
    chosen = Simulation(speeds, twenty, heavy_tailed).calls_of(plan, 15)
    assert share(chosen, speeds) > 0.96
    assert chosen.waste < 0.01
    monkeypatch.setattr(in_flight, "WORTH_A_COPY", float("inf"))
    monkeypatch.setattr(gathering, "NOTABLY_SLOWER", float("inf"))
    plain = Simulation(speeds, twenty, heavy_tailed).calls_of(plan, 15)
    assert share(plain, speeds) < 0.92


def test_in_order_of_arrival_a_slow_worker_is_not_waited_for_and_nobody_is_idle():
    speeds = [8e-3] + [2e-3] * 7
    chosen = Simulation(speeds, twenty, heavy_tailed, order="arrival").calls_of(AtLeast(4_000), 15)
    assert share(chosen, speeds) > 0.96
    # All workers run until the last trajectory arrives. In vain is only what the seven others are in the midst of: half
    # a trajectory each, and a share of 0.086 more, the squared spread of their durations: long ones are in hand longer.
    in_the_midst = 1.086 * (sum(speeds) - 2e-3) * 20 / 2
    useful = 4_000 / sum(1 / speed for speed in speeds) * len(speeds)
    assert chosen.waste == pytest.approx(in_the_midst / useful, rel=0.1)
    assert chosen.copies == 0


def test_copies_alone_nearly_do(monkeypatch):
    speeds = [8e-3] + [2e-3] * 7
    monkeypatch.setattr(gathering, "NOTABLY_SLOWER", float("inf"))
    outcome = Simulation(speeds, twenty, heavy_tailed).calls_of(AtLeast(4_000), 15)
    assert outcome.copies >= 5
    assert share(outcome, speeds) > 0.945
    assert outcome.waste < 0.02


def test_one_trajectory_for_each_of_many_workers_takes_two_turns_of_a_fast_one():
    speeds = [2e-2] + [2e-3] * 7
    outcome = Simulation(speeds, twenty).calls_of(Exactly(8), 20)
    assert outcome.seconds < 20 * 0.083
    assert outcome.copies == 20


@pytest.mark.parametrize("plan", [AtLeast(4_000), Exactly(40)], ids=["at-least", "exactly"])
@pytest.mark.parametrize("length", [twenty, varied])
def test_equal_workers_run_nothing_twice(plan, length):
    speeds = [1e-3 * (1 + 0.1 * (worker % 3)) for worker in range(8)]
    outcome = Simulation(speeds, length, heavy_tailed).calls_of(plan, 30)
    assert outcome.copies <= 5
    assert length is varied or outcome.waste < 0.001


@pytest.mark.parametrize("each", [0.003, 0.01, 0.03, 0.1, 1.0])
@pytest.mark.parametrize(("before", "n_calls"), [("slow", 0), ("slow", 2), ("fast", 2), ("fast", 0)])
@pytest.mark.parametrize("shows_steps", [True, False])
def test_a_worker_ten_times_slower_among_four_costs_hardly_more_than_it_must(each, before, n_calls, shows_steps):
    """64 trajectories: 21 turns of the three others, and two of its own, where 16 turns of four would do."""

    def seconds(speeds, speeds_before):
        simulation = Simulation(speeds_before, twenty, shows_steps=shows_steps)
        for _ in range(n_calls):
            simulation.call(Exactly(64), Outcome())
        simulation.speeds = speeds
        outcome = Outcome()
        simulation.call(Exactly(64), outcome)
        return outcome.seconds

    fast = [each / 20] * 4
    slowed = [each / 2, *fast[1:]]
    most = 1.33 if before == "slow" or not n_calls else 1.4 if shows_steps else 3.0
    assert seconds(slowed, slowed if before == "slow" else fast) < most * seconds(fast, fast)


@pytest.mark.parametrize("n_calls", [0, 2])
def test_four_workers_ten_times_slower_among_sixteen_cost_what_they_must(n_calls):
    """64 trajectories: six turns of the twelve others, where four turns of all would do."""

    def seconds(speeds):
        simulation, outcome = Simulation(speeds, twenty), Outcome()
        for _ in range(n_calls):
            simulation.call(Exactly(64), Outcome())
        simulation.call(Exactly(64), outcome)
        return outcome.seconds

    fast = [0.05 / 20] * 16
    assert seconds([0.5 / 20] * 4 + fast[4:]) < 1.51 * seconds(fast)


def test_what_a_worker_is_late_with_in_each_call_teaches_how_slow_it_is():
    """Its reports never come, since each call ends before."""
    simulation = Simulation([0.01 / 20] * 4, twenty)
    simulation.calls_of(Exactly(64), 1)
    simulation.speeds = [0.1 / 20, *simulation.speeds[1:]]
    late, copies = [], []
    for _ in range(4):
        outcome = Outcome()
        simulation.call(Exactly(64), outcome)
        late.append(outcome.seconds)
        copies.append(outcome.copies)
    assert min(copies[1:]) < copies[0]
    assert min(late[1:]) < 1.33 * 0.16


def test_a_worker_that_was_slow_once_is_tried_again():
    """It may have been the machine's fault; and who is given nothing shows nothing."""
    simulation = Simulation([1e-3] * 4, twenty)
    simulation.calls_of(Exactly(40), 1)
    simulation.throughput.add([20], 10.0, 3)
    shares = []
    for _ in range(40):
        segments = simulation.call(Exactly(40), Outcome()).result.segments()
        shares.append(sum(len(segment.indices) for segment in segments if segment.delivery == 3))
    assert shares[0] == 0
    assert sum(shares[-5:]) >= 40


# ---------------------------------------------------------------------- lanes

# Measured: a call of a network with two layers of 64 units, and a step of the environment with what is recorded.
CARTPOLE, CHEETAH, WALKER = Costs(40e-6, 8e-6), Costs(45e-6, 60e-6), Costs(30e-6, 82e-6)


@functools.cache
def falling(call, index):
    """How long CartPole stays up with a fresh network: about 20 timesteps."""
    return 9 + int(random.Random(100_003 * call + index).expovariate(1 / 11))


def balanced(call, index):
    return 500


@pytest.mark.parametrize(
    ("costs", "n_rows", "length", "plan", "at_least"),
    [
        (CARTPOLE, 32, twenty, AtLeast(30_000), {1: 0.985, 2: 0.98, 8: 0.95}),
        pytest.param(CARTPOLE, 32, falling, AtLeast(100_000), {1: 0.98, 2: 0.96, 8: 0.90}, marks=pytest.mark.slow),
        (CARTPOLE, 32, falling, AtLeast(30_000), {1: 0.95, 2: 0.925, 8: 0.80}),
        # 60 trajectories: on eight workers eight of 32 rows have one.
        (CARTPOLE, 32, balanced, AtLeast(30_000), {1: 0.98, 2: 0.98, 8: 0.65}),
        (CHEETAH, 8, fixed, Exactly(20), {1: 0.98, 2: 0.945, 8: 0.72}),
        (WALKER, 8, varied, AtLeast(4_000), {1: 0.88, 2: 0.75, 8: 0.43}),
        (CHEETAH, 8, varied, AtLeast(100_000), {1: 0.97, 2: 0.95, 8: 0.84}),
        # Tickets that fill their time with one trajectory for each row, or less.
        pytest.param(
            Costs(3e-3, 2e-4), 32, falling, AtLeast(100_000), {1: 0.93, 2: 0.92, 8: 0.84}, marks=pytest.mark.slow
        ),
    ],
)
def test_lanes_lose_little(costs, n_rows, length, plan, at_least):
    """Beside a batched loop whose rows are always live, on each of the workers."""
    found = {}
    for n_workers in at_least:
        simulation = LaneSimulation(n_workers, n_rows, length, costs)
        outcome = simulation.calls_of(plan, 100 if plan.timesteps == 4_000 else 3)
        assert outcome.copies <= 7
        found[n_workers] = simulation.share(outcome)
    assert all(found[n_workers] > share for n_workers, share in at_least.items()), found


def test_the_margin_of_lanes_is_a_good_one(monkeypatch):
    found, right = {}, gathering.LANES_MARGIN
    for margin in (0.0, right, 0.5, 1.0):
        monkeypatch.setattr(gathering, "LANES_MARGIN", margin)
        for costs in (WALKER, Costs(1e-3, 20e-6)):
            simulation = LaneSimulation(2, 8, varied, costs)
            outcome = simulation.calls_of(AtLeast(4_000), 100)
            found[margin, costs.call] = simulation.share(outcome), outcome.waste
    assert found[right, 30e-6][0] > 0.99 * max(share for (_, call), (share, _) in found.items() if call == 30e-6)
    assert found[right, 1e-3][0] > 1.04 * found[0.0, 1e-3][0], "where a call costs most, rows cost little"
    assert found[right, 30e-6][1] < 0.12 < found[0.5, 30e-6][1]


@pytest.mark.parametrize(("plan", "least"), [(Exactly(20), 0.75), (AtLeast(100_000), 0.85)])
def test_a_slow_worker_that_runs_lanes_is_not_waited_for(plan, least, monkeypatch):
    def share_of():
        simulation = LaneSimulation(8, 8, fixed, CHEETAH, slowness={0: 4.0})
        return simulation.share(simulation.calls_of(plan, 10))

    assert share_of() > least
    monkeypatch.setattr(in_flight, "WORTH_A_COPY", float("inf"))
    monkeypatch.setattr(gathering, "NOTABLY_SLOWER", float("inf"))
    assert share_of() < 0.7 * least
