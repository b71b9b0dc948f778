"""Compare agents on the same seeds: so many pairs, or until it is sure which agent is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.seeding import check_seed
from streamsampler.core.words import count
from streamsampler.evaluation.agents import ReturnOf, Row, SuccessMeaning, agent_facts, has_predict
from streamsampler.evaluation.comparison import Comparison, PairTest, check_alpha, make_test
from streamsampler.evaluation.evaluate import (
    INTERRUPTED,
    EvaluationInterruptedError,
    Gathering,
    gather,
    in_part,
    opened_sampler,
)
from streamsampler.evaluation.evaluation import Evaluation, number
from streamsampler.evaluation.rules import (
    FLOORS,
    Amount,
    Bounds,
    PrecisionOf,
    amount_of,
    at_most,
    check_successes,
    refuse_amounts,
    refuse_useless,
)
from streamsampler.protocol.plans import PartArgument
from streamsampler.samplers.per_worker import Envs
from streamsampler.workers.factory import usable_cores


def compare(
    agents: Mapping[str, Any] | Sequence[Any],
    env: Envs,
    *,
    num_trajectories: int | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_decided: float | None = None,
    decide_on: PrecisionOf = "return",
    bounds: Bounds | None = None,
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Comparison:
    """Compare agents on the same seeds, and return their differences, pair by pair, with intervals.

    Give one of `num_trajectories`, `seeds`, `scenarios` and `until_decided`; the last one may go through `seeds`. The
    result is the same for any number of workers.

    Args:
        agents: Two agents or more, by name or in a list; what `streamsampler.evaluate` takes. Each is compared with the
            first one.
        env: See `streamsampler.evaluate`, as for all arguments that are not named here.
        num_trajectories: Exactly so many of each agent.
        seeds: One trajectory of each agent from each of these seeds.
        scenarios: One trajectory of each agent for each of these.
        until_decided: Go on, in index order, until a test is sure which agent is better. The number is how often equal
            agents may be told apart, such as 0.05; with more than two agents each comparison gets its part of it. The
            test holds although it decides when to stop.
        decide_on: What the test is about: the mean "return", which needs `bounds`, or the rate of "success".
        bounds: The least and the largest return that there can be.
        max_trajectories: The most of each agent; 10,000 by default, or as many as there are `seeds`. The comparison
            then says that nothing was decided.
        part: See `streamsampler.evaluate`; the same part for all agents.
        success: See `streamsampler.evaluate`.
        return_of: See `streamsampler.evaluate`. Each of `agents` is a dict of agents by policy name then: with policies
            swapped among agents, the same seeds show what that changes.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`; for all agents.
        progress: See `streamsampler.evaluate`.
        options: All other arguments of `streamsampler.MultiprocessingSampler`. Where a test decides, agents run at the
            same time and share `n_workers`.

    Returns:
        The comparison, which can be printed.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        EvaluationInterruptedError: Ctrl-C; has the comparison so far, if all of two agents have trajectories. (A
            KeyboardInterrupt.)
        RolloutError: User code raised in a worker. For other errors see `streamsampler.evaluate`.
    """
    named = _named(agents)
    if success not in ("end", "once"):
        raise UsageError(f'success must be "end" or "once", got {success!r}')
    if decide_on not in FLOORS:
        raise UsageError(f'decide_on must be "return" or "success", got {decide_on!r}')
    given, options = options, {**options, "seed": check_seed(options.get("seed"))}
    if "sampler" in options:
        raise UsageError("compare makes samplers of its own, one for each agent: leave out sampler")
    how = {"deterministic": deterministic, "vec_normalize": vec_normalize}
    if until_decided is None:
        refuse_useless({"bounds": bounds, "max_trajectories": max_trajectories}, "until_decided")
        amount = amount_of(num_trajectories=num_trajectories, seeds=seeds, scenarios=scenarios)
        amount = in_part(amount, part, None, given, *named.values(), env)
        return _one_after_the_other(
            named, env, amount, meaning=(success, return_of), progress=progress, options=options, how=how
        )
    refuse_amounts("until_decided", num_trajectories, scenarios)
    if part is not None:
        raise UsageError(
            "a part is one of num_trajectories, seeds or scenarios: when until_decided is sure is known only when all "
            "pairs before are there"
        )
    alpha = check_alpha(until_decided)
    tests = [make_test(alpha / (len(named) - 1), decide_on, bounds) for _ in range(len(named) - 1)]
    amount = at_most(seeds, max_trajectories)
    with ExitStack() as stack:
        race = _Race(tests, decide_on)
        for agent in named.values():
            opened = opened_sampler(agent, env, None, _shared(options, len(named)), **how)
            sampler, taken, updates = stack.enter_context(opened)
            gathering = stack.enter_context(Gathering(sampler, amount, success, updates, return_of))
            race.add(gathering, agent_facts(taken))
        return race.run(tuple(named), alpha, bounds, progress)


def _named(agents: Any) -> dict[str, Any]:
    """Return agents by name.

    Raises:
        UsageError: They are something else, fewer than two, or two of one name.
    """
    if isinstance(agents, Mapping):
        named = {str(name): agent for name, agent in agents.items()}
    elif isinstance(agents, Sequence) and not isinstance(agents, str | bytes):
        named = {}
        for agent in agents:
            name = _name_of(agent)
            named[name if name not in named else f"{name} #{len(named) + 1}"] = agent
    else:
        raise UsageError(f"agents must be a dict by name, or a list, got {agents!r:.60}")
    if len(named) < 2:
        raise UsageError(f"a comparison needs at least two agents, got {len(named)}")
    return named


def _name_of(agent: Any) -> str:
    if isinstance(agent, str | PathLike):
        return Path(fspath(agent)).name
    if has_predict(agent):
        return type(agent).__name__
    return str(agent_facts(agent)["name"]) if callable(agent) or hasattr(agent, "get_action") else type(agent).__name__


def _shared(options: Mapping[str, Any], n_agents: int) -> dict[str, Any]:
    """Return the options of one of several samplers that run at the same time."""
    n_workers = options.get("n_workers")
    n_workers = usable_cores() if n_workers is None else positive("n_workers", n_workers, least=0)
    return {**options, "n_workers": max(min(1, n_workers), n_workers // n_agents)}


def _one_after_the_other(
    named: Mapping[str, Any],
    env: Any,
    amount: Amount,
    meaning: tuple[SuccessMeaning, ReturnOf | None],
    progress: ProgressArgument,
    options: Mapping[str, Any],
    how: Mapping[str, Any],
) -> Comparison:
    evaluations: list[Evaluation] = []
    for name, agent in named.items():
        with ExitStack() as stack:
            sampler, given, updates = stack.enter_context(opened_sampler(agent, env, None, options, **how))
            gathering = stack.enter_context(Gathering(sampler, amount, meaning[0], updates, meaning[1]))
            try:
                stopped = gather(gathering, progress, name)
            except KeyboardInterrupt as interrupt:
                if not (evaluations and gathering.rows):
                    raise
                evaluations.append(gathering.finished(agent_facts(given), INTERRUPTED))
                names = tuple(named)[: len(evaluations)]
                found = Comparison(names=names, evaluations=tuple(evaluations), stopped=INTERRUPTED)
                raise EvaluationInterruptedError(found, len(gathering.rows)) from interrupt
            evaluations.append(gathering.finished(agent_facts(given), stopped))
    return Comparison(names=tuple(named), evaluations=tuple(evaluations), stopped=amount.asked)


class _Race:
    """Agents that run side by side on the same seeds, until each was told from the first one.

    Args:
        tests: One for each agent but the first.
        decide_on: What the tests are about.
    """

    def __init__(self, tests: Sequence[PairTest], decide_on: PrecisionOf) -> None:
        self._tests = tests
        self._decide_on = decide_on
        self._gatherings: list[Gathering] = []
        self._facts: list[Mapping[str, Any]] = []

    def add(self, gathering: Gathering, facts: Mapping[str, Any]) -> None:
        """Add an agent's trajectories, and what is known of the agent."""
        self._gatherings.append(gathering)
        self._facts.append(facts)

    def run(
        self, names: tuple[str, ...], alpha: float, bounds: Bounds | None, progress: ProgressArgument
    ) -> Comparison:
        """Take trajectories until all tests are sure, or there are no more."""
        rows = self._gatherings[0].rows
        try:
            decided = self._race(progress)
        except KeyboardInterrupt as interrupt:
            if not all(gathering.rows for gathering in self._gatherings):
                raise
            found = self._found(names, alpha, bounds, INTERRUPTED)
            raise EvaluationInterruptedError(found, len(rows)) from interrupt
        stopped = "decided" if decided else f"not decided after {count(len(rows), 'trajectory')}, the most"
        return self._found(names, alpha, bounds, stopped)

    def _race(self, progress: ProgressArgument) -> bool:
        """Take trajectories; return whether all tests are sure."""
        first = self._gatherings[0]
        open_tests = list(range(len(self._tests)))
        with display(progress, first.amount.n, "trajectories", note=lambda: self._note(open_tests)) as shown:

            def so_far() -> tuple[int, int]:
                return sum(row.length for row in first.rows), len(first.rows)

            while open_tests and (rows := self._next_pair([0, *(test + 1 for test in open_tests)])) is not None:
                for test in list(open_tests):
                    self._tests[test].add(*(self._measure(rows[agent]) for agent in (0, test + 1)))
                    if self._tests[test].verdict is not None:
                        open_tests.remove(test)
                shown.update(so_far, complete=False)
            shown.update(so_far, complete=True)
        return not open_tests

    def _found(self, names: tuple[str, ...], alpha: float, bounds: Bounds | None, stopped: str) -> Comparison:
        evaluations = [
            gathering.finished(facts, stopped) for gathering, facts in zip(self._gatherings, self._facts, strict=True)
        ]
        return Comparison(
            names=names,
            evaluations=tuple(evaluations),
            stopped=stopped,
            until_decided=alpha,
            decide_on=self._decide_on,
            bounds=None if bounds is None else (float(bounds[0]), float(bounds[1])),
        )

    def _next_pair(self, agents: list[int]) -> dict[int, Row] | None:
        """Return the next trajectory that no agent has left out, by agent; None where one has no more."""
        rows: dict[int, Row] = {}
        while True:
            target = max((row.trajectory for row in rows.values()), default=-1)
            for agent in agents:
                while agent not in rows or rows[agent].trajectory < target:
                    row = self._gatherings[agent].take()
                    if row is None:
                        return None
                    rows[agent] = row
            if len({row.trajectory for row in rows.values()}) == 1:
                return rows

    def _measure(self, row: Row) -> float:
        if self._decide_on == "return":
            return row.value
        first = self._gatherings[0].rows
        if all(each.success is None for each in first):
            check_successes(len(first))
        return float(bool(row.success))

    def _note(self, open_tests: Sequence[int]) -> str:
        intervals = [self._tests[test].interval for test in open_tests]
        shown = [f"[{number(each.low)}, {number(each.high)}]" for each in intervals if each is not None]
        return f"differences {', '.join(shown)}" if shown else f"{len(open_tests)} not decided"
