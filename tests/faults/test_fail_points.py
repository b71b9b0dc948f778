"""Workers that die at each place of their loop: the batch is the one of the undisturbed run."""

import functools
import itertools

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.testing import FailPoint, ScriptedAgent, ScriptedEnv
from tests.faults.conftest import slow
from tests.faults.test_ends import gone_within

N_WORKERS, N_CALLS, N_TRAJECTORIES, SEED = 3, 2, 24, 5
# So many steps of a millisecond that each worker gets several tickets in each call.
SHAPES = {"small": (2,), "shared memory": (2_000,)}
POINTS = ["start", "continue", "rollout", "write", "send", "sent", "exit"]
WORKERS = {"first": 0, "second": 1, "last": N_WORKERS - 1}


def batches(sampler):
    return [sampler.obtain_trajectories(N_TRAJECTORIES, agent_update={"offset": call}) for call in range(N_CALLS)]


def arguments(payload):
    # One agent each: trajectories belong to workers then, so that each of them is sure to have some in each call.
    return [ScriptedAgent()] * N_WORKERS, functools.partial(ScriptedEnv, shape=SHAPES[payload], seconds=0.001)


@functools.cache
def undisturbed(payload):
    with LocalSampler(*arguments(payload), seed=SEED) as sampler:
        return batches(sampler)


# A diagonal in every run, all of it in the slow tier.
DIAGONAL = {
    ("start", "first", 1, "small"),
    ("rollout", "last", 1, "small"),
    ("write", "last", 2, "shared memory"),
    ("sent", "second", 2, "shared memory"),
    ("exit", "first", 2, "small"),
}
ALL = itertools.product(POINTS, WORKERS, (1, 2), SHAPES)
CELLS = [*DIAGONAL, *(slow(*cell) for cell in ALL if cell not in DIAGONAL)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("point", "worker", "occurrence", "payload"), CELLS)
def test_a_death_at_a_fail_point(tmp_path, point, worker, occurrence, payload):
    fail_point = FailPoint(point, worker=WORKERS[worker], occurrence=occurrence, folder=tmp_path)
    reference = undisturbed(payload)
    agents, envs = arguments(payload)
    # A worker exits once in its life: for the second time there is a second sampler.
    lives = occurrence if point == "exit" else 1
    for _ in range(lives):
        with (
            fail_point.armed(),
            MultiprocessingSampler(agents, envs, n_workers=N_WORKERS, seed=SEED) as sampler,
        ):
            assert not fail_point.fired()
            assert batches(sampler) == reference
            pids = sampler.worker_pids()
    assert fail_point.fired()
    assert gone_within(pids, 0)
    assert sampler.stats.restarts == (point != "exit")
    assert sampler.stats.kept_trajectories == N_CALLS * N_TRAJECTORIES


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 2])
def test_a_death_at_stop(tmp_path, worker):
    """Leaving a stream stops its workers; the call after it finds one of them dead."""
    fail_point = FailPoint("stop", worker=worker, folder=tmp_path)
    agents, envs = arguments("small")
    with LocalSampler(agents, envs, seed=SEED) as local:
        next(local.stream())
        reference = local.obtain_trajectories(N_TRAJECTORIES)
    with fail_point.armed(), MultiprocessingSampler(agents, envs, n_workers=N_WORKERS, seed=SEED) as sampler:
        stream = sampler.stream()
        for _ in range(4):  # each worker has begun, and an endless stream always has more for it
            next(stream)
        stream.close()
        assert sampler.obtain_trajectories(N_TRAJECTORIES) == reference
    assert fail_point.fired()
