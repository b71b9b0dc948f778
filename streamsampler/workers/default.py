"""The default worker: one environment, one trajectory after the other."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium

from streamsampler.agents import Agent, apply_agent_update, as_agent, reset_agent_function
from streamsampler.board import WorkerRow
from streamsampler.environments import EnvCloseError, EnvUpdate, apply_env_update
from streamsampler.errors import ActionError, UsageError
from streamsampler.protocol import Phase, Ticket
from streamsampler.recording import RolloutRecorder
from streamsampler.seeding import Stream, derived_seed, seed_generators
from streamsampler.workers.base import Outcome, Worker

__all__ = ["DefaultWorker"]

_NO_LIMIT = 2**62
_TIMED = 64
"""One in so many timesteps is timed: two clock readings in each would cost 2 % of a cheap environment's speed."""


class DefaultWorker(Worker):
    """Runs one trajectory after the other in one environment.

    Args:
        row: Its row of the shared board.
        worker_number: 0 to n-1.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
    """

    def __init__(self, row: WorkerRow, *, worker_number: int = 0, max_episode_length: int | None = None) -> None:
        super().__init__(row, worker_number=worker_number, max_episode_length=max_episode_length)
        self._agent: Agent | None = None
        self._reset_agent: Callable[[int], None] | None = None
        self._env: gymnasium.Env[Any, Any] | None = None
        self._recorder: RolloutRecorder | None = None
        self._reset_seconds = self._agent_seconds = self._step_seconds = 0.0

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or hand it new parameters."""
        self.phase = Phase.AGENT_CONSTRUCTION if self._agent is None else Phase.AGENT_UPDATE
        if self._agent is None:
            self._agent = as_agent(agent_update)
        else:
            self._agent = apply_agent_update(self._agent, agent_update)
        self._reset_agent = reset_agent_function(self._agent)

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environment.

        Raises:
            Exception: What the environment raises; then there is no environment until the next update.
        """
        self.phase = Phase.ENV_CONSTRUCTION
        old, self._env = self._env, None
        try:
            self._env = apply_env_update(env_update, old)
        except EnvCloseError:
            self.phase = Phase.CLOSE
            raise
        self._recorder = RolloutRecorder(self._env.observation_space, self._env.action_space)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of the environment."""
        assert self._env is not None
        return self._env.observation_space, self._env.action_space

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories."""
        recorder = self._recorder
        assert recorder is not None
        recorder.clear()
        self._reset_seconds = self._agent_seconds = self._step_seconds = 0.0
        abandoned_timesteps = -1
        for index, seed in zip(ticket.indices, seeds, strict=True):
            self.trajectory = index
            self.row.begin_trajectory(index)
            abandoned_timesteps = self._run(seed, ticket.version)
            if abandoned_timesteps >= 0:
                break
        n_trajectories, n_timesteps = recorder.n_trajectories, recorder.n_timesteps
        given_up = abandoned_timesteps >= 0
        return Outcome(
            rollouts=None if given_up else self._finish(recorder, ticket),
            n_trajectories=n_trajectories,
            n_timesteps=n_timesteps,
            n_abandoned=int(given_up),
            abandoned_timesteps=max(0, abandoned_timesteps),
            seconds=(self._reset_seconds, self._agent_seconds, self._step_seconds),
        )

    def _finish(self, recorder: RolloutRecorder, ticket: Ticket) -> Any:
        self.phase = Phase.RECORDING
        try:
            return recorder.finish()
        except ActionError as error:
            self.trajectory = ticket.indices[getattr(error, "position", 0)]
            self.phase = Phase.ACTION
            raise

    def _begin(self, seed: int) -> Any:
        """Seed and reset everything a trajectory draws from, and return its first observation."""
        assert self._env is not None
        assert self._recorder is not None
        begin = perf_counter()
        self.phase = Phase.RESET
        self.row.phase(Phase.RESET)
        seed_generators(seed)
        result = self._env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise UsageError(f"reset must return (observation, info), got {_describe(result)}")
        observation, info = result
        self.phase = Phase.AGENT_RESET
        if self._reset_agent is not None:
            self._reset_agent(derived_seed(seed, Stream.AGENT))
        self.phase = Phase.RECORDING
        self._recorder.begin(info)
        self._reset_seconds += perf_counter() - begin
        return observation

    def _run(self, seed: int, version: int) -> int:
        """Run one trajectory. Returns -1, or the timesteps after which it was abandoned.

        The loop is written out, with everything it touches in local variables: it is what this package's speed is
        made of.
        """
        observation = self._begin(seed)
        self.row.phase(Phase.STEP)
        env, agent, recorder = self._env, self._agent, self._recorder
        assert env is not None
        assert agent is not None
        assert recorder is not None
        step, get_action, clock = env.step, agent.get_action, perf_counter
        record_observation, record_action = recorder.record_observation, recorder.record_action
        record_reward = recorder.record_reward
        words, timesteps_word = self.row.words, self.row.timesteps_word
        t = start = recorder.n_timesteps
        limit = _NO_LIMIT if self.max_episode_length is None else start + self.max_episode_length
        agent_sample = step_sample = 1e-9
        phase = Phase.RECORDING
        action: Any = None
        begin = clock()
        try:
            while True:
                # Before the agent sees it: the environment may reuse the array in its next step, the agent may
                # change it.
                phase = Phase.RECORDING
                record_observation(observation)
                if t % _TIMED:
                    phase = Phase.ACTION
                    action, agent_info = get_action(observation)
                    phase = Phase.RECORDING
                    record_action(action)
                    phase = Phase.STEP
                    observation, reward, terminated, truncated, info = step(action)
                else:
                    phase = Phase.ACTION
                    before = clock()
                    action, agent_info = get_action(observation)
                    between = clock()
                    phase = Phase.RECORDING
                    record_action(action)
                    phase = Phase.STEP
                    observation, reward, terminated, truncated, info = step(action)
                    agent_sample += between - before
                    step_sample += clock() - between
                phase = Phase.RECORDING
                record_reward(reward)
                if info:
                    recorder.record_env_info(t, info)
                if agent_info:
                    recorder.record_agent_info(t, agent_info)
                t += 1
                words[timesteps_word] = t
                if terminated or truncated or t == limit:
                    recorder.end(observation, bool(terminated), bool(truncated) or t == limit)
                    return -1
                if words[0] > version:
                    recorder.abandon()
                    return t - start
        except BaseException as error:
            self.phase = phase
            self._explain(error, phase, action)
            raise
        finally:
            share = (clock() - begin) / (agent_sample + step_sample)
            self._agent_seconds += share * agent_sample
            self._step_seconds += share * step_sample

    def _explain(self, error: BaseException, phase: Phase, action: Any) -> None:
        """Raise a better error where the reason is known; otherwise return."""
        frames = error.__traceback__
        raised_here = frames is None or frames.tb_next is None
        if phase is Phase.ACTION and raised_here and isinstance(error, (TypeError, ValueError)):
            raise UsageError("get_action must return (action, agent_info), with agent_info a dict") from error
        if phase is Phase.STEP and raised_here and isinstance(error, (TypeError, ValueError)):
            raise UsageError("step must return (observation, reward, terminated, truncated, info)") from error
        if phase is Phase.STEP and isinstance(error, Exception):
            space = self.spaces[1]
            try:
                inside = space.contains(action)
            except Exception:
                inside = False
            if not inside:
                self.phase = Phase.ACTION
                raise ActionError(f"the agent's action {action!r} is outside {space}") from error

    def shutdown(self) -> None:
        """Close the environment."""
        self.phase, self.trajectory = Phase.CLOSE, None
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _describe(result: Any) -> str:
    size = f" of {len(result)}" if isinstance(result, tuple) else ""
    return f"{type(result).__name__}{size}"
