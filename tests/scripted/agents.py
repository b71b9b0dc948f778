"""Agents that do exactly what a test needs; some act on several rows at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsampler.agents.base import as_agent


def always_zero(observation: Any) -> int:
    return 0


def above_half(observation: Any) -> int:
    return int(observation[0] > 0.5)


class Independent:
    """Says of another agent that its rows are independent, unless that one draws from the global generators."""

    def __init__(self, agent: Any) -> None:
        self.agent = as_agent(agent)
        self.row_independent = not isinstance(agent, Drawing)

    def __getattr__(self, name: str) -> Any:
        if "agent" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.agent, name)

    def get_action(self, observation: Any) -> Any:
        return self.agent.get_action(observation)


class Linear:
    """Draws CartPole's action with a probability that depends on the observation."""

    def __init__(self, weights: Sequence[float] = (0.0, 0.0, 0.3, 0.3)) -> None:
        self.weights = np.array(weights)

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        logit = float(observation @ self.weights)
        return int(logit + self.rng.logistic() > 0), {"logit": logit}

    def set_param_values(self, weights: Any) -> None:
        self.weights = np.array(weights)


class Attentive(Linear):
    """Looks at all parts of a nested observation."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        kind, flags = observation["task"]
        features = np.array([*observation["place"], observation["image"].mean() / 255, kind + flags.sum()])
        action, info = super().get_action(features)
        return action + int(self.rng.random() < 0.5), info


class Drawing:
    """Draws its actions from a generator of its own, from `random` and from `numpy.random`."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def reset(self, seed: int) -> None:
        """Seed its generator."""
        self.generator = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Draw an action, and tell what it was drawn from."""
        draws = {"own": self.generator.random(), "python": random.random(), "numpy": np.random.random()}
        return int(4 * sum(draws.values()) + self.parameter) % 3, draws

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


class Stamping:
    """Writes its version, which is its parameter, into its actions."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return self.version, {}

    def set_param_values(self, values: tuple[int]) -> None:
        (self.version,) = values


class Balancing:
    """CartPole's angle decides: exact arithmetic, row by row the same in any batch."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(observation[2] > 0), {"angle": observation[2]}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        observations = observations.copy()
        angles = observations[:, 2].copy()
        observations[:] = np.nan
        return (angles > 0).astype(np.int64), {"angle": angles}


class Sampling(Linear):
    """Draws for all rows from one generator, which its block seeds."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        logits = observations @ self.weights
        return (logits + self.rng.logistic(size=len(logits)) > 0).astype(np.int64), {"logit": logits}


class Rowwise(Linear):
    """Draws for each row from its trajectory's own stream: rows do not depend on each other."""

    row_independent = True

    def get_actions(self, observations: Any, *, draws: Any) -> tuple[Any, dict[str, Any]]:
        logits = (observations * self.weights).sum(axis=1)
        return (logits + draws.normal(1)[:, 0] > 0).astype(np.int64), {"logit": logits, "drawn": draws.random()}


class NestedBatches:
    """Looks at nested batches, spoils them, and says how many rows it saw."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        kind, flags = observation["task"]
        return int(kind + flags.sum() + observation["image"][0, 0, 0]) % 3, {"sum": np.float64(observation["place"][0])}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        kinds, flags = observations["task"]
        actions = (kinds + flags.sum(axis=1) + observations["image"][:, 0, 0, 0]) % 3
        infos = {"sum": observations["place"][:, 0].copy()}
        observations["place"][:] = observations["image"][:] = 0
        return actions, infos


class Remembering:
    """Adds up what it has seen of each trajectory: a memory by slots, emptied by starts."""

    def __init__(self) -> None:
        self.memory = np.zeros(64)

    def reset(self) -> None:
        self.memory[:] = np.nan

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any, *, slots: Any, starts: Any) -> tuple[Any, dict[str, Any]]:
        assert starts.dtype == np.bool_
        self.memory[slots[starts]] = 0
        self.memory[slots] += observations[:, 0] + 1
        return np.zeros(len(slots), np.int64), {
            "memory": self.memory[slots],
            "slot": slots,
            "rows": [len(slots)] * len(slots),
        }


class RememberingAlone:
    """The same with one environment."""

    def reset(self) -> None:
        self.memory = 0.0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.memory += float(observation[0]) + 1
        return 0, {"memory": self.memory}


class Batched:
    """Adds up what it is shown; several rows at a time, each by itself."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Do what `get_actions` does with one row."""
        actions, infos = self.get_actions(observation[None])
        return int(actions[0]), {key: values[0] for key, values in infos.items()}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """Return the sums of the rows, modulo 5, and the sums."""
        sums = observations.reshape(len(observations), -1).astype(np.int64).sum(axis=1) + self.parameter
        return sums % 5, {"sum": sums.astype(np.float32)}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values
