"""Comparing two versions of the library."""

import importlib
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_interval_of_ratios_is_students():
    # Student's t for 4 degrees of freedom is 2.776 at 97.5 %, and the standard deviation of these logarithms is 0.1.
    steps = [-0.1, -0.1, 0.0, 0.1, 0.1]
    mean, low, high = importlib.import_module("benchmarks.questions.versions").interval(
        [2 * math.exp(step) for step in steps]
    )
    assert mean == pytest.approx(2.0)
    half = 2.776 * 0.1 / math.sqrt(5)
    assert math.log(high / mean) == pytest.approx(half, rel=0.01)
    assert math.log(mean / low) == pytest.approx(half, rel=0.01)


def test_a_contender_of_another_checkout_is_looked_for_there(tmp_path):
    running = importlib.import_module("benchmarks.harness.running")
    contender = running.Contender("ours, other", "ours", checkout=tmp_path)
    with pytest.raises(running.Broken, match="no such contender"):
        contender.command("cheap_20")
    (tmp_path / "benchmarks" / "contenders").mkdir(parents=True)
    (tmp_path / "benchmarks" / "contenders" / "ours.py").touch()
    assert "benchmarks.contenders.ours" in contender.command("cheap_20")
    assert contender.folder == tmp_path
