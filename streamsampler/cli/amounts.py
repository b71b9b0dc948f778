"""Take from a command's options the one that says how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from streamsampler.cli.options import option_of

_NO_PARTS = {
    "num_samples": "how many trajectories {} takes is known only when all of them are there",
    "trajectories_per_worker": "{} takes another number where there are other workers",
    "until_halfwidth": "where {} stops is known only when all trajectories before are there",
    "until_decided": "when {} is sure is known only when all pairs before are there",
}
"""Why an amount cannot be cut into parts."""


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


def check_part(options: Mapping[str, Any], name: str, value: Any, *, seed_is_known: bool = False) -> None:
    """Refuse `--part` where the parts would not be those of one run.

    Args:
        options: The command's options.
        name: The name of the option of amount.
        value: Its value.
        seed_is_known: Whether a seed comes from elsewhere.

    Raises:
        click.UsageError: They would not.
    """
    if options["part"] is None:
        return
    if (reason := _NO_PARTS.get(name)) is not None:
        raise click.UsageError(f"--part needs a number of trajectories: {reason.format(option_of(name))}.")
    scenarios = value if name == "scenarios" else []
    have_seeds = name == "seeds" or any(isinstance(each, Mapping) and "seed" in each for each in scenarios)
    if options["seed"] is None and not (seed_is_known or have_seeds):
        raise click.UsageError("--part needs --seed, the same for all parts: each would draw one of its own.")
    if options["on_failure"] == "drop" and name == "num_trajectories":
        raise click.UsageError(
            "--part cannot be used with --on-failure drop: what is left out would be replaced by a trajectory of the "
            "next part."
        )
