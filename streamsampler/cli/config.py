"""Read the options of a command from a TOML file, and write such a file."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

FILE = "streamsampler.cli.config"
"""Where a context's `meta` has the name of the file."""
RAW = "streamsampler.cli.raw"
"""Where a context's `meta` has the values of options as they were given, by name."""

_OWN = {"help", "config", "print_config"}
_JOINED = {"seeds", "without_infos"}
"""Options of one text that may be a list in a file."""


def keys_of(command: click.Command) -> dict[str, click.Parameter]:
    """Return what the arguments and options of a command are called in a file: `--num-samples` is "num-samples"."""
    keys = {}
    for param in command.params:
        if param.name not in _OWN:
            long = next((name for name in param.opts if name.startswith("--")), str(param.name))
            keys[long.removeprefix("--").replace("_", "-")] = param
    return keys


def from_file(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    """Take a command's options from a file, where they are not typed: an option's callback.

    Raises:
        click.BadParameter: The file cannot be read, or holds something else.
    """
    if name is not None:
        ctx.meta[FILE] = name
        ctx.default_map = options_in(Path(name), ctx.command)


def options_in(path: Path, command: click.Command) -> dict[str, Any]:
    """Return what a file has for a command, as click's `default_map` takes it.

    Raises:
        click.BadParameter: The file cannot be read, is no TOML, or has what the command does not.
    """
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise click.BadParameter(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{str(path)!r} is no TOML: {error}") from None
    params = keys_of(command)
    options: dict[str, Any] = {}
    for key, value in found.items():
        known = key.replace("_", "-")
        if known not in params:
            near = difflib.get_close_matches(known, params, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(sorted(params))}."
            raise click.BadParameter(f"{str(path)!r} has {key!r}, which is no option of {command.name}.{hint}")
        options[str(params[known].name)] = _as_typed(value, params[known], f"{str(path)!r}: {key}")
    return options


def _as_typed(value: Any, param: click.Parameter, what: str) -> Any:
    """Return a value as the command line would give it: as text, but for flags."""
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise click.BadParameter(f"{what} should be true or false, and is {value!r}")
        return value
    if isinstance(value, Mapping) and param.name == "env_kwargs":
        return [f"{key}={item!r}" for key, item in value.items()]
    if getattr(param, "multiple", False) or param.nargs == -1:
        return [_text(item, what) for item in (value if isinstance(value, list) else [value])]
    if param.nargs != 1:
        if not isinstance(value, list) or len(value) != param.nargs:
            raise click.BadParameter(f"{what} should be a list of {param.nargs} values, and is {value!r}")
        return [_text(item, what) for item in value]
    if isinstance(value, list) and param.name in _JOINED:
        return ",".join(_text(item, what) for item in value)
    return _text(value, what)


def _text(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise click.BadParameter(f"{what} should be a text or a number, and is {value!r}")
    return str(value)


def as_toml(ctx: click.Context) -> str:
    """Return a file that has the options of a command as they were given, and the others as comments."""
    name = ctx.command.name
    lines = [f"# Options for `streamsampler {name} --config FILE`; what is typed wins."]
    heading = None
    for key, param in keys_of(ctx.command).items():
        if (under := getattr(param, "heading", None)) != heading:
            lines += ["", f"# {under}"]
            heading = under
        value = ctx.meta.get(RAW, {}).get(param.name, ctx.params.get(str(param.name)))
        source = ctx.get_parameter_source(str(param.name))
        if value is not None and source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP):
            lines.append(f"{key} = {_written(param.type_cast_value(ctx, value))}")
        else:
            lines.append(f"# {key} = {_default(ctx, param)}")
    return "\n".join(lines)


def _default(ctx: click.Context, param: click.Parameter) -> str:
    default = param.default
    if isinstance(default, bool | int | float | str):
        return _written(default)
    return "true|false" if getattr(param, "is_flag", False) else param.make_metavar(ctx)


def _written(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)
