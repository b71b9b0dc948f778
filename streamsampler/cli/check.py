"""The commands `check` and `bench`, and how commands examine an environment and an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from streamsampler.cli.options import (
    ABOVE_ZERO,
    AGENT,
    ENV_ID,
    ENVIRONMENT,
    FROM_ZERO,
    POSITIVE,
    PRINTED,
    command,
    option,
    options_of,
)

if TYPE_CHECKING:
    from streamsampler.cli.naming import Spaces

_LIMITS = options_of(
    option("Limits", "--ends-within", type=POSITIVE, default=10_000, show_default=True, metavar="N",
        help="How many timesteps a trajectory may have: with more it is taken never to end."),
    option("Limits", "--time-limit", type=ABOVE_ZERO, default=60.0, show_default=True, metavar="SECONDS",
        help="How long all of it may take, about. What there is no time for is not checked."),
    option("Limits", "--step-timeout", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="How long a reset, an action or a timestep may take: with more it is taken to hang."),
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
    """Check an environment, and an agent in it, and recommend workers for them.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. Is a trajectory a function of its seed, do observations keep to their space, do trajectories end, … : a table
    of passes, warnings and failures, with what to do. Environments that hang or end their process are found out. In the
    end workers are measured, on a machine that should do nothing else meanwhile.

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


def examine(
    ctx: click.Context, env_id: str, options: dict[str, Any], how: tuple[Any, Any, Any], said: tuple[str, str],
    is_failure: Callable[[Any], bool],
) -> None:  # fmt: skip
    """Examine an environment and an agent, print the report, and exit.

    Args:
        ctx: The command's context.
        env_id: The environment.
        options: The options, which lose those that are not settings.
        how: The function of the library that examines, the class of its settings, and what Ctrl-C raises in it: an
            exception whose `found` is the report so far.
        said: What the command does, as progress says it, and what was done with what was found before Ctrl-C.
        is_failure: Whether a report says that the exit code is 1.
    """
    from streamsampler.checking.ways import env_code
    from streamsampler.cli.naming import env_update_of, load_agents, statistics_of
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import print_error

    as_json, (function, settings, interruption) = options.pop("as_json"), how
    agent = {name: options.pop(name) for name in ("agent", "vec_normalize", "deterministic")}
    env_kwargs = options.pop("env_kwargs")

    def make_agent(spaces: Spaces) -> Any:
        return load_agents(agent, spaces, predicting=True)

    with running(ctx, said[0], quiet=options.pop("quiet"), imports=options.pop("imports")) as run, run.bar:
        statistics_of([agent["agent"]], [agent["vec_normalize"]] if agent["vec_normalize"] else ())
        env, code = env_update_of(env_id, env_kwargs), env_code(env_id, env_kwargs)
        try:
            make = None if agent["agent"] == "random" else make_agent
            report = function(env, code, make, settings(**options), run.bar)
        except interruption as interrupt:
            report = interrupt.found
            print_error(f"Interrupted: what follows was {said[1]} before.")
    text = report.to_json().rstrip("\n") if as_json else report.text(for_command=True)
    run.finish(text, failed=is_failure(report))


# ----------------------------------------------------------------------
# The command `bench`.


_HOW = options_of(
    option("How", "--seconds", type=ABOVE_ZERO, default=10.0, show_default=True, metavar="SECONDS",
        help="How long all of it takes, about. Longer gives figures that vary less, and time to what is slow."),
    option("How", "--workers", "n_workers", type=POSITIVE, metavar="N",
        show_default="the cores there are to use, or up to 8 where environments wait",
        help="How many processes."),
    option("How", "--vec", "n_envs", type=POSITIVE, metavar="N",
        show_default="8, or fewer where making, resetting or stepping them takes long",
        help="How many environments a process has, where it has several; how many are in flight, where they wait."),
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

    how = bench_update, BenchSettings, BenchInterruptedError
    said = "measuring", "measured"
    examine(ctx, env_id, options, how, said, is_failure=lambda report: report.recommendation is None)
