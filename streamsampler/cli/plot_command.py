"""The command `plot`."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouping import GroupedCommand, SeveralArgument, grouped_option
from streamsampler.cli.shared_options import QUIET

_MOST_NAMES = 3
"""How many files a picture is named after."""

_EXAMPLES = """\b
Examples:
  streamsampler plot cartpole.npz
  streamsampler plot big --out big-on-dark.png --dark
  streamsampler plot both.json
  streamsampler plot old.json new.json --out both.png

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


def _out_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
    return None if value is None else _picture(value)


def _picture(name: str) -> Path:
    from streamsampler.cli.output import checked_file

    return checked_file(name, ".png", "The picture goes into a .png file")


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Draw returns and lengths.")
@click.argument("paths", cls=SeveralArgument, nargs=-1, required=True, metavar="FILE|FOLDER...")
@grouped_option(
    "Output", "-o", "--out", callback=_out_file, metavar="FILE",
    show_default="next to the first file, with the names of all", help="The picture, a .png file.",
)  # fmt: skip
@grouped_option("Output", "--dark", is_flag=True, help="Draw for a dark page.")
@QUIET
def plot(paths: tuple[str, ...], out: Path | None, dark: bool, quiet: bool) -> None:
    """Draw the returns and lengths of trajectories: by index, and how they are distributed.

    Of what was sampled into a file or a folder, or of the JSON that evaluate or compare wrote. For a comparison also
    the returns of both agents, pair by pair. Several files are drawn in one picture, without pairs. Needs matplotlib:
    'pip install matplotlib'.
    """
    found = [_existing(path) for path in paths]
    if out is None:
        first = found[0].resolve()
        names = [_stem(path.resolve()) for path in found]
        name = "-".join(names) if len(names) <= _MOST_NAMES else f"{names[0]}-and-{len(names) - 1}-others"
        out = _picture(str(first.with_name(f"{name}{'-dark' if dark else ''}.png")))
    from streamsampler.cli.drawing import draw_to

    draw_to(found, out, dark=dark, quiet=quiet)


def _existing(name: str) -> Path:
    candidates = (Path(name), Path(f"{name}.npz"), Path(f"{name}.json"))
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {name!r}", param_hint="FILE|FOLDER")
    return found


def _stem(path: Path) -> str:
    return path.stem if path.suffix in (".npz", ".json") else path.name
