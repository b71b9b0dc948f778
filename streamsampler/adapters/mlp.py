"""Small networks, computed with NumPy: see `streamsampler.agents.mlp`."""

from streamsampler.agents.mlp import MlpAgent

__all__ = ["MlpAgent"]
