"""What an evaluation found: returns, and numbers with the interval that holds for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamsampler.errors import DataError
from streamsampler.evaluation.betting import BettingSequence
from streamsampler.evaluation.files import arguments_of, facts_of
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.intervals import (
    FEWEST,
    Interval,
    Unknown,
    bootstrap_intervals,
    interquartile_mean,
    mean_interval,
    wilson_interval,
)
from streamsampler.evaluation.printing import table_of
from streamsampler.evaluation.rows import SuccessMeaning
from streamsampler.scheduling.parts import Part

__all__ = ["Evaluated", "Evaluation"]

_TOO_FEW = Unknown(f"fewer than {FEWEST} trajectories")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One trajectory of an evaluation.

    Attributes:
        trajectory: Its index.
        seed: Its seed: `env.reset(seed=seed)` starts it.
        name: The name of its scenario; None where it has none.
        value: Its return: the sum of its rewards, not discounted.
        length: Its timesteps.
        end: "terminated", "truncated" by the environment, or "cut" by `max_episode_length`.
        success: Whether it succeeded; None where that is not known.
    """

    trajectory: int
    seed: int
    name: str | None
    value: float
    length: int
    end: str
    success: bool | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation(Found):
    """What `streamsampler.evaluate` found: N trajectories in index order, and statistics of their returns.

    `print(evaluation)` shows each number with its 95 % interval and the interval's method. Iteration gives an
    `Evaluated` for each trajectory, `evaluation["name"]` that of a scenario. It holds no times, paths, hosts or
    numbers of workers: two evaluations of the same trajectories are equal, and so are their files.

    Attributes:
        returns: (N,) float64: the sum of each trajectory's rewards, not discounted.
        lengths: (N,) int64.
        terminated: (N,) bool.
        truncated: (N,) bool: by the environment or by `max_episode_length`.
        successes: (N,) bool: whether each succeeded; None where no info says.
        indices: (N,) int64: trajectory indices.
        seeds: N Python ints: `env.reset(seed=evaluation.seeds[i])` starts the i-th trajectory.
        names: The names of N scenarios; None where there are none.
        agent: What is known of the agent: its "name", a digest of its "parameters", and whether it is "deterministic".
        environment: The environment's name.
        settings: What else decides about trajectories, such as `max_episode_length`.
        versions: The versions of Python and of libraries, by name.
        seed: The sampler's seed; None where all seeds were given.
        success_meaning: When a trajectory succeeds: "end" or "once".
        stopped: Why there are no more trajectories.
        guaranteed: What the interval that holds whenever one stops is of, "return" or "success"; None for nothing.
        bounds: The bounds of returns that it relies on, if it is of returns.
        left_out: How many trajectories were left out (`on_failure="drop"`, or `drop_if`).
        part: Which part of an evaluation this is; None where it is no part. `streamsampler.merge` joins parts.

    Raises:
        DataError: Columns that are not of one length, or no trajectories.
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
    part: Part | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self._columns().items() if column is not None}
        if len(set(sizes.values())) != 1 or not len(self.returns):
            raise DataError(f"an evaluation has at least one trajectory, and columns of one length; these are {sizes}")
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
            yield Evaluated(index, self.seeds[i], name, value, length, ends[i], success)

    def __getitem__(self, name: str) -> Evaluated:
        """Return the trajectory of a scenario, by its name.

        Raises:
            KeyError: There is no scenario of that name, or it was left out.
        """
        for each in self:
            if each.name is not None and each.name == name:
                return each
        raise KeyError(name)

    def __str__(self) -> str:
        return table_of(self)

    def __repr__(self) -> str:
        return f"Evaluation({len(self)} trajectories, mean return {self.mean:.5g})"

    # --- Returns

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
        return mean_interval(self.returns)

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of returns, with N - 1; NaN for one trajectory."""
        with np.errstate(invalid="ignore"):  # where a return is infinite, it is NaN
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
        return bootstrap_intervals(self.returns)

    @property
    def minimum(self) -> float:
        """The smallest return."""
        return float(self.returns.min())

    @property
    def maximum(self) -> float:
        """The largest return."""
        return float(self.returns.max())

    # --- Successes and ends

    @property
    def success_rate(self) -> float | None:
        """The share of trajectories that succeeded; None where no info says."""
        return None if self.successes is None else float(self.successes.mean())

    @cached_property
    def success_interval(self) -> Interval | Unknown | None:
        """The interval of the success rate; None where there is none."""
        if self.successes is None:
            return None
        if self.guaranteed == "success":
            return _betting(self.successes.astype(float).tolist(), 0.0, 1.0)
        return _TOO_FEW if len(self) < FEWEST else wilson_interval(int(self.successes.sum()), len(self))

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

    # --- Files

    def facts(self) -> dict[str, Any]:
        """Return what it holds as JSON has it; see `Found`."""
        return facts_of(self)

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Evaluation:
        """Return the evaluation that has these facts; see `Found`."""
        return cls(**arguments_of(facts))


def _betting(values: Sequence[float], low: float, high: float) -> Interval:
    betting = BettingSequence(low, high)
    for value in values:
        betting.add(value)
    return betting.interval
