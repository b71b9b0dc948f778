"""The command `compare` and its options."""

from __future__ import annotations

from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.amounts import check_part, given_amount
from streamsampler.cli.evaluation_options import RESULT, SEEDS_AND_SCENARIOS, SUCCESS, bounds, most, seeds_for
from streamsampler.cli.grouping import GroupedCommand, grouped_option, options_of
from streamsampler.cli.shared_options import AGENTS, ENV_ID, PART, POSITIVE, PRINTED, SAMPLED_BY

_AMOUNTS = ("num_trajectories", "seeds", "scenarios", "until_decided")
_UNTIL = ("bounds", "max_trajectories")

_EXAMPLES = """\b
Examples:
  streamsampler compare CartPole-v1 --agent old.zip --agent new.zip --num-trajectories 100 --seed 1 --out both.json
  streamsampler compare CartPole-v1 --agent random --agent my_agents:greedy --until-decided 0.05 --bounds 0 500
  streamsampler compare my/Maze-v0 --import my_envs --agent random --agent my_agents:greedy \\
      --until-decided 0.05 --decide-on success

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""

_HOW_MUCH = options_of(
    grouped_option(
        "How much (exactly one of these)", "-n", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories of each agent.",
    ),
    SEEDS_AND_SCENARIOS,
    grouped_option(
        "How much (exactly one of these)", "--until-decided", type=arguments.BELOW_HALF, metavar="ALPHA",
        help="Go on until a test is sure which agent is better. ALPHA is how often equal agents may be told apart, "
        "such as 0.05, although the test looks after each pair. May go through --seeds.",
    ),
)  # fmt: skip

_DECISION = options_of(
    grouped_option(
        "With --until-decided", "--decide-on", type=click.Choice(["return", "success"]), default="return",
        show_default=True,
        help="What the test is about: the mean return, which needs --bounds, or the rate of success.",
    ),
    bounds("With --until-decided"),
    most("With --until-decided"),
)  # fmt: skip


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Compare agents on the same seeds.")
@ENV_ID
@options_of(_HOW_MUCH, _DECISION, PART, AGENTS, SUCCESS, SAMPLED_BY, RESULT, PRINTED)
@click.pass_context
def compare(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Compare agents on the same seeds, and print their differences, pair by pair, with intervals.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. Each agent is compared with the first one. After Ctrl-C the finished pairs are compared.
    """
    seeds = seeds_for(ctx, options, "until_decided")
    name, value = given_amount(ctx, options, _AMOUNTS, "How many trajectories?")
    check_part(options, name, value)
    until = {name: options.pop(name) for name in _UNTIL}
    decide_on = options.pop("decide_on")
    amount = {name: value, **seeds, **({"part": part} if (part := options.pop("part")) else {})}
    if name == "until_decided":
        _check_bounds(until["bounds"], decide_on)
        amount |= {"decide_on": decide_on, **until}
    else:
        arguments.refuse_without(ctx, until, "--until-decided", name)
    _check_agents(options["agents"], options["vec_normalize"])
    arguments.check_side_by_side(options)
    from streamsampler.cli.evaluating import execute, run_comparison

    request = {**options, "env_id": env_id, "amount": amount}
    execute(ctx, run_comparison, request, imports, as_json=as_json, quiet=quiet)


def _check_bounds(bounds: tuple[float, float] | None, decide_on: str) -> None:
    if bounds is None and decide_on == "return":
        raise click.UsageError(
            "--until-decided needs --bounds LEAST LARGEST of returns: without, no test holds whenever one stops."
        )
    if bounds is not None and decide_on == "success":
        raise click.UsageError("--bounds are those of returns, and the success rate decides.")


def _check_agents(agents: tuple[str, ...], statistics: tuple[str, ...]) -> None:
    if len(agents) < 2:
        raise click.UsageError("a comparison needs two agents or more: give --agent for each of them.")
    arguments.check_statistics(agents, statistics)
    n_models = sum(map(arguments.is_model_file, agents))
    if len(statistics) > 1 and len(statistics) != n_models:
        raise click.UsageError(
            f"--vec-normalize is given {len(statistics)} times, and {n_models} agents are models: give it once for all "
            "of them, or for each in their order; 'none' for one that was trained without."
        )
