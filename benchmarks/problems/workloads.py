"""List the workloads: environments and agents by name, the same for every contender.

    python -m benchmarks workload NAME   # what its trajectories look like, and how fast one process alone is

Every contender imports this module in its own virtual environment, so it needs Python 3.8, numpy and gymnasium only
(torch and mujoco for the workloads that say so). Environments and agents are plain classes in `problems`; agents have
`get_action(observation) -> (action, {})` and, where batching makes sense, `get_actions`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.problems import adapters, agents, environments, games, native, networks
from benchmarks.problems.marks import checksum, mark, marks, scratch

__all__ = ["WORKLOADS", "Workload", "checksum", "mark", "marks", "scratch"]


@dataclass(frozen=True)
class Workload:
    """Describe a workload.

    Attributes:
        name: Its name.
        description: The workload in a line.
        make_env: Makes an environment.
        make_agent: Makes the agent.
        make_bare_agent: Makes that of bare loops, where the library's own agent acts: one that never becomes faster.
        batch: Timesteps that a user would ask for in one call.
        n_processes: How many processes step environments, by default.
        parameters: Gives the agent's new parameters for an iteration, where each batch is to be made under new ones.
        reads_batch: Whether every byte of the observations is to be read: `checksum`, within the measured time.
        ideal: Timesteps per second without any cost, given the number of processes; None if only a bare loop shows it.
        make_vector_env: Makes an environment of so many copies, vectorised natively, where there is one.
        needs: The packages that it imports.
        slowed: By what factor it takes longer than what it stands for.
        several: Whether several agents may act in the environment; timesteps are those of all of them together.
        variants: By name, other environments, for contenders that are to be compared on them in the same rounds.
    """

    name: str
    description: str
    make_env: Callable[[], Any]
    make_agent: Callable[[], Any]
    batch: int
    n_processes: int = 2
    parameters: Callable[[int], dict] | None = None
    reads_batch: bool = False
    ideal: Callable[[int], float] | None = None
    make_vector_env: Callable[[int], Any] | None = None
    needs: tuple[str, ...] = ()
    slowed: float = 1.0
    several: bool = False
    variants: dict[str, Callable[[], Any]] = field(default_factory=dict)
    make_bare_agent: Callable[[], Any] | None = None

    def bare_agent(self) -> Any:
        """Make the agent of a bare loop."""
        return (self.make_bare_agent or self.make_agent)()

    def env_function(self, settings: dict[str, Any]) -> Callable[[], Any]:
        """Return what makes the environment, or the variant that a contender's settings name."""
        return self.variants[settings["variant"]] if settings.get("variant") else self.make_env


def _straggler_ideal(n_processes: int) -> float:
    return (n_processes - 1 + 1 / 4) / 2e-3


def _sleeper_ideal(n_processes: int) -> float:
    return n_processes / 20e-3


def _ten_ms_ideal(n_processes: int) -> float:
    return n_processes / 10e-3


def _paid_ideal(kind: str, n_envs: int) -> Callable[[int], float]:
    """Return what processes with so many environments each reach, if none of them is ever idle."""
    costs = environments.COSTS[kind]
    return lambda n_processes: n_processes / (costs.scale * (costs.step + costs.call / n_envs))


def _timed(times: str, cheap: bool) -> Workload:
    """Return a workload of steps that sleep, eight environments, each in a process."""
    kind = environments.Sleeper if cheap else environments.SleepingPixels
    slowest = environments.STEP_TIMES[times].get("slowness", 1.0)
    return Workload(
        f"steps_{times}" if cheap else f"steps_{times}_pixels",
        f"sleeps of 5 ms, {times.replace('_', ' ')}; 100 timesteps{'' if cheap else '; uint8 4x84x84'}",
        partial(environments.make_timed, times, kind),
        agents.make_sleepers_agent if cheap else agents.PixelAgent,
        10_000,
        n_processes=8,
        ideal=lambda n_processes: (n_processes - 1 + 1 / slowest) / 5e-3,
    )


def _costing(microseconds: int) -> Workload:
    """Return a workload of steps that cost so much more than CartPole's."""
    return Workload(
        f"cost_{microseconds}",
        f"CartPole-v1 with {microseconds} µs of work more in a step, numpy agent, 500 timesteps",
        partial(environments.make_costlier_cartpole, microseconds * 1e-6),
        agents.make_balancing,
        10_000,
    )


def _of_adapters(
    name: str, description: str, make_env: Callable[[], Any], batch: int, task: str, **options: bool
) -> Workload:
    """Return a workload of the library's own agent."""
    make_agent, make_bare_agent = (partial(make, task, **options) for make in (adapters.our_agent, adapters.bare_agent))
    return Workload(f"agent_{name}", description, make_env, make_agent, batch, make_bare_agent=make_bare_agent)


_ALL = (
    Workload(
        "cheap_20",
        "CartPole-v1, numpy agent, about 20 timesteps",
        environments.make_cartpole,
        agents.make_falling,
        100_000,
    ),
    Workload(
        "cheap_500",
        "CartPole-v1, numpy agent, 500 timesteps",
        environments.make_cartpole,
        agents.make_balancing,
        100_000,
    ),
    Workload(
        "still",
        "steps that only count, numpy agent, 500 timesteps",
        environments.Still,
        agents.make_balancing,
        100_000,
    ),
    Workload(
        "short",
        "CartPole-v1, numpy agent, 5 to 20 timesteps",
        environments.ShortCartPole,
        agents.make_balancing,
        80_000,
    ),
    Workload(
        "mlp_cartpole",
        "CartPole-v1, torch MLP 2x64, about 20 timesteps",
        environments.make_cartpole,
        agents.CartPoleNetwork,
        30_000,
    ),
    Workload(
        "mlp_cartpole_500",
        "CartPole-v1, torch MLP 2x64, 500 timesteps",
        environments.make_cartpole,
        agents.make_balanced_network,
        30_000,
    ),
    Workload(
        "mlp_cheetah",
        "HalfCheetah-v5, torch MLP 2x64, 1000 timesteps",
        environments.make_cheetah,
        agents.CheetahNetwork,
        20_000,
    ),
    Workload(
        "pixels",
        "uint8 4x84x84, 50 µs of work, 500 timesteps",
        environments.Pixels,
        agents.PixelAgent,
        10_000,
        reads_batch=True,
    ),
    Workload(
        "stragglers",
        "heavy-tailed sleeps of 2 ms, 20 timesteps, one process four times slower",
        environments.make_straggler,
        agents.make_sleepers_agent,
        4_000,
        n_processes=8,
        ideal=_straggler_ideal,
    ),
    Workload(
        "on_policy",
        "80 µs of work, 1000 timesteps, 2,000 a batch under new parameters",
        environments.Walker,
        agents.Parametrised,
        2_000,
        parameters=agents.small_parameters,
    ),
    Workload(
        "on_policy_varied",
        "80 µs of work, 200 to 1000 timesteps, 4,000 a batch under new parameters",
        environments.make_varied_walker,
        agents.Parametrised,
        4_000,
        parameters=agents.small_parameters,
    ),
    Workload(
        "sleepers",
        "sleeps of 20 ms, 20 timesteps",
        environments.make_sleeper,
        agents.make_sleepers_agent,
        12_800,
        n_processes=64,
        ideal=_sleeper_ideal,
    ),
    Workload(
        "sleepers_128",
        "sleeps of 20 ms, 20 timesteps",
        environments.make_sleeper,
        agents.make_sleepers_agent,
        25_600,
        n_processes=128,
        ideal=_sleeper_ideal,
    ),
    Workload(
        "steps_10ms",
        "sleeps of 10 ms, 20 timesteps",
        environments.make_ten_ms_sleeper,
        agents.make_sleepers_agent,
        800,
        n_processes=4,
        ideal=_ten_ms_ideal,
    ),
    Workload(
        "walks_10ms",
        "80 µs of work, 125 timesteps: trajectories of 10 ms",
        environments.make_ten_ms_walker,
        agents.Parametrised,
        25_000,
    ),
    Workload(
        "big_parameters",
        "40 MB of parameters, sleeps of 2 ms, 5 timesteps",
        environments.make_short_sleeper,
        agents.Big,
        80,
        n_processes=4,
        parameters=agents.big_parameters,
    ),
    Workload(
        "lanes_cartpole",
        "sleeps as long as CartPole-v1 and a torch MLP take, 8 timesteps and more, 22 on average",
        environments.make_paid_cartpole,
        partial(agents.Paid, "cartpole"),
        30_000,
        ideal=_paid_ideal("cartpole", 32),
        slowed=environments.COSTS["cartpole"].scale,
    ),
    Workload(
        "lanes_cheetah",
        "sleeps as long as HalfCheetah-v5 and a torch MLP take, 1000 timesteps",
        environments.make_paid_cheetah,
        partial(agents.Paid, "cheetah"),
        20_000,
        ideal=_paid_ideal("cheetah", 8),
        slowed=environments.COSTS["cheetah"].scale,
    ),
    Workload(
        "lanes_on_policy",
        "sleeps for 80 µs of work, 200 to 1000 timesteps, 4,000 a batch under new parameters",
        environments.make_paid_walker,
        partial(agents.Paid, "walker"),
        4_000,
        parameters=agents.small_parameters,
        ideal=_paid_ideal("walker", 8),
        slowed=environments.COSTS["walker"].scale,
    ),
    Workload(
        "native_cartpole_500",
        "CartPole-v1 vectorised in NumPy, numpy agent, 500 timesteps",
        environments.make_cartpole,
        agents.make_balancing,
        512_000,
        make_vector_env=native.make_numpy_cartpole,
    ),
    Workload(
        "native_cartpole_20",
        "CartPole-v1 vectorised in NumPy, numpy agent, about 20 timesteps",
        environments.make_cartpole,
        agents.make_falling,
        200_000,
        make_vector_env=native.make_numpy_cartpole,
    ),
    Workload(
        "native_envpool",
        "CartPole-v1 vectorised by EnvPool, numpy agent, 500 timesteps",
        environments.make_cartpole,
        agents.make_balancing,
        256_000,
        make_vector_env=native.make_envpool_cartpole,
        needs=("envpool",),
    ),
    Workload(
        "native_jax",
        "CartPole-v1 in JAX, numpy agent, 500 timesteps",
        environments.make_cartpole,
        agents.make_balancing,
        256_000,
        make_vector_env=native.make_jax_cartpole,
        needs=("jax", "flax"),
    ),
    Workload(
        "inference_mlp",
        "CartPole-v1, torch MLP 2x64 on the accelerator if there is one, 500 timesteps",
        environments.make_cartpole,
        networks.CartPoleOnDevice,
        80_000,
    ),
    Workload(
        "inference_cnn",
        "uint8 4x84x84, 50 µs of work, small CNN on the accelerator if there is one, 50 timesteps",
        partial(environments.Pixels, length=50),
        networks.PixelNetwork,
        8_000,
    ),
    Workload(
        "several_one",
        "CartPole-v1 as a game of one agent, numpy agent, 500 timesteps",
        games.make_cartpole_of_one,
        agents.make_balancing,
        100_000,
        several=True,
        variants={"single": environments.make_cartpole},
    ),
    Workload(
        "several_1",
        "particles, 1 agent, torch MLP 2x64, 100 timesteps",
        partial(games.Particles, 1),
        agents.ParticlesNetwork,
        20_000,
        several=True,
    ),
    Workload(
        "several_10",
        "particles, 10 agents that share a torch MLP 2x64, 100 timesteps each",
        partial(games.Particles, 10),
        agents.ParticlesNetwork,
        100_000,
        several=True,
        variants={"one_agent": partial(games.Particles, 1)},
    ),
    _of_adapters(
        "cartpole",
        "CartPole-v1, TorchAgent 2x64, about 20 timesteps",
        environments.make_cartpole,
        30_000,
        "cartpole",
    ),
    _of_adapters(
        "cartpole_500",
        "CartPole-v1, TorchAgent 2x64, 500 timesteps",
        environments.make_cartpole,
        64_000,
        "cartpole",
        balanced=True,
    ),
    _of_adapters(
        "numpy_500",
        "CartPole-v1, MlpAgent 2x64, 500 timesteps",
        environments.make_cartpole,
        64_000,
        "cartpole",
        balanced=True,
        numpy=True,
    ),
    _of_adapters(
        "pendulum",
        "Pendulum-v1, TorchAgent 2x64 with a Gaussian, 200 timesteps",
        environments.make_pendulum,
        32_000,
        "pendulum",
    ),
    _of_adapters(
        "cheetah",
        "HalfCheetah-v5, TorchAgent 2x64 with a Gaussian, 1000 timesteps",
        environments.make_cheetah,
        20_000,
        "cheetah",
    ),
    *(_timed(times, cheap) for cheap in (True, False) for times in environments.STEP_TIMES),
    *map(_costing, (0, 10, 25, 50, 100, 200)),
)

WORKLOADS = {workload.name: workload for workload in _ALL}


def _trajectory(env: Any, agent: Any, seed: int) -> int:
    """Run a trajectory, and return its timesteps."""
    observation, _ = env.reset(seed=seed)
    ended, length = False, 0
    while not ended:
        observation, _, terminated, truncated, _ = env.step(agent.get_action(observation)[0])
        ended, length = terminated or truncated, length + 1
    return length


def main() -> None:
    """Run a workload for two seconds in this process, and print what it is like."""
    if len(sys.argv) != 2 or sys.argv[1] not in WORKLOADS:
        sys.exit(f"usage: python -m benchmarks workload NAME, with one of {', '.join(WORKLOADS)}")
    workload = WORKLOADS[sys.argv[1]]
    env, agent = workload.make_env(), workload.make_agent()
    run = games.episode if workload.several else _trajectory
    lengths: list[int] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < 2.0:
        lengths.append(run(env, agent, len(lengths)))
    rate = sum(lengths) / (time.perf_counter() - begin)
    print(f"{workload.name}: {len(lengths)} trajectories of {np.mean(lengths):.1f} timesteps, "
          f"{min(lengths)} to {max(lengths)}; {rate:,.0f} timesteps per second")  # fmt: skip


if __name__ == "__main__":
    main()
