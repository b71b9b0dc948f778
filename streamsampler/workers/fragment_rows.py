"""What is kept of an environment of fragments from call to call, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any

from streamsampler.core.awaiting import Pendings
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, derived_seed
from streamsampler.data.recorder import EnvFragment, EpisodeState, Rollouts
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import AnyEnv
from streamsampler.rollouts.script import Script
from streamsampler.workers.base import Worker
from streamsampler.workers.finishing import UNKNOWN
from streamsampler.workers.generators import set_states
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.resets import Standing
from streamsampler.workers.restoring import (
    Compared,
    Digests,
    NotRestoredError,
    OfAgent,
    apply_actions,
    compared_of,
    compared_of_agents,
)
from streamsampler.workers.several.parts import Suspended
from streamsampler.workers.several.players import Table
from streamsampler.workers.several.recorder import JointRecorder
from streamsampler.workers.trajectory_context import Kept


class FragmentRow:
    """An environment of fragments, and the episode that goes on in it.

    Args:
        number: The environment's number, among those of all workers.
        env: The environment.
        n_envs: How many environments all workers have together.
        seeds: The seeds of trajectories, by index.
        caller: What calls its hooks; None if there are none.

    Attributes:
        number: The same.
        env: The environment.
        caller: The same.
        kept: What hooks keep of the episode that goes on; None without hooks.
        episode: The number of the episode that goes on, or comes next.
        length: The timesteps of the episode that goes on; 0 if none does.
        observation: What it goes on from.
        info: What came with that.
        n_episodes: How many episodes this call's timesteps are of, so far.
        first: The number of the first one of these.
        continued: Whether that one goes on from an earlier call.
        lost: Why the episode that went on could not be restored after a loss, until it is told; empty if none was lost.
        script: The script of the episode that goes on, which is cut; None if none does.
        table: Where several agents sit; None where there is one.
        suspended: What is kept of the episode that goes on, of several agents.
        sent: What these did in this call's timesteps of it, one dict for each.
    """

    def __init__(
        self, number: int, env: AnyEnv, caller: HookCaller | None, n_envs: int, seeds: TrajectorySeeds
    ) -> None:
        self.number, self.env, self.caller = number, env, caller
        self._n_envs, self._seeds = n_envs, seeds
        self.kept: Kept | None = None
        self.episode = self.length = self.n_episodes = self.first = 0
        self.observation: Any = None
        self.info: Any = None
        self.continued, self.lost = False, ""
        self.script: Script | None = None
        self.table: Table | None = None
        self.suspended: Suspended | None = None
        self.sent: list[Any] | None = None
        self._digests = Digests()
        self._fresh: tuple[Any, ...] = ()  # the states of the global generators, seeded for the episode that goes on

    @property
    def index(self) -> int:
        """The trajectory index of the episode that goes on, or comes next."""
        return self.number + self.episode * self._n_envs

    @property
    def seed(self) -> int:
        """The seed of that trajectory."""
        return self._seeds[self.index]

    def begin_fragment(self) -> None:
        """Begin a call's timesteps."""
        self.n_episodes, self.first, self.continued = 0, self.episode, self.length > 0

    def end_part(self, observation: Any, *, ended: bool) -> None:
        """Take in the end of an episode, or of the fragment, after its length."""
        self.n_episodes += 1
        self.observation = observation
        if ended:
            self._begin_next()

    def _begin_next(self) -> None:
        self.episode, self.length, self.observation, self._digests = self.episode + 1, 0, None, Digests()
        self.kept = self.script = self.suspended = self.sent = None

    def lose(self, why: str) -> None:
        """Let a new episode begin instead of the one that went on."""
        self.lost = why
        self._begin_next()

    def restore(self, worker: Worker, standing: Standing, version: int, *, agent_is_known: bool) -> Pendings[int]:
        """Go on where another worker was lost, if an episode went on there; otherwise let a new one begin.

        Args:
            worker: The worker.
            standing: Where the environment stood.
            version: The agent version in hand.
            agent_is_known: Whether it is known what the agent remembered.

        Returns:
            How many timesteps the environment was run for it.

        Raises:
            AbandonedError: The version may not run any more.

        Yields:
            What the environment returned, which may have to be awaited.
        """
        self.episode = standing.episode
        if standing.state is None:
            return 0
        if not agent_is_known or standing.actions is None:
            self.lose("the episode is longer than can be restored" if agent_is_known else UNKNOWN)
            return 0
        worker.take_in_hand(self.index)
        seed = self.seed
        self._seed_generators(seed)
        limit = worker.context.max_episode_length
        recorder, begin = self._recorder_of_agents(), self._begin_agents
        try:
            restored = yield from apply_actions(
                self.env, seed, standing, worker.row, worker.spaces, version, limit, recorder,
                None if recorder is None else begin,
            )  # fmt: skip
        except NotRestoredError as error:
            self.lose(str(error))
            return error.ran
        self.script = restored.script
        self.observation, self.info = restored.end.observation, restored.end.info
        self._digests, self.length = restored.digests, standing.state.length
        self.suspended = None if recorder is None else recorder.suspended
        return restored.n_timesteps

    def _seed_generators(self, seed: int) -> None:
        """Seed the global generators for an episode that is run anew."""
        self._fresh = set_states(seed, None)

    def _recorder_of_agents(self) -> JointRecorder | None:
        """Return what records an episode that is restored, where there are several agents."""
        if self.table is None:
            return None
        several = self.env.unwrapped
        assert isinstance(several, MultiAgentEnv)
        return JointRecorder(several, self.table)

    def _begin_agents(self, seed: int) -> None:
        """Let several agents begin the episode that goes on, or comes next."""
        assert self.table is not None
        self.table.begin(self.index, derived_seed(seed, SeedUse.AGENT))

    def told(
        self, compared: Compared, position: int, ends: list[int], agents: Iterable[OfAgent], **of_state: Any
    ) -> EnvFragment:
        """Return what the fragment consists of.

        Args:
            compared: All that was recorded; see `restoring.compared_of`.
            position: The position of this environment's last episode in it.
            ends: Where each episode in it ends, after a 0.
            agents: What each of several agents did in that episode.
            of_state: What else `EpisodeState` has.
        """
        state = None
        if self.length:
            self._digests.add(compared, ends[position], ends[position + 1], agents)
            digests = self._digests.values(compared, position)
            state = EpisodeState(self.length, digests=digests, actions=self.sent, **of_state)
        lost, self.lost = self.lost, ""
        return EnvFragment(
            self.number, self.n_episodes, self.first, continued=self.continued, state=state, lost=lost,
            group=self.number,
        )  # fmt: skip


def told(
    rows: Sequence[FragmentRow], rollouts: Rollouts, restorable: Sequence[bool], memories: Sequence[Any] = ()
) -> list[EnvFragment]:
    """Return what the fragments of environments consist of, which were recorded one after the other.

    Args:
        rows: The environments.
        rollouts: All that was recorded.
        restorable: Of each what `EpisodeState` says of it.
        memories: Of each the same; nothing for None.
    """
    compared, ends = compared_of(rollouts), [0, *accumulate(rollouts.lengths.tolist())]
    agents = compared_of_agents(rollouts)
    found, n_episodes = [], 0
    for row, can, memory in zip(rows, restorable, memories or repeat(None), strict=False):
        n_episodes += row.n_episodes
        last = n_episodes - 1
        found.append(row.told(compared, last, ends, agents.get(last, ()), memory=memory, restorable=can))
    return found
