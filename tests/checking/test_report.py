"""The report, and what it recommends: without running anything."""

import json

import pytest

from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.findings import Finding
from streamsampler.checking.report import CheckReport, text_of

WORKERS = BenchReport(
    environment="Maze-v0", agent="greedy", n_cores=4, n_workers=4, why_workers="there are 4 cores", seconds=3.0,
    cut_after=300,
    ways=(
        WayMeasured("Workers", "workers(n_workers=4)", False, 4, (900.0, 1_000.0, 2_000.0), options="--workers 4"),
        WayMeasured("Vectors", "vectors()", False, 4, (1_050.0,)),
    ),
)  # fmt: skip
FINDINGS = (
    Finding("made", "pass", "in 0.01 s"),
    Finding("ends", "failure", "a trajectory did not end", "Limit trajectories", "line\n" * 30),
    Finding("buffers", "warning", "an observation was overwritten " * 8, "Copy them"),
    Finding("Gymnasium", "warning", "one"),
    Finding("Gymnasium", "failure", "two"),
    Finding("seed", "not checked", "no time"),
)


def report(findings=FINDINGS, **others):
    facts = {"environment": "Maze-v0", "agent": "greedy", "n_cores": 4, "seed": 7, "versions": {"numpy": "2"}}
    return CheckReport(findings=findings, **{"workers": WORKERS, **facts, **others})


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
    assert "4 workers: there are 4 cores; trajectories were cut after 300 timesteps" in text
    assert lines[-1] == "2 failures, 2 warnings; seed 7"
    assert "\nrecommended: Workers. " in text
    assert "\n  workers(n_workers=4)\n" in text
    nothing = report(workers=None)
    assert "recommended" not in str(nothing)
    assert nothing.recommendation is None


def test_the_command_is_recommended_its_own_options():
    assert "\n  --workers 4, or in Python\n  workers(n_workers=4)\n" in text_of(report(), for_command=True)


def test_it_is_json():
    facts = json.loads(report().to_json())
    assert facts["ok"] is False
    assert facts["findings"][1]["advice"] == "Limit trajectories"
    assert [way["timesteps_per_second"] for way in facts["workers"]["ways"]] == [1_000, 1_050]
    assert facts["workers"]["recommendation"]["call"] == report().recommendation.call == "workers(n_workers=4)"
    assert facts["versions"] == {"numpy": "2"}
    assert json.loads(report(FINDINGS[:1]).to_json())["ok"] is True
