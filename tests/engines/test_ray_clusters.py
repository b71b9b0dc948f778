"""Attach to a cluster of two nodes, which others have started, by its address."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ray_clusters import start_head

pytestmark = [pytest.mark.extras, pytest.mark.ray, pytest.mark.slow]

SCRIPT = """
import os, sys
import ray
from streamsampler import LocalSampler, RaySampler
from tests.scripted.envs import Steps

class Told(Steps):
    def reset(self, **options):
        observation, _ = super().reset(**options)
        return observation, {"told": os.environ["TOLD"]}

os.environ["TOLD"] = "something"
with LocalSampler("random", Told, seed=1) as local:
    expected = local.obtain_trajectories(20)
runtime_env = {"env_vars": {"TOLD": "something"}}
for address in (sys.argv[1], "auto", None):
    with RaySampler("random", Told, n_workers=3, seed=1, ray_address=address, runtime_env=runtime_env) as remote:
        assert remote.obtain_trajectories(20) == expected
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        assert len(nodes) == 2
    assert not ray.is_initialized()
print("the same three times")
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """Nodes with one and with two CPUs: three workers take both."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets allow a path of 107 bytes only
        options = {"object_store_memory": 128 << 20}
        cluster = start_head(num_cpus=1, include_dashboard=False, temp_dir=folder, **options)
        cluster.add_node(num_cpus=2, wait=True, **options)
        yield cluster
        cluster.shutdown()


def test_every_way_to_name_a_cluster_leads_to_it_and_leaves_it(two_nodes):
    address = two_nodes.address
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, address], capture_output=True, text=True, check=False, env=environment
    )
    assert (run.stdout, run.returncode) == ("the same three times\n", 0), run.stderr
    assert run.stderr == ""
