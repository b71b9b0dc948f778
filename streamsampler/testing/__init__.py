"""A test kit: environments and agents that fail at a chosen place, a chosen number of times.

A fault belongs to a trajectory, not to a time or a worker, so a test fails at the same place each time. Guide:
`streamsampler/docs/failures.md`.
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
