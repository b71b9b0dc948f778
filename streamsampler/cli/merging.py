"""Carry out `streamsampler merge`: merge, and print what the whole is."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.errors import translated
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.output import checked_file
from streamsampler.cli.report import spread_text
from streamsampler.cli.streams import print_error, print_result
from streamsampler.cli.tally import Tally
from streamsampler.data.words import count, table
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.merging import Merged, kind_of_part, merge
from streamsampler.samplers.progress import Output, Snapshot, output_on
from streamsampler.storage.folder import TrajectoryFolder

_SUFFIXES = {"file of trajectories": ".npz", "evaluation": ".json", "comparison": ".json"}


class _Follower:
    """Shows progress, and keeps Ctrl-C from cutting short what is complete.

    Attributes:
        interval: Seconds between two snapshots.
    """

    def __init__(self, bar: Output, interrupts: Interrupts) -> None:
        self.interval = bar.interval
        self._bar = bar
        self._interrupts = interrupts

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.complete:
            self._interrupts.shield()
        self._bar(snapshot)


def execute(ctx: click.Context, parts: Sequence[Path], out: str, *, as_json: bool, quiet: bool) -> None:
    """Merge parts, print what they are together, and exit.

    Args:
        ctx: The command's context.
        parts: The files or folders, which are there.
        out: The file or folder to write.
        as_json: Whether to print what is written, of trajectories a summary, as JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing="merging")
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    target = Path(out)  # until it is known what the parts are
    try:
        with translated(), notices_shown(bar, quiet=quiet):
            target = _target(parts[0], out)
            with bar:
                merged = merge(parts, target, progress=_Follower(bar, interrupts))
    except Interrupted:
        going_on = f" The same command completes {target}." if target.is_dir() else ""
        print_error(f"Interrupted: the parts are not merged.{going_on}")
        ctx.exit(interrupts.exit_code)
    if not (quiet or bar.shows_end):
        print_error(f"{count(len(parts), 'part')} merged")
    print_result(_json(merged, target, len(parts)) if as_json else _text(merged, target, len(parts)), kept=target)
    ctx.exit(interrupts.exit_code)


def _target(part: Path, out: str) -> Path:
    if (suffix := _SUFFIXES.get(kind_of_part(part))) is None:
        return Path(out)
    try:
        return checked_file(out, suffix, f"What is merged goes into a {suffix} file, as the parts are")
    except click.BadParameter as error:
        error.param_hint = "'--out'"
        raise


def _text(merged: Merged, target: Path, n_parts: int) -> str:
    if isinstance(merged, Evaluation | Comparison):
        return f"{merged}\nwritten to: {target}"
    facts = _facts(merged, target)
    shards = f" ({count(facts['shards'], 'shard')})" if "shards" in facts else ""
    return table({
        "parts": f"{n_parts:,}",
        "trajectories": f"{facts['trajectories']:,}",
        "timesteps": f"{facts['timesteps']:,}",
        "return": spread_text(facts["return"], facts["trajectories"]),
        "length": spread_text(facts["length"], facts["trajectories"]),
        "seed": str(facts["seed"]),
        "written to": f"{target}{shards}",
    })  # fmt: skip


def _json(merged: Merged, target: Path, n_parts: int) -> str:
    if isinstance(merged, Evaluation | Comparison):
        return merged.to_json().rstrip("\n")
    return json.dumps({"parts": n_parts, **_facts(merged, target), "out": str(target)}, allow_nan=False)


def _facts(merged: Any, target: Path) -> dict[str, Any]:
    if isinstance(merged, TrajectoryFolder):
        tally, n_shards = Tally.of_folder(target)
        return {**tally.facts(), "seed": merged.seed, "shards": n_shards}
    return {**Tally.of_batch(merged).facts(), "seed": merged.seed}
