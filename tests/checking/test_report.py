"""The report, and what it recommends: without running anything."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.checking.findings import Finding
from streamsampler.checking.printing import text_of
from streamsampler.checking.recommending import recommended
from streamsampler.checking.report import CheckReport
from streamsampler.checking.speed import Costs, Rate, Speed, finding_of_costs


def costs(step=0.02, agent=0.01, reset=0.01, recording=0.005, cpu_share=1.0, free_share=1.0):
    return Costs(reset, agent, step, recording, 100 * reset, 100.0, cpu_share, free_share, 5_000)


DEFAULT = Rate("DefaultWorker", 1, False, 1_000.0)
FINDINGS = (
    Finding("made", "pass", "in 0.01 s"),
    Finding("ends", "failure", "a trajectory did not end", "Limit trajectories", "line\n" * 30),
    Finding("buffers", "warning", "an observation was overwritten " * 8, "Copy them"),
    Finding("Gymnasium", "warning", "one"),
    Finding("Gymnasium", "failure", "two"),
    Finding("seed", "not checked", "no time"),
)


def report(findings=FINDINGS, **others):
    speed = Speed(0.1, costs(), (DEFAULT, Rate("VecWorker", 32, True, math.inf)), cut_after=300)
    recommendation = recommended(speed.rates, speed.costs, 4)
    facts = {"environment": "Maze-v0", "agent": "greedy", "n_cores": 4, "seed": 7, "versions": {"numpy": "2"}}
    return CheckReport(findings=findings, speed=speed, recommendation=recommendation, **{**facts, **others})


def test_it_is_found_by_name():
    found = report()
    assert found["made"].verdict == "pass"
    assert found["Gymnasium"].what == "two"  # the worst of them
    assert not found.ok
    assert [each.name for each in found.failures] == ["ends", "Gymnasium"]
    assert [each.name for each in found.warnings] == ["buffers", "Gymnasium"]
    assert (len(found), len(list(found))) == (6, 6)
    with pytest.raises(KeyError):
        found["else"]
    with pytest.raises(AttributeError):
        found.seed = 8


def test_it_is_printed():
    text = str(report())
    lines = text.splitlines()
    assert lines[0] == "Maze-v0 with greedy"
    assert lines[1] == "  pass  made       in 0.01 s"
    assert lines[2] == "  FAIL  ends       a trajectory did not end"
    assert lines[3] == "                   -> Limit trajectories"
    assert max(map(len, lines)) <= 100
    assert text.count("| line") == 12
    assert "trajectories cut after 300 timesteps" in text
    assert lines[-1] == "2 failures, 2 warnings; seed 7"
    assert "\nrecommended: n_workers=4" in text


def test_the_command_is_recommended_its_own_options():
    text = text_of(report(), for_command=True)
    assert "\nrecommended: --workers 4; faster in Python, with a vector environment: n_workers=4" in text
    vec = Rate("VecWorker", 32, False, 3_400.0)
    assert recommended([DEFAULT, vec], costs(), 2).options == "--workers 2 --vec 32"
    native = Rate("VecWorker", 8, True, 9_999.0)
    found = recommended([DEFAULT, vec, native], costs(), 2)
    assert (found.n_envs, found.options) == (8, "--workers 2 --vec 32")
    assert recommended([DEFAULT], costs(), 2).options == "--workers 2"


def test_it_is_json():
    facts = json.loads(report().to_json())
    assert facts["ok"] is False
    assert facts["findings"][1]["advice"] == "Limit trajectories"
    assert facts["speed"]["rates"][1]["timesteps_per_second"] is None
    assert facts["recommendation"]["n_workers"] == 4
    assert facts["versions"] == {"numpy": "2"}
    assert json.loads(report(FINDINGS[:1]).to_json())["ok"] is True


def test_another_kind_of_worker_must_be_worth_it():
    vec = Rate("VecWorker", 8, False, 1_050.0)
    assert recommended([DEFAULT, vec], costs(), 2).worker == "DefaultWorker"
    faster = recommended([DEFAULT, Rate("VecWorker", 32, False, 3_400.0), vec], costs(), 2)
    assert (faster.worker, faster.n_envs, faster.n_workers) == ("VecWorker", 32, 2)
    assert faster.arguments == 'n_workers=2, worker_class=VecWorker, worker_args={"n_envs": 32}'
    assert "3.4 times as many as one DefaultWorker" in faster.why
    assert recommended([], costs(), 2) is None


def test_environments_that_wait_get_more_workers():
    assert recommended([DEFAULT], costs(cpu_share=0.1), 2).n_workers == 16
    assert recommended([DEFAULT], costs(cpu_share=0.4), 2).n_workers == 5
    assert recommended([DEFAULT], costs(cpu_share=0.95), 2).n_workers == 2
    assert recommended([DEFAULT], costs(cpu_share=3.0), 16).n_workers == 5
    assert recommended([DEFAULT], costs(cpu_share=3.0), 2).n_workers == 1
    assert recommended([DEFAULT], None, 3).n_workers == 3


def test_on_a_busy_machine_only_what_is_sure_counts():
    assert recommended([DEFAULT], costs(cpu_share=1.7, free_share=0.1), 4).n_workers == 4
    assert recommended([DEFAULT], costs(cpu_share=0.6, free_share=0.1), 4).n_workers == 4
    assert recommended([DEFAULT], costs(cpu_share=0.2, free_share=0.5), 4).n_workers == 20


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=5), st.floats(0, 64), st.integers(1, 256))
def test_a_recommendation_can_be_followed(rates, cpu_share, n_cores):
    measured = [DEFAULT, *(Rate("VecWorker", 2**i, False, rate) for i, rate in enumerate(rates))]
    found = recommended(measured, costs(cpu_share=cpu_share), n_cores)
    assert 1 <= found.n_workers <= 8 * n_cores
    chosen = max(rate.timesteps_per_second for rate in measured if rate.worker == found.worker)
    assert chosen * 1.1 >= max(rate.timesteps_per_second for rate in measured)


def test_what_is_notable_about_costs():
    assert finding_of_costs(costs(), asked_together=False).verdict == "pass"
    slow_reset = finding_of_costs(costs(reset=0.2), asked_together=True)
    assert (slow_reset.verdict, "a reset takes 20 ms" in slow_reset.what) == ("warning", True)
    assert "get_actions" in finding_of_costs(costs(agent=0.2), asked_together=False).advice
    assert finding_of_costs(costs(agent=0.2), asked_together=True).verdict == "pass"
    assert "left 40% of a core" in finding_of_costs(costs(free_share=0.4), asked_together=True).what
