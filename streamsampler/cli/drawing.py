"""Carry out `streamsampler plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamsampler.cli.errors import failure, translated
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import print_result
from streamsampler.evaluation.charts import draw
from streamsampler.samplers.progress import output_on


def draw_to(paths: Sequence[Path], out: Path, *, dark: bool, quiet: bool) -> None:
    """Draw what files and folders hold in one picture, and say where.

    Raises:
        click.ClickException: It cannot be read or drawn, or the picture not be written.
    """
    with translated(), notices_shown(output_on(None), quiet=quiet):
        try:
            draw(paths, out, dark=dark)
        except ImportError as error:
            raise failure(str(error)) from None
    print_result(f"written to: {out}", kept=out)
