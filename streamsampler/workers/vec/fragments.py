"""Run fragments side by side: the environments of a group take each timestep together, in one batch of the agent.

Which environments share a batch, and in which row each is, does not depend on the number of workers: group g has
environments `g * n_rows` to `(g + 1) * n_rows - 1`. So even agents whose rows depend on each other do the same for any
number of workers. Each group has a copy of the agent, and the global generators have their own state in each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from streamsampler.core.errors import ActionError, DataError
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import flag_of, number_of
from streamsampler.data.trees import snapshot
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.explain import locate, row_at_fault, step_error
from streamsampler.workers.fragments import InForce, Row, Running, packed_memory, told, whose_memory
from streamsampler.workers.generators import drawn_states, set_states
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.resets import FragmentOrder, Standing, reset_one
from streamsampler.workers.restoring import AS_GIVEN, AbandonedError, NotRestoredError, no_failure, rounding_for
from streamsampler.workers.vec.agents import AgentPool, BatchedAgent
from streamsampler.workers.vec.lanes import SideBySide
from streamsampler.workers.vec.steps import Trajectory

# ----------------------------------------------------------------------
# Environments of fragments that take each timestep together, and what goes on in them from call to call.


_NEVER = 2**62


class Group(SideBySide):
    """The environments that take each timestep together.

    Args:
        number: The group's number.
        n_rows: How many rows a batch has.
        rows: The environments, as many at most.
        worker: The worker.
    """

    def __init__(self, number: int, n_rows: int, rows: list[Row], worker: Worker) -> None:
        super().__init__(worker, worker.spaces, n_rows)
        self.number, self.rows = number, rows
        self._live = list(range(len(rows)))
        if len(rows) < n_rows:
            self._sources = [row if row < len(rows) else 0 for row in range(n_rows)]
        self._rounds = rounding_for(self.spaces[1]) is not AS_GIVEN
        self._position = -1  # of the row in hand; -1 while it is about all of them
        self._most = worker.context.max_episode_length or _NEVER
        self._pool = AgentPool(hint=worker.context.worker_number == 0 and not number)
        self._in_force = InForce(worker, lambda update: self._pool.update(update, n_rows, self.spaces))
        self._seed = rows[0].seed  # of the global generators, and of agents that are not reset by rows
        self._generators: Any = None
        self._running: list[Trajectory] = []  # by row
        self._ended: list[list[Trajectory]] = []

    @property
    def agent(self) -> BatchedAgent:
        """The agent, for the rows of this group."""
        assert self._agent is not None
        return self._agent

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Make the agent, or hand it the parameters and filters, that are in force."""
        if self._in_force.apply(load):
            self._agent = self._pool.batched(self._n_rows)
            self._begin_new_agent()

    def _begin_new_agent(self) -> None:
        self._masks = None
        if self.agent.takes_masks:
            envs = [row.env for row in self.rows]
            self._masks = RowMasks(self._worker.warn_once, envs, self.spaces[1], self._n_rows)
        self.agent.begin_block(self._seed)
        for position, row in enumerate(self.rows):
            if row.length:
                self._begin_agent(position)

    def _begin_agent(self, position: int) -> None:
        prepared = self.agent.prepare([self.rows[position].seed])
        if prepared is not None:
            self._worker.phase = Phase.AGENT_RESET
            self.agent.begin(position, prepared, 0)

    # ------------------------------------------------------------------ running

    def run(self, version: int, n_timesteps: int) -> bool:
        """Run a fragment; return whether its version may still run.

        Raises:
            BaseException: What agent or environment raise; `worker.trajectory` says in which episode.
        """
        self._position = self.agent.row = -1
        self._worker.take_in_hand(self.rows[0].index)
        try:
            self.agent.begin_part()
            return self._run(version, n_timesteps)
        except BaseException as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        """Say in which row's episode it was raised, and raise a better error where the reason is known."""
        worker = self._worker
        if worker.phase is Phase.STEP and isinstance(error, DataError):
            worker.phase = Phase.RECORDING  # what a step returned
        position = self._position_at_fault(error)
        row = self.rows[position]
        worker.trajectory = row.index
        if worker.phase is Phase.STEP and self._singles:
            better = step_error(error, self._singles[position], self.spaces[1], self._step_all)
            if better is not None:
                worker.phase = Phase.ACTION if isinstance(better, ActionError) else worker.phase
                raise better from error
        if isinstance(error, DataError) and worker.phase in (Phase.RECORDING, Phase.ACTION):
            locate(error, row.env, None)

    def _position_at_fault(self, error: BaseException) -> int:
        """Return the position of the row that an exception is about; the first one, where it may be any."""
        position = max(self._position, self.agent.row)
        if position < 0 and (position := row_at_fault(error, -1)) < 0:
            names = ", ".join(str(row.index) for row in self.rows)
            error.add_note(f"get_actions had the observations of trajectories {names}")
        # A row of no environment has a copy of the first one's observation.
        return position if 0 <= position < len(self.rows) else 0

    def _run(self, version: int, n_timesteps: int) -> bool:
        worker, recorder, rows = self._worker, self._recorder, self.rows
        board = worker.row
        fresh = set_states(self._seed, self._generators)
        recorder.clear()
        self._ended = [[] for _ in rows]
        self._running = [Trajectory(None, 0, 0, position, 0) for position in range(len(rows))]
        for position in range(len(rows)):
            self._begin(position)
        for timestep in range(n_timesteps):
            board.set_phase(Phase.ACTION)
            self._position, began = -1, perf_counter()
            self._choose()
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
        self._generators = drawn_states(fresh)
        return True

    def _begin(self, position: int) -> None:
        """Begin an episode in a row, or go on with the one that is there."""
        worker, row, began = self._worker, self.rows[position], perf_counter()
        self._position = position
        worker.row.set_phase(Phase.RESET)
        info: dict[str, Any] = {}
        row.begin_fragment()
        if not row.length:
            row.observation, info = self._reset(position)
            row.info = info
        self.seconds[0] += perf_counter() - began
        self._record_first(position, row.observation, info)

    def _reset(self, position: int) -> Any:
        worker, row = self._worker, self.rows[position]
        worker.phase = Phase.RESET
        worker.take_in_hand(row.index)
        result = begin_of(self._reset_env(row))
        self._begin_agent(position)
        return result

    def _reset_env(self, row: Row) -> Any:
        return reset_one(row.env, self._worker.resets, 0, row.seed)

    def _record_first(self, position: int, observation: Any, info: dict[str, Any]) -> None:
        """Record the observation that a row's episode begins with, or goes on from."""
        recorder = self._recorder
        self._worker.phase = Phase.RECORDING
        trajectory = Trajectory(None, 0, self.rows[position].index, position, recorder.step)
        trajectory.number = recorder.begin(position, observation, info)
        self._running[position] = trajectory

    def _step_all(self, goes_on: bool) -> None:
        """Step the environments, and begin new episodes where some end, unless the fragment does."""
        worker, recorder, most = self._worker, self._recorder, self._most
        worker.phase = Phase.STEP
        rewards = [0.0] * self._n_rows
        first = (recorder.step - 1) * self._n_rows
        words, timesteps_word, watched = worker.row.words, worker.row.timesteps_word, worker.row.attention
        try:
            for position, row in enumerate(self.rows):
                observation, reward, terminated, truncated, info = row.env.step(self._singles[position])
                if watched:
                    words[timesteps_word] = worker.ran_timesteps + position + 1
                rewards[position] = reward if reward.__class__ is float else number_of(reward)
                if info.__class__ is not dict or info:
                    recorder.record_env_info(first + position, info)
                row.length += 1
                if terminated is not False or truncated is not False or row.length == most:
                    terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
                    if terminated or truncated or row.length == most:
                        self._close(position, observation, terminated, truncated or row.length == most)
                        if goes_on:
                            self._begin_next(position)
                        continue
                row.observation, row.info = observation, info
                recorder.record(position, observation)
        except BaseException:
            self._position = position
            raise
        recorder.rewards.fromlist(rewards)

    def _begin_next(self, position: int) -> None:
        """Begin another episode in a row."""
        row = self.rows[position]
        row.observation, row.info = self._reset(position)
        self._record_first(position, row.observation, row.info)
        self._worker.phase = Phase.STEP

    def _take_infos(self) -> dict[int, Any]:
        return {position: row.info for position, row in enumerate(self.rows)}

    def _close(self, position: int, observation: Any, terminated: bool, truncated: bool) -> None:
        """End the part of a row's episode that is in this fragment."""
        self._running[position].length = self._recorder.step - self._running[position].begun
        self._end_part(position, snapshot(observation), terminated, truncated)

    def _end_part(self, position: int, last: Any, terminated: bool, truncated: bool) -> None:
        trajectory, row = self._running[position], self.rows[position]
        trajectory.end(last, terminated, truncated, self.agent, self._worker)
        self._ended[position].append(trajectory)
        row.end_part(row.observation, ended=terminated or truncated)

    # ------------------------------------------------------------------ what is told of it

    def gather(self) -> Rollouts:
        """Return the parts of episodes in this fragment, in order of environment, then time."""
        worker, parts = self._worker, [each for ended in self._ended for each in ended]
        owners = [each.index for each in parts]
        rollouts = worker.finished(partial(self._gathered, parts), owners, self.rows[0].env)
        state = self.agent.get_state()
        kept = [row.kept for row in self.rows]
        packed = None if state is None else packed_memory(worker, (state, self._generators, kept))
        fragments = told(self.rows, rollouts, restorable=[state is not None] * len(self.rows))
        fragments = [each._replace(group=self.number) for each in fragments]
        rollouts.fragments = (fragments[0]._replace(agent=packed), *fragments[1:])
        return rollouts

    def _gathered(self, parts: Sequence[Trajectory]) -> Rollouts:
        return self._recorder.gather(parts, self._worker.context.allocate)

    def take_over(self, standings: Mapping[int, Standing], version: int, *, agent_is_replaced: bool) -> int:
        """Go on where another worker was lost; return how many timesteps environments were run for it.

        Args:
            standings: Where the rows stand, by the numbers of their environments.
            version: The agent version in hand.
            agent_is_replaced: Whether the agent was replaced since then.

        Raises:
            AbandonedError: The version may not run any more.
        """
        packed = next((it.agent for row in self.rows if (it := standings[row.number]).agent), None)
        self._worker.phase = Phase.RESET
        ran = sum(self._restore(row, standings[row.number], version, packed is not None) for row in self.rows)
        if packed is not None:
            try:
                with no_failure(whose_memory(self._worker)):
                    self._restore_agent(packed, None if agent_is_replaced else self.agent)
            except NotRestoredError as error:
                self._lose_all(str(error))
        if agent_is_replaced:
            for position, row in enumerate(self.rows):
                if row.length:
                    self._begin_agent(position)
        return ran

    def _restore(self, row: Row, standing: Standing, version: int, agent_is_known: bool) -> int:
        """Restore a row's episode, if one went on; return how many timesteps its environment was run for it."""
        return row.restore(self._worker, standing, version, agent_is_known=agent_is_known)

    def _restore_agent(self, packed: bytes, agent: BatchedAgent | None) -> None:
        memory, generators, kept = pickle.loads(packed)
        if agent is not None:
            agent.set_state(memory)
        self._generators = generators
        for row, its in zip(self.rows, kept, strict=True):
            row.kept = its if row.length else None

    def _lose_all(self, why: str) -> None:
        """Let new episodes begin in all rows in which one went on, because the agent remembers none of them."""
        for row in self.rows:
            if row.length:
                row.lose(why)
        self.agent.begin_block(self._seed)


# ----------------------------------------------------------------------


class RunningGroups(Running):
    """The groups of environments of fragments that a worker has; see `Running`.

    Args:
        worker: The worker.
        base_version: The agent version in which these environments began.
        n_rows: How many environments a group has.
        group: Makes a group.
    """

    def __init__(self, worker: Worker, base_version: int, n_rows: int, group: Callable[..., Group] = Group) -> None:
        super().__init__(worker, base_version)
        self._n_rows, self._group = n_rows, group
        self._groups: dict[int, Group] = {}
        # What was told when a lost worker was replaced, maybe some calls ago, and the agent then: groups that were
        # complete are run again in the next call.
        self._known: tuple[FragmentOrder | None, Any] = None, None

    def close(self) -> None:
        """Close the environments; see `Running`."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            for row in group.rows:
                row.observation = None  # in memory that is shared with a process, maybe; groups are freed late, by `gc`
        super().close()

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket, which is of one group."""
        worker, number, restored = self._worker, ticket.indices[0], 0
        worker.trajectory = None  # what is made and updated here is of none
        is_new = number not in self._groups
        if is_new:
            self._groups[number] = self._new_group(number, order.n_envs)
        group = self._groups[number]
        group.update_agent(self._load)
        if order.standings and order is not self._known[0]:
            self._known = order, worker.in_force["agent"]
        known, agent = self._known
        if is_new and known is not None and (first := group.rows[0].number) in known.standings:
            replaced = known.standings[first].agent_is_replaced or agent is not worker.in_force["agent"]
            try:
                restored = group.take_over(known.standings, ticket.version, agent_is_replaced=replaced)
            except AbandonedError as error:
                worker.ran_timesteps += error.ran
                return Outcome(None, 0, 0)
        group.seconds = [0.0, 0.0, 0.0]
        if not group.run(ticket.version, order.n_timesteps):
            return Outcome(None, 0, 0, len(group.rows), worker.ran_timesteps)
        if known is not order and known is not None and self._has_all(known.standings):
            self._known = None, None  # the actions are not needed any more
        rollouts = group.gather()
        worker.ran_timesteps += restored
        return Outcome(
            rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=tuple(group.seconds),
            metrics=group.metrics(),
        )  # fmt: skip

    def _has_all(self, envs: Iterable[int]) -> bool:
        """Return whether these environments are running."""
        return all(env // self._n_rows in self._groups for env in envs)

    def _new_group(self, number: int, n_envs: int) -> Group:
        first = number * self._n_rows
        numbers = range(first, min(first + self._n_rows, n_envs))
        envs = zip(numbers, self._claimed(len(numbers)), strict=True)
        rows = [Row(env_number, *claimed, n_envs, self._seeds) for env_number, claimed in envs]
        return self._group(number, self._n_rows, rows, self._worker)
