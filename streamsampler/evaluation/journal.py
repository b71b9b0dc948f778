"""Write the finished trajectories of a run to a journal, line by line, so that a killed process keeps them.

The journal of "model.json" is "model.partial.json". Each of its lines is JSON:

- the first line has the kind of the file and the amount of the run, as in `Amount.arguments`;
- an object describes an evaluation by its position: 0 for a single agent; in a comparison, the agent's place. It stands
  before the first trajectory, and again after a change, from the next trajectory on: a kill may come between;
- a list is a trajectory: the position, then index, seed, return, length, whether it terminated, whether it was
  truncated, success, and the scenario's name if scenarios have names.

A trajectory is written as soon as its turn has come, by one system call of some microseconds, without waiting for the
disk. The first line, the saved trajectories of an earlier run and the first new trajectory appear together, whole or
not at all. A kill in the middle of a later line leaves an incomplete line, which does not count.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from streamsampler.core.atomic import PathLock, write_whole
from streamsampler.core.errors import StorageError
from streamsampler.core.version import __version__
from streamsampler.data.codec import encode
from streamsampler.evaluation.agents import Row

FORMAT_VERSION = 1
INTERRUPTED = "interrupted"
"""The reason for the end of the trajectories after Ctrl-C or a kill."""

_JOURNAL = "journal"
"""The key in the first line of a journal, and of no other file."""


def head_of(kind: str) -> dict[str, Any]:
    """Return the first entries of each file of evaluations: its format, and the version of this package."""
    return {
        "format": f"streamsampler {kind}",
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
    }


def journal_beside(path: Path) -> Path:
    """Return the journal of a file, such as "x.partial.json"."""
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def whole_of(path: Path) -> Path:
    """Return the file of a journal, such as "x.json" of "x.partial.json"; otherwise the file itself."""
    return path.with_name(f"{path.stem.removesuffix('.partial')}{path.suffix}")


@dataclass
class JournalContents:
    """The contents of a journal.

    Attributes:
        head: The first line: the kind of the run, and its amount.
        evaluations: By position, the JSON values of an evaluation of the finished trajectories; evaluations without any
            are omitted.
    """

    head: dict[str, Any]
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)


def journal_lines(data: bytes) -> list[bytes] | None:
    """Return the complete lines of a journal; None for other files."""
    *lines, _ = data.split(b"\n")  # a kill may have cut the text after the last end of a line
    try:
        head = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):  # other files have several lines
        return None
    return lines if isinstance(head, dict) and _JOURNAL in head else None


def read_journal(lines: Sequence[bytes]) -> JournalContents:
    """Return the contents of a journal from its lines.

    Raises:
        ValueError: A line is no line of a journal.
        TypeError: The same.
        LookupError: The same.
    """
    contents = JournalContents(json.loads(lines[0]))
    facts: dict[int, dict[str, Any]] = {}
    changes: dict[int, dict[str, Any]] = {}
    rows: dict[int, list[list[Any]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        found = json.loads(line)
        if isinstance(found, dict):
            changes.setdefault(found.pop("evaluation"), {}).update(found)
        elif isinstance(found, list) and len(found) in (8, 9) and found[0] in changes:
            position, *row = found
            facts.setdefault(position, {}).update(changes[position])
            changes[position].clear()
            rows.setdefault(position, []).append(row)
        else:
            raise ValueError(f"line {number} is {line[:80]!r}")
    for position in sorted(rows):
        contents.evaluations[position] = _facts_of(facts[position], rows[position], contents.head["asked"])
    return contents


def _facts_of(facts: Mapping[str, Any], rows: Sequence[Sequence[Any]], asked: Any) -> dict[str, Any]:
    indices, seeds, returns, lengths, terminated, truncated, successes, *names = map(list, zip(*rows, strict=True))
    part = facts.get("part")
    first = 0 if part is None else part["first_trajectory"]
    known = any(success is not None for success in successes)
    return {
        **facts,
        "stopped": INTERRUPTED,
        "asked": asked,
        "left_out": indices[-1] + 1 - first - len(rows),
        "indices": indices,
        "seeds": seeds,
        "returns": returns,
        "lengths": lengths,
        "terminated": terminated,
        "truncated": truncated,
        "successes": [bool(success) for success in successes] if known else None,
        "names": names[0] if names else None,
    }


class Journal:
    """The finished trajectories of a running evaluation, in a file.

    The file does not exist before `open`, which writes the lines of all earlier calls at once, and replaces an older
    file.

    Attributes:
        path: The same.
    """

    def __init__(self, path: Path, kind: str, head: Mapping[str, Any]) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._lock: PathLock | None = None
        self._facts: dict[int, dict[str, Any]] = {}
        self._pending = [_line({**head_of(kind), _JOURNAL: 1, **head})]

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def describe(self, position: int, facts: Mapping[str, Any]) -> None:
        """Describe an evaluation by keys of its JSON; unchanged entries are not written again."""
        known = self._facts.setdefault(position, {})
        if changed := {key: value for key, value in facts.items() if key not in known or known[key] != value}:
            known.update(changed)
            self._write(_line({"evaluation": position, **changed}))

    def add(self, position: int, row: Row, name: str | None = None) -> None:
        """Add the next trajectory of a described evaluation."""
        value = encode(row.value, "a return")
        ends = [row.terminated, row.truncated, row.success]
        named = [] if name is None else [name]
        self._write(_line([position, row.trajectory, row.seed, value, row.length, *ends, *named]))

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._pending.append(line)
        elif self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def open(self) -> None:
        """Write all lines so far; later lines are in the file when their call returns.

        Raises:
            StorageError: Another process writes the file.
            OSError: Writing fails.
        """
        check_unlocked(self.path)
        data, self._pending = b"".join(self._pending), []
        write_whole(self.path, lambda file: file.write(data))
        self._lock = locked(self.path)
        self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file, and keep it; repeated calls are allowed."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


_NAMES = ("agent", "environment", "settings", "versions", "seed", "success_meaning", "guaranteed")


class JournalEntry:
    """One evaluation of a journal."""

    def __init__(self, journal: Journal, position: int) -> None:
        self._journal, self._position = journal, position
        self._settings: dict[str, Any] = {}
        self.is_begun = False

    def begin(self, values: Mapping[str, Any]) -> None:
        """Write agent, environment, settings and so on, by the attributes of an `Evaluation`."""
        self.is_begun = True
        self._settings = dict(values["settings"])
        part, bounds = values["part"], values["bounds"]
        facts = {name: values[name] for name in _NAMES}
        facts |= {"bounds": None if bounds is None else list(bounds)}
        facts |= {} if part is None else {"part": part.facts()}
        self._journal.describe(self._position, facts)
        self.describe(values)

    def describe(self, notes: Mapping[str, Any]) -> None:
        """Write the failures and anomalies so far, by the attributes of an `Evaluation`."""
        failures, n_anomalies = list(notes["failures"]), notes["anomalies"]
        facts: dict[str, Any] = {"failures": failures} if failures else {}
        facts |= {"anomalies": {"count": n_anomalies, "first": notes["first_anomaly"]}} if n_anomalies else {}
        self._journal.describe(self._position, facts)

    def describe_fingerprints(self, fingerprints: list[str]) -> None:
        """Write the fingerprints of all known workers."""
        if fingerprints != self._settings.get("fingerprints", []):
            self._settings["fingerprints"] = fingerprints
            self._journal.describe(self._position, {"settings": dict(self._settings)})

    def add(self, row: Row, name: str | None) -> None:
        """Add the next trajectory; it is in the file when the call returns."""
        self._journal.add(self._position, row, name)
        if not self._journal.is_open:
            self._journal.open()


_encoded = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # made once, because rows are many


def _line(value: Any) -> bytes:
    try:
        return _encoded(value).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as reason:
        raise StorageError(f"the evaluation's agent or settings cannot be written as JSON: {reason}") from None


def locked(path: Path) -> PathLock | None:
    """Lock a file for this process; None on systems without locks.

    Raises:
        StorageError: Another process writes the file.
        OSError: The file does not exist.
    """
    try:
        return PathLock(path)
    except ImportError:  # on Windows
        return None


def check_unlocked(path: Path) -> None:
    """Check that no process writes a file, if it exists.

    Raises:
        StorageError: A process does.
        OSError: The file cannot be opened.
    """
    if path.is_file() and (lock := locked(path)) is not None:  # opening a named pipe would wait for its writer
        lock.close()
