"""Check a worker's environments for equal spaces and agents."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.core.errors import DataError
from streamsampler.data.spaces import same_spaces
from streamsampler.environments.multi_agent import refuse_other_agents
from streamsampler.environments.updates import AnyEnv

__all__ = ["refuse_different"]


def refuse_different(envs: Sequence[AnyEnv]) -> None:
    """Raise `DataError` if two environments have different spaces or agents."""
    first = envs[0]
    one = first.observation_space, first.action_space
    for env in envs[1:]:
        if not same_spaces(another := (env.observation_space, env.action_space), one):
            raise DataError(
                f"the environments of a worker must have the same spaces: the first has {one[0]} and {one[1]}, "
                f"another has {another[0]} and {another[1]}"
            )
        refuse_other_agents(first.unwrapped, env.unwrapped)
