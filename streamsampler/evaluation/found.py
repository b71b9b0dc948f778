"""The common base of evaluations and comparisons: equality by contents, and JSON files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.reading import read_regular
from streamsampler.data.json_facts import read_facts
from streamsampler.data.trees import same
from streamsampler.evaluation.journal import FORMAT_VERSION, JournalContents, head_of, journal_lines, read_journal


def checked_target(path: str | PathLike[str], kind: str) -> Path:
    """Return the path of a file to write, checked before anything runs.

    Raises:
        UsageError: The suffix is that of another format, or the folder is missing.
    """
    path = Path(path)
    if path.suffix.lower() not in ("", ".json"):
        raise UsageError(
            f"{str(path)!r}: the {kind} is written as JSON: use the suffix .json. For returns alone call "
            "numpy.savetxt(path, evaluation.returns)"
        )
    if not path.parent.is_dir():
        raise UsageError(f"no such directory: {str(path.parent)!r}")
    return path


class Found:
    """A frozen dataclass with a JSON form: the same contents give the same bytes.

    Attributes:
        KIND: The kind of the contents, in one word.
        MEMBERS: The noun for the owners of its evaluations.
    """

    KIND: ClassVar[str]
    MEMBERS: ClassVar[str] = "agents"
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __hash__ = None  # type: ignore[assignment]

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values, with a summary for other readers, which is never read back."""
        raise NotImplementedError

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Self:
        """Restore the contents from `facts`.

        Raises:
            KeyError: An entry is missing.
            TypeError: An entry has another type.
            ValueError: An entry has an invalid value.
        """
        raise NotImplementedError

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the trajectories of a journal in the form of `facts`.

        Raises:
            ValueError: There are too few trajectories.
        """
        raise NotImplementedError

    def by_position(self) -> dict[int, Any]:
        """Return each evaluation, by its position in a journal."""
        raise NotImplementedError

    @property
    def amount_asked(self) -> Mapping[str, Any] | None:
        """The arguments of the request, as JSON values; None if unknown."""
        return next((it.asked for it in self.by_position().values() if it.asked is not None), None)

    def names_by_position(self) -> Sequence[str] | None:
        """Return the names of the evaluations, in the order of their positions in a journal; None without names."""
        return None

    @classmethod
    def names_in_journal(cls, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the same from the first line of a journal."""
        del head
        return None

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    def contents(self) -> dict[str, Any]:
        """Return `facts` with the kind and the versions."""
        return {**head_of(self.KIND), **self.facts()}

    def to_json(self) -> str:
        """Return the contents as JSON text, with a summary for other readers.

        The text is a function of the trajectories and their amount: it has no times, paths, hosts or numbers of
        workers.

        Raises:
            StorageError: A value has no JSON form.
        """
        try:
            return json.dumps(self.contents(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError, RecursionError) as reason:
            raise StorageError(f"the {self.KIND}'s agent or settings cannot be written as JSON: {reason}") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Restore the contents from `to_json`.

        Raises:
            StorageError: The text has other contents.
        """
        return cls._read(text.encode(), "this text")

    def save(self, path: str | PathLike[str]) -> Path:
        """Write `to_json` to a `.json` file, whole or not at all, and return its path.

        Raises:
            UsageError: The suffix is that of another format, or the folder is missing.
            StorageError: A value has no JSON form.
            OSError: Writing fails.
        """
        path = checked_target(path, self.KIND)
        text = self.to_json()
        write_whole(path, lambda file: file.write(text.encode()))
        return path

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file of `save`, or the journal of a killed run as the result of an interrupted run.

        Raises:
            StorageError: The file has other contents.
            OSError: Reading fails.
        """
        return cls._read(read_regular(Path(path)), str(path))

    @classmethod
    def _read(cls, data: bytes, where: str) -> Self:
        what = f"{cls.KIND} of streamsampler"
        lines = journal_lines(data)
        facts = read_facts(
            cast("Path", where), data if lines is None else lines[0], what, f"streamsampler {cls.KIND}", FORMAT_VERSION
        )
        with refusing(where, what):
            return cls.of_facts(facts if lines is None else cls.facts_of_journal(read_journal(lines)))


@contextlib.contextmanager
def refusing(where: object, what: str) -> Iterator[None]:
    """Raise a `StorageError` for errors that come from the contents of a file.

    Raises:
        StorageError: An entry is missing, or has another type or value.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as reason:
        if isinstance(reason, StorageError):
            raise
        wrong = f"{reason} is missing" if isinstance(reason, KeyError) else str(reason)
        raise StorageError(f"{where} is no {what}: {wrong}") from None
