"""Options and calls by pairs: whatever two are given together, all samplers return the same, or all refuse it alike.

A covering array has each two values of the constructor's options, of the calls and of their arguments in some row, but
for those that do not go together. A row is run on a `LocalSampler` with 1 and 3 workers, and on processes and queues
with 1 and 3: all batches are equal, bit for bit, and so are replays, folders and evaluations. What does not go together
is listed as refusals, each of which must be that one error: by the constructor where it alone decides, otherwise by the
call before anything is sent; where only a worker can see it, the environment's kind, as the error of a rollout.
"""

from __future__ import annotations

import logging
import pickle
import re
import tempfile
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from streamsampler import (
    Limits,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    SetParameters,
    SetTaskUpdate,
    TrajectoryBatch,
    VecWorker,
    evaluate,
    sample_to_folder,
)
from streamsampler.errors import RolloutError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.proofs._covering import Row, covering_array
from tests.proofs._pairs import AGENTS, Counted, Seamed, environment, is_odd, other_environment
from tests.proofs._programs import digest_of_trees, seen_of

FACTORS: dict[str, list[str]] = {
    "world": ["world", "game", "open game", "turns"],
    "agent": ["memory", "random", "function", "rows", "rows alone", "block", "policies"],
    "worker": ["default", "vec", "blocks", "seams"],
    "inference": ["worker", "parent"],
    "order": ["index", "arrival"],
    "on_failure": ["raise", "drop"],
    "staleness": ["0", "1"],
    "hooks": ["none", "hooks"],
    "drop_if": ["none", "drop_if"],
    "filter": ["none", "observation", "reward"],
    "taken": ["none", "taken"],
    "limit": ["none", "4"],
    "given": ["one", "agents", "envs"],
    "check": ["none", "warn"],
    "memory": ["none", "limited"],
    "first": ["trajectories", "samples", "exact", "stream", "fragments", "folder", "evaluate"],
    "told": ["nothing", "seeds", "options", "tasks"],
    "between": ["nothing", "pickle", "replay", "actions"],
    "update": ["nothing", "parameters", "agent", "each"],
    "env_update": ["nothing", "environment", "parameters", "task"],
    "second": ["trajectories", "samples", "exact", "stream", "fragments", "folder", "evaluate"],
}
"""What is combined; the first value of each goes with all others."""

_GAMES = {"game", "open game", "turns"}


class Refusal(NamedTuple):
    """What does not go together.

    Attributes:
        when: The values, by factor.
        where: "constructor", "call" before anything is sent, or "worker" where only that sees it.
        words: What the error says.
        least: With how many workers at least: one agent or environment for each of one worker is for all.
    """

    when: dict[str, set[str]]
    where: str
    words: str
    least: int = 1

    def matches(self, row: Row) -> bool:
        """Return whether a row has these values."""
        return all(row[factor] in values for factor, values in self.when.items())


def _of_calls(call: str, words: str, least: int = 1, **when: set[str]) -> list[Refusal]:
    # What updates are for each worker is known of the second call alone.
    factors = ("second",) if "update" in when else ("first", "second")
    return [Refusal({**when, factor: {call}}, "call", words, least) for factor in factors]


_VEC, _PARENT, _EACH = {"vec", "blocks"}, {"parent"}, {"agents", "envs"}
_IN_WORKERS = {"worker"}
_ONE_EACH = "for all workers, got one for each: use inference"
REFUSALS: list[Refusal] = [
    # By the constructor.
    Refusal({"worker": _VEC, "on_failure": {"drop"}}, "constructor", "VecWorker cannot drop trajectories"),
    Refusal({"inference": _PARENT, "on_failure": {"drop"}}, "constructor", "VecWorker cannot drop trajectories"),
    Refusal({"inference": _PARENT, "worker": {"seams"}}, "constructor", "or the default, got Seamed"),
    Refusal({"inference": _PARENT, "order": {"arrival"}}, "constructor", "takes no order"),
    Refusal({"inference": _PARENT, "staleness": {"1"}}, "constructor", "takes no staleness"),
    Refusal({"inference": _PARENT, "given": _EACH}, "constructor", _ONE_EACH),
    Refusal({"inference": _PARENT, "memory": {"limited"}}, "constructor", "takes no limits.max_worker_memory"),
    Refusal({"staleness": {"1"}, "order": {"arrival"}}, "constructor", 'staleness=1 needs order="index"'),
    Refusal({"staleness": {"1"}, "filter": {"observation", "reward"}}, "constructor", "not support observation_filter"),
    Refusal({"agent": {"policies"}, "filter": {"observation", "reward"}}, "constructor", "a dict by policy name"),
    # By the call, before anything is sent.
    Refusal({"agent": {"random", "function"}, "update": {"parameters"}}, "call", "has none; give it one"),
    Refusal({"inference": _PARENT, "update": {"each"}}, "call", _ONE_EACH),
    Refusal({"taken": {"taken"}, "between": {"actions"}}, "call", "actions=True needs the actions"),
    Refusal({"first": {"fragments"}, "between": {"replay"}, "worker": _VEC}, "call", "side by side with others"),
    Refusal({"first": {"fragments"}, "between": {"replay"}, "inference": _PARENT}, "call", "side by side with others"),
    Refusal({"first": {"fragments"}, "between": {"replay", "actions"}, "world": _GAMES}, "call", "several agents"),
    Refusal({"second": {"fragments"}, "update": {"each"}}, "call", "need the same agent and environment"),
    *_of_calls("fragments", "do not call the methods that Seamed overrides", worker={"seams"}),
    *_of_calls("fragments", 'need order="index"', order={"arrival"}),
    *_of_calls("fragments", 'need on_failure="raise"', on_failure={"drop"}),
    *_of_calls("fragments", "do not support drop_if", drop_if={"drop_if"}),
    *_of_calls("fragments", "need the same agent and environment", given=_EACH),
    *_of_calls("exact", "cannot replace trajectories", 3, given=_EACH, on_failure={"drop"}),
    *_of_calls("exact", "cannot replace trajectories", 3, given=_EACH, drop_if={"drop_if"}),
    *_of_calls("exact", "cannot replace trajectories", 3, update={"each"}, on_failure={"drop"}),
    *_of_calls("exact", "cannot replace trajectories", 3, update={"each"}, drop_if={"drop_if"}),
    *_of_calls("folder", "run blocks of", worker=_VEC),
    *_of_calls("folder", "run blocks of", inference=_PARENT),
    *_of_calls("folder", 'order="index"', order={"arrival"}),
    *_of_calls("evaluate", 'order="index"', order={"arrival"}),
    *(each for call in ("stream", "fragments", "folder", "evaluate")
      for each in _of_calls(call, "staleness=", staleness={"1"})),
    # By workers, which make the environment.
    Refusal({"agent": {"rows alone"}, "worker": {"default", "seams"}, "inference": _IN_WORKERS}, "worker",
            "has only get_actions"),
    Refusal({"agent": {"policies"}, "world": {"world"}}, "worker", "is for environments of several agents"),
    Refusal({"world": _GAMES, "taken": {"taken"}}, "worker", "needs actions that are a single array"),
]  # fmt: skip


def at_fault(row: Row) -> Collection[str] | None:
    """Return the factors of the first refusal that a row meets; None where there is none."""
    return next((refusal.when for refusal in REFUSALS if refusal.matches(row)), None)


class Place(NamedTuple):
    """Where a row is run: an engine, or "local", and how many workers there are."""

    engine: str
    n_workers: int


def places(row: Row) -> list[Place]:
    """Return where a row is run; the first is what the others are compared with."""
    engines = ["local", "processes"]
    if row["memory"] == "none":
        engines.append("queues")  # which take no limit
    return [Place(engine, n_workers) for engine in engines for n_workers in (1, 3)]


def make(row: Row, place: Place) -> Any:
    """Make a sampler."""
    fails = row["on_failure"] == "drop"
    agent, env = _agent(row), environment(row["world"], fails=fails)
    options: dict[str, Any] = {
        "n_workers": place.n_workers, "seed": 5, "order": row["order"], "on_failure": row["on_failure"],
        "staleness": int(row["staleness"]), "check": None if row["check"] == "none" else row["check"],
        "hooks": Counted() if row["hooks"] == "hooks" else None,
        "drop_if": is_odd if row["drop_if"] == "drop_if" else None,
        "observation_filter": RunningNorm() if row["filter"] == "observation" else None,
        "reward_filter": RunningReturnNorm() if row["filter"] == "reward" else None,
        "record_taken": "taken" if row["taken"] != "none" else None,
        "max_episode_length": 4 if row["limit"] == "4" else None, **_WORKERS[row["worker"]],
    }  # fmt: skip
    agents = PerWorker([agent] * place.n_workers) if row["given"] == "agents" else agent
    envs = PerWorker([env] * place.n_workers) if row["given"] == "envs" else env
    of_processes: dict[str, Any] = {
        "engine": place.engine,
        **({"inference": "parent"} if row["inference"] == "parent" else {}),
        **({"limits": Limits(max_worker_memory=1 << 33)} if row["memory"] == "limited" else {}),
    }
    if row["inference"] == "parent":
        options["worker_args"] = {"n_envs": 4, **options.get("worker_args", {})}
        if place.engine == "local" and row["worker"] == "default":
            options["worker_class"] = VecWorker
    if place.engine == "local":
        return LocalSampler(agents, envs, **options)
    return MultiprocessingSampler(agents, envs, **options, **of_processes)


_WORKERS: dict[str, dict[str, Any]] = {
    "default": {},
    "vec": {"worker_class": VecWorker, "worker_args": {"n_envs": 4}},
    "blocks": {"worker_class": VecWorker, "worker_args": {"n_envs": 4, "block_size": 8}},
    "seams": {"worker_class": Seamed},
}


def _agent(row: Row, *weights: float) -> Any:
    if row["agent"] == "policies":
        return {name: AGENTS["memory"](weights or (0.25, 0.5)) for name in ("red", "blue")}
    return AGENTS[row["agent"]](weights or (0.25, 0.5, 0.0, 0.0))


def _updates(row: Row, n_workers: int) -> dict[str, Any]:
    """Return the updates of the second call."""
    weights = (0.5, 0.25, 0.0, 0.0)
    agent: Any = {"parameters": weights, "nothing": None}.get(row["update"], _agent(row, *weights))
    if row["agent"] == "policies" and row["update"] == "parameters":
        agent = {"red": weights}
    if row["update"] == "each":
        agent = PerWorker([agent] * n_workers)
    fails = row["on_failure"] == "drop"
    other = other_environment(row["world"], fails=fails)
    envs = {"environment": other, "parameters": SetParameters({"mass": 2.0}), "task": SetTaskUpdate(other, 1.0)}
    return {"agent_update": agent, "env_update": envs.get(row["env_update"])}


_TOLD: dict[str, dict[str, Any]] = {
    "seeds": {"seeds": [5, 3, 8, 5, 1, 9]},
    "options": {"reset_options": {"level": 2}},
    "tasks": {"tasks": [0.0, 1.0, 2.0]},
}


class Run:
    """Does what a row says with a sampler, and keeps what comes of it.

    Attributes:
        seen: What came of each step: a digest, or an error.
    """

    def __init__(self, row: Row, place: Place, folder: Path) -> None:
        self._row, self._place, self._path = row, place, folder
        self.seen: list[Any] = []
        self._batch: Any = None

    def run(self) -> list[Any]:
        """Make the sampler, and do what is to be done with it."""
        try:
            sampler = make(self._row, self._place)
        except Exception as error:
            return [("constructor", *_told(error))]
        try:
            with suppress(_Refused):
                self._keep(sampler, "first", **_TOLD.get(self._row["told"], {}))
                sampler = self._between(sampler)
                self._keep(sampler, "second", **_updates(self._row, self._place.n_workers))
        finally:
            sampler.close()
        return self.seen

    def _keep(self, sampler: Any, which: str, **arguments: Any) -> None:
        kind = self._row[which]
        before = sampler.agent_version, sampler.stats.ran_timesteps
        try:
            self.seen.append((kind, getattr(self, {"folder": "_in_folder"}.get(kind, f"_{kind}"))(sampler, arguments)))
        except Exception as error:
            is_early = before == (sampler.agent_version, sampler.stats.ran_timesteps) and not isinstance(
                error, RolloutError
            )
            self.seen.append(("call" if is_early else "worker", *_told(error)))
            raise _Refused from error

    def _between(self, sampler: Any) -> Any:
        what = self._row["between"]
        if what == "pickle":
            copy = pickle.loads(pickle.dumps(sampler))
            sampler.close()
            return copy
        if what != "nothing" and self._batch is not None:
            one = self._batch[len(self._batch) - 1]
            version, index = int(one.agent_versions[0]), int(one.indices[0])
            try:
                found = sampler.replay(version, index, recorded=self._batch, actions=what == "actions")
            except Exception as error:
                self.seen.append(("call", *_told(error)))
                raise _Refused from error
            self.seen.append((what, found.same, digest_of_trees(seen_of(found.trajectory))))
        return sampler

    def _batch_seen(self, batch: Any) -> str:
        self._batch = batch
        return digest_of_trees(seen_of(batch))

    def _trajectories(self, sampler: Any, arguments: Any) -> Any:
        n = {} if "seeds" in arguments else {"n_trajectories": 2 if "tasks" in arguments else 6}
        return self._batch_seen(sampler.obtain_trajectories(**n, **arguments))

    def _samples(self, sampler: Any, arguments: Any) -> Any:
        arguments.pop("seeds", None)
        return self._batch_seen(sampler.obtain_samples(20, **arguments))

    def _exact(self, sampler: Any, arguments: Any) -> Any:
        arguments.pop("seeds", None)
        arguments.pop("tasks", None)
        return self._batch_seen(sampler.obtain_exact_trajectories(6 // self._place.n_workers, **arguments))

    def _stream(self, sampler: Any, arguments: Any) -> Any:
        n = {"n_trajectories": 2} if "tasks" in arguments else {}  # of each task
        return self._batch_seen(TrajectoryBatch.concatenate(list(islice(sampler.stream(**n, **arguments), 6))))

    def _fragments(self, sampler: Any, arguments: Any) -> Any:
        arguments = {key: value for key, value in arguments.items() if key not in ("seeds", "tasks")}
        return self._batch_seen(sampler.obtain_fragments(4, 4, **arguments))

    def _in_folder(self, sampler: Any, arguments: Any) -> Any:
        del arguments  # it takes neither updates nor what calls are told
        path = self._path / f"{self._place.engine}-{self._place.n_workers}-{len(self.seen)}"
        folder = sample_to_folder(sampler, path, n_trajectories=6, shard_size=9)
        return self._batch_seen(folder.to_batch())

    def _evaluate(self, sampler: Any, arguments: Any) -> Any:
        # Evaluations take each seed once.
        amount: dict[str, Any] = (
            {"seeds": list(dict.fromkeys(arguments["seeds"]))} if "seeds" in arguments else {"num_trajectories": 6}
        )
        several: dict[str, Any] = {"return_of": "all"} if self._row["world"] in _GAMES else {}
        agent, env = arguments.get("agent_update"), arguments.get("env_update")
        agent = None if self._row["update"] == "parameters" else agent  # it takes agents alone
        found = evaluate(agent, env, sampler=sampler, **amount, **several)
        self._batch = None
        return found.returns.tolist(), found.lengths.tolist(), list(found.seeds)


class _Refused(Exception):
    """A step of a row raised."""


def _told(error: BaseException) -> tuple[str, str]:
    """Return the class of an error, and what it says, whichever worker it was in."""
    original = getattr(error, "original", None)
    name = type(error).__name__ if original is None else f"{type(error).__name__} of {type(original).__name__}"
    return name, re.sub(r"\bworker \d+", "worker #", str(error))


def check_row(row: Row, tally: Counter[str]) -> None:
    """Check that a row gives the same everywhere, and is refused nowhere."""
    expected: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for place in places(row):
            seen = Run(row, place, Path(folder)).run()
            kinds = [each[0] for each in seen]
            errors = [each for each in seen if each[0] in ("constructor", "call", "worker")]
            assert not errors, f"{changed(row)} at {place}: {errors[0]}"
            assert all(each[1] for each in seen if each[0] in ("replay", "actions")), (
                f"{changed(row)} at {place}: {seen}"
            )
            tally.update(kinds)
            if row["order"] == "arrival" and place.n_workers > 1:
                continue  # whatever came first
            same = seen if row["given"] == "one" and row["update"] != "each" else (place.n_workers, seen)
            expected.append(same)
    alike = [each for each in expected if not isinstance(each, tuple)] or [
        each for each in expected if each[0] == expected[0][0]
    ]
    for other in alike[1:]:
        assert other == alike[0], f"{changed(row)}: {other}, not {alike[0]}"


def check_refusal(refusal: Refusal, tally: Counter[str]) -> None:
    """Check that what does not go together is one error, the same everywhere."""
    usual = {factor: values[0] for factor, values in FACTORS.items()}
    for values in product(*(sorted(each) for each in refusal.when.values())):
        row = {**usual, **dict(zip(refusal.when, values, strict=True))}
        of_processes = (row["inference"], row["memory"]) != ("worker", "none")
        at = [it for it in places(row) if it.n_workers >= refusal.least and not (of_processes and it.engine == "local")]
        at = [at[0], *(it for it in at[1:] if it.n_workers > 1)]
        with tempfile.TemporaryDirectory() as folder:
            ends = {place: Run(row, place, Path(folder)).run()[-1] for place in at}
        for place, end in ends.items():
            where, name, words = end if len(end) == 3 else (end[0], "nothing", "")
            assert (where, refusal.words in str(words)) == (refusal.where, True), f"{changed(row)} at {place}: {end}"
            assert name == ("RolloutError of UsageError" if where == "worker" else "UsageError"), (
                f"{changed(row)}: {end}"
            )
        assert len(set(ends.values())) == 1, f"{changed(row)}: {ends}"
        tally["refused"] += 1


def changed(row: Row) -> dict[str, str]:
    """Return what of a row is not as usual."""
    return {factor: value for factor, value in row.items() if value != FACTORS[factor][0]}


def prove(scale: str) -> None:
    """Run the array and the refusals; in the short form a tenth of both."""
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it warns of what is wanted here
    rows, left_out = covering_array(FACTORS, at_fault, seed=1)
    print(f"{len(rows)} rows; {len(left_out)} pairs do not go together")
    tally: Counter[str] = Counter()
    step = 1 if scale == "long" else 10
    for refusal in REFUSALS[::step]:
        check_refusal(refusal, tally)
    for row in rows[::step]:
        check_row(row, tally)
        tally["rows"] += 1
    print(dict(tally))
