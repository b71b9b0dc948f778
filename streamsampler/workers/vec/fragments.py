"""Run fragments side by side: the environments of a group take each timestep together, in one batch of the agent.

Which environments share a batch, and in which row each is, does not depend on the number of workers: group g has
environments `g * n_rows` to `(g + 1) * n_rows - 1`. So even agents whose rows depend on each other do the same for any
number of workers. Each group has a copy of the agent, and the global generators have their own state in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import cloudpickle

from streamsampler.data.fragments import EnvFragment, EpisodeState
from streamsampler.data.recorder import Rollouts
from streamsampler.data.step_values import flag_of, number_of
from streamsampler.data.trees import snapshot
from streamsampler.environments.updates import AnyEnv
from streamsampler.errors import DataError
from streamsampler.filters.agents import FilterParameters
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.explain import begin_of
from streamsampler.workers.finishing import with_filters
from streamsampler.workers.generators import drawn_states, fresh_states, set_states
from streamsampler.workers.resets import FragmentOrder
from streamsampler.workers.restoring import Digests, NotRestoredError, apply_actions
from streamsampler.workers.vec.agents import AgentPool, BatchedAgent
from streamsampler.workers.vec.rows import padded, singles_of
from streamsampler.workers.vec.steps import StepRecorder, Trajectory

__all__ = ["RunningGroups"]

_NEVER = 2**62


@dataclass(slots=True)
class _Row:
    """An environment, and the episode that goes on in it; its length is 0 if none does."""

    number: int
    env: AnyEnv
    episode: int = 0
    length: int = 0
    observation: Any = None
    digests: Digests = field(default_factory=Digests)
    lost: str = ""
    first: int = 0  # of this fragment: the number of its first episode
    continued: bool = False


class _Group:
    """The environments that take each timestep together."""

    def __init__(self, number: int, n_rows: int, rows: list[_Row], seed_of: Callable[[_Row], int], worker: Worker):
        self.number, self.rows, self._n_rows = number, rows, n_rows
        self._worker, self._seed_of = worker, seed_of
        self._spaces = worker.spaces
        self._most = worker.context.max_episode_length or _NEVER
        self._pool = AgentPool(hint=worker.context.worker_number == 0 and not number)
        self._payloads: tuple[Any, Any, Any] = (None, None, None)
        self._agent: BatchedAgent | None = None
        self._seed = seed_of(rows[0])  # of the global generators, and of agents that are not reset by rows
        self._generators: Any = None
        self._fresh: Any = None
        self._recorder = StepRecorder(*self._spaces, n_rows)
        self._singles: list[Any] = []
        self._running: list[Trajectory] = []  # by row
        self._ended: list[list[Trajectory]] = []
        self.seconds = [0.0, 0.0, 0.0]

    @property
    def agent(self) -> BatchedAgent:
        """The agent, for the rows of this group."""
        assert self._agent is not None
        return self._agent

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Make the agent, or hand it the parameters and filters, that are in force."""
        worker, spaces = self._worker, self._spaces
        agent, parameters, filters = in_force = tuple(map(worker.in_force.get, ("agent", "parameters", "filters")))
        is_new = agent is not self._payloads[0]
        if is_new:
            worker.phase = Phase.AGENT_CONSTRUCTION
            made = worker.load(agent)
            if filters is not None:
                made = with_filters(made, load("filters"), spaces[0])
            self._pool.update(made, self._n_rows, spaces)
            self._agent = self._pool.batched(self._n_rows)
            self._payloads = agent, None, filters
        worker.phase = Phase.AGENT_UPDATE
        if parameters is not None and parameters is not self._payloads[1]:
            self._pool.update(load("parameters"), self._n_rows, spaces)
        if filters is not self._payloads[2]:
            self._pool.update(FilterParameters(load("filters").observation, spaces[0]), self._n_rows, spaces)
        self._payloads = in_force  # type: ignore[assignment]
        if is_new:
            self.agent.begin_block(self._seed)
            for position, row in enumerate(self.rows):
                if row.length:
                    self._begin_agent(position)

    def _begin_agent(self, position: int) -> None:
        prepared = self.agent.prepare([self._seed_of(self.rows[position])])
        if prepared is not None:
            self._worker.phase = Phase.AGENT_RESET
            self.agent.begin(position, prepared, 0)

    # ------------------------------------------------------------------ running

    def run(self, version: int, n_timesteps: int) -> bool:
        """Run a fragment; return whether its version may still run."""
        worker, recorder, rows = self._worker, self._recorder, self.rows
        board = worker.row
        set_states(self._seed, self._generators)
        recorder.clear()
        self._ended = [[] for _ in rows]
        self._running = [self._begin(position) for position in range(len(rows))]
        live = list(range(len(rows)))
        sources = None if len(rows) == self._n_rows else [row if row < len(rows) else 0 for row in range(self._n_rows)]
        for timestep in range(n_timesteps):
            board.set_phase(Phase.ACTION)
            began = perf_counter()
            self._choose(live, sources)
            between = perf_counter()
            board.set_phase(Phase.STEP)
            self._step_all(timestep + 1 < n_timesteps)
            self.seconds[1] += between - began
            self.seconds[2] += perf_counter() - between
            worker.ran_timesteps += len(rows)
            board.words[board.timesteps_word] = worker.ran_timesteps
            if not board.may_run(version):
                return False
        for position, row in enumerate(rows):
            if row.length:
                self._close(position, row.observation, False, False)
        if self._fresh is None:
            self._fresh = fresh_states(self._seed)
        self._generators = drawn_states(self._fresh)
        return True

    def _begin(self, position: int) -> Trajectory:
        """Begin an episode in a row, or go on with the one that is there."""
        worker, row, began = self._worker, self.rows[position], perf_counter()
        worker.row.set_phase(Phase.RESET)
        info: dict[str, Any] = {}
        row.continued, row.first = row.length > 0, row.episode
        if not row.length:
            row.observation, info = self._reset(position)
        self.seconds[0] += perf_counter() - began
        return self._recorded(position, row.observation, info)

    def _reset(self, position: int) -> Any:
        worker, row = self._worker, self.rows[position]
        worker.phase = Phase.RESET
        result = begin_of(row.env.reset(seed=self._seed_of(row)))
        self._begin_agent(position)
        return result

    def _recorded(self, position: int, observation: Any, info: dict[str, Any]) -> Trajectory:
        recorder = self._recorder
        self._worker.phase = Phase.RECORDING
        trajectory = Trajectory(None, 0, self.rows[position].number, position, recorder.step)
        trajectory.number = recorder.begin(position, observation, info)
        return trajectory

    def _choose(self, live: Sequence[int], sources: list[int] | None) -> None:
        worker, recorder = self._worker, self._recorder
        worker.phase = Phase.RECORDING
        actions, infos = self.agent.choose(recorder.batch(sources), live, worker, self._record_agent_info)
        worker.phase = Phase.ACTION
        if sources is not None:
            actions = padded(self._spaces[1], actions, sources)
        recorder.actions.append(actions)
        self._singles = singles_of(self._spaces[1], actions)
        if infos:
            worker.phase = Phase.RECORDING
            recorder.record_agent_infos(infos)

    def _record_agent_info(self, row: int, info: Any) -> None:
        self._recorder.record_agent_info((self._recorder.step - 1) * self._n_rows + row, info)

    def _step_all(self, goes_on: bool) -> None:
        """Step the environments, and begin new episodes where some end, unless the fragment does."""
        worker, recorder, most = self._worker, self._recorder, self._most
        worker.phase = Phase.STEP
        rewards = [0.0] * self._n_rows
        first = (recorder.step - 1) * self._n_rows
        try:
            for position, row in enumerate(self.rows):
                observation, reward, terminated, truncated, info = row.env.step(self._singles[position])
                rewards[position] = reward if reward.__class__ is float else number_of(reward)
                if info.__class__ is not dict or info:
                    recorder.record_env_info(first + position, info)
                row.length += 1
                if terminated is not False or truncated is not False or row.length == most:
                    terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
                    if terminated or truncated or row.length == most:
                        self._close(position, observation, terminated, truncated or row.length == most)
                        if goes_on:
                            row.observation, reset_info = self._reset(position)
                            self._running[position] = self._recorded(position, row.observation, reset_info)
                            worker.phase = Phase.STEP
                        continue
                row.observation = observation
                recorder.record(position, observation)
        except DataError:
            worker.phase = Phase.RECORDING
            raise
        recorder.rewards.fromlist(rewards)

    def _close(self, position: int, observation: Any, terminated: bool, truncated: bool) -> None:
        """End the part of a row's episode that is in this fragment."""
        trajectory, row = self._running[position], self.rows[position]
        trajectory.length = self._recorder.step - trajectory.begun
        trajectory.last, trajectory.terminated, trajectory.truncated = snapshot(observation), terminated, truncated
        self._ended[position].append(trajectory)
        if terminated or truncated:
            row.episode, row.length, row.observation, row.digests = row.episode + 1, 0, None, Digests()

    # ------------------------------------------------------------------ what is told of it

    def gather(self) -> Rollouts:
        """Return the parts of episodes in this fragment, in order of environment, then time."""
        worker, parts = self._worker, [each for ended in self._ended for each in ended]
        allocate = worker.context.allocate
        owners = [self.number] * len(parts)
        rollouts = worker.finished(partial(self._recorder.gather, parts, allocate), owners, self.rows[0].env)
        state = self.agent.get_state()
        packed = None if state is None else cloudpickle.dumps((state, self._generators))
        fragments, stop = [], 0
        for row, ended in zip(self.rows, self._ended, strict=True):
            stop += sum(each.length for each in ended)
            standing = None
            if row.length:
                row.digests.add(rollouts, slice(stop - ended[-1].length, stop))
                standing = EpisodeState(row.length, None, None, row.digests.values(), state is not None)
            fragments.append(
                EnvFragment(row.number, len(ended), row.first, row.continued, standing, row.lost, self.number, packed)
            )
            packed, row.lost = None, ""
        rollouts.fragments = tuple(fragments)
        return rollouts

    def take_over(self, order: FragmentOrder) -> int:
        """Go on where another worker was lost; return how many timesteps environments were run for it."""
        worker, ran = self._worker, 0
        packed = next((it.agent for row in self.rows if (it := order.standings.get(row.number)) and it.agent), None)
        worker.phase = Phase.RESET
        for row in self.rows:
            standing = order.standings[row.number]
            row.episode, state = standing.episode, standing.state
            if state is None:
                continue
            if packed is None or standing.actions is None:
                row.lost = (
                    "its agent has a reset, and no get_state and set_state"
                    if packed is None
                    else "the episode is longer than can be restored"
                )
                row.episode += 1
                continue
            try:
                seed = self._seed_of(row)
                set_states(seed, None)
                row.observation, row.digests, n = apply_actions(
                    row.env, seed, standing.actions, state, worker.row, self._spaces
                )
                row.length = state.length
            except NotRestoredError as error:
                row.lost, n = str(error), state.length
                row.episode += 1
            ran += n
        if packed is not None:
            state_of_agent, self._generators = cloudpickle.loads(packed)
            self.agent.set_state(state_of_agent)
        return ran


class RunningGroups:
    """The groups of environments of fragments that a worker has.

    Args:
        worker: The worker.
        base_version: The agent version in which these environments began.
        n_rows: How many environments a group has.
        make: Makes so many environments.
    """

    def __init__(self, worker: Worker, base_version: int, n_rows: int, make: Callable[[int], list[AnyEnv]]) -> None:
        self.base_version = base_version
        self._worker, self._n_rows, self._make = worker, n_rows, make
        self._seeds = TrajectorySeeds(worker.context.seed, base_version)
        self._groups: dict[int, _Group] = {}
        self._loaded: dict[str, tuple[Any, Any]] = {}

    def close(self) -> None:
        """Close the environments but the worker's own."""
        own = self._worker.environments()
        groups, self._groups = self._groups, {}
        for group in groups.values():
            for row in group.rows:
                if not any(row.env is env for env in own):
                    row.env.close()

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket, which is of one group."""
        worker, number, restored = self._worker, ticket.indices[0], 0
        worker.trajectory = number
        worker.row.begin_trajectory(number)
        is_new = number not in self._groups
        if is_new:
            self._groups[number] = self._made(number, order)
        group = self._groups[number]
        group.update_agent(self._load)
        if is_new and group.rows[0].number in order.standings:
            restored = group.take_over(order)
        group.seconds = [0.0, 0.0, 0.0]
        if not group.run(ticket.version, order.n_timesteps):
            return Outcome(None, 0, 0, len(group.rows), worker.ran_timesteps)
        rollouts = group.gather()
        worker.ran_timesteps += restored
        return Outcome(rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=tuple(group.seconds))

    def _made(self, number: int, order: FragmentOrder) -> _Group:
        first, n_envs, seeds = number * self._n_rows, order.n_envs, self._seeds
        envs = self._make(self._n_rows) if self._groups else [*self._worker.environments()]
        numbers = range(first, min(first + self._n_rows, n_envs))
        rows = [_Row(each, env) for each, env in zip(numbers, envs, strict=False)]  # type: ignore[arg-type]
        return _Group(number, self._n_rows, rows, lambda row: seeds[row.number + row.episode * n_envs], self._worker)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind][0] is not payload:
            self._loaded[kind] = payload, self._worker.load(payload)
        return self._loaded[kind][1]
