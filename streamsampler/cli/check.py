"""The commands `check` and `bench`."""

from __future__ import annotations

from typing import Any

import click

from streamsampler.cli.examine import examine
from streamsampler.cli.grouped import command, option, options_of
from streamsampler.cli.options import AGENT, ENV_ID, ENVIRONMENT, PRINTED
from streamsampler.cli.values import ABOVE_ZERO, FROM_ZERO, POSITIVE

_LIMITS = options_of(
    option("Limits", "--ends-within", type=POSITIVE, default=10_000, show_default=True, metavar="N",
        help="Longest trajectory: a longer trajectory counts as endless."),
    option("Limits", "--time-limit", type=ABOVE_ZERO, default=60.0, show_default=True, metavar="SECONDS",
        help="Duration of the whole check, about. Later stages are reported as not checked."),
    option("Limits", "--step-timeout", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="Longest reset, action or timestep: a longer one counts as a hang."),
)  # fmt: skip
_SEED = option(
    "How", "--seed", type=FROM_ZERO, default=0, show_default=True, metavar="N",
    help="The same seed runs the same trajectories.",
)  # fmt: skip


@command("Check an environment and an agent; find out how fast.")
@ENV_ID
@options_of(AGENT, ENVIRONMENT, _SEED, _LIMITS, PRINTED)
@click.pass_context
def check(ctx: click.Context, /, env_id: str, **options: Any) -> None:
    """Check an environment and an agent, and recommend workers for them.

    ENV_ID is an environment registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module first.
    It checks whether a trajectory is a function of its seed, whether observations lie in their space, whether
    trajectories end, … The result is a table of passes, warnings and failures, with advice. Environments may hang or
    end their process. The last stage measures workers: for meaningful figures the machine should do nothing else.

    Examples:
      streamsampler check CartPole-v1
      streamsampler check my/Maze-v0 --import my_envs --agent my_agents:greedy
      streamsampler check HalfCheetah-v5 --agent model.zip --time-limit 120 --json

    Exit codes:
      0 no failure, 1 failures, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    from streamsampler.checking.check import CheckInterruptedError, CheckSettings, check_update

    how = check_update, CheckSettings, CheckInterruptedError
    examine(ctx, env_id, options, how, ("checking", "found"), is_failure=lambda report: not report.ok)
