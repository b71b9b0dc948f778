"""Keep where the environments of fragments stand, and the actions of their episodes, to restore them from."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from streamsampler.data import trees
from streamsampler.data.recorder import Rollouts
from streamsampler.data.trees import Tree
from streamsampler.workers.resets import Standing

__all__ = ["Standings"]


class Standings:
    """Where each environment of fragments stands after the last fragment that is known of it, by its number.

    Args:
        agents_stay: Whether environments may be lost and their agents are not: then actions are kept whatever agents
            can say of themselves.
    """

    def __init__(self, *, agents_stay: bool = False) -> None:
        self._agents_stay = agents_stay
        self._standings: dict[int, Standing] = {}
        self._actions: dict[int, list[Tree]] = {}  # of the episodes that go on

    def of(self, numbers: Container[int]) -> dict[int, Standing]:
        """Return where those of some environments stand that are known, with the actions of their episodes."""
        return {
            number: standing._replace(actions=self.actions_of(number))
            for number, standing in self._standings.items()
            if number in numbers
        }

    def put(self, standings: Mapping[int, Standing]) -> None:
        """Take in where some environments stand, with the actions of their episodes."""
        for number, standing in standings.items():
            self._standings[number] = standing._replace(actions=None, agent_is_replaced=False)
            self._actions.pop(number, None)
            if standing.actions is not None:
                self._actions[number] = [standing.actions]

    def episode_of(self, number: int) -> int:
        """Return the number of the episode that goes on in an environment; -1 if none does."""
        standing = self._standings.get(number)
        return -1 if standing is None or standing.state is None else standing.episode

    def actions_of(self, number: int) -> Tree | None:
        """Return the actions of the episode that goes on, leaves of (n, …); None where they are not kept."""
        if number not in self._actions:
            return None
        self._actions[number] = [trees.concatenate(self._actions[number])]
        return self._actions[number][0]

    def take(self, rollouts: Rollouts, options: dict[str, Any] | None, restore_limit: int) -> None:
        """Take in where environments stand after a fragment.

        Args:
            rollouts: The fragment.
            options: What the episodes were reset with that began in it.
            restore_limit: Of episodes with more timesteps, no actions are kept.
        """
        stop, lengths = 0, rollouts.lengths.tolist()
        ends = list(accumulate(lengths))
        for fragment in rollouts.fragments:
            number, state, stop = fragment.number, fragment.state, stop + fragment.n_episodes
            began_before = fragment.continued and fragment.n_episodes == 1
            if not began_before:
                self._actions.pop(number, None)
            last = fragment.first + fragment.n_episodes
            if state is None:
                self._actions.pop(number, None)
                self._standings[number] = Standing(last, None, None, fragment.agent)
                continue
            its_options = self._standings[number].options if began_before else options
            self._standings[number] = Standing(last - 1, state, None, fragment.agent, its_options)
            if state.length > restore_limit or not (state.restorable or self._agents_stay):
                self._actions.pop(number, None)
                continue
            length = lengths[stop - 1]
            if length == state.length or number in self._actions:
                rows = trees.take(rollouts.actions, slice(ends[stop - 1] - length, ends[stop - 1]))
                kept = rows.copy() if rows.__class__ is np.ndarray else trees.map_tree(np.copy, rows)
                self._actions.setdefault(number, []).append(trees.owned(kept))
