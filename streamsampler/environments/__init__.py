"""Environments: how workers make them, and how calls change them.

Samplers accept an id, a function, an instance or an `EnvSpec`. An `EnvUpdate` replaces or changes a worker's
environment. The guide is `streamsampler/docs/environments.md`.
"""

from streamsampler.environments.distributions import Choice, Distribution, LogUniform, Normal, Uniform
from streamsampler.environments.per_env import PerEnv

__all__ = ["Choice", "Distribution", "LogUniform", "Normal", "PerEnv", "Uniform"]
