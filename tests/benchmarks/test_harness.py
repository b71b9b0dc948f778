"""The benchmarks' harness: how contenders run, freeze and end, and what is computed and told of their rounds."""

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.harness import comparing, processes, question, report, rounds, running
from benchmarks.harness.summary import section
from benchmarks.ppo import results as of_ppo
from benchmarks.questions import versions

ROOT = Path(__file__).resolve().parents[2]


def answer(timesteps, seconds=1.0, cpu=1.0, **more) -> Any:
    return {"timesteps": timesteps, "trajectories": 1, "seconds": seconds, "cpu": cpu, **more}


def compared(**contenders):
    """Return what comes of contenders' rounds, compared with `bare`."""
    return comparing.compared(
        {name: it if isinstance(it, dict) else {"rounds": it} for name, it in contenders.items()}, "bare"
    )


GONE: Any = {"reason": "not installed"}


def test_each_contender_is_measured_at_each_place_of_a_round():
    names = ["a", "b", "c"]
    orders = [rounds.order_of_round(names, number) for number in range(3)]
    assert all(sorted(order) == names for order in orders)
    assert all(sorted(column) == names for column in zip(*orders, strict=True))
    assert rounds.order_of_round([], 5) == []


class _Process:
    """Stands for a contender's process: its speed is its number."""

    started: ClassVar[list["_Process"]] = []

    def __init__(self, contender):
        self.contender, self.versions, self.start_seconds, self.ended = contender, {}, 0.0, False
        self.started.append(self)
        self.number = len(self.started)

    def measure(self, request):
        assert not self.ended
        return answer(self.number)

    def end(self, *, kindly=True):
        self.ended = True


def measured(monkeypatch, contenders, workload="short", lame=(), **plan):
    """Return the rounds of contenders; the lame ones do not start a second time."""
    monkeypatch.setattr(_Process, "started", [])

    def start_all(found, _):
        broken = {it.name: "ended without a word" for it in found if _Process.started and it.name in lame}
        return {it.name: _Process(it) for it in found if it.name not in broken}, broken

    monkeypatch.setattr(rounds, "start_all", start_all)
    found = rounds.measured(contenders, workload, rounds.Plan(1.0, verbose=False, **plan))
    assert all(process.ended for process in _Process.started)
    return {name: [it and it["timesteps"] for it in each["rounds"]] for name, each in found.items()}, found


def test_all_but_peers_are_started_anew_after_some_rounds(monkeypatch):
    contenders = [running.Contender("bare", "bare"), running.Contender("far", "far", peer=True)]
    speeds, _ = measured(monkeypatch, contenders, rounds=5, peer_rounds=3, fresh=2)
    assert speeds == {"bare": [1, 1, 3, 3, 4], "far": [2, 2, 2, None, None]}
    contenders = [running.Contender("ours", "ours"), running.Contender("bare", "bare")]
    speeds, found = measured(monkeypatch, contenders, lame=["ours"], rounds=4, peer_rounds=4, fresh=1)
    assert speeds == {"ours": [1, None, None, None], "bare": [2, 3, 4, 5]}
    assert found["ours"]["reason"] == "ended without a word"


@pytest.mark.parametrize("workload", ["cheap_20", "sleepers"])
def test_the_machines_speed_is_noted_unless_sleep_is_what_limits(monkeypatch, workload):
    monkeypatch.setattr(rounds, "speedometer", lambda: contextlib.nullcontext(lambda begin, end: 7.0))
    _, found = measured(monkeypatch, [running.Contender("bare", "bare")], workload, rounds=2, peer_rounds=2)
    noted = [it.get("machine") for it in found["bare"]["rounds"]]
    assert noted == ([7.0, 7.0] if workload == "cheap_20" else [None, None])


def test_ratios_are_to_the_limit_of_the_same_round():
    results = compared(
        bare=[answer(100), answer(50), answer(100, 2.0)], ours=[answer(90, cpu=1.8), None, answer(25)], gone=GONE
    )
    assert results["ours"]["ratio"]["all"] == [0.9, 0.5]
    assert results["ours"]["cpu_share"]["all"] == pytest.approx([0.5, 0.25])
    assert results["ours"]["over"]["all"] == pytest.approx([1e7, 3e7])
    assert results["ours"]["speed"]["median"] == 57.5
    assert "ratio" not in results["gone"]
    unknown = compared(bare=[answer(100, machine=20.0)], ours=[answer(45)])["ours"]
    assert (unknown["ratio"]["all"], "plain_ratio" in unknown) == ([0.45], False)
    reports = compared(bare=[answer(1, parent_cpu=1.0, reports=100)], b=[answer(1, parent_cpu=1.0, reports=200)])
    assert reports["b"]["report_ratio"]["all"] == [0.5]


def at(machine, power, timesteps, cpu=1.0):
    """An answer of who makes so many timesteps a second where the machine's speed is 1."""
    return answer(timesteps * machine**power, cpu=cpu, machine=machine)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
def test_contenders_are_compared_at_one_speed_of_the_machine(power):
    # Each round's second turn is in another second than its first: slower, then faster.
    found = compared(
        bare=[at(2.0, power, 100), at(1.0, power, 100), None],
        ours=[at(1.0, power, 90, cpu=2.0), at(2.0, power, 90), at(2.0, power, 90)],
    )["ours"]
    assert found["ratio"]["all"] == pytest.approx([0.9, 0.9])
    assert found["plain_ratio"]["all"] == pytest.approx([0.9 / 2**power, 0.9 * 2**power])
    assert found["cpu_share"]["all"] == pytest.approx([0.9 / 2, 0.9])
    usual = 2**power  # in three of five rounds
    assert found["over"]["all"] == pytest.approx([1e9 * (2 / 90 - 1 / 100) / usual, 1e9 / 900 / usual])
    assert found["speed"]["median"] == pytest.approx(90 * 2**power)


def test_the_machines_influence_is_common_to_all_and_never_out_of_proportion():
    slow_first = [(10 * x**0.7, x) for x in (1.0, 2.0, 3.0)]
    fast_last = [(1000 * x**0.7, x) for x in (7.0, 9.0)]
    assert comparing.influence([slow_first, [], fast_last]) == pytest.approx(0.7)
    assert comparing.influence([[(5.0, 2.0), (7.0, 2.0)], [(1.0, 3.0)]]) == 0.0
    for power, plain in ((-2.0, False), (3.0, True)):
        found = compared(bare=[at(2.0, power, 100)], ours=[at(1.0, power, 90), at(2.0, power, 90)])["ours"]
        assert found["ratio"]["all"] == pytest.approx([(2.0 if plain else 1.0) * found["plain_ratio"]["all"][0]])


def test_the_interval_of_ratios_of_versions_is_students():
    # Student's t for 4 degrees of freedom is 2.776 at 97.5 %, and the standard deviation of these logarithms is 0.1.
    mean, low, high = versions.interval([2 * math.exp(step) for step in (-0.1, -0.1, 0.0, 0.1, 0.1)])
    assert mean == pytest.approx(2.0)
    half = 2.776 * 0.1 / math.sqrt(5)
    assert [math.log(high / mean), math.log(mean / low)] == pytest.approx([half, half], rel=0.01)


def test_goals_are_judged_against_whom_they_name():
    def met(*goal, **options):
        return question.judged(question.Goal("work", "ours", *goal, **options), {"work": results})["met"]

    results = {name: {"rounds": [answer(n)]} for name, n in (("bare", 100), ("storing", 80), ("ours", 78))}
    results["broken"] = GONE
    assert met(0.96, of="storing") is met(0.78, key="cpu_share") is met(1.3, key="ratio", most=True) is True
    assert met(0.9) is False
    assert met(0.1, of="broken") is None
    assert question.judged(question.Goal("work", "absent", 0.9), {"work": results})["met"] is None


def test_reports_are_written_between_the_markers_only():
    once = report.replaced(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n", "new")
    assert once == f"above\n{report.BEGIN}\n\nnew\n\n{report.END}\nbelow\n"
    assert report.replaced(once, "new") == once
    for wrong in ("nothing", report.BEGIN, f"{report.END}{report.BEGIN}"):
        with pytest.raises(ValueError, match="must hold"):
            report.replaced(wrong, "new")


def test_a_report_tells_shares_reasons_and_nanoseconds():
    results = compared(bare=[answer(100)], ours=[answer(95)], gone=GONE)
    table, reasons = report.overview([{"question": "a", "workloads": {"work": results}}])
    assert ("0.95" in table, "n/a" in table, reasons) == (True, True, ["- gone: not installed"])
    results = compared(bare=[answer(10**6)], ours=[answer(10**6, cpu=1.5)])
    alone, lanes = ({"question": name, "title": name, "workloads": {name: results}} for name in ("a", "lanes"))
    assert list(report.workloads_of([alone, lanes])) == ["a"]
    _, grid = report.nanoseconds({"work": results, "other": {"far": {**results["ours"], "peer": True}}})
    assert [cell.strip() for cell in grid.splitlines()[-1].split("|")] == ["", "ours", "500", "", ""]
    assert report.nanoseconds({"work": {"ours": {}}}) == report.apart(alone) == []
    assert "ours" in report.apart(lanes)[1]
    results = compared(bare=[at(2.0, 1.0, 100)] * 2, ours=[at(1.0, 1.0, 90), at(2.0, 1.0, 90)])
    (told,) = report.adjusted({"work": results})
    assert "work 0.675 (quartiles 0.45 to 0.90; with it 0.90 to 0.90)" in told


def test_a_report_tells_which_machine_each_question_was_measured_on():
    rest: dict[str, Any] = {
        "cpu": "a processor",
        "cores": 2,
        "memory": 8.0,
        "python": "3.11.7",
        "packages": {"numpy": "2.0"},
    }
    one, other = (
        {**rest, "kernel": kernel, "date": f"{date}T10:00:00+00:00"}
        for kernel, date in (("Linux 6.1", "2026-01-02"), ("Linux 6.2", "2026-01-01"))
    )
    assert report.machines({"a": one, "b": other, "c": one}) == [
        "Measured on a processor, 2 cores, 8.0 GiB, Linux 6.1, Python 3.11.7, numpy 2.0; 2026-01-02.",
        "But b: on a processor, 2 cores, 8.0 GiB, Linux 6.2, Python 3.11.7, numpy 2.0; 2026-01-01.",
    ]


def test_the_readme_and_the_results_are_what_was_measured():
    folder = ROOT / "benchmarks" / "results"
    questions = report.load(folder)
    assert section(questions) in report.README.read_text()
    assert report.section(questions, folder) in report.RESULTS.read_text()


def test_what_ppo_needed_is_the_median_over_seeds(tmp_path):
    curves: list[Any] = [
        [(1000, 1.0, None), (2000, 2.0, 50.0), (3000, 3.0, 20.0)],
        [(1000, 1.5, 10.0), (3000, 4.0, 40.0)],
        [(1000, 0.5, 10.0), (3000, 6.0, 10.0)],
    ]
    runs: list[dict[str, Any]] = [
        {
            "contender": "ours", "env": "E-v1", "seed": seed, "seconds": 5.0, "learning": 2.0,
            "curve": [{"timesteps": t, "seconds": s, "mean_return": r} for t, s, r in curve],
        }
        for seed, curve in enumerate(curves)
    ]  # fmt: skip
    row = of_ppo.summary(runs, {"E-v1": 40}).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["E-v1 ≥ 40, ours", "2 of 3", "3,000", "4.0", "5.0", "2.0", "3.0", "1000.0", "1.00"]
    ended = [{**run, "final": final, "cpu": 3.0} for run, final in zip(runs, (10.0, 20.0, 60.0), strict=True)]
    cells = [cell.strip() for cell in of_ppo.finals(ended).splitlines()[-1].strip("|").split("|")]
    assert cells == ["E-v1, ours", "3", "30", "10", "60", "5", "3"]
    of_ppo.save(tmp_path / "new" / "ppo.json", {"cpu": "a"}, {"E-v1": 40}, runs)
    kept = json.loads((tmp_path / "new" / "ppo.json").read_text())
    assert kept == {"machine": {"cpu": "a"}, "targets": {"E-v1": 40}, "runs": runs}


def state_of(pid):
    """The letter that the kernel has for what a process does; nothing if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return ""


def has_ended(pid):
    """It may be left to be reaped: whoever has to does so when there is a core for it."""
    return state_of(pid) in ("", "Z", "X")


def await_stop(pid):
    """Wait until a process stands still which was told to; it needs a core for that, and there may be none for it."""
    while state_of(pid) != "T":
        time.sleep(0.001)


def test_what_a_contender_has_started_meanwhile_is_frozen_too_and_nothing_else():
    script = "read line; tail -f /dev/null & echo; read line; kill $!"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(["sh", "-c", script], **pipes) as shell, subprocess.Popen(["cat"], **pipes) as other:
        try:
            known = processes.freeze(shell.pid, known=[shell.pid, other.pid])
            assert known == [shell.pid], "a process that is another one by now is left alone"
            await_stop(shell.pid)
            assert state_of(other.pid) != "T"
            processes.thaw(shell.pid, known)
            shell.stdin.write(b"start another\n")
            shell.stdin.flush()
            assert shell.stdout.readline() == b"\n"
            frozen = processes.freeze(shell.pid, known=known)
            assert len(frozen) == 2
            for pid in frozen:
                await_stop(pid)
            processes.thaw(shell.pid, frozen)
            shell.communicate(b"end\n", 120)
            assert shell.returncode == 0
        finally:
            processes.end(shell.pid)
            processes.end(other.pid)
    assert processes.cpu_seconds([shell.pid]) == 0.0


TERMINATED = """
import time
from benchmarks.harness import processes
from benchmarks.harness.running import Contender, Running

running = Running(Contender("bare", "bare"), "short")
try:
    print(*processes.processes_of(running._process.pid, running._mark), flush=True)
    while True:  # not `signal.pause()`: a signal that comes right before it would not end it
        time.sleep(0.05)
finally:
    running.end()
"""


@pytest.mark.slow
def test_a_harness_that_is_terminated_leaves_no_frozen_process_behind():
    with subprocess.Popen([sys.executable, "-c", TERMINATED], cwd=ROOT, stdout=subprocess.PIPE) as harness:
        pids = harness.stdout.readline().split()
        harness.terminate()
        assert harness.wait(300) == 128 + signal.SIGTERM
    assert len(pids) == 3
    assert all(has_ended(int(pid)) for pid in pids)


def test_a_contender_that_breaks_says_why(monkeypatch, tmp_path):
    for contender, why in (
        (running.Contender("nobody", "nobody"), "no such contender"),
        (running.Contender("copying", "copying"), "unsupported: this workload has no parameters"),
    ):
        with pytest.raises(running.Broken, match=why):
            running.FragmentEnvs(contender, "short")
    with pytest.raises(running.Broken, match="no streamsampler in"):
        running.Contender("before", "ours", checkout=tmp_path).command("cheap_20")
    monkeypatch.setattr(running.Contender, "python", lambda self: "/bin/false")
    with pytest.raises(running.Broken, match="ended without a word"):
        running.FragmentEnvs(running.Contender("bare", "bare"), "short")
