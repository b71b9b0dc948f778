"""List the options of a command in groups in its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["TYPED", "GroupedCommand", "grouped_option", "options_of"]

TYPED = "streamsampler.cli.typed"


class GroupedOption(click.Option):
    """An option with the heading that it stands under.

    Attributes:
        heading: The heading.
    """

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


def grouped_option(heading: str, *names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Do what `click.option` does, under a heading."""
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


def options_of(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that gives a command several options, in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


class GroupedCommand(click.Command):
    """Lists its options under their headings, in the order in which these first appear."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and keep what was typed: `ctx.meta[TYPED]`."""
        ctx.meta[TYPED] = (ctx.command_path, *args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups into the help."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "heading", "Other options"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
