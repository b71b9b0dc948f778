"""The command `replay`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as shared
from streamsampler.cli.grouped import command, option, options_of
from streamsampler.cli.values import POSITIVE, Count, existing

_WHICH = options_of(
    option("Which", "--index", type=Count(min=0), required=True, metavar="I",
        help="The trajectory's index, as in batch.indices."),
    option("Which", "--agent-version", "version", type=POSITIVE, metavar="N",
        help="The agent version, if trajectories of several versions have this index."),
)  # fmt: skip

_AGENT = options_of(
    option(shared.RUNS, "--agent", multiple=True, metavar="[POLICY=]NAME", show_default="'random', if recorded so",
        help="The agent of the trajectory, or each policy, named as for sample. It is named again, because a file "
             "must not decide which code runs."),
    shared.POLICY_OF,
    shared.STATISTICS, shared.DETERMINISTIC,
    option(shared.RUNS, "--actions", is_flag=True, help="Replay the recorded actions, without the agent."),
    option(shared.RUNS, "--env", metavar="ENV_ID", show_default="the recorded environment",
        help="The environment; module:ENV_ID imports a module first."),
)  # fmt: skip

_HOW = options_of(
    option("Vectorisation, if the file does not have it", "--vec", type=POSITIVE, metavar="N",
        help="Environments side by side in each process."),
    option("Vectorisation, if the file does not have it", "--worker-threads", type=POSITIVE, metavar="N",
        help="Threads of a network."),
)  # fmt: skip

_OUTPUT = options_of(
    option("Output", "--video", type=click.Path(path_type=Path), metavar="FILE.mp4",
        help=f"Film the trajectory. {shared.VIDEO_EXTRA}"),
    option("Output", "--json", "as_json", is_flag=True, help=shared.JSON_LINE),
    shared.QUIET_WITH_MODELS,
)  # fmt: skip


@command("Run a recorded trajectory again, and compare it.")
@click.argument("path", metavar="FILE|FOLDER")
@options_of(_WHICH, _AGENT, shared.ENVIRONMENT, _HOW, _OUTPUT)
@click.pass_context
def replay(
    ctx: click.Context, /, path: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Run a recorded trajectory again, and report its first difference.

    The trajectory runs from the same seed, in the same row of a batch of the same shape. Observations, actions, rewards
    and the end are compared bit for bit. Likely reasons of a difference are named.

    Examples:
      streamsampler replay cartpole.npz --index 17
      streamsampler replay big --index 123456 --agent model.zip --video it.mp4
      streamsampler replay maze.npz --index 3 --env my_envs:my/Maze-v0 --actions

    Exit codes:
      0 the same as recorded, 1 a difference or a failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    source = existing(path, ".npz", ".json")
    from streamsampler.cli.agents import take_policies
    from streamsampler.cli.environments import env_update_of
    from streamsampler.cli.running import running
    from streamsampler.evaluation.replay import refuse_evaluation
    from streamsampler.evaluation.replay import replay as replayed
    from streamsampler.workers.vec.worker import VecWorker

    take_policies(options)
    if options["vec_normalize"] is not None and options["agent"] is None:
        raise click.UsageError("--vec-normalize is for a model of Stable-Baselines3: give --agent model.zip, too.")
    how = {name: options[name] for name in ("max_episode_length", "worker_threads", "env_kwargs", "policy_of")}
    if options["vec"] is not None:
        how |= {"worker_class": VecWorker, "worker_args": {"n_envs": options["vec"]}}
    with running(ctx, "replaying", quiet=quiet, imports=imports) as run:
        refuse_evaluation(source, options["index"])
        if options["env"] is not None:
            env_update_of(options["env"], options["env_kwargs"])  # imports the environment's module
        found = replayed(
            source, options["index"], agent=None if options["agent"] is None else _agent(source, options),
            env=options["env"], version=options["version"], actions=options["actions"], video=options["video"],
            **{name: value for name, value in how.items() if value},
        )  # fmt: skip
    text = json.dumps(_facts(found), allow_nan=False) if as_json else str(found)
    run.finish(text, kept=found.video, failed=not found.same)


def _agent(path: Path, options: Mapping[str, Any]) -> Any:
    """Return the agent of `--agent`, or the agents of policies by name.

    Raises:
        UsageError: The agent is for other spaces, or the file has no policy of this name.
    """
    from streamsampler.agents.policies import SHARED
    from streamsampler.cli.agents import load_policies
    from streamsampler.core.errors import UsageError
    from streamsampler.data import npz as storage
    from streamsampler.data.shards import shard_name
    from streamsampler.data.space_codec import decode_space

    header = storage.read(path / shard_name(0) if path.is_dir() else path)[1]
    said: Mapping[str, Any] = header.get("policies") or {}
    if unknown := sorted((options["policies"] or {}).keys() - said.keys()):
        there = ", ".join(map(repr, said)) or "none"
        raise UsageError(f"--agent POLICY=NAME: {path} has no policy {unknown[0]!r}; it has {there}")
    playing = {name: each["spaces"] for name, each in {SHARED: header, **said}.items() if "spaces" in each}
    spaces = {
        name: (decode_space(each["observation_space"]), decode_space(each["action_space"]))
        for name, each in playing.items()
    }
    return load_policies(options, spaces)


def _facts(found: Any) -> dict[str, Any]:
    """Return the outcome as JSON values."""
    from streamsampler.data.differences import shown

    trajectory, difference = found.trajectory, found.difference
    return {
        "trajectory": int(trajectory.indices[0]),
        "agent_version": int(trajectory.agent_versions[0]),
        "seed": trajectory.seeds[0],
        "timesteps": trajectory.n_timesteps,
        "return": float(trajectory.returns[0]),
        "same": found.same,
        "difference": None if difference is None else {
            "timestep": difference.timestep,
            "what": difference.what,
            "path": difference.path,
            "recorded": shown(difference.recorded),
            "replayed": shown(difference.replayed),
        },
        "reasons": list(found.reasons),
        "notes": list(found.notes),
        "video": None if found.video is None else str(found.video),
    }  # fmt: skip
