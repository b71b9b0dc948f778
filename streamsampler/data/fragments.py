"""Fragments of episodes that go on from call to call: what a worker says of them, and what a batch has of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsampler.errors import DataError

__all__ = ["EnvFragment", "EpisodeState", "check_fragments", "joined_fragments", "lengths_of"]


class EpisodeState(NamedTuple):
    """Where an episode that goes on stands, apart from its environment.

    Attributes:
        length: Its timesteps so far.
        memory: What the agents' `get_state` returned, and the states of the global generators, for all environments of
            a ticket, pickled together; and which of them this is. None where there is nothing to remember.
        digests: Of its observations and rewards so far, that observation included which its last action led to.
        restorable: Whether another worker's agent can be put into this state.
    """

    length: int
    memory: tuple[bytes, int] | None
    digests: tuple[int, ...]
    restorable: bool


class EnvFragment(NamedTuple):
    """What one environment's timesteps in a call consist of: consecutive episodes, or parts of them. Never changed.

    Attributes:
        number: The environment's number.
        n_episodes: How many there are.
        first: The number of the first one among all episodes of this environment.
        continued: Whether that one began in an earlier call.
        state: Where the last one stands; None if it ended.
        lost: Why the episode that went on could not be restored after a loss; empty where nothing was lost.
        group: The index of the ticket that it belongs to: the environment's number, or that of its group.
        agent: In the first environment of a group the state of the agent and of the global generators, pickled.
    """

    number: int
    n_episodes: int
    first: int
    continued: bool
    state: EpisodeState | None
    lost: str = ""
    group: int = -1
    agent: bytes | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> EnvFragment:
        """Return itself: to copy item by item what is never changed would cost more than to record it."""
        return self


def lengths_of(rollouts: Any) -> tuple[int, ...]:
    """Return how many timesteps each index of a ticket's `Rollouts` has: a trajectory, or an environment's fragment."""
    lengths = tuple(rollouts.lengths.tolist())  # the garbage collector looks at lists of numbers, too
    if not rollouts.fragments:
        return lengths
    of_groups: dict[int, int] = {}
    stop = 0
    for fragment in rollouts.fragments:
        start, stop = stop, stop + fragment.n_episodes
        of_groups[fragment.group] = of_groups.get(fragment.group, 0) + sum(lengths[start:stop])
    return tuple(of_groups.values())


_WHOLE: dict[str, tuple[type[np.generic], Any]] = {
    "continued": (np.bool_, False),
    "cut": (np.bool_, False),
    "env_numbers": (np.int64, -1),
    "earlier_lengths": (np.int64, 0),
    "earlier_returns": (np.float64, 0.0),
}
"""What the field `fragments` of a batch has: the dtypes, and what is said of whole trajectories."""


def check_fragments(fragments: Mapping[str, Any], n_trajectories: int) -> None:
    """Check the field `fragments` of a batch.

    Raises:
        DataError: It is neither empty, nor has what it should have.
    """
    if not fragments:
        return
    if sorted(fragments) != sorted(_WHOLE):
        raise DataError(f"fragments should have {', '.join(_WHOLE)}, and has {', '.join(map(str, fragments))}")
    for name, (dtype, _) in _WHOLE.items():
        array = fragments[name]
        if not isinstance(array, np.ndarray) or array.shape != (n_trajectories,) or array.dtype != dtype:
            raise DataError(
                f"fragments[{name!r}] should be an array of shape ({n_trajectories},) and dtype {np.dtype(dtype)}, and "
                f"is {array!r}"
            )
    earlier, continued = fragments["earlier_lengths"], fragments["continued"]
    if (wrong := (earlier > 0) != continued).any():
        position = int(wrong.argmax())
        said = "was continued" if continued[position] else "was not continued"
        raise DataError(f"trajectory {position} has {earlier[position]} earlier timesteps, and {said}")


def joined_fragments(parts: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """Join the field `fragments` of batches, given with their numbers of trajectories; those without it were whole."""
    if not any(fragments for fragments, _ in parts):
        return {}
    return {
        name: np.concatenate([fragments.get(name, np.full(n, whole, dtype)) for fragments, n in parts])
        for name, (dtype, whole) in _WHOLE.items()
    }
