"""A fast loop for a `ParallelEnv` with policies asked for a single agent at a time.

It gives the same bits as the script with `PolicySet` and a `JointRecorder`, in half of the time. Those two handle all
but ordinary steps: starts and ends of trajectories, and agents with an end, a start, or an incomplete answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.times import Times
from streamsampler.core.timing import used
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import raised_in
from streamsampler.workers.finishing import shares
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.several.agent_recorder import no_answer, no_dict, no_observation, reward_of
from streamsampler.workers.several.agent_slots import AgentSlot
from streamsampler.workers.several.policy_set import wrong_answer
from streamsampler.workers.several.recorder import JointRecorder

_NO_LIMIT = 2**62
_PROGRESS_SECONDS, _MOST_APART = 1e-2, 64  # as in `DefaultWorker`
_ACTION, _RECORDING, _STEP = Phase.ACTION, Phase.RECORDING, Phase.STEP
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)


class ParallelLoop:
    """Runs trajectories of several agents, one after the other.

    Attributes:
        phase: The current phase.
        actions: The last actions.
        seconds: The seconds of resets, of the agents, and of all else.
    """

    def __init__(
        self, worker: Worker, recorder: JointRecorder, reset: Callable[..., Any], reset_agent: Callable[[int], None]
    ) -> None:
        self._worker, self._recorder = worker, recorder
        self._reset, self._reset_agent = reset, reset_agent
        self._limit = worker.context.max_episode_length or _NO_LIMIT
        self.phase, self.actions = Phase.RESET, dict[str, Any]()
        self._in_reset = self._in_agents = self._in_steps = 0.0
        self._began = perf_counter()

    @property
    def seconds(self) -> Times:
        return shares(perf_counter() - self._began, self._in_reset, self._in_agents, self._in_steps)

    def run(self, version: int, indices: Iterable[int], seeds: Sequence[int]) -> int:
        """Run trajectories; return -1, or the timesteps of the abandoned trajectory."""
        recorder, worker = self._recorder, self._worker
        n_before = recorder.n_timesteps
        try:
            for index, seed in zip(indices, seeds, strict=True):
                observations = self._begin(index, seed)
                start = recorder.n_timesteps
                ended = self.timesteps(version, observations)
                if ended is None:
                    n_abandoned = len(recorder.float_rewards) - start
                    worker.ran_timesteps += len(recorder.float_rewards) - n_before
                    recorder.abandon()
                    return n_abandoned
                limited = len(recorder.float_rewards) - start == self._limit
                recorder.end(*ended, limited=limited)
        except BaseException:
            worker.ran_timesteps += len(recorder.float_rewards) - n_before
            raise
        worker.ran_timesteps += len(recorder.float_rewards) - n_before
        return -1

    def _begin(self, index: int, seed: int) -> Any:
        worker = self._worker
        worker.set_trajectory(index)
        begin = perf_counter()
        self._enter(Phase.RESET)
        seed_generators(seed)
        observations, infos = begin_of(self._reset(seed=seed))
        self._enter(Phase.AGENT_RESET)
        self._reset_agent(derived_seed(seed, SeedUse.AGENT))
        self._in_reset += perf_counter() - begin
        self._enter(Phase.RECORDING)
        self._recorder.begin(infos)
        return observations

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._worker.enter(phase)

    def timesteps(self, version: int, observations: Any) -> tuple[Any, bool, bool] | None:  # noqa: C901 - see the module
        """Run the timesteps of a trajectory after its beginning.

        Returns:
            The last observations and the two flags; None if the version may not run any more.
        """
        recorder, row, clock = self._recorder, self._worker.row, perf_counter
        env, table, rewards_of_all = recorder.env, recorder.table, recorder.float_rewards
        step: Callable[[Any], Any] = env.step
        raw, words, timesteps_word = env.env, row.words, row.timesteps_word
        attention, phase_word, array = row.attention, row.phase_word, np.ndarray
        start = recorder.n_timesteps
        limit, is_used, due, shown = start + self._limit, used(), start, False
        listed: Any = None
        acting: list[Any] = []
        actions: dict[str, Any] = {}
        agent = ""
        self.phase = _RECORDING
        words[phase_word] = _STEP_NUMBER
        while True:
            if is_due := len(rewards_of_all) >= due or bool(attention):
                if len(rewards_of_all) >= limit:
                    return observations, False, False
                words[timesteps_word] = len(rewards_of_all)
            if recorder.ending or raw.agents != listed:
                recorder.begin_step(observations)
                listed = list(raw.agents) if table.turn is not None else None
                acting = [_bound(slot) for slot in table.acting]
            self.phase, self.actions = _ACTION, (actions := {})
            if is_due:
                words[phase_word] = _ACTION_NUMBER
                before = clock()
            try:
                for (
                    agent, slot, dtype, shape, encode, record, get_action, keep_action, record_action, rewards,
                ) in acting:  # fmt: skip
                    observation = observations[agent]
                    if observation.__class__ is array and observation.dtype is dtype and observation.shape == shape:
                        encode(observation.tobytes())
                    else:
                        record(observation)
                    action, info = get_action(observation)
                    if action.__class__ is int and keep_action is not None:
                        keep_action(action)
                    else:
                        record_action(action)
                        action = own_copy(action)
                    actions[agent] = action
                    slot.info = info
                    if info.__class__ is not dict or info:
                        slot.recorder.record_agent_info(len(rewards), info)
            except Exception as error:
                if not isinstance(observations, Mapping):
                    self.phase = _RECORDING
                _name_agent(error, agent, observations)
                _explain_answer(error, slot)
                raise
            self.phase = _STEP
            if is_due:
                between = clock()
                words[phase_word] = _STEP_NUMBER
            result = step(actions)
            if is_due:
                after = clock()
                self._in_agents += between - before
                self._in_steps += after - between
                apart = 1 if is_used else min(int(_PROGRESS_SECONDS / (after - before + 1e-9)) + 1, _MOST_APART)
                due, shown = min(len(rewards_of_all) + (apart if shown else 1), limit), True
            self.phase = _RECORDING
            try:
                observations, given, terminated, truncated, infos = result
                total, has_ended, is_complete = 0.0, False, True
                for agent, slot, _, _, _, _, _, _, _, rewards in acting:
                    reward = given[agent]
                    if reward.__class__ is not float:
                        reward = reward_of(reward, agent)
                    total += reward
                    rewards.append(reward)
                    slot.last_info = info = infos.get(agent)
                    if info:
                        recorder.record_info(slot, info)
                    elif info is None:
                        is_complete = False
                    if terminated[agent] is not False or truncated[agent] is not False:
                        has_ended = recorder.record_agent_end(agent, terminated[agent], truncated[agent]) or has_ended
                rewards_of_all.append(total)
                is_complete = is_complete and len(terminated) == len(infos) == len(acting) > 0
                if has_ended or not is_complete:
                    ends = recorder.record_rest(given, terminated, truncated, infos)
                    if ends != (False, False):
                        return (observations, *ends)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                if (better := _explained(error, result, agent)) is error:
                    raise
                raise better from error
            if attention:
                words[timesteps_word] = len(rewards_of_all)
                if not row.may_run(version):
                    return None


def _name_agent(error: Exception, agent: str, observations: Any) -> None:
    """Add the agent's name to an error; raise another error if the agent has no observation."""
    if not isinstance(observations, Mapping):
        raise no_dict(observations, "observations") from None
    if isinstance(error, DataError):
        error.args = (f"agent {agent!r}: {error}", *error.args[1:])
    elif isinstance(error, KeyError) and agent not in observations:
        raise no_observation(agent) from None
    else:
        error.add_note(f"(agent {agent!r} was to act)")


def _explain_answer(error: Exception, slot: AgentSlot) -> None:
    """Raise a better error if the loop could not unpack the result of `get_action`."""
    if isinstance(error, TypeError | ValueError) and raised_in(error, ParallelLoop.timesteps):
        raise wrong_answer(slot) from error


def _explained(error: Exception, result: Any, agent: str) -> Exception:
    """Return a better error for a step's result in a wrong form."""
    if isinstance(error, DataError):
        return error
    if not isinstance(result, tuple) or len(result) != 5:
        return UsageError("step must return (observations, rewards, terminated, truncated, infos), dicts by agent")
    names = ("observations", "rewards", "terminated", "truncated", "infos")
    for name, part in zip(names, result, strict=True):
        if not isinstance(part, Mapping):
            return no_dict(part, name)
    return no_answer(agent) if isinstance(error, KeyError) else error


def _bound(slot: AgentSlot) -> tuple[Any, ...]:
    """Return the values that the loop needs of an agent's slot in each step."""
    own = slot.recorder
    keep_action = None if own.integer_actions is None else own.integer_actions.append
    encode = None if own.encoded_observations is None else own.encoded_observations.append
    return (
        slot.agent_id, slot, own.observation_dtype, own.observation_shape, encode, own.record_observation,
        slot.get_action, keep_action, own.record_action, own.float_rewards,
    )  # fmt: skip
