"""Run a command: progress, errors as messages, Ctrl-C, and exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import NoReturn

import click

from streamsampler.cli.messages import translated
from streamsampler.cli.modules import import_named
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import Interrupted, Interrupts, print_error, print_result, stdout_reserved
from streamsampler.cli.tallies import Tally
from streamsampler.core.progress import Output, Snapshot, output_on


class CliRun:
    """A running command.

    Attributes:
        bar: Shows the progress.
        interrupts: The first signal ends the run; finished trajectories are kept.
        quiet: Whether only errors appear on standard error.
        if_interrupted: Message for a signal before the first kept trajectory.
    """

    def __init__(self, ctx: click.Context, bar: Output, *, quiet: bool) -> None:
        self.bar = bar
        self.interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
        self.quiet = quiet
        self.if_interrupted = "nothing was kept"
        self._ctx = ctx

    @property
    def shows_end(self) -> bool:
        """Whether the user sees, or has declined to see, the end of the run."""
        return self.quiet or self.bar.shows_end

    def finish(self, text: str, kept: object = None, *, failed: bool = False, code: int = 0) -> NoReturn:
        """Print the result, and exit.

        Args:
            text: The result.
            kept: The file of the result; None for none.
            failed: Whether the exit code is 1, unless a signal arrived.
            code: The exit code otherwise.
        """
        print_result(text, kept=kept)
        self._ctx.exit(self.interrupts.exit_code or int(failed) or code)


@contextlib.contextmanager
def running(ctx: click.Context, doing: str, *, quiet: bool = False, imports: Iterable[str] = ()) -> Iterator[CliRun]:
    """Run a command's work, to be followed by `CliRun.finish`.

    Args:
        ctx: The command's context.
        doing: The command's activity, for lines in a log.
        quiet: Whether to print only errors on standard error.
        imports: Modules to import first.

    Raises:
        click.ClickException: An error of the library or of the system.
    """
    # Without a last line: the command itself reports the end.
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing=doing)
    run = CliRun(ctx, bar, quiet=quiet)
    try:
        with stdout_reserved(), translated(ctx), notices_shown(bar, quiet=quiet):
            for name in imports:
                import_named(name, f"--import {name}")
            yield run
    except Interrupted:
        print_error(f"Interrupted: {run.if_interrupted}.")
        ctx.exit(run.interrupts.exit_code)


class Follower:
    """Shows the progress of calls, and keeps Ctrl-C from cutting off complete work.

    Args:
        run: The command.
        n_calls: Number of calls; the work is complete after the last.
        ends_later: Whether the last snapshot waits for `finish`, so that its numbers equal the summary's.

    Attributes:
        interval: Seconds between two snapshots.
        earlier_timesteps: Timesteps before the first call; None before it begins.
    """

    def __init__(self, run: CliRun, n_calls: int = 1, *, ends_later: bool = False) -> None:
        self.interval = run.bar.interval
        self.earlier_timesteps: int | None = None
        self._run = run
        self._n_calls = n_calls
        self._ends_later = ends_later
        self._begun = perf_counter()
        self._last: Snapshot | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        if self.earlier_timesteps is None:
            self.earlier_timesteps = snapshot.earlier_timesteps
            self._begun = perf_counter()
        self._n_calls -= snapshot.complete
        if self._n_calls == 0:
            self._run.interrupts.shield()
        if snapshot.complete and self._ends_later:
            self._last = snapshot
        else:
            self._run.bar(snapshot)

    @property
    def seconds(self) -> float:
        """Seconds since the first call began; 0 without any call."""
        return 0.0 if self.earlier_timesteps is None else perf_counter() - self._begun

    def finish(self, kept: Tally, seconds: float) -> None:
        """Show that the call is complete, and its duration."""
        if self._last is not None:
            self._run.bar(
                replace(self._last, seconds=seconds, n_timesteps=kept.timesteps, n_trajectories=kept.trajectories)
            )
