"""Trajectories in lanes: each is a function of itself alone, however tickets are cut and whatever else happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, VecWorker
from streamsampler.agents.independence import Independence
from streamsampler.data.info_columns import merge
from streamsampler.data.infos import infos_of
from streamsampler.data.recorder import Rollouts
from streamsampler.data.trees import map_tree, same
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.vec.agents import AgentPool
from tests.tiers import mostly_slow
from tests.workers.contexts import context_of, new_board

N_ENVS = 4


class Stuck(Exception):
    pass


class Walk(gymnasium.Env):
    """Lasts as long as its seed says; draws its observations, rewards and infos; raises where it is told to."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    fails, where = -1, "step"  # the seed of the trajectory that raises
    n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        if (seed, self.where) == (self.fails, "reset"):
            raise Stuck(seed)
        self.t, self.length = 0, int(self.np_random.integers(1, 10))
        return self.observation(), {"length": self.length} if seed % 2 else {}

    def step(self, action):
        type(self).n_steps += 1
        self.t += 1
        if (self.seed, self.where, self.t) == (self.fails, "step", min(3, self.length)):
            raise Stuck(self.seed)
        info = {} if self.seed % 3 else {"drawn": 0.5}
        if self.t % 5 == 2:
            info = {"t": self.t, "drawn": self.np_random.random()}
        reward = float(action.sum()) if self.seed % 2 else self.t
        return self.observation(), reward, self.t == self.length, self.t == 8, info

    def observation(self):
        return self.np_random.normal(size=3).astype(np.float32)


class Nested(Walk):
    observation_space = spaces.Dict({"walk": Walk.observation_space, "word": spaces.Text(8)})
    action_space = spaces.Tuple([spaces.Discrete(5), Walk.action_space])

    def step(self, action):
        return super().step(np.array([action[0], *action[1]]))

    def observation(self):
        return {"walk": super().observation(), "word": "abc"[: 1 + self.t % 3]}


class Network:
    """A product of matrices, with noise."""

    row_independent = True
    n_rows = N_ENVS
    weights = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    others = np.random.default_rng(1).normal(size=(16, 2))

    def get_action(self, observation):
        raise AssertionError

    def get_actions(self, observations, *, draws):
        walks = observations["walk"] if isinstance(observations, dict) else observations
        assert walks.ctypes.data % 64 == 0
        assert walks.shape == (self.n_rows, 3)
        means, noise = np.tanh(walks @ self.weights) @ self.others, draws.normal(2)
        walks[:] = 0
        infos = {"mean": means, "first": noise[:, 0], "_first": draws.random() < 0.5}
        if isinstance(observations, dict):
            return (np.abs(10 * means[:, 0]).astype(np.int64) % 5, means + noise), infos
        return means + noise, infos


class Single:
    """Has no get_actions, and a memory."""

    row_independent = True

    def reset(self, seed):
        self.random = np.random.default_rng(seed)

    def get_action(self, observation):
        drawn = self.random.normal(size=2)
        return drawn + observation[:2], {"drawn": drawn[0]} if drawn[0] > 0 else {}


class Remembering(Network):
    """Keeps a sum for each row, which begins with the seed."""

    sums: Any = 0.0

    def get_actions(self, observations, *, starts, seeds, draws):  # type: ignore[override]
        actions, infos = super().get_actions(observations, draws=draws)
        self.sums = np.where(starts[:, None], seeds[:, None] % 7, self.sums) + actions
        return self.sums.copy(), infos


class Masked(Network):
    """Is reset row by row."""

    sums = np.zeros(N_ENVS)

    def reset(self, do_resets, seed):
        self.sums = np.where(do_resets, seed % 11, np.resize(self.sums, len(do_resets)))

    def get_actions(self, observations, *, draws):
        actions, infos = super().get_actions(observations, draws=draws)
        self.sums = self.sums + actions[:, 0]
        return actions, {**infos, "sum": self.sums}


def worker_of(
    agent: Any, env: Any = Walk, board: StatusBoard | None = None, n_envs: int = N_ENVS, **context: Any
) -> VecWorker:
    worker = VecWorker(context_of(board, **context), n_envs=n_envs)
    worker.update_env(as_env_update(lambda: env()))
    worker.update_agent(agent)
    assert worker.runs_lanes
    return worker


def seeds_of(indices: range) -> list[int]:
    return [1000 + 7 * index for index in indices]


def run(worker: VecWorker, indices: range, version: int = 1) -> Rollouts:
    rollouts = worker.rollout(Ticket(version, indices), seeds_of(indices)).rollouts
    assert rollouts is not None
    return rollouts


def alone(n: int, agent: Any, env: Any = Walk, **context: Any) -> list[Any]:
    """Return trajectories of which each was run with all other rows silent."""
    return [next(parts(run(worker_of(agent(), env, **context), range(i, i + 1)))) for i in range(n)]


def parts(rollouts: Rollouts) -> Iterator[Any]:
    """Yield what a report has of each trajectory."""
    columns = rollouts.observations, rollouts.actions, rollouts.rewards
    for position, end in enumerate(np.cumsum(rollouts.lengths).tolist()):
        begin = end - int(rollouts.lengths[position])

        def cut(tree: Any, first: int = begin, last: int = end) -> Any:
            return map_tree(lambda leaf: leaf[first:last], tree)

        yield (
            *map(cut, columns), cut(rollouts.last_observations, position, position + 1),
            bool(rollouts.terminated[position]), bool(rollouts.truncated[position]),
            infos_of(merge([(rollouts.env_infos, begin, end)], "")),
            infos_of(merge([(rollouts.agent_infos, begin, end)], "")),
            infos_of(merge([(rollouts.episode_infos, position, position + 1)], "")),
        )  # fmt: skip


class Tickets:
    """Hands a worker its tickets, some of them ahead; without a generator, all of them as early as may be."""

    def __init__(self, worker: VecWorker, ranges: list[range], rng: random.Random | None, most: int = 3) -> None:
        self.worker, self.rng, self.most = worker, rng, most
        self.tickets = [Ticket(1, indices) for indices in ranges]
        self.at = self.seen = 0
        worker.look_ahead = self.look_ahead

    @classmethod
    def cut(cls, worker: VecWorker, rng: random.Random, n: int) -> Tickets:
        """Cut trajectories into tickets of any sizes."""
        ranges, begin = [], rng.randrange(3)
        while begin < n:
            size = rng.choice([1, 1, 2, 3, N_ENVS, 9])
            ranges.append(range(begin, min(n, begin + size)))
            begin += size
        return cls(worker, ranges, rng, rng.randrange(1, 4))

    def look_ahead(self, number: int) -> tuple[Ticket, list[int]] | None:
        """Return a ticket, if there is one and it has come: what has come once stays there."""
        place = self.at + number
        late = place > self.seen and self.rng is not None and self.rng.random() < 0.4
        if number > self.most or place >= len(self.tickets) or late:
            return None
        self.seen = max(self.seen, place)
        return self.tickets[place], seeds_of(self.tickets[place].indices)

    def run(self) -> Iterator[Any]:
        for place, ticket in enumerate(self.tickets):
            self.at = place
            self.worker.ran_timesteps = 0
            yield ticket, self.worker.rollout(ticket, seeds_of(ticket.indices))


@pytest.fixture(autouse=True)
def _always_look(monkeypatch):
    monkeypatch.setattr("streamsampler.workers.vec.tickets._LOOK_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("agent", "env", "limit"),
    mostly_slow(
        [(Remembering, Walk, 4), (Network, Nested, None), *((it, Walk, 4) for it in (Network, Single, Masked))], 2
    ),
)
def test_a_trajectory_does_not_depend_on_others(agent, env, limit):
    expected = alone(26, agent, env, max_episode_length=limit)
    for seed in range(4):
        worker = worker_of(agent(), env, max_episode_length=limit)
        env.n_steps = n_timesteps = 0
        for ticket, outcome in Tickets.cut(worker, random.Random(seed), 26).run():
            n_timesteps += outcome.n_timesteps
            assert env.n_steps == n_timesteps + worker.running_timesteps
            accounts = outcome.n_abandoned, outcome.abandoned_timesteps, worker.ran_timesteps
            assert accounts == (0, 0, outcome.n_timesteps)
            for index, found in zip(ticket.indices, parts(outcome.rollouts), strict=True):
                assert same(found, expected[index]), index
        assert worker.abandon() == (0, 0)


def test_rows_are_busy_while_there_are_tickets():
    """A ticket's long trajectory does not keep others from running: as many steps as the longest row needs."""
    lengths, calls = [30, *[2] * 7] * 2, []

    class Planned(Walk):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, reward, self.t == lengths[(self.seed - 1000) // 7], False, {}

    class Counting(Network):
        def get_actions(self, observations, *, draws):
            calls.append(1)
            return super().get_actions(observations, draws=draws)

    tickets = Tickets(worker_of(Counting(), Planned), [range(4 * k, 4 * k + 4) for k in range(4)], None)
    calls.clear()
    found = [outcome.rollouts.lengths.tolist() for _, outcome in tickets.run()]
    assert found == [lengths[4 * k : 4 * k + 4] for k in range(4)]
    assert len(calls) == 30 + 2 + 30 + 2


@pytest.mark.parametrize(("agent", "where"), [(Network, "step"), (Single, "reset")])
def test_what_raises_ahead_raises_at_its_own_turn(agent, where):
    expected = alone(26, agent)
    for seed in range(4):
        rng = random.Random(seed)
        failing = rng.randrange(8, 24)

        class Failing(Walk):
            fails = 1000 + 7 * failing

        Failing.where = where
        rebuilt: list[int] = []
        worker = worker_of(agent(), Failing, rebuild=lambda rebuilt=rebuilt: rebuilt.append(1))
        tickets = Tickets.cut(worker, rng, 26)
        running = tickets.run()
        Failing.n_steps = accounted = 0
        failed = False
        while not failed:
            try:
                ticket, outcome = next(running)
            except Stuck:
                failed, ticket = True, tickets.tickets[tickets.at]
                assert worker.trajectory == failing
                accounted += worker.ran_timesteps
            else:
                accounted += max(worker.ran_timesteps, outcome.n_timesteps + outcome.abandoned_timesteps)
                for index, found in zip(ticket.indices, parts(outcome.rollouts), strict=True):
                    assert same(found, expected[index]), index
            assert failed == (failing in ticket.indices)
            # One more was asked for than was run, where a step raised.
            assert Failing.n_steps - accounted - worker.running_timesteps * (not failed) <= len(rebuilt) + failed
        assert worker.abandon() == (0, 0)


def test_a_batched_call_that_raises_names_the_trajectory_that_raises_alone():
    class Refusing(Network):
        def get_actions(self, observations, *, draws):
            if (observations == 77).any():
                raise Stuck("77")
            return super().get_actions(observations, draws=draws)

    class Odd(Walk):
        def observation(self):
            return np.full(3, 77 if self.seed == 1000 + 7 * 6 else 1, np.float32)

    worker = worker_of(Refusing(), Odd)
    with pytest.raises(Stuck) as caught:
        run(worker, range(8))
    assert worker.trajectory == 6
    assert caught.value.__notes__[0].startswith("get_actions had the observations of trajectories ")
    # Run ahead, it is found at its turn.
    tickets = Tickets(worker_of(Refusing(), Odd), [range(4), range(4, 6), range(6, 8)], None)
    found: list[range] = []
    with pytest.raises(Stuck):
        found.extend(ticket.indices for ticket, _ in tickets.run())
    assert (found, tickets.worker.trajectory) == ([range(4), range(4, 6)], 6)


def test_what_runs_ahead_is_abandoned_with_the_version():
    board = new_board()

    class Ending(Walk):
        ends_at = -1

        def step(self, action):
            if Ending.n_steps == Ending.ends_at:
                board.abandon_older(2)
            return super().step(action)

    worker = worker_of(Network(), Ending, board)
    running = Tickets(worker, [range(k, k + 1) for k in range(20)], None).run()
    assert all(next(running)[1].rollouts is not None for _ in range(3))
    assert worker.running_timesteps > 0
    Ending.ends_at = Ending.n_steps + 2
    outcome = worker.rollout(Ticket(1, range(50, 53)), seeds_of(range(50, 53)))  # those ahead are forgotten
    assert outcome.rollouts is None
    assert worker.running_timesteps == 0
    # The next version's begin from nothing.
    for found, expected in zip(parts(run(worker, range(3, 9), 2)), alone(9, Network)[3:], strict=True):
        assert same(found, expected)


def test_indices_of_every_other_trajectory_go_to_all_rows():
    """Workers with environments of their own have every n-th index."""
    rows = []

    class Telling(Network):
        def get_actions(self, observations, *, draws, starts):  # type: ignore[override]
            rows.append(np.flatnonzero(starts).tolist())
            return super().get_actions(observations, draws=draws)

    worker = worker_of(Telling())
    rows.clear()
    run(worker, range(3, 3 + 2 * N_ENVS, 2))
    assert rows[0] == [0, 1, 2, 3]


class Drawing(Network):
    def get_actions(self, observations, *, draws):
        random.random()  # whatever comes of it
        return super().get_actions(observations, draws=draws)


class DrawingWalk(Walk):
    def step(self, action):
        np.random.random()
        return super().step(action)


@pytest.mark.parametrize(("agent", "env"), [(Drawing, Walk), (Network, DrawingWalk)])
def test_drawing_from_a_global_generator_is_refused_but_in_blocks(agent, env):
    given: dict[str, Any] = {"seed": 1, "worker_class": VecWorker, "check": None}
    with (
        LocalSampler(agent(), env, worker_args={"n_envs": N_ENVS}, **given) as sampler,
        pytest.raises(Exception, match=r"global generator.*draws.*np_random.*block_size"),
    ):
        sampler.obtain_trajectories(5)
    with LocalSampler(agent(), env, worker_args={"n_envs": N_ENVS, "block_size": 8}, **given) as sampler:
        assert len(sampler.obtain_trajectories(5)) == 5


class Mixing(Network):
    """Row 1 takes part of row 0's observation, which shows when it has got parameters."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def get_actions(self, observations, *, draws):
        observations[1, 0] += 1e-6 * observations[0, 0]
        actions, infos = super().get_actions(observations, draws=draws)
        return np.full_like(actions, 0.5), {"mean": infos["mean"] * self.scale + 0.0}  # never -0.0

    def set_param_values(self, values):
        (self.scale,) = values


def test_an_agent_whose_rows_depend_on_each_other_is_refused_as_soon_as_it_shows(monkeypatch):
    worker = VecWorker(context_of(), n_envs=N_ENVS)
    worker.update_env(as_env_update(Walk))
    with pytest.raises(UsageError, match="row_independent"):
        worker.update_agent(Mixing(1.0))
    assert not worker.runs_lanes
    worker.update_agent(Mixing(0.0))
    assert worker.runs_lanes, "it shows nothing yet"
    with pytest.raises(UsageError, match="row_independent"):
        worker.update_agent((1.0,))
    # One that showed what it sees is not probed again.
    probes = []
    monkeypatch.setattr(AgentPool, "probe", lambda *_: probes.append(1) or Independence(True, True))
    for given in (Mixing(0.0), (0.0,), (2.0,)):
        worker.update_agent(given)
    assert len(probes) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_an_agent_may_keep_its_observations_which_else_lie_in_the_same_place(keeps):
    kept: list[Any] = []
    places: set[int] = set()

    class Keeping(Network):
        def get_actions(self, observations, *, draws):
            assert observations.ctypes.data % 64 == 0
            places.add(observations.ctypes.data)
            kept.extend([(observations, observations.copy())] * keeps)
            return np.zeros((N_ENVS, 2)), {}

    worker = worker_of(Keeping())
    kept.clear(), places.clear()
    run(worker, range(9))
    assert len(kept) > 5 if keeps else len(places) == 1
    assert all((found == copy).all() for found, copy in kept)


def test_observations_and_actions_are_gathered_into_memory_from_which_they_are_sent():
    made = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        made.append(np.empty(shape, dtype))
        return made[-1]

    rollouts = run(worker_of(Network(), allocate=allocate), range(9))
    assert any(rollouts.observations is array for array in made)
    assert any(rollouts.actions is array for array in made)
