"""Several agents in many environments: ask their policies across rows, and record each environment's agents.

`PolicyBatches` stands in a driver for the agent, `MultiAgentRows` for the recorder.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.core.seeding import SeedUse, derived_seeds
from streamsampler.data.agent_rows import AgentTicketRollouts, in_order, put_together
from streamsampler.data.copying import Allocate
from streamsampler.data.info_columns import join_undecided
from streamsampler.data.recorder import PolicyRollouts, Rollouts
from streamsampler.data.trees import Tree
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import End
from streamsampler.workers.base import Worker
from streamsampler.workers.restoring import rounding_for
from streamsampler.workers.several.policies import PolicyInPlay
from streamsampler.workers.several.policy_set import EnvAgents, PolicySet
from streamsampler.workers.several.recorder import JointRecorder
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.batch_infos import BatchInfos
from streamsampler.workers.vec.row_recorders import RowTrajectory

_ACTION, _RECORDING = Phase.ACTION, Phase.RECORDING


class PolicyBatches(BatchedAgent):
    """The policies that play in many environments, as a `BatchedAgent`: a row is an environment.

    `records_all_infos` lets `choose` record the infos of policies asked across environments, too.
    """

    def __init__(self, players: PolicySet, worker: Worker, *, records_all_infos: bool = False) -> None:
        self.players, self._worker, self._records_all_infos = players, worker, records_all_infos

    @property
    def agents(self) -> list[Any]:  # type: ignore[override]
        """The tables of the environments: hooks see a table as the environment's agent."""
        return self.players.tables

    @property
    def can_wait(self) -> bool:  # type: ignore[override]
        return all(policy.can_wait for policy in self.players.policies.values())

    def prepare(self, seeds: list[int]) -> Any:
        return derived_seeds(seeds, SeedUse.AGENT)

    def begin(self, row: int, prepared: Any, position: int) -> None:
        """Begin the worker's current trajectory in a row."""
        assert self._worker.trajectory is not None
        self.players.tables[row].begin(self._worker.trajectory, prepared[position])

    def get_state(self) -> Any:
        return self.players.get_state() if self.players.are_restorable else None

    def set_state(self, state: Any) -> None:
        self.players.set_state(state)

    def begin_part(self) -> None:
        """Do nothing: `PolicySet.begin_part` receives the positions of resumed episodes."""

    def _get_value(self, row: int) -> Callable[[Any], Any] | None:  # noqa: ARG002 - agents' values are recorded
        return None

    def choose(
        self, observations: Any, live: Sequence[int], worker: Worker, record_info: Callable[[int, Any], None],
        masks: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        """Choose the actions of rows, each a dict by agent; see `BatchedAgent.choose`."""
        del observations, masks  # tables have the observations
        words, timesteps_word, watched = worker.row.words, worker.row.timesteps_word, worker.row.attention
        n_before, asked = words[timesteps_word], 0

        def set_trajectory(row: int) -> None:
            nonlocal asked
            self.row = row
            if watched and row >= 0:
                words[timesteps_word] = n_before + asked
                asked += 1

        worker.phase = _ACTION
        tables = self.players.tables
        self.players.choose([tables[row] for row in live], set_trajectory)
        self.row = -1
        actions: list[Any] = [None] * len(tables)
        for row in live:
            actions[row] = tables[row].actions()
        if self._records_all_infos or not all(each.policy.crosses for each in self.players.asked):
            worker.phase = _RECORDING
            for row in live:
                infos = tables[row].infos() if self._records_all_infos else tables[row].infos_apart()
                if any(info.__class__ is not dict or info for info in infos.values()):
                    record_info(row, infos)
        return actions, {}


class MultiAgentRows:
    """Records the agents of n environments, with the interface of a `StepRecorder`.

    Each environment has a recorder for each of its tickets.

    Attributes:
        n_rows: The number of environments.
        rows: The recorders that the environments' scripts write to.
        keeps_sent: Whether recorders keep the joint actions of parts.
        step: The current step.
    """

    def __init__(self, envs: Sequence[MultiAgentEnv]) -> None:
        self._envs, self.n_rows, self.keeps_sent = envs, len(envs), False
        self._roundings = [rounding_for(env.action_space) for env in envs]
        self.step = 0
        self._make_for(None, ())

    def use_policies(self, players: PolicySet) -> None:
        """Record these policies, in the same environments."""
        if players.tables is not self._tables:
            self._make_for(players, players.tables)

    def _make_for(self, players: PolicySet | None, tables: Sequence[EnvAgents]) -> None:
        self._players, self._tables = players, tables
        self._infos: dict[str, BatchInfos] = {}  # of policies asked across environments
        self.rows: list[Any] = [None] * self.n_rows
        self._asked: list[list[int]] = [[] for _ in range(self.n_rows)]  # the steps of each row
        self._of_tickets: list[dict[Hashable, JointRecorder]] = [{} for _ in range(self.n_rows)]
        self._free: list[list[JointRecorder]] = [[] for _ in range(self.n_rows)]

    @property
    def first(self) -> int:
        """The number of the first row's timestep in the last step."""
        return (self.step - 1) * self.n_rows

    def position_of(self, row: int) -> int:
        return row

    def n_asked(self, row: int, begun: int) -> int:
        """Return the number of steps since `begun` in which policies chose for a row."""
        asked = self._asked[row]
        return len(asked) - bisect_left(asked, begun)

    def put_in_order(self, rows: Sequence[int]) -> None:
        """Do nothing: each row has a recorder of its own."""

    def end_step(self, rows: Sequence[int]) -> None:
        """Do nothing: recorders have the rewards."""

    begin_steps = end_step

    def record_reward_of(self, row: int) -> None:
        """Do nothing: recorders have the rewards."""

    def begin(self, ticket: Hashable, position: int, index: int, row: int) -> RowTrajectory:
        """Return a new trajectory, before its script runs in a row."""
        of_tickets = self._of_tickets[row]
        if ticket not in of_tickets:
            free = self._free[row]
            of_tickets[ticket] = free.pop() if free else JointRecorder(self._envs[row], self._tables[row])
            of_tickets[ticket].clear()
            of_tickets[ticket].sent = [] if self.keeps_sent else None
        self.rows[row] = of_tickets[ticket]
        return RowTrajectory(ticket, position, index, row, self.step)

    def batch(self, rows: Sequence[int], sources: NDArray[np.int64] | None) -> Tree:
        """Begin the next step; the tables have the observations."""
        del sources
        for row in rows:
            self._asked[row].append(self.step)
        self.step += 1
        return {}

    def repeated(self, row: int) -> Tree:
        """Return nothing: policies see only the observations of the live rows."""
        del row
        return {}

    def record_actions(self, live: Sequence[int], actions: list[Any], *, rounds: bool) -> list[Any]:
        """Record the actions of rows; return them, with the floats of their spaces if `rounds`."""
        rows = self.rows
        for row in live:
            try:
                rows[row].record_action(actions[row])
            except DataError as error:
                error.row = row
                raise
        self._record_infos()
        if rounds:
            for row in live:
                actions[row] = self._roundings[row].round(actions[row])
        return actions

    def _record_infos(self) -> None:
        """Record the last step's infos of policies asked across environments."""
        assert self._players is not None
        for asked in self._players.asked:
            if asked.infos and (policy := asked.policy).crosses:
                infos = self._infos.setdefault(policy.name, BatchInfos("agent_infos"))
                infos.record((self.step - 1) * policy.n_rows + asked.numbers, asked.infos, asked.numbers)

    def record_agent_info(self, number: int, infos: Any) -> None:
        """Record the last step's infos of a row's agents; for the number see `StepRecorder`."""
        step, row = divmod(number, self.n_rows)
        self.rows[row].record_agent_info(step, infos)

    def end(self, trajectory: RowTrajectory, end: End, agent: BatchedAgent, worker: Worker) -> None:
        del agent, worker  # agents' values are recorded
        recorder = self.rows[trajectory.row]
        if recorder.metrics:
            trajectory.metrics, recorder.metrics = tuple(recorder.metrics.items()), {}
        n_before = recorder.n_before
        recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)
        trajectory.recorded = recorder, recorder.n_trajectories - 1, n_before

    def leave_out(self, row: int) -> None:
        self.rows[row].abandon()

    def infos_of(self, row: int) -> dict[str, Any]:
        return self._tables[row].infos()

    def clear(self) -> None:
        self.keep(())
        self._infos.clear()
        self.step = 0

    def keep(self, trajectories: Sequence[RowTrajectory]) -> None:
        """Forget all tickets but those of these trajectories."""
        step = min((each.begun for each in trajectories), default=self.step)
        if 2 * step >= self.step:  # keeping moves the rest, so it must be worth it
            for name, infos in self._infos.items():
                infos.discard_before(step * self._policy(name).n_rows)
            self.step -= step
            for each in trajectories:
                each.begun -= step
            self._asked = [[it - step for it in asked[bisect_left(asked, step) :]] for asked in self._asked]
        tickets = {each.ticket for each in trajectories}
        for of_tickets, free in zip(self._of_tickets, self._free, strict=True):
            for ticket in [it for it in of_tickets if it not in tickets]:
                free.append(of_tickets.pop(ticket))

    def gather(self, trajectories: Sequence[RowTrajectory], allocate: Allocate) -> Rollouts:
        """Return ended trajectories of a ticket, in order; errors have the trajectory's position as `position`."""
        found, played = self._parts(trajectories)
        rollouts = in_order([(found[each.recorded[0]], each.recorded[1]) for each in trajectories], allocate)
        rollouts.policies = put_together(played, allocate)
        for each in rollouts.policies:
            if self._policy(each.policy).crosses:
                self._add_infos(each, trajectories)
        remarks: dict[str, str] = {}
        for it in found.values():
            remarks = dict(it.remarks) | remarks
        rollouts.remarks = tuple(remarks.items())
        return rollouts

    def _parts(
        self, trajectories: Sequence[RowTrajectory]
    ) -> tuple[dict[JointRecorder, Rollouts], list[AgentTicketRollouts]]:
        """Return each recorder's rollouts of trajectories, and the agents' rows by position in `trajectories`."""
        positions: dict[JointRecorder, list[int]] = {}
        for position, trajectory in enumerate(trajectories):
            positions.setdefault(trajectory.recorded[0], []).append(position)
        found: dict[JointRecorder, Rollouts] = {}
        played: list[AgentTicketRollouts] = []
        errors: list[DataError] = []
        for recorder, own in positions.items():
            if recorder.n_trajectories > len(own):
                recorder.discard_after(len(own))  # a later trajectory was wrong: see `Worker.finished_in_order`
            try:
                found[recorder], parts = recorder.parts()
            except DataError as error:
                error.position = own[error.position or 0]
                errors.append(error)
                continue
            played += [it._replace(of=[(own[at], policy, number) for at, policy, number in it.of]) for it in parts]
        if errors:
            raise min(errors, key=lambda error: error.position or 0)
        return found, played

    def _steps_of(
        self, trajectories: Sequence[RowTrajectory], owners: NDArray[np.int64], env_timesteps: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the step that chose each timestep; -1 for timesteps of an earlier part."""
        steps, n_before = [], np.array([it.recorded[2] for it in trajectories], np.int64)
        for it in trajectories:
            asked = self._asked[it.row]
            first = bisect_left(asked, it.begun)
            steps.append(np.array(asked[first : first + it.length], np.int64))
        starts = np.cumsum([0, *map(len, steps)])
        since = env_timesteps - n_before[owners]
        found: NDArray[np.int64] = np.concatenate(steps)[starts[owners] + np.maximum(since, 0)]
        found[since < 0] = -1
        return found

    def _policy(self, name: str) -> PolicyInPlay:
        assert self._players is not None
        return self._players.policies[name]

    def _add_infos(self, played: PolicyRollouts, trajectories: Sequence[RowTrajectory]) -> None:
        """Add the infos of a policy asked across environments: its rows are agents of environments."""
        if played.policy not in self._infos:
            return
        policy, rollouts = self._policy(played.policy), played.rollouts
        of = [trajectories[episode].row for episode in played.episodes.tolist()]
        rows = [policy.row_of(row, number) for row, number in zip(of, played.agents.tolist(), strict=True)]
        steps = self._steps_of(trajectories, np.repeat(played.episodes, rollouts.lengths), played.env_timesteps)
        numbers = steps * policy.n_rows + np.repeat(np.array(rows, np.int64), rollouts.lengths)
        ends = np.cumsum(rollouts.lengths)

        def owners(steps: NDArray[np.int64]) -> NDArray[np.int64]:
            return played.episodes[np.searchsorted(ends, steps, side="right")]

        is_earlier = steps < 0  # chosen in an earlier part, and recorded again in this part
        numbers[is_earlier] = -1
        found = self._infos[played.policy].select(numbers, owners)
        if is_earlier.any():
            sources = [(rollouts.agent_infos if earlier else found) for earlier in is_earlier.tolist()]
            found = join_undecided([(it, place, place + 1) for place, it in enumerate(sources)])
        rollouts.agent_infos = found
