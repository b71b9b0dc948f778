"""Carry out `streamsampler export`: write what is asked for, and print what was written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.errors import translated
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.data.words import table
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.formats.columns import open_source
from streamsampler.formats.export import export, format_named
from streamsampler.formats.sb3 import save_evaluations
from streamsampler.samplers.progress import output_on


def execute(
    ctx: click.Context, sources: tuple[str, ...], name: str, out: Path, options: dict[str, Any], *, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Write what is asked for, and print what was written.

    Args:
        ctx: The command's context.
        sources: The files and folders.
        name: The format.
        out: The folder or the file to write.
        options: The options that only some formats take.
        as_json: Whether to print the summary as JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing="exporting")
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    try:
        with stdout_reserved(), translated(), notices_shown(bar, quiet=quiet):
            if name == "sb3":
                facts = _export_evaluations(sources, out, options)
            else:
                with bar:
                    facts = _export_trajectories(sources, name, out, options, bar)
    except Interrupted:
        print_error("Interrupted: nothing was written.")
        ctx.exit(interrupts.exit_code)
    print_result(json.dumps(facts) if as_json else _as_text(facts), kept=out)


def _export_trajectories(
    sources: tuple[str, ...], name: str, out: Path, options: dict[str, Any], bar: Any
) -> dict[str, Any]:
    if options["timesteps"]:
        raise click.UsageError("--timesteps is for evaluations: give --to sb3, too.")
    given = {"dataset_id": options["dataset_id"], "metadata": _metadata(options["metadata"])}
    given = {key: value for key, value in given.items() if value}
    format_named(name, given)
    if len(sources) > 1:
        raise click.UsageError(f"--to {name} takes one FILE or FOLDER, and not {len(sources)}.")
    source = open_source(_existing(sources[0]))
    try:
        export(source, out, to=name, progress=bar, **given)
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    return {
        "format": name,
        "trajectories": source.n_trajectories,
        "timesteps": source.n_timesteps,
        "out": str(out),
    }


def _metadata(pairs: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key in given:
            raise click.BadParameter(f"{pair!r} is not of the form key=text, or given twice", param_hint="--metadata")
        given[key] = text
    return given


def _existing(path: str) -> Path:
    found = next((candidate for candidate in (Path(path), Path(f"{path}.npz")) if candidate.exists()), None)
    if found is None:
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="FILE|FOLDER")
    return found


def _export_evaluations(sources: tuple[str, ...], out: Path, options: dict[str, Any]) -> dict[str, Any]:
    if options["dataset_id"] or options["metadata"]:
        raise click.UsageError("--dataset-id and --metadata are for trajectories: give --to minari.")
    timesteps = options["timesteps"] or ((0,) if len(sources) == 1 else ())
    if len(timesteps) != len(sources) or len(set(timesteps)) != len(timesteps):
        raise click.UsageError(
            f"Give --timesteps once for each FILE, each another number: there are {len(sources)} files and "
            f"{len(timesteps)} timesteps."
        )
    if out.is_dir():
        raise click.BadParameter(f"{str(out)!r} is a directory: name a file in it, such as evaluations.npz")
    evaluations = {
        number: Evaluation.load(_existing(source)) for number, source in zip(timesteps, sources, strict=True)
    }
    written = save_evaluations(evaluations, out)
    n_trajectories = sum(len(evaluation) for evaluation in evaluations.values())
    return {"format": "sb3", "evaluations": len(sources), "trajectories": n_trajectories, "out": str(written)}


def _as_text(facts: dict[str, Any]) -> str:
    rows = {"format": facts["format"]}
    rows |= {name: f"{facts[name]:,}" for name in ("evaluations", "trajectories", "timesteps") if name in facts}
    return table({**rows, "written to": facts["out"]})
