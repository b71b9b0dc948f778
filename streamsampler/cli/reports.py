"""Carry out a command that examines an environment and an agent, and print its report: `check` and `bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import click

from streamsampler.cli.current_directory import import_named
from streamsampler.cli.environments import Spaces
from streamsampler.cli.errors import translated
from streamsampler.cli.interrupts import Interrupts
from streamsampler.cli.models import load_agents
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.samplers.progress import Output, output_on

_RANDOM = "random"


class _Report(Protocol):
    def to_json(self) -> str: ...


ReportT = TypeVar("ReportT", bound=_Report)


def agent_maker(options: dict[str, Any]) -> Callable[[Spaces], Any] | None:
    """Take the agent's options out of a command's, and return what makes the agent; None for random actions."""
    name, statistics, deterministic = (options.pop(each) for each in ("agent", "vec_normalize", "deterministic"))

    def make_agent(spaces: Spaces) -> Any:
        return load_agents(name, None, None, statistics, spaces, deterministic, predicting=True)

    return None if name == _RANDOM else make_agent


def print_report(
    ctx: click.Context,
    examine: Callable[[Output], ReportT],
    has_failed: Callable[[ReportT], bool],
    interruption: Any,
    said: tuple[str, str],
    *,
    text: Callable[[ReportT], str] = str,
    imports: Iterable[str],
    as_json: bool,
    quiet: bool,
) -> None:
    """Examine, print what was found, and exit: with 1 where that is a failure.

    Args:
        ctx: The command's context.
        examine: Returns the report; it gets the progress bar.
        has_failed: Says of a report whether it is a failure.
        interruption: What Ctrl-C raises in `examine`: the exception whose `found` is the report so far.
        said: What the command does, as progress says it, and what was done with what was found before Ctrl-C.
        text: Returns the report as text.
        imports: Modules to import before.
        as_json: Whether to print the report as JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing=said[0])
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    with stdout_reserved(), translated(), notices_shown(bar, quiet=quiet), bar:
        for name in imports:
            import_named(name, f"--import {name}")
        try:
            report = examine(bar)
        except interruption as interrupt:
            report = interrupt.found
            print_error(f"Interrupted: what follows was {said[1]} before.")
    print_result(report.to_json().rstrip("\n") if as_json else text(report))
    ctx.exit(interrupts.exit_code or int(has_failed(report)))
