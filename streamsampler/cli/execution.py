"""Carry out `streamsampler sample`: sample, and print the summary."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from streamsampler.cli import report as summary
from streamsampler.cli.current_directory import import_named
from streamsampler.cli.errors import translated
from streamsampler.cli.grouping import TYPED
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.request import Amount, Request
from streamsampler.cli.run import run
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.samplers.progress import output_on


def execute(
    ctx: click.Context, kind: str, number: int, imports: Iterable[str], options: dict[str, Any], *, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Sample, print the summary, and exit.

    Args:
        ctx: The command's context.
        kind: What `number` counts; see `Amount`.
        number: How many.
        imports: Modules to import before.
        options: The other options, by their names in `Request`.
        as_json: Whether to print the summary as JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    tasks = options.pop("tasks")
    amount = Amount(kind, number, options.pop("part"), None if tasks is None else tuple(tasks))
    request = Request(amount=amount, command=ctx.meta[TYPED], **options)
    bar = output_on(sys.stderr, hidden=quiet, last_line=False)  # the summary says that the run is complete
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    try:
        with stdout_reserved(), translated(), notices_shown(bar, quiet=quiet):
            for name in imports:
                import_named(name, f"--import {name}")
            outcome = run(request, interrupts, bar)
    except Interrupted:
        kept = "nothing was kept" if request.shard_size is None else f"nothing was added to {request.out}"
        print_error(f"Interrupted: {kept}.")
        ctx.exit(interrupts.exit_code)
    if not (quiet or bar.shows_end):
        print_error(summary.as_line(request, outcome))
    text = summary.as_text(request, outcome)
    if as_json:
        text = json.dumps(summary.as_json(request, outcome), allow_nan=False)
    print_result(text, kept=outcome.written)
    ctx.exit(interrupts.exit_code)
