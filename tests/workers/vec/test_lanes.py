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
from streamsampler.data.info_columns import merge
from streamsampler.data.infos import infos_of
from streamsampler.data.recorder import Rollouts
from streamsampler.data.trees import same
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.vec.agents import AgentPool
from tests.workers.contexts import context_of, new_board

N_ENVS = 4


class Stuck(Exception):
    pass


class Walk(gymnasium.Env):
    """As long as its seed says; draws, and tells as infos, what it likes; raises where it is told to."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    fails: tuple[int, ...] = ()
    where = "step"
    longest = 9
    n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        if seed in self.fails and self.where == "reset":
            raise Stuck(seed)
        self.t, self.length = 0, int(self.np_random.integers(1, self.longest + 1))
        return self.observation(), {"options": options["x"]} if options else {"length": self.length} if seed % 2 else {}

    def step(self, action):
        type(self).n_steps += 1
        self.t += 1
        if self.seed in self.fails and self.t == min(3, self.length) and self.where == "step":
            raise Stuck(self.seed)
        if self.t % 5 == 2:
            info = {"t": self.t, "drawn": self.np_random.random()}
        else:
            info = {} if self.seed % 3 else {"drawn": 0.5}
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

    def __init__(self) -> None:
        self.weights = np.random.default_rng(0).normal(size=(3, 16)), np.random.default_rng(1).normal(size=(16, 2))

    def get_action(self, observation):
        raise AssertionError

    def get_actions(self, observations, *, draws):
        walks = observations["walk"] if isinstance(observations, dict) else observations
        assert walks.ctypes.data % 64 == 0
        assert walks.shape == (N_ENVS, 3)
        hidden = np.tanh(walks @ self.weights[0].astype(np.float32))
        means = hidden @ self.weights[1]
        noise = draws.normal(2)
        walks[:] = 0
        infos = {"mean": means, "first": noise[:, 0], "_first": draws.random() < 0.5}
        if isinstance(observations, dict):
            return (np.abs(10 * means[:, 0]).astype(np.int64) % 5, means + noise), infos
        return means + noise, infos


class Remembering(Network):
    """Keeps a sum for each row."""

    def get_actions(self, observations, *, starts, seeds, draws):  # type: ignore[override]
        if len(starts) == N_ENVS and not hasattr(self, "sums"):
            self.sums = np.zeros((N_ENVS, 2))
        self.sums[starts] = seeds[starts, None] % 7
        actions, infos = super().get_actions(observations, draws=draws)
        self.sums += actions
        return self.sums.copy(), infos


class Masked(Network):
    """Is reset row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Any = None

    def reset(self, do_resets, seed):
        if self.sums is None or len(self.sums) != len(do_resets):
            self.sums = np.zeros(len(do_resets))
        self.sums[do_resets] = seed % 11

    def get_actions(self, observations, *, draws):
        actions, infos = super().get_actions(observations, draws=draws)
        self.sums += actions[:, 0]
        return actions, {**infos, "sum": self.sums.copy()}


class Single:
    """Has no get_actions, and a memory."""

    row_independent = True

    def reset(self, seed):
        self.random = np.random.default_rng(seed)

    def get_action(self, observation):
        drawn = self.random.normal(size=2)
        return drawn + observation[:2], {"drawn": drawn[0]} if drawn[0] > 0 else {}


def worker_of(agent: Any = None, env: Any = Walk, board: StatusBoard | None = None, **context: Any) -> VecWorker:
    worker = VecWorker(context_of(board, **context), n_envs=N_ENVS)
    worker.update_env(as_env_update(lambda: env()))
    worker.update_agent(agent or Network())
    assert worker.runs_lanes
    return worker


def seeds_of(indices: range) -> list[int]:
    return [1000 + 7 * index for index in indices]


def alone(index: int, *args: Any, **kwargs: Any) -> Rollouts:
    """Return a trajectory that was run in its row, beside which all others are silent."""
    indices = range(index, index + 1)
    rollouts = worker_of(*args, **kwargs).rollout(Ticket(1, indices), seeds_of(indices)).rollouts
    assert rollouts is not None
    return rollouts


def parts(rollouts: Rollouts) -> Iterator[Any]:
    """Yield what a report has of each trajectory."""
    ends = np.cumsum(rollouts.lengths).tolist()
    for position, end in enumerate(ends):
        begin = end - int(rollouts.lengths[position])

        def rows(tree, first=begin, last=end):
            if isinstance(tree, dict):
                return {key: rows(child, first, last) for key, child in tree.items()}
            if isinstance(tree, tuple):
                return tuple(rows(child, first, last) for child in tree)
            return tree[first:last]

        yield (
            rows(rollouts.observations), rows(rollouts.actions), rows(rollouts.rewards),
            rows(rollouts.last_observations, position, position + 1), bool(rollouts.terminated[position]),
            bool(rollouts.truncated[position]),
            infos_of(merge([(rollouts.env_infos, begin, end)], "")),
            infos_of(merge([(rollouts.agent_infos, begin, end)], "")),
            infos_of(merge([(rollouts.episode_infos, position, position + 1)], "")),
        )  # fmt: skip


def cut(rng: random.Random, n: int) -> list[range]:
    """Cut trajectories into tickets."""
    tickets, begin = [], rng.randrange(3)
    while begin < n:
        size = rng.choice([1, 1, 2, 3, N_ENVS, 9])
        tickets.append(range(begin, min(n, begin + size)))
        begin += size
    return tickets


class Tickets:
    """Hands a worker its tickets, some of them ahead."""

    def __init__(self, worker: VecWorker, ranges: list[range], rng: random.Random, most: int, version: int = 1) -> None:
        self.worker, self.rng, self.most = worker, rng, most
        self.tickets = [Ticket(version, indices) for indices in ranges]
        self.at = self.seen = 0
        worker.look_ahead = self.look_ahead

    def look_ahead(self, number: int) -> tuple[Ticket, list[int]] | None:
        """Return a ticket, if there is one and it has come: what has come once stays there."""
        place = self.at + number
        if number > self.most or place >= len(self.tickets) or (place > self.seen and self.rng.random() < 0.4):
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
    monkeypatch.setattr("streamsampler.workers.vec.steps._LOOK_SECONDS", 0.0)


CASES: dict[str, tuple[Any, Any]] = {
    "network": (Network, Walk),
    "nested": (Network, Nested),
    "remembering": (Remembering, Walk),
    "masked": (Masked, Walk),
    "single": (Single, Walk),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in ("nested", "remembering") else c for c in CASES]
)
@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.slow), 4])
def test_a_trajectory_does_not_depend_on_others(case, limit):
    agent, env = CASES[case]
    n = 26
    expected = [next(parts(alone(index, agent(), env, max_episode_length=limit))) for index in range(n)]
    for seed in range(5):
        rng = random.Random(seed)
        worker = worker_of(agent(), env, max_episode_length=limit)
        tickets = Tickets(worker, cut(rng, n), rng, most=rng.randrange(4))
        env.n_steps = 0
        n_timesteps = 0
        for ticket, outcome in tickets.run():
            n_timesteps += outcome.n_timesteps
            assert env.n_steps == n_timesteps + worker.running_timesteps
            assert (outcome.n_abandoned, outcome.abandoned_timesteps, worker.ran_timesteps) == (
                0,
                0,
                outcome.n_timesteps,
            )
            for index, found in zip(ticket.indices, parts(outcome.rollouts), strict=True):
                assert same(found, expected[index]), index
        assert worker.abandon() == (0, 0)


def test_rows_are_busy_while_there_are_tickets():
    """A ticket's long trajectory does not keep others from running: as many steps as the longest row needs."""
    lengths = [30, 2, 2, 2, 2, 2, 2, 2, 30, 2, 2, 2, 2, 2, 2, 2]

    class Planned(Walk):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            self.length = lengths[(seed - 1000) // 7]
            return result

        def step(self, action):
            observation, reward, terminated, _, info = super().step(action)
            return observation, reward, terminated, False, info

    calls = []

    class Counting(Network):
        def get_actions(self, observations, *, draws):
            calls.append(1)
            return super().get_actions(observations, draws=draws)

    worker = worker_of(Counting(), Planned)
    rng = random.Random(0)
    tickets = Tickets(worker, [range(4 * k, 4 * k + 4) for k in range(4)], rng, most=3)
    rng.random = lambda: 1.0
    calls.clear()
    assert [outcome.rollouts.lengths.tolist() for _, outcome in tickets.run()] == [
        lengths[4 * k : 4 * k + 4] for k in range(4)
    ]
    assert len(calls) == 30 + 2 + 30 + 2


@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("case", ["network", pytest.param("masked", marks=pytest.mark.slow), "single"])
def test_what_raises_ahead_raises_at_its_own_turn(case, where):
    agent, _ = CASES[case]
    expected = [next(parts(alone(index, agent(), Walk))) for index in range(26)]
    for seed in range(5):
        rng = random.Random(seed)
        failing = rng.randrange(8, 24)

        class Failing(Walk):
            fails = tuple(seeds_of(range(failing, failing + 1)))

        Failing.where = where
        board = new_board()
        rebuilt: list[int] = []
        worker = worker_of(agent(), Failing, board, rebuild=lambda rebuilt=rebuilt: rebuilt.append(1))
        tickets = Tickets(worker, cut(rng, 26), rng, most=1 + rng.randrange(3))
        Failing.n_steps = accounted = 0
        failed = False
        running = tickets.run()
        while not failed:
            try:
                ticket, outcome = next(running)
            except Stuck:
                failed = True
                ticket = tickets.tickets[tickets.at]
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
        longest = 3

        def observation(self):
            return np.full(3, 77 if self.seed == seeds_of(range(6, 7))[0] else 1, np.float32)

    worker = worker_of(Refusing(), Odd)
    with pytest.raises(Stuck) as caught:
        worker.rollout(Ticket(1, range(8)), seeds_of(range(8)))
    assert worker.trajectory == 6
    assert caught.value.__notes__[0].startswith("get_actions had the observations of trajectories ")
    # Run ahead, it is found at its turn.
    tickets = Tickets(worker_of(Refusing(), Odd), [range(4), range(4, 6), range(6, 8)], random.Random(2), most=3)
    assert [ticket.indices for ticket, _ in zip_until(Stuck, tickets)] == [range(4), range(4, 6)]
    assert tickets.worker.trajectory == 6


def zip_until(error: type[Exception], tickets: Tickets) -> Iterator[Any]:
    running = tickets.run()
    try:
        while True:
            yield next(running)
    except error:
        return


def test_what_runs_ahead_is_abandoned_with_the_version():
    board = new_board()
    rng = random.Random(1)
    worker = worker_of(None, Walk, board)
    tickets = Tickets(worker, [range(k, k + 1) for k in range(20)], rng, most=3)
    rng.random = lambda: 1.0
    running = tickets.run()
    outcomes = [next(running)[1] for _ in range(3)]
    Walk.n_steps = 0
    before = worker.running_timesteps
    assert before > 0

    def on_step(self: Any, action: Any, step: Any = Walk.step) -> Any:
        if Walk.n_steps == 2:
            board.abandon_older(2)
        return step(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "step", on_step)
        worker.rollout(Ticket(1, range(50, 53)), seeds_of(range(50, 53)))  # another ticket: those ahead are forgotten
    assert worker.running_timesteps == 0
    assert all(outcome.rollouts is not None for outcome in outcomes)
    # The next version's begin from nothing.
    found = worker.rollout(Ticket(2, range(3, 9)), seeds_of(range(3, 9))).rollouts
    assert found is not None
    for index, part in zip(range(3, 9), parts(found), strict=True):
        assert same(part, next(parts(alone(index))))


def test_indices_of_every_other_trajectory_go_to_all_rows():
    """Workers with environments of their own have every n-th index."""
    rows = []

    class Telling(Network):
        def get_actions(self, observations, *, draws, starts):  # type: ignore[override]
            rows.append(np.flatnonzero(starts).tolist())
            return super().get_actions(observations, draws=draws)

    worker = worker_of(Telling())
    rows.clear()
    worker.rollout(Ticket(1, range(3, 3 + 2 * N_ENVS, 2)), seeds_of(range(3, 3 + 2 * N_ENVS, 2)))
    assert rows[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("culprit", ["agent", "environment"])
def test_drawing_from_a_global_generator_is_refused(culprit):
    class Drawing(Network):
        def get_actions(self, observations, *, draws):
            random.random()  # whatever comes of it
            return super().get_actions(observations, draws=draws)

    class DrawingWalk(Walk):
        def step(self, action):
            np.random.random()
            return super().step(action)

    agent = Drawing() if culprit == "agent" else Network()
    args = {"n_envs": N_ENVS}
    env = Walk if culprit == "agent" else DrawingWalk
    with (
        LocalSampler(agent, env, seed=1, worker_class=VecWorker, worker_args=args, check=None) as sampler,
        pytest.raises(Exception, match=r"global generator.*draws.*np_random.*block_size"),
    ):
        sampler.obtain_trajectories(5)
    with LocalSampler(
        agent, env, seed=1, worker_class=VecWorker, worker_args={**args, "block_size": 8}, check=None
    ) as sampler:
        assert len(sampler.obtain_trajectories(5)) == 5


class Mixing(Network):
    """Row 1 takes part of row 0's observation."""

    def get_actions(self, observations, *, draws):
        observations[1, 0] += 1e-6 * observations[0, 0]
        return super().get_actions(observations, draws=draws)


def test_an_agent_whose_rows_depend_on_each_other_is_refused():
    worker = VecWorker(context_of(), n_envs=N_ENVS)
    worker.update_env(as_env_update(Walk))
    with pytest.raises(UsageError, match="row_independent"):
        worker.update_agent(Mixing())
    assert not worker.runs_lanes
    worker.update_agent(Network())
    assert worker.runs_lanes


class Silent(Mixing):
    """Says nothing of its observations until it gets parameters."""

    scale = 0.0

    def get_actions(self, observations, *, draws):
        actions, infos = super().get_actions(observations, draws=draws)
        return np.full_like(actions, 0.5), {"mean": infos["mean"] * self.scale + 0.0}  # never -0.0

    def set_param_values(self, values):
        (self.scale,) = values


def test_an_agent_that_showed_nothing_yet_is_probed_again_with_its_next_parameters():
    worker = VecWorker(context_of(), n_envs=N_ENVS)
    worker.update_env(as_env_update(Walk))
    worker.update_agent(Silent())
    assert worker.runs_lanes
    with pytest.raises(UsageError, match="row_independent"):
        worker.update_agent((1.0,))


def test_an_agent_is_probed_once_and_not_with_each_of_its_parameters(monkeypatch):
    probes = []
    monkeypatch.setattr(AgentPool, "probe", lambda *_: probes.append(1) or True)
    worker = VecWorker(context_of(), n_envs=N_ENVS)
    worker.update_env(as_env_update(Walk))
    worker.update_agent(Silent())
    for scale in (0.0, 2.0):
        worker.update_agent((scale,))
        assert worker.runs_lanes
    assert len(probes) == 1


def test_an_agent_may_keep_its_observations():
    class Keeping(Network):
        kept: list[Any] = []  # noqa: RUF012 - each test's own

        def get_actions(self, observations, *, draws):
            self.kept.append((observations, observations.copy()))
            assert observations.ctypes.data % 64 == 0
            return np.zeros((N_ENVS, 2)), {}

    worker = worker_of(Keeping())
    Keeping.kept.clear()
    worker.rollout(Ticket(1, range(9)), seeds_of(range(9)))
    assert len(Keeping.kept) > 5
    assert all((kept == copy).all() for kept, copy in Keeping.kept)


def test_an_agent_that_keeps_nothing_finds_its_observations_in_the_same_place():
    class Looking(Network):
        places: set[int] = set()  # noqa: RUF012 - each test's own

        def get_actions(self, observations, *, draws):
            self.places.add(observations.ctypes.data)
            return np.zeros((N_ENVS, 2)), {}

    worker = worker_of(Looking())
    Looking.places.clear()
    worker.rollout(Ticket(1, range(9)), seeds_of(range(9)))
    assert len(Looking.places) == 1


def test_observations_and_actions_are_gathered_into_memory_from_which_they_are_sent():
    made = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        made.append(np.empty(shape, dtype))
        return made[-1]

    rollouts = worker_of(allocate=allocate).rollout(Ticket(1, range(9)), seeds_of(range(9))).rollouts
    assert rollouts is not None
    assert any(rollouts.observations is array for array in made)
    assert any(rollouts.actions is array for array in made)
