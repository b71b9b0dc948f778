"""The options shared by `evaluate` and `compare`, and their values as arguments of the library."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from streamsampler.cli import options as shared
from streamsampler.cli.grouped import is_from_file, option, options_of
from streamsampler.cli.values import POSITIVE, json_list

_SEEDS = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
_MOST_SEEDS = 10_000_000


def _seeds(text: str) -> list[int]:
    """Return the seeds of an option such as ``3,7,10-19``.

    Raises:
        click.BadParameter: The text has another form.
    """
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


def _scenarios(name: str) -> list[Any]:
    return json_list(name, '[{"seed": 1, "options": {}, "name": "…"}]')


SEEDS_AND_SCENARIOS = options_of(
    option("How much (exactly one of these)", "--seeds", type=_seeds, metavar="SEEDS",
        help="A trajectory for each of these seeds, such as 3,7,10-19."),
    option("How much (exactly one of these)", "--scenarios", type=_scenarios, metavar="FILE",
        help="A trajectory for each scenario of a JSON file, in this order. The file has a list of objects with some "
             "of the keys 'seed', 'options' (for the reset) and 'name'."),
)  # fmt: skip
"""The trajectories to run."""
SUCCESS = option(
    shared.RECORDED, "--success", type=click.Choice(["end", "once"]), default="end", show_default=True,
    help="If infos have 'success' or 'is_success': whether the last timestep decides about success, or any timestep.",
)  # fmt: skip
RESULT = options_of(
    option("Output", "-o", "--out", metavar="FILE", show_default="the file of --resume",
        help="Write the result, with every return, its index and its seed, to a .json file. After Ctrl-C the file has "
        "the finished trajectories. While the command runs, and after a kill, they are in FILE.partial.json."),
    option("Output", "--resume", metavar="FILE",
        help="Resume from a file of --out, also of a killed command: its trajectories are not run again. Request more "
             "trajectories than before, or leave the amount out to complete the file's own. Repeat all other options "
             "that decide about trajectories, except --seed and --part."),
)  # fmt: skip
"""The files of results."""
BOUNDS = option(
    shared.RECORDED, "--bounds", type=float, nargs=2, metavar="LEAST LARGEST",
    help="The least and the largest possible return. With them an interval exists even if all returns are equal, or "
         "few, or uneven.",
)  # fmt: skip
"""The bounds of returns."""


def most(heading: str) -> Callable[[Any], Any]:
    """Return the option of the most trajectories, under a heading."""
    return option(
        heading, "--max-trajectories", type=POSITIVE, metavar="N",
        show_default="10,000, or the number of seeds",
        help="The most trajectories; with --suite, of each task.",
    )  # fmt: skip


def taken_amount(
    ctx: click.Context, options: dict[str, Any], names: tuple[str, ...], of_rule: tuple[str, ...]
) -> dict[str, Any]:
    """Remove the options of the number of trajectories from all options, and return them by name.

    Args:
        ctx: The command's context.
        options: The command's options.
        names: Names of these options; the last is a rule that decides when to stop, and may go through seeds.
        of_rule: The options of this rule.
    """
    if (suite := options.get("suite")) is not None:
        options["num_trajectories"] = suite.n_trajectories(ctx, options["num_trajectories"])
    amount = shared.given_amounts(ctx, options, names, "seeds", names[-1], optional=options["resume"] is not None)
    rule = {name: options.pop(name) for name in of_rule}
    if names[-1] not in amount and not any(is_from_file(ctx, name) for name in amount):
        rule = {name: value for name, value in rule.items() if not is_from_file(ctx, name)}
    return {**amount, **rule, "part": options.pop("part")}


def shared_arguments(options: dict[str, Any], amount: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments shared by `streamsampler.evaluate` and `compare`, without agents and amounts."""
    from streamsampler.cli.sampler_options import drawn_seed, sampler_arguments

    # The library reports that parts need a common seed, and resumes with the seed of a file.
    is_given = options["seed"] is not None or amount["part"] is not None or options["resume"] is not None
    seed = options["seed"] if is_given else drawn_seed()
    files = {name: options[name] for name in ("out", "resume")}
    arguments = {**sampler_arguments(options, seed), "success": options["success"], **files}
    return {**arguments, "env_kwargs": options["env_kwargs"]} if options["env_kwargs"] else arguments


def suite_arguments(options: dict[str, Any], amount: dict[str, Any]) -> dict[str, Any]:
    """Return `shared_arguments` without the arguments of environments, which belong to each task."""
    return {name: value for name, value in shared_arguments(options, amount).items() if name != "env_kwargs"}
