"""Tasks of a call: so many trajectories of each, in order, whatever runs them; nothing of them is left afterwards."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import MultiprocessingSampler, SetParameters, SetTaskUpdate, TrajectoryBatch, VecWorker, replay
from streamsampler.environments import Uniform
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.testing import Fault, Faults
from tests.contracts.conftest import PARENT, QUEUES, RAY
from tests.scripted.agents import Independent, always_zero
from tests.scripted.envs import AnyLength


class Plain(AnyLength):
    """Shows its attributes in its rewards."""

    def __init__(self):
        super().__init__()
        self.task, self.mass, self.size = 0.0, 0.0, 0.0

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.task + 10.0 * self.mass + 100.0 * self.size, *rest


class Tasked(Plain):
    def set_task(self, task):
        self.task = task["number"] if isinstance(task, dict) else task


NUMBERS = [5.0, 3.0, 4.0, 3.0, 9.0]
MASSES = [SetParameters({"mass": Uniform(number, number + 1)}) for number in NUMBERS]


def first_rewards(batch):
    return [float(each.rewards[0]) for each in batch]


def same(first, second):
    for name in ("observations", "rewards", "lengths", "last_observations", "indices"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert first.seeds == second.seeds
    assert first.episode_infos["task_index"].tolist() == second.episode_infos["task_index"].tolist()


def expected_batches(make_local):
    sampler = make_local(always_zero, Tasked, seed=1)
    first = sampler.obtain_trajectories(4, tasks=NUMBERS)
    assert first_rewards(first) == np.repeat(NUMBERS, 4).tolist()
    assert first.episode_infos["task_index"].tolist() == np.repeat(range(5), 4).tolist()
    assert first.indices.tolist() == list(range(20))
    plain = sampler.obtain_trajectories(7)
    assert set(plain.rewards.tolist()) == {0.0}
    sampler = make_local(always_zero, Plain, seed=1)
    drawn = sampler.obtain_trajectories(3, tasks=MASSES)
    masses = drawn.episode_infos["parameters"]["mass"]
    assert first_rewards(drawn) == (10 * masses).tolist()
    assert ((masses >= np.repeat(NUMBERS, 3)) & (masses <= np.repeat(NUMBERS, 3) + 1)).all()
    assert len(set(masses.tolist())) == 15
    other = sampler.obtain_trajectories(1, tasks=[SetParameters({"size": 1}), SetParameters({"size": 2})])
    assert first_rewards(other) == [100.0, 200.0]
    return first, plain, drawn, other


SLOW_ENGINES = [*QUEUES, "lanes forkserver", "vec forkserver", PARENT]
ENGINES = [
    "local",
    "forkserver",
    "lanes",
    "vec",
    RAY,
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ENGINES),
]
WORKERS = [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 7))]


@pytest.mark.parametrize("n_workers", WORKERS)
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_tasks_come_in_order_and_leave_nothing(make_sampler, make_local, n_workers):
    first, plain, drawn, other = expected_batches(make_local)
    sampler = make_sampler(always_zero, Tasked, n_workers=n_workers, seed=1)
    same(first, sampler.obtain_trajectories(4, tasks=NUMBERS))
    batch = sampler.obtain_trajectories(7)
    assert np.array_equal(batch.rewards, plain.rewards)
    assert "task_index" not in batch.episode_infos
    sampler = make_sampler(always_zero, Plain, n_workers=n_workers, seed=1)
    same(drawn, sampler.obtain_trajectories(3, tasks=MASSES))
    same(other, sampler.obtain_trajectories(1, tasks=[SetParameters({"size": 1}), SetParameters({"size": 2})]))


@pytest.mark.slow
def test_tasks_outlive_many_kills(tmp_path, make_local):
    calls = [NUMBERS, None, NUMBERS[::-1], None]
    reference = make_local(always_zero, Tasked, seed=1)
    times = [(version, number) for version in (1, 2, 3, 4) for number in (0, 7, 12)]
    kills = [Fault("kill", "step", trajectory=number, version=version) for version, number in times]
    faults = Faults(tmp_path, *kills, seed=1)
    sampler = MultiprocessingSampler(always_zero, faults.env(Tasked), n_workers=3, seed=1, check=None, max_restarts=50)
    with sampler:
        for tasks in calls:
            n = 4 if tasks else 20
            first, second = (each.obtain_trajectories(n, tasks=tasks) for each in (reference, sampler))
            assert np.array_equal(first.rewards, second.rewards)
            assert np.array_equal(first.observations, second.observations)
        assert faults.fired() == 12
        # A worker that died is started again if there is work for it: each of the three once less, at the least.
        assert 12 - 3 <= sampler.stats.restarts <= 12


def test_tasks_go_with_seeds_options_and_updates(make_local):
    sampler = make_local(always_zero, Tasked, n_workers=2, seed=1)
    seeds = list(range(10, 20))
    batch = sampler.obtain_trajectories(2, tasks=NUMBERS, seeds=seeds)
    assert list(batch.seeds) == seeds
    assert sampler.replay(1, 7, recorded=batch).same
    assert first_rewards(sampler.replay(1, 7).trajectory) == [3.0]
    update = SetTaskUpdate(Tasked, 8.0)
    batch = sampler.obtain_trajectories(1, env_update=update, tasks=[1.0, 2.0])
    assert first_rewards(batch) == [1.0, 2.0]
    assert first_rewards(sampler.obtain_trajectories(3)) == [8.0] * 3


@pytest.mark.parametrize("n_workers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "engine",
    ["local", "lanes", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vec", "forkserver", PARENT))],
    indirect=True,
)
def test_streams_and_samples_take_them(make_sampler, make_local, n_workers):
    whole = make_local(always_zero, Tasked, seed=1).obtain_trajectories(4, tasks=NUMBERS)
    sampler = make_sampler(always_zero, Tasked, n_workers=n_workers, seed=1)
    with sampler.stream(n_trajectories=4, tasks=NUMBERS) as stream:
        streamed = TrajectoryBatch.concatenate(*stream)
    same(streamed, whole)
    in_turn = sampler.obtain_samples(60, tasks=NUMBERS)
    assert in_turn.episode_infos["task_index"].tolist() == [index % 5 for index in range(len(in_turn))]
    assert first_rewards(in_turn) == [NUMBERS[index % 5] for index in range(len(in_turn))]
    assert in_turn.n_timesteps >= 60 > in_turn.n_timesteps - in_turn.lengths[-1]
    plain = sampler.obtain_trajectories(3)
    assert first_rewards(plain) == [0.0] * 3
    first = 12 if sampler.layout.block == 1 else 6
    rest = list(sampler.stream(n_trajectories=4, tasks=NUMBERS, first_trajectory=first))
    assert [int(one.indices[0]) for one in rest] == list(range(first, 20))
    assert [float(one.rewards[0]) for one in rest] == np.repeat(NUMBERS, 4).tolist()[first:]


def test_streams_need_a_number_of_each(make_local):
    sampler = make_local(always_zero, Tasked, seed=1)
    with pytest.raises(UsageError, match=r"n_trajectories \(of each task\)"):
        sampler.stream(tasks=NUMBERS)
    with pytest.raises(UsageError, match=r"nothing for trajectory 20: the tasks have 20"):
        sampler.stream(n_trajectories=4, tasks=NUMBERS, first_trajectory=20)
    with pytest.raises(UsageError, match="empty"):
        sampler.obtain_samples(5, tasks=[])


@pytest.mark.parametrize("agent", [always_zero, Independent(always_zero)])
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}])
def test_trajectories_of_earlier_calls_are_replayed_with_their_tasks(make_local, agent, options):
    sampler = make_local(agent, Tasked, seed=1, **options)
    batch = sampler.obtain_trajectories(4, tasks=NUMBERS)
    in_turn = sampler.obtain_samples(60, tasks=NUMBERS[:3])
    sampler.obtain_trajectories(2)
    for recorded, version, tasks in ((batch, 1, NUMBERS), (in_turn, 2, NUMBERS[:3])):
        for index in (0, 4, 5):
            found = sampler.replay(version, index, recorded=recorded, agent=agent, tasks=tasks)
            assert found.same
            number = found.trajectory.episode_infos["task_index"]
            assert number.tolist() == [recorded.episode_infos["task_index"][index]]
            alone = replay(recorded, index, agent=agent, env=Tasked, tasks=tasks, **options)
            assert alone.same
            assert not sampler.replay(version, index, recorded=recorded, agent=agent).same
        with pytest.raises(UsageError, match="the recorded trajectories had others"):
            sampler.replay(version, 4, recorded=recorded, agent=agent, tasks=[9.0])
    with pytest.raises(UsageError, match="pass recorded="):
        sampler.replay(1, 4, agent=agent, tasks=NUMBERS)
    with pytest.raises(UsageError, match="had no tasks"):
        sampler.replay(3, 1, recorded=sampler.obtain_trajectories(2), agent=agent, tasks=NUMBERS)


def test_a_task_may_be_changed_by_its_environment(make_local):
    sampler = make_local(always_zero, Changing, seed=1)
    batch = sampler.obtain_trajectories(3, tasks=[{"number": 1.0}, {"number": 2.0}])
    assert first_rewards(batch) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


class Changing(Tasked):
    def set_task(self, task):
        super().set_task(dict(task))
        task["number"] = 99.0


class Telling(Tasked):
    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info | {"task_index": 1}


BAD: list[Any] = [
    ([], "empty"),
    ("abc", "must be a list"),
    (5, "must be a list"),
    ([SetParameters({"mass": 1}), 2.0], "one kind"),
    ([SetParameters({"mass": 1}), SetParameters({"size": 1})], "one kind"),
    ([SetParameters({"mass": 1}, Plain)], r"tasks\[0\].*without an environment"),
    ([SetTaskUpdate(Tasked, 1)], r"tasks\[0\].*the task alone"),
]


@pytest.mark.parametrize(("tasks", "words"), BAD)
def test_bad_tasks_are_refused(make_local, tasks, words):
    with pytest.raises(UsageError, match=words):
        make_local(always_zero, Tasked).obtain_trajectories(2, tasks=tasks)


@pytest.mark.parametrize("n", [None, 0, -1, 1.5])
def test_tasks_need_a_number_of_each(make_local, n):
    with pytest.raises(UsageError, match="n_trajectories"):
        make_local(always_zero, Tasked).obtain_trajectories(n, tasks=[1.0])


def test_what_takes_no_tasks_says_so(make_local):
    sampler = make_local(always_zero, Plain)
    for tasks, words in (([1.0], "set_task"), ([SetParameters({"weight": 1})], r"no parameter weight.*mass, .*size")):
        with pytest.raises((RolloutError, UsageError), match=words):
            sampler.obtain_trajectories(2, tasks=tasks)
    with pytest.raises((RolloutError, UsageError), match="overruled"):
        sampler.obtain_trajectories(2, env_update=SetParameters({"mass": 1}), tasks=MASSES)
    with pytest.raises((RolloutError, UsageError), match="task_index"):
        make_local(always_zero, Telling).obtain_trajectories(2, tasks=[1.0])
    native = make_local(
        Independent(always_zero), lambda: SyncVectorEnv([Tasked] * 2), worker_class=VecWorker, worker_args={"n_envs": 2}
    )
    with pytest.raises((RolloutError, UsageError), match=r"takes no tasks.*not vectorised"):
        native.obtain_trajectories(2, tasks=[1.0])
    with pytest.raises(SerializationError, match="the tasks"):
        sampler.obtain_trajectories(2, tasks=[(each for each in ())])
