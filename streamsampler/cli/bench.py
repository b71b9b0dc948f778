"""The command `bench`."""

from __future__ import annotations

from typing import Any

import click

from streamsampler.cli.check import examined
from streamsampler.cli.grouping import command, option, options_of
from streamsampler.cli.options import ABOVE_ZERO, AGENT, ENV_ID, ENVIRONMENT, POSITIVE, PRINTED

_HOW = options_of(
    option("How", "--seconds", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="How long all of it takes, about. Longer gives figures that vary less, and time to what is slow."),
    option("How", "--workers", "n_workers", type=POSITIVE, metavar="N",
        show_default="the cores there are to use, or up to 8 where environments wait",
        help="How many processes."),
    option("How", "--vec", "n_envs", type=POSITIVE, metavar="N",
        show_default="8, or fewer where making, resetting or stepping them takes long",
        help="How many environments a process has, where it has several."),
    option("How", "--step-timeout", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="How long a reset or a timestep may take in a process: with more it is taken to hang."),
)  # fmt: skip


@command("Measure all the ways to step an environment; recommend one.")
@ENV_ID
@options_of(AGENT, ENVIRONMENT, _HOW, PRINTED)
@click.pass_context
def bench(ctx: click.Context, /, env_id: str, **options: Any) -> None:
    """Measure how many timesteps per second each way to step an environment takes, and recommend one.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. The ways are: in one process; in a worker for each core, with one environment, several, a native vector
    environment, or several whose agent is in the caller's process; and stepped from the caller's process, together or
    each as soon as it is ready. They are measured in turn in short rounds; the table has the median and the spread of
    these, or why a way cannot run, or was given up. Resets count. Ctrl-C prints what was measured before. For
    meaningful figures the machine should do nothing else meanwhile.

    Examples:
      streamsampler bench CartPole-v1
      streamsampler bench my/Maze-v0 --import my_envs --agent my_agents:greedy --seconds 30
      streamsampler bench HalfCheetah-v5 --agent model.zip --vec 16 --json

    Exit codes:
      0 success, 1 no way could be measured, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    from streamsampler.checking.bench import BenchInterruptedError, BenchSettings, bench_update

    as_json, examine = options.pop("as_json"), (bench_update, BenchSettings, BenchInterruptedError)
    report, run = examined(ctx, env_id, options, examine, ("measuring", "measured"))
    text = report.to_json().rstrip("\n") if as_json else report.text(for_command=True)
    run.finish(text, failed=report.recommendation is None)
