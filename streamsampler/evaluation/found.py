"""What evaluations and comparisons have in common: they are equal by their contents, and are kept as JSON."""

from __future__ import annotations

import json
from dataclasses import Field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from streamsampler.data.trees import same
from streamsampler.errors import StorageError
from streamsampler.storage.atomic import write_whole
from streamsampler.storage.json_facts import read_facts
from streamsampler.version import __version__

__all__ = ["Found"]

_FORMAT_VERSION = 1


class Found:
    """A frozen dataclass that is kept as JSON; the same contents give the same bytes.

    Attributes:
        KIND: What it is, in one word.
    """

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __hash__ = None  # type: ignore[assignment]

    def facts(self) -> dict[str, Any]:
        """Return what it holds as JSON has it, and a summary for other readers, which is not read back."""
        raise NotImplementedError

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Self:
        """Return what `facts` gave.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of another type.
            ValueError: Something has another value than it can have.
        """
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    def contents(self) -> dict[str, Any]:
        """Return `facts` with what they are."""
        return {
            "format": f"streamsampler {self.KIND}",
            "format_version": _FORMAT_VERSION,
            "package_version": __version__,
            **self.facts(),
        }

    def to_json(self) -> str:
        """Return this as JSON, with a summary for other readers.

        The same for the same trajectories, whatever ran them, and with which number of workers: there are no times,
        paths, hosts or numbers of workers in it.

        Raises:
            StorageError: It holds what JSON cannot.
        """
        try:
            return json.dumps(self.contents(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError, RecursionError) as reason:
            raise StorageError(f"the {self.KIND}'s agent or settings cannot be written as JSON: {reason}") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` gave.

        Raises:
            StorageError: It is something else.
        """
        return cls._read(text.encode(), "this text")

    def save(self, path: str | PathLike[str]) -> Path:
        """Write `to_json` to a file, whole or not at all, and return its path.

        Raises:
            StorageError: It holds what JSON cannot.
            OSError: The file cannot be written.
        """
        path, text = Path(path), self.to_json()
        write_whole(path, lambda file: file.write(text.encode()))
        return path

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote.

        Raises:
            StorageError: The file holds something else.
            OSError: The file cannot be read.
        """
        return cls._read(Path(path).read_bytes(), str(path))

    @classmethod
    def _read(cls, data: bytes, where: str) -> Self:
        what = f"{cls.KIND} of streamsampler"
        facts = read_facts(cast("Path", where), data, what, f"streamsampler {cls.KIND}", _FORMAT_VERSION)
        try:
            return cls.of_facts(facts)
        except (LookupError, TypeError, ValueError, OverflowError) as reason:
            wrong = f"{reason} is missing" if isinstance(reason, KeyError) else str(reason)
            raise StorageError(f"{where} is no {what}: {wrong}") from None
