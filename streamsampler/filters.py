"""Filters of observations and rewards, whose statistics are part of the agent version.

Within an agent version the statistics do not change, so batches do not depend on the number of workers. The sampler
merges the summaries of a call into the next version. The guide is `streamsampler/docs/hooks-and-filters.md`.
"""

from streamsampler.agents.filters import Filter, FilteredAgent, Filters
from streamsampler.agents.running_norms import Moments, RunningNorm, RunningReturnNorm

__all__ = ["Filter", "FilteredAgent", "Filters", "Moments", "RunningNorm", "RunningReturnNorm"]
