"""What shows progress where: a terminal, a notebook, the log of a job."""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from streamsampler import LocalSampler
from streamsampler.core import progress as progress_output
from streamsampler.core.progress import Bar, Display, Lines, Snapshot, output_on


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return not self.closed or super().isatty()


class Call:
    """A call that has 10 timesteps a second, of 1,000."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def so_far(self) -> tuple[int, int]:
        return int(10 * (self.now - 100.0)), 1


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "TERM"):
        monkeypatch.delenv(name, raising=False)


def follow(output: Any, seconds: list[float]) -> None:
    """Let an output follow a call that is looked at after so many seconds, the last time when it is complete."""
    call = Call()
    with output:
        display = Display(1_000, "timesteps", output, output.interval, clock=call.clock)
        for second in seconds:
            call.now = 100.0 + second
            display.update(call.so_far, complete=second == seconds[-1])


def test_a_log_gets_a_line_every_thirty_seconds_and_one_at_the_end() -> None:
    stream = io.StringIO()
    follow(Lines(stream), [0.1, 5.0, 29.9, 30.0, 31.0, 59.9, 60.5, 90.4, 90.5, 100.0])
    lines = [
        "sampling: 30%  300/1,000 timesteps  1:10 left  10/s",
        "sampling: 60%  605/1,000 timesteps  0:40 left  10/s",
        "sampling: 90%  905/1,000 timesteps  0:10 left  10/s",
        "sampling: 100%  1,000/1,000 timesteps  in 1 min 40 s  10/s",
    ]
    assert stream.getvalue().splitlines() == lines
    stream = io.StringIO()
    follow(Lines(stream, last_line=False), [0.1, 30.0, 100.0])
    assert stream.getvalue().splitlines() == lines[:1], "its end is told otherwise"


def test_an_output_that_is_gone_full_or_closed_ends_no_call() -> None:
    class Gone(Tty):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    bar = Bar(Gone())
    follow(bar, [30.0, 100.0])
    assert not bar.write_above("a line")
    closed = io.StringIO()
    closed.close()
    follow(Lines(closed), [30.0, 100.0])


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalSampler(lambda _: 0, "CartPole-v1", seed=1) as sampler:
        sampler.obtain_trajectories(3, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sampling: 100%  3/3 trajectories")


class Widget:
    """What a notebook's bar was told."""

    def __init__(self, **options: Any) -> None:
        self.options, self.n, self.seen, self.closed = options, 0, [], False

    def set_description_str(self, text: str) -> None:
        self.seen.append((self.n, text))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Widget]:
    """This process as a notebook's kernel, and the bars that tqdm made there."""
    made: list[Widget] = []
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    tqdm: Any = types.ModuleType("tqdm.notebook")
    tqdm.tqdm = lambda **options: made.append(Widget(**options)) or made[-1]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "tqdm.notebook", tqdm)
    return made


def test_a_notebook_with_tqdm_gets_its_bar(made: list[Widget], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_output, "find_spec", lambda name: name in ("tqdm", "ipywidgets"))
    follow(output_on(io.StringIO()), [50.0, 100.0])
    (bar,) = made
    assert bar.options["total"] == 1_000
    assert [n for n, _ in bar.seen] == [0, 500, 1_000]
    assert bar.seen[-1][1] == "100%  1,000/1,000 timesteps  in 1 min 40 s  10/s"
    assert bar.closed


def test_a_notebook_without_tqdm_or_what_it_needs_gets_lines(
    made: list[Widget], monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in ((), ("tqdm",), ("ipywidgets",)):
        monkeypatch.setattr(progress_output, "find_spec", lambda name, there=there: name in there)
        stream = io.StringIO()
        follow(output_on(stream), [0.1, 100.0])
        assert stream.getvalue() == "sampling: 100%  1,000/1,000 timesteps  in 1 min 40 s  10/s\n"
    assert made == []


def test_the_real_tqdm_takes_what_it_is_told() -> None:
    tqdm = pytest.importorskip("tqdm")
    stream = io.StringIO()
    bar = tqdm.tqdm(total=10, bar_format="{bar} {desc}", file=stream, ncols=60)
    bar.n = 5
    bar.set_description_str(" 50%  5/10 timesteps")
    bar.close()
    assert " 50%  5/10 timesteps" in stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "variables", "kind"),
    [
        (Tty, {}, Bar),
        (Tty, {"CI": "false"}, Bar),
        (Tty, {"CI": "true"}, Lines),
        (Tty, {"TERM": "dumb"}, Lines),
        (io.StringIO, {}, Lines),
        (io.StringIO, {"SLURM_JOB_ID": "7"}, Lines),
    ],
)
def test_which_output_is_chosen(
    stream: Callable[[], io.StringIO], variables: dict[str, str], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    assert type(output_on(stream())) is kind
    assert output_on(stream(), hidden=True).interval is None
    assert output_on(None).interval is None


def test_what_is_no_terminal_gets_lines_and_nothing_that_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    closed = Tty()
    closed.close()
    own: Any = types.SimpleNamespace(write=lambda text: None, flush=lambda: None)
    assert type(output_on(closed)) is type(output_on(own)) is Lines
    with output_on(sys.stderr, hidden=True) as output:
        output(Snapshot(10, 1, 10, "timesteps", 100.0, complete=True))
    assert capsys.readouterr().err == ""
