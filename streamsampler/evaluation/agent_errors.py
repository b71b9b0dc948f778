"""Errors of a single agent in a comparison: they name the agent, and have the results of the agents before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamsampler.core.errors import SamplerError, UsageError


@contextmanager
def naming_agent(name: str, found: Mapping[str, Any], *, are_kept: bool) -> Iterator[None]:
    """Name the agent in its errors, and attach the results of the agents before it as `found`.

    Raises:
        SamplerError: The agent's error.
    """
    try:
        yield
    except UsageError as error:
        raise type(error)(f"agent {name!r}: {error}") from error.__cause__
    except SamplerError as error:
        error.found = dict(found)
        error.add_note(f"this is the error of the agent {name!r}")
        if found and not are_kept:
            error.add_note(
                f"the trajectories of {', '.join(found)} were complete: with out=FILE they are kept, and resume=FILE "
                "resumes them"
            )
        raise
