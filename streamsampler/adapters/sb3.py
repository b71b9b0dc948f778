"""Agents made of Stable-Baselines3's models: see `streamsampler.agents.sb3`."""

from streamsampler.agents.sb3 import SB3Agent

__all__ = ["SB3Agent"]
