"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

import streamsampler
from streamsampler.cli.interrupts import Interrupted, Interrupts
from tests.cli.harness import Announcements, Terminal, finish, run, start

SCRIPTED = ("sample", "scripted:Scripted-v0", "--workers", 1, "--seed", 5, "--out", "out.npz")


def endless(announcements: Announcements, resets: int) -> tuple[str, ...]:
    """Arguments: from that many resets on, trajectories do not end; the first one is announced."""
    return ("--env-kwarg", f"endless_from={resets}", "--env-kwarg", f"announce={announcements.path}")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_finished_prefix_is_kept(home: Path, announcements: Announcements, number: signal.Signals) -> None:
    process = start(*SCRIPTED, "--num-trajectories", 40, "--json", *endless(announcements, 5), cwd=home)
    announcements.wait()
    process.send_signal(number)
    result = finish(process)

    assert result.returncode == 128 + number, result.stderr
    assert "Traceback" not in result.stderr
    summary = json.loads(result.stdout)
    assert summary["interrupted"] is True
    assert summary["wanted"] == {"trajectories": 40}
    assert summary["to_get_all"].partition("sample ")[2].startswith("scripted:Scripted-v0 --workers 1 --seed 5 --out")
    kept = streamsampler.load(home / "out.npz")
    assert 1 <= len(kept) == summary["trajectories"] < 5

    # What was kept is what an undisturbed run begins with.
    assert run(*SCRIPTED, "--num-trajectories", 5, cwd=home).returncode == 0
    assert kept == streamsampler.load(home / "out.npz")[: len(kept)]


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_one_to_the_command(home: Path, announcements: Announcements) -> None:
    process = start(*SCRIPTED, "--num-trajectories", 40, *endless(announcements, 5), cwd=home)
    announcements.wait()
    os.killpg(process.pid, signal.SIGTERM)
    result = finish(process)
    assert result.returncode == 143, result.stderr
    assert len(streamsampler.load(home / "out.npz")) >= 1


@pytest.mark.slow
def test_pressing_ctrl_c_twice_loses_nothing(home: Path, announcements: Announcements) -> None:
    # However long the command waits for a core between the two.
    (home / "patient.py").write_text("from streamsampler.cli.interrupts import Interrupts\nInterrupts.GRACE = 1e9\n")
    arguments = ("--import", "patient", "--num-trajectories", 40)
    terminal = Terminal(*SCRIPTED, *arguments, *endless(announcements, 5), cwd=home)
    announcements.wait()
    terminal.type("\x03\x03")
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text
    assert re.search(r"interrupted +after [1-4] of 40 trajectories", terminal.text)
    assert re.search(r"written to +out.npz \(the [1-4] trajector(y|ies) that w(as|ere) finished\)", terminal.text)
    assert re.search(r"to get all +.*--num-trajectories 40", terminal.text)
    assert len(streamsampler.load(home / "out.npz")) >= 1


@pytest.mark.slow
def test_nothing_is_written_where_nothing_is_finished(home: Path, announcements: Announcements) -> None:
    process = start(*SCRIPTED, "--num-samples", 10**9, *endless(announcements, 1), cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 130
    assert "after 0 of 1,000,000,000 timesteps" in result.stdout
    assert "nothing: no trajectory was finished" in result.stdout
    assert not (home / "out.npz").exists()


@pytest.mark.slow
def test_an_interrupt_before_the_sampling(home: Path, announcements: Announcements) -> None:
    (home / "hanging.py").write_text(
        f"import time\nwith open({str(announcements.path)!r}, 'w') as fifo:\n    fifo.write('here')\n"
        # Not `signal.pause()`: a signal that comes right before it would not end it.
        "while True:\n    time.sleep(0.05)\n"
    )
    process = start(*SCRIPTED, "--num-samples", 10, "--import", "hanging", "--json", cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "Interrupted: nothing was kept.\n"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_signal_raises_and_those_right_behind_it_do_not() -> None:
    clock = Clock()
    with Interrupts(clock) as interrupts:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        clock.now += Interrupts.GRACE
        signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 143


def test_who_insists_is_heard() -> None:
    clock = Clock()
    with Interrupts(clock) as interrupts:
        interrupts.shield()
        signal.raise_signal(signal.SIGINT)
        clock.now += Interrupts.GRACE + 0.1
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


def test_a_shield_keeps_what_is_complete() -> None:
    with Interrupts() as interrupts:
        assert interrupts.exit_code == 0
        interrupts.shield()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 130


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
