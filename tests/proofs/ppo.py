"""The example of PPO solves CartPole-v1 on ten seeds, and without velocities on none.

There the example that remembers solves it on most seeds. Needs the extra `torch`.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from click.testing import CliRunner

SOLVED = 475


def without_velocities() -> Any:
    from streamsampler.examples import ppo_recurrent

    return ppo_recurrent.make("CartPole-v1", "1,3")


gymnasium.register("WithoutVelocities-v0", entry_point=f"{__name__}:without_velocities")


def prove(scale: str) -> None:
    """Learn from each seed, and evaluate what was learned on 100 trajectories."""
    from streamsampler.examples import ppo, ppo_recurrent

    seeds, remembered = range(1 if scale == "short" else 10), []
    for seed in seeds:
        assert evaluated(ppo.main, "CartPole-v1", seed) >= SOLVED
        assert evaluated(ppo.main, f"{__name__}:WithoutVelocities-v0", seed) < SOLVED / 2
        remembered.append(evaluated(ppo_recurrent.main, "CartPole-v1", seed))
    # On the others the cart leaves the track after some 200 to 350 timesteps.
    assert sum(found >= SOLVED for found in remembered) > len(seeds) / 2


def evaluated(command: Any, environment: str, seed: int) -> float:
    """Return the mean return of what an example learned."""
    began = time.perf_counter()
    outcome = CliRunner().invoke(command, [environment, "--seed", str(seed)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    found = float(outcome.stdout.splitlines()[-1].split()[3])
    name = f"{command.callback.__module__.rpartition('.')[2]} in {environment.rpartition(':')[2]}"
    print(f"{name}, seed {seed}: mean return {found:.2f}, {time.perf_counter() - began:.0f} s", flush=True)
    return found
