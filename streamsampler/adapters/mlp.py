"""Agents of small networks, computed with NumPy."""

from streamsampler.agents.mlp import MlpAgent

__all__ = ["MlpAgent"]
