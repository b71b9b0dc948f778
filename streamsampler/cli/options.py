"""Options shared by several commands, and the conversion of their values."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from streamsampler.core.arguments import GROUPS
from streamsampler.engines.launch.start_methods import START_METHODS
from streamsampler.engines.registry import ENGINES

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


RUNS, _, WHERE, REPRODUCIBLE, RECORDED, FAILS, _ = GROUPS
"""Headings of groups of options, the same as for the library's arguments."""


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


_COUNT = re.compile(
    r"(?P<thousands>[0-9]{1,3}(,[0-9]{3})+)"
    r"|(?P<number>[+-]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?) ?(?P<unit>[kMGB])?",
    re.IGNORECASE,
)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_DIGITS = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+) ?(?P<unit>[KMGT])(i?B)?", re.IGNORECASE)
_PART = re.compile(r"([0-9]{1,18}) ?/ ?([0-9]{1,18})")
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


def _env_kwargs(_ctx: click.Context, _param: click.Parameter, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``key=value`` arguments by key: an option's callback.

    Raises:
        click.BadParameter: An argument has another form, or a key is repeated.
    """
    found = by_key(pairs, "key=value")
    if wrong := [key for key in found if not key.isidentifier()]:
        raise click.BadParameter(f"{wrong[0]!r} is no Python name, so no argument of an environment")
    return {key: parse_value(text) for key, text in found.items()}


def _part(text: str) -> tuple[int, int]:
    """Return the part of a text such as ``2/7``: an option's type.

    Raises:
        click.BadParameter: The text has another form.
    """
    match = _PART.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not the number of a part and of all parts, such as 2/7")
    return int(match[1]), int(match[2])


def existing(name: str, *suffixes: str, what: str = "FILE|FOLDER") -> Path:
    """Return the path of an existing file or folder, whose name may lack a suffix.

    Raises:
        click.BadParameter: No such file exists.
    """
    for suffix in ("", *suffixes):
        if Path(name + suffix).exists():
            return Path(name + suffix)
    raise click.BadParameter(f"no such file or folder: {name!r}", param_hint=what)


def given_amounts(
    ctx: click.Context, options: dict[str, Any], names: Sequence[str], *together: str, optional: bool = False
) -> dict[str, Any]:
    """Remove the options of the amount from all options, and return the given amount by name.

    Typed options override a file of options.

    Args:
        ctx: The command's context.
        options: The command's options; the options of the amount are removed.
        names: Names of the options of the amount.
        *together: Two of them that may be combined.
        optional: Whether the amount may be absent.

    Raises:
        click.UsageError: No amount is given, or several.
    """
    given = {name: value for name in names if (value := options.pop(name)) is not None}
    if typed := {name for name in given if not is_from_file(ctx, name)}:
        given = {name: value for name, value in given.items() if name in typed or {name, *typed} <= {*together}}
    *most, last = (f"--{name.replace('_', '-')}" for name in names)
    if not given and not optional:
        raise click.UsageError(f"How much? Give one of {', '.join(most)} and {last}.")
    if len(given) > 1 and not given.keys() <= {*together}:
        shown = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{shown} exclude each other: give exactly one of {', '.join(most)} and {last}.")
    return given


POSITIVE = Count(min=1)

NAMED_AGENTS = (
    "'random', or 'package.module:object' for an agent, a function observation -> action, an object with predict, a "
    "torch module, or a class or function that makes such an agent from the observation space and the action space. "
    "Or 'model.zip' for a model of Stable-Baselines3 ('pip install stable-baselines3'); such files can run code."
)
WHAT_STATISTICS_ARE = (
    "the statistics of the model's VecNormalize from training, which Stable-Baselines3 saves in a separate file; "
    "'none' for a model trained without it"
)
DETERMINISTIC = option(
    RUNS, "--deterministic/--stochastic", "deterministic", default=None,
    help="For models of Stable-Baselines3, other objects with predict, and torch modules: whether to act without "
    "drawing. The default of evaluate and compare is --deterministic, but for torch modules, and of sample, "
    "--stochastic.",
)  # fmt: skip

STATISTICS = option(RUNS, "--vec-normalize", metavar="FILE", help=f"With --agent model.zip: {WHAT_STATISTICS_ARE}.")

VIDEO_EXTRA = "Needs PyAV ('pip install av'), and an environment with render_mode 'rgb_array'."

ENV_ID = click.argument("env_id", metavar="ENV_ID")

AGENT = options_of(
    option(RUNS, "--agent", default="random", show_default=True, metavar="NAME",
        help=f"The agent: {NAMED_AGENTS}"),
    STATISTICS,
    DETERMINISTIC,
)  # fmt: skip
"""The agent."""

ENVIRONMENT = options_of(
    option(RUNS, "--env-kwarg", "env_kwargs", callback=_env_kwargs, multiple=True, metavar="KEY=VALUE",
        help="An argument for making the environment: a Python literal, or true, false or null; anything else is "
             "text. May be repeated."),
    option(RUNS, "--import", "imports", multiple=True, metavar="MODULE",
        help="Import a module that registers the environment; also from the current directory. May be repeated."),
    option(
        RUNS, "--max-episode-length", type=POSITIVE, metavar="N", show_default="the environment's own limit",
        help="Truncate trajectories after N timesteps."),
)  # fmt: skip
"""The environment."""

HOW = options_of(
    option(
        WHERE, "--workers", type=FROM_ZERO, metavar="N", show_default="the usable cores",
        help="Number of worker processes; 0 runs everything in this process."),
    option(WHERE, "--vec", type=POSITIVE, metavar="N",
        help="Run N environments side by side in each process, and ask the agent for their actions at once: faster "
        "with a network. Another N may give other trajectories."),
    option(WHERE, "--in-flight", type=POSITIVE, metavar="N",
        help="Of an environment or an agent that waits (async def), let each process have N trajectories in flight."),
    option(WHERE, "--worker-threads", callback=count_or(none=None), default="1", show_default=True, metavar="N",
        help="Threads of a network in each process; 'none' leaves the number to the libraries. The last bits of its "
             "results may depend on it."),
    option(WHERE, "--engine", type=click.Choice([*ENGINES, "ray"]),
        help="Connection of the processes: 'processes' by pipes and shared memory, on Linux; 'queues' by queues of "
             "Python's multiprocessing, on every system. 'ray' for actors of a Ray cluster, which needs the extra "
        "'ray'. The data is the same."),
    option(WHERE, "--ray-address", metavar="HOST:PORT", show_default="a new cluster for this run",
        help="With --engine ray: the address of the Ray cluster, of which this machine is a node; 'auto' finds "
        "one here."),
    option(WHERE, "--start-method", type=click.Choice(START_METHODS),
        help="Start method of processes. 'fork' and 'spawn' choose --engine queues."),
    option(
        REPRODUCIBLE, "--seed", type=FROM_ZERO, metavar="N",
        show_default="a random one, shown in the summary",
        help="The same seed gives the same trajectories, whatever the number of workers."),
)  # fmt: skip
"""Number of workers, seed, and connection of the processes."""

FINGERPRINT = option(
    REPRODUCIBLE, "--fingerprint", type=click.Choice(["warn", "error", "none"]), default="warn",
    show_default=True, callback=lambda _ctx, _param, text: None if text == "none" else text,
    help="The reaction to processes whose numerical kernels differ from each other, or from those of the folder to "
         "resume: there the same seed may give other trajectories.")  # fmt: skip

FAILURES = options_of(
    option(FAILS, "--on-failure", type=click.Choice(["raise", "drop"]), default="raise",
        show_default=True,
        help="The reaction to an exception of the environment or the agent: 'raise' ends the command. 'drop' replaces "
             "its trajectory by a further one; if failures depend on the state, the result is biased."),
    option(
        FAILS, "--step-timeout", type=ABOVE_ZERO, metavar="SECONDS", show_default="no limit",
        help="Longest reset, action or timestep: a slower process is killed and replaced; with async def, the "
             "trajectory is cancelled and run again."),
    option(
        FAILS, "--trajectory-timeout", type=ABOVE_ZERO, metavar="SECONDS", show_default="no limit",
        help="Longest trajectory of an environment that waits (async def): a slower trajectory is cancelled and run "
             "again."),
    option(FAILS, "--max-restarts", callback=count_or(none=None, auto="auto"), default="auto",
        show_default=True, metavar="N",
        help="How many dead or hung processes are replaced within a minute, and ten times as many in all; 'none' for "
             "any number, 'auto' for 10 with up to eight workers, in proportion with more. Their trajectories are run "
             "again, with the same result. A further one ends the command."),
    option(
        FAILS, "--max-worker-memory", type=size, metavar="SIZE", show_default="no limit",
        help="Replace a process that uses more private memory than this, such as 500MB or 2GB."),
    option(FAILS, "--close-timeout", type=ABOVE_ZERO, default=5.0, show_default=True,
        metavar="SECONDS", help="Longest time for closing all environments at the end."),
)  # fmt: skip
"""Handling of failures."""

_QUIET = "Print nothing on standard error but errors"
QUIET = option("Output", "-q", "--quiet", is_flag=True, help=f"{_QUIET}.")

QUIET_WITH_MODELS = option(
    "Output", "-q", "--quiet", is_flag=True,
    help=f"{_QUIET}, and the warning that a model's statistics are missing.",
)  # fmt: skip
"""For commands with `--agent`."""

JSON_LINE = "Print the result as a JSON object in a single line."

PRINTED = options_of(
    option("Output", "--json", "as_json", is_flag=True,
        help="Print the result as a JSON object over several lines; '| jq -c .' makes it a single line."),
    QUIET_WITH_MODELS,
)  # fmt: skip
"""Options of output, for commands that print a document, such as an evaluation."""

PRINTED_LINE = options_of(option("Output", "--json", "as_json", is_flag=True, help=JSON_LINE), QUIET_WITH_MODELS)
"""Options of output, for commands that print a summary."""

PART = option(
    "In parts", "--part", type=_part, metavar="I/N",
    help="Only the I-th, from 1 on, of N contiguous ranges of the trajectories, such as 2/7: for job arrays on "
    "clusters. 'streamsampler merge' makes the file of a whole run from the files of all parts, byte for byte. "
    "Impossible if the number of trajectories is unknown beforehand.",
)  # fmt: skip
"""The part of the trajectories."""

SAMPLED_BY = options_of(ENVIRONMENT, HOW, FINGERPRINT, FAILURES)
"""For all commands that run an environment."""

POLICY_OF = option(
    RUNS, "--policy-of", multiple=True, metavar="AGENT=POLICY",
    help="The policy of an agent, in an environment of several; may be repeated, and then names all agents.",
)  # fmt: skip

POLICIES = options_of(
    option(RUNS, "--agent", multiple=True, default=("random",), show_default=True, metavar="[POLICY=]NAME",
        help=f"The agent: {NAMED_AGENTS} For several agents in an environment (PettingZoo's), once for each policy, "
             "with its name: --agent archer=random --agent knight=my_agents:make. An agent is played by the policy "
             "with its id as name, or its id up to the last '_'."),
    POLICY_OF,
    option(RUNS, "--aec", is_flag=True,
        help="If ENV_ID is a module of PettingZoo: use its env, in which agents take turns, even if it has a "
             "parallel_env."),
    STATISTICS, DETERMINISTIC,
)  # fmt: skip
"""The agent, or the policies."""
