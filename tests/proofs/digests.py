"""The same seed gives the same batches as ever: 456 scenarios, against digests that were recorded earlier.

    python -m tests.proofs.digests record    # after a change that is meant to change batches, and says so

A scenario is drawn from its number: environment, agent, kind of worker, engine, how many workers, and calls of every
kind with updates between them; 40 have hooks with metrics, and some of these a `drop_if`. The last 216 are the programs
of `_programs`: fragments, filters, tasks, parameters, rows of managers, several agents, and masks of actions; workers
are killed.
`digests.json` has one digest for each, which tells every bit of every batch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import pathlib
import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from streamsampler import LocalSampler, SetTaskUpdate, TrajectoryBatch, VecWorker
from tests.proofs._engines import kept_open, make_sampler
from tests.proofs._programs import FIRST_WITH_MASKS, Measuring, add, digest_of_trees, seen_by
from tests.scripted.agents import Batched, Drawing
from tests.scripted.envs import Counting, GlobalNoise, Nested, Rough, Shapes
from tests.scripted.vectors import Vector

__all__ = ["N_SCENARIOS", "digest_of", "prove"]

_FIRST_WITH_HOOKS, _FIRST_PROGRAM = 200, 240
_FIRST_WITH_MASKS = _FIRST_PROGRAM + FIRST_WITH_MASKS
N_SCENARIOS = _FIRST_WITH_MASKS + 16
_N_SHORT = 40
_RECORDED = pathlib.Path(__file__).with_name("digests.json")
_FIELDS = (
    *("observations", "last_observations", "actions", "rewards", "terminated", "truncated"),
    *("env_infos", "agent_infos", "episode_infos", "lengths", "indices", "seeds", "agent_version", "seed"),
)


def digest_of(batches: list[TrajectoryBatch]) -> str:
    """Return the digest of what a user can see of some batches: of whole trajectories, without filters."""
    found = hashlib.sha256()
    for batch in batches:
        for name in _FIELDS:
            found.update(f"<{name}>".encode())
            value = getattr(batch, name)
            add(found, list(value) if name == "seeds" else value)
    return found.hexdigest()[:24]


def _world(draw: random.Random) -> dict[str, Any]:
    """Draw what is sampled: agents, environments, updates for them, and the kind of worker."""
    kind = draw.choice(["room", "noisy", "counting", "shapes", "wide", "rough", "side by side", "batched", "vector"])
    agents: list[Any] = [Drawing(draw.randrange(5)), Drawing(7)]
    envs: list[Any]
    options: dict[str, Any] = {}
    if kind in ("room", "noisy", "rough"):
        cls = {"room": Nested, "noisy": GlobalNoise, "rough": Rough}[kind]
        envs = [cls, partial(cls, 0.4), SetTaskUpdate(cls, 0.25)]
        options = {"on_failure": "drop"} if kind == "rough" else {}
    elif kind == "shapes":
        names = ["discrete", "binary", "several", "image", "integers", "tuple"]
        envs = [partial(Shapes, draw.choice(names)), partial(Shapes, draw.choice(names))]
    else:
        width = 3_000 if kind == "wide" else draw.choice([1, 2])
        envs = [partial(Counting, 10, width), partial(Counting, 3, width)]
    if kind in ("side by side", "batched"):
        options = {"worker_class": VecWorker, "worker_args": {"n_envs": draw.choice([2, 3, 8])}}
        if draw.random() < 0.5:
            options["worker_args"]["block_size"] = draw.choice([8, 16])
    if kind == "vector":
        envs, options = [Vector(draw.choice(["NEXT_STEP", "SAME_STEP", "DISABLED"]))], {"worker_class": VecWorker}
    if kind in ("batched", "vector"):
        agents = [Batched(draw.randrange(5)), Batched(9)]
    return {"agent": agents[0], "agents": agents[1:], "env": envs[0], "envs": envs[1:], "options": options}


def is_odd(info: dict[str, Any]) -> bool:
    """Return whether a trajectory is abnormal: three steps in one with an odd mark, or an event in the fifth."""
    event = info.get("event", {})
    return event.get("name") == "event 5" or (info.get("t") == 3 and bool(info["third"]["of"][0] % 2))


def _world_with_hooks(draw: random.Random) -> dict[str, Any]:
    world = _world(draw)
    while isinstance(world["env"], Vector):  # which calls none
        world = _world(draw)
    world["options"] = {**world["options"], "hooks": Measuring()}
    if draw.random() < 0.5:
        world["options"]["drop_if"] = is_odd
    return world


def _sampler(draw: random.Random, world: dict[str, Any], seed: int, forced: dict[str, Any]) -> Any:
    n_workers = draw.choice([1, 2, 3, 5])
    agents, envs = world["agent"], world["env"]
    if not world["options"].keys() - {"hooks"} and draw.random() < 0.2:
        agents, envs = [type(agents)(number) for number in range(n_workers)], [envs] * n_workers
    options = {"n_workers": n_workers, "seed": seed, **world["options"]}
    if draw.random() < 0.2 and not isinstance(envs, Vector):  # which ends its trajectories itself
        options["max_episode_length"] = draw.choice([1, 4, 9])
    method: Any = draw.choice(["local", "local", "forkserver", "forkserver", "forkserver", "spawn", "fork"])
    if method == "local" and not forced:
        return LocalSampler(agents, envs, **options)
    # Engine "processes" has one start method; "spawn" and "fork" are drawn for queues.
    options["start_method"] = None if method == "local" or forced.get("engine") == "processes" else method
    return make_sampler(agents, envs, **{**options, **forced})


def _call(draw: random.Random, sampler: Any, world: dict[str, Any]) -> list[TrajectoryBatch]:
    updates: dict[str, Any] = {}
    if draw.random() < 0.4:
        updates["agent_update"] = draw.choice([(draw.randrange(9),), *world["agents"]])
    if world["envs"] and draw.random() < 0.3:
        updates["env_update"] = draw.choice(world["envs"])
    kind = draw.choice(["samples", "samples", "trajectories", "exact", "stream"])
    if kind == "samples":
        return [sampler.obtain_samples(draw.randint(1, 300), **updates)]
    if kind == "trajectories":
        return [sampler.obtain_trajectories(draw.randint(1, 40), **updates)]
    if kind == "exact" and not world["options"].keys() & {"on_failure", "drop_if"}:
        return [sampler.obtain_exact_trajectories(draw.randint(1, 9), **updates)]
    return list(itertools.islice(sampler.stream(**updates), draw.randint(1, 25)))


def _batches_of(number: int, forced: dict[str, Any]) -> list[TrajectoryBatch]:
    draw = random.Random(number)
    world = _world(draw) if number < _FIRST_WITH_HOOKS else _world_with_hooks(draw)
    with _sampler(draw, world, 1_000 + number, forced) as sampler:
        return [batch for _ in range(draw.randint(1, 4)) for batch in _call(draw, sampler, world)]


def _digest(number: int, **forced: Any) -> str:
    """Run a scenario, and return its digest.

    Args:
        number: The scenario.
        forced: An engine and a start method, which then run all scenarios.
    """
    if number < _FIRST_PROGRAM:
        return digest_of(_batches_of(number, forced))
    return digest_of_trees(seen_by(number - _FIRST_PROGRAM, **forced))


def prove(scale: str, **forced: Any) -> None:
    """Compare the digests of all scenarios, or of the first ones, with those that were recorded.

    Args:
        scale: "short" or "long".
        forced: An engine and a start method for all scenarios; without them, those that a scenario draws.

    Raises:
        AssertionError: Some differ.
    """
    expected = json.loads(_RECORDED.read_text())
    numbers: Sequence[int] = range(N_SCENARIOS)
    if scale != "long":
        # Each scenario starts actors of its own on Ray, which takes seconds.
        n = _N_SHORT // 4 if forced.get("engine") == "ray" else _N_SHORT
        firsts = 0, _FIRST_WITH_HOOKS, _FIRST_PROGRAM, _FIRST_WITH_MASKS, N_SCENARIOS
        numbers = [number for part in itertools.pairwise(firsts) for number in range(*part)[: n // 2]]
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each worker that is killed
    with kept_open(forced.get("engine")):
        found = {str(number): _digest(number, **forced) for number in numbers}
    differing = [number for number in found if found[number] != expected[number]]
    print(f"{len(numbers)} scenarios, {len(differing)} differ from what was recorded {differing or ''}")
    assert not differing


if __name__ == "__main__" and sys.argv[1:] == ["record"]:
    _RECORDED.write_text(json.dumps({str(number): _digest(number) for number in range(N_SCENARIOS)}, indent=0) + "\n")
