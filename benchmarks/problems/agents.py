"""The agents of the workloads: plain classes with `get_action`, and `get_actions` where batching makes sense."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.problems.environments import COSTS, pay
from benchmarks.problems.marks import mark


class Linear:
    """Two actions, by the sign of a weighted sum of the observation."""

    row_independent = True

    def __init__(self, weights: tuple[float, ...]) -> None:
        self.weights = np.array(weights, np.float32)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Choose one action."""
        return (1 if self.weights.dot(observation) > 0 else 0), {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        return (np.asarray(observations) @ self.weights > 0).astype(np.int64), {}


class PixelAgent:
    """Looks at four pixels."""

    row_independent = True

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Choose one of four actions."""
        return int(observation[3, 42, 42]) & 3, {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        return (np.asarray(observations)[:, 3, 42, 42] & 3).astype(np.int64), {}


class Parametrised:
    """A linear policy with parameters; it notes when it first acts under new ones.

    Parameters are a dict: `weights`, float64 of (6, 17), and `iteration`, an int, which the mark is for.
    """

    row_independent = True

    def __init__(self) -> None:
        self.weights = np.zeros((6, 17))
        self._iteration, self._fresh = -1, False

    def get_param_values(self) -> dict:
        """The parameters."""
        return {"weights": self.weights, "iteration": self._iteration}

    def set_param_values(self, values: dict) -> None:
        """Take new parameters."""
        np.copyto(self.weights, values["weights"])
        self._iteration, self._fresh = values["iteration"], True

    def get_action(self, observation: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose one action."""
        if self._fresh:
            self._fresh = False
            mark(self._iteration)
        return np.tanh(self.weights @ observation), {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        if self._fresh:
            self._fresh = False
            mark(self._iteration)
        return np.tanh(np.asarray(observations) @ self.weights.T), {}


class Paid(Parametrised):
    """Chooses nothing, and takes as long as a network: see `environments.Paid`.

    Args:
        kind: Next to whose environment.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._seconds = COSTS[kind].scale * COSTS[kind].call

    def get_action(self, observation: np.ndarray) -> tuple[np.ndarray, dict]:  # noqa: ARG002 - it does not look
        """Choose one action."""
        pay(self._seconds)
        return np.zeros(6), {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        pay(self._seconds)
        return np.zeros((len(observations), 6)), {}


class Big(Parametrised):
    """40 MB of parameters, 10,000,000 float32, which it copies, as a network's `load_state_dict` does."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.zeros(10_000_000, np.float32)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Choose one action."""
        if self._fresh:
            self._fresh = False
            mark(self._iteration)
        return (1 if self.weights[0] > observation[0] else 0), {}


class Network:
    """A torch MLP with two hidden layers of 64; one thread, inference only."""

    row_independent = True

    def __init__(self, n_in: int, n_out: int) -> None:
        import torch

        self._one_thread()
        torch.manual_seed(0)
        layers = torch.nn
        self.network = layers.Sequential(
            layers.Linear(n_in, 64), layers.Tanh(), layers.Linear(64, 64), layers.Tanh(), layers.Linear(64, n_out)
        )

    @staticmethod
    def _one_thread() -> None:
        import torch

        torch.set_num_threads(1)

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._one_thread()

    def _output(self, observations: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self.network(torch.from_numpy(np.ascontiguousarray(observations, np.float32))).numpy()


class CartPoleNetwork(Network):
    """Draws one of two actions, a batch of them from its `draws`, or else from the global generator of numpy.

    Args:
        balanced: Whether the pole stays up for 500 timesteps; otherwise the network is fresh, and it falls after 20.
    """

    def __init__(self, balanced: bool = False) -> None:
        super().__init__(4, 2)
        if balanced:
            self._balance()

    def _balance(self) -> None:
        import torch

        with torch.no_grad():
            first, second, last = self.network[0], self.network[2], self.network[4]
            for layer in (first, second, last):
                layer.weight.mul_(0.01)
                layer.bias.mul_(0.0)
            first.weight[0] = torch.tensor([0.1, 0.5, 1.0, 1.0])
            second.weight[0, 0] = 1.0
            last.weight[1, 0] = 1000.0

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Draw one action."""
        left, right = self._output(observation).tolist()
        return (1 if np.random.random() < _logistic(right - left) else 0), {}

    def get_actions(self, observations: np.ndarray, *, draws: Any = None) -> tuple[np.ndarray, dict]:
        """Draw an action for each row."""
        logits = self._output(observations)
        chances = 1 / (1 + np.exp(np.clip(logits[:, 0] - logits[:, 1], -50, 50)))
        drawn = np.random.random(len(chances)) if draws is None else draws.random()
        return (drawn < chances).astype(np.int64), {}


def _logistic(x: float) -> float:
    return 0.0 if x < -50 else 1.0 if x > 50 else 1 / (1 + 2.718281828459045**-x)


class CheetahNetwork(Network):
    """Six torques."""

    def __init__(self) -> None:
        super().__init__(17, 6)

    def get_action(self, observation: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose one action."""
        return np.tanh(self._output(observation)), {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        return np.tanh(self._output(observations)), {}


class ParticlesNetwork(Network):
    """The best of five actions."""

    def __init__(self) -> None:
        super().__init__(16, 5)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Choose one action."""
        return int(self._output(observation).argmax()), {}

    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict]:
        """Choose an action for each row."""
        return self._output(observations).argmax(1), {}


class OneByOne:
    """An agent without its `get_actions`: it is asked for one action at a time.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Any) -> None:
        self.get_action = agent.get_action


def make_falling() -> Linear:
    """Keeps CartPole up for about 20 timesteps."""
    return Linear((0.9, 0.0, 1.0, 0.0))


def make_balancing() -> Linear:
    """Keeps CartPole up for 500 timesteps."""
    return Linear((0.1, 0.5, 1.0, 1.0))


def make_balanced_network() -> CartPoleNetwork:
    """Keeps CartPole up for 500 timesteps."""
    return CartPoleNetwork(balanced=True)


def make_sleepers_agent() -> Linear:
    """For the sleeping environments."""
    return Linear((1.0, 0.0, 0.0, 0.0))


def small_parameters(iteration: int) -> dict:
    """Parameters of a `Parametrised` agent, different in each iteration."""
    weights = np.random.default_rng(iteration).normal(0, 0.1, (6, 17))
    return {"weights": weights, "iteration": iteration}


_BIG: list[np.ndarray] = []


def big_parameters(iteration: int) -> dict:
    """Parameters of a `Big` agent; every 4,096th is different in each iteration, and all are written once."""
    if not _BIG:
        _BIG.append(np.random.default_rng(0).random(10_000_000, np.float32))
    _BIG[0][::4096] = iteration
    return {"weights": _BIG[0], "iteration": iteration}
