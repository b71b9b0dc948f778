"""The reports of checks and of measurements, and what they recommend: without running anything."""

import json
from dataclasses import replace
from typing import Any

import pytest

from streamsampler.checking.benchmark_report import BenchReport, WayMeasured, recommended
from streamsampler.checking.findings import Finding, finding_of_ends, worst
from streamsampler.checking.report import CheckReport

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


def test_findings_are_found_by_name_and_by_how_bad_they_are():
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
    by_verdict = {each.verdict: each for each in FINDINGS}
    order: list[Any] = ["pass", "not checked", "warning", "failure"]
    assert [worst([by_verdict[verdict] for verdict in order[:n]]) for n in range(5)] == ["pass", *order]


def test_what_there_is_no_time_for_is_not_known():
    finding = finding_of_ends([8], 1, 70, 500, None, None)
    assert (finding.verdict, "whether it ends is unknown" in finding.what) == ("warning", True)


def test_it_is_printed():
    text = str(report())
    lines = text.splitlines()
    assert lines[:4] == [
        "Maze-v0 with greedy",
        "  pass  made       in 0.01 s",
        "  FAIL  ends       a trajectory did not end",
        "                   -> Limit trajectories",
    ]
    assert max(map(len, lines)) <= 100
    assert text.count("| line") == 12
    assert "4 workers: there are 4 cores; trajectories were cut after 300 timesteps" in text
    assert lines[-1] == "2 failures, 2 warnings, 1 not checked; seed 7"
    assert "\nrecommended: Workers. " in text
    assert "\n  workers(n_workers=4)\n" in text
    assert "\n  --workers 4, or in Python\n  workers(n_workers=4)\n" in report().text(for_command=True)
    nothing = report(workers=None)
    assert ("recommended" in str(nothing), nothing.recommendation) == (False, None)


def test_advice_names_options_where_it_is_printed_for_the_command():
    advice = finding_of_ends([8], 1, 70, 50, None, None).advice
    finding = Finding("runs", "failure", "it raised", f'on_failure="drop" leaves such out. {advice}')
    assert "--on-failure drop leaves" in (text := report([finding]).text(for_command=True))
    assert "--max-episode-length, or gymnasium.wrappers.TimeLimit" in " ".join(text.split())
    assert 'on_failure="drop" leaves' in str(report([finding]))


def test_it_is_json():
    facts = json.loads(report().to_json())
    assert facts["ok"] is False
    assert facts["findings"][1]["advice"] == "Limit trajectories"
    assert [way["timesteps_per_second"] for way in facts["workers"]["ways"]] == [1_000, 1_050]
    assert facts["workers"]["recommendation"]["call"] == report().recommendation.call == "workers(n_workers=4)"
    assert facts["versions"] == {"numpy": "2"}
    assert json.loads(report(FINDINGS[:1]).to_json())["ok"] is True


def measured(**medians):
    return tuple(WayMeasured(name, f"{name}()", False, 0, (rate,) if rate else ()) for name, rate in medians.items())


def table_of(*ways):
    facts: dict[str, Any] = {"environment": "E", "agent": "A", "n_cores": 2, "n_workers": 2, "seconds": 1.0}
    return str(BenchReport(ways=ways, why_workers="", cut_after=None, **facts))


@pytest.mark.parametrize(
    ("medians", "name", "why"),
    [
        ({"a": 95.0, "b": 100.0, "c": 0.0}, "a", "With 95 timesteps per second it is about as fast as b, and simpler."),
        ({"a": 80.0, "b": 95.0, "c": 100.0}, "b", "it is about as fast as c, and simpler."),
        ({"a": 50.0, "b": 100.0}, "b", "100 timesteps per second it is 2 times as fast as the next best, a."),
        ({"a": 100.0, "b": 98.0}, "a", "With 100 timesteps per second it is about as fast as b, and simpler."),
        ({"a": 10.0, "b": 14.0}, "b", "it is 1.4 times as fast"),
        ({"a": 10.0, "b": 2_500.0}, "b", "it is 250 times as fast"),
        ({"a": 0.0, "b": 7.0}, "b", "the only way that could be measured, at 7 "),
    ],
)
def test_the_simplest_of_those_that_are_about_as_fast_is_recommended(medians, name, why):
    assert recommended(measured(**medians)).name == name
    assert why in " ".join(table_of(*measured(**medians)).split())


def test_what_is_not_known_is_not_recommended_and_what_is_uncertain_is_told():
    assert recommended(measured(a=0.0, b=0.0)) is None
    assert "recommended" not in table_of(*measured(a=0.0))
    few = WayMeasured("few", "few()", False, 0, (0.49,), uncertain=True)
    (many,) = measured(many=1.25)
    table = table_of(few, many)
    assert ("about 0.49" in table, "about 1.2" in table) == (True, False)
    assert "fewer than ten timesteps per environment" in table
    assert "fewer than ten" not in table_of(many)


def test_loops_that_choose_actions_themselves_are_told_of_gymnasium_and_nobody_else():
    sampler, other = measured(sampler=80.0, other=50.0)
    (here,) = (replace(way, in_parent=True) for way in measured(manager=60.0))
    (peer,) = (replace(way, in_parent=True, steps_only=True) for way in measured(peer=100.0))
    table = " ".join(table_of(sampler, other, peer, here).split())
    assert "recommended: sampler. With 80 timesteps per second it is 1.3 times as fast as the next best, ma" in table
    assert table.endswith("for a loop of your own that chooses the actions: peer, with 100 timesteps per second peer()")
    assert "your own loop" not in table_of(other, here), "what is recommended anyway"
    assert table_of(sampler, other, replace(peer, rates=(50.0,)), here).endswith("\n  manager()")
    assert "recommended" not in table_of(peer).split("where your own loop")[0]
