"""Programs of several tasks, each drawn from its number: what samplers of each task alone show, and one of all tasks.

Tasks have other spaces, lengths, agents, and ways in which their workers run them. The calls of the sampler of all
tasks take the trajectories in another order, in pieces of whole blocks.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from streamsampler import AsyncWorker, LocalSampler, VecWorker
from streamsampler.environments import PerEnv
from streamsampler.filters import RunningNorm
from streamsampler.samplers.per_task import PerTask, TaskRun
from tests.contracts.scenarios import Block, Lanes, Measuring, Memory, World, is_odd, red_and_blue_in_turn
from tests.proofs._programs import add, seen_of
from tests.scripted.agents import Attentive, Linear
from tests.scripted.envs import Counting, Nested
from tests.scripted.games import Chooser, Comings, Turns
from tests.scripted.vectors import Vector
from tests.scripted.waiting import waiting

KINDS = ("single", "rows", "blocks", "vectors", "waiting", "several")
ROWS = 3


@dataclass
class Program:
    """What is run.

    Attributes:
        kind: Which kind of workers.
        agents: By task.
        envs: By task.
        options: Of samplers.
        amounts: How many trajectories, by task.
        given: What a call is given for trajectories.
        block: How many trajectories are run together.
        open_envs: See `PerTask`.
    """

    kind: str
    agents: list[Any]
    envs: list[Any]
    options: dict[str, Any]
    amounts: list[int]
    given: dict[str, Any] = field(default_factory=dict)
    block: int = 1
    open_envs: int = 2

    def alone(self) -> list[dict[int, Any]]:
        """Return what the trajectories show that a sampler of each task streams, by index, in this process."""
        found = []
        for agent, env, n in zip(self.agents, self.envs, self.amounts, strict=True):
            with LocalSampler(agent, env, **self.options) as sampler:
                given = {name: values[:n] for name, values in self.given.items()}
                trajectories = sampler.stream(n_trajectories=n, **given)
                found.append({int(it.indices[0]): digest_of(seen_of(it)) for it in trajectories if it.indices[0] < n})
        return found

    def of_tasks(self) -> tuple[PerTask[Any], PerTask[Any]]:
        """Return all agents, and all environments."""
        names = [f"task {number}" for number in range(len(self.envs))]
        return PerTask(self.agents, names), PerTask(self.envs, names, open_envs=self.open_envs)

    def calls(self, dice: random.Random) -> list[list[TaskRun]]:
        """Return calls that take all trajectories: in pieces of whole blocks, a task's in order."""
        pieces: list[list[TaskRun]] = []
        for task, n in enumerate(self.amounts):
            cuts = [0, *sorted({self.block * dice.randrange(n // self.block + 1) for _ in range(2)} - {0, n}), n]
            whole = self.kind == "vectors"  # no stream begins in the middle of blocks that get longer
            cuts = [0, n] if whole else cuts
            pieces.append([TaskRun(task, first, stop - first) for first, stop in pairwise(cuts)])
        runs: list[TaskRun] = []
        while any(pieces):
            runs.append(dice.choice([piece for piece in pieces if piece]).pop(0))
        cut = dice.randrange(1, len(runs) + 1)
        return [part for part in (runs[:cut], runs[cut:]) if part]


def _pairs(kind: str) -> list[tuple[Any, Any]]:
    """Return agents with environments, for workers of a kind."""
    several = {"red": Chooser(1), "blue": Chooser(2)}
    if kind == "several":
        return [(several, partial(Comings)), (several, partial(Turns))]
    if kind == "waiting":
        balancing = Linear(), waiting("CartPole-v1")
        return [(Attentive([0.1] * 4), waiting(Nested)), ("random", waiting(Counting)), balancing]
    if kind == "vectors":
        return [("random", Vector(mode, n=ROWS)) for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED")]
    noisy = kind == "single"
    pairs: list[tuple[Any, Any]] = [
        (Memory(number), partial(World, noise=noisy, failing=0.1 if noisy else 0.0)) for number in range(2)
    ]
    pairs += [("random", "CartPole-v1"), ("random", Counting), ("random", partial(Counting, 4, width=7))]
    if kind == "rows":
        pairs = [(Lanes(number), env) for number, (_, env) in enumerate(pairs)]
        pairs.append((Lanes(7), PerEnv([partial(Counting, longest) for longest in (2, 5, 9)])))
    if kind == "blocks":
        pairs = [*((Block(number), partial(World, noise=True)) for number in range(2)), *pairs[2:]]
    return pairs


def program(number: int) -> Program:
    """Return the program of a number."""
    dice = random.Random(f"tasks {number}")
    kind = KINDS[number % len(KINDS)]
    pairs = [dice.choice(_pairs(kind)) for _ in range(dice.randrange(2, 6))]
    options: dict[str, Any] = {"seed": dice.randrange(1000), "check": dice.choice([None, "warn"])}
    options |= _of_kind(kind, dice)
    if kind == "single" and all(agent == "random" for agent, _ in pairs):
        options["observation_filter"] = RunningNorm()
    drops = not options.keys().isdisjoint({"drop_if", "on_failure"})
    block = ROWS if "n_envs" in options.get("worker_args", {}) else 1
    amounts = [dice.choice([1, 5, 12, 30]) for _ in pairs]
    if drops:  # all of them left out would be an error of a sampler of one task
        amounts = [max(n, 12) for n in amounts]
    given: dict[str, list[Any]] = {}
    if dice.random() < 0.3:
        given["seeds"] = [dice.randrange(10_000) for _ in range(max(amounts))]
    if kind not in ("vectors", "several") and dice.random() < 0.4:
        given["reset_options"] = [dice.choice([None, {"level": index}]) for index in range(max(amounts))]
    return Program(
        kind, [agent for agent, _ in pairs], [env for _, env in pairs], options, amounts, given, block,
        open_envs=dice.choice([1, 2, 3]),
    )  # fmt: skip


def _of_kind(kind: str, dice: random.Random) -> dict[str, Any]:
    """Return options of samplers whose workers are of a kind."""
    options: dict[str, Any] = {}
    if kind in ("rows", "blocks", "vectors"):
        options |= {"worker_class": VecWorker, "worker_args": {"n_envs": ROWS}}
    if kind == "waiting":
        options |= {"worker_class": AsyncWorker, "worker_args": {"in_flight": 4}}
    if kind == "several":
        options["policy_of"] = red_and_blue_in_turn
    elif kind != "vectors" and dice.random() < 0.4:
        options["hooks"] = Measuring()
    if kind == "single":
        options["on_failure"] = "drop"
    if kind in ("single", "blocks", "rows") and dice.random() < 0.3:
        options["drop_if"] = is_odd
    return options


def digests(stream: Any) -> list[tuple[int, int, str]]:
    """Return the task, the index and a digest of each trajectory of a stream."""
    return [(stream.task, int(it.indices[0]), digest_of(seen_of(it))) for it in stream]


def digest_of(seen: Any) -> str:
    """Return a digest of what a trajectory shows."""
    found = hashlib.sha256()
    add(found, seen)
    return found.hexdigest()


def seen_together(sampler: Any, calls: list[list[TaskRun]], given: dict[str, Any]) -> list[dict[int, Any]]:
    """Return what the trajectories of all tasks show, by task and index; check that they come in order."""
    found: list[dict[int, Any]] = [{} for _ in sampler.tasks]
    for runs in calls:
        expected = [(run.task, index) for run in runs for index in range(run.first, run.first + run.n)]
        with sampler.task_stream(runs, **given) as stream:
            for trajectory in stream:
                index = int(trajectory.indices[0])
                while expected[0] != (stream.task, index):
                    expected.pop(0)  # it was left out
                found[stream.task][index] = digest_of(seen_of(trajectory))
            left_out = {(task, it.index) for task, those in stream.left_out.items() for it in those}
        came = {(task, index) for task, those in enumerate(found) for index in those}
        for run in runs:
            whole = {(run.task, index) for index in range(run.first, run.first + run.n)}
            assert whole <= came | left_out
            assert not came & left_out
    return found


__all__ = ["KINDS", "Program", "digests", "program", "seen_together"]
