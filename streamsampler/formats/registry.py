"""The formats that trajectories and evaluations are exported to: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from streamsampler.errors import UsageError

__all__ = ["FORMATS", "Format", "format_named"]


@dataclass(frozen=True)
class Format:
    """A format of another library.

    Attributes:
        module: The module of this room that writes it, trajectories by `write`.
        options: The names of the arguments that only this format takes.
        of: What is written in it.
    """

    module: str
    options: frozenset[str] = frozenset()
    of: Literal["trajectories", "evaluations"] = "trajectories"

    def load(self) -> Any:
        """Return the module."""
        return import_module(f"streamsampler.formats.{self.module}")


FORMATS: Mapping[str, Format] = {
    "minari": Format("minari", frozenset({"dataset_id", "metadata"})),
    "parquet": Format("parquet"),
    "tensordict": Format("tensordict"),
    "sb3": Format("sb3", of="evaluations"),
}


def format_named(name: str, options: Mapping[str, Any]) -> Format:
    """Return a format of trajectories.

    Raises:
        UsageError: There is none of that name, it is of evaluations, or it has no such options.
    """
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}, only {', '.join(FORMATS)}")
    if FORMATS[name].of != "trajectories":
        raise UsageError(f"the format {name!r} is for evaluations: call streamsampler.formats.save_evaluations")
    if wrong := sorted(options.keys() - FORMATS[name].options):
        raise UsageError(f"the format {name!r} takes no {' and no '.join(wrong)}")
    return FORMATS[name]
