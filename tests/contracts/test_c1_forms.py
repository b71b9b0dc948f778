"""C1, where infos differ in kind from trajectory to trajectory: what is returned decides what a column becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryBatch
from streamsampler.errors import DataError, RolloutError
from streamsampler.protocol.throughput import Throughput
from tests.contracts.conftest import SIDE_BY_SIDE, Maker, slow_on
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps

SEED = 11
N = 40

KINDS: list[dict[str, Any]] = [
    {"x": 1},
    {"x": 0.5},
    {"x": np.float32(0.25)},
    {"x": True},
    {"x": "word"},
    {"x": None},
    {"x": np.arange(2)},
    {"x": {"inner": 1}},
    {"x": {}, "y": 2},
    {},
]


class Moody(Steps):
    """Lasts 1 to 3 steps; each of its trajectories has infos of a kind of its own.

    Args:
        kinds: The infos to choose from.
        only: Where they appear: "env_infos", "episode_infos", or both.
    """

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


def alone(kinds: list[dict[str, Any]], only: str = "", version: int = 1) -> list[TrajectoryBatch]:
    """Each trajectory by itself: from a sampler of its own, which nobody asked for anything before."""
    trajectories = []
    for index in range(N):
        with LocalSampler(always_zero, Moody(kinds, only), seed=SEED) as sampler:
            sampler._session.version = version - 1
            trajectories.append(next(sampler.stream(first_trajectory=index)))
    return trajectories


@pytest.fixture(scope="module", params=["all", pytest.param("numbers", marks=pytest.mark.slow)])
def moods(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return KINDS if request.param == "all" else KINDS[:3]


@pytest.fixture(scope="module")
def reference(moods: list[dict[str, Any]]) -> list[list[TrajectoryBatch]]:
    return [alone(moods, version=version) for version in (1, 2)]


def forms(trajectory: TrajectoryBatch) -> str:
    return str([trajectory.env_infos, trajectory.episode_infos])


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [3, 1])
def test_a_streamed_trajectory_is_what_it_is_alone(
    make_sampler: Maker, n_workers: int, moods: list[dict[str, Any]], reference: list[list[TrajectoryBatch]]
) -> None:
    """Also when it comes in a large ticket with others: the second time their lengths are known."""
    sampler = make_sampler(always_zero, Moody(moods), n_workers=n_workers, seed=SEED)
    for version in reference[: 1 if make_sampler.side_by_side else 2]:
        for expected, trajectory in zip(version, sampler.stream(), strict=False):
            assert trajectory == expected, (forms(trajectory), forms(expected))


@pytest.mark.slow
def test_the_reference_is_not_trivial(reference: list[list[TrajectoryBatch]], moods: list[dict[str, Any]]) -> None:
    dtypes = {str(trajectory.env_infos["x"].dtype) for trajectory in reference[0] if "x" in trajectory.env_infos
              and not isinstance(trajectory.env_infos["x"], dict)}  # fmt: skip
    assert {"int64", "float64", "float32"} <= dtypes
    assert (len(moods) > 3) == ("object" in dtypes)


@pytest.mark.parametrize("only", ["episode_infos", pytest.param("env_infos", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_each_kind_of_infos_is_looked_at(make_local: Callable[..., LocalSampler], only: str) -> None:
    sampler = make_local(always_zero, Moody(KINDS, only), seed=SEED)
    assert list(islice(sampler.stream(), N)) == alone(KINDS, only)


# ---------------------------------------------------------------------- what does not belong to the result


@pytest.mark.parametrize("options", [{}, SIDE_BY_SIDE], ids=["one by one", "side by side"])
def test_surplus_trajectories_decide_nothing(
    make_local: Callable[..., LocalSampler], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came with the last ones of the batch are of the other kind."""
    n_surplus, add = 0, Throughput.add

    def add_as_quick(self: Throughput, lengths: Sequence[int], seconds: float, *more: Any) -> None:
        """Take timesteps to be quick on any machine: tickets of slow ones have one trajectory, and leave nothing."""
        add(self, lengths, 1e-4 * sum(lengths), *more)

    monkeypatch.setattr(Throughput, "add", add_as_quick)
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


@pytest.mark.parametrize("engine", ["local", pytest.param("forkserver", marks=pytest.mark.slow)], indirect=True)
def test_dropped_trajectories_decide_nothing(make_sampler: Maker) -> None:
    kinds: list[dict[str, Any]] = [{"x": 1}, {"x": 0.5, "fails": 1, "_x": 0}]
    sampler = make_sampler(always_zero, Moody(kinds), seed=SEED, on_failure="drop")
    for _ in range(2):
        batch = sampler.obtain_samples(40)
        assert batch.stats is not None
        assert batch.stats.dropped_trajectories > 3
        for infos in (batch.env_infos, batch.episode_infos):
            assert infos.keys() == {"x"}
            assert infos["x"].dtype == np.int64
    for trajectory, _ in zip(sampler.stream(), range(20), strict=False):
        assert trajectory.env_infos.keys() == {"x"}


# ---------------------------------------------------------------------- names that clash

CLASHING = [{"x": 1}, {"_x": 2}]


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="one by one"), pytest.param(SIDE_BY_SIDE, marks=pytest.mark.slow, id="side by side")],
)
@pytest.mark.parametrize("only", ["episode_infos", pytest.param("env_infos", marks=pytest.mark.slow)])
def test_names_that_clash_with_another_trajectorys_are_fine_in_a_stream(
    make_local: Callable[..., LocalSampler], only: str, options: dict[str, Any]
) -> None:
    sampler = make_local(always_zero, Moody(CLASHING, only), seed=SEED, **options)
    found = [next(iter(getattr(trajectory, only))) for trajectory, _ in zip(sampler.stream(), range(N), strict=False)]
    assert set(found) == {"x", "_x"}
    with pytest.raises(DataError, match=rf"{only}\['x'\] and {only}\['_x'\]"):
        sampler.obtain_trajectories(N)
    assert len(sampler.obtain_trajectories(1)) == 1


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
@pytest.mark.parametrize("only", ["episode_infos", pytest.param("env_infos", marks=pytest.mark.slow)])
def test_names_that_clash_within_a_trajectory_are_its_own_fault(make_sampler: Maker, only: str) -> None:
    kinds = [{"x": 1}, {"x": 1, "_x": 2}]
    sampler = make_sampler(always_zero, Moody(kinds, only), seed=SEED)
    with pytest.raises(RolloutError, match=rf"{only}\['x'\] and {only}\['_x'\]") as raised:
        sampler.obtain_trajectories(N)
    failed = raised.value.trajectory
    if make_sampler.side_by_side:
        return
    dropping = make_sampler(always_zero, Moody(kinds, only), seed=SEED, on_failure="drop")
    batch = dropping.obtain_trajectories(20)
    assert batch.stats is not None
    assert failed in {dropped.index for dropped in batch.stats.dropped}
    assert 5 < batch.stats.dropped_trajectories < 60
    expected = make_sampler(always_zero, Moody([{"x": 1}, {"x": 1, "fails": 1}], only), seed=SEED, on_failure="drop")
    assert batch.indices.tolist() == expected.obtain_trajectories(20).indices.tolist()
