"""Comparing two versions of the library."""

import importlib
import math
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def module(name):
    return importlib.import_module(f"benchmarks.{name}")


def test_the_interval_of_ratios_is_students():
    # Student's t for 4 degrees of freedom is 2.776 at 97.5 %, and the standard deviation of these logarithms is 0.1.
    steps = [-0.1, -0.1, 0.0, 0.1, 0.1]
    mean, low, high = module("questions.versions").interval([2 * math.exp(step) for step in steps])
    assert mean == pytest.approx(2.0)
    half = 2.776 * 0.1 / math.sqrt(5)
    assert math.log(high / mean) == pytest.approx(half, rel=0.01)
    assert math.log(mean / low) == pytest.approx(half, rel=0.01)


NOTED = """
import os
with open(os.path.join({folder!r}, str(os.getpid())), "w"):
    pass
"""


@pytest.mark.slow
def test_another_checkouts_library_runs_in_the_sampler_and_in_its_workers(tmp_path):
    running, noted = module("harness.running"), tmp_path / "noted"
    noted.mkdir()
    shutil.copytree(ROOT / "streamsampler", tmp_path / "streamsampler")
    with (tmp_path / "streamsampler" / "workers" / "loop.py").open("a") as file:
        file.write(NOTED.format(folder=str(noted)))
    contender = running.Contender("before", "ours", {"start_method": "spawn"}, n_processes=2, checkout=tmp_path)
    process = running.Running(contender, "short")
    try:
        there = set()
        while len(there) < 3:  # the sampler's process and its two workers, which run only while something is measured
            assert process.measure({"seconds": 0.1})["timesteps"] > 0
            there = {int(path.name) for path in noted.iterdir()} & set(process._pids)
        assert len(there) == 3
    finally:
        process.end()


def test_a_checkout_without_the_library_is_refused(tmp_path):
    running = module("harness.running")
    with pytest.raises(running.Broken, match="no streamsampler in"):
        running.Contender("before", "ours", checkout=tmp_path).command("cheap_20")


def test_every_workload_can_be_compared():
    versions, workloads = module("questions.versions"), module("problems.workloads").WORKLOADS
    assert {*versions.WORKLOADS, *versions.SLEEPING} <= set(workloads)
    sleeping = {name for name, workload in workloads.items() if workload.ideal}
    assert sleeping <= set(versions.SLEEPING), "they are judged by their speed"


def test_every_goal_names_a_workload_and_contenders_that_are_measured():
    goals, workloads = module("questions.goals"), module("problems.workloads").WORKLOADS
    for part in goals.PARTS.values():
        for measurement in part(ROOT):
            assert measurement.workload in workloads
            names = [contender.name for contender in measurement.contenders]
            assert len(set(names)) == len(names)
            assert measurement.goals
            for goal in measurement.goals:
                assert goal.workload == measurement.workload
                assert {goal.contender, goal.of} <= set(names)
