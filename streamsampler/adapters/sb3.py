"""Agents made of Stable-Baselines3's models."""

from streamsampler.agents.sb3 import SB3Agent

__all__ = ["SB3Agent"]
