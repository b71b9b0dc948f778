"""Options shared by several commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

from streamsampler.cli.grouped import is_from_file, option, options_of
from streamsampler.cli.values import ABOVE_ZERO, FROM_ZERO, POSITIVE, by_key, count_or, parse_value, size
from streamsampler.core.arguments import GROUPS
from streamsampler.engines.launch.start_methods import START_METHODS
from streamsampler.engines.registry import ENGINES

RUNS, _, WHERE, REPRODUCIBLE, RECORDED, FAILS, _ = GROUPS
"""Headings of groups of options, the same as for the library's arguments."""


_PART = re.compile(r"([0-9]{1,18}) ?/ ?([0-9]{1,18})")


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
