"""The command `info`."""

from __future__ import annotations

import json

import click

from streamsampler.cli.grouped import command, option
from streamsampler.cli.options import JSON_LINE
from streamsampler.cli.values import existing


@command("Show what is in a file or a folder.")
@click.argument("path", metavar="FILE|FOLDER")
@option("Output", "--json", "as_json", is_flag=True, help=JSON_LINE)
@option("Output", "--quick", is_flag=True, help="Do not read every byte, and overlook damaged observations.")
@click.pass_context
def info(ctx: click.Context, /, path: str, as_json: bool, quick: bool) -> None:
    """Show the contents of a file or a folder of sample, evaluate or compare.

    Of trajectories: environment, agent, trajectories, timesteps, returns, spaces, seed and version, and of a folder its
    damaged or missing shards, which mean exit code 1. Of an evaluation or a comparison: its result as printed before,
    with settings and versions.

    Examples:
      streamsampler info cartpole.npz
      streamsampler info big --quick --json
      streamsampler info evaluation.json
    """
    found = existing(path, ".npz", ".json")
    from streamsampler.cli.contents import contents_of
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import print_error
    from streamsampler.core.words import count

    with running(ctx, "reading") as run:
        contents = contents_of(found, quick=quick)
    if n_damaged := len(contents.damaged):
        print_error(f"Error: {count(n_damaged, 'shard')} of {path} cannot be read")
    run.finish(json.dumps(contents.facts(), allow_nan=False) if as_json else contents.text(), failed=n_damaged > 0)
