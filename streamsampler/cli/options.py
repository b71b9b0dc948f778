"""Convert the values of options."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamsampler.errors import CheckMode
from streamsampler.scheduling.plans import PartArgument
from streamsampler.scheduling.restarts import Quota

if TYPE_CHECKING:
    from streamsampler.storage.kept_infos import KeptInfos

_COUNT = re.compile(
    r"(?P<thousands>[0-9]{1,3}(,[0-9]{3})+)"
    r"|(?P<number>[+-]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?) ?(?P<unit>[kMGB])?",
    re.IGNORECASE,
)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_DIGITS = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+) ?(?P<unit>[KMGT])(i?B)?", re.IGNORECASE)
_SEEDS = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
_MOST_SEEDS = 10_000_000
_PART = re.compile(r"([0-9]{1,18}) ?/ ?([0-9]{1,18})")
_JSON_WORDS = {"true": True, "false": False, "null": None}


ALL_INFOS = "*"
"""What stands for all infos, where an option says which infos are left out."""
ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
BELOW_HALF = click.FloatRange(min=0, max=0.5, min_open=True, max_open=True)


def option_of(name: str) -> str:
    """Return the option whose value goes by a name in Python."""
    return f"--{name.replace('_', '-')}"


def command_line(typed: Sequence[str], *options: str) -> str:
    """Return what the user typed as one line for a shell: the command's name, its arguments, and further options."""
    name, *arguments = typed
    return f"{name} {shlex.join([*options, *arguments] if '--' in arguments else [*arguments, *options])}"


class Count(click.IntRange):
    """A whole number, as people write them: 100000, 100_000, 100,000, 1e5, 100k; k, M and G are thousands, and so on.

    A comma separates thousands, and is not for what may be a decimal comma: 1,5k and 1,500k are refused.
    """

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer.

        Raises:
            click.BadParameter: It is none, or out of range.
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
            self.fail(f"{value!r} is more than can be counted", param, ctx)
        return super().convert(int(number), param, ctx)


def parse_value(text: str) -> Any:
    """Return the Python literal that `text` is, or what JSON means by true, false and null, or else `text` itself."""
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def json_list(name: str | None, example: str) -> list[Any] | None:
    """Return the list that a JSON file holds; None for no file.

    Raises:
        click.BadParameter: It cannot be read, or holds none; shows the example.
    """
    if name is None:
        return None
    try:
        found = json.loads(Path(name).read_bytes())
    except OSError as error:
        raise click.BadParameter(f"{name!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{name!r} is no JSON: {error}") from None
    if not isinstance(found, list):
        raise click.BadParameter(f"{name!r} should hold a list such as {example}")
    return found


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Return a number of bytes, given as 500M, 500MB or 500MiB: K, M, G and T are powers of 1,024. A callback.

    A number alone is refused: it may be meant as one of megabytes or of bytes.

    Raises:
        click.BadParameter: It is none.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    n_bytes = float(match["number"]) * 1024 ** " KMGT".index(match["unit"].upper()) if match else 0.0
    if not 1 <= n_bytes < 2**63:
        raise click.BadParameter(f"{text!r} is not an amount of memory with its unit, such as 500MB or 2GB")
    return int(n_bytes)


def without_infos(_ctx: click.Context, _param: click.Parameter, text: str | None) -> KeptInfos | None:
    """Return which infos are kept where those of some names, ``handle,pose``, are left out: an option's callback.

    Raises:
        click.BadParameter: A name is empty.
    """
    if text is None:
        return None
    from streamsampler.storage.kept_infos import KeptInfos  # not for --help, which it would slow down

    if text == ALL_INFOS:
        return KeptInfos.of(False)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} should be names of infos, such as handle,pose, or nothing for all infos")
    return KeptInfos(without=frozenset(names))


def number_or_none(_ctx: click.Context, _param: click.Parameter, text: str) -> int | None:
    """Return an integer of at least 0, or None for 'none': an option's callback.

    Raises:
        click.BadParameter: It is neither.
    """
    if text.strip().lower() == "none":
        return None
    if not _DIGITS.fullmatch(text.strip()):
        raise click.BadParameter(f"{text!r} is neither an integer of at least 0 nor 'none'")
    return int(text)


def check_mode(_ctx: click.Context, _param: click.Parameter, text: str) -> CheckMode:
    """Return "warn", "error", or None for 'none': an option's callback.

    Raises:
        click.BadParameter: It is none of them.
    """
    match text.strip().lower():
        case "none":
            return None
        case "warn":
            return "warn"
        case "error":
            return "error"
    raise click.BadParameter(f"{text!r} is neither 'warn' nor 'error' nor 'none'")


def quota(context: click.Context, param: click.Parameter, text: str) -> Quota:
    """Return "auto", or what `number_or_none` does: an option's callback."""
    return "auto" if text.strip().lower() == "auto" else number_or_none(context, param, text)


def env_kwargs(_ctx: click.Context, _param: click.Parameter, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that were given as ``key=value``: an option's callback.

    Raises:
        click.BadParameter: One has no such form, or a key is given twice.
    """
    result: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not of the form key=value")
        if not key.isidentifier():
            raise click.BadParameter(f"{key!r} is no Python name, and so no argument of an environment")
        if key in result:
            raise click.BadParameter(f"{key!r} is given twice")
        result[key] = parse_value(text)
    return result


def seeds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> list[int] | None:
    """Return seeds that were given as ``3,7,10-19``: an option's callback.

    Raises:
        click.BadParameter: They have no such form.
    """
    if text is None:
        return None
    found: list[int] = []
    for bit in text.split(","):
        match = _SEEDS.fullmatch(bit.strip())
        if match is None:
            raise click.BadParameter(f"{bit.strip()!r} is neither a seed nor a range of seeds, such as 3,7,10-19")
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise click.BadParameter(f"{bit.strip()!r} goes down: a range of seeds is 10-19")
        if last - first >= _MOST_SEEDS:
            raise click.BadParameter(f"{bit.strip()!r} has {last - first + 1:,} seeds, more than {_MOST_SEEDS:,}")
        found += range(first, last + 1)
    return found


def part(_ctx: click.Context, _param: click.Parameter, text: str | None) -> PartArgument | None:
    """Return a part that was given as ``2/7``: an option's callback.

    Raises:
        click.BadParameter: It has no such form, or there is no such part.
    """
    if text is None:
        return None
    match = _PART.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a part's number and how many there are, such as 2/7")
    number, of = int(match[1]), int(match[2])
    if not 1 <= number <= of:
        raise click.BadParameter(f"there is no part {number} of {of}: parts are numbered from 1 to {of}")
    return number, of


def is_model_file(agent: str) -> bool:
    """Whether `--agent` names a file, and no object of a module."""
    return agent.endswith(".zip")


def check_statistics(agents: Iterable[str], vec_normalize: object) -> None:
    """Refuse `--vec-normalize` where no agent is a model of Stable-Baselines3.

    Raises:
        click.UsageError: None is.
    """
    if vec_normalize and not any(map(is_model_file, agents)):
        raise click.UsageError("--vec-normalize is for a model of Stable-Baselines3: give --agent model.zip, too.")


def check_side_by_side(options: Mapping[str, Any]) -> None:
    """Refuse options that make no sense with environments side by side.

    Raises:
        click.UsageError: One does not.
    """
    if options["vec"] is not None and options["on_failure"] == "drop":
        raise click.UsageError("--vec cannot be used with --on-failure drop: environments side by side fail together.")


def refuse_without(ctx: click.Context, options: Mapping[str, Any], needed: str, given: str) -> None:
    """Refuse options that need another one, in whose place another one is given.

    Options from a file are passed over where that one is typed, which wins over the file.

    Args:
        ctx: The command's context.
        options: The options by name.
        needed: The option that they need.
        given: The name of what is given in its place.

    Raises:
        click.UsageError: One is given.
    """
    of_file = {name for name in options if ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP}
    if ctx.get_parameter_source(given) is ParameterSource.DEFAULT_MAP:
        of_file = set()
    useless = [option_of(name) for name, value in options.items() if value not in (None, False) and name not in of_file]
    if useless:
        verb = "needs" if len(useless) == 1 else "need"
        raise click.UsageError(f"{' and '.join(useless)} {verb} {needed}: give it, too.")
