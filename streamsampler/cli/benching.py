"""Carry out `streamsampler bench`: measure, and print what was found."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from streamsampler.benchmarking.bench import BenchInterruptedError, bench_update
from streamsampler.benchmarking.measuring import BenchSettings
from streamsampler.benchmarking.report import BenchReport
from streamsampler.benchmarking.way import env_code
from streamsampler.cli.environments import env_update_of
from streamsampler.cli.reports import agent_maker, print_report
from streamsampler.samplers.progress import Output


def execute(ctx: click.Context, env_id: str, options: dict[str, Any], **printing: Any) -> None:
    """Measure, print what was found, and exit: with 1 where no way could be measured.

    Args:
        ctx: The command's context.
        env_id: The environment.
        options: The options of what is measured, by their names.
        **printing: See `print_report`.
    """

    def measure(bar: Output) -> BenchReport:
        env_kwargs = options.pop("env_kwargs")
        env, make_agent = env_update_of(env_id, env_kwargs), agent_maker(options)
        return bench_update(env, env_code(env_id, env_kwargs), make_agent, BenchSettings(**options), bar)

    def has_failed(report: BenchReport) -> bool:
        return report.recommendation is None

    text = partial(BenchReport.text, for_command=True)
    print_report(ctx, measure, has_failed, BenchInterruptedError, ("measuring", "measured"), text=text, **printing)
