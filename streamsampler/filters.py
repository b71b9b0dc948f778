"""Filters of observations and rewards, whose statistics are part of the agent version.

```python
from streamsampler import evaluate
from streamsampler.filters import RunningNorm, RunningReturnNorm

with MultiprocessingSampler(
    agent, "CartPole-v1", observation_filter=RunningNorm(clip=10.0), reward_filter=RunningReturnNorm(0.99)
) as sampler:
    sampler.warm_up(1_000)  # otherwise the first batch is not filtered
    for _ in range(3):
        batch = sampler.obtain_samples(1_000)
        print(batch.observations.std(axis=0))  # what the agent saw
    evaluate(agent, "CartPole-v1", n_trajectories=30, observation_filter=sampler.filters.observation)
```

Within an agent version the statistics are frozen: no timestep is filtered with others. Each worker makes a summary of
each trajectory; between two versions the sampler merges those of the trajectories that it returned, in their order, and
of no others. So the statistics are the same for any number of workers, whichever of them were lost, as the batch is.
(With `order="arrival"` that order depends on timing, as the batch does.) What a call returns changes the statistics of
the next call; a call that raises changes nothing. The first version leaves all as it is, unless the filter was loaded,
with statistics of an earlier run, or `sampler.warm_up` was called.

`batch.observations`, `batch.last_observations` and `batch.rewards` are filtered; `batch.raw_observations`,
`batch.raw_last_observations`, `batch.raw_rewards` and `batch.raw_returns` are what the environment said. Files and
folders hold both. `sampler.filters` has the filters with the statistics so far: pickle them, or pass
`sampler.filters.observation` to `evaluate`, which does not change them, or to another sampler, which goes on with them.

With `obtain_fragments` each part of a trajectory that a call returns has a summary of its own.

A filter is any object with three methods, none of which changes it: `apply(data)`, `summarise(data)` of one
trajectory, and `merge(summaries)`, which returns a new filter. See `Filter`.

The agent's `set_spaces` gets the environment's own observation space.

Actions need no filter. Where the environment is wrapped with `gymnasium.wrappers.ClipAction`, `RescaleAction` or
another `ActionWrapper`, it gets the transformed action. The batch has the agent's own.
"""

from streamsampler.agents.filters import Filter, FilteredAgent, Filters
from streamsampler.agents.running_norms import Moments, RunningNorm, RunningReturnNorm

__all__ = ["Filter", "FilteredAgent", "Filters", "Moments", "RunningNorm", "RunningReturnNorm"]
