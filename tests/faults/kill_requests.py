"""Environments that ask for a kill; a module of its own, because each new worker imports it, and pytest takes long."""

import contextlib
import os
import random

import gymnasium

from streamsampler.testing import ScriptedEnv

LENGTHS = (2, 20)
REQUESTS_PER_STEP = 0.01


class AsksToBeKilled(gymnasium.Wrapper):
    """Writes to a pipe at random timesteps, which no seed decides: a thread of the test kills a worker then."""

    def __init__(self, env, path):
        super().__init__(env)
        self.random = random.SystemRandom()
        self.requests = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def step(self, action):
        if self.random.random() < REQUESTS_PER_STEP:
            with contextlib.suppress(BlockingIOError):
                os.write(self.requests, b".")
        return super().step(action)

    def close(self):
        os.close(self.requests)
        super().close()


def asking(path, shape):
    return AsksToBeKilled(ScriptedEnv(LENGTHS, shape), path)
