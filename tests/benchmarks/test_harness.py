"""The pure parts of the benchmarks' harness, and one contender's life by the protocol."""

import contextlib
import importlib
import json
import math
import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def module(name):
    return importlib.import_module(f"benchmarks.{name}")


def answer(timesteps, seconds, cpu=1.0):
    return {"timesteps": timesteps, "trajectories": 1, "seconds": seconds, "cpu": cpu}


def test_each_contender_is_measured_at_each_place_of_a_round():
    order_of_round = module("harness.rounds").order_of_round
    names = ["a", "b", "c"]
    rounds = [order_of_round(names, number) for number in range(3)]
    assert all(sorted(order) == names for order in rounds)
    assert all(sorted(column) == names for column in zip(*rounds, strict=True))
    assert order_of_round([], 5) == []


class _Process:
    """Stands for a contender's process: its speed is its number."""

    started: ClassVar[list["_Process"]] = []

    def __init__(self, contender):
        self.contender, self.versions, self.start_seconds, self.ended = contender, {}, 0.0, False
        self.started.append(self)
        self.number = len(self.started)

    def measure(self, request):
        assert not self.ended
        return answer(self.number, 1.0)

    def end(self, *, kindly=True):
        self.ended = True


def test_all_but_peers_are_started_anew_after_some_rounds(monkeypatch):
    rounds, running = module("harness.rounds"), module("harness.running")
    monkeypatch.setattr(_Process, "started", [])
    monkeypatch.setattr(rounds, "start_all", lambda found, _: ({it.name: _Process(it) for it in found}, {}))
    contenders = [running.Contender("bare", "bare"), running.Contender("far", "far", peer=True)]
    results = rounds.measured(contenders, "short", rounds.Plan(1.0, 5, 3, fresh=2, verbose=False))
    assert [it["timesteps"] for it in results["bare"]["rounds"]] == [1, 1, 3, 3, 4]
    assert [it and it["timesteps"] for it in results["far"]["rounds"]] == [2, 2, 2, None, None]
    assert all(process.ended for process in _Process.started)


def test_one_that_does_not_start_anew_keeps_what_was_measured(monkeypatch):
    rounds, running = module("harness.rounds"), module("harness.running")
    monkeypatch.setattr(_Process, "started", [])

    def start_all(found, _):
        lame = {it.name: "ended without a word" for it in found if _Process.started and it.name == "ours"}
        return {it.name: _Process(it) for it in found if it.name not in lame}, lame

    monkeypatch.setattr(rounds, "start_all", start_all)
    contenders = [running.Contender("ours", "ours"), running.Contender("bare", "bare")]
    results = rounds.measured(contenders, "short", rounds.Plan(1.0, 4, 4, fresh=1, verbose=False))
    assert [it and it["timesteps"] for it in results["ours"]["rounds"]] == [1, None, None, None]
    assert results["ours"]["reason"] == "ended without a word"
    assert [it["timesteps"] for it in results["bare"]["rounds"]] == [2, 3, 4, 5]


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [5.0, 1.0, 3.0], [4.0, 1.0, 3.0, 2.0, 5.0]])
def test_spread(values):
    found = module("harness.comparing").spread(values)
    assert found["median"] == statistics.median(values)
    assert (found["least"], found["greatest"]) == (min(values), max(values))
    assert found["least"] <= found["low"] <= found["median"] <= found["high"] <= found["greatest"]


def test_ratios_are_to_the_limit_of_the_same_round():
    compared = module("harness.comparing").compared
    results = compared(
        {
            "bare": {"rounds": [answer(100, 1.0), answer(50, 1.0), answer(100, 2.0)]},
            "ours": {"rounds": [answer(90, 1.0, cpu=1.8), None, answer(25, 1.0)]},
            "gone": {"reason": "not installed"},
        },
        "bare",
    )
    assert results["ours"]["ratio"]["all"] == [0.9, 0.5]
    assert results["ours"]["cpu_share"]["all"] == pytest.approx([0.5, 0.25])
    assert results["ours"]["over"]["all"] == pytest.approx([1e7, 3e7])
    assert results["ours"]["speed"]["median"] == 57.5
    assert "ratio" not in results["gone"]


def at(machine, power, timesteps, cpu=1.0):
    """An answer of who makes so many timesteps a second where the machine's speed is 1."""
    return {**answer(timesteps * machine**power, 1.0, cpu=cpu), "machine": machine}


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
def test_contenders_are_compared_at_one_speed_of_the_machine(power):
    compared = module("harness.comparing").compared
    # Each round's second turn is in another second than its first: slower, then faster.
    results = compared(
        {
            "bare": {"rounds": [at(2.0, power, 100), at(1.0, power, 100), None]},
            "ours": {"rounds": [at(1.0, power, 90, cpu=2.0), at(2.0, power, 90), at(2.0, power, 90)]},
            "gone": {"reason": "not installed"},
        },
        "bare",
    )
    assert results["ours"]["ratio"]["all"] == pytest.approx([0.9, 0.9])
    assert results["ours"]["plain_ratio"]["all"] == pytest.approx([0.9 / 2**power, 0.9 * 2**power])
    assert results["ours"]["cpu_share"]["all"] == pytest.approx([0.9 / 2, 0.9])
    usual = 2**power  # in three of five rounds
    assert results["ours"]["over"]["all"] == pytest.approx([1e9 * (2 / 90 - 1 / 100) / usual, 1e9 / 900 / usual])
    assert results["ours"]["speed"]["median"] == pytest.approx(90 * 2**power)


def test_the_machines_influence_is_common_to_all_and_blind_to_who_is_faster():
    influence = module("harness.comparing").influence
    slow_first = [(10 * x**0.7, x) for x in (1.0, 2.0, 3.0)]
    fast_last = [(1000 * x**0.7, x) for x in (7.0, 9.0)]
    assert influence([slow_first, [], fast_last]) == pytest.approx(0.7)
    assert influence([[(5.0, 2.0), (7.0, 2.0)], [(1.0, 3.0)]]) == 0.0
    both = influence([[(1.0, 1.0), (2.0, 2.0)], [(1.0, 1.0), (1.0, 2.0)]])
    assert both == pytest.approx(0.5)


def test_a_machine_is_never_taken_to_help_those_whom_it_slows_down_nor_to_slow_them_down_out_of_proportion():
    compared = module("harness.comparing").compared
    for power, plain in ((-2.0, False), (3.0, True)):
        ours = [at(1.0, power, 90), at(2.0, power, 90)]
        rounds = {"bare": {"rounds": [at(2.0, power, 100)]}, "ours": {"rounds": ours}}
        found = compared(rounds, "bare")["ours"]
        assert found["ratio"]["all"] == pytest.approx([(2.0 if plain else 1.0) * found["plain_ratio"]["all"][0]])


def test_reports_are_compared_by_what_they_cost_the_parent():
    compared = module("harness.comparing").compared
    of_two = [{**answer(1, 1.0), "parent_cpu": cpu, "reports": n} for cpu, n in ((1.0, 100), (1.0, 200), (1.0, 0))]
    results = compared({name: {"rounds": [it]} for name, it in zip("abc", of_two, strict=True)}, "a")
    assert results["b"]["report_ratio"]["all"] == [0.5]
    assert "report_ratio" not in results["c"]


@pytest.mark.slow
def test_cpu_time_is_told_in_less_than_ticks():
    cpu_seconds, me = module("harness.processes").cpu_seconds, [os.getpid()]
    begin, before = time.process_time(), cpu_seconds(me)
    from_now = time.process_time()
    while time.process_time() - from_now < 0.0015:
        pass
    assert 0.0015 < cpu_seconds(me) - before < time.process_time() - begin, "a tick is 10 ms"


def test_a_process_that_has_ended_costs_nothing():
    with subprocess.Popen(["true"]) as ended:
        pass
    assert module("harness.processes").cpu_seconds([ended.pid]) == 0.0


def test_one_unknown_speed_of_the_machine_leaves_all_speeds_as_they_are():
    compared = module("harness.comparing").compared
    results = compared(
        {"bare": {"rounds": [{**answer(100, 1.0), "machine": 20.0}]}, "ours": {"rounds": [answer(45, 1.0)]}}, "bare"
    )
    assert results["ours"]["ratio"]["all"] == [0.45]
    assert "plain_ratio" not in results["ours"]


@pytest.mark.parametrize("workload", ["cheap_20", "sleepers"])
def test_the_machines_speed_is_noted_unless_sleep_is_what_limits(monkeypatch, workload):
    rounds, running = module("harness.rounds"), module("harness.running")
    monkeypatch.setattr(_Process, "started", [])
    monkeypatch.setattr(rounds, "start_all", lambda found, _: ({it.name: _Process(it) for it in found}, {}))
    asked = []

    @contextlib.contextmanager
    def speedometer():
        yield lambda begin, end: asked.append((begin, end)) or 7.0

    monkeypatch.setattr(rounds, "speedometer", speedometer)
    results = rounds.measured([running.Contender("bare", "bare")], workload, rounds.Plan(1.0, 2, 2, verbose=False))
    noted = [it.get("machine") for it in results["bare"]["rounds"]]
    assert noted == ([7.0, 7.0] if workload == "cheap_20" else [None, None])
    assert all(begin <= end for begin, end in asked)


@pytest.mark.slow
def test_the_speedometer_tells_the_cores_speed_and_ends_with_its_context():
    meter, processes_of = module("harness.speedometer"), module("harness.processes").processes_of
    cores = sorted(os.sched_getaffinity(0))[:1]
    before = set(processes_of(os.getpid()))
    begin = time.perf_counter()
    with meter.speedometer(cores) as speed_between:
        assert speed_between(begin - 2, begin) is None
        assert 1e5 < speed_between(begin, time.perf_counter()) < 1e10
        assert len(set(processes_of(os.getpid())) - before) == 1
    assert set(processes_of(os.getpid())) <= before


def test_the_mean_leaves_out_what_lies_far_away():
    trimmed_mean = module("harness.speedometer").trimmed_mean
    assert trimmed_mean([1.0] * 6 + [2.0] * 12 + [1e12, 0.0]) == pytest.approx((5 * 1.0 + 11 * 2.0) / 16)
    assert trimmed_mean([3.0]) == 3.0
    assert math.isnan(trimmed_mean([]))


def test_goals_are_judged_against_whom_they_name():
    question = module("harness.question")
    results: dict = {
        "work": {
            "bare": {"rounds": [answer(100, 1.0)]},
            "storing": {"rounds": [answer(80, 1.0)]},
            "ours": {"rounds": [answer(78, 1.0)]},
        }
    }
    assert question.judged(question.Goal("work", "ours", 0.96, of="storing"), results)["met"] is True
    assert question.judged(question.Goal("work", "ours", 0.9), results)["met"] is False
    assert question.judged(question.Goal("work", "ours", 0.78, key="cpu_share"), results)["met"] is True
    assert question.judged(question.Goal("work", "ours", 1.3, key="ratio", most=True), results)["met"] is True
    assert question.judged(question.Goal("work", "absent", 0.9), results)["met"] is None
    results["work"]["broken"] = {"reason": "not installed"}
    module("harness.comparing").compared(results["work"], "bare")
    assert question.judged(question.Goal("work", "ours", 0.1, of="broken"), results)["met"] is None


def test_reports_are_written_between_the_markers_only():
    report = module("harness.report")
    readme = f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n"
    once = report.replaced(readme, "new")
    assert once == f"above\n{report.BEGIN}\n\nnew\n\n{report.END}\nbelow\n"
    assert report.replaced(once, "new") == once
    for wrong in ("nothing", report.BEGIN, f"{report.END}{report.BEGIN}"):
        with pytest.raises(ValueError, match="must hold"):
            report.replaced(wrong, "new")


def test_a_report_tells_shares_and_reasons():
    report = module("harness.report")
    compared = module("harness.comparing").compared
    results = compared(
        {
            "bare": {"rounds": [answer(100, 1.0)]},
            "ours": {"rounds": [answer(95, 1.0)]},
            "gone": {"reason": "not installed"},
        },
        "bare",
    )
    shares, reasons = report.overview([{"question": "a", "workloads": {"work": results}}])
    assert "0.95" in shares
    assert "n/a" in shares
    assert reasons == ["- gone: not installed"]


def test_a_report_tells_nanoseconds_over_the_bare_loop_and_what_is_compared_otherwise_apart():
    report, compared = module("harness.report"), module("harness.comparing").compared
    rounds = {name: {"rounds": [answer(10**6, 1.0, cpu=cpu)]} for name, cpu in (("bare", 1.0), ("ours", 1.5))}
    results = compared(rounds, "bare")
    shares, lanes = ({"question": name, "title": name, "workloads": {name: results}} for name in ("a", "lanes"))
    assert list(report.workloads_of([shares, lanes])) == ["a"]
    _, grid = report.nanoseconds({"work": results, "other": {"far": {**results["ours"], "peer": True}}})
    assert [cell.strip() for cell in grid.splitlines()[-1].split("|")] == ["", "ours", "500", "", ""]
    assert report.nanoseconds({"work": {"ours": {}}}) == report.apart(shares) == []
    assert "ours" in report.apart(lanes)[1]


def test_a_report_tells_which_machine_each_question_was_measured_on():
    def measured(kernel, date):
        rest = {"cpu": "a processor", "cores": 2, "memory": 8.0, "python": "3.11.7", "packages": {"numpy": "2.0"}}
        return {**rest, "kernel": kernel, "date": f"{date}T10:00:00+00:00"}

    machines = module("harness.report").machines
    one, other = measured("Linux 6.1", "2026-01-02"), measured("Linux 6.2", "2026-01-01")
    assert machines({"a": one, "b": one}) == [
        "Measured on a processor, 2 cores, 8.0 GiB, Linux 6.1, Python 3.11.7, numpy 2.0; 2026-01-02."
    ]
    main, exception = machines({"a": one, "b": other, "c": one})
    assert main.startswith("Measured on")
    assert "Linux 6.1" in main
    assert exception == "But b: on a processor, 2 cores, 8.0 GiB, Linux 6.2, Python 3.11.7, numpy 2.0; 2026-01-01."


def test_a_report_tells_where_the_machines_speed_was_divided_out():
    report, compared = module("harness.report"), module("harness.comparing").compared
    bare, ours = [at(2.0, 1.0, 100), at(2.0, 1.0, 100)], [at(1.0, 1.0, 90), at(2.0, 1.0, 90)]
    results = compared({"bare": {"rounds": bare}, "ours": {"rounds": ours}}, "bare")
    (told,) = report.adjusted({"work": results})
    assert "work 0.675 (quartiles 0.45 to 0.90; with it 0.90 to 0.90)" in told
    assert "0.90" in report.overview([{"question": "a", "workloads": {"work": results}}])[0]
    assert report.adjusted({"work": compared({"bare": {"rounds": [answer(1, 1.0)]}}, "bare")}) == []
    assert "0.675" in module("harness.tables").throughput_table("work", results)


def ppo_run(seed, curve):
    points = [{"timesteps": t, "seconds": s, "mean_return": r} for t, s, r in curve]
    return {"contender": "ours", "env": "E-v1", "seed": seed, "seconds": 5.0, "learning": 2.0, "curve": points}


def test_what_ppo_needed_is_the_median_over_seeds(tmp_path):
    results = module("ppo.results")
    runs = [
        ppo_run(0, [(1000, 1.0, None), (2000, 2.0, 50.0), (3000, 3.0, 20.0)]),
        ppo_run(1, [(1000, 1.5, 10.0), (3000, 4.0, 40.0)]),
        ppo_run(2, [(1000, 0.5, 10.0), (3000, 6.0, 10.0)]),
    ]
    row = results.summary(runs, {"E-v1": 40}).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["E-v1 ≥ 40, ours", "2 of 3", "3,000", "4.0", "5.0", "2.0", "3.0", "1000.0", "1.00"]
    assert results.finals(runs) == ""
    ended = [{**run, "final": final, "cpu": 3.0} for run, final in zip(runs, (10.0, 20.0, 60.0), strict=True)]
    cells = [cell.strip() for cell in results.finals(ended).splitlines()[-1].strip("|").split("|")]
    assert cells == ["E-v1, ours", "3", "30", "10", "60", "5", "3"]
    results.save(tmp_path / "new" / "ppo.json", {"cpu": "a"}, {"E-v1": 40}, runs)
    kept = json.loads((tmp_path / "new" / "ppo.json").read_text())
    assert kept == {"machine": {"cpu": "a"}, "targets": {"E-v1": 40}, "runs": runs}


def test_the_checksum_reads_every_byte():
    checksum = module("problems.workloads").checksum
    array = np.random.default_rng(0).integers(0, 256, (3, 7, 5), np.uint8)
    before = checksum(array)
    for position in np.ndindex(array.shape):
        changed = array.copy()
        changed[position] ^= 0x55
        assert checksum(changed) != before
    assert checksum(array.astype(np.float64)) == checksum(np.asfortranarray(array.astype(np.float64)))


def test_the_scheduling_bound_of_equal_lengths_is_known(monkeypatch):
    on_policy = module("questions.on_policy")
    monkeypatch.setattr(on_policy, "SHORTEST", 500)
    monkeypatch.setattr(on_policy, "LONGEST", 500)
    assert on_policy.bound(2000, 2, calls=3) == 1.0
    assert on_policy.bound(1500, 2, calls=3) == 0.75


def test_every_question_names_workloads_and_contenders_that_exist():
    workloads = module("problems.workloads").WORKLOADS
    assert {*module("questions.everything").QUESTIONS, "goals"} == set(module("harness.report").ORDER)
    for name in (
        "cheap_steps",
        "short_trajectories",
        "on_policy",
        "large_observations",
        "torch_mlp",
        "lanes",
        "native",
        "streams",
        "stragglers",
        "order",
        "fragments",
        "filters",
        "several_agents",
        "inference",
        "ray",
    ):
        question = module(f"questions.{name}").QUESTION
        assert question.name == name
        for workload in question.workloads:
            names = [contender.name for contender in (*question.contenders, *question.extra.get(workload, ()))]
            assert workload in workloads
            assert len(set(names)) == len(names)
            assert question.limit in names
            goals = [goal for goal in question.goals if goal.workload == workload]
            assert all({goal.contender, goal.of} <= set(names) for goal in goals)


@pytest.mark.parametrize("name", ["cheap_20", "still", "short", "pixels", "on_policy_varied", "stragglers"])
def test_environments_are_sound_and_agents_agree_with_themselves(name):
    workload = module("problems.workloads").WORKLOADS[name]
    env, agent = workload.make_env(), workload.make_agent()
    observation, _ = env.reset(seed=3)
    again, _ = workload.make_env().reset(seed=3)
    assert np.array_equal(observation, again)
    seen = []
    for _ in range(3):
        assert env.observation_space.contains(observation)
        action, _ = agent.get_action(observation)
        assert env.action_space.contains(action)
        seen.append((observation, action))
        observation, reward, terminated, truncated, _ = env.step(action)
        assert isinstance(float(reward), float)
        assert not terminated
        assert not truncated
    batched, _ = agent.get_actions(np.stack([observation for observation, _ in seen]))
    assert np.allclose(batched, [action for _, action in seen])


def test_the_convolutional_network_chooses_the_same_actions_one_by_one():
    pytest.importorskip("torch")
    workload = module("problems.workloads").WORKLOADS["inference_cnn"]
    env, agent = workload.make_env(), pickle.loads(pickle.dumps(workload.make_agent()))
    observations = [env.reset(seed=seed)[0] for seed in range(8)]
    actions, _ = agent.get_actions(np.stack(observations))
    assert actions.shape == (8,)
    assert all(env.action_space.contains(action) for action in actions)
    assert [agent.get_action(observation)[0] for observation in observations] == actions.tolist()


def test_an_agent_in_the_parent_is_asked_for_all_environments():
    ours = module("contenders.ours")
    assert ours.worker_options({"vec": 16, "inference": "parent"}) == {
        "inference": "parent",
        "worker_args": {"n_envs": 16},
    }
    assert ours.worker_options({"vec": 8})["worker_class"].__name__ == "VecWorker"


def state_of(pid):
    """The letter that the kernel has for what a process does; nothing if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return ""


def is_stopped(pid):
    return state_of(pid) == "T"


def has_ended(pid):
    """It may be left to be reaped: whoever has to does so when there is a core for it."""
    return state_of(pid) in ("", "Z", "X")


def await_stop(pid):
    """Wait until a process stands still which was told to; it needs a core for that, and there may be none for it."""
    while not is_stopped(pid):
        time.sleep(0.001)


@pytest.mark.slow
def test_a_contender_freezes_measures_and_leaves_nothing_behind():
    running_module, processes = module("harness.running"), module("harness.processes")
    running = running_module.Running(running_module.Contender("bare", "bare"), "short")
    root = running._process.pid
    try:
        pids = processes.processes_of(root, running._mark)
        assert len(pids) == 3  # itself and two that it forked
        for _ in range(2):
            for pid in pids:
                await_stop(pid)
            found = running.measure({"seconds": 0.1})
            assert found["timesteps"] > found["trajectories"] > 0
            assert found["seconds"] > 0.05
            assert found["cpu"] > 0
    finally:
        assert running.end() == 0
    assert processes.processes_of(root, running._mark) == []
    assert all(has_ended(pid) for pid in pids)
    assert running.end() == 0  # one that broke has been ended when all are


def test_what_a_contender_has_started_meanwhile_is_frozen_too_and_thawed_with_it():
    processes = module("harness.processes")
    script = "read line; tail -f /dev/null & echo; read line; kill $!"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        try:
            known = processes.freeze(shell.pid)
            assert known == [shell.pid]
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


def test_a_contenders_process_that_is_another_one_by_now_is_left_alone():
    processes = module("harness.processes")
    waiting: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(["cat"], **waiting) as cat, subprocess.Popen(["cat"], **waiting) as other:
        try:
            assert processes.freeze(cat.pid, known=[cat.pid, other.pid]) == [cat.pid]
            await_stop(cat.pid)
            assert not is_stopped(other.pid)
        finally:
            processes.end(cat.pid)
            processes.end(other.pid)


@pytest.mark.slow
def test_a_contender_whose_freezing_was_interrupted_ends_by_itself(monkeypatch):
    running_module, processes = module("harness.running"), module("harness.processes")
    running = running_module.Running(running_module.Contender("bare", "bare"), "short")

    def interrupted(root, mark, known, freeze=processes.freeze):
        freeze(root, mark, known)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "freeze", interrupted)
    # As if it had started all of its processes in this measurement.
    processes.thaw(running._process.pid, running._pids)
    running._pids = []
    with pytest.raises(KeyboardInterrupt):
        running.measure({"seconds": 0.1})
    assert running.end() == 0


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


@pytest.mark.slow
@pytest.mark.parametrize("copied", [True, False])
def test_the_least_delivers_whole_batches_of_whole_trajectories(copied):
    running_module = module("harness.running")
    running = running_module.Running(running_module.Contender("least", "least", {"copied": copied}), "on_policy")
    try:
        found = running.measure({"timesteps": 3_000})
    finally:
        assert running.end() == 0
    assert found["timesteps"] == 4_000  # two batches of two trajectories each
    assert found["reports"] == 4
    assert found["parent_cpu"] > 0


def test_a_contender_that_breaks_says_why(monkeypatch):
    running_module = module("harness.running")
    for contender, why in (
        (running_module.Contender("nobody", "nobody"), "no such contender"),
        (running_module.Contender("copying", "copying"), "unsupported: this workload has no parameters"),
    ):
        with pytest.raises(running_module.Broken, match=why):
            running_module.Running(contender, "short")
    monkeypatch.setattr(running_module.Contender, "python", lambda self: "/bin/false")
    with pytest.raises(running_module.Broken, match="ended without a word"):
        running_module.Running(running_module.Contender("bare", "bare"), "short")


def test_an_unknown_workload_is_answered_with_those_there_are():
    command = [sys.executable, "-m", "benchmarks", "workload", "nothing"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "cheap_20" in found.stderr
