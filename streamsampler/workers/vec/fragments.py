"""Run fragments in groups: all environments of a group take each timestep together, in a single agent batch.

Group g has environments `g * n_rows` to `(g + 1) * n_rows - 1`, for any number of workers. So agents with dependent
rows give the same results, too. Each group has a copy of the agent, and its own state of the global generators.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from streamsampler.core.awaiting import completed
from streamsampler.core.errors import ActionError, DataError
from streamsampler.data.recorder import Rollouts
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import Cut, End, Script, trajectory
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.explain import locate, row_at_fault, step_error
from streamsampler.workers.fragment_rows import FragmentRow, fragment_summaries
from streamsampler.workers.fragments import FragmentEnvs, InForce, packed_memory, whose_memory
from streamsampler.workers.generators import drawn_states, set_states
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.resets import EpisodeCheckpoint, FragmentOrder, reset_function
from streamsampler.workers.restoring import AS_GIVEN, AbandonedError, NotRestoredError, no_failure, rounding_for
from streamsampler.workers.vec.agents import AgentPool, BatchedAgent
from streamsampler.workers.vec.driver import RowsDriver
from streamsampler.workers.vec.row_recorders import RowTrajectory


class EnvGroup(RowsDriver):
    """Environments that take each timestep together; their episodes continue from call to call.

    `batch_rows` returns the number of rows in the current agent's batches, at least the number of environments.
    """

    def __init__(
        self, number: int, rows: list[FragmentRow], worker: Worker, batch_rows: Callable[[], int], **more: Any
    ) -> None:  # fmt: skip
        callers = [row.caller for row in rows if row.caller is not None]
        super().__init__(worker, [row.env for row in rows], worker.spaces, len(rows), callers, **more)
        self.number, self.rows, self._batch_rows = number, rows, batch_rows
        self._live = list(range(len(rows)))
        self._rounds = rounding_for(self.spaces[1]) is not AS_GIVEN
        self._most = worker.context.max_episode_length
        self._pool = AgentPool(hint=worker.context.worker_number == 0 and not number)
        self._in_force = InForce(worker, self._update)
        self._seed = rows[0].seed  # for the global generators, and for agents without a reset by rows
        self._generators: Any = None
        self._left: list[int] = []  # the timesteps left in each row
        self._running: list[RowTrajectory] = []  # by row
        self._ended: list[list[RowTrajectory]] = []

    def set_rows(self, n_rows: int) -> None:
        super().set_rows(n_rows)
        n_envs = len(self.rows)
        self._sources = None if n_rows == n_envs else np.where(np.arange(n_rows) < n_envs, np.arange(n_rows), 0)

    @property
    def agent(self) -> BatchedAgent:
        assert self._agent is not None
        return self._agent

    def _update(self, update: Any) -> None:
        self._pool.update(update, self.spaces)

    def _made_agent(self) -> BatchedAgent:
        return self._pool.batched(self._n_rows)

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Make the agent, or apply the latest parameters and filters to it."""
        if self._in_force.apply(load):
            self.set_rows(self._batch_rows())
            self._agent = self._made_agent()
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

    def _begin_agent(self, position: int, _seed: int = 0) -> None:
        prepared = self.agent.prepare([self.rows[position].seed])
        if prepared is not None:
            self._worker.trajectory = self.rows[position].index
            self._worker.phase = Phase.AGENT_RESET
            self.agent.begin(position, prepared, 0)

    def run(self, version: int, n_timesteps: int) -> bool:
        """Run a fragment; return whether its version may still run.

        `worker.trajectory` is the episode at fault when agent or environment raise.
        """
        self._row = self.agent.row = -1
        self._version = version
        self._worker.set_trajectory(self.rows[0].index)
        try:
            self.agent.begin_part()
            return self._run(version, n_timesteps)
        except BaseException as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        worker = self._worker
        position = self._position_at_fault(error)
        row = self.rows[position]
        worker.trajectory = row.index
        if self._hooks:
            self._hooks[position].lost(error)
        if worker.phase is Phase.STEP and self._singles:
            better = step_error(error, self._singles[position], self.spaces[1])
            if better is not None:
                worker.phase = Phase.ACTION if isinstance(better, ActionError) else worker.phase
                raise better from error
        if isinstance(error, DataError) and worker.phase in (Phase.RECORDING, Phase.ACTION):
            locate(error, row.env, None)

    def _position_at_fault(self, error: BaseException) -> int:
        """Return the position of the row at fault; 0 if any row may be."""
        position = max(self._row, self.agent.row)
        if position < 0 and (position := row_at_fault(error, -1)) < 0:
            names = ", ".join(str(row.index) for row in self.rows)
            error.add_note(f"get_actions had the observations of trajectories {names}")
        # A padding row has a copy of the first row's observation.
        return position if 0 <= position < len(self.rows) else 0

    def _run(self, version: int, n_timesteps: int) -> bool:
        worker, rows = self._worker, self.rows
        fresh = set_states(self._seed, self._generators)
        self._recorder.clear()
        self._bind()
        self._ended = [[] for _ in rows]
        self._running = [RowTrajectory(None, 0, 0, position, 0) for position in range(len(rows))]
        self._left = [n_timesteps] * len(rows)
        self.n_ran = worker.ran_timesteps
        if not self._run_rows(version):
            return False
        self._generators = drawn_states(fresh)
        return True

    def _run_rows(self, version: int) -> bool:
        """Run all rows for their remaining timesteps."""
        worker = self._worker
        for position in range(len(self.rows)):
            self._begin(position)
        while any(self._left):
            self._round()
            worker.ran_timesteps = self.n_ran
            if not worker.row.may_run(version):
                return False
        return True

    def _step_all(self) -> None:
        """Send the scripts their actions; all rows have the same number of timesteps left."""
        left = self._left[0] - 1
        self._left = [left] * len(self.rows)
        super()._step_all()
        for position in range(len(self.rows)) if not left else ():
            self._cut(position)

    def _cut(self, position: int) -> None:
        """Suspend a row's episode at the fragment's end."""
        if (script := self.rows[position].script) is not None:
            self._take_end(position, script.throw(Cut()))

    def _begin(self, position: int) -> None:
        """Begin or resume a row's episode."""
        worker, row, began = self._worker, self.rows[position], perf_counter()
        worker.row.set_phase(Phase.RESET)
        row.begin_fragment()
        if row.script is None:
            self._begin_next(position)
        else:
            if self._hooks:
                context = self._context_of(position, row.index, row.seed, self._version)
                self._hooks[position].resume(context, row.length, row.kept, row.info)
            self._running[position] = self._recorder.begin(None, 0, row.index, position)
            self._resume(position, row.script)
        self.seconds[0] += perf_counter() - began

    def _resume(self, position: int, script: Script) -> None:
        self._start(position, script, self._bound(position))
        self._recorder.rows[position].info = self.rows[position].info

    def _begin_next(self, position: int) -> None:
        worker, row = self._worker, self.rows[position]
        worker.phase = Phase.RESET
        worker.set_trajectory(row.index)
        self._running[position] = self._recorder.begin(None, 0, row.index, position)
        if self._hooks:
            self._hooks[position].context = self._context_of(position, row.index, row.seed, self._version)
        row.script = trajectory(
            self._reset_function(row), self._bound(position), row.seed, partial(self._begin_agent, position),
            self._most,
        )  # fmt: skip
        self._start(position, row.script)
        worker.phase = Phase.STEP

    def _reset_function(self, row: FragmentRow) -> Callable[..., Any]:
        return reset_function(row.env, self._worker.resets, (0,))

    def _take_end(self, row: int, end: End) -> None:
        """End a row's part in this fragment, and begin the next episode if timesteps are left."""
        part, of_env = self._running[row], self.rows[row]
        part.length, of_env.length = end.n_timesteps - of_env.length, end.n_timesteps
        of_env.info = end.info
        self._end_part(row, end)
        if end.ended and self._left[row]:
            self._begin_next(row)

    def _end_part(self, position: int, end: End) -> None:
        part, row = self._running[position], self.rows[position]
        if self._hooks and not end.ended:
            row.kept = self._hooks[position].kept()
        self._end_record(part, end)
        self._ended[position].append(part)
        row.end_part(end.observation, ended=end.ended)

    def _end_record(self, part: RowTrajectory, end: End) -> None:
        self._recorder.end(part, end, self.agent, self._worker)

    def metrics(self) -> tuple[tuple[str, str], ...]:
        """Return how each metric is reduced to a number; see `messages.Report`."""
        parts = [part for ended in self._ended for part in ended]
        return tuple({name: how for part in parts for name, how in part.metrics}.items())

    def gather(self) -> Rollouts:
        """Return the parts of this fragment, ordered by environment, then time."""
        worker, parts = self._worker, [each for ended in self._ended for each in ended]
        owners = [each.index for each in parts]
        rollouts = worker.finished(partial(self._gathered, parts), owners, self.rows[0].env)
        state = self._state_of_agent()
        kept = [row.kept for row in self.rows]
        packed = None if state is None else packed_memory(worker, (state, self._generators, kept))
        fragments = fragment_summaries(self.rows, rollouts, restorable=[state is not None] * len(self.rows))
        fragments = [each._replace(group=self.number) for each in fragments]
        rollouts.fragments = (fragments[0]._replace(agent=packed), *fragments[1:])
        return rollouts

    def _state_of_agent(self) -> Any:
        return self.agent.get_state()

    def _set_state_of_agent(self, state: Any, *, is_replaced: bool) -> None:
        if not is_replaced:
            self.agent.set_state(state)

    def _gathered(self, parts: Sequence[RowTrajectory]) -> Rollouts:
        return self._recorder.gather(parts, self._worker.context.allocate)

    def restore_lost(self, standings: Mapping[int, EpisodeCheckpoint], version: int, *, agent_is_replaced: bool) -> int:
        """Continue the episodes of a lost worker; return the timesteps run to restore them.

        `standings` has the state of each row, by environment number. Raises an AbandonedError if the version may not
        run any more.
        """
        packed = next((it.agent for row in self.rows if (it := standings[row.number]).agent), None)
        self._worker.phase = Phase.RESET
        ran = sum(self._restore(row, standings[row.number], version, packed is not None) for row in self.rows)
        if packed is not None:
            try:
                with no_failure(whose_memory(self._worker)):
                    self._restore_agent(packed, is_replaced=agent_is_replaced)
            except NotRestoredError as error:
                self._lose_all(str(error))
        if agent_is_replaced:
            for position, row in enumerate(self.rows):
                if row.length:
                    self._begin_agent(position)
        return ran

    def _restore(self, row: FragmentRow, standing: EpisodeCheckpoint, version: int, agent_is_known: bool) -> int:
        """Restore a row's suspended episode; return the timesteps run for it."""
        return completed(row.restore(self._worker, standing, version, agent_is_known=agent_is_known))

    def _restore_agent(self, packed: bytes, *, is_replaced: bool) -> None:
        memory, generators, kept = pickle.loads(packed)
        self._set_state_of_agent(memory, is_replaced=is_replaced)
        self._generators = generators
        for row, its in zip(self.rows, kept, strict=True):
            row.kept = its if row.length else None

    def _lose_all(self, why: str) -> None:
        """Discard all suspended episodes, because the agent's memory of them is lost."""
        for row in self.rows:
            if row.length:
                row.lose(why)
        self.agent.begin_block(self._seed)


class EnvGroups(FragmentEnvs):
    """The groups of a worker, of `n_rows` environments each; see `FragmentEnvs`.

    `base_version` is the agent version at the start of these environments.
    """

    def __init__(
        self, worker: Worker, base_version: int, n_rows: int, group: Callable[..., EnvGroup] = EnvGroup
    ) -> None:
        super().__init__(worker, base_version)
        self._n_rows, self._group = n_rows, group
        self._groups: dict[int, EnvGroup] = {}
        # The order that replaced a lost worker, maybe some calls ago, and the agent then: groups that were complete are
        # run again in the next call.
        self._known: tuple[FragmentOrder | None, Any] = None, None

    def forget(self) -> None:
        groups, self._groups = self._groups, {}
        for group in groups.values():
            for row in group.rows:
                row.observation = row.script = None
            group.release()
        super().forget()

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket, which has a single group."""
        worker, number, restored = self._worker, ticket.indices[0], 0
        worker.trajectory = None  # updates belong to no trajectory
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
                restored = group.restore_lost(known.standings, ticket.version, agent_is_replaced=replaced)
            except AbandonedError as error:
                worker.ran_timesteps += error.ran
                return Outcome(None, 0, 0)
        group.seconds = [0.0, 0.0, 0.0]
        if not group.run(ticket.version, order.n_timesteps):
            return Outcome(None, 0, 0, len(group.rows), worker.ran_timesteps)
        if known is not order and known is not None and self._has_all(known.standings):
            self._known = None, None  # all groups are restored
        rollouts = group.gather()
        worker.ran_timesteps += restored
        return Outcome(
            rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=tuple(group.seconds),
            metrics=group.metrics(),
        )  # fmt: skip

    def _has_all(self, envs: Iterable[int]) -> bool:
        return all(env // self._n_rows in self._groups for env in envs)

    def _new_group(self, number: int, n_envs: int) -> EnvGroup:
        first = number * self._n_rows
        numbers = range(first, min(first + self._n_rows, n_envs))
        envs = zip(numbers, self._claimed(len(numbers)), strict=True)
        rows = [FragmentRow(env_number, *claimed, n_envs, self._seeds) for env_number, claimed in envs]
        return self._group(number, rows, self._worker)
