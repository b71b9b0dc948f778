"""What may be faster than what was measured: said where it is so, and nowhere else."""

import json
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from streamsampler.checking.bench import BenchSettings, Measurement, bench
from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.costs import Costs
from streamsampler.checking.hints import hint_of_numpy, hint_of_rows
from streamsampler.checking.probes import probe
from streamsampler.environments.updates import as_env_update

LOCAL = WayMeasured("LocalSampler", "LocalSampler(agent, env)", True, 0, (5.0,))
ROWS = WayMeasured("VecWorker of 8", "MultiprocessingSampler(agent, env, worker_class=VecWorker)", False, 2, (9.0,))


def test_more_rows_are_named_where_a_call_costs_more_than_a_step():
    costs = Costs(construction=0.0, reset=0.0, step=1e-5, agent=1e-4)
    assert hint_of_rows(costs, 8).startswith("VecWorker with 32 environments instead of 8 environments: ")
    assert "takes as long as 10 steps" in hint_of_rows(costs, 8)
    assert "with 128 environments instead of 64" in hint_of_rows(costs, 64)
    assert hint_of_rows(costs, 128) == ""
    assert hint_of_rows(replace(costs, agent=1e-5), 8) == hint_of_rows(replace(costs, batched=False), 8) == ""


@pytest.mark.parametrize("hints", [(), ("first.", "second.")])
def test_hints_come_last(hints):
    facts: dict[str, Any] = {"environment": "E", "agent": "A", "n_cores": 2, "n_workers": 2, "seconds": 1.0}
    report = BenchReport(ways=(LOCAL,), why_workers="", cut_after=None, hints=hints, **facts)
    said = [line for line in str(report).splitlines() if line.startswith("may be faster still: ")]
    assert said == [f"may be faster still: {hint}" for hint in hints]
    assert str(report).endswith(said[-1] if said else LOCAL.call)
    assert json.loads(report.to_json())["hints"] == list(hints)


@pytest.mark.parametrize(("rates", "is_vector", "n_hints"), [((9.0,), False, 1), ((1.0,), False, 0), ((9.0,), True, 0)])
def test_rows_are_a_matter_of_whom_rows_are_recommended_to(monkeypatch, rates, is_vector, n_hints):
    update = as_env_update("CartPole-v1")
    run = Measurement(update, "env", "random", BenchSettings(), probe(update), 0.0)
    run._costs = Costs(construction=0.0, reset=0.0, step=1e-5, agent=1e-4)
    run._problem = replace(run._problem, is_vector=is_vector)
    ways = [LOCAL, replace(ROWS, rates=rates)]
    monkeypatch.setattr(run, "_ways", ways)
    monkeypatch.setattr(run, "_measured", lambda way: way)
    assert len(run.report().hints) == n_hints
    monkeypatch.setattr(run, "_ways", [replace(way, rates=()) for way in ways])
    assert run.report().hints == ()


@pytest.mark.extras
@pytest.mark.core
def test_numpy_is_named_to_those_whose_network_it_runs_faster():
    torch = pytest.importorskip("torch")
    from streamsampler.adapters.torch import TorchAgent

    nn, space = torch.nn, gymnasium.spaces.Discrete(2)

    def agent(n_units, layer=nn.Tanh):
        torch.manual_seed(0)
        return TorchAgent(nn.Sequential(nn.Linear(4, n_units), layer(), nn.Linear(n_units, 2)), space)

    assert hint_of_numpy(agent(128)).startswith("TorchAgent(…).to_numpy() runs this network in NumPy, ")
    assert hint_of_numpy(agent(128)).endswith(f" by up to {agent(128).to_numpy().largest_difference:.2g}.")
    for other in (agent(129), agent(64, nn.ELU), agent(64).to_numpy(), "random", lambda observation: 0):
        assert hint_of_numpy(other) == ""


@pytest.mark.extras
@pytest.mark.slow
def test_bench_says_so():
    torch = pytest.importorskip("torch")
    from streamsampler.adapters.torch import TorchAgent

    network = torch.nn.Sequential(torch.nn.Linear(4, 2))
    report = bench("CartPole-v1", TorchAgent(network, gymnasium.spaces.Discrete(2)), seconds=1, n_workers=1)
    assert report.hints[0].startswith("TorchAgent(…).to_numpy()")
