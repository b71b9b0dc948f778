"""Environments that ring a bell; a module of its own, because each new worker imports it, and pytest takes long."""

import contextlib
import os
import random

import gymnasium

from streamsampler.testing import ScriptedEnv

LENGTHS = (2, 20)
RINGS_PER_STEP = 0.01


class Ringing(gymnasium.Wrapper):
    """Rings a bell now and then, by dice that no seed reaches, and goes on: whoever hears it kills somebody."""

    def __init__(self, env, path):
        super().__init__(env)
        self.dice = random.SystemRandom()
        self.bell = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def step(self, action):
        if self.dice.random() < RINGS_PER_STEP:
            with contextlib.suppress(BlockingIOError):
                os.write(self.bell, b".")
        return super().step(action)

    def close(self):
        os.close(self.bell)
        super().close()


def ringing(path, shape):
    return Ringing(ScriptedEnv(LENGTHS, shape), path)
