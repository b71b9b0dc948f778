"""Tasks of a call: so many trajectories of each, in order; nothing of them is left afterwards."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import SetParameters, SetTaskUpdate, TrajectoryBatch, VecWorker, replay
from streamsampler.environments import Uniform
from streamsampler.errors import RolloutError, SerializationError, UsageError
from tests.contracts.conftest import PARENT, RAY, on, slow
from tests.contracts.told import Tasked, Told, first_rewards, told
from tests.scripted.agents import Independent, always_zero

NUMBERS = [5.0, 3.0, 4.0, 3.0, 9.0]
MASSES = [SetParameters({"mass": Uniform(number, number + 1)}) for number in NUMBERS]


@on("local", "waiting", "lanes", "vec", RAY, *slow("processes", PARENT))
def test_tasks_come_in_order_and_leave_nothing(make_sampler):
    sampler = make_sampler(always_zero, Tasked, n_workers=3, seed=1)
    batch = sampler.obtain_trajectories(4, tasks=NUMBERS)
    assert first_rewards(batch) == np.repeat(NUMBERS, 4).tolist()
    assert told(batch, "task_index") == np.repeat(range(5), 4).tolist()
    assert batch.indices.tolist() == list(range(20))
    plain = sampler.obtain_trajectories(7)
    assert set(plain.rewards.tolist()) == {0.0}
    assert "task_index" not in plain.episode_infos
    in_turn = sampler.obtain_samples(60, tasks=NUMBERS)
    assert told(in_turn, "task_index") == [index % 5 for index in range(len(in_turn))]
    assert first_rewards(in_turn) == [NUMBERS[index % 5] for index in range(len(in_turn))]
    assert in_turn.n_timesteps >= 60 > in_turn.n_timesteps - in_turn.lengths[-1]
    with sampler.stream(n_trajectories=4, tasks=NUMBERS) as stream:
        assert first_rewards(TrajectoryBatch.concatenate(*stream)) == first_rewards(batch)
    first = 12 if sampler.layout.block == 1 else 6
    rest = list(sampler.stream(n_trajectories=4, tasks=NUMBERS, first_trajectory=first))
    assert [int(one.indices[0]) for one in rest] == list(range(first, 20))
    assert [float(one.rewards[0]) for one in rest] == np.repeat(NUMBERS, 4).tolist()[first:]
    assert first_rewards(sampler.obtain_trajectories(3)) == [0.0] * 3


@on("local", "waiting", "lanes", *slow("vec", "processes", PARENT))
def test_tasks_of_parameters(make_sampler):
    sampler = make_sampler(always_zero, Told, n_workers=3, seed=1)
    drawn = sampler.obtain_trajectories(3, tasks=MASSES)
    masses = drawn.episode_infos["parameters"]["mass"]
    assert first_rewards(drawn) == (10 * masses).tolist()
    assert ((masses >= np.repeat(NUMBERS, 3)) & (masses <= np.repeat(NUMBERS, 3) + 1)).all()
    assert len(set(masses.tolist())) == 15
    sizes = [SetParameters({"size": 1}), SetParameters({"size": 2})]
    assert first_rewards(sampler.obtain_trajectories(1, tasks=sizes)) == [100.0, 200.0]


def test_tasks_go_with_seeds_and_updates(make_local):
    sampler = make_local(always_zero, Tasked, n_workers=2, seed=1)
    seeds = list(range(10, 20))
    batch = sampler.obtain_trajectories(2, tasks=NUMBERS, seeds=seeds)
    assert list(batch.seeds) == seeds
    assert sampler.replay(1, 7, recorded=batch).same
    assert first_rewards(sampler.replay(1, 7).trajectory) == [3.0]
    batch = sampler.obtain_trajectories(1, env_update=SetTaskUpdate(Tasked, 8.0), tasks=[1.0, 2.0])
    assert first_rewards(batch) == [1.0, 2.0]
    assert first_rewards(sampler.obtain_trajectories(3)) == [8.0] * 3
    changed = sampler.obtain_trajectories(3, tasks=[{"number": 1.0}, {"number": 2.0}])  # by the environment
    assert first_rewards(changed) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("agent", [always_zero, Independent(always_zero)])
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}])
def test_trajectories_of_earlier_calls_are_replayed_with_their_tasks(make_local, agent, options):
    sampler = make_local(agent, Tasked, seed=1, **options)
    batch = sampler.obtain_trajectories(4, tasks=NUMBERS)
    in_turn = sampler.obtain_samples(60, tasks=NUMBERS[:3])
    plain = sampler.obtain_trajectories(2)
    for recorded, version, tasks in ((batch, 1, NUMBERS), (in_turn, 2, NUMBERS[:3])):
        given: dict[str, Any] = {"recorded": recorded, "agent": agent}
        for index in (0, 4, 5):
            found = sampler.replay(version, index, tasks=tasks, **given)
            assert found.same
            assert told(found.trajectory, "task_index") == [recorded.episode_infos["task_index"][index]]
            assert replay(recorded, index, agent=agent, env=Tasked, tasks=tasks, **options).same
            assert not sampler.replay(version, index, **given).same
        with pytest.raises(UsageError, match="do not match those of the recorded trajectories"):
            sampler.replay(version, 4, tasks=[9.0], **given)
    with pytest.raises(UsageError, match="pass recorded="):
        sampler.replay(1, 4, agent=agent, tasks=NUMBERS)
    with pytest.raises(UsageError, match="had no tasks"):
        sampler.replay(3, 1, recorded=plain, agent=agent, tasks=NUMBERS)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tasks": []}, "empty"),
    ({"tasks": "abc"}, "must be a list"),
    ({"tasks": 5}, "must be a list"),
    ({"tasks": [SetParameters({"mass": 1}), 2.0]}, "one kind"),
    ({"tasks": [SetParameters({"mass": 1}), SetParameters({"size": 1})]}, "one kind"),
    ({"tasks": [SetParameters({"mass": 1}, Told)]}, r"tasks\[0\].*without an environment"),
    ({"tasks": [SetTaskUpdate(Tasked, 1)]}, r"tasks\[0\].*the task value itself"),
    *(({"tasks": [1.0], "n_trajectories": n}, "n_trajectories") for n in (None, 0, -1, 1.5)),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_tasks_are_refused(make_local, arguments, words):
    with pytest.raises(UsageError, match=words):
        make_local(always_zero, Tasked).obtain_trajectories(**{"n_trajectories": 2, **arguments})


def test_streams_need_a_number_of_each(make_local):
    sampler = make_local(always_zero, Tasked, seed=1)
    with pytest.raises(UsageError, match=r"n_trajectories \(of each task\)"):
        sampler.stream(tasks=NUMBERS)
    with pytest.raises(UsageError, match="trajectory 20 does not exist: the tasks have 20"):
        sampler.stream(n_trajectories=4, tasks=NUMBERS, first_trajectory=20)
    with pytest.raises(UsageError, match="empty"):
        sampler.obtain_samples(5, tasks=[])


class Telling(Tasked):
    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info | {"task_index": 1}


def test_what_takes_no_tasks_says_so(make_local):
    native: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
    cases: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
        (Told, {}, {"tasks": [1.0]}, "set_task"),
        (Told, {}, {"tasks": [SetParameters({"weight": 1})]}, r"no parameter weight.*mass, .*size"),
        (Told, {}, {"env_update": SetParameters({"mass": 1}), "tasks": MASSES}, "overridden"),
        (Telling, {}, {"tasks": [1.0]}, "task_index"),
        (lambda: SyncVectorEnv([Tasked] * 2), native, {"tasks": [1.0]}, r"takes no tasks.*not vectorised"),
        (Told, {}, {"tasks": [(each for each in ())]}, "the tasks .*cannot be pickled"),
    ]
    for env, options, arguments, words in cases:
        sampler = make_local(Independent(always_zero), env, **options)
        with pytest.raises((RolloutError, UsageError, SerializationError), match=words):
            sampler.obtain_trajectories(2, **arguments)
