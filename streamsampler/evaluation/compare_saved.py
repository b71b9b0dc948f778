"""Compare saved evaluations without running anything, by pairs of trajectories of the same seed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.origins import differences, origin_of, warn_of_kernels
from streamsampler.evaluation.pairing import pairs_of
from streamsampler.evaluation.rules import checked_bounds

_log = logging.getLogger("streamsampler")

_OF_AGENTS = ("the agent's ", "observation_filter", "reward_filter")
"""Entries of origins that belong to the agent, and may differ."""
_OF_SEEDS = ("seed", "part", "names of scenarios", "options of scenarios")
"""Entries of origins that are checked pair by pair."""
_OF_VERSIONS = "the version of "


def are_saved(named: Mapping[str, Any]) -> bool:
    """Return whether evaluations are compared instead of agents.

    Raises:
        UsageError: Evaluations and agents are mixed.
    """
    saved = {name: isinstance(each, Found) for name, each in named.items()}
    if any(saved.values()) and not all(saved.values()):
        evaluation, agent = (next(name for name, it in saved.items() if it is wanted) for wanted in (True, False))
        raise UsageError(
            f"{evaluation} is a saved evaluation, not an agent: give the evaluated agent; or evaluate "
            f"{agent} on the same seeds first, and compare the two evaluations"
        )
    if not any(saved.values()):
        return False
    kinds = {name: each.KIND for name, each in named.items()}
    (first, kind), *_ = kinds.items()
    if other := next((name for name, it in kinds.items() if it != kind), None):
        raise UsageError(
            f"{first} holds the kind {kind!r}, and {other} {kinds[other]!r}: compare evaluations with each other, and "
            "suites with each other"
        )
    return True


def compare_saved(named: Mapping[str, Evaluation], bounds: Bounds | None = None) -> Comparison:
    """Compare saved evaluations, pair by pair.

    Raises:
        UsageError: Their environments, settings or meanings of success differ, and the message says which; they are
            parts; or an evaluation has no common seed with the first.
    """
    (first, one), *others = named.items()
    for name, each in named.items():
        if each.part is not None:
            raise UsageError(f"{name} is {each.part}: merge all parts before comparing them")
    for name, each in others:
        _check_alike(first, one, name, each)
        if not len(pairs_of(one, each)[0]):
            raise UsageError(
                f"{first} and {name} have no common seed, so no pairs: evaluate both with the same seed (seed=1), or "
                "with the same seeds"
            )
    limits = _bounds(named) if bounds is None else checked_bounds(bounds)
    for name in (name for name, each in named.items() if each.stopped == INTERRUPTED):
        _log.warning("%s was interrupted: only its finished trajectories are compared", name)
    warn_of_kernels(
        {name: each.settings.get("fingerprints", ()) for name, each in named.items()},
        "the evaluations were",
        "differences may come from the machines",
    )
    stopped = list(dict.fromkeys(each.stopped for each in named.values()))
    is_one = len(stopped) == 1 and stopped[0] != INTERRUPTED  # the comparison itself is complete
    return Comparison(
        names=tuple(named),
        evaluations=tuple(named.values()),
        stopped=stopped[0] if is_one else f"saved evaluations: {'; '.join(stopped)}",
        bounds=limits,
    )


def _check_alike(first: str, one: Evaluation, second: str, other: Evaluation) -> None:
    """Check that two evaluations measured the same; warn if versions differ."""
    origins = [
        {name: value for name, value in origin_of(each).items() if not name.startswith(_OF_AGENTS)}
        for each in (one, other)
    ]
    for each in origins:
        for name in _OF_SEEDS:
            del each[name]
    versions = [{name: it for name, it in each.items() if name.startswith(_OF_VERSIONS)} for each in origins]
    measured = [{name: it for name, it in each.items() if not name.startswith(_OF_VERSIONS)} for each in origins]
    if found := differences(first, measured[0], f"in {second}", measured[1]):
        raise UsageError(f"{first} and {second} measured under different conditions: {'; '.join(found)}")
    if found := differences(first, versions[0], f"in {second}", versions[1]):
        _log.warning("%s and %s were sampled with different libraries: %s", first, second, "; ".join(found))


def _bounds(named: Mapping[str, Evaluation]) -> Bounds | None:
    """Return the common bounds of all evaluations.

    Raises:
        UsageError: The bounds differ.
    """
    for (first, one), (second, other) in combinations(named.items(), 2):
        if one.bounds != other.bounds:
            raise UsageError(
                f"bounds are {one.bounds} in {first}, and {other.bounds} in {second}: give bounds for both"
            )
    return next(iter(named.values())).bounds
