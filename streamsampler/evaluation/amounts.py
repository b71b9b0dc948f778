"""Check the amount of an evaluation: the number of trajectories, their seeds, and the stopping rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError, positive
from streamsampler.data.codec import decode, encode
from streamsampler.data.trees import same
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.rules import FLOORS, PrecisionOf, Rule, checked_bounds, make_rule
from streamsampler.protocol.evaluation_parts import Part
from streamsampler.samplers.provenance import shown_name

DEFAULT_CAP = 10_000
_SCENARIO_KEYS = {"seed", "options", "name"}


@dataclass(frozen=True)
class Amount:
    """The amount of an evaluation.

    Attributes:
        n: Number of trajectories, or the most with a rule.
        asked: The request in words.
        seeds: A seed for each trajectory; None for the sampler's own.
        options: Reset options of each trajectory; None for none.
        names: The name of each trajectory; None for none.
        rule: Decides when there are enough; None to run all.
        bounds: The least and the largest possible return; None if unknown.
        part: The part to run; None for all.
        arguments: The request as JSON values; `arguments_of` restores them.
    """

    n: int
    asked: str
    seeds: list[int] | None = None
    options: list[Mapping[str, Any] | None] | None = None
    names: tuple[str, ...] | None = None
    rule: Rule | None = None
    bounds: Bounds | None = None
    part: Part | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_fixed(self) -> bool:
        """Whether each trajectory has its own seed or options, so that no other trajectory can replace it."""
        return self.seeds is not None or self.options is not None


@dataclass(frozen=True)
class HowMany:
    """The requested number of trajectories.

    Attributes:
        n: The number, or None.
        name: The name of the argument, which has two.
    """

    n: Any = None
    name: str = "n_trajectories"

    @classmethod
    def asked(cls, n_trajectories: Any, num_trajectories: Any) -> HowMany:
        """Return the request under either name.

        Raises:
            UsageError: Both names are used.
        """
        if num_trajectories is None:
            return cls(n_trajectories)
        if n_trajectories is not None:
            raise UsageError("num_trajectories is another name of n_trajectories: give one of them")
        return cls(num_trajectories, "num_trajectories")


def amount_of(
    *,
    how_many: HowMany = HowMany(),
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_halfwidth: Any = None,
    precision_of: PrecisionOf = "return",
    guarantee: bool = False,
    bounds: Any = None,
    min_trajectories: Any = None,
    max_trajectories: Any = None,
) -> Amount:
    """Return the amount requested by arguments of `evaluate`.

    Raises:
        UsageError: Arguments are out of range, or contradict each other.
    """
    if precision_of not in FLOORS:
        raise UsageError(f'precision_of must be "return" or "success", got {precision_of!r}')
    bounds = None if bounds is None else checked_bounds(bounds)
    if until_halfwidth is not None:
        refuse_amounts("until_halfwidth", how_many, scenarios)
        rule = make_rule(until_halfwidth, precision_of, guarantee=guarantee, bounds=bounds, least=min_trajectories)
        asked = {"until_halfwidth": rule.halfwidth, "precision_of": precision_of, "guarantee": bool(guarantee)}
        asked |= {} if min_trajectories is None else {"min_trajectories": int(min_trajectories)}
        most = at_most(seeds, max_trajectories)
        return replace(most, rule=rule, bounds=bounds, arguments={**asked, **most.arguments})
    of_rule = {"guarantee": guarantee, "min_trajectories": min_trajectories}
    refuse_useless({**of_rule, "max_trajectories": max_trajectories}, "until_halfwidth")
    if seeds is not None and scenarios is not None:
        raise UsageError("scenarios have their own seeds: leave out seeds")
    if seeds is not None:
        listed = _seeds(seeds)
        amount = Amount(len(listed), "one for each seed", listed, arguments={"seeds": listed})
    elif scenarios is not None:
        amount = amount_of_scenarios(scenarios)
    elif how_many.n is None:
        raise UsageError(
            "the number of trajectories is missing: give n_trajectories, seeds, scenarios or until_halfwidth"
        )
    else:
        n = positive(how_many.name, how_many.n)
        amount = Amount(n, "as many as were asked for", arguments={"n_trajectories": n})
    if how_many.n is not None and positive(how_many.name, how_many.n) != amount.n:
        name = "seeds" if seeds is not None else "scenarios"
        raise UsageError(f"{how_many.name} is {how_many.n}, but there are {amount.n} {name}")
    return replace(amount, bounds=bounds)


def refuse_useless(arguments: Mapping[str, Any], rule: str) -> None:
    """Refuse arguments of an absent rule."""
    if given := [name for name, value in arguments.items() if value]:
        raise UsageError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for {rule}")


def refuse_amounts(rule: str, how_many: HowMany, scenarios: Any) -> None:
    """Refuse fixed amounts next to a rule."""
    if how_many.n is not None or scenarios is not None:
        other = how_many.name if how_many.n is not None else "scenarios"
        raise UsageError(f"{rule} decides how many trajectories there are: leave out {other}")


def at_most(seeds: Any, max_trajectories: Any) -> Amount:
    """Return the most trajectories of a rule."""
    if seeds is None:
        n = positive("max_trajectories", DEFAULT_CAP if max_trajectories is None else max_trajectories)
        return Amount(n, "", arguments={"max_trajectories": n})
    listed = _seeds(seeds)
    most = len(listed) if max_trajectories is None else positive("max_trajectories", max_trajectories)
    if most > len(listed):
        raise UsageError(f"max_trajectories is {most}, but there are {len(listed)} seeds")
    return Amount(most, "", listed[:most], arguments={"seeds": listed[:most]})


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise UsageError(f"seeds must be a sequence of integers, one for each trajectory, got {seeds!r:.60}")
    listed = [positive(f"seeds[{position}]", seed, least=0) for position, seed in enumerate(seeds)]
    if not listed:
        raise UsageError("seeds is empty: give at least one seed")
    _refuse_repeated("seeds", listed, [None] * len(listed))
    return listed


def _refuse_repeated(name: str, seeds: Sequence[int], options: Sequence[Mapping[str, Any] | None]) -> None:
    """Refuse equal trajectories, which intervals would count as independent."""
    first: dict[int, int] = {}
    for position, seed in enumerate(seeds):
        before = first.setdefault(seed, position)
        if before != position and same(dict(options[before] or {}), dict(options[position] or {})):
            raise UsageError(
                f"seed {seed} is repeated, in {name}[{before}] and {name}[{position}]: it starts the same trajectory "
                "again, and intervals would count both as independent. Give each trajectory a different seed"
            )


def amount_of_scenarios(scenarios: Any) -> Amount:
    """Return an amount of one trajectory per scenario.

    Raises:
        UsageError: An item is no such dict, or two scenarios have the same name.
    """
    if isinstance(scenarios, str | bytes | Mapping) or not isinstance(scenarios, Iterable):
        raise UsageError(f"scenarios must be a list of dicts, got {scenarios!r:.60}")
    listed = list(scenarios)
    if not listed:
        raise UsageError("scenarios is empty: give at least one scenario")
    for position, each in enumerate(listed):
        _check_scenario(f"scenarios[{position}]", each)
    options, seeds = [each.get("options") for each in listed], _column_of_seeds(listed)
    _refuse_repeated("scenarios", seeds or (), options)
    return Amount(
        len(listed),
        "one for each scenario",
        seeds=seeds,
        options=options if any(each is not None for each in options) else None,
        names=_column_of_names(listed),
        arguments={"scenarios": [_stored_scenario(f"scenarios[{n}]", each) for n, each in enumerate(listed)]},
    )


_UNWRITTEN = "unwritten"


def _stored_scenario(where: str, scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario as JSON values; values without JSON form become their names."""

    def by_name(value: Any, _path: str) -> dict[str, Any]:
        return {"$": _UNWRITTEN, "name": shown_name(value)}

    return {key: encode(value, f"{where}.{key}", by_name) for key, value in scenario.items() if value is not None}


def arguments_of(stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the arguments of an amount from its stored form.

    Raises:
        UsageError: The options of scenarios cannot be restored from the file.
    """

    def refuse(value: Mapping[str, Any]) -> Any:
        raise UsageError(
            f"{path} has only the name {value.get('name')!r} of an option of a scenario, not its value: give the "
            "scenarios again"
        )

    arguments = dict(stored)
    if "scenarios" in arguments:
        arguments["scenarios"] = [
            {key: decode(value, refuse) for key, value in each.items()} for each in arguments["scenarios"]
        ]
    return arguments


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
            f"scenarios[{seeds.index(None)}] has no seed, but others have one: give seeds to all scenarios, or to none"
        )
    return [positive(f"the seed of scenarios[{position}]", seed, least=0) for position, seed in enumerate(seeds)]


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
