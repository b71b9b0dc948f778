"""A test kit: environments and agents that fail at a chosen place, a chosen number of times.

Does my training script survive a worker that is killed in trajectory 7? ::

    from streamsampler.testing import Fault, Faults

    def test_a_killed_worker(tmp_path):
        faults = Faults(tmp_path, Fault("kill", trajectory=7, step=3), seed=1)
        with MultiprocessingSampler(agent, faults.env("CartPole-v1"), seed=1) as sampler:
            train(sampler)
        assert faults.fired() == 1

A fault belongs to a trajectory, not to a time or a process, so a test with faults is as reproducible as one without.
How often it happens is counted over all processes, so that a worker started in the place of a killed one is not
killed, too.

`FailPoint` lets worker processes die inside this package's own code.
"""

from streamsampler.testing.faults import Fault, Faults, InjectedError
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from streamsampler.testing.workers import FailPoint
from streamsampler.testing.wrappers import FaultyAgent, FaultyEnv

__all__ = [
    "FailPoint",
    "Fault",
    "Faults",
    "FaultyAgent",
    "FaultyEnv",
    "InjectedError",
    "ScriptedAgent",
    "ScriptedEnv",
]
