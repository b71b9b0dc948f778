"""The commands and their options.

What carries out a command is imported when it is needed: help and errors about options do not wait for NumPy and
Gymnasium.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import GroupedCommand, grouped_option
from streamsampler.cli.interrupts import Interrupts
from streamsampler.cli.streams import stream_errors_shown
from streamsampler.engines.launch.start_methods import START_METHODS
from streamsampler.engines.registry import ENGINES
from streamsampler.version import __version__

__all__ = ["cli", "info", "main", "sample"]

_AMOUNTS = ("num_samples", "num_trajectories", "trajectories_per_worker")
_POSITIVE = arguments.Count(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)

_EXAMPLES = """\b
Examples:
  streamsampler sample CartPole-v1 --num-samples 100000 --out cartpole.npz
  streamsampler sample CartPole-v1 --agent my_agents:greedy --num-trajectories 100 --seed 1
  streamsampler sample CartPole-v1 --num-samples 1000000000 --seed 1 --out big --shard-size 1000000
  streamsampler sample my/Maze-v0 --import my_envs --env-kwarg size=9 --num-samples 5000 --json

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


def _out_file(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    from streamsampler.cli.output import out_file

    return out_file(ctx, param, value)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="streamsampler", message="%(prog)s %(version)s")
def cli() -> None:
    """Collect trajectories from Gymnasium environments in parallel, reproducibly."""


@cli.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Sample trajectories from an environment.")
@click.argument("env_id", metavar="ENV_ID")
@grouped_option(
    "How much (exactly one of these)", "--num-samples", type=_POSITIVE, metavar="N",
    help="At least N timesteps, of whole trajectories: the shortest sequence of them that has so many. Numbers may be "
    "written 100000, 100_000, 1e5 or 100k.",
)  # fmt: skip
@grouped_option(
    "How much (exactly one of these)", "--num-trajectories", type=_POSITIVE, metavar="N",
    help="Exactly N trajectories.",
)  # fmt: skip
@grouped_option(
    "How much (exactly one of these)", "--trajectories-per-worker", type=_POSITIVE, metavar="N",
    help="Exactly N trajectories for each worker.",
)  # fmt: skip
@grouped_option(
    "What", "--agent", default="random", show_default=True, metavar="NAME",
    help="What chooses the actions: 'random', or 'package.module:object' for an agent, a function observation -> "
    "action, or a class or function that makes an agent from the observation space and the action space. Or "
    "'model.zip' for a model of Stable-Baselines3, which needs the extra 'sb3'; such files can run code.",
)  # fmt: skip
@grouped_option(
    "What", "--vec-normalize", metavar="FILE",
    help="With --agent model.zip: the statistics of the VecNormalize that the model was trained under, which "
    "Stable-Baselines3 saves by themselves; 'none' for a model that was trained without.",
)  # fmt: skip
@grouped_option(
    "What", "--env-kwarg", "env_kwargs", callback=arguments.env_kwargs, multiple=True, metavar="KEY=VALUE",
    help="An argument for making the environment; a Python literal, or true, false or null, or else text. May be "
    "repeated.",
)  # fmt: skip
@grouped_option(
    "What", "--import", "imports", multiple=True, metavar="MODULE",
    help="Import a module first, which registers the environment; from the current directory if it is not installed. "
    "May be repeated.",
)  # fmt: skip
@grouped_option(
    "What", "--max-episode-length", type=_POSITIVE, metavar="N", show_default="the environment's own limit",
    help="Truncate trajectories after N timesteps.",
)  # fmt: skip
@grouped_option(
    "How", "--workers", type=click.IntRange(min=0), metavar="N", show_default="the cores there are to use",
    help="How many processes; 0 for none but this one.",
)  # fmt: skip
@grouped_option(
    "How", "--vec", type=_POSITIVE, metavar="N",
    help="Run N environments side by side in each process, and ask the agent for their actions at once: faster with a "
    "network. Another N may give other trajectories.",
)  # fmt: skip
@grouped_option(
    "How", "--seed", type=click.IntRange(min=0), metavar="N", show_default="a random one, shown in the summary",
    help="The same seed gives the same trajectories, whatever the number of workers.",
)  # fmt: skip
@grouped_option(
    "How", "--order", type=click.Choice(["index", "arrival"]), default="index", show_default=True,
    help="'index' takes trajectories as one process alone would have sampled them. 'arrival' takes what is finished "
    "first, which favours short ones.",
)  # fmt: skip
@grouped_option(
    "How", "--worker-threads", callback=arguments.number_or_none, default="1", show_default=True, metavar="N",
    help="How many threads a network computes on in each process; 'none' leaves that to the libraries. The last bits "
    "of its numbers may depend on it.",
)  # fmt: skip
@grouped_option(
    "How", "--engine", type=click.Choice([*ENGINES, "ray"]),
    help="How processes are connected: 'processes' by pipes and shared memory, on Linux and macOS; 'queues' by "
    "queues of Python's own multiprocessing, on every system. 'ray' for actors of a Ray cluster, which needs the extra "
    "'ray'. The data are the same.",
)  # fmt: skip
@grouped_option(
    "How", "--ray-address", metavar="HOST:PORT", show_default="a cluster that is started for this run",
    help="With --engine ray: the address of the Ray cluster, of which this machine is a node; 'auto' finds one here.",
)  # fmt: skip
@grouped_option("How", "--start-method", type=click.Choice(START_METHODS), help="How processes are started.")
@grouped_option(
    "When something fails", "--on-failure", type=click.Choice(["raise", "drop"]), default="raise", show_default=True,
    help="What an exception of the environment or the agent does: 'raise' ends the command. 'drop' leaves its "
    "trajectory out, and takes another one instead; where failures depend on the state, what is left is biased.",
)  # fmt: skip
@grouped_option(
    "When something fails", "--fingerprint", callback=arguments.check_mode, default="warn", show_default=True,
    metavar="warn|error|none", help="What is done where processes compute with other kernels than others, or than "
    "those that wrote the folder that --resume continues: the same seed may give other trajectories there.",
)  # fmt: skip
@grouped_option(
    "When something fails", "--step-timeout", type=_SECONDS, metavar="SECONDS", show_default="no limit",
    help="Kill and replace a process in which a reset, an action or a timestep takes longer.",
)  # fmt: skip
@grouped_option(
    "When something fails", "--max-restarts", callback=arguments.quota, default="auto", show_default=True,
    metavar="N", help="How many processes that died or hung are replaced within a minute, and ten times as many in "
    "all; 'none' for any number, 'auto' for 10 with up to eight workers, in proportion with more. Their "
    "trajectories are run again, with the same result. One more ends the command.",
)  # fmt: skip
@grouped_option(
    "When something fails", "--max-worker-memory", callback=arguments.size, metavar="SIZE", show_default="no limit",
    help="Replace a process that uses more private memory than this, such as 500M or 2G.",
)  # fmt: skip
@grouped_option(
    "When something fails", "--close-timeout", type=_SECONDS, default=5.0, show_default=True,
    metavar="SECONDS", help="How long all processes together may take to close their environments at the end.",
)  # fmt: skip
@grouped_option(
    "Output", "--out", callback=_out_file, metavar="FILE",
    help="Write the trajectories to a .npz file, which streamsampler.load and numpy.load read. After Ctrl-C it gets "
    "those that are finished. With --shard-size, a folder of such files.",
)  # fmt: skip
@grouped_option(
    "Output", "--shard-size", type=_POSITIVE, metavar="N", is_eager=True,
    help="Write files of at least N timesteps each into the folder --out, as they are complete. Memory holds about "
    "two of them, whatever the amount.",
)  # fmt: skip
@grouped_option(
    "Output", "--resume", is_flag=True, is_eager=True,
    help="Continue the folder --out after whatever ended the run that wrote it. Complete shards stay; the finished "
    "folder is the same as without the interruption.",
)  # fmt: skip
@grouped_option(
    "Output", "--repair", is_flag=True, is_eager=True,
    help="Like --resume, and sample damaged and missing shards again, and those of another run. Reads all of each "
    "shard first.",
)  # fmt: skip
@grouped_option(
    "Output", "--timers", is_flag=True,
    help="Print where the workers' time went, too: resets, actions, timesteps, and what environments and agents time "
    "with streamsampler.timed; in milliseconds for each timestep.",
)  # fmt: skip
@grouped_option("Output", "--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@grouped_option("Output", "--quiet", is_flag=True, help="Print nothing on standard error but errors.")
@click.pass_context
def sample(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Sample trajectories from an environment, in parallel, and summarise them.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. Progress is shown on standard error, the summary is printed on standard output.
    """
    kind, number = _amount(options)
    _check_sharding(options)
    _check_agent(options)
    from streamsampler.cli.execution import execute

    execute(ctx, kind, number, imports, {"env_id": env_id, **options}, as_json=as_json, quiet=quiet)


@cli.command(short_help="Show what is in a file or a folder.")
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@click.option("--quick", is_flag=True, help="Do not read every byte: damaged observations are not found.")
@click.pass_context
def info(ctx: click.Context, /, path: str, as_json: bool, quick: bool) -> None:
    """Show what is in a file or a folder that was sampled.

    Shown are its environment, agent, trajectories, timesteps, returns, spaces, seed and version, and of a folder which
    shards are damaged or missing. Exit code 1 if anything is.
    """
    found = next((candidate for candidate in (Path(path), Path(f"{path}.npz")) if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="FILE|FOLDER")
    from streamsampler.cli.inspection import inspect

    ctx.exit(inspect(found, as_json=as_json, quick=quick))


def _amount(options: dict[str, Any]) -> tuple[str, int]:
    """Take the three options of amount out of all options, and return the one that is given."""
    given = {kind: number for kind in _AMOUNTS if (number := options.pop(kind)) is not None}
    *most, last = map(arguments.option_of, _AMOUNTS)
    if not given:
        raise click.UsageError(f"How much? Give one of {', '.join(most)} and {last}.")
    if len(given) > 1:
        raise click.UsageError(
            f"{' and '.join(map(arguments.option_of, given))} exclude each other: give exactly one of "
            f"{', '.join(most)} and {last}."
        )
    return given.popitem()


def _check_sharding(options: dict[str, Any]) -> None:
    """Refuse options that make no sense with shards, or without."""
    if options["shard_size"] is None:
        if options["resume"]:
            raise click.UsageError("--resume continues a folder of shards: give --shard-size, too.")
        if options["repair"]:
            raise click.UsageError("--repair samples shards again: give --shard-size, too.")
        return
    if options["out"] is None:
        raise click.UsageError("--shard-size needs a folder to write to: give --out, too.")
    if options["vec"] is not None:
        raise click.UsageError(
            "--shard-size cannot be used with --vec: where environments run side by side, a run cannot be resumed."
        )
    if options["order"] != "index":
        raise click.UsageError(
            "--shard-size needs --order index: the trajectories that arrive first differ when it is resumed."
        )


def _check_agent(options: dict[str, Any]) -> None:
    """Refuse options that make no sense with this agent, or with environments side by side."""
    if options["vec_normalize"] is not None and not options["agent"].endswith(".zip"):
        raise click.UsageError("--vec-normalize is for a model of Stable-Baselines3: give --agent model.zip, too.")
    if options["vec"] is not None and options["on_failure"] == "drop":
        raise click.UsageError("--vec cannot be used with --on-failure drop: environments side by side fail together.")


def main() -> None:
    """Run the command `streamsampler`."""
    interrupts = Interrupts()
    interrupts.install()
    try:
        with stream_errors_shown():
            cli(obj=interrupts)
    finally:
        # Only the interpreter's own last steps are left: a traceback out of them would not help.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if interrupts.received is not None:
            sys.exit(interrupts.exit_code)
