"""Carry out `check` and `bench`: run them on an environment and an agent, and print their reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from streamsampler.cli.environments import Spaces


def examine(
    ctx: click.Context, env_id: str, options: dict[str, Any], how: tuple[Any, Any, Any], said: tuple[str, str],
    is_failure: Callable[[Any], bool],
) -> None:  # fmt: skip
    """Run `check` or `bench`, print the report, and exit.

    Args:
        ctx: The command's context.
        env_id: The environment.
        options: The options; those that are no settings are removed.
        how: The library's function, the class of its settings, and its exception after Ctrl-C, which has the report so
            far in `found`.
        said: The command's activity for the progress display, and the same as a past participle, for Ctrl-C.
        is_failure: Whether a report means exit code 1.
    """
    from streamsampler.checking.way import env_code
    from streamsampler.cli.agents import load_agents, statistics_of
    from streamsampler.cli.environments import env_update_of
    from streamsampler.cli.running import running
    from streamsampler.cli.streams import print_error

    as_json, (function, settings, interruption) = options.pop("as_json"), how
    agent = {name: options.pop(name) for name in ("agent", "vec_normalize", "deterministic")}
    env_kwargs = options.pop("env_kwargs")

    def make_agent(spaces: Spaces) -> Any:
        return load_agents(agent, spaces, predicting=True)

    with running(ctx, said[0], quiet=options.pop("quiet"), imports=options.pop("imports")) as run, run.bar:
        statistics_of([agent["agent"]], [agent["vec_normalize"]] if agent["vec_normalize"] else ())
        env, code = env_update_of(env_id, env_kwargs), env_code(env_id, env_kwargs)
        try:
            make = None if agent["agent"] == "random" else make_agent
            report = function(env, code, make, settings(**options), run.bar)
        except interruption as interrupt:
            report = interrupt.found
            print_error(f"Interrupted: the following was {said[1]} before.")
    text = report.to_json().rstrip("\n") if as_json else report.text(for_command=True)
    run.finish(text, failed=is_failure(report))
