"""Batches in lanes have whole multiples of 16 rows, and any row that is free takes the next trajectory."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.agents.independence import probe
from streamsampler.data.trees import same
from streamsampler.environments import PerEnv
from streamsampler.workers.vec.lanes import rows_of_lanes
from tests.tiers import mostly_slow
from tests.workers.vec.test_lanes import (
    Masked,
    Network,
    Remembering,
    Single,
    Tickets,
    Walk,
    alone,
    parts,
    run,
    worker_of,
)

N_ENVS, N_ROWS = 13, 16


class Wide(Network):
    n_rows = N_ROWS


class WideRemembering(Remembering):
    n_rows = N_ROWS


class WideMasked(Masked):
    n_rows = N_ROWS
    sums = np.zeros(N_ROWS)


class Placed(Wide):
    """Each row depends on its place, though on no other row."""

    def get_actions(self, observations, *, draws):
        actions, infos = super().get_actions(observations, draws=draws)
        return actions + np.arange(N_ROWS)[:, None] * 1e-3, infos


class Slotted(Wide):
    """Is told its rows' numbers."""

    seen: ClassVar[list[Any]] = []

    def get_actions(self, observations, *, draws, slots, starts):  # type: ignore[override]
        self.seen.append((slots.tolist(), np.flatnonzero(starts).tolist()))
        return super().get_actions(observations, draws=draws)


@pytest.mark.parametrize(
    ("n_envs", "n_rows"),
    [(1, 1), (2, 2), (8, 8), (11, 11), (12, 16), (15, 16), (16, 16), (17, 17), (23, 23), (24, 32), (33, 33), (36, 48)],
)
def test_rows_are_filled_up_to_multiples_of_16_where_that_adds_a_third_at_most(n_envs, n_rows):
    assert rows_of_lanes(n_envs) == n_rows


@pytest.mark.parametrize(
    ("agent", "limit"), mostly_slow([(Wide, 4), (WideRemembering, None), (WideMasked, None), (Single, 4)], 2)
)
def test_a_trajectory_does_not_depend_on_its_row(agent, limit):
    expected = alone(60, agent, Walk, n_envs=N_ENVS, max_episode_length=limit)
    for seed in range(4):
        worker = worker_of(agent(), Walk, n_envs=N_ENVS, max_episode_length=limit)
        rows = set()
        for ticket, outcome in Tickets.cut(worker, random.Random(seed), 60).run():
            for index, found in zip(ticket.indices, parts(outcome.rollouts), strict=True):
                assert same(found, expected[index]), index
            rows |= {each.row - each.index % N_ENVS for each in worker._lane_runner._tickets.begun()}
        assert len(rows) > 1, "any row takes the next one"


class Planned(Walk):
    """Lasts as long as a list says."""

    lengths: ClassVar[list[int]] = []

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, self.t == self.lengths[(self.seed - 1000) // 7], False, {}


@pytest.mark.parametrize(("agent", "begins"), [(Wide, 2), (Placed, 20), (Slotted, 20)])
def test_a_trajectory_does_not_wait_for_its_row(agent, begins):
    """The one of index 16 begins in the first row that is free, or in row 0, whose trajectory is long."""
    at: list[int] = []

    class Told(Planned):
        n_of_first = 0

        def reset(self, *, seed=None, options=None):
            if seed == 1000 + 7 * 16:
                at.append(Told.n_of_first)
            return super().reset(seed=seed)

        def step(self, action):
            Told.n_of_first += self.seed == 1000
            return super().step(action)

    Planned.lengths = [20, *[2] * 15, 20]
    assert run(worker_of(agent(), Told, n_envs=16), range(17)).lengths.tolist() == Planned.lengths
    assert at == [begins]


def test_what_filled_rows_have():
    worker = worker_of(Slotted(), Walk, n_envs=N_ENVS)
    Slotted.seen.clear()
    run(worker, range(40))
    assert {tuple(slots) for slots, _ in Slotted.seen} == {tuple(range(N_ROWS))}
    assert {row for _, starts in Slotted.seen for row in starts} == set(range(N_ENVS))


def test_rows_that_depend_on_their_place_are_seen():
    example = np.random.default_rng(2).normal(size=(N_ROWS, 3)).astype(np.float32)
    assert probe(Wide(), example, N_ROWS) == (True, True)
    assert probe(WideRemembering(), example, N_ROWS) == (True, True)
    assert probe(Placed(), example, N_ROWS) == (True, False)
    assert probe(Slotted(), example, N_ROWS) == (True, False)


class Living(Walk):
    """Counts those that are there."""

    now: ClassVar[set[Any]] = set()
    most = 0

    def __init__(self) -> None:
        self.now.add(self)
        Living.most = max(Living.most, len(self.now))

    def close(self) -> None:
        self.now.discard(self)


class Any16(Wide):
    """Takes batches of any number of rows."""

    def get_actions(self, observations, *, draws):
        self.n_rows = len(observations)
        return super().get_actions(observations, draws=draws)


@pytest.mark.parametrize("agent", [Any16, Single])
@pytest.mark.parametrize("args", [{}, {"n_envs": 12}, {"n_envs": 5}, {"n_envs": 5, "block_size": 7}])
def test_environments_are_made_as_calls_need_them_and_never_more_than_n_envs(agent, args):
    Living.now.clear()
    most = args.get("n_envs", 16)
    with LocalSampler(agent(), Living, seed=1, worker_class=VecWorker, worker_args=args, check=None) as sampler:
        for n, expected in ((1, 1), (3, 3), (2, 3), (4, 4), (40, most), (9, most)):
            Living.most = 0
            sampler.obtain_trajectories(n)
            assert Living.most in (0, expected)
            assert len(Living.now) == expected
        sampler.obtain_fragments(3, 4)
        sampler.obtain_trajectories(40)
        assert len(Living.now) <= 2 * most, "those of fragments apart"
        sampler.obtain_trajectories(2, env_update=Living)
        assert len(Living.now) <= 2 * most
    assert not Living.now


def test_a_list_of_environments_keeps_each_trajectory_in_its_own():
    class Numbered(Walk):
        def __init__(self, number: int) -> None:
            self.number = number

        def observation(self):
            super().observation()
            return np.full(3, self.number, np.float32)

    envs = PerEnv([lambda number=number: Numbered(number) for number in range(N_ENVS)])
    args = {"n_envs": N_ENVS}
    with LocalSampler(Any16(), envs, seed=1, worker_class=VecWorker, worker_args=args, check=None) as sampler:
        batch = sampler.obtain_trajectories(50)
    assert [int(each.observations[0, 0]) for each in batch] == [index % N_ENVS for index in range(50)]


@pytest.mark.parametrize("args", mostly_slow([{}, {"n_envs": 12}]))
def test_batches_are_equal_for_any_number_of_workers_and_those_of_single_rows(args):
    found = []
    options: dict[str, Any] = {"seed": 3, "worker_class": VecWorker, "worker_args": args}
    for n_workers in (1, 2, 3):
        with LocalSampler(Any16(), Walk, n_workers=n_workers, **options) as sampler:
            found.append([sampler.obtain_trajectories(20), sampler.obtain_samples(300), sampler.obtain_trajectories(3)])
    with MultiprocessingSampler(Any16(), Walk, n_workers=2, **options) as sampler:
        found.append([sampler.obtain_trajectories(20), sampler.obtain_samples(300), sampler.obtain_trajectories(3)])
    with MultiprocessingSampler(Any16(), Walk, n_workers=2, inference="parent", worker_args=args, seed=3) as sampler:
        found.append([sampler.obtain_trajectories(20), sampler.obtain_samples(300), sampler.obtain_trajectories(3)])
    assert all(batches == found[0] for batches in found[1:])


class Drawn(gymnasium.Env):
    """Draws something when it is made."""

    observation_space: Any = Walk.observation_space
    action_space: Any = Walk.action_space

    def __init__(self) -> None:
        self.number = random.random()

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.full(3, self.number, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(3, self.number, np.float32), 0.0, self.t == 3, False, {}


def test_constructors_draw_the_same_in_each_row():
    found = []
    for n_workers in (1, 2):
        with LocalSampler(Any16(), Drawn, n_workers=n_workers, seed=1, worker_class=VecWorker) as sampler:
            found.append([sampler.obtain_trajectories(n) for n in (1, 3, 40)])
    assert found[0] == found[1]
    assert len(np.unique(np.concatenate([batch.observations for batch in found[0]]))) == 1


class AlwaysAsMany(Network):
    """Remembers something of each row, and takes batches of one size alone."""

    sums: Any = None

    def get_actions(self, observations, *, draws, starts):  # type: ignore[override]
        n = self.n_rows = len(observations)
        self.sums = np.zeros(n) if self.sums is None else self.sums
        self.sums = np.where(starts, 0.0, self.sums) + observations[:, 0]
        actions, infos = super().get_actions(observations, draws=draws)
        return actions, {**infos, "sum": self.sums.copy()}

    def get_state(self) -> Any:
        return self.sums.copy()

    def set_state(self, state: Any) -> None:
        self.sums = state.copy()


@pytest.mark.parametrize("more", mostly_slow([{}, {"block_size": 26}]))
@pytest.mark.parametrize("inference", mostly_slow(["worker", "parent"]))
def test_an_agent_sees_batches_of_one_size_alone(inference, more):
    args = {"n_envs": N_ENVS, **more}

    def found(sampler: Any) -> list[Any]:
        batches = [sampler.obtain_trajectories(7), sampler.obtain_fragments(4), sampler.obtain_trajectories(20)]
        batches += [sampler.obtain_fragments(5), sampler.obtain_fragments(3, agent_update=AlwaysAsMany())]
        return [*batches, sampler.obtain_fragments(6, env_update=Walk), sampler.obtain_trajectories(3)]

    with LocalSampler(AlwaysAsMany(), Walk, seed=3, worker_class=VecWorker, worker_args=args) as alone:
        expected = found(alone)
    options: dict[str, Any] = {"inference": inference} if inference == "parent" else {"worker_class": VecWorker}
    with MultiprocessingSampler(AlwaysAsMany(), Walk, n_workers=2, seed=3, worker_args=args, **options) as sampler:
        assert found(sampler) == expected
