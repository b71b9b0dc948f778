"""Compare the origins of evaluations: everything that decides about their trajectories."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamsampler.core.fingerprints import differing_libraries
from streamsampler.evaluation.evaluation import Evaluation

_log = logging.getLogger("streamsampler")
_FINGERPRINTS = "fingerprints"
_SHOWN = 5
_SHOWN_CHARACTERS = 200


def origin_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return the origin of an evaluation; see `origin`."""
    names = ("agent", "environment", "settings", "versions", "seed", "success_meaning", "part")
    return origin(
        {name: getattr(evaluation, name) for name in names},
        named=evaluation.names is not None,
        asked=evaluation.asked or {},
    )


def origin(description: Mapping[str, Any], *, named: bool, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides about the trajectories of an evaluation, by name.

    Returns:
        JSON values as in a file, without the fingerprints of workers: see `warn_of_kernels`.
    """
    settings = {name: value for name, value in description["settings"].items() if name != _FINGERPRINTS}
    part = description["part"]
    found = {
        **{f"the agent's {name}": value for name, value in description["agent"].items()},
        "environment": description["environment"],
        **settings,
        **{f"the version of {name}": value for name, value in description["versions"].items()},
        "seed": description["seed"],
        "success": description["success_meaning"],
        "part": None if part is None else f"{part} of {part.of_trajectories} trajectories",
        "names of scenarios": named,
        "options of scenarios": [each.get("options") for each in asked.get("scenarios", ())],
    }
    as_stored: dict[str, Any] = json.loads(json.dumps(found))
    return as_stored


def differences(first: object, one: Mapping[str, Any], second: object, other: Mapping[str, Any]) -> list[str]:
    """Return each difference of two origins in words, with both values."""
    return [
        f"{name} is {_shown(one.get(name))} in {first}, and {_shown(other.get(name))} {second}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def fingerprints_of(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return the distinct fingerprints of all workers of some evaluations."""
    return sorted({str(bits) for each in evaluations for bits in each.settings.get(_FINGERPRINTS, ())})


def warn_of_kernels(fingerprints: Mapping[str, Sequence[str]], what: str, why: str) -> None:
    """Log a warning if evaluations were sampled with different kernels."""
    libraries = differing_libraries(bits for each in fingerprints.values() for bits in each)
    if not libraries:
        return
    places: dict[str, list[str]] = {}
    for place, each in fingerprints.items():
        for bits in each:
            places.setdefault(bits, []).append(place)
    described = [
        f"{bits} in {', '.join(found[:_SHOWN])}{', …' if len(found) > _SHOWN else ''}" for bits, found in places.items()
    ]
    verb = "computes" if len(libraries) == 1 else "compute"
    _log.warning(
        '%s sampled where %s %s with other kernels, so that %s: %s. See streamsampler/docs/guarantees.md, "Other '
        'processors"', what, " and ".join(libraries), verb, why, "; ".join(described),
    )  # fmt: skip
