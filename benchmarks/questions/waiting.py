"""What does one worker make of environments that wait, and what does a timestep cost besides?

python -m benchmarks waiting [--quick]

Steps and agents wait for a time that `asyncio.sleep` gives, so that one process could have any number in flight.
Compared are `AsyncWorker` in one worker process, and a loop by hand with `asyncio.gather`, which records nothing.
`equal` and `unequal` have 200 in flight whose steps wait 50 ms and whose agents 10 ms, in trajectories of 10 timesteps
and of 1 to 20; `second` has 1,000 in flight whose steps wait for a second. The rate is that of the steady state: over
the middle of a stream in which each of those in flight has sixteen trajectories. `nothing` waits for nothing: a
timestep is CPU alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.harness.comparing import spread
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.tables import goals_table, table
from streamsampler import LocalSampler, MultiprocessingSampler

_OF_EACH = 16  # trajectories for each of those in flight, of which the outer ones are not measured
_OUTER = 3
_CHEAP = 4_000  # trajectories that wait for nothing


class Waiting(NamedTuple):
    """A workload: how many are in flight, the seconds that steps and agents wait, and the lengths of trajectories."""

    in_flight: int
    step: float
    agent: float
    shortest: int
    longest: int

    @property
    def most(self) -> float:
        """The timesteps per second if nothing took time but waiting."""
        return self.in_flight / (self.step + self.agent)


WORKLOADS = {
    "equal": Waiting(200, 0.05, 0.01, 10, 10),
    "unequal": Waiting(200, 0.05, 0.01, 1, 20),
    "second": Waiting(1_000, 1.0, 0.0, 3, 3),
}
NOTHING = Waiting(200, 0.0, 0.0, 1, 20)


class WaitingEnv(gymnasium.Env[Any, Any]):
    """Waits in each step."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)

    def __init__(self, workload: Waiting) -> None:
        self._workload, self._seen = workload, np.zeros(3, np.float32)

    async def reset(self, *, seed: int | None = None, **_: Any) -> Any:  # type: ignore[override]
        """Draw the length of the trajectory."""
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(self._workload.shortest, self._workload.longest + 1))
        return self._seen, {}

    async def step(self, _action: Any) -> Any:  # type: ignore[override]
        """Wait."""
        await asyncio.sleep(self._workload.step)
        self._left -= 1
        return self._seen, 1.0, self._left == 0, False, {}


class WaitingAgent:
    """Waits before each action."""

    def __init__(self, workload: Waiting) -> None:
        self._seconds = workload.agent

    async def get_action(self, _observation: Any) -> Any:
        """Return the same action."""
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return 1, {}


def ours(workload: Waiting) -> Iterator[tuple[float, int]]:
    """Yield when trajectories come from one worker, and how many timesteps they have."""
    args = {"in_flight": workload.in_flight}
    agent, env = WaitingAgent(workload), partial(WaitingEnv, workload)
    with MultiprocessingSampler(agent, env, seed=1, n_workers=1, check=None, worker_args=args) as sampler:
        for batch in sampler.stream(n_trajectories=_OF_EACH * workload.in_flight):
            yield time.perf_counter(), batch.n_timesteps


def by_hand(workload: Waiting, n: int | None = None) -> Iterator[tuple[float, int]]:
    """Yield the same of a loop with `asyncio.gather`."""
    ends: list[tuple[float, int]] = []
    seeds, agent = iter(range(n or _OF_EACH * workload.in_flight)), WaitingAgent(workload)

    async def one() -> None:
        env = WaitingEnv(workload)
        for seed in seeds:
            observation, _ = await env.reset(seed=seed)
            length, ended = 0, False
            while not ended:
                action, _ = await agent.get_action(observation)
                observation, _, terminated, truncated, _ = await env.step(action)
                length, ended = length + 1, terminated or truncated
            ends.append((time.perf_counter(), length))

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(workload.in_flight)))

    asyncio.run(all_of_them())
    yield from ends


def rate(ends: Iterator[tuple[float, int]]) -> float:
    """Return the timesteps per second of the middle of a run."""
    times, lengths = map(np.array, zip(*ends, strict=True))
    so_far = np.cumsum(lengths)
    first, last = (np.searchsorted(so_far, so_far[-1] * share / _OF_EACH) for share in (_OUTER, _OF_EACH - _OUTER))
    return float((so_far[last] - so_far[first]) / (times[last] - times[first]))


def costs() -> tuple[float, float]:
    """Return the seconds of CPU of a timestep that waits for nothing: by hand, and in a `LocalSampler`."""
    began = time.process_time()
    n_timesteps = sum(length for _, length in by_hand(NOTHING, _CHEAP))
    hand = (time.process_time() - began) / n_timesteps
    args = {"in_flight": NOTHING.in_flight}
    agent, env = WaitingAgent(NOTHING), partial(WaitingEnv, NOTHING)
    with LocalSampler(agent, env, seed=1, check=None, worker_args=args) as sampler:
        sampler.obtain_trajectories(NOTHING.in_flight)
        began = time.process_time()
        n_timesteps = sampler.obtain_trajectories(_CHEAP).n_timesteps
        return hand, (time.process_time() - began) / n_timesteps


def main() -> None:
    """Answer the question."""
    args = arguments("waiting", 1.0, 5)
    machine, goals, rows = describe(), [], []
    results: dict[str, Any] = {}
    for name in args.workloads.split(",") if args.workloads else WORKLOADS:
        workload = WORKLOADS[name]
        found: dict[str, list[float]] = {"by hand": [], "streamsampler": []}
        for _ in range(args.rounds if name != "second" else 1):  # a round of this takes two minutes
            for who, contender in (("by hand", by_hand), ("streamsampler", ours)):
                found[who].append(rate(contender(workload)) / workload.most)
        results[name] = {who: {"share": spread(shares), "rounds": shares} for who, shares in found.items()}
        share = results[name]["streamsampler"]["share"]["median"]
        rows.append([name, f"{workload.most:,.0f}", *(f"{results[name][who]['share']['median']:.3f}" for who in found)])
        text = f"share of {workload.in_flight:,} in flight / ({workload.step:g} s + {workload.agent:g} s) on {name}"
        goals.append({"text": text, "wanted": 0.9, "most": False, "value": share, "met": share >= 0.9})
    measured = [costs() for _ in range(args.rounds)]
    over = spread([1e6 * (ours_ - hand) for hand, ours_ in measured])
    results["nothing"] = {"over": over, "rounds": measured}
    text = "µs of CPU of a timestep above a loop by hand"
    goals.append({"text": text, "wanted": 40, "most": True, "value": over["median"], "met": over["median"] <= 40})
    header = ["environments that wait", "timesteps per second at most", "share by hand", "share of streamsampler"]
    print(table(header, rows))
    print(f"{over['median']:.1f} µs of CPU above a loop by hand ({over['low']:.1f} to {over['high']:.1f})")
    print(goals_table(goals))
    title = "Environments that wait, many in flight in one worker"
    save("waiting", {"title": title, "workloads": results, "goals": goals, "table": [header, *rows]}, args, machine)


if __name__ == "__main__":
    main()
