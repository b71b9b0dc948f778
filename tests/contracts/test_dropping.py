"""`on_failure="drop"`: what raises is left out and told; the batch is what one process sampling alone would return."""

from __future__ import annotations

import random
from functools import cache, partial
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler, VecWorker
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import AtLeast, Exactly
from tests.contracts.conftest import Maker
from tests.scripted.agents import above_half
from tests.scripted.failing import Brittle

SEED = 77
BRITTLE = partial(Brittle, one_in=3)


class Doomed(Brittle):
    """Raises in the trajectories of these seeds."""

    def __init__(self, seeds: set[int]) -> None:
        super().__init__(one_in=0)
        self.seeds = seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed in self.seeds:
            self.fail()
        return super().reset(seed=seed, options=options)


@cache
def sound(where: str, n: int = 60, width: int = 2) -> dict[int, Any]:
    """What each trajectory is by itself, of those that do not raise."""
    trajectories = {}
    for index in range(n):
        with LocalSampler(above_half, partial(BRITTLE, wrong=where, width=width), seed=SEED) as sampler:
            try:
                trajectories[index] = next(iter(sampler.stream(first_trajectory=index)))
            except RolloutError:
                continue
    return trajectories


PROCESSES = [pytest.param(engine, marks=pytest.mark.slow) for engine in ("forkserver", "shared memory", "queues fork")]


@pytest.fixture(params=["local", *PROCESSES])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "where", ["step", pytest.param("reset", marks=pytest.mark.slow), pytest.param("shape", marks=pytest.mark.slow)]
)
def test_the_batch_is_what_is_left_of_the_prefix(make_sampler: Maker, where: str) -> None:
    sampler = make_sampler(above_half, partial(BRITTLE, wrong=where), n_workers=3, seed=SEED, on_failure="drop")
    batch = sampler.obtain_trajectories(20)
    expected = list(sound(where))[:20]
    assert batch.indices.tolist() == expected
    for position, index in enumerate(expected):
        assert batch[position] == sound(where)[index]
    left_out = sorted(set(range(expected[-1])) - set(expected))
    assert left_out, "or this shows nothing"
    stats = batch.stats
    assert stats is not None
    assert stats.kept_trajectories == 20
    assert stats.dropped_trajectories == len(left_out)
    assert [dropped.index for dropped in stats.dropped] == left_out
    for dropped in stats.dropped:
        assert dropped.version == 1
        assert ("the arm is stuck" if where != "shape" else "(2,)") in dropped.error
        assert (
            dropped.phase
            == {
                "step": "stepping the environment",
                "reset": "resetting the environment",
                "shape": "recording the trajectory",
            }[where]
        )
    assert sampler.stats.dropped_trajectories == len(left_out)


def test_rows_that_are_copied_before_the_batch_is_complete(make_sampler: Maker) -> None:
    """Rows of 4 kB and more are, as they come in: each is copied once, behind what is left of those before."""
    sampler = make_sampler(above_half, partial(BRITTLE, width=1100), n_workers=3, seed=SEED, on_failure="drop")
    batch = sampler.obtain_trajectories(15)
    expected = sound("step", 40, 1100)
    assert batch.indices.tolist() == list(expected)[:15]
    for position, index in enumerate(batch.indices.tolist()):
        assert batch[position] == expected[index]


def test_timesteps_of_what_is_left_count(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, BRITTLE, n_workers=3, seed=SEED, on_failure="drop")
    batch = sampler.obtain_samples(100)
    expected, total = [], 0
    for index, trajectory in sound("step").items():
        expected.append(index)
        total += trajectory.n_timesteps
        if total >= 100:
            break
    assert batch.indices.tolist() == expected


def test_a_stream_passes_by(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, BRITTLE, n_workers=2, seed=SEED, on_failure="drop")
    expected = list(sound("step"))[:25]
    found = [int(trajectory.indices[0]) for trajectory, _ in zip(sampler.stream(), expected, strict=False)]
    assert found == expected
    assert sampler.stats.dropped_trajectories >= expected[-1] + 1 - len(expected)


def test_whatever_finishes_first_too(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, BRITTLE, n_workers=2, seed=SEED, on_failure="drop", order="arrival")
    batch = sampler.obtain_trajectories(30)
    assert len(batch) == 30
    assert set(batch.indices.tolist()) <= set(sound("step"))


def test_workers_of_their_own(make_sampler: Maker) -> None:
    sampler = make_sampler(2 * [above_half], BRITTLE, n_workers=2, seed=SEED, on_failure="drop")
    assert sampler.obtain_trajectories(20).indices.tolist() == list(sound("step"))[:20]
    with pytest.raises(UsageError, match="obtain_exact_trajectories"):
        sampler.obtain_exact_trajectories(3)
    assert len(sampler.obtain_trajectories(2)) == 2


def test_what_restart_on_names_is_run_again_instead(make_sampler: Maker) -> None:
    sampler = make_sampler(
        above_half,
        partial(Brittle, one_in=3),
        n_workers=2,
        seed=SEED,
        on_failure="drop",
        restart_on=OSError,
        max_restarts=2,
    )
    with pytest.raises(RolloutError, match="max_restarts is 2"):
        sampler.obtain_trajectories(20)


def test_where_everything_fails_the_call_ends(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, partial(Brittle, one_in=1), n_workers=2, seed=SEED, on_failure="drop")
    with pytest.raises(RolloutError, match="trajectories failed and 0 did not") as caught:
        sampler.obtain_trajectories(1)
    assert "the arm is stuck" in str(caught.value)
    assert len(sampler.obtain_trajectories(5, env_update=partial(Brittle, one_in=0))) == 5


@pytest.mark.parametrize("n_first", [1, 5])
def test_where_the_first_ones_fail_others_follow(make_sampler: Maker, n_first: int) -> None:
    """Nothing is known of lengths then."""
    failing = set(TrajectorySeeds(SEED, 1).of(range(n_first)))
    sampler = make_sampler(above_half, partial(Doomed, failing), n_workers=2, seed=SEED, on_failure="drop")
    batch = sampler.obtain_samples(10)
    assert batch.indices[0] == n_first


def test_exit_is_a_failure_like_any_other(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, partial(BRITTLE, error=SystemExit), n_workers=2, seed=SEED, on_failure="drop")
    assert sampler.obtain_trajectories(20).indices.tolist() == list(sound("step"))[:20]


def test_an_update_that_raises_is_raised(make_sampler: Maker) -> None:
    sampler = make_sampler(above_half, BRITTLE, n_workers=2, seed=SEED, on_failure="drop")
    with pytest.raises(RolloutError, match="making the environment"):
        sampler.obtain_trajectories(2, env_update=_no_environment)
    assert len(sampler.obtain_trajectories(2)) == 2


def _no_environment() -> gymnasium.Env[Any, Any]:
    raise OSError("nothing to be had")


def test_a_worker_of_blocks_refuses() -> None:
    with pytest.raises(UsageError, match="VecWorker cannot leave out"):
        LocalSampler(above_half, Brittle, on_failure="drop", worker_class=VecWorker)


# ---------------------------------------------------------------------- pure


def arrive(gathering: Gathering, worker: int, indices: range, lengths: list[int]) -> None:
    if kept := [length for length in lengths if length]:  # of what was left out nothing is known
        gathering.throughput.add(kept, 0.01, worker, 8)
    dropped = [Dropped(position, "", "") for position, length in enumerate(lengths) if not length]
    gathering.add(worker, indices, kept, worker, dropped=dropped)


@given(
    lengths=st.lists(st.integers(0, 5), max_size=30),
    n_workers=st.integers(1, 3),
    plan=st.one_of(st.integers(1, 40).map(AtLeast), st.integers(1, 20).map(Exactly)),
    own_queues=st.booleans(),
    events=st.integers(0, 10**6).map(random.Random),
)
def test_any_course_of_events_gives_the_same_prefix(
    lengths: list[int], n_workers: int, plan: AtLeast | Exactly, own_queues: bool, events: random.Random
) -> None:
    lengths = lengths + [2] * 400
    gathering = Gathering(plan, n_workers=n_workers, own_queues=own_queues, dropping=True)
    held: dict[int, range] = {}
    while not gathering.result.complete:
        for worker in range(n_workers):
            if worker not in held and (assignment := gathering.take(worker)):
                held[worker] = assignment.indices
        worker = events.choice(sorted(held))
        indices = held.pop(worker)
        if events.random() < 0.1:
            gathering.put_back(worker, indices)
        else:
            arrive(gathering, worker, indices, [lengths[index] for index in indices])
    found = [index for segment in gathering.result.segments() for index in segment.indices]
    expected, total = [], 0
    for index, length in enumerate(lengths):
        if (total >= plan.timesteps) if plan.timesteps is not None else (len(expected) == plan.limit):
            break
        if length:
            expected.append(index)
            total += length
    assert found == expected
    assert gathering.result.n_trajectories == len(expected)
