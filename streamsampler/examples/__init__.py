"""Short programs to copy from. Run one with `python -m streamsampler.examples.NAME`."""

from __future__ import annotations

from typing import Any

__all__ = ["ended_returns", "line_of", "made"]


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
    return f"iteration {iteration}: mean return {sum(ended) / len(ended):.2f} of {len(ended)}"


def ended_returns(batch: Any, running: Any) -> list[float]:
    """Return the returns of the episodes that ended in a batch of fragments, from their starts in earlier batches on.

    Args:
        batch: The batch.
        running: (n_envs,) what the episode in each environment got in earlier batches; it is brought up to date.
    """
    returns = batch.raw_returns + batch.continued * running[batch.env_numbers]
    running[batch.env_numbers[batch.cut]] = returns[batch.cut]
    ended: list[float] = returns[~batch.cut].tolist()
    return ended
