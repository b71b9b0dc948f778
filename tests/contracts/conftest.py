"""The engines, and a sampler maker that looks for whatever was left behind."""

from __future__ import annotations

import copy
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, RaySampler, VecWorker
from streamsampler.data.multi_agent import assembled
from streamsampler.engines.launch.start_methods import has_processes
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.lifecycle import SamplerLife
from tests.patience import PATIENCE
from tests.scripted.agents import Independent, always_zero
from tests.scripted.envs import Steps
from tests.scripted.one_of_several import alone, as_one_of_several
from tests.shared_memory import shared_memory

# Each time, everything is tried in this process and in processes of the fork server ("forkserver"). How processes
# start, and what carries messages between them, have nothing to do with each other: in the slow tier everything is
# tried with one start method for each way that messages go, and what depends on the start with all of them. All by all
# is tried by the proof `contracts`.
ALL_BY_ALL = "ALL_BY_ALL" in os.environ
# The other engine of processes: the core of C1 and C3 by fork each time, all else in the slow tier.
QUEUES = {f"queues {method}": method for method in ("fork", "spawn", "forkserver")}
SLOW_QUEUES = [pytest.param(name, marks=pytest.mark.slow) for name in QUEUES]
# Actors of Ray, for which a virtual environment of its own is needed: the core of each contract in each run with Ray.
RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.extras])
SLOW_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.extras, pytest.mark.slow])
PROCESSES = ["forkserver", *SLOW_QUEUES, SLOW_RAY]
# Processes of the fork server with everything through shared memory, however small, and with all that a pipe can hold
# through pipes: nothing waits until there is room in one.
INLINE_LIMITS = {"shared memory": -1, "pipes": 1 << 14}
TRANSPORTS = [pytest.param(name, marks=pytest.mark.slow) for name in INLINE_LIMITS]
# Workers of several environments, which are handed whole blocks: the core of C1 each time, all else in the slow tier.
SIDE_BY_SIDE = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
VEC = {"vec": "local", "vec forkserver": "forkserver"}
# The same in lanes, with agents that say that their rows are independent.
LANES = {"lanes": "local", "lanes forkserver": "forkserver"}
# The same with the agent in this process.
PARENT = "parent"
# Workers of environments of several agents, of which one takes part.
SEVERAL = {"one of several": "local", "one of several forkserver": "forkserver"}
SLOW_SEVERAL = pytest.param("one of several forkserver", marks=pytest.mark.slow)
SLOW_VEC = [pytest.param(name, marks=pytest.mark.slow) for name in (*VEC, *LANES, PARENT)]
# What is the same in whatever process it happens: with the others in the slow tier.
NO_CPU = {"num_cpus": 0}
LOCAL = ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("forkserver", *VEC))]
ENGINES = ["local", "forkserver", SLOW_QUEUES[0], SLOW_RAY, *TRANSPORTS, *SLOW_VEC, SLOW_SEVERAL]
ENGINES += SLOW_QUEUES[1:] if ALL_BY_ALL else []


def core_on_ray(engines: Sequence[Any]) -> pytest.MarkDecorator:
    """Mark a test that shows the core of a contract: it runs on these engines, and in each run with Ray."""
    return pytest.mark.parametrize("engine", [*(one for one in engines if one is not SLOW_RAY), RAY], indirect=True)


def slow_on(*names: str, engines: Sequence[Any] = ENGINES) -> list[Any]:
    """Return these engines, with those of the names in the slow tier."""
    return [pytest.param(one, marks=pytest.mark.slow) if one in names else one for one in engines]


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


def actors() -> list[str]:
    """The titles of Ray's processes that are workers of this package, and do not go.

    One that was being started when its sampler was closed is ended by Ray, a little later.
    """
    titles, deadline = [], time.monotonic() + PATIENCE
    for pid in descendants():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text()
            if not title.startswith("ray::RayWorker"):
                continue
            descriptor = os.pidfd_open(pid)
        except OSError:  # it ended just now
            continue
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            titles.append(title)
        os.close(descriptor)
    return titles


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


def one_each(sampler: Any, agent: Any) -> Any:
    """An agent for each worker, where a sampler takes that; else one for all."""
    return agent if sampler._holds_agent else PerWorker(sampler.n_workers * [agent])


class Maker:
    """Makes samplers of one engine, and closes them."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.made: list[Sampler] = []

    @property
    def side_by_side(self) -> bool:
        """Whether a worker runs several trajectories at a time."""
        return self.engine in VEC or self.engine in LANES or self.engine == PARENT

    def __call__(self, agents: Any, envs: Any, *, n_workers: int = 1, **options: Any) -> Any:
        if self.engine in SEVERAL:
            envs = as_one_of_several(envs, options.pop("env_kwargs", None))
        return self._made(agents, envs, n_workers, options)

    def _made(self, agents: Any, envs: Any, n_workers: int, options: dict[str, Any]) -> Any:
        if self.engine in VEC:
            options = {**SIDE_BY_SIDE, **options}
        if self.engine == PARENT and any(isinstance(given, list | PerWorker) for given in (agents, envs)):
            pytest.skip("refused there: one agent and one environment for all")
        if self.engine in LANES or self.engine == PARENT:
            options = {"worker_class": VecWorker, "worker_args": {"n_envs": max(3, n_workers)}, **options}
            agents = [Independent(agent) for agent in agents] if isinstance(agents, list) else Independent(agents)
        engine = (VEC | LANES | SEVERAL).get(self.engine, self.engine)
        if engine == "local":
            return self.adopt(LocalSampler(agents, envs, n_workers=n_workers, **options))
        options = {"close_timeout": PATIENCE, **options}
        if engine == "ray":
            return self.adopt(RaySampler(agents, envs, n_workers=n_workers, worker_resources=NO_CPU, **options))
        if engine == PARENT:
            options.pop("order", None)  # it has one: of indices
            agents = copy.deepcopy(agents)  # the sampler has the very agent, and its updates would reach other samplers
            return self.adopt(MultiprocessingSampler(agents, envs, n_workers=n_workers, inference="parent", **options))
        if engine in QUEUES:
            options = {"engine": "queues", "start_method": QUEUES[engine], **options}
        return self.adopt(MultiprocessingSampler(agents, envs, n_workers=n_workers, **options))

    def adopt(self, sampler: Sampler) -> Sampler:
        self.made.append(sampler)
        return sampler


@pytest.fixture(autouse=True)
def patient(patient: None) -> None:
    """Of all tests of contracts: what a killed process did would not be accounted for."""


@pytest.fixture(scope="session")
def fork_server() -> None:
    """The fork server belongs to this process and stays: it is started before anything is counted."""
    if has_processes():
        MultiprocessingSampler(always_zero, Steps, n_workers=1).close()


@cache
def use_multiprocessing(method: Any) -> None:
    """What Python's own `multiprocessing` starts and opens at its first use belongs to this process as well."""
    MultiprocessingSampler(always_zero, Steps, n_workers=1, engine="queues", start_method=method).close()


@cache
def use_parent() -> None:
    """What is started at the first use of an agent in this process belongs to this process as well."""
    with MultiprocessingSampler(always_zero, Steps, n_workers=1, inference="parent") as sampler:
        sampler.obtain_trajectories(1)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_sampler(
    engine: str, patient: None, fork_server: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Maker]:
    maker = Maker(engine)
    if engine in INLINE_LIMITS:
        monkeypatch.setattr("streamsampler.engines.processes.engine.INLINE_LIMIT", INLINE_LIMITS[engine])
    if engine in QUEUES:
        use_multiprocessing(QUEUES[engine])
    if engine == PARENT:
        use_parent()
    if engine in SEVERAL:
        monkeypatch.setattr("streamsampler.samplers.batches.assembled", lambda *a, **k: alone(assembled(*a, **k)))
        updates_of = SamplerLife._updates_of
        monkeypatch.setattr(
            SamplerLife, "_updates_of", lambda self, agent, env, resets: updates_of(
                self, agent, env if self not in maker.made else as_one_of_several(env), resets
            )
        )  # fmt: skip
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    before = Traces()
    yield maker
    for sampler in maker.made:
        sampler.close()
    if engine == "ray":
        assert actors() == []  # Ray's other processes, and its connections, come and go
    else:
        assert Traces().since(before) == NOTHING


@pytest.fixture
def make_local() -> Iterator[Callable[..., LocalSampler]]:
    """Makes twins in this process: the reference."""
    maker = Maker("local")
    yield maker
    for sampler in maker.made:
        sampler.close()
