"""Carry out `streamsampler check`: check, and print what was found."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from streamsampler.benchmarking.way import env_code
from streamsampler.checking.check import CheckInterruptedError, Settings, check_update
from streamsampler.checking.report import CheckReport, text_of
from streamsampler.cli.environments import env_update_of
from streamsampler.cli.reports import agent_maker, print_report
from streamsampler.samplers.progress import Output


def execute(ctx: click.Context, env_id: str, options: dict[str, Any], **printing: Any) -> None:
    """Check, print what was found, and exit: with 1 where there are failures.

    Args:
        ctx: The command's context.
        env_id: The environment.
        options: The options of what is checked, by their names.
        **printing: See `print_report`.
    """

    def examine(bar: Output) -> CheckReport:
        env_kwargs = options.pop("env_kwargs")
        env, make_agent = env_update_of(env_id, env_kwargs), agent_maker(options)
        return check_update(env, env_code(env_id, env_kwargs), make_agent, Settings(**options), bar)

    def has_failed(report: CheckReport) -> bool:
        return not report.ok

    said = ("checking", "found")
    text = partial(text_of, for_command=True)
    print_report(ctx, examine, has_failed, CheckInterruptedError, said, text=text, **printing)
