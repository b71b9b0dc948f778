"""The commands `check` and `bench`."""

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


def examine(
    ctx: click.Context, env_id: str, options: dict[str, Any], how: tuple[Any, Any, Any], said: tuple[str, str],
    is_failure: Callable[[Any], bool],
) -> None:  # fmt: skip
    """Run `check` or `bench`, print the report, and exit.

    Args:
        ctx: The command's context.
        env_id: The environment.
        options: The options; those that are no settings are removed.
        how: The library's function, the class of its settings, and its exception after Ctrl-C, which has the report so
            far in `found`.
        said: The command's activity for the progress display, and the same as a past participle, for Ctrl-C.
        is_failure: Whether a report means exit code 1.
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
            print_error(f"Interrupted: the following was {said[1]} before.")
    text = report.to_json().rstrip("\n") if as_json else report.text(for_command=True)
    run.finish(text, failed=is_failure(report))


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
