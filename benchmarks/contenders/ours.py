"""This library: `MultiprocessingSampler` or `RaySampler`, one call after the other.

Settings:
    batch: Timesteps asked for in each call (default: the workload's).
    trajectories: If given, so many trajectories are asked for instead.
    length: If given, after so many timesteps trajectories are truncated.
    fragments: Whether episodes go on instead, with `length` timesteps of as many environments in each call.
    order: "index" (default) or "arrival".
    vec: If given, so many environments in each worker, with batched actions.
    inference: "parent" for one agent in this process and `vec` environments in all; otherwise one in each worker.
    native: If given, one environment in each worker, which is so many copies vectorised natively.
    block_size: If given, so many trajectories in each of their blocks (default: as many as environments).
    slowed: By what factor the workload takes longer than what it stands for (default 1); tickets then do, too.
    stream: Whether trajectories are taken from `stream()`, one by one, instead of calls.
    engine: "ray", on a cluster of its own if there is none, or one of those of `MultiprocessingSampler`.
    start_method: See `MultiprocessingSampler`.
    filters: If given, "observation" or "both": which filters the sampler has.
    hooks: Whether a hook is called at each timestep and at each end, with a metric.
    staleness: 1 for batches of the version before (default 0).
    learns: Whether the caller sleeps after each call, as a learner elsewhere, for as long as a call took before.
    watched: Whether workers are watched for hangs and for memory.
    variant: If given, which of the workload's `variants` of its environment.
    one_by_one: Whether the agent has no `get_actions`, and is asked for one action at a time.

Where several agents play in an environment, timesteps are those of all agents together.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.agents import OneByOne
from benchmarks.problems.workloads import Workload, checksum, marks
from streamsampler import MultiprocessingSampler, TrajectoryBatch
from streamsampler.engines.base import Engine

if TYPE_CHECKING:
    from streamsampler.samplers.base import Sampler


class Collector:
    """Call the sampler, and record what the calls cost."""

    def __init__(
        self, workload: Workload, sampler: Sampler, settings: dict[str, Any], amount: dict[str, Any] | None = None
    ) -> None:
        self.workload, self.sampler = workload, sampler
        self.batch = settings.get("batch", workload.batch)
        self.trajectories = settings.get("trajectories")
        self.length, self.fragments = settings.get("length"), settings.get("fragments")
        self.amount = amount or {}
        self.iteration = 0
        self.called: dict[int, float] = {}
        self.checksum_seconds = 0.0
        self.learning_seconds = 0.0
        self._stream = sampler.stream() if settings.get("stream") else None

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call until the time is over or there are timesteps enough."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        reports, timesteps, trajectories, calls = self.sampler.stats.reports, 0, 0, 0
        self.called, self.checksum_seconds = {}, 0.0
        parent, begin = time.process_time(), time.perf_counter()
        now = begin
        while now - begin < seconds and timesteps < enough:
            n, k = self._call()
            timesteps, trajectories, calls = timesteps + n, trajectories + k, calls + 1
            now = time.perf_counter()
        return {
            "timesteps": timesteps,
            "trajectories": trajectories,
            "seconds": now - begin,
            "parent_cpu": time.process_time() - parent,
            "reports": self.sampler.stats.reports - reports,
            "calls": calls,
            "checksum_seconds": self.checksum_seconds,
            "delays": self._delays(),
        }

    def _call(self) -> tuple[int, int]:
        parameters = self.workload.parameters
        update = None
        if parameters is not None:
            self.iteration += 1
            update = parameters(self.iteration)
            self.called[self.iteration] = time.monotonic()
        batch = self._obtain(update) if self._stream is None else next(self._stream)
        if self.workload.reads_batch:
            begin = time.perf_counter()
            checksum(batch.observations)
            self.checksum_seconds += time.perf_counter() - begin
        if self.learning_seconds:
            time.sleep(self.learning_seconds)
        return getattr(batch, "n_agent_steps", batch.n_timesteps), batch.n_trajectories

    def _obtain(self, update: Any) -> TrajectoryBatch:
        if self.fragments:
            return self.sampler.obtain_fragments(self.length, self.trajectories, agent_update=update)
        if self.trajectories:
            return self.sampler.obtain_trajectories(self.trajectories, agent_update=update)
        return self.sampler.obtain_samples(self.batch, agent_update=update, **self.amount)

    def _delays(self) -> list[list[float]]:
        """Return, for each call, the seconds until each worker first acted under its parameters."""
        return [[when - called for _, when in marks(iteration)] for iteration, called in self.called.items()]


def worker_options(settings: dict[str, Any]) -> dict[str, Any]:
    """The sampler's arguments for several environments in each worker."""
    n_envs = settings.get("vec") or settings.get("native")
    if not n_envs:
        return {}
    if settings.get("inference") == "parent":
        return {"inference": "parent", "worker_args": {"n_envs": n_envs}}
    from streamsampler import VecWorker

    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs, "block_size": settings.get("block_size")}}


def filter_options(settings: dict[str, Any]) -> dict[str, Any]:
    """The sampler's arguments for filters."""
    if not settings.get("filters"):
        return {}
    from streamsampler.filters import RunningNorm, RunningReturnNorm

    rewards = {"reward_filter": RunningReturnNorm(0.99)} if settings["filters"] == "both" else {}
    return {"observation_filter": RunningNorm(), **rewards}


class Counting:
    """Hooks that count timesteps."""

    def on_timestep(self, context: Any) -> None:
        """Count one."""
        context.memory["n"] = context.memory.get("n", 0) + 1

    def on_trajectory_end(self, context: Any) -> None:
        """Say how many there were."""
        context.metrics["n"] = context.memory["n"]


def make_sampler(agents: Any, envs: Any, engine: str | None, **options: Any) -> Sampler:
    """Return a sampler of an engine."""
    if engine == "ray":
        from streamsampler import RaySampler

        options = {name: value for name, value in options.items() if name != "start_method"}
        return RaySampler(agents, envs, **options)
    if engine is not None:  # earlier versions, which are measured as well, have one engine
        options["engine"] = engine
    return MultiprocessingSampler(agents, envs, **options)


def ticket_sizes() -> Any:
    """Return the module that says how long tickets are, which is elsewhere in earlier versions: these are measured."""
    for name in ("protocol.tickets", "scheduling.throughput", "scheduling.ticket_size", "pacing"):
        with suppress(ImportError):
            module = importlib.import_module(f"streamsampler.{name}")
            if hasattr(module, "TICKET_SECONDS"):
                return module
    raise ImportError("this version of streamsampler keeps the length of its tickets elsewhere")


def watched_options() -> dict[str, Any]:
    """Return the arguments with which workers are watched, of earlier versions as well."""
    limit = {"max_worker_memory": 1 << 34}
    try:
        from streamsampler import Limits
    except ImportError:
        return {"step_timeout": 10.0, **limit}
    return {"step_timeout": 10.0, "limits": Limits(**limit)}


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the workers."""
    sizes = ticket_sizes()
    for name in ("TICKET_SECONDS", "SHORTEST_TICKET_SECONDS"):
        setattr(sizes, name, settings.get("slowed", 1) * getattr(sizes, name))
    if hasattr(Engine, "shortest_ticket_seconds"):  # earlier versions, which are measured as well, have it not
        Engine.shortest_ticket_seconds = sizes.SHORTEST_TICKET_SECONDS
    make_env: Any = workload.env_function(settings)
    if settings.get("native"):
        from benchmarks.contenders.batched_bare import vector_env_function

        make_env = vector_env_function(workload, settings["native"])
    with make_sampler(
        OneByOne(workload.make_agent()) if settings.get("one_by_one") else workload.make_agent(),
        make_env,
        settings.get("engine"),
        n_workers=n_processes,
        seed=1,
        order=settings.get("order", "index"),
        start_method=settings.get("start_method"),
        **(watched_options() if settings.get("watched") else {}),
        **({} if settings.get("fragments") else {"max_episode_length": settings.get("length")}),
        **worker_options(settings),
        **filter_options(settings),
        **({"hooks": Counting()} if settings.get("hooks") else {}),
        **({"staleness": settings["staleness"]} if settings.get("staleness") else {}),
    ) as sampler:
        # Earlier versions, which are measured as well, have no such argument, nor environments of several agents.
        several = workload.several and hasattr(make_env(), "possible_agents")
        collector = Collector(workload, sampler, settings, {"count": "agent_steps"} if several else None)
        # The first calls learn how long trajectories take.
        collector.measure({"seconds": 0.5})
        if settings.get("learns"):
            before = collector.measure({"seconds": 2.0})
            collector.learning_seconds = before["seconds"] / before["calls"]
        yield collector.measure


if __name__ == "__main__":
    serve(contender, packages=["streamsampler", "gymnasium", "numpy", "torch"])
