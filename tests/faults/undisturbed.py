"""The batches that a sampler with faults is compared with: those of the same calls in this process, without faults."""

import functools

from streamsampler import LocalSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

SEED = 5


def calls(sampler, n_calls=1, n_trajectories=8, **updates):
    """Return the batches of some calls, each with parameters of its own."""
    return [
        sampler.obtain_trajectories(n_trajectories, agent_update={"offset": call}, **updates) for call in range(n_calls)
    ]


@functools.cache
def undisturbed(n_calls=1, n_trajectories=8, length=5, shape=(2,)):
    with LocalSampler(ScriptedAgent(), functools.partial(ScriptedEnv, length, shape), seed=SEED) as sampler:
        return calls(sampler, n_calls, n_trajectories)
