"""Short programs to copy from. Run one with `python -m streamsampler.examples.NAME`."""

from __future__ import annotations

from typing import Any

__all__ = ["line_of", "made"]


def made(environment: str) -> Any:
    """Make an environment that the command line names.

    Raises:
        click.UsageError: There is none of that name, or it cannot be made; says why.
    """
    import click
    import gymnasium

    from streamsampler.environments.ids import find_spec
    from streamsampler.errors import UnknownEnvironmentError

    try:
        find_spec(environment)  # suggests what was meant
        return gymnasium.make(environment)
    except UnknownEnvironmentError as error:
        raise click.UsageError(str(error)) from error
    except Exception as error:  # an environment may raise anything
        kind = type(error).__name__
        raise click.UsageError(f"the environment {environment} cannot be made: {kind}: {error}") from error


def line_of(iteration: int, ended: list[float]) -> str:
    """Return what is printed of an iteration, with the returns of the episodes that ended in it."""
    if not ended:
        return f"iteration {iteration}: no episode ended"
    episodes = "episode" if len(ended) == 1 else "episodes"
    return f"iteration {iteration}: mean return {sum(ended) / len(ended):.2f} of {len(ended)} {episodes}"
