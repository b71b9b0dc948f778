"""What all commands have: options in groups in the help, and options from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from streamsampler.cli.config import FILE, RAW, as_toml, from_file

TYPED = "streamsampler.cli.typed"


class GroupedOption(click.Option):
    """An option with the heading that it stands under.

    Attributes:
        heading: The heading.
    """

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value, and keep how it was given: `ctx.meta[RAW]`.

        Raises:
            click.BadParameter: It is something else; names the file that has it.
        """
        name = str(self.name)
        ctx.meta.setdefault(RAW, {})[name] = value
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
                raise
            raise click.BadParameter(f"{error.message} (in {ctx.meta[FILE]!r})", ctx, self) from None


class SeveralArgument(click.Argument):
    """An argument that is typed once or more. Where none is typed, those of a file count."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the values, and where they come from."""
        # click 8.2.0 takes an empty tuple for what was typed, and looks no further.
        typed = {name: value for name, value in opts.items() if name != self.name or value}
        return super().consume_value(ctx, typed)


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


_FROM_A_FILE = options_of(
    grouped_option(
        "Options from a file", "--config", callback=from_file, is_eager=True, expose_value=False, metavar="FILE",
        help="Take options from a TOML file, such as 'num-trajectories = 100'; those that are typed win.",
    ),
    grouped_option(
        "Options from a file", "--print-config", is_flag=True, expose_value=False,
        help="Print such a file with the options as they are given, and exit.",
    ),
)  # fmt: skip


def _optional(param: click.Parameter) -> click.Parameter:
    """Return a parameter that may be missing, as it may in a file."""
    optional = copy(param)
    optional.required = False
    return optional


class GroupedCommand(click.Command):
    """Lists its options under their headings, in the order in which these first appear.

    It has `--config` and `--print-config`.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        holder = _FROM_A_FILE(lambda: None)
        self.params += reversed(holder.__click_params__)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and keep what was typed: `ctx.meta[TYPED]`; with `--print-config` print, and exit."""
        ctx.meta[TYPED] = (ctx.command_path, *args)
        if "--print-config" in args:
            self._print_config(ctx, args)
        return super().parse_args(ctx, args)

    def _print_config(self, ctx: click.Context, args: list[str]) -> NoReturn:
        relaxed = copy(self)
        relaxed.params = [_optional(param) for param in self.params]
        super(GroupedCommand, relaxed).parse_args(ctx, args)
        click.echo(as_toml(ctx))
        ctx.exit()

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
