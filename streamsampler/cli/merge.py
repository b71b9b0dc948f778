"""The command `merge`."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouped import SeveralArgument, command, option, options_of
from streamsampler.cli.options import PRINTED
from streamsampler.cli.values import existing


@command("Merge the parts of an evaluation.")
@click.argument("parts", cls=SeveralArgument, metavar="PART...", nargs=-1, required=True)
@options_of(
    option("Output", "-o", "--out", required=True, metavar="FILE",
        help="File of the whole run; an existing file is replaced."),
    PRINTED,
)  # fmt: skip
@click.pass_context
def merge(ctx: click.Context, /, parts: tuple[str, ...], out: str, as_json: bool, quiet: bool) -> None:
    """Merge the parts of a run, and write the file of a run without parts: the same bytes.

    Each PART is a file of evaluate or compare with --part, in any order. Missing, repeated and incomplete parts, and
    parts of another run, are named. A warning names parts from processors whose arithmetic differs.

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
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import failure, print_error
    from streamsampler.cli.targets import checked_file
    from streamsampler.core.errors import UsageError
    from streamsampler.core.words import count
    from streamsampler.evaluation.merging import check_paths
    from streamsampler.evaluation.merging import merge as merged_parts

    target = Path(checked_file(out, ".json", where="merged runs are written to .json files, like their parts"))
    with running(ctx, "merging", quiet=quiet) as run:
        run.if_interrupted = "the parts are not merged"
        check_paths(paths, target)
        try:
            merged = merged_parts(paths, target)
        except UsageError as error:
            raise failure(str(error)) from None  # the files are at fault, not the command's usage
    if not run.shows_end:
        print_error(f"{count(len(parts), 'part')} merged")
    text = merged.to_json().rstrip("\n") if as_json else f"{merged}\nwritten to: {target}"
    run.finish(text, kept=target, failed=bool(getattr(merged, "failed", None)))
