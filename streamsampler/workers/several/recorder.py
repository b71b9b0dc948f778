"""Record trajectories of several agents: the joint trajectory, and another for each agent, by policy.

A step answers the acting agents: in a `ParallelEnv` all of them, in an `AECEnv` the next agent in turn. A timestep
begins with the agent's observation, and is complete with its reward. Each agent has its own recorder; a ticket's end
sorts their trajectories by policy, joint trajectory and agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError, ObservationError, UsageError
from streamsampler.data import trees
from streamsampler.data.agent_rows import OF_AGENTS, AgentTicketRollouts, put_together
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.data.spaces import flag_of
from streamsampler.environments.multi_agent import MultiAgentEnv, returned
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.several.agent_recorder import (
    AgentRecorder,
    dict_of,
    mapping_of,
    named,
    no_answer,
    no_observation,
    reward_of,
    sum_in_order,
)
from streamsampler.workers.several.agent_slots import AgentSlot, OwnInfo
from streamsampler.workers.several.policy_set import EnvAgents
from streamsampler.workers.several.suspended_episode import EarlierParts, SuspendedEpisode, UnansweredTimestep


class _NoReward:
    """The class of no reward: with several agents a step's rewards are a dict, and a float is an error."""


_NOTHING = EarlierParts()
NOBODY = "no agent acted in the whole trajectory, so there is no timestep to record"
COMMON = "__common__"
"""The key for infos about no agent, or about all."""


class JointRecorder(RolloutRecorder):
    """Records several agents; like `RolloutRecorder`, with observations, actions and so on as dicts by agent.

    The joint trajectory has the sums of rewards, the flags, and infos with keys other than agents.

    Attributes:
        env: The environment.
        table: The table of its agents, which learns who acts.
        ending: The agents with an end in the last step, and their flags, until their last observations come.
        n_before: The steps of the current episode in earlier parts.
        suspended: The state of the unfinished episode after its last part.
        sent: The actions of the current part, a dict for each step; None if they are not needed.
    """

    reward_class = _NoReward

    def __init__(self, env: MultiAgentEnv, table: EnvAgents, allocate: Allocate = np.empty) -> None:
        nothing = gym_spaces.Dict({})
        super().__init__(nothing, nothing)
        self.env, self.table, self._allocate = env, table, allocate
        self._known = env.numbers.keys()
        self.suspended: SuspendedEpisode | None = None
        self.sent: list[dict[str, Any]] | None = None
        self._resumed: SuspendedEpisode | None = None
        self._agents: dict[str, AgentRecorder] = {}
        self._remarks: dict[str, str] = {}
        self.record_observation = self._record_observations
        self.record_action = self._record_actions
        self.record_reward = self._record_rewards
        self._record_joint_env_info = self.record_env_info
        self.record_env_info = self._record_env_infos
        self.record_agent_info = self._record_agent_infos
        self._forget_trajectory()

    def use_env_agents(self, env: MultiAgentEnv, table: EnvAgents) -> None:
        """Continue with another environment and its table."""
        self.env, self.table = env, table
        self._known = env.numbers.keys()
        self._forget_trajectory()

    def go_on(self, suspended: SuspendedEpisode) -> None:
        """Make the next trajectory another part of an episode."""
        self._resumed = suspended

    @property
    def suits_fast_loop(self) -> bool:
        return not self.env.takes_turns and self.table.one_by_one

    def _forget_trajectory(self) -> None:
        self._slots: dict[str, AgentSlot] = {}  # the agents with an action so far
        self._waiting: list[AgentSlot] = []  # of these, the agents without an answer yet
        self._ended: dict[str, int] = {}  # with their last timesteps
        self.ending: list[tuple[AgentSlot, bool, bool]] = []
        self._last_ends = False, False
        self._early: dict[str, float] = {}  # rewards before the first action
        self._about: dict[str, dict[str, Any]] = {}
        self._infos: Mapping[str, Any] = {}
        self._reset_infos: Mapping[str, Any] = {}
        self._rewards_of_step: Mapping[str, Any] = {}
        # Of an episode with several parts:
        self.n_before = 0
        self._before: dict[str, EarlierParts] = {}
        self._first_infos: dict[str, Any] = {}  # of all agents so far
        self._chosen_infos: dict[str, Any] = {}

    def begin(self, reset_info: dict[str, Any]) -> int:
        """Begin a trajectory, or another part of an episode."""
        if self.sent is not None:
            self.sent = []
        if self._resumed is not None:
            first = super().begin({})
            self._resume(self._resumed)
            return first
        joint = self._joint_infos(mapping_of(reset_info, "infos"))
        self._refuse_own_name(joint)
        if change := self.env.change_of_possible_agents():
            self._remarks.setdefault("possible agents", change)
        first = super().begin(joint)
        self._forget_trajectory()
        self._reset_infos = self._infos = reset_info
        return first

    def _resume(self, it: SuspendedEpisode) -> None:
        self._resumed = None
        self._forget_trajectory()
        self.n_before, self._ended, self._last_ends, self._early = it.n_timesteps, it.ended, it.last_ends, it.early
        self._infos, self._reset_infos, self._first_infos = it.infos, it.reset_infos, it.first_infos
        self._before = it.before
        for each in it.unanswered:
            self._begin_agent(each.agent_id)
            slot = self._slots[each.agent_id]
            slot.early_info, slot.info = None, OwnInfo(each.info or {})
            slot.record_observation(each.observation)
            slot.record_action(each.action)
            own = slot.recorder
            own.env_timesteps.append(each.env_timestep)
            if each.info:
                own.record_agent_info(len(own.float_rewards), each.info)
            self._chosen_infos[each.agent_id] = each.info
            self._waiting.append(slot)

    def _no_action_error(self) -> UsageError:
        change = self.env.change_of_possible_agents()
        return UsageError(f"{NOBODY}. {change}" if change else NOBODY)

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        self._refuse_own_name(metrics)
        super().record_metrics(metrics)

    def _refuse_own_name(self, infos: Mapping[str, Any]) -> None:
        if OF_AGENTS in infos:
            raise DataError(
                f"an info or a metric is called {OF_AGENTS!r}, a name reserved for the infos of agents: rename it"
            )

    def _record_observations(self, observations: Mapping[str, Any]) -> None:
        self.begin_step(observations)
        self.table.shown = observations
        try:
            for slot in self.table.acting:
                slot.record_observation(observations[slot.agent_id])
        except KeyError:
            raise no_observation(slot.agent_id) from None
        except ObservationError as error:
            raise named(error, slot.agent_id) from None

    def begin_step(self, observations: Mapping[str, Any]) -> None:
        """End the trajectories of agents with an end in the last step, and pass the acting agents to the table.

        The acting agents are those in turn, without agents about to join.

        Raises:
            DataError: The last step lacks the answer to an acting agent, or a last observation is missing.
        """
        if observations.__class__ is not dict:
            mapping_of(observations, "observations")
        if self._waiting:
            self._check_answered()
        if self.ending:
            self._end_agents(observations)
        turn = self._turn()
        if turn is self.table.turn and not self.env.takes_turns:
            return
        self._remark_listed(turn)
        began = self._timestep >= 0
        if not (turn or began) and self.env.is_over(self._ended):
            raise self._no_action_error()
        known = self._slots.keys() | self._before.keys() | observations.keys()
        there = [agent for agent in turn if agent in known or not began]
        for agent in there:
            if agent not in self._slots:
                self._begin_agent(agent)
        # While agents are about to join, each step looks for them again.
        self.table.set_acting([self._slots[agent] for agent in there], turn if len(there) == len(turn) else None)

    def _remark_listed(self, turn: list[str]) -> None:
        if not turn or self.env.takes_turns:  # ended agents have a last turn
            return
        if still := [agent for agent in self._ended if self.env.lists(agent)]:
            self._remarks.setdefault(
                "still listed",
                f"agent {still[0]!r} ended at timestep {self._ended[still[0]]} of a trajectory, and is still among "
                "env.agents afterwards: it gets no more actions. Remove ended agents from env.agents; a new life "
                "needs a new id, or a new trajectory",
            )

    def _turn(self) -> list[str]:
        try:
            return self.env.turn(self._ended)
        except DataError as error:
            self._blame_step(error)
            raise

    @property
    def _timestep(self) -> int:
        """The timestep of the last recorded rewards."""
        return self.n_before + len(self.float_rewards) - self.n_timesteps - 1

    def _blame_step(self, error: DataError) -> None:
        """Locate an error at the last timestep, if any."""
        error.row = max(len(self.float_rewards) - 1, self.n_timesteps)

    def _begin_agent(self, agent: str) -> None:
        slot = self._slots[agent] = self.table.slot_of(agent)
        own = self._agents.get(agent)
        if own is None:
            spaces = self.env.observation_space[agent], self.env.action_space[agent]
            own = self._agents[agent] = AgentRecorder(*spaces)
        slot.record_in(own)
        own.played.append((self.n_trajectories, slot.policy.name, slot.number))
        before = self._before.get(agent)
        own.before.append(before or _NOTHING)
        if before is not None:
            slot.last_info = before.last_info
            own.begin({})
            self._about[agent] = {}
            return
        if agent not in self._first_infos:
            info = self._infos.get(agent) if agent in self._infos else self._reset_infos.get(agent)
            self._first_infos[agent] = info or {}
        info = slot.early_info = self._first_infos[agent]
        own.begin(dict_of(info, agent))
        self._about[agent] = {"reset": trees.snapshot(info)} if info else {}

    def _record_actions(self, actions: Mapping[str, Any]) -> None:
        acting = self.table.acting
        if len(actions) != len(acting):
            raise ActionError(
                f"got actions of agents {list(actions)}, but agents {[slot.agent_id for slot in acting]} act"
            )
        for slot in acting:
            try:
                slot.record_action(actions[slot.agent_id])
            except ActionError as error:
                raise named(error, slot.agent_id) from None
        if self.sent is not None:
            self.sent.append({agent: own_copy(action) for agent, action in actions.items()})
        if self.env.takes_turns:
            timestep = self._timestep + 1
            for slot in acting:
                slot.recorder.env_timesteps.append(timestep)
                self._waiting.append(slot)
        else:
            self._waiting = acting

    def _record_rewards(self, rewards: Mapping[str, Any]) -> None:
        self._rewards_of_step = mapping_of(rewards, "rewards")
        self._infos = {}  # empty infos are not recorded
        self.float_rewards.append(0.0)

    def _record_env_infos(self, _step: int, infos: Mapping[str, Any]) -> None:
        self._infos = mapping_of(infos, "infos")

    def _record_agent_infos(self, _step: int, infos: Mapping[str, Any]) -> None:
        for slot in self.table.acting:
            info = infos[slot.agent_id]
            if self.env.takes_turns:
                self._chosen_infos[slot.agent_id] = info
            if info.__class__ is not dict or info:
                own = slot.recorder
                own.record_agent_info(len(own.float_rewards), info)

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Record a step's results by agent; return the flags of the joint trajectory.

        Raises:
            DataError: The step lacks the answer to an acting agent, or a flag is neither true nor false.
        """
        try:
            return self._record_answers(mapping_of(terminated, "terminated"), mapping_of(truncated, "truncated"))
        except DataError as error:
            error.row = len(self.float_rewards) - 1
            raise

    def _record_answers(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        rewards, infos, total = self._rewards_of_step, self._infos, 0.0
        if self.env.takes_turns:
            answered = [slot for slot in self._waiting if slot.agent_id in terminated]
            self._waiting = [slot for slot in self._waiting if slot not in answered]
        else:
            answered, self._waiting = self._waiting, []
        try:
            for slot in answered:
                agent = slot.agent_id
                reward = rewards[agent]
                if reward.__class__ is not float:
                    reward = reward_of(reward, agent)
                total += reward
                slot.keep_reward(reward)
                slot.last_info = info = infos.get(agent)
                if info:
                    self.record_info(slot, info)
                if terminated[agent] is not False or truncated[agent] is not False:
                    self.record_agent_end(agent, terminated[agent], truncated[agent])
        except KeyError as error:
            raise no_answer(error.args[0]) from None
        self.float_rewards[-1] = total
        return self.record_rest(rewards, terminated, truncated, infos)

    def record_info(self, slot: AgentSlot, info: Any) -> None:
        own = slot.recorder
        own.record_env_info(len(own.float_rewards) - 1, dict_of(info, slot.agent_id))

    def record_rest(
        self, rewards: Mapping[str, Any], terminated: Mapping[str, Any], truncated: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> tuple[bool, bool]:  # fmt: skip
        """Record a step's results of agents without an action, and infos with other keys; return the joint flags.

        Raises:
            DataError: No agent is left, and none has ended; or an ended agent continues.
        """
        try:
            return self._record_others(rewards, terminated, truncated, infos)
        except DataError as error:
            self._blame_step(error)
            raise

    def _record_others(
        self, rewards: Mapping[str, Any], terminated: Mapping[str, Any], truncated: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> tuple[bool, bool]:  # fmt: skip
        self._infos = infos
        for slot, _, _ in self.ending:
            self._ended[slot.agent_id] = self._timestep
        self.env.meet_listed()
        for agent in terminated:
            if agent in self._ended:
                if not (terminated[agent] or truncated.get(agent)) and self.env.lists(agent):
                    raise returned(agent, self._ended)
            elif agent in self._known and agent not in self._slots:
                self._record_early(agent, rewards.get(agent, 0.0), terminated[agent], truncated.get(agent, False))
        if not infos.keys() <= self._known:
            self._record_joint_env_info(len(self.float_rewards) - 1, self._joint_infos(infos))
        if (self.ending or self.env.takes_turns or not self.table.acting) and self.env.is_over(self._ended):
            return self._last_flags()
        return False, False

    def _record_early(self, agent: str, reward: Any, terminated: Any, truncated: Any) -> None:
        """Record a step's results of an agent before its first action."""
        number = reward_of(reward, agent)
        self.float_rewards[-1] += number
        self._early[agent] = self._early.get(agent, 0.0) + number
        self.record_agent_end(agent, terminated, truncated)

    def _last_flags(self) -> tuple[bool, bool]:
        if not self._first_infos:
            raise self._no_action_error()
        if self.env.takes_turns:
            self._record_missing_ends()
        if self._last_ends == (False, False):
            raise DataError("no agent is left, and none was terminated or truncated")
        return self._last_ends

    def _joint_infos(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        joint = {key: info for key, info in infos.items() if key not in self._known}
        if strange := [key for key in joint if key != COMMON]:
            self._remarks.setdefault(
                "of no agent",
                f"an info is under {strange[0]!r}, which is no agent: it is in batch.episodes.env_infos if a step "
                f"returned it, and in batch.episodes.infos if a reset did. Under {COMMON!r} it is there without this "
                "warning",
            )
        return joint

    def _record_missing_ends(self) -> None:
        for agent in [it for it in self._slots if it not in self._ended]:
            _, _, terminated, truncated, _ = self.env.outstanding(agent)
            ends = flag_of(f"terminated of {agent!r}", terminated), flag_of(f"truncated of {agent!r}", truncated)
            if not any(ends):
                raise DataError(f"the agent {agent!r} is gone, and was neither terminated nor truncated")
            self._last_ends = ends

    def _check_answered(self) -> None:
        if not self.env.takes_turns:
            raise DataError(
                "a step gave no reward, terminated or truncated of agents "
                f"{[slot.agent_id for slot in self._waiting]}, which acted: step must return dicts by agent"
            )

    def record_agent_end(self, agent: str, terminated: Any, truncated: Any) -> bool:
        """Record an agent's flags; return whether it has ended."""
        ends = flag_of(f"terminated of {agent!r}", terminated), flag_of(f"truncated of {agent!r}", truncated)
        if not any(ends):
            return False
        self._last_ends = ends if not self.ending else (self._last_ends[0] or ends[0], self._last_ends[1] or ends[1])
        self._ended[agent] = self._timestep
        if agent in self._slots:
            self.ending.append((self._slots[agent], *ends))
        return True

    def _end_agents(self, observations: Mapping[str, Any]) -> None:
        ending, self.ending = self.ending, []
        for slot, terminated, truncated in ending:
            if slot.agent_id not in observations:
                raise ObservationError(f"agent {slot.agent_id!r}, which has ended, has no last observation")
            self._end_agent(slot, observations[slot.agent_id], terminated, truncated)

    def _end_agent(
        self, slot: AgentSlot, observation: Any, terminated: bool, truncated: bool, value: float | None = None
    ) -> None:
        agent, own = slot.agent_id, slot.recorder
        about = self._about[agent]
        early = 0.0 if agent in self._before else self._early.get(agent, 0.0)
        about["return"] = sum(own.float_rewards[own.n_timesteps :], early)
        if info := slot.last_info:
            about["last"] = trees.snapshot(info)
        if not terminated and value is None:
            value = slot.value_of(observation)
        if not terminated and value is not None:
            own.record_last_value(value)
        if not self.env.takes_turns:
            n = len(own.float_rewards) - own.n_timesteps
            stop = self._timestep + 1
            own.env_timesteps.extend(range(stop - n, stop))
        try:
            own.end(observation, terminated, truncated)
        except ObservationError as error:
            raise named(error, agent) from None

    def end(self, last_observation: Any, terminated: bool, truncated: bool, *, limited: bool = False) -> None:
        """End the current trajectory, and truncate agents without an end."""
        observations = mapping_of(last_observation, "observations")
        if not (terminated or truncated or limited):
            self._end_part(observations)
            super().end({}, terminated, truncated)
            return
        if self._waiting:
            self._check_answered()
        if not self._first_infos:
            raise self._no_action_error()
        if self.ending:
            self._end_agents(observations)
        for agent, slot in self._slots.items():
            if agent not in self._ended:
                self._truncate_agent(slot, observations)
        for own in self._agents.values():
            own.kept = own.n_trajectories
        self._episode_infos.record(self.n_trajectories, {OF_AGENTS: self._about})
        super().end({}, terminated, truncated, limited=limited)

    def discard_last_observation(self) -> None:
        """Forget the observations without an action: the next part begins with them."""
        for slot in self.table.acting:
            slot.recorder.discard_last_observation()

    def _end_part(self, observations: Mapping[str, Any]) -> None:
        before, unanswered = dict(self._before), []
        for agent, slot in list(self._slots.items()):
            if agent in self._ended:
                continue
            value: float | None = None
            if slot in self._waiting:
                unanswered.append(self._discarded_timestep(slot))
                observation, value = unanswered[-1].observation, slot.recorded_value()
            elif agent in observations:
                observation = observations[agent]
            else:
                raise no_observation(agent)
            own = slot.recorder
            if rewards := own.float_rewards[own.n_timesteps :]:
                had = self._before.get(agent, _NOTHING)
                before[agent] = EarlierParts(
                    had.length + len(rewards), sum_in_order(had.returned, rewards), slot.last_info
                )
                self._end_agent(slot, observation, terminated=False, truncated=False, value=value)
            else:
                own.discard_start()
                del self._about[agent]
        for own in self._agents.values():
            own.kept = own.n_trajectories
        if self._about:
            self._episode_infos.record(self.n_trajectories, {OF_AGENTS: self._about})
        self.suspended = SuspendedEpisode(
            self._timestep + 1, self._ended, self._last_ends, self._early, self._infos, self._reset_infos,
            self._first_infos, before, tuple(unanswered),
        )  # fmt: skip
        self._forget_trajectory()
        self.table.set_acting([], None)

    def _discarded_timestep(self, slot: AgentSlot) -> UnansweredTimestep:
        observation, action, env_timestep = slot.recorder.discard_timestep()
        info = slot.own_info() if slot.policy.crosses else self._chosen_infos.get(slot.agent_id)
        return UnansweredTimestep(slot.agent_id, observation, action, info, env_timestep)

    def _truncate_agent(self, slot: AgentSlot, observations: Mapping[str, Any]) -> None:
        agent, own = slot.agent_id, slot.recorder
        if slot not in self._waiting and agent in observations:
            self._end_agent(slot, observations[agent], terminated=False, truncated=True)
            return
        observation, reward, terminated, truncated, info = self.env.outstanding(agent)
        if slot in self._waiting:
            slot.keep_reward(reward := reward_of(reward, agent))
            self.float_rewards[-1] += reward
            slot.last_info = info
            if info:
                own.record_env_info(len(own.float_rewards) - 1, dict_of(info, agent))
        terminated = flag_of(f"terminated of {agent!r}", terminated)
        self._end_agent(slot, observation, terminated=terminated, truncated=bool(truncated) or not terminated)

    def abandon(self) -> None:
        """Discard the current trajectory."""
        for own in self._agents.values():
            own.discard_unfinished()
        self._forget_trajectory()
        if self.table is not None:  # tables come with the first fragment
            self.table.set_acting([], None)
        super().abandon()

    def clear(self) -> None:
        if self.env.is_open:  # each trajectory may have new agents, without limit
            self._agents.clear()
        for own in self._agents.values():
            own.clear()
        self._remarks.clear()
        super().clear()

    def current_trajectory_copies(self) -> tuple[Any, Any, NDArray[np.float64]]:
        """Return copies of the current trajectory's observations and actions by agent, and its summed rewards."""
        parts = {agent: slot.recorder.copies_of_last() for agent, slot in self._slots.items()}
        observations, actions = ({agent: part[i] for agent, part in parts.items()} for i in (0, 1))
        return observations, actions, super().current_trajectory_copies()[2]

    def discard_after(self, n_trajectories: int) -> None:
        for own in self._agents.values():
            own.kept = sum(position < n_trajectories for position, *_ in own.played)
        super().discard_after(n_trajectories)

    def finish(self) -> Rollouts:
        rollouts, found = self.parts()
        rollouts.policies = put_together(found, self._allocate)
        return rollouts

    def parts(self) -> tuple[Rollouts, list[AgentTicketRollouts]]:
        """Return the joint rollouts, and the trajectories of each agent."""
        found: list[AgentTicketRollouts] = []
        errors: list[DataError] = []
        is_open, numbers = self.env.is_open, self.env.numbers
        for agent in sorted(self._agents) if is_open else [it for it in numbers if it in self._agents]:
            if (own := self._agents[agent]).n_trajectories:
                spaces = own.spaces if is_open else None
                try:
                    env_timesteps = np.array(own.env_timesteps, np.int64)
                    found.append(
                        AgentTicketRollouts(agent, own.played, own.finish(), env_timesteps, spaces, own.before)
                    )
                except DataError as error:
                    if error.position is not None:
                        error.position = own.played[error.position][0]
                    errors.append(named(error, agent))
        if errors:
            raise min(errors, key=lambda error: error.position or 0)
        rollouts = super().finish()
        rollouts.remarks = tuple(self._remarks.items())
        return rollouts, found
