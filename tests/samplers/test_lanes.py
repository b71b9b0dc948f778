"""Tickets are whole blocks until a worker says that it runs lanes, and again when agent or environment are replaced."""

from typing import Any

import numpy as np
import pytest

from streamsampler import DefaultWorker, LocalSampler, PerWorker, RolloutError, UsageError, VecWorker
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.throughput import Throughput
from tests.scripted.envs import Steps

BLOCK = 4
FAILING = 3


class Told:
    """An agent whose parameter says whether its workers run lanes."""

    def __init__(self, lanes: bool = True) -> None:
        self.lanes = lanes

    def get_action(self, observation: Any) -> Any:
        return 0, {}

    def set_param_values(self, values: Any) -> None:
        (self.lanes,) = values

    def get_param_values(self) -> Any:
        return (self.lanes,)


class Laned(DefaultWorker):
    """Runs trajectories one by one, says that they might influence each other, and keeps what it was sent."""

    tickets: list[Any] = []  # noqa: RUF012 - workers of this thread share it

    @classmethod
    def layout(cls, worker_args: Any) -> Layout:
        return Layout(BLOCK, BLOCK)

    def rollout(self, ticket: Any, seeds: list[int]) -> Any:
        self.runs_lanes = bool(self._agent.lanes)
        self.tickets.append(ticket)
        return super().rollout(ticket, seeds)


class Failing(Steps):
    """The trajectory that begins from a given seed raises."""

    seed = -1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed == self.seed:
            raise RuntimeError("not this one")
        return super().reset(seed=seed)


@pytest.fixture(autouse=True)
def tickets():
    Laned.tickets.clear()
    return Laned.tickets


def make(agents: Any, envs: Any = Steps, n_workers: int = 2) -> Any:
    return LocalSampler(agents, envs, seed=3, n_workers=n_workers, worker_class=Laned)


@pytest.mark.slow
def test_a_word_holds_until_agent_or_environment_are_replaced(tickets):
    with make(Told()) as sampler:

        def blocks(**updates):
            sampler.obtain_trajectories(2_000, **updates)
            found = [ticket.block for ticket in tickets]
            tickets.clear()
            assert found == sorted(found, reverse=True)
            return found[0], found[-1]

        assert blocks() == (BLOCK, 1), "said in the first report, and taken in at once"
        assert blocks() == (1, 1)
        assert blocks(agent_update=(True,)) == (1, 1), "parameters change nothing of it"
        assert blocks(agent_update=Told()) == (BLOCK, 1)
        assert blocks(env_update=Steps) == (BLOCK, 1)
        assert blocks(agent_update=Told(lanes=False)) == (BLOCK, BLOCK)


def test_with_agents_of_their_own_each_worker_speaks_for_itself(tickets):
    with make([Told(), Told(lanes=False)]) as sampler:

        def blocks_of(number, version):
            return [it.block for it in tickets if it.indices[0] % 2 == number and it.version == version]

        for _ in range(2):
            sampler.obtain_trajectories(40)
        assert [set(blocks_of(number, 2)) for number in (0, 1)] == [{1}, {BLOCK}]
        sampler.obtain_trajectories(40, agent_update=PerWorker([None, Told()]))
        assert [blocks_of(number, 3)[0] for number in (0, 1)] == [1, BLOCK]


@pytest.mark.parametrize("n_workers", [1, 3])
def test_in_lanes_each_trajectory_fails_by_itself(n_workers):
    """Also in the first tickets, which were cut when it was not known yet."""
    with LocalSampler(Told(), Steps, seed=3, n_workers=1) as sampler:
        before = sampler.obtain_trajectories(FAILING)
        seed = sampler.seeds(1, [FAILING])[0]

    class Doomed(Failing):
        pass

    Doomed.seed = seed
    with make(Told(), Doomed, n_workers=n_workers) as sampler:
        assert sampler.obtain_samples(before.n_timesteps) == before
    with make(Told(lanes=False), Doomed, n_workers=n_workers) as sampler, pytest.raises(RolloutError):
        sampler.obtain_samples(before.n_timesteps)


def test_a_worker_that_takes_its_word_back_is_refused():
    with make(Told()) as sampler:
        sampler.obtain_trajectories(10)
        with pytest.raises(UsageError, match=r"in blocks since the agent's parameters were updated, .* pass the agent"):
            sampler.obtain_trajectories(10, agent_update=(False,))
        assert sampler.obtain_trajectories(10).n_trajectories == 10, "with the parameters before"
        stats = sampler.stats
        fates = ("kept", "surplus", "stale", "abandoned", "lost", "checked")
        assert sum(getattr(stats, f"{fate}_timesteps") for fate in fates) == stats.ran_timesteps
        assert np.all(sampler.obtain_trajectories(8, agent_update=Told(lanes=False)).lengths > 0)


class Longer(Laned):
    """The same, where blocks may get longer, from a size on."""

    size = BLOCK
    runs_longer_blocks = True

    @classmethod
    def layout(cls, worker_args: Any) -> Layout:
        return Layout(cls.size, cls.size, lengthens=True)


class Short(Longer):
    runs_longer_blocks = False


class FromOne(Longer):
    size = 1


class ShortFromOne(Short):
    size = 1


@pytest.mark.parametrize("kind", [Longer, Short, FromOne, ShortFromOne])
@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.usefixtures("few_first_blocks")
def test_blocks_that_may_get_longer_and_workers_of_all_kinds(kind, lanes, tickets):
    """Each says how it runs trajectories when it first answers; what waits for that is assigned then."""
    with LocalSampler(Told(lanes), Steps, seed=3, n_workers=2, worker_class=kind) as sampler:
        for _ in range(2):
            assert sampler.obtain_trajectories(60 * kind.size).n_trajectories == 60 * kind.size
    longest = 1 if lanes else kind.size * (16 if kind.runs_longer_blocks else 1)
    assert max(ticket.block for ticket in tickets[-3:]) == longest
    assert min(ticket.block for ticket in tickets) == (1 if lanes else kind.size)


@pytest.mark.parametrize("n", [3, 8])
def test_speeds_are_measured_by_tickets_that_fill_the_rows(n, monkeypatch):
    measure, found = Throughput.measure, []

    def noting(self, lengths, seconds, worker=None, n_bytes=0, *, fills_rows=True):
        found.append((len(lengths), fills_rows))
        measure(self, lengths, seconds, worker, n_bytes, fills_rows=fills_rows)

    monkeypatch.setattr(Throughput, "measure", noting)
    with LocalSampler("random", "CartPole-v1", seed=1, worker_class=VecWorker, worker_args={"n_envs": 8}) as sampler:
        sampler.obtain_trajectories(n)
    assert sum(n_trajectories for n_trajectories, _ in found) == n
    assert all(fills_rows == (n_trajectories >= 8) for n_trajectories, fills_rows in found)
