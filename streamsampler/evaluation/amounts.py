"""Check what an evaluation is asked for: how many trajectories, from which seeds, until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamsampler.errors import UsageError, positive
from streamsampler.evaluation.rules import DEFAULT_CAP, FLOORS, Bounds, PrecisionOf, Rule, make_rule
from streamsampler.scheduling.parts import PartArgument, checked_part

__all__ = ["Amount", "Scenarios", "amount_of", "scenarios_of"]

_SCENARIO_KEYS = {"seed", "options", "name"}


@dataclass(frozen=True)
class Scenarios:
    """Scenarios as a sampler takes them.

    Attributes:
        n: How many there are.
        seeds: A seed for each; None for the sampler's own.
        options: What the reset of each gets; None where none has options.
        names: The name of each; None where none has one.
    """

    n: int
    seeds: list[int] | None
    options: list[Mapping[str, Any] | None] | None
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Amount:
    """How many trajectories an evaluation has.

    Attributes:
        n: How many, or the most where there is a rule.
        seeds: A seed for each; None for the sampler's own.
        options: What the reset of each gets; None for nothing.
        names: The name of each; None for none.
        rule: Says when there are enough; None for all of them.
        asked: What was asked for, in words.
        part: Only the i-th of n ranges of them; None for all.
    """

    n: int
    seeds: list[int] | None
    options: list[Mapping[str, Any] | None] | None
    names: tuple[str, ...] | None
    rule: Rule | None
    asked: str
    part: PartArgument | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether a trajectory has something that no other one has."""
        return self.seeds is not None or self.options is not None

    def in_part(self, part: Any, *, has_seed: bool) -> Amount:
        """Return the same for a part of the trajectories; for all of them if it is None.

        Args:
            part: The part's number from 1 on, and how many there are; or None.
            has_seed: Whether the sampler's seed is given, and not drawn.

        Raises:
            UsageError: There is no such part; or no part can be told, or not the same for each.
        """
        if part is None:
            return self
        part = checked_part(part)
        if self.rule is not None:
            raise UsageError(
                "a part is one of num_trajectories, seeds or scenarios: where until_halfwidth stops is known only "
                "when all trajectories before are there"
            )
        if self.seeds is None and not has_seed:
            raise UsageError("each part would draw a seed of its own: give seed=…, the same for all parts")
        return replace(self, part=part)


def amount_of(
    *,
    num_trajectories: Any,
    seeds: Iterable[int] | None,
    scenarios: Iterable[Mapping[str, Any]] | None,
    until_halfwidth: Any,
    precision_of: PrecisionOf,
    guarantee: bool,
    bounds: Bounds | None,
    min_trajectories: Any,
    max_trajectories: Any,
) -> Amount:
    """Return what the arguments of `evaluate` ask for.

    Raises:
        UsageError: They cannot work.
    """
    if until_halfwidth is None:
        useless = {"guarantee": guarantee, "bounds": bounds, "min_trajectories": min_trajectories}
        useless["max_trajectories"] = max_trajectories
        if given := [name for name, value in useless.items() if value]:
            raise UsageError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for until_halfwidth")
        if precision_of not in FLOORS:
            raise UsageError(f'precision_of must be "return" or "success", got {precision_of!r}')
        return _fixed(num_trajectories, seeds, scenarios)
    if num_trajectories is not None or scenarios is not None:
        other = "num_trajectories" if num_trajectories is not None else "scenarios"
        raise UsageError(f"until_halfwidth decides how many trajectories there are: leave out {other}")
    rule = make_rule(until_halfwidth, precision_of, guarantee=guarantee, bounds=bounds, least=min_trajectories)
    listed = None if seeds is None else _seeds(seeds)
    cap = positive("max_trajectories", DEFAULT_CAP if max_trajectories is None else max_trajectories)
    if listed is not None:
        if max_trajectories is not None and cap > len(listed):
            raise UsageError(f"max_trajectories is {cap}, but there are {len(listed)} seeds")
        listed = listed if max_trajectories is None else listed[:cap]
        cap = len(listed)
    return Amount(cap, listed, None, None, rule, "")


def _fixed(num_trajectories: Any, seeds: Any, scenarios: Any) -> Amount:
    given = [name for name, value in (("seeds", seeds), ("scenarios", scenarios)) if value is not None]
    if len(given) > 1:
        raise UsageError("scenarios have seeds of their own: leave out seeds")
    if not given:
        if num_trajectories is None:
            raise UsageError("how many? Give num_trajectories, seeds, scenarios or until_halfwidth")
        n = positive("num_trajectories", num_trajectories)
        return Amount(n, None, None, None, None, "as many as were asked for")
    if seeds is not None:
        listed = _seeds(seeds)
        amount = Amount(len(listed), listed, None, None, None, "one for each seed")
    else:
        made = scenarios_of(scenarios)
        amount = Amount(made.n, made.seeds, made.options, made.names, None, "one for each scenario")
    if num_trajectories is not None and positive("num_trajectories", num_trajectories) != amount.n:
        raise UsageError(f"num_trajectories is {num_trajectories}, but there are {amount.n} {given[0]}")
    return amount


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise UsageError(f"seeds must be a sequence of integers, one for each trajectory, got {seeds!r:.60}")
    listed = [positive(f"seeds[{position}]", seed, least=0) for position, seed in enumerate(seeds)]
    if not listed:
        raise UsageError("seeds is empty: there is nothing to evaluate on")
    return listed


def scenarios_of(scenarios: Any) -> Scenarios:
    """Return scenarios as a sampler takes them.

    Args:
        scenarios: Dicts with some of the keys "seed", "options" and "name"; all have a seed, or none has.

    Raises:
        UsageError: They are something else, or two have one name.
    """
    if isinstance(scenarios, str | bytes | Mapping) or not isinstance(scenarios, Iterable):
        raise UsageError(f"scenarios must be a list of dicts, got {scenarios!r:.60}")
    listed = list(scenarios)
    if not listed:
        raise UsageError("scenarios is empty: there is nothing to evaluate on")
    for position, each in enumerate(listed):
        _check_scenario(f"scenarios[{position}]", each)
    return Scenarios(len(listed), _column_of_seeds(listed), _column_of_options(listed), _column_of_names(listed))


def _check_scenario(where: str, scenario: Any) -> None:
    if not isinstance(scenario, Mapping):
        raise UsageError(
            f'{where} must be a dict such as {{"seed": 1, "options": {{}}, "name": "…"}}, got {scenario!r:.60}'
        )
    if unknown := sorted(map(str, set(scenario) - _SCENARIO_KEYS)):
        raise UsageError(f"{where} has {', '.join(map(repr, unknown))}; a scenario has seed, options and name")
    options = scenario.get("options")
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"the options of {where} must be a dict, got {options!r:.60}")


def _column_of_seeds(scenarios: Sequence[Mapping[str, Any]]) -> list[int] | None:
    seeds = [each.get("seed") for each in scenarios]
    if all(seed is None for seed in seeds):
        return None
    if None in seeds:
        raise UsageError(
            f"scenarios[{seeds.index(None)}] has no seed, and others have one: give one to all, or to none"
        )
    return [positive(f"the seed of scenarios[{position}]", seed, least=0) for position, seed in enumerate(seeds)]


def _column_of_options(scenarios: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None] | None:
    options = [each.get("options") for each in scenarios]
    return options if any(each is not None for each in options) else None


def _column_of_names(scenarios: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    given = [each.get("name") for each in scenarios]
    if all(name is None for name in given):
        return None
    names = tuple(f"scenario {position}" if name is None else str(name) for position, name in enumerate(given))
    first: dict[str, int] = {}
    for position, name in enumerate(names):
        if (other := first.setdefault(name, position)) != position:
            raise UsageError(f"scenarios[{other}] and scenarios[{position}] have the same name, {name!r}")
    return names
