"""Options and calls by pairs: whatever two are given together, all samplers return the same, or all refuse it alike.

A covering array has each two values of the constructor's options, of the calls and of their arguments in some row, but
for those that do not go together. A row is run on a `LocalSampler` with 1 and 3 workers, and on processes and queues
with 1 and 3: all batches are equal, bit for bit, and so are replays, folders and evaluations. What does not go together
is listed as refusals, each of which must be that one error: by the constructor where it alone decides, otherwise by the
call before anything is sent; where only a worker can see it, the environment's kind, as the error of a rollout.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    SetParameters,
    SetTaskUpdate,
    TrajectoryBatch,
    UsageError,
    VecWorker,
    evaluate,
    sample_to_folder,
)
from streamsampler.errors import RolloutError, SamplerError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.fragments.agents import Restorable
from tests.proofs._covering import Row, covering_array
from tests.proofs._pairs import AGENTS, Counted, Seamed, World, environment, is_odd, other_environment
from tests.proofs._programs import digest_of_trees, seen_of

FACTORS: dict[str, list[str]] = {
    "world": ["world", "game", "open game", "turns"],
    "agent": ["memory", "random", "function", "rows", "rows alone", "block"],
    "worker": ["default", "vec", "blocks", "seams"],
    "inference": ["worker", "parent"],
    "order": ["index", "arrival"],
    "on_failure": ["raise", "drop"],
    "staleness": ["0", "1"],
    "hooks": ["none", "hooks"],
    "drop_if": ["none", "drop_if"],
    "filter": ["none", "observation", "reward"],
    "taken": ["none", "taken"],
    "limit": ["none", "4"],
    "given": ["one", "agents", "envs"],
    "check": ["none", "warn"],
    "memory": ["none", "limited"],
    "first": ["trajectories", "samples", "exact", "stream", "fragments", "folder", "evaluate"],
    "told": ["nothing", "seeds", "options", "tasks"],
    "between": ["nothing", "pickle", "replay", "actions"],
    "update": ["nothing", "parameters", "agent", "each"],
    "env_update": ["nothing", "environment", "parameters", "task"],
    "second": ["trajectories", "samples", "exact", "stream", "fragments", "folder", "evaluate"],
}
"""What is combined; the first value of each goes with all others."""

_GAMES = {"game", "open game", "turns"}
_WHOLE = ("first", "second")


class Refusal(NamedTuple):
    """What does not go together.

    Attributes:
        when: The values, by factor.
        where: "constructor", "call" before anything is sent, or "worker" where only that sees it.
        words: What the error says.
    """

    when: dict[str, set[str]]
    where: str
    words: str

    def matches(self, row: Row) -> bool:
        """Return whether a row has these values."""
        return all(row[factor] in values for factor, values in self.when.items())


def _in_either(where: str, words: str, calls: set[str], **when: set[str]) -> list[Refusal]:
    return [Refusal({**when, factor: calls}, where, words) for factor in _WHOLE]


REFUSALS: list[Refusal] = []
