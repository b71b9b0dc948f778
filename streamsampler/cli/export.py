"""The command `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.grouping import SeveralArgument, command, option, options_of
from streamsampler.cli.options import PRINTED, Count, existing


@command("Write trajectories in another library's format.")
@click.argument("sources", cls=SeveralArgument, metavar="FILE|FOLDER...", nargs=-1, required=True)
@option(
    "What", "--to", "name", required=True, metavar="minari|parquet|sb3",
    help="The format. 'minari' is a dataset in HDF5, 'parquet' two tables; each needs the library of its name. "
    " 'sb3' is the evaluations.npz of Stable-Baselines3, and takes evaluations.",
)  # fmt: skip
@option(
    "What", "-o", "--out", required=True, metavar="FOLDER",
    help="The folder to write, new or empty; with --to sb3 the file, which is replaced.",
)  # fmt: skip
@option(
    "Minari", "--dataset-id", metavar="ID", show_default="one made of FOLDER or of the environment",
    help="Minari's name for the dataset, such as cartpole/random-v0.",
)  # fmt: skip
@option(
    "Minari", "--metadata", multiple=True, metavar="KEY=TEXT",
    help="One of author, author_email, code_permalink, algorithm_name and description. May be repeated.",
)  # fmt: skip
@option(
    "Evaluations", "--timesteps", type=Count(min=0), multiple=True, metavar="N",
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

    Examples:
      streamsampler export big --to minari --out cartpole --dataset-id cartpole/random-v0
      streamsampler export cartpole.npz --to parquet --out tables
      streamsampler export early.json late.json --to sb3 --timesteps 10000 --timesteps 20000 --out evaluations.npz

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    paths = [existing(source, ".npz") for source in sources]
    from streamsampler.cli.running import running
    from streamsampler.core.words import table

    with running(ctx, "exporting", quiet=quiet) as run:
        run.if_interrupted = "nothing was written"
        if name == "sb3":
            facts = _export_evaluations(paths, Path(out), options)
        else:
            with run.bar:
                facts = _export_trajectories(paths, name, Path(out), options, run.bar)
    rows = {key: value if isinstance(value, str) else f"{value:,}" for key, value in facts.items() if key != "out"}
    run.finish(json.dumps(facts) if as_json else table({**rows, "written to": facts["out"]}), kept=out)


def _export_trajectories(paths: list[Path], name: str, out: Path, options: dict[str, Any], bar: Any) -> dict[str, Any]:
    """Write trajectories, and return what was written."""
    from streamsampler.formats.columns import open_source
    from streamsampler.formats.export import export as exported
    from streamsampler.formats.export import format_named

    if options["timesteps"]:
        raise click.UsageError("--timesteps is for evaluations: give --to sb3, too.")
    metadata: dict[str, str] = {}
    for pair in options["metadata"]:
        key, equals, text = pair.partition("=")
        if not equals or key in metadata:
            raise click.BadParameter(f"{pair!r} is not of the form key=text, or given twice", param_hint="--metadata")
        metadata[key] = text
    given = {key: value for key, value in {**options, "metadata": metadata}.items() if value}
    format_named(name, given)
    if len(paths) > 1:
        raise click.UsageError(f"--to {name} takes one FILE or FOLDER, and not {len(paths)}.")
    source = open_source(paths[0])
    exported(source, out, to=name, progress=bar, **given)
    return {"format": name, "trajectories": source.n_trajectories, "timesteps": source.n_timesteps, "out": str(out)}


def _export_evaluations(paths: list[Path], out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write evaluations, and return what was written."""
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.formats.sb3 import save_evaluations

    if options["dataset_id"] or options["metadata"]:
        raise click.UsageError("--dataset-id and --metadata are for trajectories: give --to minari.")
    timesteps = options["timesteps"] or ((0,) if len(paths) == 1 else ())
    if len(timesteps) != len(paths) or len(set(timesteps)) != len(timesteps):
        raise click.UsageError(
            f"Give --timesteps once for each FILE, each another number: there are {len(paths)} files and "
            f"{len(timesteps)} timesteps."
        )
    if out.is_dir():
        raise click.BadParameter(f"{str(out)!r} is a directory: name a file in it, such as evaluations.npz")
    evaluations = {number: Evaluation.load(path) for number, path in zip(timesteps, paths, strict=True)}
    written = save_evaluations(evaluations, out)
    n_trajectories = sum(map(len, evaluations.values()))
    return {"format": "sb3", "evaluations": len(paths), "trajectories": n_trajectories, "out": str(written)}
