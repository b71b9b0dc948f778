"""Convert the values of options: numbers, sizes, JSON, pairs of keys and texts, names of files."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.grouped import contents_of_file

_COUNT = re.compile(
    r"(?P<thousands>[0-9]{1,3}(,[0-9]{3})+)"
    r"|(?P<number>[+-]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?) ?(?P<unit>[kMGB])?",
    re.IGNORECASE,
)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_DIGITS = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+) ?(?P<unit>[KMGT])(i?B)?", re.IGNORECASE)
_JSON_WORDS = {"true": True, "false": False, "null": None}


class _Number(click.FloatRange):
    name = "number"  # for errors: click's own name is "float range"


class _WholeNumber(click.IntRange):
    name = "whole number"


ABOVE_ZERO = _Number(min=0, min_open=True)
FROM_ZERO = _WholeNumber(min=0)


class Count(click.IntRange):
    """A whole number as people write it: 100000, 100_000, 100,000, 1e5, 100k; k, M and G are thousands, and so on.

    A comma separates thousands, so a possible decimal comma is an error: 1,5k and 1,500k are refused.
    """

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer.

        Raises:
            click.BadParameter: The value is no integer, or out of range.
        """
        match = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            if isinstance(value, str):
                hint = "; a decimal point is a point, as in 1.5k" if "," in value else ""
                self.fail(f"{value!r} is not a whole number, such as 5000, 5_000, 5e3 or 5k{hint}", param, ctx)
            return super().convert(value, param, ctx)
        digits = match["thousands"] or match["number"]
        number = Decimal(digits.replace(",", "").replace("_", "")) * _UNITS[(match["unit"] or "").lower()]
        if number != number.to_integral_value():
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if abs(number) >= 2**63:
            self.fail(f"{value!r} is too large", param, ctx)
        return super().convert(int(number), param, ctx)


def parse_value(text: str) -> Any:
    """Parse a Python literal, or JSON's true, false and null; any other text stays as it is."""
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def json_list(name: str, example: str) -> list[Any]:
    """Return the list in a JSON file.

    Raises:
        click.BadParameter: The file cannot be read, or has no list; shows the example.
    """
    found = contents_of_file(name, "JSON", json.loads)
    if not isinstance(found, list):
        raise click.BadParameter(f"{name!r} should have a list such as {example}")
    return found


def size(text: str) -> int:
    """Return the number of bytes of 500M, 500MB or 500MiB: K, M, G and T are powers of 1,024. An option's type.

    A number alone is refused: its unit may be megabytes or bytes.

    Raises:
        click.BadParameter: The text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    n_bytes = float(match["number"]) * 1024 ** " KMGT".index(match["unit"].upper()) if match else 0.0
    if not 1 <= n_bytes < 2**63:
        raise click.BadParameter(f"{text!r} is no amount of memory with a unit, such as 500MB or 2GB")
    return int(n_bytes)


def count_or(**words: str | None) -> Callable[[click.Context, click.Parameter, str], int | str | None]:
    """Return a callback that accepts an integer of at least 0, or a word in place of its value.

    The callback raises `click.BadParameter` for anything else.
    """

    def convert(_ctx: click.Context, _param: click.Parameter, text: str) -> int | str | None:
        if (word := text.strip().lower()) in words:
            return words[word]
        if not _DIGITS.fullmatch(word):
            raise click.BadParameter(f"{text!r} is neither an integer of at least 0 nor 'none'")
        return int(word)

    return convert


def by_key(pairs: Iterable[str], form: str, option: str | None = None) -> dict[str, str]:
    """Return texts of the form ``key=text``, by key.

    Args:
        pairs: Keys and texts.
        form: Form of a pair, for errors.
        option: The option of the pairs; None if click names it.

    Raises:
        click.BadParameter: A pair has another form, or a key is repeated.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not of the form {form}", param_hint=option)
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice", param_hint=option)
        found[key] = text
    return found


def existing(name: str, *suffixes: str, what: str = "FILE|FOLDER") -> Path:
    """Return the path of an existing file or folder, whose name may lack a suffix.

    Raises:
        click.BadParameter: No such file exists.
    """
    for suffix in ("", *suffixes):
        if Path(name + suffix).exists():
            return Path(name + suffix)
    raise click.BadParameter(f"no such file or folder: {name!r}", param_hint=what)


POSITIVE = Count(min=1)
