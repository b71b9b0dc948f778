"""Run the trajectories of one agent in an evaluation, until there are enough."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.words import count
from streamsampler.data.statistics import FoundAnomaly
from streamsampler.evaluation.agents import ReturnOf, Row, SuccessMeaning, check_return_of, columns_of, row_of
from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluation import Evaluation, number, unseen
from streamsampler.evaluation.intervals import FEWEST, LEVEL, Interval, t_interval, unseen_share
from streamsampler.evaluation.journal import INTERRUPTED, JournalEntry
from streamsampler.evaluation.resuming import SavedTrajectories
from streamsampler.evaluation.rules import BettingRule, MeanRule, Rule, within
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.streaming import Stream

SHOWN_FAILURES = 3
"""Number of dropped trajectories for which an evaluation has the reason."""


class EvaluationInterruptedError(KeyboardInterrupt):
    """Ctrl-C during an evaluation or a comparison: a `KeyboardInterrupt` with the finished trajectories.

    Attributes:
        found: The `Evaluation` or the `Comparison` of the finished trajectories, the first by index. Before the second
            agent's first trajectory it is the first agent's `Evaluation`.
    """

    def __init__(self, found: Any, n_trajectories: int) -> None:
        super().__init__(
            f"interrupted after {count(n_trajectories, 'trajectory')}, in the attribute found of this exception"
        )
        self.found = found


class EvaluationCall:
    """The trajectories of one agent, as they arrive; a context manager, which stops the workers.

    Saved trajectories come first, and are not run again.

    Attributes:
        amount: The same.
        n: Number of trajectories, or the most.
        indices: Their indices, unless some raise and others replace them.
        rows: The facts of the trajectories, in index order.
        stream: The missing trajectories; None if none is missing.
        earlier: The timesteps and the number of saved trajectories.

    Raises:
        UsageError: `known` is of another run, or an argument is out of range.
    """

    def __init__(
        self,
        sampler: Sampler[Any, Any],
        amount: Amount,
        success: SuccessMeaning,
        facts: Mapping[str, Any],
        updates: Mapping[str, Any],
        return_of: ReturnOf | None,
        known: SavedTrajectories | None = None,
        entry: JournalEntry | None = None,
    ) -> None:
        self._return_of = check_return_of(return_of)
        sampler.refuse_prefetching("an evaluation")
        self.amount = amount
        self._success, self._agent, self._entry = success, facts, entry
        self._known, self._known_rows = known, [] if known is None else known.evaluation.rows
        self._left_out = sampler.stats.dropped_trajectories
        self.rows: list[Row] = []
        self.earlier = sum(row.length for row in self._known_rows), len(self._known_rows)
        self._failures: list[tuple[int, str]] = []
        self._anomalies: tuple[int, FoundAnomaly | None] = 0, None
        self._run_again = 0  # anomalies of saved trajectories that had to run again, with their block
        self._is_exhausted = False
        self._written_fingerprints: list[str] = []
        part = amount.part
        self.n, first = (amount.n, 0) if part is None else (part.trajectories, part.first_trajectory)
        self.indices = range(first, first + self.n)
        self._sampler, self._filters = sampler, sampler.filters
        self._statistics = self._filters.facts()  # of filters, which learn during the call, and are restored afterwards
        if known is not None:
            known.check(amount, self.description(), partial(sampler.seeds, sampler.agent_version + 1))
        missing = self._missing(first)
        self.stream: Stream[Any, Any] | None = None
        if missing is not None:
            self.stream = sampler.stream(
                first_trajectory=missing[0], n_trajectories=missing[1], seeds=amount.seeds,
                reset_options=amount.options, kept_before=len(self._known_rows), **updates,
            )  # fmt: skip

    def _missing(self, first: int) -> tuple[int, int] | None:
        """Return the first trajectory to run, and the number of trajectories from it on; None for none.

        Trajectories of a block influence each other, so a block runs again from its start.
        """
        rows, block = self._known_rows, self._sampler.layout.block
        next_one = first if self._known is None else self._known.next
        start = next_one // block * block
        if self.amount.is_fixed:
            return None if next_one >= first + self.n else (start, first + self.n - start)
        if len(rows) >= self.n:
            return None
        return start, self.n - sum(row.trajectory < start for row in rows)

    def seed_of(self, index: int) -> int:
        if self.amount.seeds is not None:
            return self.amount.seeds[index]
        return self._sampler.seeds(self._sampler.agent_version, [index])[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.close()
        self._sampler.restore_filters(self._filters)  # filters must not learn from an evaluation

    def take(self) -> Row | None:
        """Return the facts of the next trajectory; None after the last.

        Raises:
            UsageError: Its return is out of bounds, and no rule reports this.
        """
        is_new = len(self.rows) >= len(self._known_rows)
        row = self._sample() if is_new else self._known_rows[len(self.rows)]
        if row is None:
            return None
        if self.amount.bounds is not None and self.amount.rule is None:
            within(row.value, self.amount.bounds, "return", row.where)
        self.rows.append(row)
        if is_new:
            assert self.stream is not None
            self._anomalies = (
                self.stream.anomalies
            )  # read here, because at the end surplus trajectories would be included
            self._keep_failures()
            if self._entry is not None:
                self._write(self._entry, row)
        return row

    def _sample(self) -> Row | None:
        """Return the next trajectory that is not saved; None after the last."""
        while self.stream is not None and (trajectory := next(self.stream, None)) is not None:
            row = row_of(trajectory, self._success, self._return_of, self._sampler.policy_names)
            if not self._known_rows or row.trajectory > self._known_rows[-1].trajectory:
                return row
            self._run_again = self.stream.anomalies[0]
        self._is_exhausted = True
        return None

    def _keep_failures(self) -> None:
        """Keep the first reasons of dropped trajectories, which the sampler forgets."""
        stats = self._sampler.stats
        n = stats.dropped_trajectories - self._left_out
        if n and len(self._failures) < SHOWN_FAILURES:
            first = stats.dropped[-n:][:SHOWN_FAILURES]
            self._failures = [(it.index, f"trajectory {it.index}, {it.phase}: {it.error}") for it in first]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The first reasons of dropped trajectories."""
        self._keep_failures()
        return tuple(text for _, text in self._failures)

    def _write(self, entry: JournalEntry, row: Row) -> None:
        """Write a trajectory into the journal, with new failures, anomalies and fingerprints."""
        notes = self._notes(row.trajectory + 1) if self._failures or self._anomalies[0] else {}
        if not entry.is_begun:
            entry.begin({**self.description(), **self._notes(row.trajectory + 1)})
        elif notes:
            entry.describe(notes)
        if (known := self._sampler.fingerprints) != self._written_fingerprints:
            self._written_fingerprints = known
            entry.describe_fingerprints(self._fingerprints())
        entry.add(row, None if self.amount.names is None else self.amount.names[row.trajectory])

    def _notes(self, stop: int) -> dict[str, Any]:
        """Return failures and anomalies of trajectories before `stop`, by the attributes of an `Evaluation`."""
        known = None if self._known is None else self._known.evaluation
        new = tuple(text for index, text in self._failures if index < stop)
        n, first = self._anomalies
        before, first_before = (0, None) if known is None else (known.anomalies, known.first_anomaly)
        return {
            "failures": ((() if known is None else known.failures) + new)[:SHOWN_FAILURES],
            "anomalies": before + n - self._run_again,
            "first_anomaly": first_before if first is None or before else first.where,
        }

    def _fingerprints(self) -> list[str]:
        before = () if self._known is None else self._known.evaluation.settings.get("fingerprints", ())
        return sorted({*before, *self._sampler.fingerprints})

    def description(self) -> dict[str, Any]:
        """Return agent, environment, settings and so on, by the attributes of an `Evaluation`."""
        amount, rule = self.amount, self.amount.rule
        settings = self._sampler.provenance()
        environment, versions = settings.pop("environment"), settings.pop("versions")
        for name in ("agent_version", "order"):
            settings.pop(name, None)
        if self._return_of is not None:
            settings["return_of"] = list(self._return_of)
        if "fingerprints" in settings:
            settings["fingerprints"] = self._fingerprints()
        settings |= self._statistics
        return {
            "agent": self._agent,
            "environment": environment,
            "settings": settings,
            "versions": versions,
            "seed": self._sampler.seed if amount.seeds is None else None,
            "success_meaning": self._success,
            "guaranteed": rule.of if isinstance(rule, BettingRule) else None,
            "bounds": amount.bounds,
            "part": amount.part,
        }

    def finished(self, stopped: str) -> Evaluation:
        """Return the evaluation of the trajectories so far, with the reason for their end.

        Raises:
            UsageError: Not all saved trajectories were needed.
        """
        amount, described = self.amount, self.description()
        if self._known is not None:
            self._finish(self._known, described, stopped)
        self._keep_failures()
        rows, names = self.rows, amount.names
        stop = rows[-1].trajectory + 1 if rows and not self._has_all else self.indices.stop
        return Evaluation(
            **columns_of(rows),
            **described,
            **self._notes(stop),
            names=None if names is None else tuple(names[row.trajectory] for row in rows),
            stopped=stopped,
            left_out=stop - self.indices.start - len(rows),
            asked=amount.arguments,
        )

    @property
    def _has_all(self) -> bool:
        """Return whether all indices were run, so that the last ones may have been dropped."""
        return self.amount.is_fixed and self._is_exhausted

    def _finish(self, known: SavedTrajectories, description: dict[str, Any], stopped: str) -> None:
        """Check that the saved trajectories were needed; adopt their settings if no others were run."""
        if stopped == INTERRUPTED and len(self.rows) < len(self._known_rows):
            self.rows = list(self._known_rows)
        known.check_used(len(self.rows))
        if len(self.rows) == len(self._known_rows):
            description["settings"] = known.evaluation.settings  # no worker has reported its kernels
        else:
            known.warn_of_kernels(self._sampler.fingerprints)


def gather(gathering: EvaluationCall, progress: ProgressArgument, whose: str = "") -> str:
    """Run trajectories until there are enough; return the reason."""
    amount, rows = gathering.amount, gathering.rows
    complete = False

    def note() -> str:
        return ": ".join(filter(None, (whose, _note(gathering))))

    with display(progress, gathering.n, "trajectories", earlier=gathering.earlier, note=note) as shown:
        if progress and gathering.stream is not None:
            earlier = gathering.earlier[0]

            def watch(timesteps: int, _: int) -> None:
                n_timesteps = max(earlier + timesteps, sum(row.length for row in rows))
                shown.update(lambda: (n_timesteps, len(rows)), complete=False)

            gathering.stream.watch(watch, shown.interval)
        while (row := gathering.take()) is not None:
            if amount.rule is not None:
                if amount.rule.add(row):
                    complete = True
                    break
                shown.expect(amount.rule.expected(amount.n))
        if amount.rule is not None:
            shown.expect(len(rows))
        shown.update(lambda: (sum(row.length for row in rows), len(rows)), complete=True)
    return _reason(gathering, complete=complete)


def _note(gathering: EvaluationCall) -> str:
    """Return the current width of an interval, in words."""
    rule, rows = gathering.amount.rule, gathering.rows
    if rule is not None:
        return "" if rule.interval is None else f"{_shown(rule.what, rule.interval)}, to ± {rule.halfwidth:.3g}"
    if len(rows) < FEWEST:
        return ""
    interval = t_interval(np.array([row.value for row in rows]))
    return _shown("mean return", interval) if interval.halfwidth > 0 else f"return {interval.low:.4g}, all equal"


def _shown(what: str, interval: Interval) -> str:
    centre = (interval.low + interval.high) / 2
    # In few words: a terminal of 80 columns leaves little room.
    return f"{what.removeprefix('mean ').removesuffix(' rate')} {centre:.4g} ± {interval.halfwidth:.3g}"


def _reason(gathering: EvaluationCall, *, complete: bool) -> str:
    asked, rule, n = gathering.amount.asked, gathering.amount.rule, len(gathering.rows)
    if rule is None:
        return asked if n == gathering.n else f"{asked}; some raised and were dropped"
    most = "" if complete else f"there were {count(n, 'trajectory')}, the most; "
    reported = rule.reported if n else None
    if isinstance(reported, Interval):
        width = number(reported.halfwidth)
        if complete:
            return f"the half-width of the {rule.what}'s interval, {width}, is at most {number(rule.halfwidth)}"
        return f"{most}the half-width of the {rule.what}'s interval is {width}, not {number(rule.halfwidth)}"
    return most + _why_no_interval(rule, n, "" if reported is None else reported.why)


def _why_no_interval(rule: Rule, n: int, why: str) -> str:
    if isinstance(rule, MeanRule) and rule.all_equal and n:
        shown = unseen(unseen_share(n), "trajectories", LEVEL)
        return f"all returns are equal, and {shown}; with bounds (least, largest) of returns their mean has an interval"
    return f"no interval of the {rule.what} holds{why and f': {why}'}"
