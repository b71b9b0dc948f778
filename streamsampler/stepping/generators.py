"""Share a process's global generators among several environments.

As in samplers, each episode starts with `random`, `numpy.random` and torch's generators seeded from its own seed. So
that its draws do not depend on the other environments', an environment found to draw gets its own states, set around
each call.

To find it, the states are compared after each reset and at each end of an episode: a comparison after each step would
take longer than many steps. Only an unexplained draw leads to comparisons at each step, until each environment has
ended an episode.

Seeding takes as long as two steps of a cheap environment, so it is skipped after a whole episode without draws. If a
later reset draws, it is repeated with the generators seeded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from time import perf_counter
from typing import Any, TypeVar

from streamsampler.workers.generators import (
    drawn_states,
    generator_marks,
    kept_generators,
    preserved_generators,
    restore_generators,
    set_states,
)
from streamsampler.workers.turns import turn

ResultT = TypeVar("ResultT")


class EnvGenerators:
    """Seeds the global generators for episodes, and keeps the states of drawing environments.

    `is_shared`: this is the caller's process, whose own states are restored after each call. `found` receives a drawing
    environment, and the seconds added to each of its calls.
    """

    def __init__(self, env_ids: Collection[int], *, is_shared: bool, found: Callable[[int, float], None]) -> None:
        self.drawing: set[int] = set()  # environments with states of their own, from their next reset
        self.is_idle = True  # whether steps need no states set and no comparison
        self._env_ids = env_ids
        self._is_shared = is_shared
        self._found = found
        self._seeds: dict[int, int] = {}  # by drawing environment: its episode's seed
        self._states: dict[int, Any] = {}  # by drawing environment: its states
        self._marks: Any = None  # marks of the states at the last comparison
        self._kept: tuple[Any, Any] | None = None  # marks, and the states then: shared by several resets
        self._trusted: set[int] = set()  # environments without draws in a whole episode, among others
        self._to_end: set[int] = set()  # environments compared at each step until they end an episode

    def accept_states(self) -> None:
        """Accept the current states: the caller may have drawn."""
        if self._is_shared:
            self._marks = generator_marks()

    def reset(self, env_id: int, seed: int, reset: Callable[[], ResultT]) -> ResultT:
        """Reset an environment, with the generators seeded for its episode if it may draw.

        `reset` is called twice if the environment draws for the first time in a later episode.
        """
        if env_id in self._trusted:
            with turn():  # draws of another thread would count as this environment's
                if self._kept is None or self._kept[0] is not self._marks:
                    self._compare(None)
                    self._kept = self._marks, kept_generators()
                before, kept = self._kept
                try:
                    result = reset()
                except BaseException:
                    self._restore_kept(before, kept)
                    raise
                if generator_marks() == before:
                    return result
                self._restore_kept(before, kept)
        with self.beginning(env_id, seed):
            return reset()

    def _restore_kept(self, before: Any, kept: Any) -> None:
        self._compare(None)  # a step of another environment may have drawn since these states were kept
        restore_generators(kept)
        self._marks = before

    @contextlib.contextmanager
    def beginning(self, env_id: int, seed: int) -> Iterator[None]:
        """Seed the generators for a block that starts an episode."""
        with self._restored():
            self._compare(None)
            fresh = set_states(seed, None)
            self._marks = generator_marks()
            yield
            if env_id not in self.drawing:
                self._compare(env_id)
            if env_id in self.drawing:
                self._keep(env_id, seed, fresh)

    @contextlib.contextmanager
    def calling(self, env_id: int) -> Iterator[None]:
        """Set an environment's states for a block that calls it."""
        if env_id not in self._seeds:
            yield
            if env_id in self._to_end:
                self._compare(env_id)
            return
        with self._restored():
            seed = self._seeds[env_id]
            fresh = set_states(seed, self._states[env_id])
            try:
                yield
            finally:
                self._keep(env_id, seed, fresh)

    def end(self, env_id: int) -> None:
        self._to_end.discard(env_id)  # before the comparison, which may add all environments again
        if env_id not in self._seeds:
            is_alone = len(self._env_ids) == 1  # then its reset seeds the draws of its steps
            if not self._compare(env_id if is_alone else None) and not is_alone and env_id not in self.drawing:
                self._trusted.add(env_id)
        self._settle()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the caller's states after a block, in the caller's process."""
        if not self._is_shared:
            yield
            return
        try:
            with preserved_generators():
                yield
        finally:
            self._marks = generator_marks()

    def _keep(self, env_id: int, seed: int, fresh: tuple[Any, ...]) -> None:
        self._marks = generator_marks()
        self._seeds[env_id], self._states[env_id] = seed, drawn_states(fresh)
        self._settle()

    def _compare(self, env_id: int | None) -> bool:
        """Return whether the states have changed since the last comparison, by `env_id` or, if None, by any."""
        before, now = self._marks, generator_marks()
        if before == now:
            return False
        self._marks = now
        if before is None:
            return False
        self._trusted.clear()
        if env_id is None:
            self._to_end = set(self._env_ids) - self._seeds.keys()
            self._settle()
        elif env_id not in self.drawing:
            self.drawing.add(env_id)
            self._found(env_id, _seconds_of_a_call())
        return True

    def _settle(self) -> None:
        self.is_idle = not (self._seeds or self._to_end)


def _seconds_of_a_call() -> float:
    with preserved_generators():
        began = perf_counter()
        drawn_states(set_states(0, None))
        return perf_counter() - began
