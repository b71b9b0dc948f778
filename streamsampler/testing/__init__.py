"""A test kit: environments and agents that fail at a chosen place, a chosen number of times.

Environments and agents can raise, hang (asleep, or holding the interpreter's lock), die (exit, abort, SIGKILL), stop or
leak. Does a training script survive a worker that is killed in trajectory 7 of the second call?

```python
from streamsampler.testing import Fault, Faults


def test_a_killed_worker(tmp_path):
    faults = Faults(tmp_path, Fault("kill", trajectory=7, step=3, version=2), seed=1)
    with MultiprocessingSampler(agent, faults.env("CartPole-v1"), n_workers=4, seed=1) as sampler:
        train(sampler)
    assert faults.fired() == 1
```

A fault belongs to a trajectory, not to a time or a process, so a test with faults is as reproducible as one without.
The number of times it fires is counted over all processes: the worker that replaces a killed one is not killed again.

`FailPoint` kills a worker at a chosen place of this package's own worker loop.
"""

from streamsampler.testing.faults import Fault, Faults, FaultyAgent, FaultyEnv, InjectedError
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from streamsampler.workers.fail_points import FailPoint

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
