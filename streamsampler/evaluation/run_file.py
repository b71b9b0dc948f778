"""The file of a run: the result at its end, the journal during the run, and the saved run to resume."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.reading import read_regular
from streamsampler.core.words import count
from streamsampler.evaluation.amounts import Amount, arguments_of
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.found import Found, checked_target, refusing
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import (
    INTERRUPTED,
    Journal,
    JournalEntry,
    check_unlocked,
    journal_beside,
    journal_lines,
    read_journal,
    whole_of,
)
from streamsampler.evaluation.resuming import SavedTrajectories
from streamsampler.protocol.evaluation_parts import PartArgument

DESCRIBED = (
    "agent", "environment", "settings", "versions", "seed", "success_meaning", "guaranteed", "bounds", "part",
    "failures", "anomalies", "first_anomaly",
)  # fmt: skip
"""The description of an evaluation in a journal, by the attributes of an `Evaluation`."""

_log = logging.getLogger("streamsampler")


class RunFile:
    """The file of a run, its journal, and the saved run to resume.

    A context manager: it closes the journal, which stays unless `finish` was called.

    Attributes:
        path: The file to write; None for no file.
        source: The file with the saved trajectories; None for a new run.
        known: The saved evaluations by position.
        names: The names of the saved agents; None if the file has no names.
        facts: Further facts of the whole run: the arguments of its request, and for a suite the returns of the scores 0
            and 1.

    Raises:
        UsageError: A name is invalid for a file; or `out` has a journal that `resume` does not name.
        StorageError: The file has other contents, is damaged, or is being written by another process.
        OSError: A file cannot be read.
    """

    def __init__(self, kind: type[Found], out: str | PathLike[str] | None, resume: str | PathLike[str] | None) -> None:
        self._kind = kind
        self.path: Path | None = None if out is None else checked_target(out, kind.KIND)
        self.source: Path | None = None
        self.known: dict[int, Evaluation] = {}
        self.names: Sequence[str] | None = None
        self.facts = RunFacts()
        self._journal: Journal | None = None
        self._resumed = None if resume is None else whole_of(checked_target(resume, kind.KIND))
        if self._resumed is not None:
            self.path = self._resumed if self.path is None else self.path
            self._read(self._resumed)
        if self.path is not None and not self._goes_on_with(journal := journal_beside(self.path)) and journal.exists():
            check_unlocked(journal)
            raise UsageError(
                f'{journal} has {_amount_in(journal)} of an earlier run: resume it with resume="{self.path}", '
                f"remove {journal}, or name another file"
            )

    def _goes_on_with(self, path: Path) -> bool:
        return self.source is not None and self.source.resolve() == path.resolve()

    def _read(self, whole: Path) -> None:
        self.source = next((path for path in (journal_beside(whole), whole) if path.exists()), None)
        if self.source is None:
            return
        self.known, self.names, self.facts = _saved(self.source, self._kind)
        check_unlocked(self.source)

    @property
    def first(self) -> Evaluation | None:
        """The first saved evaluation, or None."""
        return next(iter(self.known.values()), None)

    def completed(self, given: Mapping[str, Any], amounts: Sequence[str], others: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the amount; the file's if no amount is given.

        Raises:
            UsageError: The file has no amount either, or an amount of another call.
        """
        if self._resumed is None or any(given[name] is not None for name in amounts):
            return dict(given)
        if self.source is None:
            raise UsageError(
                f"there is neither {self._resumed} nor {journal_beside(self._resumed)} to resume: name another file, "
                f"or give the number of trajectories to begin: {', '.join(amounts)}"
            )
        if not (asked := self.facts.asked):
            raise UsageError(f"{self.source} has no number of trajectories: give one of the arguments "
                             f"{', '.join(amounts)}")  # fmt: skip
        if unknown := asked.keys() - given.keys():
            raise UsageError(
                f"{self.source} was asked for with {', '.join(sorted(unknown))}, which this call does not have: say "
                f"how many trajectories there are to be, by {', '.join(amounts)}"
            )
        changed = {name: given[name] for name, default in others.items() if given[name] != default}
        return {**given, **arguments_of(asked, self.source), **changed}

    def check_names(self, names: Sequence[str]) -> None:
        """Check that the saved agents are the first of the comparison.

        Raises:
            UsageError: The names differ; has both.
        """
        if self.names is not None and list(self.names) != list(names[: len(self.names)]):
            raise UsageError(
                f"{self.source} is of another {self._kind.KIND}: "
                f"the {self._kind.MEMBERS} are {', '.join(self.names)} in "
                f"{self.source}, and {', '.join(names)} here"
            )

    def saved(self, position: int) -> SavedTrajectories | None:
        """Return the saved trajectories of an agent, or None."""
        if self.source is None or position not in self.known:
            return None
        return SavedTrajectories(self.source, self.known[position])

    def with_seed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sampler's options, with the saved seed if none is given."""
        seed = None if self.first is None else self.first.seed
        return {**options, "seed": seed} if options.get("seed") is None and seed is not None else dict(options)

    def part(self, part: PartArgument | None) -> PartArgument | None:
        """Return the given part, or else the saved one."""
        known = None if self.first is None else self.first.part
        return (known.number, known.of) if part is None and known is not None else part

    def bounds(self, bounds: Bounds | None) -> Bounds | None:
        """Return the given bounds, or else the saved ones."""
        return self.first.bounds if bounds is None and self.first is not None else bounds

    def begin(self, amount: Amount | Mapping[str, Any], **head: Any) -> None:
        """Make the journal, with the saved trajectories."""
        if self._resumed is not None and self.source is None:
            _log.warning("no %s to resume yet: the run begins", self._resumed)
        if self.path is None:
            return
        asked = dict(amount.arguments if isinstance(amount, Amount) else amount)
        self._journal = Journal(journal_beside(self.path), self._kind.KIND, {"asked": asked, **head})
        for position, evaluation in self.known.items():
            entry = JournalEntry(self._journal, position)
            entry.begin({name: getattr(evaluation, name) for name in DESCRIBED})
            names = evaluation.names or [None] * len(evaluation)
            for row, name in zip(evaluation.rows, names, strict=True):
                self._journal.add(position, row, name)

    def entry(self, position: int) -> JournalEntry | None:
        """Return the journal's entry of an agent; None without a file to write."""
        return None if self._journal is None else JournalEntry(self._journal, position)

    def finish(self, found: Found) -> None:
        """Write the whole file, and remove the journal."""
        if self.path is None:
            return
        found.save(self.path)
        self._remove_journal()

    def _remove_journal(self) -> None:
        assert self.path is not None
        if self._journal is not None:
            self._journal.close()
        journal = journal_beside(self.path)
        if self._goes_on_with(journal) or (self._journal is not None and self._journal.is_open):
            journal.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._journal is None:
            return
        self._journal.close()
        if error is not None and self._journal.path.exists():
            error.add_note(
                f'{_amount_in(self._journal.path)} are in {self._journal.path}: resume="{self.path}" resumes them'
            )


class RunFacts(NamedTuple):
    """Facts of a saved run that are not in its evaluations.

    Attributes:
        asked: The arguments of the request, as JSON values; None if unknown.
        normalise: Of a suite, the returns of the scores 0 and 1, by task; None for none.
        bounds: Of a suite's journal, the bounds of returns, by task; None for none. A whole file has them in each
            evaluation.
    """

    asked: Mapping[str, Any] | None = None
    normalise: Mapping[str, Any] | None = None
    bounds: Mapping[str, Any] | None = None


def _saved(path: Path, kind: type[Found]) -> tuple[dict[int, Evaluation], Sequence[str] | None, RunFacts]:
    """Return the evaluations of a file by position, the names of their agents if any, and further facts.

    Raises:
        StorageError: The file has other contents.
        UsageError: The file has a whole evaluation, but a comparison should resume.
    """
    data = read_regular(path)
    lines = journal_lines(data)
    held = _kind_of(data if lines is None else lines[0])
    if held == Evaluation.KIND and kind is Comparison:
        first = Evaluation.load(path)
        if first.stopped != INTERRUPTED:
            raise UsageError(
                f"{path} holds the evaluation of a single agent, which is complete: streamsampler.evaluate resumes "
                "it, and compare([…]) compares it with other evaluations"
            )
        return first.by_position(), None, RunFacts(first.asked)
    if held is not None and held != kind.KIND:
        raise StorageError(f"{path} holds {_with_article(held)}, and no {kind.KIND} to resume")
    if lines is None:
        found = kind.load(path)
        facts = RunFacts(found.amount_asked, getattr(found, "normalise", None))
        return found.by_position(), found.names_by_position(), facts
    with refusing(path, f"{kind.KIND} of streamsampler"):
        journal = read_journal(lines)
        names = kind.names_in_journal(journal.head)
        known = {position: Evaluation.of_facts(it) for position, it in journal.evaluations.items()}
        return known, names, RunFacts(journal.head["asked"], *map(journal.head.get, ("normalise", "bounds")))


def _kind_of(data: bytes) -> str | None:
    """Return the kind of a file of this package, in one word; None for other JSON."""
    try:
        head = json.loads(data)
    except (ValueError, RecursionError):
        return None
    said = head.get("format") if isinstance(head, dict) else None
    return said.removeprefix("streamsampler ") if isinstance(said, str) else None


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _amount_in(journal: Path) -> str:
    """Return the number of trajectories in a journal, in words."""
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError):  # another file, or a damaged one
        evaluations = read_journal(journal_lines(read_regular(journal)) or []).evaluations
        return count(sum(len(it["indices"]) for it in evaluations.values()), "trajectory")
    return "trajectories"


def save_interrupted(found: Found, out: Path) -> Path:
    """Write the result of an interrupted run, and return the file.

    If the file of an earlier run exists, it stays, and the result goes into the journal's file. The journal, which has
    the same trajectories, is replaced or removed.
    """
    journal = journal_beside(out)
    if out.exists():
        return found.save(journal)
    found.save(out)
    journal.unlink(missing_ok=True)
    return out
