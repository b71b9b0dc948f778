"""A batch is in the parent's memory once: its peak is at most 1.3 times the batch, and a constant.

The constant is what two workers may have under way: two reports each, of 16 MB at most. A seed counts as the Python
integer that it is.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import MultiprocessingSampler

_CONSTANT = 64e6
# Name: bytes of an observation, floats of an info, timesteps of a trajectory, trajectories, and how many times fewer
# the short form has.
_CASES = {
    "trajectories of one timestep": (12, 0, 1, 1_000_000, 5),
    "trajectories of 20 timesteps": (12, 0, 20, 50_000, 2),
    "infos of 512 bytes": (12, 64, 20, 30_000, 2),
    "observations of 2 kB": (2_048, 0, 100, 600, 1),
    "observations of 28 kB": (28_224, 0, 100, 200, 1),
}


class Steady(gymnasium.Env[Any, Any]):
    """Has observations of a size and trajectories of a length."""

    action_space = spaces.Discrete(2)

    def __init__(self, size: int, length: int) -> None:
        self.observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self._observation, self._length = np.ones(size, np.uint8), length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._t = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._observation, 1.0, self._t == self._length, False, {}


class Idle:
    """Says so many numbers next to each action."""

    def __init__(self, n_numbers: int) -> None:
        self._info = {"numbers": np.ones(n_numbers)} if n_numbers else {}

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return 0, self._info


def _status(name: str) -> int:
    """Return a number of this process alone: `ru_maxrss` begins with that of the process that started it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024


def _measure(size: int, n_numbers: int, length: int, n_trajectories: int) -> None:
    kwargs = {"size": size, "length": length}
    with MultiprocessingSampler(Idle(n_numbers), Steady, env_kwargs=kwargs, n_workers=2, seed=1) as sampler:
        sampler.obtain_samples(1)
        before = _status("VmRSS")
        batch = sampler.obtain_trajectories(n_trajectories)
        peak = _status("VmHWM") - before
    names = "observations last_observations actions rewards terminated truncated lengths indices agent_versions"
    arrays = [getattr(batch, name) for name in (*names.split(), "worker_numbers")] + list(batch.agent_infos.values())
    print(sum(array.nbytes for array in arrays) + 40 * len(batch.seeds), peak)


def prove(scale: str) -> None:
    """Measure the peak of each case in a process of its own."""
    if not sys.platform.startswith("linux"):
        print("memory is measured on Linux alone")
        return
    for name, (*sizes, n_trajectories, fewer) in _CASES.items():
        n = n_trajectories // (fewer if scale == "short" else 1)
        command = [sys.executable, "-m", "tests.proofs.memory", *map(str, (*sizes, n))]
        n_bytes, peak = map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split())
        print(f"{name}: {n} trajectories, a batch of {n_bytes / 1e6:.0f} MB, and a peak of {peak / 1e6:.0f} MB")
        assert peak <= 1.3 * n_bytes + _CONSTANT, name


if __name__ == "__main__":
    _measure(*map(int, sys.argv[1:]))
