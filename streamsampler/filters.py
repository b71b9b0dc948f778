"""Filters of observations and rewards; their statistics belong to the agent version.

Statistics are constant within an agent version, so batches do not depend on the number of workers. The sampler merges a
call's summaries into the next version. The guide is `streamsampler/docs/hooks-and-filters.md`.
"""

from streamsampler.agents.filters import Filter, FilteredAgent, Filters
from streamsampler.agents.moments import Moments
from streamsampler.agents.running_norms import RunningNorm, RunningReturnNorm

__all__ = ["Filter", "FilteredAgent", "Filters", "Moments", "RunningNorm", "RunningReturnNorm"]
