"""The command `check` and its options."""

from __future__ import annotations

from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import GroupedCommand, grouped_option, options_of
from streamsampler.cli.shared_options import AGENT, ENV_ID, ENVIRONMENT, POSITIVE, PRINTED

_EXAMPLES = """\b
Examples:
  streamsampler check CartPole-v1
  streamsampler check my/Maze-v0 --import my_envs --agent my_agents:greedy
  streamsampler check HalfCheetah-v5 --agent model.zip --time-limit 120 --json

\b
Exit codes:
  0 no failure, 1 failures, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""

_LIMITS = options_of(
    grouped_option(
        "Limits", "--ends-within", type=POSITIVE, default=10_000, show_default=True, metavar="N",
        help="How many timesteps a trajectory may have: with more it is taken never to end.",
    ),
    grouped_option(
        "Limits", "--time-limit", type=arguments.ABOVE_ZERO, default=60.0, show_default=True, metavar="SECONDS",
        help="How long all of it may take, about. What there is no time for is not checked.",
    ),
    grouped_option(
        "Limits", "--step-timeout", type=arguments.ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="How long a reset, an action or a timestep may take: with more it is taken to hang.",
    ),
)  # fmt: skip

_SEED = grouped_option(
    "How", "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="The same seed runs the same trajectories.",
)  # fmt: skip


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Check an environment and an agent; find out how fast.")
@ENV_ID
@options_of(AGENT, ENVIRONMENT, _SEED, _LIMITS, PRINTED)
@click.pass_context
def check(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Check an environment, and an agent in it, and recommend workers for them.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. Is a trajectory a function of its seed, do observations keep to their space, do trajectories end, … : a table
    of passes, warnings and failures, with what to do. Environments that hang or end their process are found out. In the
    end workers are measured, on a machine that should do nothing else meanwhile.
    """
    arguments.check_statistics([options["agent"]], options["vec_normalize"])
    from streamsampler.cli.checking import execute

    execute(ctx, env_id, options, imports=imports, as_json=as_json, quiet=quiet)
