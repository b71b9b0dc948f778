"""The states of an environment stepped by a manager, and their transitions. Pure: no I/O.

```text
            RESET              BEGAN           SENT                 STEPPED
  VOID ─────────────▶ RESETTING ─────▶ READY ────────▶ STEPPING ───────────────▶ READY
                       ▲   ▲                              │  │
                 RESET │   │ RESET                  ENDED │  │ REACHED_LIMIT
                       │   └───────── NEEDS_RESET ◀───────┘  └────────▶ FINISHED
                    FAILED ◀── BROKE, from any state with an environment
```

An environment has at most one open request: a reset (RESETTING) or a step (STEPPING). The request closes when the
caller receives its result, or resets the environment and so discards it. CLOSED is reached from every state; a launch
starts other environments.

A step at an episode's end is STEPPED if the environment resets itself, and ENDED if its caller must reset it.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from streamsampler.core.errors import ProtocolError

Autoreset = Literal["next_step", "same_step", "disabled"]
OnEnvFailure = Literal["raise", "reset", "restore"]


class EnvState(Enum):
    """The state of an environment, as its manager knows it."""

    __hash__ = object.__hash__  # quicker in a dict: an enum's is a function in Python

    VOID = "void"  # no episode yet
    RESETTING = "resetting"  # a reset is open
    READY = "ready"  # awaits an action
    STEPPING = "stepping"  # a step is open
    NEEDS_RESET = "needs reset"  # the episode has ended, and the caller must reset the environment
    FINISHED = "finished"  # has run its `max_episodes` episodes
    FAILED = "failed"  # raised, died, hung or was abnormal; a reset recovers it
    CLOSED = "closed"


class EnvEvent(Enum):
    """Changes of an environment's state."""

    __hash__ = object.__hash__

    RESET = "a reset was requested"
    BEGAN = "the caller received the result of a reset"
    SENT = "an action was sent"
    STEPPED = "the caller received the result of a step"
    ENDED = "the caller received the last result of an episode, and has to reset"
    REACHED_LIMIT = "the caller received the last result of the last episode"
    DISCARDED = "the result of an open request was discarded"
    BROKE = "the environment failed"
    CLOSED = "the environment was closed"


_S, _E = EnvState, EnvEvent

# All legal transitions. All others raise.
_TRANSITIONS: dict[EnvState, dict[EnvEvent, EnvState]] = {
    _S.VOID: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.RESETTING: {_E.BEGAN: _S.READY, _E.DISCARDED: _S.NEEDS_RESET, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.READY: {_E.RESET: _S.RESETTING, _E.SENT: _S.STEPPING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.STEPPING: {
        _E.STEPPED: _S.READY,
        _E.ENDED: _S.NEEDS_RESET,
        _E.REACHED_LIMIT: _S.FINISHED,
        _E.DISCARDED: _S.NEEDS_RESET,
        _E.BROKE: _S.FAILED,
        _E.CLOSED: _S.CLOSED,
    },
    _S.NEEDS_RESET: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.FINISHED: {_E.RESET: _S.RESETTING, _E.BROKE: _S.FAILED, _E.CLOSED: _S.CLOSED},
    _S.FAILED: {_E.RESET: _S.RESETTING, _E.CLOSED: _S.CLOSED},
    _S.CLOSED: {},
}


def next_state(state: EnvState, event: EnvEvent) -> EnvState:
    """Return the state after `event`; raise ProtocolError if this state forbids it."""
    try:
        return _TRANSITIONS[state][event]
    except KeyError:
        raise ProtocolError(f"{event.name} is not allowed in state {state.name}") from None
