"""C1: what comes from a seed, beyond the table of `test_scenarios`."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, PerWorker, TrajectoryBatch
from streamsampler.data import trees
from streamsampler.errors import DataError, RolloutError
from streamsampler.protocol.throughput import Throughput
from tests.contracts.conftest import PARENT, PROCESSES, SIDE_BY_SIDE, Maker, on, slow
from tests.contracts.scenarios import Memory, World
from tests.scripted.agents import Attentive, Linear, Stamping, always_zero
from tests.scripted.envs import AnyLength, Nested, Steps, Wide, jittery

SEED = 20_240_607


@on("waiting processes", *PROCESSES, *slow(PARENT))
def test_timing_changes_nothing(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    """Steps that take now more and now less time: trajectories come in in another order in each run."""
    sampler = make_sampler(Stamping(), jittery(AnyLength, 0.003), n_workers=5, seed=SEED)
    twin = make_local(Stamping(), AnyLength, seed=SEED)
    for call in range(8):
        assert sampler.obtain_samples(30 + call) == twin.obtain_samples(30 + call)


@on("processes", "waiting processes", *slow("local", "queues fork", "vec processes"))
@pytest.mark.parametrize("envs", [Wide, pytest.param(3 * [Wide], marks=pytest.mark.slow)])
def test_large_observations(make_sampler: Maker, make_local: Callable[..., LocalSampler], envs: Any) -> None:
    """They are recorded where they are sent from, and copied while the rest is collected."""
    batches = []
    for make in (make_sampler, make_local):
        sampler = make(Stamping(), envs, n_workers=3, seed=SEED)
        batches.append([sampler.obtain_samples(600), *(sampler.obtain_trajectories(n) for n in (40, 10))])
        batches[-1].append(sampler.obtain_exact_trajectories(10))
        # Memory of batches that are gone is used again, of those that are there it is not.
        sampler.obtain_samples(600)
        batches[-1].append(sampler.obtain_samples(600))
    assert batches[0] == batches[1]
    assert len({batch.observations.__array_interface__["data"][0] for batch in batches[0]}) == len(batches[0])


def test_other_seeds_and_versions_give_other_batches(make_local: Callable[..., LocalSampler]) -> None:
    samplers = [make_local(Linear(), "CartPole-v1", seed=seed) for seed in (0, 1, 2**100, None)]
    assert [sampler.seed for sampler in samplers[:3]] == [0, 1, 2**100]
    batches = [sampler.obtain_trajectories(20) for sampler in samplers for _ in range(2)]
    assert len({seed for batch in batches for seed in batch.seeds}) == 20 * len(batches)
    assert len({tuple(batch.returns.tolist()) for batch in batches}) == len(batches)
    repeated = make_local(Linear(), "CartPole-v1", n_workers=3, seed=samplers[3].seed)
    assert [repeated.obtain_trajectories(20) for _ in range(2)] == batches[6:], "a drawn seed repeats the run"


@on("local", "waiting", "processes", *slow("vec"))
@pytest.mark.parametrize(("agent", "make_env"), [(Linear(), "CartPole-v1"), (Attentive(), Nested)])
def test_a_seed_starts_the_very_same_trajectory(make_sampler: Maker, agent: Any, make_env: Any) -> None:
    batch = make_sampler(agent, make_env, n_workers=2, seed=SEED).obtain_trajectories(7)
    env = gymnasium.make(make_env) if isinstance(make_env, str) else make_env()

    def row(tree: Any, number: int) -> Any:
        return trees.map_tree(lambda leaf: np.asarray(leaf)[number], tree)

    def as_arrays(tree: Any) -> Any:
        return trees.map_tree(np.asarray, tree)

    for number, trajectory in enumerate(batch):
        observation, _ = env.reset(seed=batch.seeds[number])
        for t, action in enumerate(trajectory.actions):
            assert trees.same(as_arrays(observation), as_arrays(row(trajectory.observations, t)))
            observation, reward, terminated, truncated, _ = env.step(action)
            assert reward == trajectory.rewards[t]
            assert (terminated or truncated) == (t == trajectory.n_timesteps - 1)
        assert trees.same(as_arrays(observation), as_arrays(row(trajectory.last_observations, 0)))
        assert [terminated, truncated] == [trajectory.terminated[0], trajectory.truncated[0]]


@on("local", "processes")
def test_the_users_generators_are_left_alone_and_change_nothing(make_sampler: Maker) -> None:
    batches = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        undisturbed = [(random.random(), np.random.random()) for _ in range(4)]
        random.seed(seed)
        np.random.seed(seed)
        drawn = [(random.random(), np.random.random())]
        sampler = make_sampler(Memory(), World, n_workers=2, seed=SEED)
        drawn.append((random.random(), np.random.random()))
        batches.append(sampler.obtain_samples(100))
        drawn.append((random.random(), np.random.random()))
        next(sampler.stream())
        drawn.append((random.random(), np.random.random()))
        assert drawn == undisturbed
    assert batches[0] == batches[1]


UPDATES: list[dict[str, Any]] = [
    {"agent_update": (1,)},
    {"agent_update": Memory(2), "env_update": partial(World, noise=False)},
    {"agent_update": (3,)},
    {},
]


@on("local", "processes", *slow("queues fork", "vec"))
@pytest.mark.parametrize("updates", [[], UPDATES])
def test_a_pickled_sampler_continues_the_same(make_sampler: Maker, updates: list[dict[str, Any]]) -> None:
    sampler = make_sampler(Memory(), World, n_workers=2, seed=SEED)
    for update in updates:
        sampler.obtain_trajectories(3, **update)
    copy = make_sampler.adopt(pickle.loads(pickle.dumps(sampler)))
    assert copy.agent_version == sampler.agent_version == len(updates)
    assert copy.seed == sampler.seed
    for parameters in (None, (5,)):
        assert copy.obtain_samples(60, parameters) == sampler.obtain_samples(60, parameters)


@on("local", "waiting", "processes", *slow("vec"))
def test_lists_belong_to_workers(make_sampler: Maker) -> None:
    agents, envs = [Stamping(10), Stamping(20), Stamping(30)], [partial(Steps, length) for length in (2, 3, 4)]
    sampler = make_sampler(agents, envs, n_workers=3, seed=SEED)
    batches = [
        sampler.obtain_trajectories(8),
        sampler.obtain_exact_trajectories(2, agent_update=PerWorker([(11,), None, (31,)])),
        sampler.obtain_samples(20, env_update=[partial(Steps, 1), None, partial(Steps, 6)]),
        sampler.obtain_samples(20, agent_update=(7,), env_update=partial(Steps, 5)),
    ]
    lengths = [[2, 3, 4, 2, 3, 4, 2, 3], [2, 2, 3, 3, 4, 4], [1, 3, 6, 1, 3, 6], [5, 5, 5, 5]]
    assert [batch.lengths.tolist() for batch in batches] == lengths
    assert [batch.indices.tolist() for batch in batches] == [list(range(len(each))) for each in lengths]
    assert [trajectory.actions[0] for trajectory in batches[0]] == [10, 20, 30, 10, 20, 30, 10, 20]
    assert [trajectory.actions[0] for trajectory in batches[1]] == [11, 11, 20, 20, 31, 31]
    assert set(batches[3].actions.tolist()) == {7}


KINDS: list[dict[str, Any]] = [
    *({"x": value} for value in (1, 0.5, np.float32(0.25), True, "word", None, np.arange(2), {"inner": 1})),
    *({"x": {}, "y": 2}, {}),
]
CLASHING = [{"x": 1}, {"_x": 2}]


class Moody(Steps):
    """Lasts 1 to 3 steps; each of its trajectories has infos of a kind of its own."""

    def __init__(self, kinds: list[dict[str, Any]], only: str = "") -> None:
        super().__init__()
        self.kinds, self.only = kinds, only

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 4))
        self.info = self.kinds[int(self.np_random.integers(len(self.kinds)))]
        return observation, {} if self.only == "env_infos" else self.info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        if self.t == self.length and "fails" in self.info:
            raise OSError("the arm is stuck")
        return (*result, {} if self.only == "episode_infos" else self.info)


@on("local", "waiting", *slow("processes", "vec"))
@pytest.mark.parametrize(
    ("only", "n"),
    [("", 8), *(pytest.param(only, 30, marks=pytest.mark.slow) for only in ("", "episode_infos", "env_infos"))],
)
@pytest.mark.slow
def test_a_streamed_trajectory_is_what_it_is_alone(make_sampler: Maker, only: str, n: int) -> None:
    """Also when it comes in a large ticket with others: the second time their lengths are known."""
    sampler, kinds = make_sampler(always_zero, Moody(KINDS, only), n_workers=2, seed=SEED), set()
    for version in (1, 2):
        for index, trajectory in zip(range(n), sampler.stream(), strict=False):
            with LocalSampler(always_zero, Moody(KINDS, only), seed=SEED, check=None) as alone:
                alone._life.session.scheduler.version = version - 1
                assert trajectory == next(alone.stream(first_trajectory=index))
            infos = trajectory.env_infos or trajectory.episode_infos
            kinds |= {getattr(value, "dtype", dict) for value in infos.values()}
    assert n < 30 or {np.dtype(kind) for kind in (np.int64, np.float64, np.float32, bool, object)} < kinds


@pytest.mark.parametrize("options", [{}, SIDE_BY_SIDE], ids=["one by one", "side by side"])
def test_surplus_trajectories_decide_nothing(
    make_local: Callable[..., LocalSampler], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came with the last ones of the batch are of the other kind."""
    n_surplus, add = 0, Throughput.measure

    def add_as_quick(self: Throughput, lengths: Sequence[int], seconds: float, *more: Any, **further: Any) -> None:
        """Take timesteps to be quick on any machine: tickets of slow ones have one trajectory, and leave nothing."""
        add(self, lengths, 1e-4 * sum(lengths), *more, **further)

    monkeypatch.setattr(Throughput, "measure", add_as_quick)
    for seed in range(6):
        samplers = [make_local(always_zero, Moody(KINDS[:2]), seed=seed, **options) for _ in range(2)]
        earlier = [sampler.obtain_samples(50) for sampler in samplers]
        ahead = samplers[0].obtain_trajectories(20)
        n_integers = [bool(trajectory.env_infos["x"][0] == 0.5) for trajectory in ahead].index(True)
        if n_integers:
            batch = samplers[1].obtain_samples(int(ahead.lengths[:n_integers].sum()))
            assert len(batch) == n_integers
            assert batch.env_infos["x"].dtype == batch.episode_infos["x"].dtype == np.int64
            assert earlier[0] == earlier[1]
            n_surplus += batch.stats.surplus_trajectories
    assert n_surplus, "or this shows nothing"


@on("local", "waiting", *slow("processes"))
def test_dropped_trajectories_decide_nothing(make_sampler: Maker) -> None:
    kinds: list[dict[str, Any]] = [{"x": 1}, {"x": 0.5, "fails": 1, "_x": 0}]
    sampler = make_sampler(always_zero, Moody(kinds), seed=SEED, on_failure="drop")
    for _ in range(2):
        batch = sampler.obtain_samples(40)
        assert batch.stats.dropped_trajectories > 3
        for infos in (batch.env_infos, batch.episode_infos):
            assert infos.keys() == {"x"}
            assert infos["x"].dtype == np.int64
    assert all(trajectory.env_infos.keys() == {"x"} for _, trajectory in zip(range(20), sampler.stream(), strict=False))


@pytest.mark.parametrize("only", ["episode_infos", *slow("env_infos")])
def test_names_that_clash(make_local: Callable[..., LocalSampler], only: str) -> None:
    """With another trajectory's they are fine in a stream; within a trajectory they are its own fault."""
    words = rf"{only}\['x'\] and {only}\['_x'\]"
    sampler = make_local(always_zero, Moody(CLASHING, only), seed=SEED)
    streamed: list[TrajectoryBatch] = [one for _, one in zip(range(40), sampler.stream(), strict=False)]
    assert {next(iter(getattr(trajectory, only))) for trajectory in streamed} == {"x", "_x"}
    with pytest.raises(DataError, match=words):
        sampler.obtain_trajectories(40)
    assert len(sampler.obtain_trajectories(1)) == 1
    kinds = [{"x": 1}, {"x": 1, "_x": 2}]
    with pytest.raises(RolloutError, match=words) as raised:
        make_local(always_zero, Moody(kinds, only), seed=SEED).obtain_trajectories(40)
    batch = make_local(always_zero, Moody(kinds, only), seed=SEED, on_failure="drop").obtain_trajectories(20)
    assert batch.stats is not None
    assert raised.value.trajectory in {dropped.index for dropped in batch.stats.dropped}
    assert 5 < batch.stats.dropped_trajectories < 60
    kinds = [{"x": 1}, {"x": 1, "fails": 1}]
    same = make_local(always_zero, Moody(kinds, only), seed=SEED, on_failure="drop").obtain_trajectories(20)
    assert batch.indices.tolist() == same.indices.tolist()
