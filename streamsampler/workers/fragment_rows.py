"""Hold the state of an environment of fragments from call to call, whichever worker runs it."""

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
from streamsampler.workers.resets import EpisodeCheckpoint
from streamsampler.workers.restoring import (
    ArraysOfAgent,
    ComparedArrays,
    Digests,
    NotRestoredError,
    apply_actions,
    compared_of,
    compared_of_agents,
)
from streamsampler.workers.several.policy_set import EnvAgents
from streamsampler.workers.several.recorder import JointRecorder
from streamsampler.workers.several.suspended_episode import SuspendedEpisode
from streamsampler.workers.trajectory_context import StoredContext


class FragmentRow:
    """Holds an environment of fragments and its suspended episode.

    Attributes:
        number: The environment's number among those of all workers.
        env: The environment.
        caller: Calls its hooks; None without hooks.
        kept: The hooks' state of the suspended episode.
        episode: The number of the suspended episode, or else of the next.
        length: The timesteps of the suspended episode; 0 without one.
        observation: The observation on which it resumes.
        info: The info of this observation.
        n_episodes: Number of episodes in this call's timesteps so far.
        first: The number of the first of these episodes.
        continued: Whether the first episode resumes from an earlier call.
        lost: Why an episode could not be restored, until reported; else empty.
        script: The suspended script, or None.
        table: The table of several agents, or None.
        suspended: The recorder's state of several agents.
        sent: The actions of several agents in this call's timesteps of it.
    """

    def __init__(
        self, number: int, env: AnyEnv, caller: HookCaller | None, n_envs: int, seeds: TrajectorySeeds
    ) -> None:
        self.number, self.env, self.caller = number, env, caller
        self._n_envs, self._seeds = n_envs, seeds
        self.kept: StoredContext | None = None
        self.episode = self.length = self.n_episodes = self.first = 0
        self.observation: Any = None
        self.info: Any = None
        self.continued, self.lost = False, ""
        self.script: Script | None = None
        self.table: EnvAgents | None = None
        self.suspended: SuspendedEpisode | None = None
        self.sent: list[Any] | None = None
        self._digests = Digests()
        self._fresh: tuple[Any, ...] = ()  # states of the global generators, freshly seeded for the current episode

    @property
    def index(self) -> int:
        """The trajectory index of the suspended episode, or of the next."""
        return self.number + self.episode * self._n_envs

    @property
    def seed(self) -> int:
        return self._seeds[self.index]

    def begin_fragment(self) -> None:
        self.n_episodes, self.first, self.continued = 0, self.episode, self.length > 0

    def end_part(self, observation: Any, *, ended: bool) -> None:
        """Count an episode's part; prepare the next episode if it ended."""
        self.n_episodes += 1
        self.observation = observation
        if ended:
            self._begin_next()

    def _begin_next(self) -> None:
        self.episode, self.length, self.observation, self._digests = self.episode + 1, 0, None, Digests()
        self.kept = self.script = self.suspended = self.sent = None

    def lose(self, why: str) -> None:
        """Discard the suspended episode and prepare the next."""
        self.lost = why
        self._begin_next()

    def restore(
        self, worker: Worker, standing: EpisodeCheckpoint, version: int, *, agent_is_known: bool
    ) -> Pendings[int]:
        """Restore the suspended episode of a lost worker, if any; return the timesteps run for it.

        Raises:
            AbandonedError: The version may no longer run.

        Yields:
            Results of the environment, which may be pending.
        """
        self.episode = standing.episode
        if standing.state is None:
            return 0
        if not agent_is_known or standing.actions is None:
            self.lose("the episode is longer than can be restored" if agent_is_known else UNKNOWN)
            return 0
        worker.set_trajectory(self.index)
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
        """Seed the global generators for an episode run again from its start."""
        self._fresh = set_states(seed, None)

    def _recorder_of_agents(self) -> JointRecorder | None:
        if self.table is None:
            return None
        several = self.env.unwrapped
        assert isinstance(several, MultiAgentEnv)
        return JointRecorder(several, self.table)

    def _begin_agents(self, seed: int) -> None:
        """Start the current episode for several agents."""
        assert self.table is not None
        self.table.begin(self.index, derived_seed(seed, SeedUse.AGENT))

    def summary(
        self, compared: ComparedArrays, position: int, ends: list[int], agents: Iterable[ArraysOfAgent], **of_state: Any
    ) -> EnvFragment:
        """Return the summary of this environment's fragment; `position` is its last episode's among all recorded."""
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


def fragment_summaries(
    rows: Sequence[FragmentRow], rollouts: Rollouts, restorable: Sequence[bool], memories: Sequence[Any] = ()
) -> list[EnvFragment]:
    """Return the summaries of environments' fragments, recorded in sequence."""
    compared, ends = compared_of(rollouts), [0, *accumulate(rollouts.lengths.tolist())]
    agents = compared_of_agents(rollouts)
    found, n_episodes = [], 0
    for row, can, memory in zip(rows, restorable, memories or repeat(None), strict=False):
        n_episodes += row.n_episodes
        last = n_episodes - 1
        found.append(row.summary(compared, last, ends, agents.get(last, ()), memory=memory, restorable=can))
    return found
