"""The command `bench`."""

from __future__ import annotations

from typing import Any

import click

from streamsampler.cli.examine import examine
from streamsampler.cli.grouped import command, option, options_of
from streamsampler.cli.options import AGENT, ENV_ID, ENVIRONMENT, PRINTED
from streamsampler.cli.values import ABOVE_ZERO, POSITIVE

_HOW = options_of(
    option("How", "--seconds", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="Duration of the measurement, about. More seconds give steadier figures, and time for slow ways."),
    option("How", "--workers", "n_workers", type=POSITIVE, metavar="N",
        show_default="the usable cores, or up to 8 if environments wait",
        help="Number of processes."),
    option("How", "--vec", "n_envs", type=POSITIVE, metavar="N",
        show_default="8, or fewer if making, resetting or stepping them takes long",
        help="Environments per process, in ways with several; or trajectories in flight, if environments wait."),
    option("How", "--step-timeout", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="Longest reset or timestep in a process: a longer one counts as a hang."),
)  # fmt: skip


@command("Measure all the ways to step an environment, and recommend a way.")
@ENV_ID
@options_of(AGENT, ENVIRONMENT, _HOW, PRINTED)
@click.pass_context
def bench(ctx: click.Context, /, env_id: str, **options: Any) -> None:
    """Measure the timesteps per second of each way to step an environment, and recommend a way.

    ENV_ID is an environment registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module first.
    The ways are: in this process; in a worker per core, with one environment, several, a native vector environment, or
        several
    with the agent in the caller's process; and stepped from the caller's process, together or each as soon as it is
    ready. They are measured in turn, in short rounds; the table has their median and spread, or why a way cannot run or
    was skipped. Resets count. Ctrl-C prints the measurements so far. For meaningful figures the machine should do
    nothing else.

    Examples:
      streamsampler bench CartPole-v1
      streamsampler bench my/Maze-v0 --import my_envs --agent my_agents:greedy --seconds 30
      streamsampler bench HalfCheetah-v5 --agent model.zip --vec 16 --json

    Exit codes:
      0 success, 1 no way could be measured, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    from streamsampler.checking.bench import BenchInterruptedError, BenchSettings, bench_update

    how = bench_update, BenchSettings, BenchInterruptedError
    said = "measuring", "measured"
    examine(ctx, env_id, options, how, said, is_failure=lambda report: report.recommendation is None)
