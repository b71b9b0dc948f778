"""The command `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.grouped import SeveralArgument, command, option, options_of
from streamsampler.cli.options import PRINTED_LINE
from streamsampler.cli.values import Count, by_key, existing

_OF_EVALUATIONS = "sb3"
"""The only format of evaluations; all others are formats of trajectories."""


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
    "What", "--without", multiple=True, metavar="PATH",
    help="Leave out a leaf of observations, actions or infos, such as observations.mission. May be repeated.",
)  # fmt: skip
@option("What", "--policy", metavar="NAME", help="With several agents, the policy to write.")
@option(
    "What", "--import", "imports", multiple=True, metavar="MODULE",
    help="Import a module that registers the environment, so that Minari's dataset has its spec; also from the "
         "current directory. May be repeated.",
)  # fmt: skip
@option(
    "Minari", "--dataset-id", metavar="ID", show_default="derived from FOLDER or the environment",
    help="Minari's name for the dataset, such as cartpole/random-v0.",
)  # fmt: skip
@option(
    "Minari", "--metadata", multiple=True, metavar="KEY=TEXT",
    help="An entry author, author_email, code_permalink, algorithm_name or description. May be repeated.",
)  # fmt: skip
@option(
    "Evaluations", "--timesteps", type=Count(min=0), multiple=True, metavar="N",
    help="With --to sb3, once for each FILE: the agent's timesteps of training.",
)  # fmt: skip
@options_of(PRINTED_LINE)
@click.pass_context
def export(
    ctx: click.Context, /, sources: tuple[str, ...], name: str, out: str, as_json: bool, quiet: bool,
    imports: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Write trajectories, or evaluations, in the format of another library.

    FILE or FOLDER comes from `streamsampler sample --out`, or from a batch's `save`. A folder's shards are read in
    turn, so that only one is in memory. Several folders are written in turn, as a single data set; --to sb3 accepts
    several files of evaluations.

    Examples:
      streamsampler export big --to minari --out cartpole --dataset-id cartpole/random-v0
      streamsampler export cartpole.npz --to parquet --out tables
      streamsampler export minigrid.npz --to minari --out minigrid --without observations.mission
      streamsampler export tag.npz --policy runner --to parquet --out tables
      streamsampler export early.json late.json --to sb3 --timesteps 10000 --timesteps 20000 --out evaluations.npz

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    paths = [existing(source, ".npz") for source in sources]
    from streamsampler.cli.running import running
    from streamsampler.core.words import table
    from streamsampler.formats.export import FORMATS

    if name not in (*FORMATS, _OF_EVALUATIONS):
        there = f"{', '.join(FORMATS)} and {_OF_EVALUATIONS}"
        raise click.BadParameter(f"unknown format {name!r}; the formats are {there}", param_hint="'--to'")
    with running(ctx, "exporting", quiet=quiet, imports=imports) as run:
        run.if_interrupted = "nothing was written"
        _check_kinds(paths, name)
        if name == _OF_EVALUATIONS:
            facts = _export_evaluations(paths, Path(out), options)
        else:
            with run.bar:
                facts = _export_trajectories(paths, name, Path(out), options, run.bar)
    rows = {key: value if isinstance(value, str) else f"{value:,}" for key, value in facts.items() if key != "out"}
    run.finish(json.dumps(facts) if as_json else table({**rows, "written to": facts["out"]}), kept=out)


def _trajectory_formats() -> str:
    """Return the options that export trajectories."""
    from streamsampler.formats.export import FORMATS

    return " or ".join(f"--to {name}" for name in FORMATS)


def _check_kinds(paths: list[Path], name: str) -> None:
    """Check that the format suits the contents of the files.

    Raises:
        click.ClickException: The format is for other contents; names a suitable format.
    """
    from streamsampler.cli.streams import failure
    from streamsampler.evaluation.merging import kind_of

    for path in paths:
        kind = kind_of(path)
        if kind == "comparison":
            raise failure(f"{path} has a comparison, but only trajectories and evaluations can be exported")
        if kind == "evaluation" and name != _OF_EVALUATIONS:
            raise failure(f"{path} holds an evaluation: give --to {_OF_EVALUATIONS}")
        if kind in ("folder", "file of trajectories") and name == _OF_EVALUATIONS:
            raise failure(f"{path} holds trajectories: give {_trajectory_formats()}")


def _export_trajectories(paths: list[Path], name: str, out: Path, options: dict[str, Any], bar: Any) -> dict[str, Any]:
    """Write trajectories, and return a description of the export."""
    from streamsampler.data.folder import TrajectoryFolder
    from streamsampler.data.leaf_selection import LeafSelection
    from streamsampler.formats.export import export as exported
    from streamsampler.formats.export import format_named
    from streamsampler.formats.sources import open_source

    if options["timesteps"]:
        raise click.UsageError("--timesteps needs --to sb3, because it belongs to evaluations.")
    leaves, policy = LeafSelection(without=options.pop("without")), options.pop("policy")
    metadata = by_key(options["metadata"], "key=text", "--metadata")
    # An absent flag is False, which equals 0, and 0 may be a valid value of another option.
    given = {
        key: value for key, value in {**options, "metadata": metadata}.items()
        if value is not False and value not in (None, (), {})
    }  # fmt: skip
    format_named(name, given)
    if len(paths) > 1 and not all(path.is_dir() for path in paths):
        raise click.UsageError(f"--to {name} takes a single FILE, or one FOLDER or more, and not {len(paths)} of both.")
    source = open_source(paths[0] if len(paths) == 1 else TrajectoryFolder(*paths), leaves, policy)
    exported(source, out, to=name, progress=bar, **given)
    return {"format": name, "trajectories": source.n_trajectories, "timesteps": source.n_timesteps, "out": str(out)}


def _export_evaluations(paths: list[Path], out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write evaluations, and return a description of the export."""
    from streamsampler.cli.targets import checked_file
    from streamsampler.core.words import count
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.formats.evaluations import save_evaluations

    if options["dataset_id"] or options["metadata"]:
        raise click.UsageError("--dataset-id and --metadata are for trajectories: give --to minari.")
    if options["without"] or options["policy"]:
        raise click.UsageError(f"--without and --policy are for trajectories: give {_trajectory_formats()}.")
    timesteps = options["timesteps"]
    if len(timesteps) != len(paths) or len(set(timesteps)) != len(timesteps):
        raise click.UsageError(
            f"Give --timesteps once for each FILE, with different numbers: there are {count(len(paths), 'file')}, and "
            f"--timesteps is given {count(len(timesteps), 'time')}."
        )
    out = checked_file(str(out), ".npz", where="evaluations are written to .npz files")
    evaluations = {number: Evaluation.load(path) for number, path in zip(timesteps, paths, strict=True)}
    written = save_evaluations(evaluations, out)
    n_trajectories = sum(map(len, evaluations.values()))
    return {"format": "sb3", "evaluations": len(paths), "trajectories": n_trajectories, "out": str(written)}
