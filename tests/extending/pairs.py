"""A worker of one's own: two environments in lockstep, each action repeated, and an agent that sees both."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from streamsampler import EnvUpdate, Worker
from streamsampler.agents.base import Agent, reset_agent_function
from streamsampler.agents.updates import updated_agent
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.updates import apply_env_update
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.protocol.plans import Layout
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.generators import seed_generators


class PairWorker(Worker):
    """Runs two trajectories in turn, timestep by timestep, with one agent: what it remembers of one shows in the other.

    So pairs are blocks, and everything in a pair is a function of the pair's seeds.

    Args:
        context: What the worker is made with.
        repeat: How many times the environment gets each action.
    """

    def __init__(self, context: WorkerContext, *, repeat: int = 2) -> None:
        super().__init__(context)
        self._repeat = repeat
        self._agent: Agent | None = None
        self._envs: list[Any] = [None, None]

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:
        return Layout(2, 2)

    def update_agent(self, agent_update: Any) -> None:
        self.phase = Phase.AGENT_UPDATE
        self._agent = updated_agent(self._agent, agent_update, self.spaces)

    def update_env(self, env_update: EnvUpdate) -> None:
        self.phase = Phase.ENV_CONSTRUCTION
        self._envs = [apply_env_update(env_update, env) for env in self._envs]
        self._recorder = RolloutRecorder(*self.spaces, self.context.allocate)

    @property
    def spaces(self) -> tuple[Any, Any]:
        return self._envs[0].observation_space, self._envs[0].action_space

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        self._recorder.clear()
        for first in range(0, len(seeds), 2):
            pair = [Trajectory(*of) for of in zip(self._envs, ticket.indices[first:], seeds[first:], strict=False)]
            try:
                going_on = self._run(pair, ticket.version)
            finally:
                self.ran_timesteps += sum(len(trajectory.steps) for trajectory in pair)
            if not going_on:
                abandoned = sum(len(trajectory.steps) for trajectory in pair)
                recorder = self._recorder
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, len(pair), abandoned)
            for trajectory in pair:
                trajectory.record(self._recorder)
        rollouts = self.finished(self._recorder.finish, ticket.indices, self._envs[0])
        return Outcome(rollouts, rollouts.n_trajectories, rollouts.n_timesteps)

    def _run(self, pair: list[Trajectory], version: int) -> bool:
        """Run a pair. False means that its version may no longer run."""
        assert self._agent is not None
        seed_generators(pair[0].seed)
        if (reset_agent := reset_agent_function(self._agent)) is not None:
            reset_agent(derived_seed(pair[0].seed, SeedUse.AGENT))
        for trajectory in pair:
            self._enter(trajectory, Phase.RESET)
            trajectory.observation, trajectory.info = deepcopy(trajectory.env.reset(seed=trajectory.seed))
        while running := [trajectory for trajectory in pair if not trajectory.ended]:
            for trajectory in running:
                if not self.row.may_run(version):
                    return False
                self._enter(trajectory, Phase.ACTION)
                action, info = self._agent.get_action(deepcopy(trajectory.observation))
                self._enter(trajectory, Phase.STEP)
                trajectory.step(action, info, self._repeat, self.context.max_episode_length)
        return True

    def _enter(self, trajectory: Trajectory, phase: Phase) -> None:
        self.phase, self.trajectory = phase, trajectory.index
        self.row.begin_trajectory(trajectory.index)
        self.row.set_phase(phase)

    def shutdown(self) -> None:
        self.phase = Phase.CLOSE
        for env in self._envs:
            env.close()


class Trajectory:
    """A trajectory as it is run, until it is recorded."""

    observation: Any
    info: Any

    def __init__(self, env: Any, index: int, seed: int) -> None:
        self.env, self.index, self.seed = env, index, seed
        self.steps: list[tuple[Any, Any, Any, float, Any]] = []
        self.ends = False, False

    @property
    def ended(self) -> bool:
        return any(self.ends)

    def step(self, action: Any, agent_info: Any, repeat: int, limit: int | None) -> None:
        before, total = self.observation, 0.0
        for _ in range(repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        self.observation = deepcopy(observation)
        self.steps.append((before, deepcopy(action), deepcopy(agent_info), total, deepcopy(info)))
        self.ends = bool(terminated), bool(truncated) or len(self.steps) == limit

    def record(self, recorder: RolloutRecorder) -> None:
        for number, (observation, action, agent_info, reward, env_info) in enumerate(
            self.steps, recorder.begin(self.info)
        ):
            recorder.record_observation(observation)
            recorder.record_action(action)
            recorder.record_reward(reward)
            recorder.record_agent_info(number, agent_info)
            recorder.record_env_info(number, env_info)
        recorder.end(self.observation, *self.ends)
