"""Ctrl-C and SIGTERM: what is finished is kept, and the exit code says which signal came."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import streamsampler
import streamsampler.cli
from streamsampler.checking.bench import BenchInterruptedError
from streamsampler.checking.benchmark_report import BenchReport, WayMeasured
from streamsampler.checking.check import CheckInterruptedError
from streamsampler.checking.findings import Finding
from streamsampler.checking.report import CheckReport
from streamsampler.cli.streams import Interrupted, Interrupts
from streamsampler.data import npz as storage
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import Announcements, Terminal, finish, invoke, start

SAMPLE = ("sample", "scripted:Scripted-v0", "--seed", 5, "--out", "out.npz")
EVALUATE = ("evaluate", "scripted:Scripted-v0", "--seed", 5, "--workers", 0)


def endless(announcements: Announcements) -> tuple[object, ...]:
    """Arguments: from the fifth reset on, trajectories do not end; the first one is announced."""
    return ("--workers", 1, "--env-kwarg", "endless_from=5", "--env-kwarg", f"announce={announcements.path}")


def test_the_finished_prefix_is_kept(at_home: Path, announcements: Announcements) -> None:
    process = start(*SAMPLE, "--num-trajectories", 40, "--json", *endless(announcements), cwd=at_home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.returncode, "Traceback" in result.stderr) == (130, False), result.stderr
    summary, kept = json.loads(result.stdout), streamsampler.load("out.npz")
    assert (summary["interrupted"], summary["wanted"]) == (True, {"trajectories": 40})
    assert summary["to_get_all"].partition("sample ")[2].startswith("scripted:Scripted-v0 --seed 5 --out")
    assert 1 <= len(kept) == summary["trajectories"] < 5
    # It is what an undisturbed run begins with.
    assert invoke(*SAMPLE, "--num-trajectories", 5, "--workers", 0).exit_code == 0
    assert kept == streamsampler.load("out.npz")[: len(kept)]


def test_files_that_were_there_stay_and_what_is_finished_goes_next_to_them(at_home: Path) -> None:
    for name in ("out.npz", "out.partial.npz"):
        Path(name).write_bytes(b"hours of work")
    result = invoke(*SAMPLE, "--workers", 0, "--agent", "scripted:later", "--num-trajectories", 900)
    assert result.exit_code == 143, result.stderr
    kept = streamsampler.load("out.partial-2.npz")
    said = " ".join(result.stdout.split())
    assert f"to out.partial-2.npz (the {len(kept)} trajectories that were finished; out.npz is unchanged)" in said
    assert {Path(name).read_bytes() for name in ("out.npz", "out.partial.npz")} == {b"hours of work"}


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_one_to_the_command(at_home: Path, announcements: Announcements) -> None:
    process = start(*SAMPLE, "--num-trajectories", 40, *endless(announcements), cwd=at_home)
    announcements.wait()
    os.killpg(process.pid, signal.SIGTERM)
    result = finish(process)
    assert (result.returncode, "Traceback" in result.stderr) == (143, False), result.stderr
    assert len(streamsampler.load("out.npz")) >= 1


@pytest.mark.slow
def test_pressing_ctrl_c_twice_loses_nothing(at_home: Path, announcements: Announcements) -> None:
    # However long the command waits for a core between the two.
    (at_home / "patient.py").write_text("from streamsampler.cli.streams import Interrupts\nInterrupts.GRACE = 1e9\n")
    given = (*SAMPLE, "--import", "patient", "--num-trajectories", 40, *endless(announcements))
    terminal = Terminal(*given, cwd=at_home)
    announcements.wait()
    terminal.type("\x03\x03")
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text
    assert re.search(r"interrupted +after [1-4] of 40 trajectories", terminal.text)
    assert re.search(r"written to +out.npz \(the [1-4] trajector(y|ies) that w(as|ere) finished\)", terminal.text)
    assert re.search(r"to get all +.*--num-trajectories 40", terminal.text)
    assert len(streamsampler.load("out.npz")) >= 1


def test_nothing_is_written_where_nothing_is_finished(at_home: Path) -> None:
    stopping = ("--agent", "scripted:at_once", "--num-trajectories", 9)
    result = invoke(*SAMPLE, "--workers", 0, *stopping)
    assert result.exit_code == 143, result.stderr
    assert "after 0 of 9 trajectories" in result.stdout
    assert "nothing: no trajectory was complete" in result.stdout
    (at_home / "signalling.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    for arguments in (("--import", "signalling", "--num-trajectories", 9), stopping):
        result = invoke(*EVALUATE, *arguments)
        assert (result.exit_code, result.stdout) == (143, "")
        assert result.stderr.endswith("Interrupted: nothing was kept.\n")
    assert not (at_home / "out.npz").exists()


def test_an_interrupted_evaluation_keeps_what_is_finished(at_home: Path) -> None:
    result = invoke(*EVALUATE, "--agent", "scripted:later", "--num-trajectories", 900, "--out", "kept.json")
    assert (result.exit_code, "Traceback" in result.stderr) == (143, False), result.stderr
    kept = Evaluation.load("kept.json")
    assert (1 <= len(kept) < 600, kept.stopped) == (True, "interrupted")
    assert f"Interrupted: the result is of {len(kept):,} trajector" in result.stderr
    written = Path("kept.json").read_text()
    more = invoke(*EVALUATE, "--agent", "scripted:later", "--num-trajectories", 900, "--out", "kept.json")
    assert "written to: kept.partial.json" in more.stdout
    assert (Path("kept.json").read_text(), Evaluation.load("kept.partial.json").stopped) == (written, "interrupted")
    assert "stopped: interrupted" in result.stdout
    assert "to get all: streamsampler evaluate scripted:Scripted-v0 --seed 5" in result.stdout
    again = invoke(*EVALUATE, "--agent", "scripted:later", "--num-trajectories", len(kept), "--json")
    assert Evaluation.from_json(again.stdout).returns.tolist() == kept.returns.tolist()


def test_a_comparison_interrupted_in_its_second_agent_keeps_the_pairs(at_home: Path) -> None:
    """The end of the first agent's trajectories does not shield what follows from Ctrl-C."""
    agents = ("--agent", "scripted:always_two", "--agent", "scripted:later", "--num-trajectories", 700)
    result = invoke("compare", *EVALUATE[1:], *agents, "--out", "kept.json")
    assert result.exit_code == 143, result.stderr
    kept = Comparison.load("kept.json")
    assert kept.stopped == "interrupted"
    assert (len(kept["scripted:always_two"]), 1 <= len(kept["scripted:later"]) < 600) == (700, True)


def test_a_comparison_interrupted_before_there_are_pairs_keeps_the_first_agent(at_home: Path) -> None:
    agents = ("--agent", "scripted:always_two", "--agent", "scripted:at_once", "--num-trajectories", 70)
    result = invoke("compare", *EVALUATE[1:], *agents, "--out", "kept.json")
    assert result.exit_code == 143, result.stderr
    kept = Evaluation.load("kept.json")
    assert (len(kept), kept.stopped, kept.agent["name"]) == (70, "interrupted", "always_two")
    assert "Only the first agent has trajectories: there are no pairs to compare yet." in result.stderr
    assert "always_two in Scripted-v0: 70 trajectories\n" in result.stdout
    assert "to get all: streamsampler compare scripted:Scripted-v0 --seed 5" in result.stdout


IT: dict[str, Any] = {"environment": "it", "agent": "random", "n_cores": 2}
REPORT = CheckReport(findings=(Finding("made", "pass", ""),), workers=None, seed=7, versions={}, **IT)
RATES = BenchReport(
    ways=(WayMeasured("way", "way()", False, 0, (5.0,)),),
    n_workers=2,
    why_workers="",
    seconds=1.0,
    cut_after=None,
    **IT,
)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("check", CheckInterruptedError(REPORT), "found"),
        ("bench", BenchInterruptedError(RATES), "measured"),
    ],
)
def test_interrupted_checks_print_what_was_found(
    name: str, error: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr(f"streamsampler.checking.{name}.{name}_update", interrupted)
    result = invoke(name, "CartPole-v1")
    assert (result.exit_code, result.stdout.startswith("it")) == (130, True), result.output
    assert f"Interrupted: the following was {said} before." in result.stderr


@pytest.mark.extras
def test_an_interrupted_export_leaves_nothing(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setattr(
        "streamsampler.formats.minari.allocate", lambda *_: signal.raise_signal(signal.SIGINT), raising=True
    )
    result = invoke("export", made / "folder", "--to", "minari", "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "Interrupted: nothing was written."
    assert os.listdir(tmp_path) == []


FOLDER = ("sample", "CartPole-v1", "--shard-size", 300, "--num-samples", 2000, "--seed", 3, "--workers", 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_keeps_what_is_complete_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(*FOLDER, "--out", "whole").exit_code == 0
    write, left = storage._write, iter(range(3))

    def interrupted(file: Any, *rest: Any) -> Any:
        if next(left) < 2:
            return write(file, *rest)
        file.write(b"half of it")
        return signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_write", interrupted)
        result = invoke(*FOLDER, "--out", "it's out")
    assert (result.exit_code, "Traceback" in result.stderr) == (130, False), result.stderr
    assert sorted(os.listdir("it's out")) == ["manifest.json", "shard-000000.npz", "shard-000001.npz"]
    folder = streamsampler.TrajectoryFolder("it's out")
    assert not folder.complete
    assert f"after {folder.n_timesteps} of 2,000 timesteps" in result.stdout
    assert re.search(r"written to +it's out \(2 shards\)", result.stdout)
    name, *typed = shlex.split(result.stdout.partition("to go on")[2].splitlines()[0])
    assert (name, typed[-1]) == ("streamsampler", "--resume")

    result = invoke(*typed, "--json")
    assert result.exit_code == 0, result.stderr
    assert contents(Path("it's out")) == contents(Path("whole"))
    summary, batch = json.loads(result.stdout), streamsampler.TrajectoryFolder("whole").to_batch()
    assert (summary["trajectories"], summary["timesteps"], summary["seed"]) == (len(batch), batch.n_timesteps, 3)
    assert (summary["earlier_timesteps"], summary["to_go_on"]) == (folder.n_timesteps, None)
    assert summary["return"]["mean"] == pytest.approx(batch.returns.mean())
    assert summary["return"]["standard_error"] == pytest.approx(batch.returns.std(ddof=1) / len(batch) ** 0.5)


def test_an_interrupt_before_the_sampling_adds_nothing(at_home: Path) -> None:
    given = ("sample", "scripted:Scripted-v0", "--shard-size", 20, "--num-trajectories", 40, "--workers", 0)
    result = invoke(*given, "--agent", "scripted:at_once", "--out", "out", "--json")
    assert result.exit_code == 143, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["trajectories"], summary["shards"], summary["interrupted"]) == (0, 0, True)
    assert summary["to_go_on"].endswith("--resume")
    assert os.listdir("out") == ["manifest.json"]


def test_trajectories_of_the_unfinished_shard_are_said_to_be_sampled_again(at_home: Path) -> None:
    given = ("sample", "scripted:Scripted-v0", "--shard-size", 10_000, "--num-trajectories", 900, "--workers", 0)
    result = invoke(*given, "--agent", "scripted:later", "--out", "out")
    assert result.exit_code == 143, result.stderr
    said = " ".join(result.stdout.split())
    assert re.search(r"[0-9]+ trajectories \([0-9,]+ timesteps\) of the unfinished shard, which --resume samples", said)
    assert "surplus" not in said


def test_ctrl_c_while_commands_are_imported_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "streamsampler.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "streamsampler.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        streamsampler.cli.main()
    assert end.value.code == 130


def test_the_first_signal_raises_and_others_only_after_a_while() -> None:
    now = [100.0]
    with Interrupts(lambda: now[0]) as interrupts:
        assert interrupts.exit_code == 0
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        now[0] += Interrupts.GRACE
        signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 143
    with Interrupts(lambda: now[0]) as interrupts:
        interrupts.shield()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 130
        now[0] += Interrupts.GRACE + 0.1
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


def test_ignored_signals_stay_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, before)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
