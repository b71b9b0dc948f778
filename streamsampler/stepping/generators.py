"""The global generators of a process in which several environments may draw from them.

Each episode begins with `random`, `numpy.random` and torch's seeded from its own seed, as in samplers. But several
environments share a process: what one draws would depend on what the others have drawn meanwhile. So an environment
that draws is given states of its own, which are put in force around each of its calls.

Who draws is found out by looks at the generators after each reset and at the end of each episode: a look in each step
would take longer than many a step. Only where something has drawn since the last look, and it is not known which
environment did, there is a look in each step, until each environment has ended an episode.

To seed them takes as long as two steps of a cheap environment, so nothing is seeded for one that has drawn nothing in a
whole episode. Should it draw in a later reset, that one is made again, from seeds.
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
    """Seeds the global generators for episodes, and keeps the states of environments that draw from them.

    Args:
        env_ids: The environments of this process.
        is_shared: Whether the process is the caller's, whose own states are restored after each call.
        found: Takes an environment that was found to draw, and the seconds that each of its calls takes longer.
    """

    def __init__(self, env_ids: Collection[int], *, is_shared: bool, found: Callable[[int, float], None]) -> None:
        self.drawing: set[int] = set()  # environments that have states of their own from their next reset on
        self.is_idle = True  # whether steps may be taken as they are
        self._env_ids = env_ids
        self._is_shared = is_shared
        self._found = found
        self._seeds: dict[int, int] = {}  # of environments that draw: their episode's
        self._states: dict[int, Any] = {}  # and what they have drawn from since then
        self._looked: Any = None  # at the last look
        self._kept: tuple[Any, Any] | None = None  # a look, and the states then: several resets need them
        self._trusted: set[int] = set()  # environments that have drawn nothing in a whole episode, beside others
        self._to_end: set[int] = set()  # environments that are looked at in each step until they end an episode

    def look_away(self) -> None:
        """Take the states as they are: the caller may have drawn."""
        if self._is_shared:
            self._looked = generator_marks()

    def reset(self, env_id: int, seed: int, reset: Callable[[], ResultT]) -> ResultT:
        """Reset an environment, with the generators seeded for its episode if it may draw; return what `reset` does.

        It is called once more where it draws for the first time in a later episode.
        """
        if env_id in self._trusted:
            with turn():  # another thread would seem to be this environment
                if self._kept is None or self._kept[0] is not self._looked:
                    self._look(None)
                    self._kept = self._looked, kept_generators()
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
        self._look(None)  # a step of another environment may have drawn, too, since these states were kept
        restore_generators(kept)
        self._looked = before

    @contextlib.contextmanager
    def beginning(self, env_id: int, seed: int) -> Iterator[None]:
        """Begin an episode of an environment in a block, with the generators seeded for it."""
        with self._restored():
            self._look(None)
            fresh = set_states(seed, None)
            self._looked = generator_marks()
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
            is_alone = len(self._env_ids) == 1  # then what it draws in steps is seeded by its reset
            if not self._look(env_id if is_alone else None) and not is_alone and env_id not in self.drawing:
                self._trusted.add(env_id)
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
            self._looked = generator_marks()

    def _keep(self, env_id: int, seed: int, fresh: tuple[Any, ...]) -> None:
        self._looked = generator_marks()
        self._seeds[env_id], self._states[env_id] = seed, drawn_states(fresh)
        self._settle()

    def _look(self, env_id: int | None) -> bool:
        """Find out whether something has drawn since the last look: this environment; any of them if it is None."""
        before, now = self._looked, generator_marks()
        if before == now:
            return False
        self._looked = now
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
