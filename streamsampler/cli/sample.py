"""The command `sample`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as shared
from streamsampler.cli.grouped import TYPED, command, option, options_of
from streamsampler.cli.values import POSITIVE, json_list

_WHERE = "trajectories are written to a .npz file, or with --shard-size to a folder; streamsampler.load reads both"
_AMOUNTS = ("num_samples", "num_trajectories", "trajectories_per_worker")


def _tasks(name: str) -> list[Any]:
    found = json_list(name, '[0.5, {"goal": [1, 2]}]')
    if not found:
        raise click.BadParameter(f"{name!r} holds no task")
    return found


def _without_infos(text: str) -> list[str]:
    """Return the names of infos to leave out, of ``handle,pose``; an empty list means all infos."""
    if text == "*":
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} should be names of infos, such as handle,pose, or nothing for all infos")
    return names


_HOW_MUCH = options_of(
    option("How much (exactly one of these)", "--num-samples", type=POSITIVE, metavar="N",
        help="At least N timesteps, in the shortest sequence of whole trajectories. Numbers may be written 100000, "
             "100_000, 1e5 or 100k."),
    option("How much (exactly one of these)", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories."),
    option("How much (exactly one of these)", "--trajectories-per-worker", type=POSITIVE, metavar="N",
        help="Exactly N trajectories for each worker."),
)  # fmt: skip

_TASKS = option(
    shared.RUNS, "--tasks", type=_tasks, metavar="FILE",
    help="A JSON file with a list of values for the environment's set_task, which is called before the reset. With "
    "--num-trajectories N there are N trajectories of each, in order; with --num-samples tasks take turns.",
)  # fmt: skip

_ORDER = option(
    shared.REPRODUCIBLE, "--order", type=click.Choice(["index", "arrival"]), default="index", show_default=True,
    help="'index' selects the trajectories of a process that samples alone. 'arrival' selects those that end first, "
         "which favours short trajectories.",
)  # fmt: skip

_OUTPUT = options_of(
    option("Output", "-o", "--out", metavar="FILE",
        help="Write the trajectories to a .npz file, which streamsampler.load and numpy.load read. An existing file "
             "is replaced. After Ctrl-C the finished trajectories are written, to FILE.partial.npz if FILE existed "
             "before. With --shard-size, a folder of such files."),
    option("Output", "--shard-size", type=POSITIVE, metavar="N",
        help="Write files of at least N timesteps each to the folder --out, as soon as they are complete. At most "
             "about three of them are in memory."),
    option("Output", "--resume", is_flag=True,
        help="Resume the folder --out after any end of its run. Complete shards stay; the finished folder is the same "
             "as without the interruption. --shard-size may be left out. With a larger amount a finished folder is "
             "continued, too."),
    option("Output", "--compress", is_flag=True,
        help="Compress the arrays of the file, or of the folder's new files: smaller, and slower to write. Images gain "
        "most."),
    option("Output", "--without-infos", is_flag=False, flag_value="*", type=_without_infos,
        metavar="[NAME,...]", help="Leave infos out of the file or the folder, because objects in them cannot be "
                                   "written: all infos, or only some names, such as --without-infos handle,pose. Type "
                                   "it after ENV_ID."),
    option("Output", "--timers", is_flag=True,
        help="Print the workers' times, too: resets, actions, timesteps, and the parts timed with "
             "streamsampler.timed; in milliseconds per timestep."),
)  # fmt: skip


@command("Sample trajectories from an environment.")
@shared.ENV_ID
@options_of(_HOW_MUCH, shared.POLICIES, shared.ENVIRONMENT, _TASKS, shared.HOW, _ORDER,
    shared.FINGERPRINT, shared.FAILURES, _OUTPUT, shared.PRINTED_LINE)  # fmt: skip
@click.pass_context
def sample(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Sample trajectories from an environment, in parallel, and summarise them.

    ENV_ID is an environment registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module first;
    or a module of PettingZoo, such as pettingzoo.sisl.pursuit_v5. Progress appears on standard error, the summary on
    standard output.

    Examples:
      streamsampler sample CartPole-v1 --num-samples 100000 --out cartpole.npz
      streamsampler sample CartPole-v1 --agent my_agents:greedy --num-trajectories 100 --seed 1
      streamsampler sample CartPole-v1 --num-samples 1000000000 --seed 1 --out big --shard-size 1000000
      streamsampler sample pettingzoo.sisl.pursuit_v5 --num-trajectories 10 --out pursuit.npz
      streamsampler sample my/Maze-v0 --import my_envs --env-kwarg size=9 --num-samples 5000 --json

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    ((kind, number),) = shared.given_amounts(ctx, options, _AMOUNTS).items()
    _take_shard_size(options)
    _check(options, kind)
    from streamsampler.cli import streams, summary
    from streamsampler.cli.agents import take_policies
    from streamsampler.cli.request import Request, carry_out
    from streamsampler.cli.running import running
    from streamsampler.cli.targets import checked_file, checked_folder

    out = options.pop("out")
    if out is not None and options["shard_size"] is None:
        out = checked_file(out, ".npz", where=_WHERE)
    elif out is not None:
        out = checked_folder(out, ".npz", _WHERE, resume=options["resume"])
    env_id = take_policies(options, env_id)
    request = Request(env_id, kind, number, out, options, ctx.meta[TYPED])
    with running(ctx, "sampling", quiet=quiet, imports=imports) as run:
        if options["shard_size"] is not None:
            run.if_interrupted = f"nothing was added to {request.out}"
        outcome = carry_out(request, run)
    if not run.shows_end:
        streams.print_error(summary.as_line(request, outcome))
    text = summary.as_text(request, outcome)
    if as_json:
        text = json.dumps(summary.as_json(request, outcome), allow_nan=False)
    run.finish(text, kept=outcome.written)


def _take_shard_size(options: dict[str, Any]) -> None:
    """Set the shard size from the folder of `--resume`, unless `--shard-size` is given."""
    if not options["resume"] or options["shard_size"] is not None or options["out"] is None:
        return
    from streamsampler.cli.streams import failure
    from streamsampler.core.errors import StorageError
    from streamsampler.data.shards import MANIFEST, read_manifest

    if (Path(options["out"]) / MANIFEST).exists():
        try:
            options["shard_size"] = read_manifest(Path(options["out"])).shard_size
        except StorageError as error:
            raise failure(str(error)) from None


def _check(options: dict[str, Any], kind: str) -> None:
    """Refuse options that have no effect without another option."""
    if options["tasks"] is not None and (kind == "trajectories_per_worker" or options["shard_size"] is not None):
        raise click.UsageError("--tasks needs --num-trajectories or --num-samples, and no --shard-size.")
    if options["shard_size"] is not None and (options["vec"] or 1) > 1:
        raise click.UsageError("--shard-size needs workers with a single trajectory at a time: leave out --vec.")
    needed = {"resume": "shard_size", "shard_size": "out", "without_infos": "out", "compress": "out"}
    for name, other in needed.items():
        if options[name] not in (None, False) and options[other] is None:
            option, missing = name.replace("_", "-"), other.replace("_", "-")
            raise click.UsageError(f"--{option} needs --{missing}: give it, too.")
