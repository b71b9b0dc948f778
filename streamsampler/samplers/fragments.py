"""Keep what goes on from one call for fragments to the next, and make batches of it."""

from __future__ import annotations

import numpy as np

from streamsampler.data import trees
from streamsampler.data.assembly import Delivery
from streamsampler.data.trees import Array, Tree
from streamsampler.samplers.supervisor import logger
from streamsampler.scheduling.plans import Fragments
from streamsampler.scheduling.result import Result, Segment
from streamsampler.workers.resets import FragmentOrder, Standing

__all__ = ["RESTORE_LIMIT", "Episodes", "FragmentLedger"]

RESTORE_LIMIT = 100_000
"""Of longer episodes the actions are not kept: they cannot be restored after a loss."""


class FragmentLedger:
    """Where each environment of fragments stands, so that a worker which replaces a lost one can go on.

    Args:
        plan: The first call's.
        base_version: The agent version in which the environments begin.
        restore_limit: See `RESTORE_LIMIT`.
    """

    def __init__(self, plan: Fragments, base_version: int, restore_limit: int = RESTORE_LIMIT) -> None:
        self._n_envs = plan.n_envs
        self.base_version = base_version
        self._restore_limit = restore_limit
        self._plan = plan
        self._standings: dict[int, Standing] = {}
        self._actions: dict[int, list[Tree]] = {}  # of the episodes that go on
        self._arrived: set[int] = set()  # environments, in this call

    def goes_on_in(self, plan: Fragments) -> bool:
        """Whether the episodes go on in another call: the last one is complete, and has the same environments."""
        return len(self._arrived) == self._n_envs == plan.n_envs

    def begin_call(self, plan: Fragments) -> None:
        """Begin another call."""
        self._plan = plan
        self._arrived = set()

    def order(self, worker: int | None = None) -> FragmentOrder:
        """Return what workers are told.

        Args:
            worker: A worker that has no environments, and is to go on with its share; None for all others.
        """
        plan = self._plan
        numbers = () if worker is None else plan.envs_of(worker)
        standings = {number: self._standing(number) for number in numbers if number in self._standings}
        return FragmentOrder(plan.n_timesteps, self._n_envs, self.base_version, standings)

    def _standing(self, number: int) -> Standing:
        standing = self._standings[number]
        if number not in self._actions:
            return standing
        self._actions[number] = [trees.concatenate(self._actions[number])]
        return standing._replace(actions=self._actions[number][0])

    def take(self, delivery: Delivery) -> int:
        """Take in where environments stand after their timesteps of this call.

        Returns:
            How many episodes went on before, and could not be restored after a loss.
        """
        rollouts, stop = delivery.rollouts, 0
        ends = np.cumsum(rollouts.lengths).tolist()
        for fragment in rollouts.fragments:
            number, stop = fragment.number, stop + fragment.n_episodes
            self._arrived.add(number)
            state = fragment.state
            if fragment.n_episodes > 1 or not fragment.continued:
                self._actions.pop(number, None)
            if fragment.lost:
                logger.warning(
                    "the episode that went on in environment %d was lost with its worker, and cannot be restored: %s; "
                    "a new episode was begun",
                    number,
                    fragment.lost,
                )
            last = fragment.first + fragment.n_episodes
            if state is None:
                self._actions.pop(number, None)
                self._standings[number] = Standing(last, None, None, fragment.agent)
                continue
            self._standings[number] = Standing(last - 1, state, None, fragment.agent)
            if state.length > self._restore_limit or not state.restorable:
                self._actions.pop(number, None)
                continue
            length = int(rollouts.lengths[stop - 1])
            if length == state.length or number in self._actions:
                rows = trees.take(rollouts.actions, slice(ends[stop - 1] - length, ends[stop - 1]))
                self._actions.setdefault(number, []).append(trees.owned(trees.map_tree(np.copy, rows)))
        return sum(bool(fragment.lost) for fragment in rollouts.fragments)


class Episodes:
    """The parts of episodes that a result for fragments has, in order of environment, then time.

    Args:
        result: The result, whose segments are of environments; this takes its place where segments are asked for.
        n_envs: How many environments there are.
    """

    def __init__(self, result: Result, n_envs: int) -> None:
        self._result = result
        self._n_envs = n_envs
        self._segments: list[Segment | None] = []  # None for those that were forgotten
        self._n_taken = 0  # segments of environments
        self._numbers: list[int] = []
        self._continued: list[bool] = []

    def segments(self, first: int = 0) -> list[Segment]:
        """Return what `Result.segments` does, of parts of episodes."""
        for segment in self._result.segments(self._n_taken):
            self._take(segment)
        return [segment for segment in self._segments[first:] if segment is not None]

    def _take(self, of_envs: Segment) -> None:
        delivery, groups, position = of_envs.delivery, of_envs.indices, 0
        for fragment in delivery.rollouts.fragments:
            number, n = fragment.number, fragment.n_episodes
            if fragment.group not in groups:
                position += n
                continue
            first = number + fragment.first * self._n_envs
            indices = range(first, first + n * self._n_envs, self._n_envs)
            self._segments.append(Segment(delivery, position, position + n, indices))
            self._numbers += [number] * n
            self._continued += [fragment.continued, *[False] * (n - 1)]
            position += n
        self._n_taken += 1
        self._result.forget_segments(self._n_taken - 1, self._n_taken)

    def forget_segments(self, first: int, stop: int) -> None:
        """Do what `Result.forget_segments` does."""
        self._segments[first:stop] = [None] * (stop - first)

    def fields(self) -> dict[str, Array]:
        """Return the batch's field `fragments`, but `cut`."""
        return {
            "continued": np.array(self._continued, np.bool_),
            "env_numbers": np.array(self._numbers, np.int64),
        }
