"""The engine of Ray: the same batches whatever happens to its actors, and words for what clusters lack."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import (
    ExistingEnvUpdate,
    Limits,
    LocalSampler,
    RaySampler,
    RolloutError,
    SamplerError,
    SerializationError,
    UsageError,
    VecWorker,
    WorkerHungError,
)
from streamsampler.engines import registry
from streamsampler.samplers.per_task import PerTask, TaskRun
from tests.ray_clusters import start_head
from tests.samplers.task_programs import digests
from tests.scripted.agents import Batched, always_zero
from tests.scripted.envs import Counting, Steps

pytestmark = [pytest.mark.extras, pytest.mark.ray]

NO_CPU = {"num_cpus": 0}
ROOT = str(Path(__file__).parents[2])


class Raises(Steps):
    def step(self, action):
        raise KeyError("on purpose")


class Hangs(Steps):
    def step(self, action):
        threading.Event().wait()


class Locked(Steps):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.fixture
def make(ray_cluster: None) -> Iterator[Any]:
    made = []

    def make_sampler(agents: Any = "random", envs: Any = "CartPole-v1", **options: Any) -> RaySampler:
        made.append(RaySampler(agents, envs, **{"n_workers": 2, "seed": 1, "worker_resources": NO_CPU, **options}))
        return made[-1]

    yield make_sampler
    for sampler in made:
        sampler.close()


def test_killed_actors_change_nothing_and_batches_may_be_written_to(make):
    with LocalSampler("random", "CartPole-v1", seed=1) as local:
        sampler = make(max_restarts=None, limits=Limits(max_lifetime_restarts=None))
        for killed in ([], [0], [1], [0, 1]):
            for number in killed:
                # Of one alone nobody may have missed it: the other actor does its work, and it is not started again.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sampler.worker_pids()[number], signal.SIGKILL)
            batch = sampler.obtain_samples(5_000)
            assert batch == local.obtain_samples(5_000)
            for array in (batch.observations, batch.last_observations, batch.actions, batch.rewards):
                array[:] = 0
        assert 1 <= sampler.stats.restarts <= 4


def test_a_stopped_actor_hangs_and_is_replaced(make):
    with LocalSampler(always_zero, "CartPole-v1", seed=1) as local:
        sampler = make(
            always_zero, n_workers=1, step_timeout=1.0, limits=Limits(construction_timeout=60.0), max_restarts=None
        )
        sampler.obtain_samples(100)
        local.obtain_samples(100)
        os.kill(sampler.worker_pids()[0], signal.SIGSTOP)
        assert sampler.obtain_samples(2_000) == local.obtain_samples(2_000)
        assert sampler.stats.hangs >= 1, "a busy machine may stop a worker for longer, too"
    sampler = make(always_zero, Hangs, step_timeout=5.0, max_restarts=0, n_workers=1)
    with pytest.raises(WorkerHungError, match="while stepping the environment") as caught:
        sampler.obtain_samples(10)
    assert "in step" in caught.value.stack
    assert "threading.py" not in caught.value.stack


def test_an_exception_comes_with_its_traceback_and_the_sampler_stays_usable(make):
    sampler = make(always_zero, Raises)
    with pytest.raises(RolloutError, match="while stepping the environment in trajectory 0") as caught:
        sampler.obtain_samples(10)
    assert isinstance(caught.value.original, KeyError)
    assert "in step" in str(caught.value.__cause__)
    assert len(sampler.obtain_trajectories(3, env_update=Steps)) == 3
    with pytest.raises(SerializationError):
        sampler.obtain_trajectories(1, env_update=ExistingEnvUpdate(Locked()))
    assert len(sampler.obtain_trajectories(3)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}], ids=["one", "vec"])
def test_large_rows_are_not_written_over_until_ray_has_taken_them(make, options):
    """And an agent of 40 MB reaches all workers."""
    make_env = partial(Counting, 10, 20_000)
    with LocalSampler(Batched(1), make_env, seed=4, **options) as local:
        sampler = make(Batched(1), make_env, **{"seed": 4, **options})
        for _ in range(3):
            assert sampler.obtain_trajectories(60) == local.obtain_trajectories(60)
        large = Batched(2)
        large.ballast = bytes(40_000_000)  # type: ignore[attr-defined]
        assert sampler.obtain_trajectories(9, large) == local.obtain_trajectories(9, large)


class Large:
    """An agent of 1.6 MB, which goes through the object store."""

    def __init__(self, number: int) -> None:
        self.weights = np.full(200_000, number)

    def get_action(self, observation: Any) -> Any:
        return int(self.weights[-1] + 8 * abs(observation[0])) % 2, {}


def test_agents_of_several_tasks_come_from_the_object_store(make):
    agents, envs = PerTask([Large(0), Large(1), Large(0)]), PerTask(["CartPole-v1"] * 3)
    runs = [TaskRun(task, 0, 20) for task in range(3)]
    with LocalSampler(agents, envs, seed=1) as local:
        expected = digests(local.task_stream(runs))
    sampler = make(agents, envs)
    assert digests(sampler.task_stream(runs)) == expected
    os.kill(sampler.worker_pids()[0], signal.SIGKILL)
    assert digests(sampler.task_stream(runs)) == expected


def test_two_samplers_side_by_side(make):
    first, second = make(seed=1), make(seed=2)
    streams = first.stream(), second.stream()
    for _ in range(20):
        one, other = map(next, streams)
        assert one.seeds != other.seeds
    first.close()
    assert len(second.obtain_trajectories(5)) == 5


def fails(match: str, error: type[Exception] = SamplerError, **options: Any) -> None:
    with pytest.raises(error, match=match):
        RaySampler("random", "CartPole-v1", seed=1, **{"n_workers": 2, **options})


def test_resources_that_are_missing_or_in_use_are_said(make):
    import ray

    fails(r"has no room for 1000 workers: each needs 1 CPU, and the cluster has \d+ CPU in all", n_workers=1000)
    fails("each needs 1 CPU, 1 GPU", worker_resources={"num_gpus": 1})
    fails("each needs 1 CPU, 2 lab", worker_resources={"resources": {"lab": 2}})
    n_cpus = int(ray.cluster_resources()["CPU"])
    make(n_workers=1, worker_resources={"num_cpus": n_cpus})
    fails(f"has no room for 2 workers.* the cluster has {n_cpus} CPU in all, 0 CPU free")


def test_what_has_just_ended_leaves_its_room(make, monkeypatch):
    import ray

    monkeypatch.setattr("streamsampler.engines.ray_cluster._RELEASE_SECONDS", 60)
    everything = {"num_cpus": int(ray.cluster_resources()["CPU"])}
    for _ in range(2):
        sampler = make(n_workers=1, worker_resources=everything)
        assert len(sampler.obtain_trajectories(1)) == 1
        sampler.close()


def test_other_versions_are_said(ray_cluster, monkeypatch):
    from streamsampler.engines import ray_starts
    from streamsampler.engines.ray_worker import versions

    here = versions()
    monkeypatch.setattr(ray_starts, "versions", lambda: {**here, "numpy": "0.1"})
    fails(rf"has other versions \(numpy {here['numpy']}, here 0.1\)", worker_resources=NO_CPU)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ray_address": "127.0.0.1:1"}, "attached to the Ray cluster at .* already"),
        ({"worker_resources": {"cpus": 1}}, "keys among num_cpus, num_gpus"),
        ({"worker_resources": {"num_cpus": -1}}, "CPU must be a number of at least 0, got -1"),
        ({"runtime_env": "numpy"}, "runtime_env must be a dict"),
        ({"runtime_env": {"envvars": {}}}, "runtime_env has keys unknown to Ray: envvars"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, r"Ray refuses .* must be of type Dict\[str, str\]"),
        ({"runtime_env": {"working_dir": "/nowhere"}}, "Ray refuses .* /nowhere is not a valid path"),
    ],
)
def test_arguments_that_cannot_work_are_refused(ray_cluster, options, match):
    fails(match, UsageError, **options)


def test_nobody_listens(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # taken meanwhile: nothing else may listen there
        fails(f"no Ray cluster answers at 127.0.0.1:{port}: .*refused. Start", ray_address=f"127.0.0.1:{port}")
    for address in ("10.0.0.1", "localhost:", "ray://localhost:1"):
        fails('must be "host:port"', UsageError, ray_address=address)

    def init(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n Ray: 1.0")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    fails("no Ray cluster could be started: Version mismatch: The cluster was started with: Ray: 1.0")


def test_the_engine_is_another_samplers():
    with pytest.raises(UsageError, match="use RaySampler"):
        registry.check_engine("ray", "fork", {})


ENDS = """
from streamsampler import RaySampler
from tests.scripted.envs import Steps

class Mine(Steps):
    def close(self):
        with open(CLOSED, "a") as file:
            print("closed", file=file)

sampler = RaySampler("random", Mine, n_workers=2, seed=1)
print(sampler.obtain_samples(10).n_timesteps)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_closes_its_environments_and_ends_its_own_cluster(tmp_path):
    script, closed = tmp_path / "script.py", tmp_path / "closed"
    script.write_text(f"CLOSED = {str(closed)!r}\n{ENDS}")
    environment = {**os.environ, "PYTHONPATH": ROOT}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    assert int(run.stdout) >= 10
    assert closed.read_text() == "closed\n" * 2


ATTACHING = """
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


@pytest.mark.slow
def test_every_way_to_name_a_cluster_leads_to_it_and_leaves_it():
    """Nodes with one and with two CPUs: three workers take both."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets allow a path of 107 bytes only
        options = {"object_store_memory": 128 << 20}
        cluster = start_head(num_cpus=1, include_dashboard=False, temp_dir=folder, **options)
        cluster.add_node(num_cpus=2, wait=True, **options)
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": ROOT}
        try:
            run = subprocess.run(
                [sys.executable, "-c", ATTACHING, cluster.address], capture_output=True, text=True, env=environment
            )
        finally:
            cluster.shutdown()
    assert (run.stdout, run.stderr, run.returncode) == ("the same three times\n", "", 0)
