"""The bar: on a terminal, and as it is computed."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pytest
from click.testing import CliRunner

from streamsampler import LocalSampler
from streamsampler.cli.app import cli
from streamsampler.cli.interrupts import Interrupts
from streamsampler.cli.running import Follower, Run, notices_shown
from streamsampler.cli.tally import Tally
from streamsampler.core import progress
from streamsampler.core.progress import Bar, Snapshot, clock, describe, output_on
from tests.cli.harness import Terminal

ENDLESS = ("sample", "scripted:Scripted-v0", "--env-kwarg", "endless_from=1", "--workers", 1)


def positions(text: str) -> list[str]:
    """All the counts of timesteps that were shown, one after the other."""
    return list(dict.fromkeys(re.findall(r"([\d,]+)(?:/[\d,]+)? timesteps", text)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("amount", "number"),
    [("--num-samples", 10**8), ("--num-trajectories", 100)],
)
def test_the_bar_moves_while_a_single_trajectory_is_running(home: Path, amount: str, number: int) -> None:
    terminal = Terminal(*ENDLESS, amount, number, cwd=home)
    terminal.read_until(lambda text: len(positions(text)) >= 4)
    line = terminal.text.replace("\x1b[?25l", "").split("\r")[-2]
    terminal.type("\x03")
    assert terminal.finish() == 130

    counts = [int(count.replace(",", "")) for count in positions(terminal.text.partition("^C")[0])]
    assert counts == sorted(counts)
    if amount == "--num-samples":
        assert re.fullmatch(r"\[-+\]    0%  [\d,]+/100,000,000 timesteps  [\d:]+ left  [\d,]+/s\s*", line)
    else:
        assert re.fullmatch(r"\[-+\]    0%  0/100 trajectories  [\d,]+ timesteps  -:-- left  [\d,]+/s\s*", line)


@pytest.mark.slow
def test_a_narrow_terminal_gets_lines_that_fit(home: Path) -> None:
    terminal = Terminal(*ENDLESS, "--num-samples", 10**8, cwd=home, columns=40)
    terminal.read_until(lambda text: text.count("\r") >= 4)
    terminal.type("\x03")
    terminal.finish()
    bar = terminal.text.partition("^C")[0].replace("\x1b[?25l", "")
    assert max(len(line) for line in re.split(r"[\r\n]+", bar) if line.startswith("[")) < 40


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
    ],
)
def test_what_a_bar_says(snapshot: Snapshot, bits: list[str]) -> None:
    assert describe(snapshot) == bits


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (0.2, "0:01"), (61, "1:01"), (3723, "1:02:03")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_a_callable_gets_the_first_and_the_last_snapshot(n_workers: int) -> None:
    """Also where the last tickets bring more than is wanted."""
    seen: list[Snapshot] = []
    with LocalSampler(lambda _: 0, "CartPole-v1", n_workers=n_workers, seed=1) as sampler:
        sampler.obtain_samples(200)
        batch = sampler.obtain_samples(100, progress=seen.append)
    assert (seen[0].timesteps, seen[0].complete) == (0, False)
    assert (seen[-1].timesteps, seen[-1].trajectories, seen[-1].complete) == (batch.n_timesteps, len(batch), True)
    assert [snapshot.timesteps for snapshot in seen] == sorted(snapshot.timesteps for snapshot in seen)


def test_without_an_interval_there_is_nothing_in_between() -> None:
    class Follower:
        interval = None

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, snapshot: Snapshot) -> None:
            self.seen.append(snapshot.complete)

    follower = Follower()
    with LocalSampler(lambda _: 0, "CartPole-v1", seed=1) as sampler:
        sampler.obtain_samples(20_000, progress=follower)
    assert follower.seen == [False, True]


@pytest.mark.parametrize("quiet", [False, True])
def test_what_an_environment_logs_stands_above_the_bar(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Tty()
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", None)
    with Bar(stream) as bar, notices_shown(bar, quiet=quiet):
        bar(Snapshot(5, 1, 10, "timesteps", 1.0))
        logging.getLogger("robot").warning("%s is hot", "joint 3")
        logging.getLogger("streamsampler").warning("worker 1 died")
    assert ("\r\x1b[KWarning: robot: joint 3 is hot\n" in stream.getvalue()) is not quiet
    assert ("\r\x1b[KWarning: worker 1 died\n" in stream.getvalue()) is not quiet
    assert logging.root.handlers == []


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_terminal_the_command_writes_lines_unless_it_is_to_be_quiet(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval", 0.0)
    arguments = ["sample", "CartPole-v1", "--num-samples", "2000", "--workers", "1", "--seed", "1"]
    result = CliRunner().invoke(cli, [*arguments, "--quiet"] if quiet else arguments)
    lines = result.stderr.splitlines()
    assert result.exit_code == 0
    if quiet:
        assert lines == []
    else:
        assert lines[0].startswith("sampling: 0%  0/2,000 timesteps")
        assert "100%" not in result.stderr  # the summary's line tells the end
        assert re.match(r"\d+ trajectories, 2,\d{3} timesteps in ", lines[-1])


def test_the_end_of_a_call_is_shown_with_the_numbers_of_the_summary() -> None:
    """The call itself sees its end before the batch is assembled, and counts what is left over."""
    shown: list[Snapshot] = []
    ctx = click.Context(cli, obj=Interrupts())
    follower = Follower(Run(ctx, cast("Any", _Callable(shown.append)), quiet=False), ends_later=True)
    follower(Snapshot(5, 1, 10, "timesteps", 0.5))
    follower(Snapshot(14, 3, 10, "timesteps", 1.0, complete=True))
    assert [snapshot.complete for snapshot in shown] == [False]
    follower.finish(Tally.of(np.array([5, 7]), np.zeros(12)), 2.5)
    assert shown[1:] == [Snapshot(12, 2, 10, "timesteps", 2.5, complete=True)]


class _Callable:
    interval = 0.1

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, snapshot: Snapshot) -> None:
        self._function(snapshot)


@pytest.mark.parametrize(
    ("arguments", "doing"),
    [
        pytest.param(["check", "CartPole-v1"], "checking", marks=pytest.mark.slow),
        (["evaluate", "CartPole-v1", "--num-trajectories", "40", "--workers", "1", "--seed", "1"], "evaluating"),
    ],
)
def test_lines_say_what_the_command_does(arguments: list[str], doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval", 0.0)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0].startswith(f"{doing}: ")
