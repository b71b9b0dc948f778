"""Take from a command's options the one that says how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from streamsampler.cli.options import option_of

__all__ = ["given_amount"]


def given_amount(ctx: click.Context, options: dict[str, Any], names: Sequence[str], question: str) -> tuple[str, Any]:
    """Take the options of amount out of all options, and return the one that is given, and its value.

    What is typed wins over what a file of options has.

    Args:
        ctx: The command's context.
        options: The command's options, which lose these.
        names: The names of the options of amount.
        question: What the error asks where none is given.

    Raises:
        click.UsageError: None is given, or several are.
    """
    given = {name: value for name in names if (value := options.pop(name)) is not None}
    typed = [name for name in given if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP]
    if typed:
        given = {name: given[name] for name in typed}
    *most, last = map(option_of, names)
    if not given:
        raise click.UsageError(f"{question} Give one of {', '.join(most)} and {last}.")
    if len(given) > 1:
        raise click.UsageError(
            f"{' and '.join(map(option_of, given))} exclude each other: give exactly one of {', '.join(most)} and "
            f"{last}."
        )
    return given.popitem()
