"""What a worker says in one word of shared memory: which environment runs, and what it does."""

from __future__ import annotations

from typing import Final

from streamsampler.protocol.messages import Phase

__all__ = ["IDLE", "MAKING", "RESETTING", "STEPPING", "running_env"]

IDLE: Final = 0
STEPPING: Final = 1
RESETTING: Final = 2
MAKING: Final = 3
"""The last digit of a word, to the base four; the others are the environment's number. A word of 0 is a worker that
runs none."""

_PHASES = (Phase.WAITING, Phase.STEP, Phase.RESET, Phase.ENV_CONSTRUCTION)


def running_env(word: int) -> tuple[int | None, Phase]:
    """Return the environment that a worker runs, None for none, and what it does."""
    env_id, digit = divmod(word, 4)
    return (env_id if digit else None), _PHASES[digit]
