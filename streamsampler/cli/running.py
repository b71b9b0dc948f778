"""Run a command: progress, errors as messages, Ctrl-C, and exit codes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import click
import numpy as np

from streamsampler.agents.vec_normalize import VecNormalizeWarning
from streamsampler.cli.naming import import_named
from streamsampler.cli.streams import Interrupted, Interrupts, failure, print_error, print_result, stdout_reserved
from streamsampler.core.errors import ProtocolError, SamplerError, StorageError, UsageError, WorkerError
from streamsampler.core.progress import Output, Snapshot, output_on
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import sums
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.shards import ShardFiles, read_manifest
from streamsampler.workers.explain import traceback_of, without_own_frames

Values = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spread:
    """Mean and spread of some numbers.

    Attributes:
        n: How many numbers.
        mean: Their mean.
        squares: Sum of their squared distances from the mean.
        minimum: Their minimum.
        maximum: Their maximum.
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @classmethod
    def of(cls, values: Values) -> Spread:
        array = np.asarray(values, dtype=np.float64)
        if not len(array):
            return cls()
        # Infinite and NaN rewards are the user's, and no reason for NumPy's warnings.
        with np.errstate(all="ignore"):
            mean = array.mean()
            distances = array - mean
            squares = (distances * distances).sum()
        return cls(len(array), float(mean), float(squares), float(array.min()), float(array.max()))

    def __add__(self, other: Spread) -> Spread:
        """Combine two spreads (Chan, Golub and LeVeque, 1979)."""
        if not (self.n and other.n):
            return self if self.n else other
        n, distance = self.n + other.n, other.mean - self.mean
        return Spread(
            n,
            self.mean + distance * other.n / n,
            self.squares + other.squares + distance * distance * self.n * other.n / n,
            float(np.minimum(self.minimum, other.minimum)),
            float(np.maximum(self.maximum, other.maximum)),
        )

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean; None if undefined."""
        return None if self.n < 2 else finite(math.sqrt(self.squares / (self.n - 1)) / math.sqrt(self.n))

    def facts(self) -> dict[str, float | None]:
        """Return mean, minimum and maximum; None if undefined."""
        names = ("mean", "minimum", "maximum")
        return {name: finite(getattr(self, name)) if self.n else None for name in names}


def finite(value: Any) -> Any:
    """Return JSON values with None in place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Tally:
    """The totals of some trajectories.

    Attributes:
        returns: Spread of the returns.
        lengths: Spread of the lengths.
        timesteps: Total of timesteps.
    """

    returns: Spread = Spread()
    lengths: Spread = Spread()
    timesteps: int = 0

    @classmethod
    def of(cls, lengths: np.ndarray[Any, Any], rewards: np.ndarray[Any, Any]) -> Tally:
        """Return the tally of trajectories with these lengths, and these rewards of all their timesteps."""
        return cls.of_values(sums(rewards, lengths), lengths)

    @classmethod
    def of_values(cls, returns: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Tally:
        return cls(Spread.of(returns), Spread.of(lengths), int(lengths.sum()))

    @classmethod
    def of_batch(cls, batch: TrajectoryBatch[Any, Any] | None) -> Tally:
        """Return the tally of a batch; None stands for an empty batch."""
        return cls() if batch is None else cls.of(batch.lengths, batch.rewards)

    @classmethod
    def of_policies(cls, batch: TrajectoryBatch[Any, Any] | None) -> dict[str, Tally]:
        """Return the tally of each policy by name; empty for a single agent."""
        several = batch.policies if isinstance(batch, MultiAgentBatch) else {}
        return {name: cls.of(each.lengths, each.raw_rewards) for name, each in several.items()}

    @classmethod
    def of_folder(cls, folder: Path) -> tuple[Tally, int]:
        """Return the tally of a folder's undamaged shards, and the number of all shards.

        Raises:
            StorageError: The folder has no shards.
        """
        manifest = read_manifest(folder)
        files = ShardFiles(folder, manifest)
        tallies = [cls()]

        def add(number: int) -> None:
            arrays = files.read(number, "rewards")
            tallies[0] += cls.of(arrays["lengths"], arrays["rewards"])

        files.survey(add)
        return tallies[0], len(manifest.shards)

    def facts(self) -> dict[str, Any]:
        """Return amounts, returns and lengths as JSON values; None if undefined."""
        return {
            "trajectories": self.trajectories,
            "timesteps": self.timesteps,
            "return": {**self.returns.facts(), "standard_error": self.returns.standard_error},
            "length": self.lengths.facts(),
        }

    @property
    def trajectories(self) -> int:
        return self.lengths.n

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.returns + other.returns, self.lengths + other.lengths, self.timesteps + other.timesteps)


_LOGGER = logging.getLogger("streamsampler")
_PLAIN = logging.Formatter()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUOTAS = {"max_restarts": "--max-restarts", "limits.max_lifetime_restarts": "ten times --max-restarts"}


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


@contextlib.contextmanager
def translated(ctx: click.Context) -> Iterator[None]:
    """Turn the library's errors into the command's.

    Raises:
        click.UsageError: For a `UsageError`, with options in place of arguments.
        click.ClickException: For the library's other errors.
    """
    try:
        yield
    except UsageError as error:
        details = traceback_of(error.__cause__)
        message = _in_options(str(error), ctx)
        raise click.UsageError("\n\n".join(part for part in (message, details) if part)) from None
    except ProtocolError:
        raise  # a bug in this package: its traceback is needed
    except ImportError as error:
        raise failure(str(error)) from None  # a library is missing; the message says how to install it
    except (SamplerError, OSError, MemoryError) as error:
        message = _message_of(error)
        if isinstance(error, MemoryError):
            message = f"not enough memory{message and f': {message}'}"
        elif not isinstance(error, SamplerError):
            about = None if error.filename is None else f"{error.filename} could not be read or written"
            message = f"{about or 'the operating system refused'}: {error.strerror or error}"
        # A damaged file is not the user's code: the place where reading failed says nothing.
        by_user = isinstance(error, SamplerError) and not isinstance(error, StorageError)
        details = traceback_of(error.__cause__) if by_user else ""
        notes = [_in_options(note, ctx) for note in getattr(error, "__notes__", ())]
        raise failure(message, details, notes) from None


_OTHER_NAMES = {
    "n_trajectories": "--num-trajectories",
    "n_timesteps": "--num-samples",
    "n_workers": "--workers",
    "worker_args": "--vec",
    "VecWorker": "--vec",
    "sample_to_folder": "--shard-size",
}
_PLAIN_WORDS = {"bounds", "guarantee", "margin"}
"""Arguments that are recognised by name alone; other single words are recognised by a value after them."""
_NAMED = re.compile(
    r"(?P<verb>\b[Pp]ass )?\b(?:limits\.)?(?P<name>[A-Za-z]\w*)"
    r"(?P<value>=(?:True|…|'[^']*'|\"[^\"]*\"|\([^)]*\)|\[[^]]*\])?)?"
)


def _in_options(text: str, ctx: click.Context) -> str:
    """Replace Python arguments in a message of the library by options of the command."""
    text = re.sub(r'worker_args=\{"in_flight": (\d+)\}', r"--in-flight \1", text).replace(
        ", without a worker_class,", ""
    )
    names = dict(_OTHER_NAMES)
    for param in ctx.command.params:
        names |= {str(param.name): each for each in param.opts if each.startswith("--")}

    def as_option(match: re.Match[str]) -> str:
        verb, name, value = match["verb"] or "", match["name"], match["value"]
        if name not in names or not (value or "_" in name or name in _PLAIN_WORDS or name in _OTHER_NAMES):
            return match[0]
        shown = "" if value in (None, "=True") else value.strip('=…"()[]')
        if value and value[1:2] == "(":  # names of several values
            shown = shown.replace(",", "").upper()
        verb = verb.replace("Pass", "Give").replace("pass", "give")
        return f"{verb}{names[name]}{shown and ' '}{shown}"

    return _NAMED.sub(as_option, text)


def _message_of(error: BaseException) -> str:
    """Return an error's message, with the option that sets a quota, and nothing about a sampler's next call."""
    if not isinstance(error, WorkerError):
        return str(error)
    quota = error.quota
    return error.worded(quota and quota._replace(argument=_QUOTAS[quota.argument]))


class _AboveTheBar(logging.Handler):
    """Writes warnings and errors of the log above the bar, or as plain lines without a bar."""

    def __init__(self, bar: Output) -> None:
        super().__init__(logging.WARNING)
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        try:
            own = record.name == _LOGGER.name
            text = without_own_frames(record.getMessage()) if own else f"{record.name}: {_PLAIN.format(record)}"
        except Exception:
            self.handleError(record)
            return
        _write(self._bar, f"{record.levelname.capitalize()}: {text}")


def _write(bar: Output, text: str) -> None:
    if not _takes_colours():
        text = _COLOUR.sub("", text)
    if not bar.write_above(text):
        print_error(text)


def _takes_colours() -> bool:
    """Return whether colours are shown: on a terminal that has them, unless NO_COLOR is set (see no-color.org)."""
    stream = sys.stderr
    return bool(stream and stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"))


def _text_of_warning(warning: Warning | str) -> str:
    text = str(warning).replace("WARN: ", "", 1)  # Gymnasium's own prefix
    if isinstance(warning, VecNormalizeWarning):
        text = text.replace("vec_normalize=False", "--vec-normalize none").replace("vec_normalize=", "--vec-normalize ")
    return text


@contextlib.contextmanager
def notices_shown(bar: Output, *, quiet: bool) -> Iterator[None]:
    """Show the library's log and, unless the user's modules set up logging themselves, all other logs.

    Python's warnings are shown in the same way, each in a line.

    Args:
        bar: The bar that may be on the screen.
        quiet: Show neither logs nor warnings but a `VecNormalizeWarning`, after which the result is probably wrong.
    """
    handler = logging.NullHandler() if quiet else _AboveTheBar(bar)
    # A user's own handler at the root would write the same line again, across the bar.
    before, _LOGGER.propagate = _LOGGER.propagate, False
    loggers = [_LOGGER] if quiet or logging.root.handlers else [_LOGGER, logging.root]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")
            warnings.simplefilter("always", VecNormalizeWarning)
            warnings.showwarning = lambda warning, *_: _write(bar, f"Warning: {_text_of_warning(warning)}")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        _LOGGER.propagate = before
