"""Call hooks and `drop_if` for trajectories that run side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import reset_agent_function
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import flag_of, number_of
from streamsampler.data.trees import Tree, snapshot
from streamsampler.protocol.messages import Dropped, Phase
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import begin_of, summary_of
from streamsampler.workers.hooks import HookCaller, TrajectoryContext, refuse_hidden_infos, reset_of
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.rows import InfosInAnyOrder, info_of_row
from streamsampler.workers.vec.steps import RunningTicket, StepRecorder, Trajectory


class HookedRunner(LaneRunner):
    """Runs the same trajectories as a `LaneRunner`, more slowly, and calls hooks.

    Each row has hooks of its own: those that keep something from one timestep to the next see one trajectory after the
    other, as in `DefaultWorker`.

    Args:
        envs: The environments.
        worker: Shows phase and trajectory.
        callers: For each environment what calls its hooks.
    """

    def __init__(self, envs: list[gymnasium.Env[Any, Any]], worker: Worker, callers: Sequence[HookCaller]) -> None:
        super().__init__(envs, worker)
        self._episode_infos = _EpisodeInfos("episode_infos")
        self._recorder = StepRecorder(*self.spaces, self.n_slots, self._episode_infos)
        self._callers = callers
        self._contexts: dict[int, TrajectoryContext] = {}  # by row
        self._metrics: dict[Trajectory, list[str]] = {}  # the names of those of trajectories that have ended
        self._infos_together: Mapping[str, Any] = {}  # the agent's, of all rows
        self._info_of: dict[int, dict[str, Any]] = {}  # the agent's, where there is one for each row

    # ------------------------------------------------------------------ tickets

    def metrics(self) -> tuple[tuple[str, str], ...]:
        """Return how each metric of the ticket in hand becomes one number; see `messages.Report`."""
        how = self._callers[0].aggregation
        names = dict.fromkeys(name for each in self.ended() for name in self._metrics.get(each, ()))
        return tuple((name, how.get(name, "mean")) for name in names)

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
        assert self._agent is not None
        agents, one_by_one = self._agent.agents, self._agent.one_by_one
        agent, env, ticket = agents[row % len(agents)], self._envs[row], running.ticket
        index = ticket.indices[position]
        return TrajectoryContext(
            env, agent, index, running.seeds[position], self._worker.agent_version(ticket.version), _Row(self, row),
            reset=reset_of(env, self._worker, index),
            reset_agent=reset_agent_function(agent) if one_by_one else None,
        )  # fmt: skip

    def _reset(self, row: int, index: int, seed: int) -> Any:
        return self._noted(row, super()._reset(row, index, seed))

    def _noted(self, row: int, result: Any) -> Any:
        """Return what a reset returned, which the context of the trajectory has from now on."""
        result = begin_of(result)
        context = self._contexts[row]
        context.observation, context.info = result
        context.reset_info = context.info
        return result

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
        trajectory, context = self._running[row], self._contexts[row]
        assert trajectory is not None
        context.truncated = truncated
        self._callers[row].end(context)
        self._worker.enter(Phase.RECORDING)
        if context.metrics:
            refuse_hidden_infos(context)
            self._episode_infos.record(trajectory.number, context.metrics)
            self._metrics[trajectory] = list(context.metrics)
        super()._end(row, observation, terminated, truncated)

    # ------------------------------------------------------------------ stepping

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

    def _step_all(self) -> None:
        """Step the environments, record what they return, and call hooks."""
        worker, recorder = self._worker, self._recorder
        recorder.rewards.fromlist([0.0] * self.n_slots)
        for row in self._live:
            self._row = row
            worker.enter(Phase.STEP)
            context = self._contexts[row]
            context.action = self._singles[row]
            context.agent_info = self._info_of.get(row) or info_of_row(self._infos_together, row)
            observation, reward, terminated, truncated, info = self._step_of[row](context.action)
            self.n_ran += 1
            worker.row.words[worker.row.timesteps_word] = self.n_ran
            number = (recorder.step - 1) * self.n_slots + row
            recorder.rewards[number] = context.reward = number_of(reward)
            if info.__class__ is not dict or info:
                recorder.record_env_info(number, info)
            context.terminated, context.truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
            context.observation, context.info = observation, info
            context.timestep += 1
            try:
                self._callers[row].timestep(context)
            except AbnormalTrajectoryError as error:
                self._leave_out(row, error)
                self._fill_row(row)
                continue
            worker.enter(Phase.STEP)
            self._go_on(row, context)
        self._find_live()

    def _go_on(self, row: int, context: TrajectoryContext) -> None:
        """End a row's trajectory, or record the observation that its next action is chosen on."""
        at_limit = context.timestep >= self._limit
        if context.terminated or context.truncated or at_limit:
            self._end(row, context.observation, context.terminated, context.truncated or at_limit)
        else:
            self._recorder.record(row, context.observation)

    def copies_in_hand(self, row: int) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of observations, actions and rewards of a row's trajectory, as far as it was recorded."""
        recorder, trajectory = self._recorder, self._running[row]
        begun = 0 if trajectory is None else trajectory.begun
        numbers = (begun + np.arange(self._contexts[row].timestep)) * self.n_slots + row
        rewards = np.array([recorder.rewards[number] for number in numbers.tolist()], np.float64)
        return recorder.observations.gather(numbers), recorder.actions.gather(numbers), rewards

    def _found_at_fault(self, error: BaseException) -> Trajectory | None:
        found = super()._found_at_fault(error)
        # What is raised for a later ticket is raised again at its turn.
        if found is not None and found.ticket is self._tickets.in_hand:
            self._callers[found.row].lost(self._contexts[found.row], error)
        return found


class _Row:
    """Shows the trajectory in a row as it is recorded."""

    def __init__(self, runner: HookedRunner, row: int) -> None:
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
