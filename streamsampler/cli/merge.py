"""The command `merge`."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouping import SeveralArgument, command, option, options_of
from streamsampler.cli.options import PRINTED, existing


@command("Put the parts of an evaluation together.")
@click.argument("parts", cls=SeveralArgument, metavar="PART...", nargs=-1, required=True)
@options_of(
    option("Output", "-o", "--out", required=True, metavar="FILE",
        help="Write the whole here; a file that is there is replaced."),
    PRINTED,
)  # fmt: skip
@click.pass_context
def merge(ctx: click.Context, /, parts: tuple[str, ...], out: str, as_json: bool, quiet: bool) -> None:
    r"""Put the parts of a run together, and write what the run would have written without parts: the same bytes.

    Each PART is a file that evaluate or compare wrote with --part; their order does not matter. Parts that are missing,
    there twice, not whole, or of another run are named. Where parts were run on processors that compute otherwise, a
    warning says so.

    Examples:
      streamsampler merge part-*.json --out cartpole.json

    In tasks 1 to 7 of a job array of SLURM, and afterwards:
      streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 700 --seed 1 \
          --part $SLURM_ARRAY_TASK_ID/7 --out part-$SLURM_ARRAY_TASK_ID.json
      streamsampler merge part-*.json --out cartpole.json

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    paths = [existing(name, what="PART") for name in parts]
    from streamsampler.cli.naming import checked_file
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import print_error
    from streamsampler.core.words import count
    from streamsampler.evaluation.merging import merge as merged_parts

    target = Path(checked_file(out, ".json", "What is merged goes into a .json file, as the parts are"))
    with running(ctx, "merging", quiet=quiet) as run:
        run.if_interrupted = "the parts are not merged"
        merged = merged_parts(paths, target)
    if not run.shows_end:
        print_error(f"{count(len(parts), 'part')} merged")
    run.finish(merged.to_json().rstrip("\n") if as_json else f"{merged}\nwritten to: {target}", kept=target)
