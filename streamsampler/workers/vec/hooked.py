"""Call hooks and `drop_if` for trajectories that run side by side, and hooks for fragments that do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import reset_agent_function
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import flag_of, number_of
from streamsampler.data.trees import Tree, snapshot
from streamsampler.protocol.messages import Dropped, Phase
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import summary_of
from streamsampler.workers.fragments import Row
from streamsampler.workers.hooks import HookCaller, TrajectoryContext, check_metrics, reset_of
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.vec.fragments import Group
from streamsampler.workers.vec.lanes import LaneRunner, SideBySide
from streamsampler.workers.vec.rows import InfosInAnyOrder, info_of_row
from streamsampler.workers.vec.steps import RunningTicket, StepRecorder, Trajectory


class HookedRows(SideBySide):
    """Calls hooks for what goes on in rows; see `SideBySide` for the rest.

    Each row has hooks of its own: those that keep something from one timestep to the next see one trajectory after the
    other, as in `DefaultWorker`.

    Args:
        args: Those of the class that follows.
        callers: For each row what calls its hooks.
        more: Further ones of that class.
    """

    def __init__(self, *args: Any, callers: Sequence[HookCaller], **more: Any) -> None:
        super().__init__(*args, **more)
        self._episode_infos = _EpisodeInfos("episode_infos")
        self._recorder = StepRecorder(*self.spaces, self._n_rows, self._episode_infos)
        self._callers = callers
        self._contexts: dict[int, TrajectoryContext] = {}  # by row
        self._metrics: dict[Trajectory, list[str]] = {}  # the names of those of trajectories that have ended
        self._infos_together: Mapping[str, Any] = {}  # the agent's, of all rows
        self._info_of: dict[int, dict[str, Any]] = {}  # the agent's, where there is one for each row

    def _new_context(self, row: int, env: Any, index: int, seed: int, version: int) -> TrajectoryContext:
        assert self._agent is not None
        agents, one_by_one, worker = self._agent.agents, self._agent.one_by_one, self._worker
        agent = agents[row % len(agents)]
        return TrajectoryContext(
            env, agent, index, seed, worker.agent_version(version), worker.context.worker_number, _Row(self, row),
            reset=reset_of(env, worker, index), reset_agent=reset_agent_function(agent) if one_by_one else None,
        )  # fmt: skip

    def _noted(self, row: int, result: Any) -> Any:
        """Return what a reset returned, which the context of the trajectory has from now on."""
        result = begin_of(result)
        context = self._contexts[row]
        context.observation, context.info = result
        context.reset_info = own_copy(context.info)
        return result

    def _acts(self, row: int) -> TrajectoryContext:
        """Show the action of which a row's environment gets a copy, and what the agent said of it."""
        self._worker.enter(Phase.STEP)
        context = self._contexts[row]
        context.action = self._singles[row]
        context.agent_info = self._info_of.get(row) or info_of_row(self._infos_together, row)
        return context

    def _take(
        self, row: int, context: TrajectoryContext, observation: Any, reward: Any, terminated: Any, truncated: Any,
        info: Any,
    ) -> None:  # fmt: skip
        """Record what a row's step returned, but for its observation, and call the hook of timesteps."""
        number = (self._recorder.step - 1) * self._n_rows + row
        self._recorder.rewards[number] = context.reward = number_of(reward)
        if info.__class__ is not dict or info:
            self._recorder.record_env_info(number, info)
        context.terminated, context.truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        context.observation, context.info = observation, info
        context.timestep += 1
        self._callers[row].timestep(context)

    def _call_end(self, row: int, trajectory: Trajectory, truncated: bool) -> None:
        """Call the hook of a row's end, and record the metrics."""
        context = self._contexts[row]
        context.truncated = truncated
        self._callers[row].end(context)
        self._worker.enter(Phase.RECORDING)
        check_metrics(context)
        if context.metrics:
            self._episode_infos.record(trajectory.number, context.metrics)
            self._metrics[trajectory] = list(context.metrics)
        del self._contexts[row]  # what is found wrong after the end is not shown

    def _call_lost(self, row: int, error: BaseException) -> None:
        """Call the hook of what is lost, if a row's trajectory has begun, and not ended."""
        if (context := self._contexts.get(row)) is not None:
            self._callers[row].lost(context, error)

    def _aggregations(self, trajectories: Iterable[Trajectory]) -> tuple[tuple[str, str], ...]:
        how = self._callers[0].aggregation
        names = dict.fromkeys(name for each in trajectories for name in self._metrics.get(each, ()))
        return tuple((name, how.get(name, "mean")) for name in names)

    def _record_agent_infos(self, infos: dict[str, Any]) -> None:
        super()._record_agent_infos(infos)
        self._infos_together = infos

    def _record_agent_info(self, row: int, info: Any) -> None:
        super()._record_agent_info(row, info)
        self._info_of[row] = info

    def _choose(self) -> None:
        self._infos_together = {}
        self._info_of.clear()
        super()._choose()

    def _recorded_of(self, row: int) -> tuple[int, int]:
        """Return in which step the records of a row's trajectory begin, and how many timesteps they have."""
        raise NotImplementedError

    def copies_in_hand(self, row: int) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of observations, actions and rewards of a row's trajectory, as far as it was recorded."""
        recorder, (begun, n) = self._recorder, self._recorded_of(row)
        numbers = (begun + np.arange(n)) * self._n_rows + row
        rewards = np.array([recorder.rewards[number] for number in numbers.tolist()], np.float64)
        return recorder.observations.gather(numbers), recorder.actions.gather(numbers), rewards


# ----------------------------------------------------------------------


class HookedRunner(HookedRows, LaneRunner):
    """Runs the same trajectories as a `LaneRunner`, more slowly, and calls hooks."""

    # ------------------------------------------------------------------ tickets

    def metrics(self) -> tuple[tuple[str, str], ...]:
        """Return how each metric of the ticket in hand becomes one number; see `messages.Report`."""
        return self._aggregations(self.ended())

    def end_ticket(self) -> None:
        """Forget the ticket in hand."""
        for each in self.ended():
            self._metrics.pop(each, None)
        super().end_ticket()

    def forget(self) -> tuple[int, int]:
        """Forget all tickets; see `LaneRunner.forget`."""
        self._metrics.clear()
        self._contexts.clear()
        return super().forget()

    # ------------------------------------------------------------------ beginning and ending trajectories

    def _begin(self, row: int, running: RunningTicket, position: int) -> None:
        found: tuple[RunningTicket, int] | None = (running, position)
        while found is not None and not self._begin_one(row, *found):
            found = self._tickets.next_in(row)

    def _begin_one(self, row: int, running: RunningTicket, position: int) -> bool:
        """Begin a trajectory in a row; return whether it goes on."""
        context = self._contexts[row] = self._context_of(row, running, position)
        super()._begin(row, running, position)
        try:
            self._callers[row].start(context)
        except AbnormalTrajectoryError as error:
            self._leave_out(row, error)
            return False
        self._worker.enter(Phase.STEP)
        self._worker.phase = Phase.RECORDING
        return True

    def _context_of(self, row: int, running: RunningTicket, position: int) -> TrajectoryContext:
        ticket = running.ticket
        return self._new_context(
            row, self._envs[row], ticket.indices[position], running.seeds[position], ticket.version
        )

    def _reset(self, row: int, index: int, seed: int) -> Any:
        return self._noted(row, super()._reset(row, index, seed))

    def _leave_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        """End a row's trajectory, which is in no batch."""
        trajectory, context = self._running[row], self._contexts[row]
        assert trajectory is not None
        self._callers[row].lost(context, error)
        trajectory.length = context.timestep
        trajectory.left_out = Dropped(trajectory.position, str(self._worker.phase), summary_of(error))
        trajectory.ticket.n_ended += 1
        self._running[row] = None

    def _end(self, row: int, observation: Any, terminated: bool, truncated: bool) -> None:
        trajectory = self._running[row]
        assert trajectory is not None
        self._call_end(row, trajectory, truncated)
        super()._end(row, observation, terminated, truncated)

    # ------------------------------------------------------------------ stepping

    def _step_all(self) -> None:
        """Step the environments, record what they return, and call hooks."""
        self._recorder.rewards.fromlist([0.0] * self.n_slots)
        for row in self._live:
            self._row = row
            context = self._acts(row)
            # Unpacked here, for `explain.step_error`.
            observation, reward, terminated, truncated, info = self._step_of[row](own_copy(context.action))
            self.n_ran += 1
            self._worker.row.words[self._worker.row.timesteps_word] = self.n_ran
            try:
                self._take(row, context, observation, reward, terminated, truncated, info)
            except AbnormalTrajectoryError as error:
                self._leave_out(row, error)
                self._fill_row(row)
                continue
            self._worker.enter(Phase.STEP)
            self._go_on(row, context, observation)
        self._find_live()

    def _go_on(self, row: int, context: TrajectoryContext, observation: Any) -> None:
        """End a row's trajectory, or record the observation that its next action is chosen on."""
        at_limit = context.timestep >= self._limit
        if context.terminated or context.truncated or at_limit:
            self._end(row, observation, context.terminated, context.truncated or at_limit)
        else:
            self._recorder.record(row, observation)

    def _recorded_of(self, row: int) -> tuple[int, int]:
        trajectory = self._running[row]
        return 0 if trajectory is None else trajectory.begun, self._contexts[row].timestep

    def _found_at_fault(self, error: BaseException) -> Trajectory | None:
        found = super()._found_at_fault(error)
        # What is raised for a later ticket is raised again at its turn.
        if found is not None and found.ticket is self._tickets.in_hand:
            self._call_lost(found.row, error)
        return found


# ----------------------------------------------------------------------


class HookedGroup(HookedRows, Group):
    """Runs the same episodes as a `Group`, and calls hooks: an episode starts and ends once, in whichever calls."""

    def __init__(self, number: int, n_rows: int, rows: list[Row], worker: Worker, **more: Any) -> None:
        callers = [row.caller for row in rows if row.caller is not None]
        super().__init__(number, n_rows, rows, worker, callers=callers, **more)
        self._version = 0
        self._earlier = [0] * len(rows)  # how many timesteps each row's episode had in earlier calls

    def metrics(self) -> tuple[tuple[str, str], ...]:
        """Return how each metric of the fragment becomes one number; see `messages.Report`."""
        return self._aggregations(self._metrics)

    def run(self, version: int, n_timesteps: int) -> bool:
        """Run a fragment; see `Group.run`."""
        self._version = version
        self._metrics.clear()
        self._contexts.clear()
        return super().run(version, n_timesteps)

    def _context_of(self, position: int) -> TrajectoryContext:
        row = self.rows[position]
        context = self._new_context(position, row.env, row.index, row.seed, self._version)
        self._earlier[position] = row.length
        if row.kept is not None:
            context.go_on(row.kept, row.length)
        context.observation = row.observation
        self._contexts[position] = context
        return context

    def _begin(self, position: int) -> None:
        if self.rows[position].length:
            self._context_of(position)
        super()._begin(position)

    def _reset(self, position: int) -> Any:
        self._context_of(position)
        return self._noted(position, super()._reset(position))

    def _record_first(self, position: int, observation: Any, info: dict[str, Any]) -> None:
        super()._record_first(position, observation, info)
        if not self.rows[position].length:
            self._callers[position].start(self._contexts[position])

    def _step_all(self, goes_on: bool) -> None:
        """Step the environments, record what they return, and call hooks; see `Group._step_all`."""
        self._recorder.rewards.fromlist([0.0] * self._n_rows)
        for position, row in enumerate(self.rows):
            self._position = position
            context = self._acts(position)
            observation, reward, terminated, truncated, info = row.env.step(own_copy(context.action))
            shown = self._worker.row
            shown.words[shown.timesteps_word] = self._worker.ran_timesteps + position + 1
            self._take(position, context, observation, reward, terminated, truncated, info)
            self._worker.enter(Phase.STEP)
            row.length += 1
            truncated = context.truncated or row.length == self._most
            if context.terminated or truncated:
                self._close(position, observation, context.terminated, truncated)
                if goes_on:
                    self._begin_next(position)
            else:
                row.observation, row.info = observation, info
                self._recorder.record(position, observation)

    def _end_part(self, position: int, last: Any, terminated: bool, truncated: bool) -> None:
        if terminated or truncated:
            self._call_end(position, self._running[position], truncated)
        else:
            self.rows[position].kept = self._contexts[position].kept()
        super()._end_part(position, last, terminated, truncated)

    def _recorded_of(self, row: int) -> tuple[int, int]:
        return self._running[row].begun, self._contexts[row].timestep - self._earlier[row]

    def _position_at_fault(self, error: BaseException) -> int:
        position = super()._position_at_fault(error)
        self._call_lost(position, error)
        return position


class _Row:
    """Shows the trajectory in a row as it is recorded."""

    def __init__(self, runner: HookedRows, row: int) -> None:
        self._runner, self._row = runner, row

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of its observations, actions and rewards, as far as it was recorded."""
        return self._runner.copies_in_hand(self._row)


class _EpisodeInfos(InfosInAnyOrder):
    """Collects infos of trajectories at their starts and their ends."""

    def record(self, step: int, info: dict[str, Any]) -> None:
        """Record a copy of an info; see `InfoRecorder.record`."""
        InfoRecorder(self._path).record(step, info)  # checks it
        super().record(step, {key: snapshot(value) for key, value in info.items()})
