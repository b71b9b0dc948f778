"""Agents of PyTorch modules."""

from streamsampler.agents.heads import CategoricalHead, GaussianHead
from streamsampler.agents.torch import RecurrentTorchAgent, TorchAgent

__all__ = ["CategoricalHead", "GaussianHead", "RecurrentTorchAgent", "TorchAgent"]
