"""The command `plot`."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouping import GroupedCommand, grouped_option

__all__ = ["plot"]

_EXAMPLES = """\b
Examples:
  streamsampler plot cartpole.npz
  streamsampler plot big --out big-on-dark.png --dark
  streamsampler plot both.json

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
@click.argument("path", metavar="FILE|FOLDER")
@grouped_option(
    "Output", "--out", callback=_out_file, metavar="FILE", show_default="next to the file, with its name",
    help="The picture, a .png file.",
)  # fmt: skip
@grouped_option("Output", "--dark", is_flag=True, help="Draw for a dark page.")
@grouped_option("Output", "--quiet", is_flag=True, help="Print nothing on standard error but errors.")
def plot(path: str, out: Path | None, dark: bool, quiet: bool) -> None:
    """Draw the returns and lengths of trajectories: by index, and how they are distributed.

    Of what was sampled into a file or a folder, or of the JSON that evaluate or compare wrote. For a comparison also
    the returns of both agents, pair by pair. Needs matplotlib, of the extra 'plot'.
    """
    candidates = (Path(path), Path(f"{path}.npz"), Path(f"{path}.json"))
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="FILE|FOLDER")
    if out is None:
        ending = "-dark.png" if dark else ".png"
        whole = found.resolve()
        out = _picture(str(whole.with_name(f"{_stem(whole)}{ending}")))
    from streamsampler.cli.drawing import draw_to

    draw_to(found, out, dark=dark, quiet=quiet)


def _stem(path: Path) -> str:
    return path.stem if path.suffix in (".npz", ".json") else path.name
