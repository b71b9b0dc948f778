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
from streamsampler.data.agent_rows import OF_AGENTS, Played, put_together
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
    sum_on,
)
from streamsampler.workers.several.parts import Before, Suspended, Unanswered
from streamsampler.workers.several.players import Table
from streamsampler.workers.several.seats import OwnInfo, Seat


class _NoReward:
    """The class of no reward: with several agents a step's rewards are a dict, and a float is an error."""


_NOTHING = Before()
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

    def __init__(self, env: MultiAgentEnv, table: Table, allocate: Allocate = np.empty) -> None:
        nothing = gym_spaces.Dict({})
        super().__init__(nothing, nothing)
        self.env, self.table, self._allocate = env, table, allocate
        self._known = env.numbers.keys()
        self.suspended: Suspended | None = None
        self.sent: list[dict[str, Any]] | None = None
        self._resumed: Suspended | None = None
        self._agents: dict[str, AgentRecorder] = {}
        self._remarks: dict[str, str] = {}
        self.record_observation = self._record_observations
        self.record_action = self._record_actions
        self.record_reward = self._record_rewards
        self._record_joint_env_info = self.record_env_info
        self.record_env_info = self._record_env_infos
        self.record_agent_info = self._record_agent_infos
        self._forget_trajectory()

    def sit_at(self, env: MultiAgentEnv, table: Table) -> None:
        """Continue with another environment and its table."""
        self.env, self.table = env, table
        self._known = env.numbers.keys()
        self._forget_trajectory()

    def go_on(self, suspended: Suspended) -> None:
        """Make the next trajectory another part of an episode."""
        self._resumed = suspended

    @property
    def suits_fast_loop(self) -> bool:
        return not self.env.takes_turns and self.table.one_by_one

    def _forget_trajectory(self) -> None:
        self._seated: dict[str, Seat] = {}  # the agents with an action so far
        self._waiting: list[Seat] = []  # of these, the agents without an answer yet
        self._ended: dict[str, int] = {}  # with their last timesteps
        self.ending: list[tuple[Seat, bool, bool]] = []
        self._last_ends = False, False
        self._early: dict[str, float] = {}  # rewards before the first action
        self._about: dict[str, dict[str, Any]] = {}
        self._infos: Mapping[str, Any] = {}
        self._reset_infos: Mapping[str, Any] = {}
        self._rewards_of_step: Mapping[str, Any] = {}
        # Of an episode with several parts:
        self.n_before = 0
        self._before: dict[str, Before] = {}
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
        joint = self._of_no_agent(mapping_of(reset_info, "infos"))
        self._refuse_own_name(joint)
        if change := self.env.change_of_possible_agents():
            self._remarks.setdefault("possible agents", change)
        first = super().begin(joint)
        self._forget_trajectory()
        self._reset_infos = self._infos = reset_info
        return first

    def _resume(self, it: Suspended) -> None:
        self._resumed = None
        self._forget_trajectory()
        self.n_before, self._ended, self._last_ends, self._early = it.n_timesteps, it.ended, it.last_ends, it.early
        self._infos, self._reset_infos, self._first_infos = it.infos, it.reset_infos, it.first_infos
        self._before = it.before
        for each in it.unanswered:
            self._begin_agent(each.agent_id)
            seat = self._seated[each.agent_id]
            seat.early_info, seat.info = None, OwnInfo(each.info or {})
            seat.record_observation(each.observation)
            seat.record_action(each.action)
            own = seat.recorder
            own.env_timesteps.append(each.env_timestep)
            if each.info:
                own.record_agent_info(len(own.float_rewards), each.info)
            self._chosen_infos[each.agent_id] = each.info
            self._waiting.append(seat)

    def _nobody_acted(self) -> UsageError:
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
        self.let_act(observations)
        self.table.shown = observations
        try:
            for seat in self.table.acting:
                seat.record_observation(observations[seat.agent_id])
        except KeyError:
            raise no_observation(seat.agent_id) from None
        except ObservationError as error:
            raise named(error, seat.agent_id) from None

    def let_act(self, observations: Mapping[str, Any]) -> None:
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
            raise self._nobody_acted()
        known = self._seated.keys() | self._before.keys() | observations.keys()
        there = [agent for agent in turn if agent in known or not began]
        for agent in there:
            if agent not in self._seated:
                self._begin_agent(agent)
        # Joining agents are looked for in each step.
        self.table.let_act([self._seated[agent] for agent in there], turn if len(there) == len(turn) else None)

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
        seat = self._seated[agent] = self.table.seat_of(agent)
        own = self._agents.get(agent)
        if own is None:
            spaces = self.env.observation_space[agent], self.env.action_space[agent]
            own = self._agents[agent] = AgentRecorder(*spaces)
        seat.record_in(own)
        own.played.append((self.n_trajectories, seat.policy.name, seat.number))
        before = self._before.get(agent)
        own.before.append(before or _NOTHING)
        if before is not None:
            seat.last_info = before.last_info
            own.begin({})
            self._about[agent] = {}
            return
        if agent not in self._first_infos:
            info = self._infos.get(agent) if agent in self._infos else self._reset_infos.get(agent)
            self._first_infos[agent] = info or {}
        info = seat.early_info = self._first_infos[agent]
        own.begin(dict_of(info, agent))
        self._about[agent] = {"reset": trees.snapshot(info)} if info else {}

    def _record_actions(self, actions: Mapping[str, Any]) -> None:
        acting = self.table.acting
        if len(actions) != len(acting):
            raise ActionError(
                f"got actions of agents {list(actions)}, but agents {[seat.agent_id for seat in acting]} act"
            )
        for seat in acting:
            try:
                seat.record_action(actions[seat.agent_id])
            except ActionError as error:
                raise named(error, seat.agent_id) from None
        if self.sent is not None:
            self.sent.append({agent: own_copy(action) for agent, action in actions.items()})
        if self.env.takes_turns:
            timestep = self._timestep + 1
            for seat in acting:
                seat.recorder.env_timesteps.append(timestep)
                self._waiting.append(seat)
        else:
            self._waiting = acting

    def _record_rewards(self, rewards: Mapping[str, Any]) -> None:
        self._rewards_of_step = mapping_of(rewards, "rewards")
        self._infos = {}  # empty infos are not recorded
        self.float_rewards.append(0.0)

    def _record_env_infos(self, _step: int, infos: Mapping[str, Any]) -> None:
        self._infos = mapping_of(infos, "infos")

    def _record_agent_infos(self, _step: int, infos: Mapping[str, Any]) -> None:
        for seat in self.table.acting:
            info = infos[seat.agent_id]
            if self.env.takes_turns:
                self._chosen_infos[seat.agent_id] = info
            if info.__class__ is not dict or info:
                own = seat.recorder
                own.record_agent_info(len(own.float_rewards), info)

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Record a step's results by agent; return the flags of the joint trajectory.

        Raises:
            DataError: The step lacks the answer to an acting agent, or a flag is neither true nor false.
        """
        try:
            return self._take_in(mapping_of(terminated, "terminated"), mapping_of(truncated, "truncated"))
        except DataError as error:
            error.row = len(self.float_rewards) - 1
            raise

    def _take_in(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        rewards, infos, total = self._rewards_of_step, self._infos, 0.0
        if self.env.takes_turns:
            answered = [seat for seat in self._waiting if seat.agent_id in terminated]
            self._waiting = [seat for seat in self._waiting if seat not in answered]
        else:
            answered, self._waiting = self._waiting, []
        try:
            for seat in answered:
                agent = seat.agent_id
                reward = rewards[agent]
                if reward.__class__ is not float:
                    reward = reward_of(reward, agent)
                total += reward
                seat.keep_reward(reward)
                seat.last_info = info = infos.get(agent)
                if info:
                    self.record_info(seat, info)
                if terminated[agent] is not False or truncated[agent] is not False:
                    self.take_in_end(agent, terminated[agent], truncated[agent])
        except KeyError as error:
            raise no_answer(error.args[0]) from None
        self.float_rewards[-1] = total
        return self.take_in_rest(rewards, terminated, truncated, infos)

    def record_info(self, seat: Seat, info: Any) -> None:
        own = seat.recorder
        own.record_env_info(len(own.float_rewards) - 1, dict_of(info, seat.agent_id))

    def take_in_rest(
        self, rewards: Mapping[str, Any], terminated: Mapping[str, Any], truncated: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> tuple[bool, bool]:  # fmt: skip
        """Record a step's results of agents without an action, and infos with other keys; return the joint flags.

        Raises:
            DataError: No agent is left, and none has ended; or an ended agent continues.
        """
        try:
            return self._take_in_others(rewards, terminated, truncated, infos)
        except DataError as error:
            self._blame_step(error)
            raise

    def _take_in_others(
        self, rewards: Mapping[str, Any], terminated: Mapping[str, Any], truncated: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> tuple[bool, bool]:  # fmt: skip
        self._infos = infos
        for seat, _, _ in self.ending:
            self._ended[seat.agent_id] = self._timestep
        self.env.meet_listed()
        for agent in terminated:
            if agent in self._ended:
                if not (terminated[agent] or truncated.get(agent)) and self.env.lists(agent):
                    raise returned(agent, self._ended)
            elif agent in self._known and agent not in self._seated:
                self._take_in_early(agent, rewards.get(agent, 0.0), terminated[agent], truncated.get(agent, False))
        if not infos.keys() <= self._known:
            self._record_joint_env_info(len(self.float_rewards) - 1, self._of_no_agent(infos))
        if (self.ending or self.env.takes_turns or not self.table.acting) and self.env.is_over(self._ended):
            return self._take_in_last_end()
        return False, False

    def _take_in_early(self, agent: str, reward: Any, terminated: Any, truncated: Any) -> None:
        """Record a step's results of an agent before its first action."""
        number = reward_of(reward, agent)
        self.float_rewards[-1] += number
        self._early[agent] = self._early.get(agent, 0.0) + number
        self.take_in_end(agent, terminated, truncated)

    def _take_in_last_end(self) -> tuple[bool, bool]:
        if not self._first_infos:
            raise self._nobody_acted()
        if self.env.takes_turns:
            self._end_rest()
        if self._last_ends == (False, False):
            raise DataError("no agent is left, and none was terminated or truncated")
        return self._last_ends

    def _of_no_agent(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        joint = {key: info for key, info in infos.items() if key not in self._known}
        if strange := [key for key in joint if key != COMMON]:
            self._remarks.setdefault(
                "of no agent",
                f"an info is under {strange[0]!r}, which is no agent: it is in batch.episodes.env_infos if a step "
                f"returned it, and in batch.episodes.infos if a reset did. Under {COMMON!r} it is there without this "
                "warning",
            )
        return joint

    def _end_rest(self) -> None:
        for agent in [it for it in self._seated if it not in self._ended]:
            _, _, terminated, truncated, _ = self.env.outstanding(agent)
            ends = flag_of(f"terminated of {agent!r}", terminated), flag_of(f"truncated of {agent!r}", truncated)
            if not any(ends):
                raise DataError(f"the agent {agent!r} is gone, and was neither terminated nor truncated")
            self._last_ends = ends

    def _check_answered(self) -> None:
        if not self.env.takes_turns:
            raise DataError(
                "a step gave no reward, terminated or truncated of agents "
                f"{[seat.agent_id for seat in self._waiting]}, which acted: step must return dicts by agent"
            )

    def take_in_end(self, agent: str, terminated: Any, truncated: Any) -> bool:
        """Record an agent's flags; return whether it has ended."""
        ends = flag_of(f"terminated of {agent!r}", terminated), flag_of(f"truncated of {agent!r}", truncated)
        if not any(ends):
            return False
        self._last_ends = ends if not self.ending else (self._last_ends[0] or ends[0], self._last_ends[1] or ends[1])
        self._ended[agent] = self._timestep
        if agent in self._seated:
            self.ending.append((self._seated[agent], *ends))
        return True

    def _end_agents(self, observations: Mapping[str, Any]) -> None:
        ending, self.ending = self.ending, []
        for seat, terminated, truncated in ending:
            if seat.agent_id not in observations:
                raise ObservationError(f"there is no last observation of agent {seat.agent_id!r}, which has ended")
            self._end_agent(seat, observations[seat.agent_id], terminated, truncated)

    def _end_agent(
        self, seat: Seat, observation: Any, terminated: bool, truncated: bool, value: float | None = None
    ) -> None:
        agent, own = seat.agent_id, seat.recorder
        about = self._about[agent]
        early = 0.0 if agent in self._before else self._early.get(agent, 0.0)
        about["return"] = sum(own.float_rewards[own.n_timesteps :], early)
        if info := seat.last_info:
            about["last"] = trees.snapshot(info)
        if not terminated and value is None:
            value = seat.value_of(observation)
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
            raise self._nobody_acted()
        if self.ending:
            self._end_agents(observations)
        for agent, seat in self._seated.items():
            if agent not in self._ended:
                self._cut_off(seat, observations)
        for own in self._agents.values():
            own.kept = own.n_trajectories
        self._episode_infos.record(self.n_trajectories, {OF_AGENTS: self._about})
        super().end({}, terminated, truncated, limited=limited)

    def forget_observation(self) -> None:
        """Forget the observations without an action: the next part begins with them."""
        for seat in self.table.acting:
            seat.recorder.forget_observation()

    def _end_part(self, observations: Mapping[str, Any]) -> None:
        before, unanswered = dict(self._before), []
        for agent, seat in list(self._seated.items()):
            if agent in self._ended:
                continue
            value: float | None = None
            if seat in self._waiting:
                unanswered.append(self._taken_back(seat))
                observation, value = unanswered[-1].observation, seat.value_told()
            elif agent in observations:
                observation = observations[agent]
            else:
                raise no_observation(agent)
            own = seat.recorder
            if rewards := own.float_rewards[own.n_timesteps :]:
                had = self._before.get(agent, _NOTHING)
                before[agent] = Before(had.length + len(rewards), sum_on(had.returned, rewards), seat.last_info)
                self._end_agent(seat, observation, terminated=False, truncated=False, value=value)
            else:
                own.take_back()
                del self._about[agent]
        for own in self._agents.values():
            own.kept = own.n_trajectories
        if self._about:
            self._episode_infos.record(self.n_trajectories, {OF_AGENTS: self._about})
        self.suspended = Suspended(
            self._timestep + 1, self._ended, self._last_ends, self._early, self._infos, self._reset_infos,
            self._first_infos, before, tuple(unanswered),
        )  # fmt: skip
        self._forget_trajectory()
        self.table.let_act([], None)

    def _taken_back(self, seat: Seat) -> Unanswered:
        observation, action, env_timestep = seat.recorder.take_back_timestep()
        info = seat.own_info() if seat.policy.crosses else self._chosen_infos.get(seat.agent_id)
        return Unanswered(seat.agent_id, observation, action, info, env_timestep)

    def _cut_off(self, seat: Seat, observations: Mapping[str, Any]) -> None:
        agent, own = seat.agent_id, seat.recorder
        if seat not in self._waiting and agent in observations:
            self._end_agent(seat, observations[agent], terminated=False, truncated=True)
            return
        observation, reward, terminated, truncated, info = self.env.outstanding(agent)
        if seat in self._waiting:
            seat.keep_reward(reward := reward_of(reward, agent))
            self.float_rewards[-1] += reward
            seat.last_info = info
            if info:
                own.record_env_info(len(own.float_rewards) - 1, dict_of(info, agent))
        terminated = flag_of(f"terminated of {agent!r}", terminated)
        self._end_agent(seat, observation, terminated=terminated, truncated=bool(truncated) or not terminated)

    def abandon(self) -> None:
        """Discard the current trajectory."""
        for own in self._agents.values():
            own.forget_rest()
        self._forget_trajectory()
        if self.table is not None:  # tables come with the first fragment
            self.table.let_act([], None)
        super().abandon()

    def clear(self) -> None:
        if self.env.is_open:  # each trajectory may have new agents, without limit
            self._agents.clear()
        for own in self._agents.values():
            own.clear()
        self._remarks.clear()
        super().clear()

    def copies_in_hand(self) -> tuple[Any, Any, NDArray[np.float64]]:
        """Return copies of the current trajectory's observations and actions by agent, and its summed rewards."""
        parts = {agent: seat.recorder.copies_of_last() for agent, seat in self._seated.items()}
        observations, actions = ({agent: part[i] for agent, part in parts.items()} for i in (0, 1))
        return observations, actions, super().copies_in_hand()[2]

    def forget_after(self, n_trajectories: int) -> None:
        for own in self._agents.values():
            own.kept = sum(position < n_trajectories for position, *_ in own.played)
        super().forget_after(n_trajectories)

    def finish(self) -> Rollouts:
        rollouts, found = self.parts()
        rollouts.policies = put_together(found, self._allocate)
        return rollouts

    def parts(self) -> tuple[Rollouts, list[Played]]:
        """Return the joint rollouts, and the trajectories of each agent."""
        found: list[Played] = []
        errors: list[DataError] = []
        is_open, numbers = self.env.is_open, self.env.numbers
        for agent in sorted(self._agents) if is_open else [it for it in numbers if it in self._agents]:
            if (own := self._agents[agent]).n_trajectories:
                spaces = own.spaces if is_open else None
                try:
                    env_timesteps = np.array(own.env_timesteps, np.int64)
                    found.append(Played(agent, own.played, own.finish(), env_timesteps, spaces, own.before))
                except DataError as error:
                    if error.position is not None:
                        error.position = own.played[error.position][0]
                    errors.append(named(error, agent))
        if errors:
            raise min(errors, key=lambda error: error.position or 0)
        rollouts = super().finish()
        rollouts.remarks = tuple(self._remarks.items())
        return rollouts, found
