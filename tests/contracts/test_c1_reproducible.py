"""C1: the same seed gives the same batches, wherever and however fast they are sampled."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, NewEnvUpdate, PerWorker, SetTaskUpdate, TrajectoryBatch
from streamsampler.errors import RolloutError
from streamsampler.samplers.base import Sampler
from tests.contracts.conftest import (
    ALL_BY_ALL,
    INLINE_LIMITS,
    PARENT,
    PROCESSES,
    QUEUES,
    RAY,
    SIDE_BY_SIDE,
    SLOW_RAY,
    Maker,
    slow_on,
)
from tests.scripted.agents import Attentive, Drawing, Linear, Stamping
from tests.scripted.envs import AnyLength, GlobalNoise, Nested, Steps, Wide, jittery

SEED = 20_240_607


@dataclass(frozen=True)
class Scenario:
    """What is sampled, and what changes between calls."""

    agent: Any
    env: Any
    parameters: Any
    new_env: Any
    new_agent: Any


SCENARIOS = {
    "CartPole": Scenario(
        agent=Linear(),
        env="CartPole-v1",
        parameters=np.array([0.1, 0.5, 3.0, 2.0]),
        new_env=NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12}),
        new_agent=Linear((0.0, 0.0, -1.0, 0.0)),
    ),
    "nested": Scenario(
        agent=Attentive(),
        env=Nested,
        parameters=(1.0, -1.0, 2.0, 0.5),
        new_env=partial(Nested, 0.4),
        new_agent=Attentive((0.0, 0.0, 0.0, 1.0)),
    ),
    "all generators": Scenario(
        agent=Drawing(),
        env=GlobalNoise,
        parameters=(2,),
        new_env=SetTaskUpdate(GlobalNoise, 0.3),
        new_agent=Drawing(1),
    ),
}


def three_calls(sampler: Sampler, scenario: Scenario, **first: Any) -> list[TrajectoryBatch]:
    """Three calls in a row with updates between them; `first` are updates that come with the first one.

    With an agent in this process a sampler has the very agent that it is given, and changes it: it gets a copy.
    """
    return [
        sampler.obtain_samples(150, **first),
        sampler.obtain_trajectories(9, agent_update=scenario.parameters),
        sampler.obtain_samples(120, agent_update=deepcopy(scenario.new_agent), env_update=scenario.new_env),
    ]


@cache
def expected(name: str, n_workers: int, side_by_side: bool = False) -> list[TrajectoryBatch]:
    """The three calls, and then `2 * n_workers` trajectories, by one worker in this process.

    What draws from generators that are seeded once a block comes out otherwise where trajectories run side by side.
    All else does not: the agents have no `get_actions`.
    """
    options: dict[str, Any] = SIDE_BY_SIDE if side_by_side and name == "all generators" else {}
    scenario = SCENARIOS[name]
    with LocalSampler(scenario.agent, scenario.env, seed=SEED, **options) as sampler:
        return [*three_calls(sampler, scenario), sampler.obtain_trajectories(2 * n_workers)]


@cache
def expected_in_one_life(side_by_side: bool) -> list[TrajectoryBatch]:
    """All scenarios, one after the other, by one worker in this process."""
    options: dict[str, Any] = SIDE_BY_SIDE if side_by_side else {}
    return in_one_life(LocalSampler(SCENARIOS["CartPole"].agent, SCENARIOS["CartPole"].env, seed=SEED, **options))


def in_one_life(sampler: Sampler, names: Iterable[str] = SCENARIOS) -> list[TrajectoryBatch]:
    with sampler:
        return [
            batch
            for scenario in map(SCENARIOS.__getitem__, names)
            for batch in three_calls(sampler, scenario, agent_update=deepcopy(scenario.agent), env_update=scenario.env)
        ]


def assert_same(batches: list[TrajectoryBatch], reference: list[TrajectoryBatch]) -> None:
    assert len(batches) == len(reference)
    for call, (batch, other) in enumerate(zip(batches, reference, strict=True)):
        assert batch == other, f"call {call}: {batch} is not {other}"


# In this process with all of them; each start method costs workers, so one number for each, below.
OTHER_STARTS = ("queues spawn", "queues forkserver") if ALL_BY_ALL else ()
ENGINES_AND_WORKERS = [
    *((engine, 3) for engine in ("local", "vec")),
    *(
        pytest.param(engine, n_workers, marks=pytest.mark.slow)
        for engine in ("local", "vec")
        for n_workers in (1, 2, 7)
    ),
    *(
        pytest.param(engine, n_workers, marks=pytest.mark.slow)
        for engine in ("forkserver", "vec forkserver", *INLINE_LIMITS, "queues fork", *OTHER_STARTS)
        for n_workers in (1, 2, 3, 7)
    ),
    pytest.param("ray", 3, marks=SLOW_RAY.marks),
    (PARENT, 2),
    ("one of several", 3),
    *(pytest.param("one of several forkserver", n_workers, marks=pytest.mark.slow) for n_workers in (1, 2, 7)),
    *(pytest.param(PARENT, n_workers, marks=pytest.mark.slow) for n_workers in (1, 3, 7)),
]


@pytest.mark.parametrize(("engine", "n_workers"), ENGINES_AND_WORKERS, indirect=["engine"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_same_batches(make_sampler: Maker, name: str, n_workers: int) -> None:
    scenario = SCENARIOS[name]
    sampler = make_sampler(scenario.agent, scenario.env, n_workers=n_workers, seed=SEED)
    if make_sampler.engine == PARENT and name == "all generators":
        with pytest.raises(RolloutError, match="drew from a global generator"):
            three_calls(sampler, scenario)
        return
    batches = [*three_calls(sampler, scenario), sampler.obtain_exact_trajectories(2)]
    assert_same(batches, expected(name, n_workers, make_sampler.side_by_side))
    assert [batch.agent_version for batch in batches] == [1, 2, 3, 4]
    assert len(batches[1]) == 9
    assert len(batches[3]) == 2 * n_workers


LIVES: list[Any] = [("local", 3), ("forkserver", 7), ("shared memory", 2), ("queues fork", 2)]
LIVES += [
    pytest.param(engine, n_workers, marks=pytest.mark.slow)
    for n_workers, engines in ((1, ("forkserver",)), (2, ("pipes", "vec forkserver")), (3, QUEUES))
    for engine in engines
]
LIVES += [pytest.param("ray", n_workers, marks=RAY.marks) for n_workers in (2, 5)]
LIVES += [("one of several", 2), pytest.param("one of several forkserver", 3, marks=pytest.mark.slow)]
LIVES += [pytest.param(PARENT, n_workers, marks=pytest.mark.slow) for n_workers in (2, 7)]


@pytest.mark.parametrize(("engine", "n_workers"), LIVES, indirect=["engine"])
def test_same_batches_in_one_life(make_sampler: Maker, n_workers: int) -> None:
    """One sampler goes through all agents and environments: fewer processes to start, and more updates."""
    first = SCENARIOS["CartPole"]
    sampler = make_sampler(first.agent, first.env, n_workers=n_workers, seed=SEED)
    names = [name for name in SCENARIOS if make_sampler.engine != PARENT or name != "all generators"]
    batches = in_one_life(sampler, names)
    assert_same(batches, expected_in_one_life(make_sampler.side_by_side)[: len(batches)])


def test_the_scenarios_are_not_trivial() -> None:
    """What is compared has something to compare: trajectories differ, and updates change them."""
    for name in SCENARIOS:
        first, second, third, _ = expected(name, 1)
        assert len(first) > 1
        assert len(set(second.returns.tolist())) > 4
        assert len(set(second.lengths.tolist())) > 3
        assert first.agent_infos.keys() == second.agent_infos.keys() != set()
        assert set(first.seeds).isdisjoint(second.seeds)
        assert third.lengths.max() <= 40


@pytest.fixture
def load() -> Iterator[None]:
    """More busy processes than cores, until the test is over."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for spinner in spinners:
        spinner.kill()
        spinner.wait()


@pytest.mark.slow  # it takes the cores from the tests that run at the same time, each of which has a limit
@pytest.mark.parametrize("engine", PROCESSES, indirect=True)
def test_same_batches_under_load(make_sampler: Maker, load: None) -> None:
    """The first of the two runs is the one that `expected` remembers, from quieter times."""
    scenario = SCENARIOS["all generators"]
    sampler = make_sampler(scenario.agent, scenario.env, n_workers=3, seed=SEED)
    assert_same(three_calls(sampler, scenario), expected("all generators", 3, make_sampler.side_by_side)[:3])


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
def test_timing_changes_nothing(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """Steps that take now more and now less time: trajectories come in in another order in each run."""
    sampler = make_sampler(Stamping(), jittery(AnyLength, 0.003), n_workers=5, seed=SEED)
    twin = make_local(Stamping(), AnyLength, seed=SEED)
    for call in range(8):
        assert sampler.obtain_samples(30 + call) == twin.obtain_samples(30 + call)


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
@pytest.mark.parametrize("lists", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_large_observations_take_another_way_to_the_same_batches(
    make_sampler: Maker, make_local: Callable[..., LocalSampler], lists: bool
) -> None:
    """They are recorded where they are sent from, and copied while the rest is collected."""
    envs: Any = [Wide] * 3 if lists else Wide
    batches = []
    for make in (make_sampler, make_local):
        sampler = make(Stamping(), envs, n_workers=3, seed=SEED)
        batches.append(
            [
                sampler.obtain_samples(1500),
                sampler.obtain_trajectories(100),
                sampler.obtain_exact_trajectories(30),
                sampler.obtain_samples(30),
            ]
        )
        # Memory of batches that are gone is used again, of those that are there it is not.
        sampler.obtain_samples(1500)
        batches[-1].append(sampler.obtain_samples(1500))
    assert_same(*batches)
    assert len({batch.observations.__array_interface__["data"][0] for batch in batches[0]}) == len(batches[0])


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_other_seeds_give_other_batches(make_sampler: Maker) -> None:
    batches = [make_sampler(Linear(), "CartPole-v1", seed=seed).obtain_trajectories(20) for seed in (0, 1, 2**100)]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert set(batches[one].seeds).isdisjoint(batches[other].seeds)
        assert batches[one].returns.tolist() != batches[other].returns.tolist()
    assert [batch.seed for batch in batches] == [0, 1, 2**100]


def test_versions_differ_without_any_update(make_sampler: Maker) -> None:
    sampler = make_sampler(Linear(), "CartPole-v1", n_workers=2, seed=SEED)
    first, second = sampler.obtain_trajectories(20), sampler.obtain_trajectories(20)
    assert set(first.seeds).isdisjoint(second.seeds)
    assert first.returns.tolist() != second.returns.tolist()


@pytest.mark.parametrize(("agent", "make_env"), [(Linear(), "CartPole-v1"), (Attentive(), Nested)])
def test_a_seed_starts_the_very_same_trajectory(make_sampler: Maker, agent: Any, make_env: Any) -> None:
    batch = make_sampler(agent, make_env, n_workers=2, seed=SEED).obtain_trajectories(7)
    env = gymnasium.make(make_env) if isinstance(make_env, str) else make_env()
    for number, trajectory in enumerate(batch):
        observation, _ = env.reset(seed=batch.seeds[number])
        for t, action in enumerate(trajectory.actions):
            assert_equal_trees(observation, row(trajectory.observations, t))
            observation, reward, terminated, truncated, _ = env.step(action)
            assert reward == trajectory.rewards[t]
            assert (terminated or truncated) == (t == trajectory.n_timesteps - 1)
        assert_equal_trees(observation, row(trajectory.last_observations, 0))
        assert [terminated, truncated] == [trajectory.terminated[0], trajectory.truncated[0]]


def row(tree: Any, number: int) -> Any:
    if isinstance(tree, dict):
        return {key: row(child, number) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row(child, number) for child in tree)
    return tree[number]


def assert_equal_trees(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_trees(one[key], other[key])
    elif isinstance(one, tuple):
        for child, other_child in zip(one, other, strict=True):
            assert_equal_trees(child, other_child)
    else:
        np.testing.assert_array_equal(one, other, strict=isinstance(one, np.ndarray))


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
def test_a_drawn_seed_repeats_the_run(make_sampler: Maker) -> None:
    scenario = SCENARIOS["nested"]
    first = make_sampler(scenario.agent, scenario.env, n_workers=2)
    other = make_sampler(scenario.agent, scenario.env, n_workers=1)
    assert first.seed != other.seed
    repeated = make_sampler(scenario.agent, scenario.env, n_workers=3, seed=first.seed)
    assert_same(three_calls(repeated, scenario), three_calls(first, scenario))


def test_the_users_generators_are_left_alone(make_sampler: Maker) -> None:
    if make_sampler.engine == PARENT:
        pytest.skip("refused there: an environment that draws from global generators")
    random.seed(5)
    np.random.seed(5)
    undisturbed = [(random.random(), np.random.random()) for _ in range(4)]
    random.seed(5)
    np.random.seed(5)
    drawn = [(random.random(), np.random.random())]
    sampler = make_sampler(Drawing(), GlobalNoise, n_workers=2, seed=SEED)
    drawn.append((random.random(), np.random.random()))
    sampler.obtain_samples(100)
    drawn.append((random.random(), np.random.random()))
    next(sampler.stream())
    drawn.append((random.random(), np.random.random()))
    assert drawn == undisturbed


def test_the_users_generators_change_nothing(make_sampler: Maker) -> None:
    if make_sampler.engine == PARENT:
        pytest.skip("refused there: an environment that draws from global generators")
    batches = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        batches.append(make_sampler(Drawing(), GlobalNoise, n_workers=2, seed=SEED).obtain_samples(100))
    assert batches[0] == batches[1]


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param([], marks=pytest.mark.slow),
        pytest.param([{"agent_update": SCENARIOS["nested"].parameters}], marks=pytest.mark.slow),
        [
            {"agent_update": SCENARIOS["nested"].parameters},
            {"agent_update": SCENARIOS["nested"].new_agent, "env_update": SCENARIOS["nested"].new_env},
            {"agent_update": (0.1, 0.2, 0.3, 0.4)},
            {},
        ],
    ],
    ids=["before any call", "after an update", "after several updates"],
)
def test_a_pickled_sampler_continues_the_same(make_sampler: Maker, updates: list[dict[str, Any]]) -> None:
    scenario = SCENARIOS["nested"]
    sampler = make_sampler(scenario.agent, scenario.env, n_workers=2, seed=SEED)
    for update in updates:
        sampler.obtain_trajectories(3, **update)
    copy = make_sampler.adopt(pickle.loads(pickle.dumps(sampler)))
    assert copy.agent_version == sampler.agent_version == len(updates)
    assert copy.seed == sampler.seed
    for _ in range(2):
        batch = sampler.obtain_samples(60)
        assert copy.obtain_samples(60) == batch
    assert copy.obtain_trajectories(5, agent_update=scenario.parameters) == sampler.obtain_trajectories(
        5, agent_update=scenario.parameters
    )


def test_lists_belong_to_workers(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    agents = [Stamping(10), Stamping(20), Stamping(30)]
    envs = [partial(Steps, length) for length in (2, 3, 4)]
    sampler = make_sampler(agents, envs, n_workers=3, seed=SEED)
    twin = make_local(agents, envs, n_workers=3, seed=SEED)

    batch = sampler.obtain_trajectories(8)
    assert batch == twin.obtain_trajectories(8)
    assert batch.indices.tolist() == list(range(8))
    assert batch.lengths.tolist() == [2, 3, 4, 2, 3, 4, 2, 3]
    assert [set(trajectory.actions.tolist()) for trajectory in batch] == [{10 * (1 + i % 3)} for i in range(8)]

    batch = sampler.obtain_exact_trajectories(2, agent_update=PerWorker([(11,), None, (31,)]))
    assert batch == twin.obtain_exact_trajectories(2, agent_update=PerWorker([(11,), None, (31,)]))
    assert batch.indices.tolist() == list(range(6))
    assert batch.lengths.tolist() == [2, 2, 3, 3, 4, 4]
    assert [trajectory.actions[0] for trajectory in batch] == [11, 11, 20, 20, 31, 31]

    batch = sampler.obtain_samples(20, env_update=[partial(Steps, 1), None, partial(Steps, 6)])
    assert batch == twin.obtain_samples(20, env_update=[partial(Steps, 1), None, partial(Steps, 6)])
    assert batch.lengths.tolist() == [1, 3, 6, 1, 3, 6]

    batch = sampler.obtain_samples(20, agent_update=(7,), env_update=partial(Steps, 5))
    assert batch == twin.obtain_samples(20, agent_update=(7,), env_update=partial(Steps, 5))
    assert batch.lengths.tolist() == [5, 5, 5, 5]
    assert set(batch.actions.tolist()) == {7}


def test_exact_trajectories_are_in_worker_order(make_sampler: Maker) -> None:
    batch = make_sampler(Stamping(), AnyLength, n_workers=3, seed=SEED).obtain_exact_trajectories(4)
    assert batch.indices.tolist() == list(range(12))
    assert len(batch) == 12
