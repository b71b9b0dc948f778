"""The bar: on a terminal, as it is computed, and the lines where there is no terminal."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pytest

from streamsampler import LocalSampler
from streamsampler.cli.app import cli
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.running import CliRun, Follower
from streamsampler.cli.streams import Interrupts
from streamsampler.cli.tallies import Tally
from streamsampler.core import progress
from streamsampler.core.progress import Bar, Snapshot, clock, describe, output_on
from tests.cli.harness import Terminal, invoke

ENDLESS = ("sample", "scripted:Scripted-v0", "--env-kwarg", "endless_from=1", "--workers", 1)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 40])
def test_the_bar_moves_while_a_single_trajectory_is_running(home: Path, columns: int) -> None:
    def drawn(text: str) -> list[str]:
        lines = re.split(r"[\r\n]+", text.partition("^C")[0].replace("\x1b[?25l", ""))
        return [line for line in lines[:-1] if line.startswith("[")]

    terminal = Terminal(*ENDLESS, "--num-samples", 10**8, cwd=home, columns=columns)
    terminal.read_until(lambda text: len(set(drawn(text))) >= 4)
    terminal.type("\x03")
    assert terminal.finish() == 130
    *_, last = lines = drawn(terminal.text)
    assert max(map(len, lines)) < columns
    assert columns == 40 or re.fullmatch(r"\[-+\]    0%  [\d,]+/100,000,000 timesteps  [\d:]+ left  [\d,]+/s\s*", last)


@pytest.mark.slow
def test_an_evaluation_shows_the_interval_as_it_narrows(home: Path) -> None:
    # So narrow that it takes seconds, on a machine that is in no hurry: the bar is drawn ten times a second.
    given = ("--until-halfwidth", 0.05, "--max-trajectories", 600_000, "--workers", 2, "--seed", 5)
    terminal = Terminal("evaluate", "scripted:Scripted-v0", *given, cwd=home, columns=100)
    halfwidth = re.compile(r"return [\d.]+ ± ([\d.]+), to ± 0\.05")
    terminal.read_until(lambda text: len(set(halfwidth.findall(text))) >= 3)
    assert terminal.finish() == 0
    shown = [float(match) for match in halfwidth.findall(terminal.text)]
    assert shown[-1] < shown[0]
    assert re.search(r"mean return +[\d.]+ +95 % \[", terminal.text)
    assert "is at most 0.05" in terminal.text


@pytest.mark.slow
def test_a_check_shows_which_of_its_checks_runs_and_then_a_table(home: Path) -> None:
    given = ("--import", "scripted", "--agent", "scripted:always_two", "--time-limit", 1000, "--step-timeout", 1000)
    terminal = Terminal("check", "Scripted-v0", *given, cwd=home)
    terminal.read_until(lambda text: "/6 checks" in text)
    assert terminal.finish() == 0
    for words in ("Scripted-v0 with always_two", "  pass  seed ", "recommended: Mul", "--workers ", "0 failures"):
        assert words in terminal.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "drawn", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
)
def test_terminals_get_what_they_can_show_and_the_same_numbers_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], drawn: bool, coloured: bool
) -> None:
    (home / "warning.py").write_text('import gymnasium\ngymnasium.logger.warn("beware of the dog")\n')
    for name, value in {"TERM": "xterm", "NO_COLOR": "", "CI": "", **environ}.items():
        monkeypatch.setenv(name, value)
    given = ("--num-trajectories", 1, "--workers", 1, "--seed", 1, "--import", "warning")
    terminal = Terminal("sample", "CartPole-v1", *given, cwd=home, columns=120)
    assert terminal.finish() == 0
    text = terminal.text
    assert ("Warning: " in text, "beware of the dog" in text) == (True, True)
    assert ("\x1b[33mbeware of the dog\x1b[0m" in text) == coloured
    assert ("[####" in text, "\x1b" in text) == (drawn, drawn)
    if drawn:
        bar, summary = text.split("\x1b[?25h")
        last: Any = re.search(r"100%  1/1 trajectory  (\d+) timesteps  in (\S+ s) +(\S+)/s", bar)
        assert f"wall time     {last[2]}, {last[3]} timesteps per second" in summary
        assert re.search(rf"timesteps +{last[1]}\r", summary)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_ends_full_and_gives_the_cursor_back() -> None:
    stream = Tty()
    with Bar(stream) as bar:
        bar(Snapshot(0, 0, 10, "timesteps", 0.0))
        bar(Snapshot(12, 3, 10, "timesteps", 2.0, complete=True))
    last = stream.getvalue().split("\r")[-1]
    assert re.search(r"\[#+\]  100%  10/10 timesteps  in 2\.0 s +6/s", last)
    assert last.endswith("\x1b[?25h\n")


def test_nothing_is_drawn_where_nobody_sees_it() -> None:
    stream = Tty()
    for output in (output_on(None), output_on(stream, hidden=True)):
        with output:
            output(Snapshot(5, 1, 10, "timesteps", 1.0))
            assert not output.write_above("a line")
        assert output.interval is None
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("snapshot", "bits"),
    [
        (Snapshot(0, 0, 100, "timesteps", 0.1), ["  0%", "0/100 timesteps", "starting"]),
        (Snapshot(50, 1, 100, "timesteps", 5.0), [" 50%", "50/100 timesteps", "0:05 left", "10/s"]),
        (Snapshot(120, 1, 100, "timesteps", 5.0), [" 99%", "100/100 timesteps", "finishing", "24/s"]),
        (Snapshot(70, 0, 9, "trajectories", 7.0), ["  0%", "0/9 trajectories", "70 timesteps", "-:-- left", "10/s"]),
        (Snapshot(70, 3, 9, "trajectories", 7.0), [" 33%", "3/9 trajectories", "70 timesteps", "0:14 left", "10/s"]),
        (Snapshot(1, 1, 1, "trajectories", 0.0, True), ["100%", "1/1 trajectory", "1 timestep", "in 0.00 s", "0/s"]),
        (  # Rates and times left are those of this run, and not of what was there before.
            Snapshot(1_500, 15, 2_500, "timesteps", 5.0, earlier_timesteps=1_000, earlier_trajectories=10),
            [" 60%", "1,500/2,500 timesteps", "0:10 left", "100/s"],
        ),
        (
            Snapshot(1_000, 10, 20, "trajectories", 0.1, earlier_timesteps=1_000, earlier_trajectories=10),
            [" 50%", "10/20 trajectories", "1,000 timesteps", "-:-- left", "0/s"],
        ),
    ],
)
def test_what_a_bar_says(snapshot: Snapshot, bits: list[str]) -> None:
    assert describe(snapshot) == bits


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 0.2, 61, 3723)] == ["0:00", "0:01", "1:01", "1:02:03"]


def test_a_callable_gets_the_first_and_the_last_snapshot() -> None:
    """Also where the last tickets bring more than is wanted; and these alone, if it has no interval."""
    seen: list[Snapshot] = []

    class Rarely:
        interval = None

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, snapshot: Snapshot) -> None:
            self.seen.append(snapshot.complete)

    with LocalSampler(lambda _: 0, "CartPole-v1", n_workers=5, seed=1) as sampler:
        sampler.obtain_samples(200)
        batch = sampler.obtain_samples(100, progress=seen.append)
        sampler.obtain_samples(20_000, progress=(rarely := Rarely()))
    assert (seen[0].n_timesteps, seen[0].complete) == (0, False)
    assert (seen[-1].n_timesteps, seen[-1].n_trajectories, seen[-1].complete) == (batch.n_timesteps, len(batch), True)
    assert [snapshot.n_timesteps for snapshot in seen] == sorted(snapshot.n_timesteps for snapshot in seen)
    assert rarely.seen == [False, True]


@pytest.mark.parametrize(
    ("environ", "hot"),
    [({}, "\x1b[33mhot\x1b[0m"), ({"NO_COLOR": "1"}, "hot"), ({"TERM": "dumb"}, "hot")],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_what_an_environment_logs_stands_above_the_bar(
    quiet: bool, environ: dict[str, str], hot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Tty()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", None)
    with Bar(stream) as bar, notices_shown(bar, quiet=quiet):
        bar(Snapshot(5, 1, 10, "timesteps", 1.0))
        logging.getLogger("robot").warning("%s is \x1b[33mhot\x1b[0m", "joint 3")
        logging.getLogger("streamsampler").warning("worker 1 died")
    assert (f"\r\x1b[KWarning: robot: joint 3 is {hot}\n" in stream.getvalue()) is not quiet
    assert ("\r\x1b[KWarning: worker 1 died\n" in stream.getvalue()) is not quiet
    assert logging.root.handlers == []


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("sample CartPole-v1 --num-samples 2000 --workers 1 --seed 1", "sampling: 0%  0/2,000 timesteps"),
        ("sample CartPole-v1 --num-samples 2000 --workers 0 --seed 1 --quiet", None),
        ("evaluate CartPole-v1 --num-trajectories 40 --workers 0 --seed 1", "evaluating: "),
        pytest.param("check CartPole-v1", "checking: ", marks=pytest.mark.slow),
    ],
)
def test_without_a_terminal_there_are_lines_that_say_what_is_done(
    line: str, first: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval", 0.0)
    result = invoke(*line.split())
    lines = result.stderr.splitlines()
    assert (result.exit_code, bool(lines)) == (0, first is not None), result.output
    assert first is None or lines[0].startswith(first)
    if "sampling" in result.stderr:
        assert "100%" not in result.stderr  # the summary's line tells the end
        assert re.match(r"\d+ trajectories, 2,\d{3} timesteps in ", lines[-1])


def test_the_end_of_a_call_is_shown_with_the_numbers_of_the_summary() -> None:
    """The call itself sees its end before the batch is assembled, and counts what is left over."""
    shown: list[Snapshot] = []
    bar = type("Shown", (), {"interval": 0.1, "__call__": lambda _, snapshot: shown.append(snapshot)})()
    run = CliRun(click.Context(cli, obj=Interrupts()), cast("Any", bar), quiet=False)
    follower = Follower(run, ends_later=True)
    follower(Snapshot(5, 1, 10, "timesteps", 0.5))
    follower(Snapshot(14, 3, 10, "timesteps", 1.0, complete=True))
    assert [snapshot.complete for snapshot in shown] == [False]
    follower.finish(Tally.of(np.array([5, 7]), np.zeros(12)), 2.5)
    assert shown[1:] == [Snapshot(12, 2, 10, "timesteps", 2.5, complete=True)]
