"""Drive the scripts of several rows: a single agent call chooses the actions of all live rows.

`RowsDriver` owns each row's script and binding, and the recorder that rows share. An exception belongs to the row
`_row`; -1 stands for the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import reset_agent_function
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.outer_wrappers import OuterWrappers
from streamsampler.rollouts.script import Binding, End, Script, own_error, phase_of
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.seams import ShownTrajectory
from streamsampler.workers.trajectory_context import TrajectoryContext, reset_of
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.batch_infos import info_of_row
from streamsampler.workers.vec.row_recorders import BatchRecorder
from streamsampler.workers.vec.rows import padded, singles_of
from streamsampler.workers.vec.several_agents import MultiAgentRows

# An enum's member costs 100 ns to look up on Python 3.11.
_RECORDING, _STEP, _ACTION = Phase.RECORDING, Phase.STEP, Phase.ACTION
_ACTION_NUMBER, _STEP_NUMBER = phase_number(Phase.ACTION), phase_number(Phase.STEP)


class RowsDriver:
    """Drives the scripts of a fixed number of rows, each with its own environment.

    Subclasses start scripts, and end their trajectories.

    Args:
        worker: Shows the phase.
        envs: The environments, as many as rows or fewer.
        spaces: Observation and action space of an environment.
        n_rows: The rows of the agent's batches: those of the environments, then padding.
        callers: The hooks of each environment: they see its trajectories one after the other, as in `DefaultWorker`.
            Empty without hooks.
        in_order: See `StepRecorder`.

    Attributes:
        spaces: The same.
        seconds: The seconds of resets, of the agent and of steps, since a caller set them to 0.
        n_ran: The timesteps run and not yet reported.
    """

    def __init__(
        self, worker: Worker, envs: Sequence[Any], spaces: tuple[Any, Any], n_rows: int,
        callers: Sequence[HookCaller] = (), *, in_order: bool = True,
    ) -> None:  # fmt: skip
        self._worker, self._envs, self.spaces, self._n_rows = worker, envs, spaces, n_rows
        self._in_order = in_order
        several = [each for env in envs if isinstance(each := getattr(env, "unwrapped", None), MultiAgentEnv)]
        self._recorder: BatchRecorder | MultiAgentRows
        if several:
            self._recorder = MultiAgentRows(several)
        else:
            self._recorder = self._new_recorder(is_shared=in_order and not callers)
        self._hooks = [ShownTrajectory(worker, caller) for caller in callers]
        self._agent: BatchedAgent | None = None
        self._sends: list[Any] = [None] * len(envs)  # `send` of each row's script
        self._bindings: list[Binding] = []  # for new scripts
        self._live: list[int] = []  # the rows with a trajectory
        self._sources: NDArray[np.int64] | None = None  # with silent rows: the live row that each row copies
        self._singles: list[Any] = []  # the last actions, by row
        self._masks: RowMasks | None = None  # for agents that take masks
        self._rounds = False  # whether environments get recorded actions, and not chosen ones
        self._row = -1  # the current row; -1 for all rows
        self._batch_infos: Mapping[str, Any] = {}  # the agent's infos of all rows
        self._info_of: dict[int, dict[str, Any]] = {}  # the agent's info of each row
        self._version = 0  # of the current ticket
        self.seconds = [0.0, 0.0, 0.0]
        self.n_ran = 0

    def _new_recorder(self, *, is_shared: bool) -> BatchRecorder:
        n_envs, n_rows = len(self._envs), self._n_rows
        return BatchRecorder(*self.spaces, n_envs, n_rows, in_order=self._in_order, shared=is_shared)

    def set_rows(self, n_rows: int) -> None:
        """Change the number of rows in the agent's batches; call this only between timesteps."""
        if n_rows == self._n_rows:
            return
        self._n_rows, self._masks = n_rows, None
        if isinstance(self._recorder, BatchRecorder):
            self._recorder = self._new_recorder(is_shared=self._recorder.is_shared)

    def _bind(self) -> None:
        """Compute the bindings of new scripts, if each row keeps its recorder."""
        if not isinstance(self._recorder, MultiAgentRows):
            self._bindings = list(map(self._binding, range(len(self._envs))))

    def _bound(self, row: int) -> Binding:
        return self._bindings[row] if self._bindings else self._binding(row)

    def _binding(self, row: int) -> Binding:
        hooks: Any = self._hooks[row] if self._hooks else None
        recorder: Any = self._recorder.rows[row]
        env, is_called = self._envs[row], bool(self._hooks) or isinstance(self._recorder, MultiAgentRows)
        return Binding(env.step, recorder, hooks, outer=None if is_called else OuterWrappers(env))

    def _start(self, row: int, script: Script, binding: Binding | None = None) -> None:
        self._row, self._sends[row] = row, script.send
        try:
            script.send(binding)
        except BaseException as error:
            self._note(own_error(error))
            if own_error(error) is not error:
                raise own_error(error) from None
            raise

    def release(self) -> None:
        """Close the scripts, before their environments: they hold observations, maybe in a process's shared memory."""
        for send in self._sends:
            if send is not None:
                send.__self__.close()
        self._sends = [None] * len(self._sends)

    def _note(self, error: BaseException) -> None:
        """Set the phase in which the current row's script raised an exception."""
        self._worker.phase = phase_of(error, self._worker.phase, self._worker.phase)

    def _context_of(self, row: int, index: int, seed: int, version: int) -> TrajectoryContext:
        assert self._agent is not None
        agents, one_by_one, worker = self._agent.agents, self._agent.one_by_one, self._worker
        agent, env = agents[row % len(agents)], self._envs[row]
        return TrajectoryContext(
            env, agent, index, seed, worker.agent_version(version), worker.context.worker_number,
            self._recorder.rows[row], reset=reset_of(env, worker, index),
            reset_agent=reset_agent_function(agent) if one_by_one else None,
        )  # fmt: skip

    def _round(self) -> None:
        row, seconds = self._worker.row, self.seconds
        words = row.words
        self._row = -1
        words[row.phase_word] = _ACTION_NUMBER
        began = perf_counter()
        self._singles = self._singles_of(self._choose(self._live, self._sources))
        between = perf_counter()
        words[row.phase_word] = _STEP_NUMBER
        self._step_all()
        words[row.timesteps_word] = self.n_ran
        seconds[1] += between - began
        seconds[2] += perf_counter() - between

    def _singles_of(self, actions: Any) -> list[Any]:
        return actions if isinstance(self._recorder, MultiAgentRows) else singles_of(self.spaces[1], actions)

    def _choose(self, rows: list[int], sources: NDArray[np.int64] | None) -> Any:
        """Ask the agent for the actions of ascending rows, and record them; return those of all rows of the batch.

        `sources` has the row that each row of the batch copies; None for no copies. Callers pass the same array for the
        same numbers.
        """
        worker, recorder = self._worker, self._recorder
        assert self._agent is not None
        worker.phase = _RECORDING
        batch = recorder.batch(rows, sources)
        masks = None if self._masks is None else self._masks.of(batch, self._take_infos(rows), rows, sources)
        if self._hooks:
            self._batch_infos = {}
            self._info_of.clear()
        actions, infos = self._agent.choose(batch, rows, worker, self._record_agent_info, masks)
        worker.phase = _ACTION
        if sources is not None:
            actions = padded(self.spaces[1], actions, sources)
        if isinstance(recorder, MultiAgentRows):
            return recorder.record_actions(rows, actions, rounds=self._rounds)
        recorded = recorder.record_actions(rows, actions)
        if infos:
            worker.phase = _RECORDING
            recorder.record_agent_infos(rows, infos)
            self._batch_infos = infos
        return recorded if self._rounds else actions

    def _take_infos(self, rows: Sequence[int]) -> dict[int, Any]:
        infos = {}
        for row in rows:
            recorder = self._recorder.rows[row]
            infos[row], recorder.info = recorder.info, None
        return infos

    def _record_agent_info(self, row: int, info: Any) -> None:
        self._recorder.record_agent_info(self._recorder.first + self._recorder.position_of(row), info)
        self._info_of[row] = info

    def _step_all(self) -> None:  # noqa: C901 - see below
        """Send the scripts their actions.

        The inner loop: it is measured, and nothing else belongs here.
        """
        live, sends, singles, hooks = self._live, self._sends, self._singles, self._hooks
        n_ran = first = self.n_ran
        if len(live) < len(sends):
            sends = [sends[row] for row in live]
            singles = [singles[row] for row in live]
        board_row = self._worker.row
        words, timesteps_word = board_row.words, board_row.timesteps_word
        watched: Any = board_row.attention if not hooks else True
        self._worker.phase = _STEP
        row = -1
        end: End | AbnormalTrajectoryError | None = None
        try:
            for row, send, action in zip(live, sends, singles, strict=False):
                try:  # around `send`, and nothing else
                    send(self._shown(row) if hooks else action)
                except StopIteration as stopped:
                    end = stopped.value
                except AbnormalTrajectoryError as error:
                    hooks[row].lost(end := error)
                if watched:
                    n_ran += 1
                    words[timesteps_word] = self.n_ran = n_ran
                if end is not None:
                    self._row = row
                    if isinstance(end, End):
                        self._take_end(row, end)
                    else:
                        self._leave_out(row, end)
                    end = None
        except BaseException as error:
            self._row, self.n_ran = row, first + live.index(row)
            self._note(own_error(error))
            if own_error(error) is not error:
                raise own_error(error) from None
            raise
        self.n_ran = first + len(live)
        self._recorder.end_step(live)

    def _shown(self, row: int) -> Any:
        """Show a row's action to its hooks; return a copy for the environment."""
        hooks = self._hooks[row]
        assert hooks.context is not None
        self._worker.enter(_STEP)
        hooks.context.action = self._singles[row]
        if isinstance(self._recorder, MultiAgentRows):
            hooks.agent_info = self._recorder.infos_of(row)
        else:
            hooks.agent_info = self._info_of.get(row) or info_of_row(self._batch_infos, row)
        return own_copy(hooks.context.action)

    def _take_end(self, row: int, end: End) -> None:
        """End the trajectory of a row, with the result of its script."""
        raise NotImplementedError

    def _leave_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        """Drop the trajectory of a row, after its script raised the error; its hooks know already."""
        raise NotImplementedError

    def _raises_alone(self, row: int) -> bool:
        """Return whether the agent raises when all rows have this row's observation."""
        assert self._agent is not None
        batch = self._recorder.repeated(row)
        masks = None if self._masks is None else self._masks.repeated(row)
        try:
            self._agent.choose(batch, [row], self._worker, lambda _row, _info: None, masks)
        except Exception:
            return True
        finally:
            self._worker.phase = _ACTION
        return False
