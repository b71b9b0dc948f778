"""What a worker on Ray recorded stays as it is until Ray has taken it, while the next ticket is recorded."""

from functools import partial

import pytest

from streamsampler import LocalSampler, RaySampler, VecWorker
from tests.scripted.agents import Batched
from tests.scripted.envs import Counting

pytestmark = [pytest.mark.extras, pytest.mark.ray, pytest.mark.slow]
pytest.importorskip("ray")


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}], ids=["one", "vec"])
def test_large_rows_are_not_written_over(ray_cluster, options):
    make_env = partial(Counting, 10, 20_000)
    with (
        LocalSampler(Batched(1), make_env, seed=4, **options) as local,
        RaySampler(Batched(1), make_env, n_workers=2, seed=4, **options) as sampler,
    ):
        for _ in range(3):
            assert sampler.obtain_trajectories(60) == local.obtain_trajectories(60)
