"""Commands with grouped options in their help, and with options from a TOML file."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

TYPED = "streamsampler.cli.typed"
"""Key of a context's `meta` with the typed command: its name, and then its arguments."""
_FILE = "streamsampler.cli.config"
"""Key of a context's `meta` with the name of the file of options."""
_JOINED = {"seeds", "without_infos"}
"""Options of a single text that may be a list in a file."""
_OTHER_WORDS = {
    "--num-trajectories": ("--episodes", "--n-episodes", "--num-episodes", "--trajectories", "--n-trajectories"),
    "--num-samples": ("--timesteps", "--n-timesteps", "--num-timesteps", "--total-timesteps", "--steps", "--n-steps"),
}
"""Options under their names in other libraries, where spelling alone would not suggest ours."""


class GroupedOption(click.Option):
    """An option with a heading.

    Attributes:
        heading: The heading.
    """

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value.

        Raises:
            click.BadParameter: The conversion fails; the message names the file with the value.
        """
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if not is_from_file(ctx, str(self.name)):
                raise
            raise click.BadParameter(f"{error.message} (in {ctx.meta[_FILE]!r})", ctx, self) from None


class SeveralArgument(click.Argument):
    """An argument with one or more typed values, or else the values in a file of options."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the values and their origin."""
        # click 8.2.0 mistakes an empty tuple for a typed value.
        typed = {name: value for name, value in opts.items() if name != self.name or value}
        return super().consume_value(ctx, typed)


def option(heading: str, *names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Return `click.option` with a heading."""
    return click.option(*names, cls=GroupedOption, heading=heading, **attributes)


def options_of(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command, in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def is_from_file(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP


class GroupedCommand(click.Command):
    """Lists its options under their headings, in order of first appearance; adds `--config`.

    The part of its docstring from "Examples:" on is printed below the options, line by line.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.help, _, examples = inspect.cleandoc(self.help or "").partition("\n\nExamples:")
        self.epilog = "\b\nExamples:" + examples.replace("\n\n", "\n\n\b\n")
        config = GroupedOption(
            ["--config"], heading="Options from a file", callback=_from_file, is_eager=True, expose_value=False,
            metavar="FILE",
            help="Read options from a TOML file, such as 'num-trajectories = 100'; typed options override it.",
        )  # fmt: skip
        self.params.append(config)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and store them in `ctx.meta[TYPED]`."""
        ctx.meta[TYPED] = (ctx.command_path, *args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            there = {name for param in self.params for name in param.opts}
            for name, others in _OTHER_WORDS.items():
                if name in there and error.option_name in others:
                    message = f"No such option {error.option_name!r}. Did you mean {name!r}?"
                    raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            raise

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


def command(short_help: str) -> Callable[[Any], Any]:
    """Return a decorator that makes a function a command; its docstring is the help, examples last."""
    return click.command(cls=GroupedCommand, short_help=short_help)


def _from_file(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    """Read a command's options from a file, unless they are typed: an option's callback.

    Raises:
        click.BadParameter: The file cannot be read, is no TOML, or has unknown options.
    """
    if name is not None:
        take_options(ctx, name, contents_of_file(name, "TOML", tomllib.loads))


def take_options(ctx: click.Context, name: str, found: Mapping[str, Any]) -> None:
    """Set a command's options from the contents of a file, unless they are typed.

    Raises:
        click.BadParameter: The file has options unknown to the command.
    """
    params = {}
    for param in ctx.command.params:
        long = next((each for each in param.opts if each.startswith("--")), str(param.name))
        params[long.removeprefix("--").replace("_", "-")] = param
    del params["config"]
    ctx.meta[_FILE], ctx.default_map = name, {**(ctx.default_map or {})}
    for key, value in found.items():
        if (known := params.get(key.replace("_", "-"))) is None:
            near = difflib.get_close_matches(key.replace("_", "-"), params, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(sorted(params))}."
            raise click.BadParameter(f"{name!r} has {key!r}, which is not an option of {ctx.command.name}.{hint}")
        ctx.default_map[str(known.name)] = _as_typed(value, known, f"{name!r}: {key}")


def contents_of_file(name: str, kind: str, loads: Callable[[str], Any]) -> Any:
    """Return the contents of a file.

    Raises:
        click.BadParameter: The file cannot be read, or is of another kind.
    """
    try:
        return loads(Path(name).read_bytes().decode())
    except OSError as error:
        raise click.BadParameter(f"{name!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{name!r} is no {kind}: {error}") from None


def _as_typed(value: Any, param: click.Parameter, what: str) -> Any:
    """Return a value as the command line would pass it: as text, except for flags."""
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise click.BadParameter(f"{what} should be true or false, but is {value!r}")
        return value
    if isinstance(value, Mapping) and param.name == "env_kwargs":
        return [f"{key}={item!r}" for key, item in value.items()]
    takes_list = getattr(param, "multiple", False) or param.nargs != 1 or param.name in _JOINED
    items = value if takes_list and isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise click.BadParameter(f"{what} should be a text or a number, but is {item!r}")
    texts = [str(item) for item in items]
    if getattr(param, "multiple", False) or param.nargs == -1:
        return texts
    if param.nargs != 1 and len(texts) != param.nargs:
        raise click.BadParameter(f"{what} should be a list of {param.nargs} values, but is {value!r}")
    return texts if param.nargs != 1 else ",".join(texts)
