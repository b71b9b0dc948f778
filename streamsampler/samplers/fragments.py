"""The ledger of fragments: positions of open episodes between calls, saved and restored."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streamsampler.core.by_value import dumps_by_value
from streamsampler.data.batch_fields import sums
from streamsampler.data.plain_values import plain_tree, tree_of
from streamsampler.data.recorder import EnvFragment, EpisodeState, Rollouts
from streamsampler.data.segments import Delivery
from streamsampler.data.statistics import EndedEpisodes
from streamsampler.protocol.plans import Fragments
from streamsampler.samplers.failures import logger
from streamsampler.workers.resets import EpisodeCheckpoint, EpisodeCheckpoints, FragmentOrder


class EpisodeSoFar(NamedTuple):
    """Length and return of the open episode in an environment, as far as earlier calls returned them."""

    length: int = 0  # timesteps; 0 without an open episode
    returned: float = 0.0  # sum of raw rewards


NOTHING_SO_FAR = EpisodeSoFar()
_OF_STATE = " of the loaded state"


def order_of(
    plan: Fragments, base_version: int, standings: Mapping[int, EpisodeCheckpoint] | None = None
) -> FragmentOrder:
    return FragmentOrder(plan.n_timesteps, plan.n_envs, base_version, standings or {}, plan.restore_limit)


class FragmentLedger:
    """The position of each environment of fragments; a worker that replaces a lost one continues from there."""

    def __init__(self, plan: Fragments, base_version: int) -> None:
        self.n_envs = plan.n_envs
        self.base_version = base_version  # the agent version in which the environments started
        self._plan = plan
        self._options: dict[str, Any] | None = None
        self._standings = EpisodeCheckpoints()
        self._arrived: set[int] = set()  # environments with a fragment in this call
        self._earlier: dict[int, EpisodeSoFar] = {}  # by environment, for the first episode in this call, if continued
        self.ended = EndedEpisodes()  # in this call so far
        self._so_far: dict[int, EpisodeSoFar] = {}  # by environment, for the episode left open by its last fragment
        self._agent_is_replaced = False  # by this call, or since the last call for fragments
        self._is_to_be_replaced = False
        self._loaded: set[int] = set()  # environments that have not run since `of_state`

    @property
    def is_complete(self) -> bool:
        """Whether the last call is complete; otherwise its environments are at different timesteps."""
        return len(self._arrived) == self.n_envs

    def begin_call(self, plan: Fragments, options: dict[str, Any] | None, *, agent_is_replaced: bool) -> None:
        self._plan, self._options = plan, options
        self._arrived = set()
        self._earlier, self.ended = {}, EndedEpisodes()
        self._agent_is_replaced = agent_is_replaced or self._is_to_be_replaced
        self._is_to_be_replaced = False

    def replace_agent(self) -> None:
        self._is_to_be_replaced = True

    def state(self) -> dict[str, Any]:
        """Return the positions of all environments after a complete call, as numbers, strings and bytes.

        Actions, digests and lengths are readable; memories of agents and hooks, states of global generators, and
        options for resets are pickled.
        """
        memories: list[bytes] = []  # each once: the environments of a ticket share a memory
        standings = self._standings.known(range(self.n_envs))
        environments = [self._state_of(number, standings[number], memories) for number in range(self.n_envs)]
        return {
            "base_version": self.base_version,
            "environments": environments,
            "memories": memories,
            "agent_is_replaced": self._is_to_be_replaced,
        }

    def _state_of(self, number: int, standing: EpisodeCheckpoint, memories: list[bytes]) -> dict[str, Any]:
        state, earlier, place = standing.state, self._so_far.get(number, NOTHING_SO_FAR), None
        if state is not None and state.memory is not None:
            packed, position = state.memory
            if not any(packed is known for known in memories):
                memories.append(packed)
            place = [next(i for i, known in enumerate(memories) if known is packed), position]
        return {
            "episode": standing.episode,
            "length": 0 if state is None else state.length,
            "digests": [] if state is None else list(state.digests),
            "restorable": state is not None and state.restorable,
            "memory": place,
            "actions": None if standing.actions is None else plain_tree(standing.actions),
            "agent": standing.agent,
            "options": None if standing.options is None else dumps_by_value(standing.options),
            "earlier": [earlier.length, earlier.returned],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any], plan: Fragments) -> FragmentLedger:
        ledger = cls(plan, state["base_version"])
        ledger._is_to_be_replaced = state["agent_is_replaced"]
        standings: dict[int, EpisodeCheckpoint] = {}
        for number, it in enumerate(state["environments"]):
            of_episode = None
            if it["length"]:
                memory = None if it["memory"] is None else (state["memories"][it["memory"][0]], it["memory"][1])
                of_episode = EpisodeState(it["length"], memory, tuple(it["digests"]), it["restorable"])
                ledger._so_far[number] = EpisodeSoFar(*it["earlier"])
            actions = None if it["actions"] is None else tree_of(it["actions"])
            options = None if it["options"] is None else pickle.loads(it["options"])
            standings[number] = EpisodeCheckpoint(it["episode"], of_episode, actions, it["agent"], options)
        ledger._standings.put(standings)
        ledger._arrived, ledger._loaded = set(standings), set(standings)
        return ledger

    def group_of(self, trajectory: int) -> int:
        return trajectory % self.n_envs // self._plan.n_rows

    def order(self, worker: int) -> FragmentOrder:
        standings = self._standings.known(self._plan.envs_of(worker))
        if self._agent_is_replaced:
            for number in standings.keys() - self._arrived:
                standings[number] = standings[number]._replace(agent_is_replaced=True)
        return order_of(self._plan, self.base_version, standings)

    def record(self, delivery: Delivery) -> int:
        """Record the environments' positions after a fragment each.

        Returns the number of open episodes that could not be restored after a loss.
        """
        rollouts = delivery.rollouts
        self._standings.record(rollouts, self._options, self._plan.restore_limit)
        self._arrived.update(fragment.number for fragment in rollouts.fragments)
        self._add_up(rollouts)
        lost = [fragment for fragment in rollouts.fragments if fragment.lost]
        for fragment in lost:
            logger.warning(
                "the open episode in environment %d%s cannot be restored: %s; a new episode was started",
                fragment.number,
                _OF_STATE if fragment.number in self._loaded else "",
                fragment.lost,
            )
        self._loaded.difference_update(fragment.number for fragment in rollouts.fragments)
        return len(lost)

    def earlier_of(self, fragment: EnvFragment) -> EpisodeSoFar:
        """Return the part of a fragment's first episode from earlier calls; valid also before `record`."""
        if not fragment.continued:
            return NOTHING_SO_FAR
        return self._earlier.get(fragment.number) or self._so_far[fragment.number]

    def _add_up(self, rollouts: Rollouts) -> None:
        with np.errstate(invalid="ignore"):  # rewards may be infinite
            returns, lengths = sums(rollouts.rewards, rollouts.lengths), rollouts.lengths.copy()
        ended = rollouts.terminated | rollouts.truncated
        stop = 0
        for fragment in rollouts.fragments:
            number, first, stop = fragment.number, stop, stop + fragment.n_episodes
            before = self._earlier[number] = self.earlier_of(fragment)  # before all else: an interrupt may follow
            lengths[first] += before.length
            returns[first] += before.returned
            if fragment.state is None:
                self._so_far.pop(number, None)
            else:
                self._so_far[number] = EpisodeSoFar(int(lengths[stop - 1]), float(returns[stop - 1]))
        self.ended += EndedEpisodes.of(returns[ended], lengths[ended])
