"""Agents made of PyTorch's modules: see `streamsampler.agents.torch`."""

from streamsampler.agents.heads import CategoricalHead, GaussianHead
from streamsampler.agents.torch import TorchAgent

__all__ = ["CategoricalHead", "GaussianHead", "TorchAgent"]
