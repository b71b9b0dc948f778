"""The command `merge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.grouping import SeveralArgument, command, option, options_of
from streamsampler.cli.options import PRINTED, existing

_SUFFIXES = {"file of trajectories": ".npz", "evaluation": ".json", "comparison": ".json"}


@command("Put the parts of a run together.")
@click.argument("parts", cls=SeveralArgument, metavar="PART...", nargs=-1, required=True)
@options_of(
    option("Output", "-o", "--out", required=True, metavar="FILE|FOLDER",
        help="Write the whole here: a file, which is replaced if it is there; of folders of shards a folder, which "
        "must be new or empty."),
    PRINTED,
)  # fmt: skip
@click.pass_context
def merge(ctx: click.Context, /, parts: tuple[str, ...], out: str, as_json: bool, quiet: bool) -> None:
    r"""Put the parts of a run together, and write what the run would have written without parts: the same bytes.

    Each PART is a file or a folder that evaluate, compare or sample wrote with --part; their order does not matter.
    Parts that are missing, there twice, not whole, or of another run are named. Where parts were run on processors that
    compute otherwise, a warning says so.

    Examples:
      streamsampler merge part-*.json --out cartpole.json
      streamsampler merge part-1.npz part-2.npz part-3.npz --out cartpole.npz
      streamsampler merge parts/* --out big

    In tasks 1 to 7 of a job array of SLURM, and afterwards:
      streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 700 --seed 1 \
          --part $SLURM_ARRAY_TASK_ID/7 --out part-$SLURM_ARRAY_TASK_ID.json
      streamsampler merge part-*.json --out cartpole.json

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    paths = [existing(name, what="PART") for name in parts]
    from streamsampler.cli.naming import checked_file
    from streamsampler.cli.running import Follower, running
    from streamsampler.cli.streams import print_error
    from streamsampler.data.words import count
    from streamsampler.evaluation.merging import kind_of_part
    from streamsampler.evaluation.merging import merge as merged_parts

    with running(ctx, "merging", quiet=quiet) as run:
        target, suffix = Path(out), _SUFFIXES.get(kind_of_part(paths[0]))
        if suffix is not None:
            target = checked_file(out, suffix, f"What is merged goes into a {suffix} file, as the parts are")
        run.if_interrupted = "the parts are not merged" + (
            f". The same command completes {target}" if suffix is None else ""
        )
        with run.bar:
            merged = merged_parts(paths, target, progress=Follower(run))
        text = _text(merged, target, len(parts), as_json=as_json)
    if not run.shows_end:
        print_error(f"{count(len(parts), 'part')} merged")
    run.finish(text, kept=target)


def _text(merged: Any, target: Path, n_parts: int, *, as_json: bool) -> str:
    """Return what the parts are together, as text or JSON."""
    from streamsampler.cli.report import spread_text
    from streamsampler.cli.tally import Tally
    from streamsampler.data.batch import TrajectoryBatch
    from streamsampler.data.words import count, table

    if hasattr(merged, "to_json"):  # an evaluation or a comparison
        return merged.to_json().rstrip("\n") if as_json else f"{merged}\nwritten to: {target}"
    if isinstance(merged, TrajectoryBatch):
        tally, n_shards = Tally.of_batch(merged), None
    else:
        tally, n_shards = Tally.of_folder(target)
    facts = {**tally.facts(), "seed": merged.seed, **({} if n_shards is None else {"shards": n_shards})}
    if as_json:
        return json.dumps({"parts": n_parts, **facts, "out": str(target)}, allow_nan=False)
    return table({
        "parts": f"{n_parts:,}",
        **{name: f"{facts[name]:,}" for name in ("trajectories", "timesteps")},
        **{name: spread_text(facts[name], facts["trajectories"]) for name in ("return", "length")},
        "seed": str(merged.seed),
        "written to": str(target) if n_shards is None else f"{target} ({count(n_shards, 'shard')})",
    })  # fmt: skip
