"""Kinds of option values, and modules to import."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import click

__all__ = ["KeyValue", "import_modules", "make_current_directory_importable", "merged", "parse_value"]

_JSON_WORDS = {"true": True, "false": False, "null": None}


def parse_value(text: str) -> Any:
    """Return the Python literal that `text` is, or what JSON means by true, false and null, or else `text` itself."""
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class KeyValue(click.ParamType):
    """``key=value``, where the key is a Python name."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Return the key and the parsed value."""
        key, equals, text = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        if not key.isidentifier():
            self.fail(f"{key!r} is no Python name, and so no argument of an environment", param, ctx)
        return key, parse_value(text)


def merged(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict.

    Raises:
        click.BadParameter: A key is given twice.
    """
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise click.BadParameter(f"{key!r} is given twice: {result[key]!r} and {value!r}")
        result[key] = value
    return result


def make_current_directory_importable() -> None:
    """Let modules in the current directory be found: an installed command finds its own directory there instead."""
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)


def import_modules(names: Iterable[str]) -> None:
    """Import modules for what they register.

    Raises:
        click.BadParameter: One cannot be imported; what importing it raised, if it was found, is the cause.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and f"{name}.".startswith(f"{missing}."):
                raise click.BadParameter(
                    f"there is no module {missing!r}, neither installed nor in {os.getcwd()}{_hint(name)}",
                    param_hint="'--import'",
                ) from None
            raise click.BadParameter(
                f"importing {name} raised {type(error).__name__}: {error}", param_hint="'--import'"
            ) from error


def _hint(name: str) -> str:
    if not name.endswith(".py") and os.sep not in name:
        return ""
    dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
    return f". A module goes by its name, not its file's: {dotted!r}"
