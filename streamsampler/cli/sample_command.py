"""The command `sample` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.amounts import check_part, given_amount
from streamsampler.cli.grouping import GroupedCommand, grouped_option, options_of
from streamsampler.cli.policies import POLICIES, take_policies
from streamsampler.cli.shared_options import ENV_ID, ENVIRONMENT, FAILURES, HOW, PART, POSITIVE, PRINTED

_AMOUNTS = ("num_samples", "num_trajectories", "trajectories_per_worker")

_EXAMPLES = """\b
Examples:
  streamsampler sample CartPole-v1 --num-samples 100000 --out cartpole.npz
  streamsampler sample CartPole-v1 --agent my_agents:greedy --num-trajectories 100 --seed 1
  streamsampler sample CartPole-v1 --num-samples 1000000000 --seed 1 --out big --shard-size 1000000
  streamsampler sample pettingzoo.sisl.pursuit_v5 --num-trajectories 10 --out pursuit.npz
  streamsampler sample my/Maze-v0 --import my_envs --env-kwarg size=9 --num-samples 5000 --json
  streamsampler sample CartPole-v1 --num-trajectories 1000 --seed 1 --part 2/7 --out part-2.npz

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


def _tasks(_ctx: click.Context, _param: click.Parameter, name: str | None) -> list[Any] | None:
    found = arguments.json_list(name, '[0.5, {"goal": [1, 2]}]')
    if found == []:
        raise click.BadParameter(f"{name!r} holds no task")
    return found


def _out_file(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    from streamsampler.cli.output import out_file

    return out_file(ctx, param, value)


_HOW_MUCH = options_of(
    grouped_option(
        "How much (exactly one of these)", "-n", "--num-samples", type=POSITIVE, metavar="N",
        help="At least N timesteps, of whole trajectories: the shortest sequence of them that has so many. Numbers may "
        "be written 100000, 100_000, 1e5 or 100k.",
    ),
    grouped_option(
        "How much (exactly one of these)", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories.",
    ),
    grouped_option(
        "How much (exactly one of these)", "--trajectories-per-worker", type=POSITIVE, metavar="N",
        help="Exactly N trajectories for each worker.",
    ),
)  # fmt: skip

_TASKS = grouped_option(
    "How", "--tasks", callback=_tasks, metavar="FILE",
    help="A JSON file with a list of tasks: what the environment's set_task gets before the reset. With "
    "--num-trajectories N there are N trajectories of each, in order; with --num-samples tasks take turns.",
)  # fmt: skip

_ORDER = grouped_option(
    "How", "--order", type=click.Choice(["index", "arrival"]), default="index", show_default=True,
    help="'index' takes trajectories as one process alone would have sampled them. 'arrival' takes what is finished "
    "first, which favours short ones.",
)  # fmt: skip

_OUTPUT = options_of(
    grouped_option(
        "Output", "-o", "--out", callback=_out_file, metavar="FILE",
        help="Write the trajectories to a .npz file, which streamsampler.load and numpy.load read. After Ctrl-C it "
        "gets those that are finished. With --shard-size, a folder of such files.",
    ),
    grouped_option(
        "Output", "--shard-size", type=POSITIVE, metavar="N", is_eager=True,
        help="Write files of at least N timesteps each into the folder --out, as they are complete. Memory holds about "
        "two of them, whatever the amount.",
    ),
    grouped_option(
        "Output", "--resume", is_flag=True, is_eager=True,
        help="Continue the folder --out after whatever ended the run that wrote it. Complete shards stay; the finished "
        "folder is the same as without the interruption.",
    ),
    grouped_option(
        "Output", "--without-infos", is_flag=False, flag_value=arguments.ALL_INFOS, callback=arguments.without_infos,
        metavar="[NAME,...]", help="Leave infos out of the file or the folder: objects in them cannot be written: "
        "all infos, or those of some names, such as --without-infos handle,pose. It stands after ENV_ID.",
    ),
    grouped_option(
        "Output", "--timers", is_flag=True,
        help="Print where the workers' time went, too: resets, actions, timesteps, and what environments and agents "
        "time with streamsampler.timed; in milliseconds for each timestep.",
    ),
)  # fmt: skip


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Sample trajectories from an environment.")
@ENV_ID
@options_of(_HOW_MUCH, PART, POLICIES, ENVIRONMENT, HOW, _TASKS, _ORDER, FAILURES, _OUTPUT, PRINTED)
@click.pass_context
def sample(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Sample trajectories from an environment, in parallel, and summarise them.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first; or a module of PettingZoo, such as pettingzoo.sisl.pursuit_v5. Progress is shown on standard error, the
    summary is printed on standard output.
    """
    kind, number = given_amount(ctx, options, _AMOUNTS, "How much?")
    env_id = take_policies(options, env_id)
    _check_sharding(options)
    _check_tasks(options, kind)
    _check_agent(options)
    check_part(options, kind, number, seed_is_known=options["resume"])
    _check_output_of_part(options)
    _check_infos(options)
    from streamsampler.cli.execution import execute

    execute(ctx, kind, number, imports, {"env_id": env_id, **options}, as_json=as_json, quiet=quiet)


def _check_sharding(options: dict[str, Any]) -> None:
    """Refuse options that make no sense with shards, or without."""
    if options["shard_size"] is None:
        if options["resume"]:
            raise click.UsageError("--resume continues a folder of shards: give --shard-size, too.")
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


def _check_tasks(options: dict[str, Any], kind: str) -> None:
    """Refuse tasks where it is not said which trajectories have which."""
    if options["tasks"] is None:
        return
    if kind == "trajectories_per_worker":
        raise click.UsageError("--tasks needs --num-trajectories, how many each task has, or --num-samples.")
    if options["shard_size"] is not None:
        raise click.UsageError("--tasks cannot be used with --shard-size: a folder of shards has no tasks.")


def _check_output_of_part(options: dict[str, Any]) -> None:
    if options["part"] is None:
        return
    if options["out"] is None:
        raise click.UsageError("--part is for what streamsampler merge puts together: give --out, too.")
    if options["order"] != "index":
        raise click.UsageError("--part needs --order index: what arrives first has no fixed range of indices.")


def _check_infos(options: dict[str, Any]) -> None:
    if options["without_infos"] is not None and options["out"] is None:
        raise click.UsageError("--without-infos leaves infos out of a file: give --out, too.")


def _check_agent(options: dict[str, Any]) -> None:
    """Refuse options that make no sense with this agent, or with environments side by side."""
    agents = [options["agent"]] if options["policies"] is None else options["policies"].values()
    arguments.check_statistics(agents, options["vec_normalize"])
    arguments.check_side_by_side(options)
