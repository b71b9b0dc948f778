"""Covering arrays: few rows of options, in which each two values of two factors meet that may.

As in Cohen, Dalal, Fredman and Patton, "The AETG system: an approach to testing based on combinatorial design" (IEEE
Transactions on Software Engineering, 1997): of some random candidates the one that covers most is the next row.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["Row", "covering_array"]

Row = dict[str, str]
Pair = frozenset[tuple[str, str]]
_CANDIDATES = 40
_TRIES = 60


def pairs_of(row: Row) -> set[Pair]:
    """Return all pairs of values in a row."""
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def covering_array(
    factors: Mapping[str, Sequence[str]], at_fault: Callable[[Row], Collection[str] | None], seed: int
) -> tuple[list[Row], set[Pair]]:
    """Return rows, and the pairs of values that are in none of them, since no allowed row was found with them.

    Args:
        factors: The values of each factor, by name.
        at_fault: Returns the factors for whose values together a row may not be; None where it may.
        seed: What candidates are drawn from.
    """
    dice = random.Random(seed)
    missing = {
        frozenset(((one, left), (other, right)))
        for one, other in itertools.combinations(factors, 2)
        for left, right in itertools.product(factors[one], factors[other])
    }
    rows: list[Row] = []
    left_out: set[Pair] = set()
    while missing:
        pair = min(missing, key=sorted)
        drawn = [_candidate(factors, at_fault, dict(pair), dice) for _ in range(_CANDIDATES)]
        candidates = [row for row in drawn if row is not None]
        if not candidates:
            missing.remove(pair)
            left_out.add(pair)
            continue
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        rows.append(best)
        missing -= pairs_of(best)
    return rows, left_out


def _candidate(
    factors: Mapping[str, Sequence[str]], at_fault: Callable[[Row], Collection[str] | None], fixed: Row,
    dice: random.Random,
) -> Row | None:  # fmt: skip
    """Return a random row with some values, of which others are changed until it may be."""
    row = {name: dice.choice(values) for name, values in factors.items()} | fixed
    for _ in range(_TRIES):
        if (blamed := at_fault(row)) is None:
            return row
        if not (free := sorted(set(blamed) - fixed.keys())):
            return None
        name = dice.choice(free)
        row[name] = dice.choice([value for value in factors[name] if value != row[name]])
    return None
