"""Networks on an accelerator where there is one; otherwise on one thread of the processor, as those in `agents`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.problems.agents import CartPoleNetwork, Network

__all__ = ["CartPoleOnDevice", "PixelNetwork", "device"]


def device() -> str:
    """Return where networks are: "cuda" where torch finds it, otherwise "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class _OnDevice(Network):
    """Sends observations to where the network is, and brings back what it computes."""

    def _move(self) -> None:
        self.device = device()
        self.network.to(self.device)

    def _output(self, observations: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            there = torch.from_numpy(np.ascontiguousarray(observations)).to(self.device)
            return self.network(there.to(torch.float32)).cpu().numpy()


class CartPoleOnDevice(_OnDevice, CartPoleNetwork):
    """An MLP 2x64 that keeps CartPole up for 500 timesteps."""

    def __init__(self) -> None:
        super().__init__(balanced=True)
        self._move()


class PixelNetwork(_OnDevice):
    """A small convolutional network, two layers and a hidden one of 256, over observations of uint8 4x84x84."""

    def __init__(self) -> None:
        import torch

        self._one_thread()
        torch.manual_seed(0)
        layers = torch.nn
        self.network = layers.Sequential(
            layers.Conv2d(4, 16, 8, stride=4), layers.ReLU(), layers.Conv2d(16, 32, 4, stride=2), layers.ReLU(),
            layers.Flatten(), layers.Linear(32 * 9 * 9, 256), layers.ReLU(), layers.Linear(256, 4),
        )  # fmt: skip
        self._move()

    def get_action(self, observation: np.ndarray) -> tuple[int, dict]:
        """Choose the action with the largest output."""
        return int(self._output(observation[None])[0].argmax()), {}

    def get_actions(self, observations: np.ndarray) -> tuple[Any, dict]:
        """Choose an action for each row."""
        return self._output(observations).argmax(axis=1), {}
