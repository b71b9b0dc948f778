"""The global generators of a process in which several environments may draw from them.

Each episode begins with `random`, `numpy.random` and torch's seeded from its own seed, as in samplers. But several
environments share a process: what one draws would depend on what the others have drawn meanwhile. So an environment
that draws is given states of its own, which are put in force around each of its calls.

Who draws is found out by looks at the generators after each reset and at the end of each episode: a look in each step
would take longer than many a step. Only where something has drawn since the last look, and it is not known which
environment did, there is a look in each step, until each environment has ended an episode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import Any

from streamsampler.workers.generators import (
    drawn_states,
    generator_states,
    preserved_generators,
    set_states,
)


class EnvGenerators:
    """Seeds the global generators for episodes, and keeps the states of environments that draw from them.

    Args:
        env_ids: The environments of this process.
        is_shared: Whether the process is the caller's, whose own states are restored after each call.
        found: Takes an environment that was found to draw, and the seconds that each of its calls takes longer.

    Attributes:
        drawing: The environments that have states of their own from their next reset on.
        is_idle: Whether steps may be taken as they are.
    """

    def __init__(self, env_ids: Collection[int], *, is_shared: bool, found: Callable[[int, float], None]) -> None:
        self.drawing: set[int] = set()
        self.is_idle = True
        self._env_ids = env_ids
        self._is_shared = is_shared
        self._found = found
        self._seeds: dict[int, int] = {}  # of environments that draw: their episode's
        self._states: dict[int, Any] = {}  # and what they have drawn from since then
        self._looked: Any = None  # at the last look
        self._to_end: set[int] = set()  # environments that are looked at in each step until they end an episode

    def give_own(self, env_ids: Collection[int]) -> None:
        """Let environments have states of their own from their next reset on."""
        self.drawing.update(env_ids)

    def look_away(self) -> None:
        """Take the states as they are: the caller may have drawn."""
        if self._is_shared:
            self._looked = generator_states()

    @contextlib.contextmanager
    def beginning(self, env_id: int, seed: int) -> Iterator[None]:
        """Reset an environment in a block, with the generators seeded for its episode."""
        with self._restored():
            self._look(None)
            fresh = self._looked = set_states(seed, None)
            yield
            if env_id not in self.drawing:
                self._look(env_id)
            if env_id in self.drawing:
                self._keep(env_id, seed, fresh)

    @contextlib.contextmanager
    def calling(self, env_id: int) -> Iterator[None]:
        """Step an environment in a block, or call one of its methods."""
        if env_id not in self._seeds:
            yield
            if env_id in self._to_end:
                self._look(env_id)
            return
        with self._restored():
            seed = self._seeds[env_id]
            fresh = set_states(seed, self._states[env_id])
            try:
                yield
            finally:
                self._keep(env_id, seed, fresh)

    def end(self, env_id: int) -> None:
        """Look at the end of an episode."""
        self._to_end.discard(env_id)  # before the look, after which all are looked at for an episode again
        if env_id not in self._seeds:
            self._look(env_id if len(self._env_ids) == 1 else None)
        self._settle()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the caller's states after a block, where the process is the caller's, and take them as they are."""
        if not self._is_shared:
            yield
            return
        try:
            with preserved_generators():
                yield
        finally:
            self._looked = generator_states()

    def _keep(self, env_id: int, seed: int, fresh: tuple[Any, ...]) -> None:
        """Keep an environment's states, which it has put in force."""
        self._looked = generator_states()
        self._seeds[env_id], self._states[env_id] = seed, drawn_states(fresh)
        self._settle()

    def _look(self, env_id: int | None) -> None:
        """Find out whether something has drawn since the last look: this environment; any of them if it is None."""
        before, self._looked = self._looked, generator_states()
        if before is None or before == self._looked:
            return
        if env_id is None:
            self._to_end = set(self._env_ids) - self._seeds.keys()
            self._settle()
        elif env_id not in self.drawing:
            self.drawing.add(env_id)
            self._found(env_id, _seconds_of_a_call())

    def _settle(self) -> None:
        self.is_idle = not (self._seeds or self._to_end)


def _seconds_of_a_call() -> float:
    """Return what putting states in force and keeping them takes."""
    with preserved_generators():
        began = perf_counter()
        drawn_states(set_states(0, None))
        return perf_counter() - began
