"""The result of an evaluation: returns, and statistics with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.data.codec import decode, encode
from streamsampler.evaluation.agents import Row, SuccessMeaning
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.intervals import (
    LEVEL,
    Interval,
    Unknown,
    counted,
    interquartile_mean,
    mean_interval,
    middle_intervals,
    proportion_interval,
    rounding_of,
    unseen_share,
)
from streamsampler.evaluation.journal import JournalContents
from streamsampler.evaluation.rules import BettingSequence, within
from streamsampler.protocol.evaluation_parts import Part, part_of_facts

# Times, paths, hosts and numbers of workers are absent from the JSON, so that the same evaluation gives the same bytes.
# The summary is for other readers: it is computed from the trajectories, and never read back.


_COLUMNS = {"returns": np.float64, "lengths": np.int64, "indices": np.int64}
_FLAGS = ("terminated", "truncated", "successes")
_FACTS = ("agent", "environment", "settings", "versions", "seed", "success_meaning", "stopped", "guaranteed")


_STATISTICS = (
    "mean", "mean_interval", "standard_deviation", "standard_error", "median", "median_interval", "interquartile_mean",
    "interquartile_mean_interval", "minimum", "maximum", "unseen_share", "success_rate", "success_interval",
)  # fmt: skip


def _encoded(value: Any, path: str) -> Any:
    """Encode floats that are not finite, in JSON values."""
    if isinstance(value, dict):
        return {key: _encoded(item, f"{path}.{key}") for key, item in value.items()}
    return encode(value, path)


def plain(value: Any) -> Any:
    """Return a number, an interval or the reason for its absence as JSON values; a mapping as a dict."""
    if isinstance(value, Unknown):
        return {"none": value.why}
    if isinstance(value, Interval):
        return asdict(value)
    return dict(value) if hasattr(value, "keys") else value


def _all_of(kind: type, values: Any, name: str) -> list[Any]:
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise TypeError(f"{name} should be a list of {kind.__name__}")
    return values


Line = tuple[str, str, Interval | Unknown | None]
"""Name, value and interval of a number."""

_NAMES = ("standard_deviation", "standard_error", "median", "interquartile_mean", "minimum", "maximum")
_ROWS = {"mean return": "mean", **{name.replace("_", " "): name for name in _NAMES}}
_SEEDS_SHOWN = 6
_MEANINGS = {"end": "at the end", "once": "at any timestep"}


def aligned(lines: Sequence[Line]) -> list[str]:
    """Return lines as text, in columns."""
    names, numbers = max(len(line[0]) for line in lines), max(len(line[1]) for line in lines)
    return [f"  {name:{names}}  {shown:>{numbers}}{_interval(interval)}".rstrip() for name, shown, interval in lines]


def number(value: float) -> str:
    """Return a number with a readable number of digits."""
    return f"{value:,.5g}" if abs(value) < 100_000 else f"{value:,.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def unseen(share: float, what: str, level: float) -> str:
    """Return in words how many may differ from the observed ones, which are all equal."""
    return f"with {100 * level:.4g} % confidence at most {percent(share)} of {what} have another one"


def in_brackets(interval: Interval | Unknown) -> str:
    """Return an interval, or the reason for its absence, in few words after a number."""
    if isinstance(interval, Unknown):
        return f", no interval: {interval.why}"
    return f", {100 * interval.level:.4g} % [{number(interval.low)}, {number(interval.high)}]"


def _interval(interval: Interval | Unknown | None) -> str:
    if interval is None:
        return ""
    if isinstance(interval, Unknown):
        return f"  no interval holds: {interval.why}"
    return f"  {100 * interval.level:.4g} % [{number(interval.low)}, {number(interval.high)}]  {interval.method}"


def shown_environment(environment: Any) -> str:
    """Return the names of environments as text."""
    return environment if isinstance(environment, str) else ", ".join(map(str, environment))


def warned(evaluation: Evaluation) -> list[str]:
    """Return the warnings that belong to the result."""
    notes = []
    if evaluation.left_out:
        more = ["…"] if evaluation.failures and evaluation.left_out > len(evaluation.failures) else []
        reasons = "".join(f"\n    {reason}" for reason in [*evaluation.failures, *more])
        notes.append(
            f"{count(evaluation.left_out, 'trajectory')} raised and {'is' if evaluation.left_out == 1 else 'are'} left "
            f"out; if failures depend on the state, the result is biased{reasons}"
        )
    if evaluation.anomalies:
        notes.append(f"{count(evaluation.anomalies, 'anomaly')} in the data, the first: {evaluation.first_anomaly}")
    if not isinstance(evaluation.environment, str):
        notes.append("the mean is over different environments")
    if len(prints := evaluation.settings.get("fingerprints", ())) > 1:
        notes.append(f"workers computed with different kernels: {', '.join(map(str, prints))}")
    return notes


def _notes(evaluation: Evaluation) -> list[str]:
    notes = warned(evaluation)
    if evaluation.unseen_share is not None and len(evaluation) > 1:
        notes.append(f"all returns are equal; {unseen(evaluation.unseen_share, 'trajectories', LEVEL)}")
    if evaluation.guaranteed is not None:
        what = "mean return" if evaluation.guaranteed == "return" else "success rate"
        notes.append(f"the interval of the {what} is valid although it decided when to stop")
    return notes


def shown_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text: a range, or the first seeds and their number."""
    n = len(seeds)
    if n > 1 and all(seed == seeds[0] + position for position, seed in enumerate(seeds)):
        return f"{seeds[0]} to {seeds[-1]}"
    if n <= _SEEDS_SHOWN:
        return ", ".join(map(str, seeds))
    return f"{', '.join(map(str, seeds[: _SEEDS_SHOWN - 1]))}, …, {seeds[-1]} ({n:,})"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One trajectory of an evaluation.

    Attributes:
        trajectory: Its index.
        seed: Its seed: `env.reset(seed=seed)` starts it.
        name: The name of its scenario, or None.
        value: Its return: the undiscounted sum of its rewards.
        length: Its timesteps.
        end: "terminated", "truncated" by the environment, or "cut" by `max_episode_length`.
        success: Whether it succeeded; None if unknown.
    """

    trajectory: int
    seed: int
    name: str | None
    value: float
    length: int
    end: str
    success: bool | None


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation(Found):
    """The result of `streamsampler.evaluate`: N trajectories in index order, and statistics of their returns.

    `print(evaluation)` shows each number with its 95 % interval and the interval's method. Iteration yields an
    `Evaluated` for each trajectory, `evaluation["name"]` is that of a scenario. Times, paths, hosts and numbers of
    workers are absent: two evaluations of the same amount of the same trajectories are equal, and so are their files.

    Attributes:
        returns: (N,) float64: the undiscounted sum of each trajectory's rewards.
        lengths: (N,) int64.
        terminated: (N,) bool.
        truncated: (N,) bool: by the environment or by `max_episode_length`.
        successes: (N,) bool: whether each succeeded; None without success flags.
        indices: (N,) int64: trajectory indices.
        seeds: N Python ints: `env.reset(seed=evaluation.seeds[i])` starts the i-th trajectory.
        names: The names of N scenarios, or None.
        agent: The agent's "name", a digest of its "parameters", and whether it is "deterministic".
        environment: The environment's name.
        settings: Further settings that decide about trajectories, such as `max_episode_length`.
        versions: The versions of Python and of libraries, by name.
        seed: The sampler's seed; None if all seeds were given.
        success_meaning: The meaning of success: "end" or "once".
        stopped: Reason for the end of the trajectories.
        guaranteed: The quantity with an always valid interval, "return" or "success"; None for none.
        bounds: The least and the largest possible return for intervals; None if unknown.
        left_out: Number of dropped trajectories (`on_failure="drop"`, or `drop_if`).
        failures: The first few reasons of dropped trajectories that raised, with their indices.
        anomalies: Number of observations that are NaN or outside their space, and of rewards that are NaN; see
            `streamsampler.Sampler`, `check`.
        first_anomaly: The first of them, by trajectory index and timestep, in words; None for none.
        part: The part of an evaluation; None for a whole evaluation. `streamsampler.merge` joins parts.
        asked: The request, which `resume` completes: arguments of `streamsampler.evaluate` or `compare`, such as
            `n_trajectories` or `seeds`, as JSON values. None if unknown.

    Raises:
        DataError: Columns differ in length, or are empty.
        UsageError: A return is out of bounds.
    """

    KIND: ClassVar[str] = "evaluation"

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    successes: NDArray[np.bool_] | None
    indices: NDArray[np.int64]
    seeds: tuple[int, ...]
    names: tuple[str, ...] | None
    agent: Mapping[str, Any]
    environment: Any
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    seed: int | None
    success_meaning: SuccessMeaning
    stopped: str
    guaranteed: str | None = None
    bounds: tuple[float, float] | None = None
    left_out: int = 0
    failures: tuple[str, ...] = ()
    anomalies: int = 0
    first_anomaly: str | None = None
    part: Part | None = None
    asked: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self._columns().items() if column is not None}
        if len(set(sizes.values())) != 1 or not len(self.returns):
            raise DataError(f"an evaluation needs at least one trajectory, and columns of equal length; got {sizes}")
        if self.bounds is not None:
            for value in (self.minimum, self.maximum):
                within(value, self.bounds, "return")
        for column in self._columns().values():
            if isinstance(column, np.ndarray):
                column.flags.writeable = False

    def _columns(self) -> dict[str, Any]:
        names = "returns lengths terminated truncated successes indices seeds names"
        return {name: getattr(self, name) for name in names.split()}

    def __len__(self) -> int:
        return len(self.returns)

    def __iter__(self) -> Iterator[Evaluated]:
        ends = self.ends
        for i, (index, value, length) in enumerate(
            zip(self.indices.tolist(), self.returns.tolist(), self.lengths.tolist(), strict=True)
        ):
            name = None if self.names is None else self.names[i]
            success = None if self.successes is None else bool(self.successes[i])
            yield Evaluated(index, self.seeds[i], name, value=value, length=length, end=ends[i], success=success)

    def __getitem__(self, name: str) -> Evaluated:
        """Return the trajectory of a scenario by its name.

        Raises:
            KeyError: No scenario has this name, or its trajectory was dropped.
        """
        for each in self:
            if each.name is not None and each.name == name:
                return each
        names = "this evaluation has none" if self.names is None else f"there are {', '.join(self.names[:5])}"
        names += ", …" if self.names is not None and len(self.names) > 5 else ""
        raise KeyError(
            f"{name!r}: the keys are the names of scenarios, and {names}; evaluation.returns[i] is the i-th return, "
            "list(evaluation)[i] the i-th trajectory"
        )

    def __str__(self) -> str:
        n, shares = len(self), self.shares
        lines: list[Line] = [
            (name, number(getattr(self, attribute)), getattr(self, f"{attribute}_interval", None))
            for name, attribute in _ROWS.items()
        ]
        if self.success_rate is not None:
            name = f"success rate ({_MEANINGS[self.success_meaning]})"
            lines.append((name, number(self.success_rate), self.success_interval))
        lines.append(("mean length", number(float(self.lengths.mean())), None))
        lines += [(end, percent(share), None) for end, share in shares.items()]
        part = "" if self.part is None else f", {self.part}"
        if (return_of := self.settings.get("return_of")) is not None:
            part += f", return of {' and '.join(return_of)}"
        texts = [f"{self.agent.get('name')} in {shown_environment(self.environment)}: {count(n, 'trajectory')}{part}"]
        texts += aligned(lines)
        texts += [f"note: {note}" for note in _notes(self)]
        origin = "" if self.seed is None else f", of the sampler's seed {self.seed}"
        texts.append(f"seeds: {shown_seeds(self.seeds)}{origin}")
        texts.append(f"stopped: {self.stopped}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        mean = f"mean return {number(self.mean)}{in_brackets(self.mean_interval)}"
        return f"Evaluation({count(len(self), 'trajectory')}, {mean})"

    @property
    def rows(self) -> list[Row]:
        """The recorded facts of the trajectories, in index order."""
        successes = [None] * len(self) if self.successes is None else self.successes.tolist()
        columns = (self.indices, self.returns, self.lengths, self.terminated, self.truncated)
        each = zip(self.seeds, successes, *(column.tolist() for column in columns), strict=True)
        return [
            Row(index, seed, value, length, terminated=terminated, truncated=truncated, success=success)
            for seed, success, index, value, length, terminated, truncated in each
        ]

    @property
    def evaluations(self) -> tuple[Evaluation]:
        """This evaluation alone, like those of a comparison's agents."""
        return (self,)

    def by_position(self) -> dict[int, Evaluation]:
        """Return this evaluation alone."""
        return {0: self}

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @cached_property
    def mean_interval(self) -> Interval | Unknown:
        """The interval of the mean return."""
        if self.guaranteed == "return":
            assert self.bounds is not None
            return _betting(self.returns.tolist(), *self.bounds)
        return mean_interval(self.returns, bounds=self.bounds)

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of returns, with N - 1; NaN for one trajectory."""
        with np.errstate(invalid="ignore"):  # NaN if a return is infinite
            return float(self.returns.std(ddof=1)) if len(self) > 1 else float("nan")

    @property
    def standard_error(self) -> float:
        """The standard error of the mean return: the standard deviation divided by the root of N."""
        return self.standard_deviation / float(np.sqrt(len(self)))

    @property
    def median(self) -> float:
        """The median return."""
        return float(np.median(self.returns))

    @property
    def median_interval(self) -> Interval | Unknown:
        """The interval of the median return."""
        return self._bootstrapped["median"]

    @property
    def interquartile_mean(self) -> float:
        """The mean return without the lowest and the highest quarter."""
        return interquartile_mean(self.returns)

    @property
    def interquartile_mean_interval(self) -> Interval | Unknown:
        """The interval of the interquartile mean."""
        return self._bootstrapped["iqm"]

    @cached_property
    def _bootstrapped(self) -> dict[str, Interval | Unknown]:
        return middle_intervals(self.returns, bounds=self.bounds)

    @property
    def minimum(self) -> float:
        """The smallest return."""
        return float(self.returns.min())

    @property
    def maximum(self) -> float:
        """The largest return."""
        return float(self.returns.max())

    @property
    def unseen_share(self) -> float | None:
        """The largest share of trajectories that may have another return, if all are equal; None if they differ.

        With a confidence of 95 %: 299 equal returns show that it is at most 1 %.
        """
        is_one = np.isfinite(self.returns).all() and len(counted(self.returns, rounding_of(self.returns))[0]) == 1
        return unseen_share(len(self)) if is_one else None

    @property
    def success_rate(self) -> float | None:
        """The share of trajectories that succeeded; None without success flags."""
        return None if self.successes is None else float(self.successes.mean())

    @cached_property
    def success_interval(self) -> Interval | None:
        """The interval of the success rate; None without a rate."""
        if self.successes is None:
            return None
        if self.guaranteed == "success":
            return _betting(self.successes.astype(float).tolist(), 0.0, 1.0)
        return proportion_interval(int(self.successes.sum()), len(self))

    @property
    def ends(self) -> tuple[str, ...]:
        """N words: "terminated", "truncated" by the environment alone, or "cut" by `max_episode_length`."""
        limit = self.settings.get("max_episode_length")
        return tuple(
            "terminated" if terminated else "cut" if length == limit else "truncated"
            for terminated, length in zip(self.terminated.tolist(), self.lengths.tolist(), strict=True)
        )

    @property
    def shares(self) -> dict[str, float]:
        """The shares of trajectories that were terminated, truncated and cut, which add up to 1; see `ends`."""
        ends = self.ends
        return {end: ends.count(end) / len(ends) for end in ("terminated", "truncated", "cut")}

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values; see `Found`."""
        summary = {
            "n_trajectories": len(self),
            **{name: plain(getattr(self, name)) for name in _STATISTICS},
            "mean_length": float(self.lengths.mean()),
            "shares": self.shares,
        }
        flags = {name: None if (column := getattr(self, name)) is None else column.tolist() for name in _FLAGS}
        return {
            **{name: plain(getattr(self, name)) for name in _FACTS},
            "bounds": None if self.bounds is None else list(self.bounds),
            "left_out": self.left_out,
            **({"failures": list(self.failures)} if self.failures else {}),
            **({"anomalies": {"count": self.anomalies, "first": self.first_anomaly}} if self.anomalies else {}),
            **({} if self.part is None else {"part": self.part.facts()}),
            **({} if self.asked is None else {"asked": dict(self.asked)}),
            "summary": _encoded(summary, "summary"),
            "names": None if self.names is None else list(self.names),
            "seeds": list(self.seeds),
            **{name: encode(getattr(self, name).tolist(), name) for name in _COLUMNS},
            **flags,
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Evaluation:
        """Return the evaluation with these contents; see `Found`."""
        arguments = {name: facts[name] for name in (*_FACTS, "left_out")}
        arguments["part"] = part_of_facts(facts.get("part"))
        arguments["asked"] = facts.get("asked")
        arguments["failures"] = tuple(_all_of(str, facts.get("failures", []), "failures"))
        if (anomalies := facts.get("anomalies")) is not None:
            arguments |= {"anomalies": int(anomalies["count"]), "first_anomaly": str(anomalies["first"])}
        objects = {name: facts[name] for name in ("agent", "settings", "versions")}
        objects |= {"asked": facts["asked"]} if facts.get("asked") is not None else {}
        for name, value in objects.items():
            if not isinstance(value, dict):
                raise TypeError(f"{name} is no object")
        for name, dtype in _COLUMNS.items():
            arguments[name] = np.array(decode(facts[name]), dtype)
        for name in _FLAGS:
            flags = _all_of(bool, facts[name], name) if name != "successes" or facts[name] is not None else None
            arguments[name] = None if flags is None else np.array(flags, np.bool_)
        names, bounds = facts["names"], facts["bounds"]
        arguments["seeds"] = tuple(_all_of(int, facts["seeds"], "seeds"))
        arguments["names"] = None if names is None else tuple(_all_of(str, names, "names"))
        arguments["bounds"] = None if bounds is None else (float(bounds[0]), float(bounds[1]))
        return cls(**arguments)

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the trajectories of a journal as JSON values; see `Found`."""
        if 0 not in journal.evaluations:
            raise ValueError("no trajectory was finished")
        return journal.evaluations[0]


def _betting(values: Sequence[float], low: float, high: float) -> Interval:
    betting = BettingSequence(low, high)
    for value in values:
        betting.add(value)
    return betting.interval
