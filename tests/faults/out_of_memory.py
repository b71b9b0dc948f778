"""Environments that run out of memory."""

import resource
from pathlib import Path

from streamsampler.testing import ScriptedEnv

SPARE = 16 << 20


class OutOfMemoryEnv(ScriptedEnv):
    """Takes more memory in its second step than its process may have.

    Args:
        shape: The observations' shape.
        wanted: Bytes that the step takes itself; with 0 it is the recording of a large observation that fails.
    """

    def __init__(self, shape=(2,), wanted=1 << 30):
        super().__init__(length=40, shape=shape)
        self.wanted = wanted
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.t += 1
        result = super().step(action)
        if self.t == 2:
            limit_memory()
            bytearray(self.wanted)
        return result


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, most))
