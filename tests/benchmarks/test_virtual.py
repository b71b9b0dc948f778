"""What thousands of simulated workers bring is what one process alone samples, and no report is dearer for them."""

import sys

import pytest

from benchmarks.contenders.simulated import ParentCost
from benchmarks.contenders.virtual import Costs, VirtualEngine, VirtualSampler
from benchmarks.problems.measured import CARTPOLE, ON_POLICY, Replayed, chosen
from streamsampler import LocalSampler
from streamsampler.engines.launch.start_methods import has_processes


def alone(distribution, seed=1):
    return LocalSampler(chosen, Replayed, env_kwargs={"distribution": distribution}, seed=seed)


@pytest.mark.parametrize("distribution", [CARTPOLE, ON_POLICY], ids=lambda it: it.name)
def test_simulated_workers_bring_the_batches_of_one_process(distribution):
    with VirtualSampler(distribution, 40) as many, alone(distribution) as one:
        for _ in range(2):
            assert many.obtain_samples(4_000) == one.obtain_samples(4_000)
        assert many.obtain_trajectories(90) == one.obtain_trajectories(90)


@pytest.mark.slow
def test_losses_and_hangs_of_simulated_workers_change_nothing():
    costs = Costs(losses=3600 / 0.1, ready=0.01, step_timeout=0.05)  # each lives for a tenth of a second
    with VirtualSampler(ON_POLICY, 60, costs) as many, alone(ON_POLICY) as one:
        assert many.obtain_samples(60_000) == one.obtain_samples(60_000)
        assert many.virtual.deaths > 50
        assert many.stats.hangs > 10
        assert many.stats.restarts > 50


def test_a_worker_does_not_wait_while_its_report_does():
    # Reports occupy the sampler ten times as long as workers need for them: what they say of the time is their own.
    costs = Costs(report=10 * ON_POLICY.seconds)
    with VirtualSampler(ON_POLICY, 10, costs) as sampler:
        batch = sampler.obtain_trajectories(200)
        assert sampler.stats.times.step == pytest.approx(ON_POLICY.seconds_of(batch.seeds, batch.lengths).sum())


@pytest.mark.parametrize(("n", "most"), [(6, 1), (60, 2)])
def test_near_the_end_no_ticket_waits_behind_another_one(monkeypatch, n, most):
    """While there is plenty, workers have the next ticket before they have answered the one in hand."""
    unanswered = [0] * 4
    send, wait = VirtualEngine.send, VirtualEngine.wait
    seen = set()

    def sending(engine, worker, message):
        unanswered[worker] += len(getattr(message, "tickets", ()))
        seen.add(unanswered[worker])
        send(engine, worker, message)

    def waiting(engine, timeout):
        events = wait(engine, timeout)
        for event in events:
            unanswered[event.worker] -= 1
        return events

    # So long that each ticket is one trajectory.
    with VirtualSampler(ON_POLICY.lasting(10.0), 4, Costs(step_timeout=30.0)) as sampler:
        sampler.obtain_trajectories(20)
        monkeypatch.setattr(VirtualEngine, "send", sending)
        monkeypatch.setattr(VirtualEngine, "wait", waiting)
        sampler.obtain_trajectories(n)
    assert seen == {1, most}
    assert unanswered == [0] * 4


def calls_for_a_report(n_workers, per_worker):
    """Return how many functions the sampler's side calls, those written in C among them."""
    n_calls, elsewhere = 0, 0
    codes = {VirtualEngine.wait.__code__, VirtualEngine.send.__code__}

    def count(frame, event, _):
        nonlocal n_calls, elsewhere
        if frame.f_code in codes and event in ("call", "return"):
            elsewhere += 1 if event == "call" else -1
        elif event in ("call", "c_call") and not elsewhere:
            n_calls += 1

    # So long that each ticket is one trajectory, with any number of workers.
    with VirtualSampler(ON_POLICY.lasting(10.0), n_workers, Costs(step_timeout=30.0)) as sampler:
        sampler.obtain_samples(per_worker * n_workers // 4)
        reports = sampler.stats.reports
        sys.setprofile(count)
        try:
            sampler.obtain_samples(per_worker * n_workers)
        finally:
            sys.setprofile(None)
        return n_calls / (sampler.stats.reports - reports)


@pytest.mark.slow
def test_a_report_calls_as_many_functions_with_a_thousand_workers():
    assert calls_for_a_report(1_000, 100) < 1.1 * calls_for_a_report(40, 100)


@pytest.mark.skipif(not has_processes(), reason="its workers have the pipes of processes")
def test_what_a_report_costs_can_be_measured():
    cost = ParentCost(2, 1)
    try:
        assert cost.measure(2) > 0
    finally:
        cost.close()
