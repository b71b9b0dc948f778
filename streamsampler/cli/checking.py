"""Carry out `streamsampler check`: check, and print what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from streamsampler.checking.check import CheckInterruptedError, check_update
from streamsampler.checking.report import CheckReport
from streamsampler.checking.running import Settings
from streamsampler.cli.current_directory import import_named
from streamsampler.cli.environments import Spaces, env_update_of
from streamsampler.cli.errors import translated
from streamsampler.cli.interrupts import Interrupts
from streamsampler.cli.models import load_any_agent
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.samplers.progress_output import Output, output_on

__all__ = ["execute"]

_RANDOM = "random"


def execute(
    ctx: click.Context, env_id: str, imports: Iterable[str], options: dict[str, Any], *, as_json: bool, quiet: bool
) -> None:
    """Check, print what was found, and exit: with 1 where there are failures.

    Args:
        ctx: The command's context.
        env_id: The environment.
        imports: Modules to import before.
        options: The other options, by their names.
        as_json: Whether to print the report as JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing="checking")
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    with stdout_reserved(), translated(), notices_shown(bar, quiet=quiet), bar:
        for name in imports:
            import_named(name, f"--import {name}")
        try:
            report = _checked(env_id, options, bar)
        except CheckInterruptedError as interrupt:
            report = interrupt.found
            print_error("Interrupted: what follows was found before.")
    print_result(report.to_json().rstrip("\n") if as_json else str(report))
    ctx.exit(interrupts.exit_code or int(not report.ok))


def _checked(env_id: str, options: dict[str, Any], bar: Output) -> CheckReport:
    env = env_update_of(env_id, options.pop("env_kwargs"))
    name, statistics, deterministic = (options.pop(each) for each in ("agent", "vec_normalize", "deterministic"))

    def make_agent(spaces: Spaces) -> Any:
        return load_any_agent(name, statistics, spaces, deterministic, predicting=True)

    settings = Settings(**options)
    return check_update(env, None if name == _RANDOM else make_agent, settings, bar)
