"""The README's table of libraries."""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_library_stands_with_its_best_setting_under_its_own_name():
    summary = importlib.import_module("benchmarks.harness.summary")
    results = {
        "ours": {"ratio": {"median": 0.9}},
        "sb3_subproc_2": {"ratio": {"median": 0.1}},
        "sb3_subproc_8": {"ratio": {"median": 0.2}},
        "tianshou": {"reason": "not installed"},
    }
    assert summary.shares(results) == {"streamsampler": 0.9, "Stable-Baselines3 SubprocVecEnv": 0.2}
    text = summary.section({"cheap_20": results})
    header, _, row = text.splitlines()[2:5]
    assert [cell.strip() for cell in header.split("|")] == [
        "", "", "streamsampler", "Stable-Baselines3 SubprocVecEnv", "",
    ]  # fmt: skip
    assert [cell.strip() for cell in row.split("|")] == ["", "CartPole, NumPy agent", "0.90", "0.20", ""]
    assert "Tianshou" not in text


def test_the_readme_and_the_results_are_what_was_measured():
    report, results = importlib.import_module("benchmarks.harness.report"), ROOT / "benchmarks" / "results"
    questions = report.load(results)
    assert report.summary.section(report.workloads_of(questions), questions) in report.README.read_text()
    assert report.section(questions, results) in report.RESULTS.read_text()
