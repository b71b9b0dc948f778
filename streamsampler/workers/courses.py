"""An environment of fragments, and the episode that goes on in it from call to call.

In a worker's loop a `Course` takes the environment's place. Where an episode goes on, `Course.reset` returns the
observation that the last call ended with. Everything that an episode draws from has its own state in each course: the
agent is a copy for each, and the global generators are set to where the episode left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from streamsampler.agents.base import reset_agent_function
from streamsampler.agents.updates import updated_agent
from streamsampler.data.fragments import EnvFragment, EpisodeState
from streamsampler.environments.updates import AnyEnv
from streamsampler.protocol.messages import Phase
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.agent_memory import UNKNOWN, give_memory, is_restorable, memory_of
from streamsampler.workers.base import Worker
from streamsampler.workers.exact_actions import rounding_for
from streamsampler.workers.explain import begin_of
from streamsampler.workers.finishing import with_filters
from streamsampler.workers.generators import drawn_states, fresh_states, put_states, set_states
from streamsampler.workers.resets import Resets, Standing
from streamsampler.workers.restoring import Compared, Digests, NotRestoredError, apply_actions, no_failure
from streamsampler.workers.tasks import reset_one

__all__ = ["Course"]


class Course:
    """One environment of fragments, with a copy of the agent, and the episode that goes on in it.

    Args:
        number: The environment's number, among those of all workers.
        env: The environment.
        n_envs: How many environments all workers have together.
        seeds: The seeds of trajectories, by index; see `index_of`.
        most: How many timesteps an episode may have; None for any number.

    Attributes:
        agent: The copy of the agent.
        reset_agent: Resets it, where an episode begins; None if it has no `reset`.
        step: The environment's.
        rounding: Gives actions the floats of their space.
        episode: The number of the episode that goes on, or comes next.
        n_episodes: How many episodes this call's timesteps are of, so far.
    """

    def __init__(self, number: int, env: AnyEnv, n_envs: int, seeds: TrajectorySeeds, most: int | None) -> None:
        self.number = number
        self.env = env
        self.step = env.step
        self.rounding = rounding_for(env.action_space)
        self.agent: Any = None
        self.reset_agent: Callable[[int], None] | None = None
        self.episode = 0
        self.n_episodes = self._first = 0  # of this call: how many, and the number of the first one
        self._continued, self._lost = False, ""  # that one
        self._n_envs, self._seeds, self._most = n_envs, seeds, most
        self._payloads: tuple[Any, ...] = (None, None, None)  # of the agent, its parameters and filters
        self._agent_function: Callable[[int], None] | None = None
        self._agent_is_new = self._restorable = False
        self._length = 0  # timesteps of the episode that goes on; 0 if none does
        self._observation: Any = None  # what it goes on from
        self._generators: Any = None
        self._fresh: tuple[int, Any] = -1, None  # by a seed: what seeding makes of them
        self._digests = Digests()
        self._remaining = 0
        self._resets = Resets()
        self._seed = 0

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet
            raise AttributeError(name)
        return getattr(self.env, name)

    # ------------------------------------------------------------------ agents

    def update_agent(self, worker: Worker, load: Callable[[str], Any]) -> None:
        """Make the agent, or hand it the parameters and filters, that are in force.

        An agent that replaces another one in the middle of an episode is reset like at its start.
        """
        get, old, was = worker.in_force.get, self.agent, self._payloads
        in_force = get("agent"), get("parameters"), get("filters")
        if in_force[0] is was[0] and in_force[1] is was[1] and in_force[2] is was[2]:
            return
        if in_force[0] is not self._payloads[0]:
            worker.phase = Phase.AGENT_CONSTRUCTION
            self.agent = updated_agent(None, worker.load(in_force[0]), worker.spaces)
            self._agent_is_new, self._payloads = True, (in_force[0], None, None)
        if in_force[1] is not self._payloads[1]:
            worker.phase = Phase.AGENT_UPDATE
            self.agent = updated_agent(self.agent, load("parameters"), worker.spaces)
        if in_force[2] is not self._payloads[2]:
            self.agent = with_filters(self.agent, load("filters"), worker.spaces[0])
        self._payloads = in_force
        if self.agent is old:
            return
        self._agent_function, self._restorable = reset_agent_function(self.agent), is_restorable(self.agent)
        self.reset_agent = None if self._agent_function is None else self._reset_agent

    def _reset_agent(self, seed: int) -> None:
        if self._agent_is_new or not self._length:
            assert self._agent_function is not None
            self._agent_function(seed)
            self._agent_is_new = False

    # ------------------------------------------------------------------ what the loop asks for

    def index_of(self, episode: int) -> int:
        """Return the trajectory index of an episode."""
        return self.number + episode * self._n_envs

    def indices(self) -> Iterator[int]:
        """Yield the trajectory index of each episode, until there are as many timesteps as are wanted."""
        while self._remaining:
            index = self.index_of(self.episode)
            if not self._length:
                self._seed = self._seeds[index]
            yield index

    def recorded(self) -> range:
        """Return the trajectory indices of the episodes in this call's fragment."""
        return range(self.index_of(self._first), self.index_of(self._first + self.n_episodes), self._n_envs)

    def seeds(self) -> Iterator[int]:
        """Yield the seeds of these episodes."""
        while True:
            yield self._seed

    def lengths(self) -> Iterator[int]:
        """Yield how many timesteps each may have in this fragment."""
        while True:
            yield self._remaining if self._most is None else min(self._remaining, self._most - self._length)

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, or return what the episode that goes on was left with."""
        if not self._length:
            return begin_of(reset_one(self.env, self._resets, 0, seed))
        if self._generators is not None:
            put_states(self._generators)  # the loop has seeded the others
        return self._observation, {}

    def end_episode(self, observation: Any, length: int, terminated: bool, truncated: bool, *, limited: bool) -> bool:
        """Take in the end of an episode, or of the fragment; return whether the episode is truncated."""
        self._length += length
        self._remaining -= length
        truncated = truncated or (limited and self._length == self._most)
        self.n_episodes += 1
        if terminated or truncated:
            self.episode, self._length, self._observation, self._generators = self.episode + 1, 0, None, None
            self._digests = Digests()
        else:
            self._observation = observation
        return truncated

    # ------------------------------------------------------------------ fragments

    def begin(self, n_timesteps: int, resets: Resets, lost: str = "") -> None:
        """Begin a fragment.

        Args:
            n_timesteps: How many timesteps it has.
            resets: The options that episodes are reset with which begin in it.
            lost: Why the episode that went on before could not be restored; empty if none was lost.
        """
        self._remaining, self._resets = n_timesteps, resets
        self.n_episodes, self._first, self._continued, self._lost = 0, self.episode, self._length > 0, lost

    def suspend(self) -> None:
        """Note where the episode that goes on stands: the next one to run seeds the global generators."""
        if self._length:
            if self._fresh[0] != self._seed:
                self._fresh = self._seed, fresh_states(self._seed)
            self._generators = drawn_states(self._fresh[1])

    def memory(self) -> Any:
        """Return what the episode that goes on remembers besides its environment; None for nothing."""
        if not self._length:
            return None
        memory = memory_of(self.agent) if self._restorable else None
        return None if memory is None and self._generators is None else (memory, self._generators)

    def close_fragment(
        self, compared: Compared, position: int, start: int, stop: int, memory: tuple[bytes, int] | None
    ) -> EnvFragment:
        """Return what the fragment consists of.

        Args:
            compared: All that was recorded; see `restoring.compared_of`.
            position: The position of this environment's last episode in it.
            start: The first timestep of that episode in it.
            stop: The one after the last.
            memory: See `EpisodeState`.
        """
        state = None
        if self._length:
            self._digests.add(compared, start, stop)
            digests = self._digests.values(compared, position)
            state = EpisodeState(self._length, memory, digests, self._restorable)
        number = self.number
        return EnvFragment(number, self.n_episodes, self._first, self._continued, state, self._lost, number)

    def take_over(self, worker: Worker, standing: Standing, version: int) -> tuple[str, int]:
        """Go on where another worker was lost.

        Args:
            worker: The worker.
            standing: Where the environment stood.
            version: The agent version in hand.

        Returns:
            Why that cannot be; empty if it can. And how many timesteps the environment was run for it.

        Raises:
            AbandonedError: The version may not run any more.
        """
        self.episode = standing.episode
        state = standing.state
        if state is None:
            return "", 0
        ran, lost = 0, UNKNOWN
        if state.restorable and standing.actions is None:
            lost = "the episode is longer than can be restored"
        elif state.restorable:
            worker.take_in_hand(index := self.index_of(self.episode))
            seed = self._seeds[index]
            try:
                set_states(seed, None)
                observation, digests, ran = apply_actions(self.env, seed, standing, worker.row, worker.spaces, version)
                with no_failure("its agent"):
                    generators = self._restore_agent(seed, standing)
            except NotRestoredError as error:
                lost, ran = str(error), ran + error.ran
            else:
                self._length, self._seed, self._generators = state.length, seed, generators
                self._observation, self._digests = observation, digests
                return "", ran
        self.episode += 1
        return lost, ran

    def _restore_agent(self, seed: int, standing: Standing) -> Any:
        """Give the agent its memory, unless it was replaced; return the states of the global generators."""
        assert standing.state is not None
        packed = standing.state.memory
        memory, generators = (None, None) if packed is None else _unpacked(*packed)
        if not standing.agent_is_replaced:
            if self._agent_function is not None:
                self._agent_function(derived_seed(seed, Stream.AGENT))
            give_memory(self.agent, memory)
            self._agent_is_new = False
        return generators


def _unpacked(packed: bytes, position: int) -> Any:
    return cloudpickle.loads(packed)[position]
