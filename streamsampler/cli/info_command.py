"""The command `info`."""

from __future__ import annotations

from pathlib import Path

import click

from streamsampler.cli.grouping import GroupedCommand, grouped_option

_EXAMPLES = """\b
Examples:
  streamsampler info cartpole.npz
  streamsampler info big --quick --json
  streamsampler info evaluation.json
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Show what is in a file or a folder.")
@click.argument("path", metavar="FILE|FOLDER")
@grouped_option("Output", "--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@grouped_option("Output", "--quick", is_flag=True, help="Do not read every byte: damaged observations are not found.")
@click.pass_context
def info(ctx: click.Context, /, path: str, as_json: bool, quick: bool) -> None:
    """Show what is in a file or a folder that was sampled, or in what evaluate or compare wrote.

    Shown are its environment, agent, trajectories, timesteps, returns, spaces, seed and version, and of a folder which
    shards are damaged or missing. Exit code 1 if anything is. Of an evaluation or a comparison what was found is shown,
    as it was printed, with settings and versions.
    """
    candidates = (Path(path), Path(f"{path}.npz"), Path(f"{path}.json"))
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="FILE|FOLDER")
    from streamsampler.cli.inspection import inspect

    ctx.exit(inspect(found, as_json=as_json, quick=quick))
