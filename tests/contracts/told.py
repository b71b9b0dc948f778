"""Environments that tell what they were given."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.scripted.envs import AnyLength


def is_bad(seed: int) -> bool:
    return seed % 3 == 0


def bad(info: dict[str, Any]) -> bool:
    """Leaves out the trajectories of bad seeds, as `drop_if`."""
    return bool(info.get("bad"))


class Told(AnyLength):
    """Tells seed and option `level` in the infos of its resets, the level in observations, parameters in rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.task, self.mass, self.size = 0.0, 0.0, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.level = (options or {}).get("level", 0)
        told = {"seed": seed, "level": self.level, "bad": is_bad(seed or 0)}
        return observation + np.float32(self.level), info | told

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        reward = self.task + 10.0 * self.mass + 100.0 * self.size
        return observation + np.float32(self.level), reward, *rest


class Tasked(Told):
    """Takes tasks, which are numbers, and changes those that are dicts."""

    def set_task(self, task: Any) -> None:
        self.task = task["number"] if isinstance(task, dict) else task
        if isinstance(task, dict):
            task["number"] = 99.0


def told(batch: Any, name: str) -> list[Any]:
    return batch.episode_infos[name].tolist()


def first_rewards(batch: Any) -> list[float]:
    return [float(trajectory.rewards[0]) for trajectory in batch]
