"""The command `export` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import GroupedCommand, SeveralArgument, grouped_option, options_of
from streamsampler.cli.shared_options import PRINTED

_EXAMPLES = """\b
Examples:
  streamsampler export big --to minari --out cartpole --dataset-id cartpole/random-v0
  streamsampler export cartpole.npz --to parquet --out tables
  streamsampler export big --to tensordict --out tensors
  streamsampler export early.json late.json --to sb3 --timesteps 10000 --timesteps 20000 --out evaluations.npz

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Write trajectories in another library's format.")
@click.argument("sources", cls=SeveralArgument, metavar="FILE|FOLDER...", nargs=-1, required=True)
@grouped_option(
    "What", "--to", "name", required=True, metavar="minari|parquet|tensordict|sb3",
    help="The format. 'minari' is a dataset in HDF5, 'parquet' two tables, 'tensordict' is mapped into memory; each "
    "needs the library of its name. 'sb3' is the evaluations.npz of Stable-Baselines3, and takes evaluations.",
)  # fmt: skip
@grouped_option(
    "What", "-o", "--out", required=True, metavar="FOLDER",
    help="The folder to write, new or empty; with --to sb3 the file, which is replaced. It appears when it is whole.",
)  # fmt: skip
@grouped_option(
    "Minari", "--dataset-id", metavar="ID", show_default="one made of FOLDER or of the environment",
    help="Minari's name for the dataset, such as cartpole/random-v0.",
)  # fmt: skip
@grouped_option(
    "Minari", "--metadata", multiple=True, metavar="KEY=TEXT",
    help="One of author, author_email, code_permalink, algorithm_name and description. May be repeated.",
)  # fmt: skip
@grouped_option(
    "Evaluations", "--timesteps", type=arguments.Count(min=0), multiple=True, metavar="N",
    help="With --to sb3, once for each FILE: for how many timesteps the agent had been trained.",
)  # fmt: skip
@options_of(PRINTED)
@click.pass_context
def export(
    ctx: click.Context, /, sources: tuple[str, ...], name: str, out: str, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Write trajectories, or evaluations, in the format of another library.

    FILE or FOLDER is what `streamsampler sample --out` wrote, or a file that a batch's `save` did. Of a folder one
    shard is in memory at a time.
    """
    from streamsampler.cli.exporting import execute

    execute(ctx, sources, name, Path(out), options, as_json=as_json, quiet=quiet)
