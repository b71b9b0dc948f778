"""The options that `evaluate` and `compare` have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import grouped_option, options_of
from streamsampler.cli.shared_options import POSITIVE


def _scenarios(_ctx: click.Context, _param: click.Parameter, name: str | None) -> list[Any] | None:
    """Return what a file of scenarios holds."""
    return arguments.json_list(name, '[{"seed": 1, "options": {}, "name": "…"}]')


def _out_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    from streamsampler.cli.output import checked_file

    return checked_file(value, ".json", "What is found goes into a .json file")


SEEDS_AND_SCENARIOS = options_of(
    grouped_option(
        "How much (exactly one of these)", "--seeds", callback=arguments.seeds, metavar="SEEDS",
        help="One trajectory from each of these seeds, such as 3,7,10-19.",
    ),
    grouped_option(
        "How much (exactly one of these)", "--scenarios", callback=_scenarios, metavar="FILE",
        help="One trajectory for each scenario in a JSON file, in this order. It holds a list of objects with some of "
        "the keys 'seed', 'options' (what the reset gets) and 'name'.",
    ),
)  # fmt: skip
"""Which trajectories."""

SUCCESS = grouped_option(
    "What", "--success", type=click.Choice(["end", "once"]), default="end", show_default=True,
    help="Where infos have 'success' or 'is_success': a trajectory succeeds if its last timestep says so, or any "
    "timestep.",
)  # fmt: skip

RESULT = grouped_option(
    "Output", "-o", "--out", callback=_out_file, metavar="FILE",
    help="Write what was found, with every return, its index and its seed, to a .json file. After Ctrl-C it gets what "
    "is finished.",
)  # fmt: skip


def bounds(heading: str) -> Callable[[Any], Any]:
    """Return the option of the bounds of returns, under a heading."""
    return grouped_option(
        heading, "--bounds", type=float, nargs=2, metavar="LEAST LARGEST",
        help="The least and the largest return that there can be.",
    )  # fmt: skip


def most(heading: str) -> Callable[[Any], Any]:
    """Return the option of the most trajectories, under a heading."""
    return grouped_option(
        heading, "--max-trajectories", type=POSITIVE, metavar="N", show_default="10,000, or as many as there are seeds",
        help="The most trajectories.",
    )  # fmt: skip


def seeds_for(ctx: click.Context, options: dict[str, Any], rule: str) -> dict[str, Any]:
    """Take the seeds out of all options where a rule that stops goes through them, and return them by name.

    Args:
        ctx: The command's context.
        options: The command's options.
        rule: The name of the option of the rule.
    """
    others = [name for name in ("num_trajectories", "scenarios") if options[name] is not None]
    typed = [name for name in others if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP]
    if options["seeds"] is None or options[rule] is None or typed:
        return {}
    seeds, options["seeds"] = options["seeds"], None
    return {"seeds": seeds}
