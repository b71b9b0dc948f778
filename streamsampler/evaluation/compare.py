"""Compare agents on the same seeds: a fixed number of pairs, or until a test decides which agent is better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from os import PathLike
from typing import Any, Self, TypeVar, cast, overload

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.core.seeding import check_seed
from streamsampler.core.words import count
from streamsampler.evaluation.agent_errors import naming_agent
from streamsampler.evaluation.agents import ReturnOf, Row, SuccessMeaning, check_return_of
from streamsampler.evaluation.amounts import Amount, HowMany, amount_of, at_most, refuse_amounts, refuse_useless
from streamsampler.evaluation.compare_saved import are_saved, compare_saved
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation, number
from streamsampler.evaluation.evaluation_call import EvaluationCall, EvaluationInterruptedError, gather
from streamsampler.evaluation.gate import checked_margin
from streamsampler.evaluation.intervals import Bounds
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.named_agents import named_agents
from streamsampler.evaluation.opening import in_part, opened_sampler
from streamsampler.evaluation.rules import FLOORS, PrecisionOf, check_successes, checked_bounds
from streamsampler.evaluation.run_file import RunFile
from streamsampler.evaluation.sequential import PairTest, check_alpha, make_test
from streamsampler.evaluation.suites.compare_saved_suites import compare_saved_suites
from streamsampler.evaluation.suites.compare_suite import compare_suite
from streamsampler.evaluation.suites.decide_suite import SuiteAmount, SuiteDecision, decide_suite
from streamsampler.evaluation.suites.evaluate_suite import SuiteArguments, refuse_without_suite, saved_bounds
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison, position_names
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from streamsampler.protocol.evaluation_parts import PartArgument
from streamsampler.samplers.options import ANY_SAMPLERS_OPTIONS
from streamsampler.samplers.per_worker import Envs
from streamsampler.workers.factory import usable_cores

_TOGETHER = "write compare([first, second], env, …), or compare({'name': first, 'other': second}, env, …)"
Called = TypeVar("Called", bound=Callable[..., Any])


def _with_agents_together(compare: Called) -> Called:
    @wraps(compare)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) > 2:
            raise UsageError(f"compare takes all agents in one list or dict, and then the environment: {_TOGETHER}")
        return compare(*args, **options)

    return cast("Called", checked)


@overload
def compare(agents: Mapping[str, Any] | Sequence[Any], env: Mapping[str, Any], **options: Any) -> SuiteComparison: ...
@overload
def compare(
    agents: Mapping[str, Any] | Sequence[Any],
    env: Envs | None = None,
    *,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    n_trajectories: int | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_decided: float | None = None,
    margin: float | None = None,
    decide_on: PrecisionOf = "return",
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    num_trajectories: int | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    bounds: Bounds | None = None,
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Comparison: ...
@_with_agents_together
@suggesting(ANY_SAMPLERS_OPTIONS, {"sampler"})
@with_arguments_in_groups()
def compare(
    agents: Mapping[str, Any] | Sequence[Any],
    env: Envs | Mapping[str, Any] | None = None,
    *,
    deterministic: bool | None = None,
    vec_normalize: Any = None,
    tasks: Iterable[str] | None = None,
    n_trajectories: int | Mapping[str, int] | None = None,
    seeds: Iterable[int] | None = None,
    scenarios: Iterable[Mapping[str, Any]] | None = None,
    until_decided: float | None = None,
    margin: float | None = None,
    decide_on: PrecisionOf = "return",
    max_trajectories: int | None = None,
    part: PartArgument | None = None,
    num_trajectories: int | Mapping[str, int] | None = None,
    open_envs: int | None = None,
    success: SuccessMeaning = "end",
    return_of: ReturnOf | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    normalise: Mapping[str, tuple[float, float]] | None = None,
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    progress: ProgressArgument = False,
    **options: Any,
) -> Comparison | SuiteComparison:
    """Compare agents on the same seeds, and return their differences, pair by pair, with intervals.

    Give `n_trajectories`, `seeds`, `scenarios` or `until_decided`; only the last may be combined with `seeds`. The
    result is the same for any number of workers.

    On a suite, `until_decided` is about the mean over tasks. It runs rounds in which all tasks have the same number of
    trajectories: 20, and a quarter more each time.

    Args:
        agents: Two agents or more, by name or in a list, as `streamsampler.evaluate` takes them. Each is compared with
            the first. Agents in a list are named after their files, functions or classes, or else "agent 1", "agent 2".
            Evaluations of `streamsampler.evaluate` or `Evaluation.load` are compared without running anything, by pairs
            of equal seeds, and with no other arguments than `bounds`, `margin`, `decide_on` and `out`.
        env: See `streamsampler.evaluate`, as for all arguments without explanation here. For a suite, pairs have the
            same task and seed.
        n_trajectories: Exact number of trajectories of each agent.
        seeds: A trajectory of each agent for each of these seeds.
        scenarios: A trajectory of each agent for each of these.
        until_decided: Run pairs, in index order, until a test decides which agent is better. The value is the
            probability of a wrong decision between equal agents, such as 0.05, divided among the comparisons of more
            than two agents. The test is valid although it decides when to stop.
        margin: Decide for each other agent whether it is worse than the first agent by more than this, at least 0: the
            default of `Comparison.verdict`. With `until_decided` the test is about the margin; its value is then the
            probability of a wrong verdict.
        decide_on: Quantity of the test and the verdict: the mean "return", for which a test needs `bounds`, or the
            "success" rate.
        bounds: The least and the largest possible return; see `streamsampler.evaluate`. For a suite the same for all
            tasks, or a dict by tasks.
        max_trajectories: The most trajectories of each agent, on a suite in each task; by default 10,000, or the number
            of `seeds`. The comparison then reports that nothing was decided.
        part: See `streamsampler.evaluate`; the same part for all agents.
        success: See `streamsampler.evaluate`.
        return_of: See `streamsampler.evaluate`. Each of `agents` is then a dict of agents by policy name: with policies
            swapped among agents, the same seeds show the effect.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`; for all agents.
        normalise: See `streamsampler.evaluate`.
        tasks: See `streamsampler.evaluate`.
        open_envs: See `streamsampler.evaluate`.
        out: See `streamsampler.evaluate`.
        resume: See `streamsampler.evaluate`: a file of a comparison of the same agents, or of the first of them.
        progress: See `streamsampler.evaluate`.
        num_trajectories: Another name of `n_trajectories`.
        options: All other arguments of `streamsampler.MultiprocessingSampler`. If a test decides, agents run at the
            same time and share `n_workers`.

    Returns:
        The comparison, for `print`; on a suite a `SuiteComparison`.

    Raises:
        UsageError: An argument is out of range, or contradicts another (a ValueError).
        UnknownArgumentError: No argument has this name (also a TypeError).
        EvaluationInterruptedError: Ctrl-C; has the comparison so far, or the first agent's evaluation before the second
            agent's first trajectory. (A KeyboardInterrupt.)
        RolloutError: User code raised in a worker. For other errors see `streamsampler.evaluate`. In the error of an
            agent, `found` has the results of the agents before it, by name.
    """
    named, how_many = named_agents(agents, _TOGETHER), HowMany.asked(n_trajectories, num_trajectories)
    if are_saved(named):
        of_run = {"env": env, how_many.name: how_many.n, "seeds": seeds, "scenarios": scenarios, "part": part}
        of_run |= {"until_decided": until_decided, "max_trajectories": max_trajectories, "return_of": return_of}
        of_run |= {"deterministic": deterministic, "vec_normalize": vec_normalize, "resume": resume, **options}
        return _of_saved(named, cast("Bounds | None", bounds), out, {"margin": margin, "decide_on": decide_on}, of_run)
    if env is None:
        raise UsageError(
            "give an environment next to the agents; only saved evaluations, loaded with Evaluation.load, need none"
        )
    _check_words(success, decide_on, options)
    if isinstance(env, Mapping):
        run = RunFile(SuiteComparison, out, resume)
        run.check_names(position_names(list(named), list(map(str, env))))
        of_amount = SuiteAmount.asked(
            run, how_many, seeds=seeds, scenarios=scenarios, until_decided=until_decided, decide_on=decide_on,
            max_trajectories=max_trajectories, part=part, tasks=tasks,
        )  # fmt: skip
        arguments = SuiteArguments.checked(
            env, how_many=of_amount.how_many, bounds=saved_bounds(run, list(env)) if bounds is None else bounds,
            part=run.part(part), amount={"seeds": of_amount.seeds, "scenarios": of_amount.scenarios},
            normalise=run.facts.normalise if normalise is None else normalise, tasks=tasks, success=success,
            return_of=return_of, deterministic=deterministic, vec_normalize=vec_normalize, open_envs=open_envs,
            options=run.with_seed(options),
        )  # fmt: skip
        if of_amount.until_decided is None:
            return compare_suite(named, arguments, run, decision_of(margin, decide_on, None, part), progress)
        decision = SuiteDecision.checked(arguments, of_amount.until_decided, of_amount.decide_on, margin)
        return decide_suite(named, decision.with_amounts(arguments), decision, run, progress)
    bounds = cast("Bounds | None", bounds)
    refuse_without_suite({"normalise": normalise, "tasks": tasks, "open_envs": open_envs})
    run = RunFile(Comparison, out, resume)
    run.check_names(tuple(named))
    given = {"n_trajectories": how_many.n, "seeds": seeds, "scenarios": scenarios, "until_decided": until_decided}
    given |= {"decide_on": decide_on, "max_trajectories": max_trajectories}
    asked = run.completed(given, _AMOUNTS, {"decide_on": "return", "max_trajectories": None})
    how_many = HowMany(asked.pop("n_trajectories"), how_many.name)
    wanted = Wanted.asked(
        named, how_many, run.bounds(bounds), run.part(part), run.with_seed(options), env, margin=margin, **asked
    )
    run.begin(wanted.amount, agents=list(named), stopped=INTERRUPTED, **wanted.decision)

    @contextmanager
    def gathered(position: int, name: str) -> Iterator[EvaluationCall]:
        opened = opened_sampler(named[name], env, None, wanted.options, deterministic, vec_normalize)
        saved, entry = run.saved(position), run.entry(position)
        with (
            opened as (sampler, facts, updates),
            EvaluationCall(sampler, wanted.amount, success, facts, updates, return_of, saved, entry) as gathering,
            _explaining_keys(named, return_of),
        ):
            yield gathering

    opened = {name: gathered(position, name) for position, name in enumerate(named)}
    with run:
        if wanted.tests:
            found = _side_by_side(opened, wanted, progress)
        else:
            found = _one_after_the_other(opened, wanted, progress, run)
        run.finish(found)
    return found


_AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_decided")
"""The arguments of the amount, which exclude each other."""


@dataclass(frozen=True)
class Wanted:
    """The amount of a comparison, and the tests that end it.

    Attributes:
        amount: Number of trajectories of each agent, or the most.
        options: The options of each agent's sampler.
        decision: The decision of the tests, as arguments of a `Comparison`.
        tests: A test for each agent but the first; empty for a fixed amount.
    """

    amount: Amount
    options: Mapping[str, Any]
    decision: Mapping[str, Any]
    tests: Sequence[PairTest] = ()

    @classmethod
    def asked(
        cls, named: Mapping[str, Any], how_many: HowMany, bounds: Bounds | None, part: PartArgument | None,
        given: Mapping[str, Any], env: Any, *, seeds: Any, scenarios: Any, until_decided: Any, decide_on: PrecisionOf,
        max_trajectories: Any, margin: float | None,
    ) -> Self:  # fmt: skip
        """Return the amount requested by arguments of `compare`.

        Raises:
            UsageError: Arguments are out of range, or contradict each other.
        """
        options = {**given, "seed": check_seed(given.get("seed"))}
        decision = decision_of(margin, decide_on, bounds, part)
        if until_decided is None:
            refuse_useless({"max_trajectories": max_trajectories}, "until_decided")
            amount = amount_of(how_many=how_many, seeds=seeds, scenarios=scenarios, bounds=bounds)
            return cls(in_part(amount, part, None, given, *named.values(), env), options, decision)
        refuse_amounts("until_decided", how_many, scenarios)
        if part is not None:
            raise UsageError(
                "part needs n_trajectories, seeds or scenarios: until_decided depends on all earlier pairs"
            )
        alpha = check_alpha(until_decided)
        tests = [make_test(alpha / (len(named) - 1), decide_on, bounds, margin) for _ in range(len(named) - 1)]
        most = at_most(seeds, max_trajectories)
        arguments = {"until_decided": alpha, "decide_on": decide_on, **most.arguments}
        decision |= {"until_decided": alpha}
        return cls(
            replace(most, bounds=decision["bounds"], arguments=arguments), _shared(options, len(named)), decision, tests
        )  # fmt: skip


def decision_of(margin: Any, decide_on: PrecisionOf, bounds: Any, part: Any) -> dict[str, Any]:
    """Return the margin and the quantity of a decision, as arguments of a comparison.

    Raises:
        UsageError: The decision is impossible.
    """
    limits = None if bounds is None else checked_bounds(bounds)
    decision: dict[str, Any] = {"until_decided": None, "decide_on": decide_on, "bounds": limits}
    if margin is None:
        return decision
    if part is not None:
        raise UsageError(
            "a part has only some of the pairs for a verdict: leave out margin, and call it on the merged parts: "
            f"merge([…], f'whole.json').verdict({margin})"
        )
    return {**decision, "margin": checked_margin(margin, decide_on, limits)}


def _check_words(success: Any, decide_on: Any, options: Mapping[str, Any]) -> None:
    if success not in ("end", "once"):
        raise UsageError(f'success must be "end" or "once", got {success!r}')
    if decide_on not in FLOORS:
        raise UsageError(f'decide_on must be "return" or "success", got {decide_on!r}')
    if "sampler" in options:
        raise UsageError("compare makes a sampler for each agent: leave out sampler")


def _check_says_success(evaluation: Evaluation, decision: Mapping[str, Any]) -> None:
    if "margin" in decision and decision["decide_on"] == "success" and evaluation.successes is None:
        check_successes(len(evaluation))


def _of_saved(
    named: Mapping[str, Any], bounds: Bounds | None, out: str | PathLike[str] | None, decision: Mapping[str, Any],
    of_run: Mapping[str, Any],
) -> Comparison | SuiteComparison:  # fmt: skip
    """Compare saved evaluations; refuse arguments for running agents."""
    if given := [name for name, value in of_run.items() if value is not None]:
        raise UsageError(
            f"{next(iter(named))} is a saved evaluation, not an agent: give the agents, to run them; or leave out "
            f"{', '.join(given)}, to compare the saved evaluations"
        )
    found: Comparison | SuiteComparison
    if all(isinstance(each, SuiteEvaluation) for each in named.values()):
        found = compare_saved_suites(named, bounds)
    else:
        found = compare_saved(named, bounds)
    found = replace(found, **decision)
    run = RunFile(type(found), out, None)
    run.finish(found)
    return found


@contextmanager
def _explaining_keys(named: Mapping[str, Any], return_of: Any) -> Iterator[None]:
    """Explain an unknown name in `return_of` that is a key of `compare`'s dict: a single team was probably meant."""
    try:
        yield
    except UsageError as error:
        if "return_of names" not in str(error) or not named.keys() & set(check_return_of(return_of) or ()):
            raise
        team = "{" + ", ".join(f"{name!r}: …" for name in named) + "}"
        raise UsageError(
            f"{error}. The keys {' and '.join(map(repr, named))} are the names of the agents to compare: a team is a "
            f"dict inside the dict, compare({{'one': {team}, 'other': {team}}}, env, …)"
        ) from None


def _shared(options: Mapping[str, Any], n_agents: int) -> dict[str, Any]:
    """Return the options of one of several samplers that run at the same time."""
    n_workers = options.get("n_workers")
    n_workers = usable_cores() if n_workers is None else positive("n_workers", n_workers, least=0)
    return {**options, "n_workers": max(min(1, n_workers), n_workers // n_agents)}


def _one_after_the_other(
    named: Mapping[str, AbstractContextManager[EvaluationCall]], wanted: Wanted, progress: ProgressArgument,
    run: RunFile,
) -> Comparison:  # fmt: skip
    evaluations: list[Evaluation] = []

    def found(stopped: str) -> Comparison:
        names = tuple(named)[: len(evaluations)]
        return Comparison(names=names, evaluations=tuple(evaluations), stopped=stopped, **wanted.decision)

    try:
        for name, opened in named.items():
            before = dict(zip(named, evaluations, strict=False))
            with naming_agent(name, before, are_kept=run.path is not None), opened as gathering:
                try:
                    stopped = gather(gathering, progress, name)
                except KeyboardInterrupt:
                    if gathering.rows:
                        evaluations.append(gathering.finished(INTERRUPTED))
                    raise
                evaluations.append(gathering.finished(stopped))
                _check_says_success(evaluations[-1], wanted.decision)
    except KeyboardInterrupt as interrupt:  # also while the next agent's workers start
        while (there := run.known.get(len(evaluations))) is not None:
            evaluations.append(there)
        if not evaluations:
            raise
        kept = found(INTERRUPTED) if len(evaluations) > 1 else replace(evaluations[0], stopped=INTERRUPTED)
        raise EvaluationInterruptedError(kept, len(evaluations[-1])) from interrupt
    return found(wanted.amount.asked)


def _side_by_side(
    named: Mapping[str, AbstractContextManager[EvaluationCall]], wanted: Wanted, progress: ProgressArgument
) -> Comparison:
    with ExitStack() as stack:
        gatherings = [stack.enter_context(opened) for opened in named.values()]

        def found(stopped: str) -> Comparison:
            evaluations = tuple(gathering.finished(stopped) for gathering in gatherings)
            return Comparison(names=tuple(named), evaluations=evaluations, stopped=stopped, **wanted.decision)

        try:
            stopped = _Race(gatherings, wanted.tests, wanted.decision["decide_on"]).run(progress)
        except KeyboardInterrupt as interrupt:
            if not all(gathering.rows for gathering in gatherings):
                raise
            raise EvaluationInterruptedError(found(INTERRUPTED), len(gatherings[0].rows)) from interrupt
        return found(stopped)


class _Race:
    """Agents that run side by side on the same seeds, until each is decided."""

    def __init__(self, gatherings: Sequence[EvaluationCall], tests: Sequence[PairTest], decide_on: PrecisionOf) -> None:
        self._gatherings, self._tests, self._decide_on = gatherings, tests, decide_on

    def run(self, progress: ProgressArgument) -> str:
        """Run pairs until all tests decide or no more are left; return the reason for the end."""
        first = self._gatherings[0]
        open_tests = list(range(len(self._tests)))
        with display(
            progress, first.amount.n, "trajectories", earlier=first.earlier, note=lambda: self._note(open_tests)
        ) as shown:

            def so_far() -> tuple[int, int]:
                return sum(row.length for row in first.rows), len(first.rows)

            while open_tests and (rows := self._next_pair([0, *(test + 1 for test in open_tests)])) is not None:
                for test in list(open_tests):
                    self._tests[test].add(*(self._measure(rows[agent]) for agent in (0, test + 1)))
                    if self._tests[test].outcome != "undecided":
                        open_tests.remove(test)
                shown.update(so_far, complete=False)
            shown.update(so_far, complete=True)
        return f"undecided after {count(len(first.rows), 'trajectory')}, the most" if open_tests else "decided"

    def _next_pair(self, agents: list[int]) -> dict[int, Row] | None:
        """Return the next trajectory that no agent dropped, by agent; None after an agent's last."""
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
        return f"differences {', '.join(shown)}" if shown else f"{len(open_tests)} undecided"
