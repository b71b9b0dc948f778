"""The command `replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import GroupedCommand, grouped_option, options_of
from streamsampler.cli.policies import POLICY_OF, take_policies
from streamsampler.cli.shared_options import ENVIRONMENT, POSITIVE, QUIET_WITH_MODELS

VIDEO_EXTRA = "Needs PyAV ('pip install av'), and an environment with render_mode 'rgb_array'."

_EXAMPLES = """\b
Examples:
  streamsampler replay cartpole.npz --index 17
  streamsampler replay big --index 123456 --agent model.zip --video it.mp4
  streamsampler replay maze.npz --index 3 --env my_envs:my/Maze-v0 --actions

\b
Exit codes:
  0 the same as recorded, 1 a difference or a failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""

_WHICH = options_of(
    grouped_option(
        "Which", "--index", type=arguments.Count(min=0), required=True, metavar="I",
        help="The trajectory's index, as batch.indices has it.",
    ),
    grouped_option(
        "Which", "--agent-version", "version", type=POSITIVE, metavar="N",
        help="The agent version, where trajectories of several versions have this index.",
    ),
)  # fmt: skip

_AGENT = options_of(
    grouped_option(
        "What", "--agent", multiple=True, metavar="[POLICY=]NAME", show_default="'random', if it was that",
        help="The agent that made the trajectory, or each policy, named as for sample. A file does not decide which "
        "code runs, so it is named again.",
    ),
    POLICY_OF,
    grouped_option(
        "What", "--vec-normalize", metavar="FILE",
        help="With --agent model.zip: the statistics of its VecNormalize, as for sample.",
    ),
    grouped_option(
        "What", "--deterministic/--stochastic", "deterministic", default=None,
        help="Whether the agent acts without drawing, as for sample.",
    ),
    grouped_option(
        "What", "--actions", is_flag=True, help="Replay the recorded actions, without the agent.",
    ),
    grouped_option(
        "What", "--env", metavar="ENV_ID", show_default="the one that was recorded",
        help="The environment; module:ENV_ID imports a module first.",
    ),
)  # fmt: skip

_HOW = options_of(
    grouped_option(
        "How, where the file does not say it", "--vec", type=POSITIVE, metavar="N",
        help="How many environments ran side by side in each process.",
    ),
    grouped_option(
        "How, where the file does not say it", "--worker-threads", type=POSITIVE, metavar="N",
        help="How many threads a network computed on.",
    ),
)  # fmt: skip

_OUTPUT = options_of(
    grouped_option(
        "Output", "--video", type=click.Path(path_type=Path), metavar="FILE.mp4",
        help=f"Film the trajectory. {VIDEO_EXTRA}",
    ),
    grouped_option("Output", "--json", "as_json", is_flag=True, help="Print what came of it as one JSON object."),
    QUIET_WITH_MODELS,
)  # fmt: skip


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Run a recorded trajectory again, and compare it.")
@click.argument("path", metavar="FILE|FOLDER")
@options_of(_WHICH, _AGENT, ENVIRONMENT, _HOW, _OUTPUT)
@click.pass_context
def replay(
    ctx: click.Context, /, path: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Run a recorded trajectory again, and say where it differs first.

    It runs from the same seed, in the same row of a batch of the same shape. Observations, actions, rewards and the end
    are compared bit for bit. Where they differ, likely reasons are named.
    """
    found = next((candidate for candidate in (Path(path), Path(f"{path}.npz")) if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="FILE|FOLDER")
    take_policies(options, "")
    if options["actions"] and options["agent"] is not None:
        raise click.UsageError("--actions replays without the agent: leave out --agent.")
    if options["vec_normalize"] is not None and not arguments.is_model_file(options["agent"] or ""):
        raise click.UsageError("--vec-normalize is for a model of Stable-Baselines3: give --agent model.zip, too.")
    from streamsampler.cli.replaying import execute

    execute(ctx, found, imports, options, as_json=as_json, quiet=quiet)
