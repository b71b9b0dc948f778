"""The command `plot`."""

from __future__ import annotations

import click

from streamsampler.cli.grouped import SeveralArgument, command, option
from streamsampler.cli.options import QUIET
from streamsampler.cli.values import existing

_MOST_NAMES = 3
"""Most files in the default name of a picture."""


@command("Draw returns and lengths.")
@click.argument("paths", cls=SeveralArgument, nargs=-1, required=True, metavar="FILE|FOLDER...")
@option(
    "Output", "-o", "--out", metavar="FILE", show_default="next to the first file, with the names of all",
    help="The picture: a .png, .svg or .pdf file.",
)  # fmt: skip
@option("Output", "--dark", is_flag=True, help="Use colours for a dark page.")
@QUIET
@click.pass_context
def plot(ctx: click.Context, /, paths: tuple[str, ...], out: str | None, dark: bool, quiet: bool) -> None:
    """Draw the returns and lengths of trajectories: by index, and as distributions.

    PATH is a file or a folder of sample, or a JSON file of evaluate or compare. A comparison's picture also has the
    returns of both agents, pair by pair. Several files share a picture, without pairs. Needs matplotlib: 'pip install
    matplotlib'.

    Examples:
      streamsampler plot cartpole.npz
      streamsampler plot big --out big-on-dark.png --dark
      streamsampler plot both.json
      streamsampler plot old.json new.json --out both.svg

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    found = [existing(path, ".npz", ".json") for path in paths]
    if out is None:
        first, *_ = whole = [path.resolve() for path in found]
        names = [path.stem if path.suffix in (".npz", ".json") else path.name for path in whole]
        name = "-".join(names) if len(names) <= _MOST_NAMES else f"{names[0]}-and-{len(names) - 1}-others"
        out = str(first.with_name(f"{name}{'-dark' if dark else ''}.png"))
    from streamsampler.cli.running import running
    from streamsampler.cli.targets import checked_file
    from streamsampler.evaluation.chart_style import PICTURES
    from streamsampler.evaluation.charts import draw

    picture = checked_file(out, *PICTURES, where="pictures are written to .png, .svg or .pdf files")
    with running(ctx, "drawing", quiet=quiet) as run:
        draw(found, picture, dark=dark)
    run.finish(f"written to: {picture}", kept=picture)
