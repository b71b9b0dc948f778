"""Workloads of the library's own agents, `TorchAgent` and `MlpAgent`; bare loops have copies that never change."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from benchmarks.problems import agents, frozen

__all__ = ["bare_agent", "our_agent"]

_SPACES = {
    "cartpole": gymnasium.spaces.Discrete(2),
    "pendulum": gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32),
    "cheetah": gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32),
}


class _Pendulum(agents.Network):
    def __init__(self) -> None:
        super().__init__(3, 1)


def _network(task: str, balanced: bool) -> Any:
    """Return an MLP 2x64, with a parameter `log_std` where actions are numbers."""
    if task == "cartpole":
        return agents.CartPoleNetwork(balanced).network
    import torch

    network = (_Pendulum() if task == "pendulum" else agents.CheetahNetwork()).network
    network.log_std = torch.nn.Parameter(torch.zeros(_SPACES[task].shape))
    return network


def our_agent(task: str, balanced: bool = False, numpy: bool = False) -> Any:
    """Make the library's agent.

    Args:
        task: "cartpole", "pendulum" or "cheetah".
        balanced: Whether CartPole stays up for 500 timesteps.
        numpy: Whether NumPy runs the network, and not torch.
    """
    from streamsampler.adapters.mlp import MlpAgent
    from streamsampler.adapters.torch import TorchAgent

    network, space = _network(task, balanced), _SPACES[task]
    return MlpAgent(network, space, log_std=getattr(network, "log_std", None)) if numpy else TorchAgent(network, space)


def bare_agent(task: str, balanced: bool = False, numpy: bool = False) -> Any:
    """Make the frozen one that acts the same; see `our_agent`."""
    kind = frozen.FrozenMlpAgent if numpy else frozen.FrozenTorchAgent
    return frozen.as_in_a_worker(kind(_network(task, balanced), _SPACES[task]))
