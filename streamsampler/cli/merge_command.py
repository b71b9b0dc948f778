"""The command `merge` and its options."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouping import GroupedCommand, SeveralArgument, grouped_option, options_of
from streamsampler.cli.shared_options import PRINTED

_EXAMPLES = """\b
Examples:
  streamsampler merge part-*.json --out cartpole.json
  streamsampler merge part-1.npz part-2.npz part-3.npz --out cartpole.npz
  streamsampler merge parts/* --out big

\b
In tasks 1 to 7 of a job array of SLURM, and afterwards:
  streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 700 --seed 1 \\
      --part $SLURM_ARRAY_TASK_ID/7 --out part-$SLURM_ARRAY_TASK_ID.json
  streamsampler merge part-*.json --out cartpole.json

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Put the parts of a run together.")
@click.argument("parts", cls=SeveralArgument, metavar="PART...", nargs=-1, required=True)
@options_of(
    grouped_option(
        "Output", "-o", "--out", required=True, metavar="FILE|FOLDER",
        help="Write the whole here: a file, which is replaced if it is there; of folders of shards a folder, which "
        "must be new or empty.",
    ),
    PRINTED,
)  # fmt: skip
@click.pass_context
def merge(ctx: click.Context, /, parts: tuple[str, ...], out: str, as_json: bool, quiet: bool) -> None:
    """Put the parts of a run together, and write what the run would have written without parts: the same bytes.

    Each PART is a file or a folder that evaluate, compare or sample wrote with --part; their order does not matter.
    Parts that are missing, there twice, not whole, or of another run are named. Where parts were run on processors that
    compute otherwise, a warning says so.
    """
    for name in parts:
        if not Path(name).exists():
            raise click.BadParameter(f"there is no file or folder {name!r}", param_hint="PART")
    from streamsampler.cli.merging import execute

    execute(ctx, [Path(name) for name in parts], out, as_json=as_json, quiet=quiet)
