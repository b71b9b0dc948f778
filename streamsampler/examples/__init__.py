"""Short programs as starting points for your own. Run with `python -m streamsampler.examples.NAME`."""

from __future__ import annotations

from typing import Any

__all__ = ["line_of", "made"]


def made(environment: str) -> Any:
    """Make an environment from its id on the command line.

    Raises:
        click.UsageError: The id is unknown, or the environment cannot be made; with the reason.
    """
    import click
    import gymnasium

    from streamsampler.environments.ids import find_spec
    from streamsampler.errors import UnknownEnvironmentError

    try:
        find_spec(environment)  # its error suggests similar ids
        return gymnasium.make(environment)
    except UnknownEnvironmentError as error:
        raise click.UsageError(str(error)) from error
    except Exception as error:  # an environment may raise anything
        kind = type(error).__name__
        raise click.UsageError(f"the environment {environment} cannot be made: {kind}: {error}") from error


def line_of(iteration: int, ended: list[float]) -> str:
    """Return the output line of an iteration, with the mean return of the episodes that ended in it."""
    if not ended:
        return f"iteration {iteration}: no episode ended"
    episodes = "episode" if len(ended) == 1 else "episodes"
    return f"iteration {iteration}: mean return {sum(ended) / len(ended):.2f} of {len(ended)} {episodes}"
