"""The engines, and a sampler maker that looks for whatever was left behind."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, RaySampler, VecWorker
from streamsampler.engines.launch.start_methods import has_processes
from streamsampler.engines.registry import ENGINES as REGISTERED
from streamsampler.samplers.base import Sampler
from tests.patience import closing_patiently
from tests.scripted.agents import Independent, always_zero
from tests.scripted.envs import Steps
from tests.scripted.waiting import waiting
from tests.shared_memory import shared_memory

# Each time, everything is tried in this process and in processes; in the slow tier with the other engine and other
# workers, too. What depends on the start of queues' processes is tried by all start methods; all by all of them is the
# proof `contracts`.
ALL_BY_ALL = "ALL_BY_ALL" in os.environ
QUEUES = {f"queues {method}": method for method in ("fork", "spawn", "forkserver")}
ADDED = [name for name in REGISTERED if name not in ("processes", "queues")]
NAMED: dict[str, dict[str, Any]] = {
    **{name: {"engine": "queues", "start_method": method} for name, method in QUEUES.items()},
    **{name: {"engine": name} for name in ADDED},
}
PARENT = "parent"  # the agent stays in this process
VEC = {"vec": "local", "vec processes": "processes"}  # workers of several environments, which are handed whole blocks
SIDE_BY_SIDE = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
LANES = {"lanes": "local", "lanes processes": "processes"}  # the same with agents whose rows are independent
WAITING = {"waiting": "local", "waiting processes": "processes"}  # several trajectories in flight on an event loop
THREADS = {"threads": "local", "threads processes": "processes"}  # the same, with environments on threads
# Processes with everything through shared memory, however small, and with all that a pipe can hold through pipes.
INLINE_LIMITS = {"shared memory": -1, "pipes": 1 << 14}
NO_CPU = {"num_cpus": 0}


def slow(*engines: str) -> list[Any]:
    return [pytest.param(engine, marks=pytest.mark.slow) for engine in engines]


RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.extras])
SLOW_QUEUES = slow(*QUEUES) if ALL_BY_ALL else slow("queues fork")
PROCESSES = ["processes", *SLOW_QUEUES]  # and added engines, where a test may kill a worker
ENGINES = ["local", "waiting", *PROCESSES, *(name for name in ADDED if name not in PROCESSES)]
ENGINES += slow("vec processes", "waiting processes", "threads", "threads processes", PARENT)


def on(*engines: Any) -> pytest.MarkDecorator:
    """Mark a test that runs on these engines."""
    return pytest.mark.parametrize("engine", engines, indirect=True)


def descendants() -> frozenset[int]:
    """The processes that came from this one, those that are dead and that this one has not waited for included.

    What is dead and is left to another process, such as the fork server, is gone when that one gets a core.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it ended just now
                continue
            if state not in "ZX" or int(parent) == os.getpid():
                children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    parents = [os.getpid()]
    while parents:
        mine = children.get(parents.pop(), [])
        found += mine
        parents += mine
    return frozenset(found)


def open_files() -> frozenset[tuple[int, int, str]]:
    """This process's descriptors, and what they are."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add((int(entry.name), entry.stat().st_ino, str(entry.readlink())))
        except OSError:  # the one that lists the folder
            continue
    return frozenset(found)


@dataclass(frozen=True)
class Traces:
    """What samplers could leave behind."""

    processes: frozenset[int] = field(default_factory=descendants)
    files: frozenset[tuple[int, int, str]] = field(default_factory=open_files)
    shared_memory: frozenset[str] = field(default_factory=shared_memory)

    def since(self, before: Traces) -> Traces:
        return Traces(
            self.processes - before.processes, self.files - before.files, self.shared_memory - before.shared_memory
        )


NOTHING = Traces(frozenset(), frozenset(), frozenset())


def _all_waiting(envs: Any) -> Any:
    return [waiting(env) for env in envs] if isinstance(envs, list) else waiting(envs)


class Maker:
    """Makes samplers of one engine, and closes them."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.made: list[Sampler] = []

    @property
    def side_by_side(self) -> bool:
        """Whether a worker runs several trajectories at a time."""
        return self.engine in VEC | LANES | WAITING | THREADS or self.engine == PARENT

    def __call__(self, agents: Any, envs: Any, *, n_workers: int = 1, **options: Any) -> Any:
        if self.engine == PARENT and any(isinstance(given, list | PerWorker) for given in (agents, envs)):
            pytest.skip("refused there: one agent and one environment for all")
        if self.engine in VEC:
            options = {**SIDE_BY_SIDE, **options}
        if self.engine in LANES or self.engine == PARENT:
            options = {"worker_class": VecWorker, "worker_args": {"n_envs": max(3, n_workers)}, **options}
            agents = [Independent(agent) for agent in agents] if isinstance(agents, list) else Independent(agents)
        if self.engine in WAITING | THREADS:
            options = {"worker_args": {"in_flight": 3, "threads": self.engine in THREADS}, **options}
            envs = envs if self.engine in THREADS else _all_waiting(envs)
        if (VEC | LANES | WAITING | THREADS).get(self.engine, self.engine) == "local":
            return self.adopt(LocalSampler(agents, envs, n_workers=n_workers, **options))
        options = closing_patiently(options)
        if self.engine == "ray":
            return self.adopt(RaySampler(agents, envs, n_workers=n_workers, worker_resources=NO_CPU, **options))
        if self.engine == PARENT:
            options.pop("order", None)  # it has one: of indices
            agents = copy.deepcopy(agents)  # the sampler has the very agent, and its updates would reach other samplers
            options["inference"] = "parent"
        options = {**NAMED.get(self.engine, {}), **options}
        return self.adopt(MultiprocessingSampler(agents, envs, n_workers=n_workers, **options))

    def adopt(self, sampler: Sampler) -> Sampler:
        self.made.append(sampler)
        return sampler

    def close(self) -> None:
        for sampler in self.made:
            sampler.close()


@pytest.fixture(autouse=True)
def patient(patient: None) -> None:
    """Of all tests of contracts: what a killed process did would not be accounted for."""


@cache
def warm_up(engine: str) -> None:
    """Use an engine: the fork server and what else is started and opened at the first use belong to this process."""
    maker = Maker(engine)
    maker(always_zero, Steps).obtain_trajectories(1)
    maker.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_sampler(
    engine: str, patient: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Maker]:
    if engine in INLINE_LIMITS:
        monkeypatch.setattr("streamsampler.engines.processes.engine.INLINE_LIMIT", INLINE_LIMITS[engine])
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    for used in (*(("processes", PARENT) if has_processes() else ()), *((engine,) if engine in NAMED else ())):
        warm_up(used)
    before, maker = Traces(), Maker(engine)
    yield maker
    maker.close()
    if engine != "ray":  # whose processes and connections come and go
        assert Traces().since(before) == NOTHING


@pytest.fixture
def make_local() -> Iterator[Callable[..., LocalSampler]]:
    """Makes twins in this process: the reference."""
    maker = Maker("local")
    yield maker
    maker.close()
