"""Parts: evaluations and comparisons of one run and of several parts are the same, byte for byte, under kills.

A case is drawn from one number: how many trajectories, in how many parts, of which environment and kind of worker, on
how many workers. It is run as a whole and in parts; a process that runs one of the parts is killed by SIGKILL at a
random instant, and the part is run again. The parts are merged in random order, also by a merge that is
killed and done again, and compared with the whole.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import streamsampler
from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, compare, evaluate
from streamsampler.errors import UsageError

_CASES = {"short": 12, "long": 400}


class Motley(gym.Env[Any, Any]):
    """Has infos that come and go, of kinds that depend on the seed; some trajectories succeed."""

    observation_space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Text(4))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.kind, self.t = int(self.np_random.integers(6)), 0
        return self._observe(), {"origin": [seed] if self.kind else seed}

    def _observe(self) -> Any:
        return {"a": self.np_random.uniform(-1, 1, 2).astype(np.float32), "b": "x" * (self.t % 3)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        info: dict[str, Any] = {"n": 0.5 if self.kind == 3 else 1, "f": np.float32(1) if self.kind == 1 else 1}
        info |= {"big": 2**60 + 1 if self.kind == 4 else 0.5, "m": {"x": 1} if self.kind == 2 else 3}
        if self.kind == 5:
            info |= {"success": bool(action), "c": np.ones(3)}
        return self._observe(), float(self.np_random.normal()), self.t > 2 * self.kind, False, info


class _Case:
    """One case, drawn from a number."""

    def __init__(self, number: int, folder: Path, tally: Counter[str]) -> None:
        self.dice = dice = random.Random(number)
        self.folder, self.tally = folder, tally
        self.seed = dice.randrange(10**6)
        self.n = dice.randint(1, 60)
        self.vec = dice.random() < 0.25
        self.env: Any = "CartPole-v1" if self.vec else Motley
        self.options: dict[str, Any] = {"seed": self.seed}
        block = 1
        if self.vec:
            block = dice.randint(1, 5)
            self.options |= {"worker_class": VecWorker, "worker_args": {"n_envs": block}}
        self.of = min(dice.choice([1, 2, 3, 7]), -(-self.n // block))
        self.kind = dice.choice([self.evaluated, self.compared])
        self.by_seeds = dice.random() < 0.3

    def sampler(self) -> Any:
        n_workers = self.dice.choice([0, 0, 1, 2])
        if not n_workers:
            return LocalSampler("random", self.env, **self.options)
        return MultiprocessingSampler("random", self.env, n_workers=n_workers, **self.options)

    def _amount(self) -> dict[str, Any]:
        return {"seeds": range(self.seed, self.seed + self.n)} if self.by_seeds else {"num_trajectories": self.n}

    def evaluated(self, part: Any, path: Path) -> None:
        with self.sampler() as sampler:
            evaluate(sampler=sampler, part=part, **self._amount()).save(path)

    def compared(self, part: Any, path: Path) -> None:
        agents = {"random": "random", "first": lambda _: 0}
        compare(agents, self.env, part=part, n_workers=0, **self._amount(), **self.options).save(path)

    def run(self) -> None:
        self.kind(None, self.folder / "whole")
        parts = [self.folder / f"part-{number}" for number in range(1, self.of + 1)]
        victim = self.dice.randint(1, self.of)
        for number, path in enumerate(parts, 1):
            part = number, self.of
            if number == victim:
                self._killed(lambda part=part, path=path: self.kind(part, path))  # type: ignore[misc]
            self.kind(part, path)
        self.dice.shuffle(parts)
        if len(parts) > 1:
            with pytest.raises(UsageError, match="missing"):
                streamsampler.merge(parts[1:], self.folder / "x")
        merged = self.folder / "merged"
        self._killed(lambda: streamsampler.merge(parts, merged))
        streamsampler.merge(parts, merged)
        whole = self.folder / "whole"
        assert merged.read_bytes() == whole.read_bytes(), f"{self.kind.__name__}, {vars(self)}"
        self.tally[self.kind.__name__] += 1
        self.tally["parts"] += self.of

    def _killed(self, work: Callable[[], object]) -> None:
        """Do something in a process that is killed at a random instant."""
        seconds = self.dice.choice([0.002, 0.02, 0.1]) * self.dice.random()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.setsid()
                work()
            os._exit(0)
        descriptor = os.pidfd_open(pid)
        if not select.select([descriptor], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
            self.tally["kills"] += 1
        os.close(descriptor)
        os.waitpid(pid, 0)


def prove(scale: str) -> None:
    """Run cases: 400 in the long form.

    Args:
        scale: "short" or "long".
    """
    tally: Counter[str] = Counter()
    for number in range(_CASES[scale]):
        with tempfile.TemporaryDirectory() as folder:
            _Case(number, Path(folder), tally).run()
    print(", ".join(f"{n} {what}" for what, n in sorted(tally.items())))
