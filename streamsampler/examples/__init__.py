"""Short programs to copy from. Run one with `python -m streamsampler.examples.NAME`."""

from __future__ import annotations

from typing import Any

__all__ = ["ended_returns", "made"]


def made(environment: str) -> Any:
    """Make an environment that the command line names.

    Raises:
        click.UsageError: Gymnasium cannot make it; says why.
    """
    import click
    import gymnasium

    try:
        return gymnasium.make(environment)
    except gymnasium.error.Error as error:
        raise click.UsageError(f"Gymnasium makes no {environment!r}: {error}") from error


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
