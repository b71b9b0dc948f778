"""Join the records of trajectories that were recorded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsampler.data import trees
from streamsampler.data.batch_fields import INFOS
from streamsampler.data.info_columns import InfoColumns, join_undecided
from streamsampler.data.recorder import Rollouts

__all__ = ["joined"]


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """Return the trajectories of records, at least one, as one record in memory of its own.

    Raises:
        DataError: Their observations or actions do not go together.
    """

    def infos(name: str) -> InfoColumns:
        columns: list[InfoColumns] = [getattr(part, name) for part in parts]
        return join_undecided([(each, 0, each.length) for each in columns])

    def rows(name: str) -> trees.Tree:
        return trees.concatenate([getattr(part, name) for part in parts])

    fields: dict[str, Any] = {name: rows(name) for name in _TREES} | {name: infos(name) for name in INFOS}
    return Rollouts(
        **fields,
        has_last_values=any(part.has_last_values for part in parts),
        remarks=tuple({kind: text for part in parts for kind, text in part.remarks}.items()),
    )


_TREES = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths")
