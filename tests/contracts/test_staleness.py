"""`staleness=1`: each batch is made with the parameters of the call before, the same for any number of workers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, PerWorker, SetTaskUpdate, TrajectoryBatch, VecWorker, evaluate
from streamsampler.errors import RolloutError, SamplerError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.sharded import sample_to_folder
from streamsampler.testing import Fault, Faults
from tests.contracts.conftest import RAY, SLOW_RAY, Maker
from tests.contracts.test_resets import Told
from tests.contracts.test_tasks import Tasked, first_rewards
from tests.scripted.agents import Drawing, Stamping, always_zero
from tests.scripted.envs import AnyLength, GlobalNoise
from tests.scripted.failing import Boom, Brittle
from tests.scripted.vectors import Vector

SEED = 4711
LAGGING: dict[str, Any] = {"seed": SEED, "staleness": 1, "check": None}
Call = tuple[str, int]  # which call of the sampler, and its number

NEW_ENV = SetTaskUpdate(GlobalNoise, 0.3)
ANEW = 6  # the call that it comes with
CALLS: list[Call] = [
    ("obtain_samples", 20),
    ("obtain_samples", 30),
    ("obtain_samples", 25),
    ("obtain_trajectories", 5),
    ("obtain_samples", 60),
    ("obtain_samples", 15),
    ("obtain_trajectories", 5),
    ("obtain_trajectories", 2),
    ("obtain_samples", 17),
    ("obtain_samples", 17),
]


def obtained(
    sampler: Sampler, calls: Sequence[Call] = CALLS, first: int = 1, env: Any = NEW_ENV
) -> list[TrajectoryBatch]:
    """What calls return, the first of which has a number; their parameters are their numbers."""
    return [
        getattr(sampler, kind)(n, agent_update=(number,), env_update=env if number == ANEW else None)
        for number, (kind, n) in enumerate(calls, start=first)
    ]


@cache
def expected() -> list[list[TrajectoryBatch]]:
    """The trajectories of each batch, one by one from a sampler of that version, as the rule says in words."""
    batches: list[list[TrajectoryBatch]] = []
    first = 0
    env: Any = GlobalNoise
    for number, (kind, n) in enumerate(CALLS, start=1):
        env = NEW_ENV if number == ANEW else env
        version = number if number in (1, ANEW) else number - 1
        if not batches or version != batches[-1][0].agent_version:
            first = 0
        batches.append([])
        with LocalSampler(Drawing(version), env, seed=SEED, check=None) as sampler:
            sampler._session.version = version - 1
            for trajectory in sampler.stream(first_trajectory=first):
                batches[-1].append(trajectory)
                first += 1
                timesteps = sum(one.n_timesteps for one in batches[-1])
                if (len(batches[-1]) if kind == "obtain_trajectories" else timesteps) >= n:
                    break
    return batches


LOCAL = pytest.mark.parametrize(
    "engine", ["local", pytest.param("forkserver", marks=pytest.mark.slow), SLOW_RAY], indirect=True
)
EACH_TIME = [*(("local", n) for n in (1, 2, 3, 7)), ("forkserver", 3)]
IN_THE_SLOW_TIER = [
    ("forkserver", 1),
    ("forkserver", 2),
    ("forkserver", 7),
    ("shared memory", 3),
    ("pipes", 2),
]
ENGINES_AND_WORKERS = [
    *EACH_TIME,
    *(pytest.param(*one, marks=pytest.mark.slow) for one in [*IN_THE_SLOW_TIER, ("queues fork", 3)]),
    pytest.param("ray", 3, marks=RAY.marks),
]


@pytest.mark.parametrize(("engine", "n_workers"), ENGINES_AND_WORKERS, indirect=["engine"])
def test_each_batch_is_of_the_version_before(make_sampler: Maker, n_workers: int) -> None:
    """Of the first version in the first two calls, and where an environment comes with a call."""
    batches = obtained(make_sampler(Drawing(), GlobalNoise, n_workers=n_workers, **LAGGING))
    assert [list(batch) for batch in batches] == expected()
    assert [set(batch.agent_versions.tolist()) for batch in batches] == [{v} for v in (1, 1, 2, 3, 4, 6, 6, 7, 8, 9)]
    assert batches[1].indices[0] == batches[0].n_trajectories
    assert batches[6].indices[0] == batches[5].n_trajectories


SIDE_BY_SIDE = [
    "vec",
    "lanes",
    *(pytest.param(f"{one} forkserver", marks=pytest.mark.slow) for one in ("vec", "lanes")),
]


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("engine", SIDE_BY_SIDE, indirect=True)
def test_side_by_side(make_sampler: Maker, engine: str, n_workers: int) -> None:
    calls: list[Call] = [*CALLS[:4], ("obtain_trajectories", 13), *CALLS[4:]]
    with Maker(engine.split()[0])(Stamping(), AnyLength, **LAGGING) as twin:  # in this process
        same = obtained(twin, calls, env=AnyLength)
    assert obtained(make_sampler(Stamping(), AnyLength, n_workers=n_workers, **LAGGING), calls, env=AnyLength) == same
    assert [set(batch.actions.tolist()) for batch in same] == [{v} for v in (1, 1, 2, 3, 4, 6, 6, 7, 8, 9, 10)]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_native_vector_environments(make_local: Callable[..., LocalSampler], mode: str) -> None:
    """Blocks are what they are without a lag, also where an environment resets itself."""
    options: dict[str, Any] = LAGGING | {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 7}}
    lagging, other = (make_local(always_zero, Vector(mode), **options | it) for it in ({}, {"staleness": 0}))
    batches, same = ([sampler.obtain_trajectories(9) for _ in range(3)] for sampler in (lagging, other))
    assert (batches[0], batches[2]) == (same[0], same[1])


@pytest.mark.parametrize("engine", ["local", "forkserver", SLOW_RAY], indirect=True)
def test_workers_with_agents_of_their_own(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """Whose index is whose depends on the kind of call."""
    results = []
    for make in (make_sampler, make_local):
        sampler = make([Stamping(7), Stamping(8)], AnyLength, n_workers=2, **LAGGING)
        results.append([
            sampler.obtain_exact_trajectories(3),
            sampler.obtain_exact_trajectories(2, agent_update=PerWorker([(17,), (18,)])),
            sampler.obtain_trajectories(5, agent_update=PerWorker([(27,), None])),
            sampler.obtain_exact_trajectories(2, agent_update=Stamping(30)),
            sampler.obtain_samples(40),
        ])  # fmt: skip
    assert results[0] == results[1]
    exact, later, some, both, shared = results[0]
    assert [set(one.actions.tolist()) for one in exact] == [{7}] * 3 + [{8}] * 3
    assert [set(one.actions.tolist()) for one in later] == [{7}] * 2 + [{8}] * 2
    assert later.indices.tolist() == [6, 7, 8, 9]
    assert [set(one.actions.tolist()) for one in some] == [{17}, {18}, {17}, {18}, {17}]
    assert [set(one.actions.tolist()) for one in both] == [{27}] * 2 + [{18}] * 2
    assert set(shared.actions.tolist()) == {30}


@LOCAL
def test_trajectories_that_are_left_out(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """None of them comes again in the second batch."""
    options = LAGGING | {"on_failure": "drop"}
    calls: list[Call] = [("obtain_trajectories", 9), ("obtain_samples", 60), ("obtain_samples", 40)]
    env = partial(Brittle, one_in=3)
    sampler = make_sampler(Drawing(), env, n_workers=2, **options)
    batches = obtained(sampler, calls)
    assert batches == obtained(make_local(Drawing(), env, **options), calls)
    dropped = [one.index for one in sampler.stats.dropped if one.version == 1]
    assert dropped
    both = sorted([*dropped, *batches[0].indices.tolist(), *batches[1].indices.tolist()])
    assert both == list(range(len(both)))


@LOCAL
def test_seeds_options_and_tasks_are_of_their_call(make_sampler: Maker) -> None:
    """Only the parameters are those of the call before."""
    sampler = make_sampler(Stamping(), Told, n_workers=2, **LAGGING)
    batches = [
        sampler.obtain_trajectories(3, agent_update=(1,), reset_options={"level": 1}),
        sampler.obtain_trajectories(agent_update=(2,), seeds=[5, 6, 7]),
        sampler.obtain_trajectories(2, agent_update=(3,), reset_options=[{"level": 2}, None]),
        sampler.obtain_samples(4, agent_update=(4,)),
    ]
    assert [set(batch.actions.tolist()) for batch in batches] == [{1}, {1}, {2}, {3}]
    assert batches[1].seeds == (5, 6, 7)
    assert batches[1].indices.tolist() == [3, 4, 5]
    for position in (0, 2, 3):
        batch = batches[position]
        assert batch.seeds == tuple(sampler.seeds(batch.agent_version, batch.indices))
    told = [batch.episode_infos["level"].tolist() for batch in batches]
    assert told == [[1, 1, 1], [0, 0, 0], [2, 0], [0] * len(batches[3])]
    sampler = make_sampler(Stamping(), Tasked, n_workers=2, **LAGGING)
    batches = [sampler.obtain_trajectories(2, agent_update=(number,), tasks=[3.0, 5.0]) for number in (1, 2, 3)]
    batches.append(sampler.obtain_trajectories(4, agent_update=(4,)))
    assert [first_rewards(batch) for batch in batches] == [[3.0, 3.0, 5.0, 5.0]] * 3 + [[0.0] * 4]
    assert [batch.indices[0] for batch in batches] == [0, 4, 0, 0]


# ---------------------------------------------------------------------- what goes wrong, and what comes after it


class Fussy(Stamping):
    """Takes no parameter of a hundred or more, and breaks with one from fifty on."""

    def set_param_values(self, values: tuple[int]) -> None:
        if values[0] >= 100:
            raise Boom("too much")
        super().set_param_values(values)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        if self.version >= 50:
            raise Boom("out of ideas")
        return super().get_action(observation)


@LOCAL
def test_after_an_error_a_call_begins_anew(make_sampler: Maker) -> None:
    sampler = make_sampler(Fussy(), AnyLength, n_workers=2, **LAGGING)
    batches = obtained(sampler, [("obtain_samples", 20)] * 2)
    batches.append(sampler.obtain_samples(20, agent_update=(60,)))  # is of version 2
    with pytest.raises(RolloutError, match=r"trajectory 0 of agent version 3: .*out of ideas"):
        sampler.obtain_samples(20, agent_update=(4,))
    batches += obtained(sampler, [("obtain_samples", 20)] * 3, first=5, env=None)
    assert [(batch.agent_version, batch.actions[0]) for batch in batches] == [
        (1, 1), (1, 1), (2, 2), (5, 5), (5, 5), (6, 6),
    ]  # fmt: skip
    assert [int(batch.indices[0]) for batch in batches[3:]] == [0, batches[3].n_trajectories, 0]


@LOCAL
def test_an_update_is_refused_in_the_call_after_its_own(make_sampler: Maker) -> None:
    """Then neither it nor that call's update is in force."""
    sampler = make_sampler(Fussy(), AnyLength, n_workers=2, **LAGGING)
    batches = obtained(sampler, [("obtain_samples", 20)] * 2)
    batches.append(sampler.obtain_samples(20, agent_update=(100,)))
    with pytest.raises(RolloutError, match="too much"):
        sampler.obtain_samples(20, agent_update=(4,))
    batches += [sampler.obtain_samples(20) for _ in range(3)]
    assert [(batch.agent_version, batch.actions[0]) for batch in batches] == [
        (1, 1), (1, 1), (2, 2), (5, 2), (5, 2), (6, 2),
    ]  # fmt: skip
    with pytest.raises(RolloutError, match="too much"):
        sampler.obtain_samples(20, agent_update=(100,), env_update=AnyLength)
    assert sampler.obtain_samples(20).actions[0] == 2


@LOCAL
def test_what_is_wrong_before_a_call_begins_changes_nothing(make_sampler: Maker) -> None:
    sampler = make_sampler(Drawing(), GlobalNoise, n_workers=2, **LAGGING)
    batches = obtained(sampler, CALLS[:2])
    for wrong in ({"agent_update": 5}, {"reset_options": {"lock": threading.Lock()}}, {"env_update": 5}):
        with pytest.raises((SamplerError, TypeError)):
            sampler.obtain_samples(10, **wrong)
    assert [list(batch) for batch in [*batches, *obtained(sampler, CALLS[2:5], first=3)]] == expected()[:5]


@pytest.mark.parametrize("engine", ["forkserver"], indirect=True)
def test_deaths_do_not_show(make_sampler: Maker, tmp_path: Path) -> None:
    n_first = len(expected()[0])
    places = [(1, 0), (1, n_first), (1, n_first + 1), (3, 1)]
    faults = Faults(
        tmp_path, *(Fault("kill", version=version, trajectory=index) for version, index in places), seed=SEED
    )
    sampler = make_sampler(Drawing(), faults.env(GlobalNoise), n_workers=3, **LAGGING)
    assert [list(batch) for batch in obtained(sampler)] == expected()
    assert faults.fired() == 4
    # A worker that died is started again if there is work for it: each of the three once less, at the least.
    assert 4 - 3 <= sampler.stats.restarts <= 4


# ---------------------------------------------------------------------- what else is promised


@pytest.mark.parametrize("n_before", [1, 2, 3, 6])
def test_a_copy_by_pickling_goes_on(make_local: Callable[..., LocalSampler], n_before: int) -> None:
    sampler = make_local(Drawing(), GlobalNoise, **LAGGING)
    batches = obtained(sampler, CALLS[:n_before])
    with pickle.loads(pickle.dumps(sampler)) as copy:
        batches += obtained(copy, CALLS[n_before:], first=n_before + 1)
    assert [list(batch) for batch in batches] == expected()


@LOCAL
def test_replay(make_sampler: Maker) -> None:
    """With the parameters that the last batch was made with."""
    sampler = make_sampler(Drawing(), GlobalNoise, n_workers=2, **LAGGING)
    batch = obtained(sampler, CALLS[:4])[-1]
    assert batch.agent_version == 3
    found = sampler.replay(3, 2, recorded=batch)
    assert found.difference is None
    with pytest.raises(UsageError, match="the sampler's agent is that of version 3"):
        sampler.replay(4, 0)


def test_provenance_says_which_trajectories_come_next(make_local: Callable[..., LocalSampler]) -> None:
    sampler = make_local(Drawing(), GlobalNoise, **LAGGING)
    told = []
    for call in CALLS[:3]:
        told.append(sampler.provenance())
        getattr(sampler, call[0])(call[1], agent_update=(len(told),))
    batches = expected()
    assert [it["staleness"] for it in told] == [1, 1, 1]
    assert [it.get("first_trajectory", 0) for it in told] == [0, len(batches[0]), 0]
    assert [it.get("agent_version", 1) for it in told] == [1, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"staleness": 2}, "staleness must be 0 or 1, got 2"),
        ({"staleness": True}, "staleness must be 0 or 1, got True"),
        ({"staleness": "1"}, "staleness must be 0 or 1, got '1'"),
        ({"staleness": np.array([1, 2])}, "staleness must be 0 or 1, got array"),
        ({"order": "arrival"}, 'staleness=1 needs order="index"'),
        ({"observation_filter": RunningNorm()}, "staleness=1 takes no observation_filter"),
    ],
)
def test_arguments_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LocalSampler(Stamping(), AnyLength, **{"staleness": 1, **options})


def test_calls_that_cannot_be_had(make_local: Callable[..., LocalSampler], tmp_path: Path) -> None:
    sampler = make_local(Stamping(), AnyLength, **LAGGING)
    for call in (
        lambda: sampler.obtain_fragments(4),
        sampler.stream,
    ):
        with pytest.raises(UsageError, match=r"staleness=1.*use another sampler"):
            call()
    for part in (None, (1, 2)):
        with pytest.raises(UsageError, match="an evaluation cannot be had from a sampler with staleness=1"):
            evaluate(sampler=sampler, num_trajectories=4, part=part)
    with pytest.raises(UsageError, match="staleness=0"):
        sample_to_folder(sampler, tmp_path / "folder", n_trajectories=4, shard_size=10)
    assert list(tmp_path.iterdir()) == []
    assert sampler.agent_version == 0
