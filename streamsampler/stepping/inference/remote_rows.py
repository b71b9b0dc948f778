"""Drive scripts with environments in other processes: their resets and steps are pending until results arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, UsageError, WorkerError
from streamsampler.data.trees import leaves, snapshot
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import Binding, End, Script, own_error
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.workers.base import AbnormalTrajectoryError
from streamsampler.workers.explain import locate
from streamsampler.workers.trajectory_context import TrajectoryContext
from streamsampler.workers.vec.driver import RowsDriver
from streamsampler.workers.vec.rows import singles_of
from streamsampler.workers.vec.several_agents import MultiAgentRows


class RowGroups:
    """Divides rows into groups, and chooses the group the agent acts on next.

    Rows of a process lie next to each other: so every group has rows of each process, if it has enough.
    """

    def __init__(self, n_rows: int, n_groups: int) -> None:
        group_of = np.arange(n_rows) % n_groups
        self._members = [group_of == group for group in range(n_groups)]
        self._last = n_groups - 1  # the group the agent acted on last

    def next(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> tuple[NDArray[np.bool_] | None, bool]:
        """Return the rows of the next group, in turn, and whether all its live rows are ready.

        Groups with all rows ready come first, then those with half of them; otherwise none is returned. The caller must
        change neither the arguments nor the result.
        """
        if len(self._members) == 1:  # the most frequent by far, and quicker this way
            n_live, n_ready = np.count_nonzero(live), np.count_nonzero(ready)
            return (ready if n_ready and 2 * n_ready >= n_live else None), n_ready == n_live
        for share in (1.0, 0.5):
            if (found := self._first(live, ready, share)) is not None:
                return found, share == 1.0
        return None, not live.any()

    def record_turn(self, acting: NDArray[np.bool_]) -> None:
        """Record the rows the agent acts on: the next group follows theirs."""
        self._last = int(acting.argmax()) % len(self._members)

    def _first(self, live: NDArray[np.bool_], ready: NDArray[np.bool_], share: float) -> NDArray[np.bool_] | None:
        """Return the ready rows of the first group, after the last, with such a share of its live rows ready."""
        for after in range(1, len(self._members) + 1):
            members = self._members[(self._last + after) % len(self._members)]
            found: NDArray[np.bool_] = ready & members
            if found.any() and np.count_nonzero(found) >= share * np.count_nonzero(live & members):
                return found
        return None


class _UnavailableEnv:
    """Stands in for `env` and `reset` of a hook's context, and refuses all use."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UsageError(
            'hooks have no context.env and no context.reset with inference="parent", since the environment is in '
            'another process: return the values a hook needs in the info, or use inference="worker"'
        )

    __getattr__ = __setattr__ = __call__ = _refuse


def _pending(_action: Any) -> None:
    """Do nothing: the driver requests the steps of all rows together."""


class RemoteRows(RowsDriver):
    """Drives rows with environments in other processes; a mixin for a driver that starts the scripts.

    The agent acts when all rows are ready; or when half are, after a wait as long as a call of it takes: so slow
    environments cost at most another call. Its batches always have all rows: rows not ready repeat a ready row, and
    their actions are discarded. An agent that cannot wait acts on all rows together, and their results are received in
    order.

    With `n_groups`, environments of a group step while the agent acts on another.
    """

    def __init__(self, *args: Any, environments: Environments, n_groups: int = 1, **more: Any) -> None:
        super().__init__(*args, **more, in_order=False)
        self._environments = environments
        n_rows = len(self._envs)
        self._groups = RowGroups(n_rows, n_groups)
        self.together = True  # whether rows wait for each other
        self._runs, self._ready, self._acting = (np.zeros(n_rows, np.bool_) for _ in range(3))
        self._scripts: list[Script | None] = [None] * n_rows
        self._is_in_reset = np.zeros(n_rows, np.bool_)
        self._call_seconds = 0.0  # the average time of a call of the agent

    def release(self) -> None:
        super().release()
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._runs[:] = self._ready[:] = self._is_in_reset[:] = False
        self._scripts = [None] * len(self._envs)

    def _binding(self, row: int) -> Binding:
        return super()._binding(row)._replace(step=_pending, waits=True, outer=None)

    def _context_of(self, row: int, index: int, seed: int, version: int) -> TrajectoryContext:
        context = super()._context_of(row, index, seed, version)
        context.env = context.reset = _UnavailableEnv()  # type: ignore[assignment]
        return context

    def _request_reset(self, row: int, index: int) -> Callable[..., Any]:
        return lambda *, seed: self._environments.reset(row, index, seed, self._worker.resets)

    def _start(self, row: int, script: Script, binding: Binding | None = None) -> None:
        """Start a script: it requests its reset, or continues from an observation."""
        self._scripts[row], self._runs[row] = script, True
        self._ready[row], self._is_in_reset[row] = binding is not None, binding is None
        super()._start(row, script, binding)

    def _is_done(self) -> bool:
        """Whether the driver may stop waiting."""
        return False

    def _round(self) -> None:
        worker, seconds = self._worker, self.seconds
        self._row = -1
        worker.enter(Phase.STEP)
        began = perf_counter()
        ready = self._wait_for_all() if self.together else self._wait()
        between = perf_counter()
        seconds[2] += between - began
        if ready is None or not worker.row.may_run(self._version):
            return
        worker.enter(Phase.ACTION)
        self._ask(ready)
        elapsed = perf_counter() - between
        seconds[1] += elapsed
        self._call_seconds += 0.1 * (elapsed - self._call_seconds) if self._call_seconds else elapsed

    def _ask(self, ready: NDArray[np.bool_]) -> None:
        agent, recorder, width = self._agent, self._recorder, self._n_rows
        assert agent is not None
        self._acting = ready.copy()
        self._groups.record_turn(ready)
        rows = np.flatnonzero(ready).tolist()
        mask = None
        if len(rows) < width:
            mask = np.zeros(width, np.bool_)
            mask[rows] = True
        if agent.draws is not None:
            agent.draws.only(mask)
        sources = None if mask is None else np.where(mask, np.arange(width), rows[0])
        actions = self._choose(rows, sources)
        recorder.begin_steps(rows)
        self._worker.phase = Phase.STEP
        if self._hooks:
            self._singles = self._singles_of(actions)
        for row in rows:
            self._sends[row](self._shown(row) if self._hooks else None)
        self._ready[rows] = False
        self._request_steps(rows, actions)

    def _request_steps(self, rows: list[int], actions: Any) -> None:
        recorder = self._recorder
        if isinstance(recorder, MultiAgentRows):
            self._environments.step(rows, [actions[row] for row in rows])  # already copies
            return
        recorded = recorder.actions.gather(np.arange(recorder.first, recorder.step))
        if _same_kind(actions, recorded):
            self._environments.step_with(rows, recorded)
        else:
            singles = singles_of(self.spaces[1], actions)
            self._environments.step(rows, [singles[row] for row in rows])

    def _wait(self) -> NDArray[np.bool_] | None:
        """Wait for the agent's next turn, and return its rows; None if `_is_done`."""
        deadline = None
        while True:
            asked, is_whole = self._groups.next(self._runs, self._usable())
            if is_whole or self._is_done():
                return asked
            timeout = None
            if asked is not None:
                now = perf_counter()
                deadline = now + self._call_seconds if deadline is None else deadline
                if now >= deadline:
                    return asked
                self._environments.transport.sleep(deadline - now)
                timeout = 0.0
            self._take(self._environments.receive_arrived(timeout))

    def _wait_for_all(self) -> NDArray[np.bool_] | None:
        """Wait until all running rows are ready; return None if `_is_done`."""
        environments, arrived = self._environments, set[int]()
        while (self._runs & ~self._usable()).any():
            if self._is_done():
                return None
            arrived.update(environments.receive_arrived(None))
            # Rows restored meanwhile have their results again.
            missing = np.flatnonzero(self._runs & ~self._ready)
            if arrived.issuperset(missing) and arrived.isdisjoint(environments.scheduler.restoring):
                self._take(sorted(arrived))
                arrived.clear()
        return self._ready if self._runs.any() else None

    def _usable(self) -> NDArray[np.bool_]:
        """Return the ready rows, without those being restored; the caller must not change them."""
        restoring = self._environments.scheduler.restoring
        if not restoring:
            return self._ready
        usable = self._ready.copy()
        usable[list(restoring & set(range(len(usable))))] = False
        return usable

    def _take(self, arrived: Sequence[int]) -> None:
        environments = self._environments
        arrived = [row for row in arrived if self._runs[row]]  # other rows were abandoned
        shared = environments.transport.rows
        results = zip(
            arrived, shared.rewards[arrived].tolist(), shared.terminated[arrived].tolist(),
            shared.truncated[arrived].tolist(), strict=True,
        )  # fmt: skip
        stepped = [row for row in arrived if not (self._is_in_reset[row] or row in environments.raised)]
        self.n_ran += len(stepped)
        board_row = self._worker.row
        board_row.words[board_row.timesteps_word] = self.n_ran
        for row, *result in list(results):
            self._row = row
            self._take_result(row, *result)
        self._row = -1

    def _take_result(self, row: int, *result: Any) -> None:
        """Send a script its environment's result: the reward, the two ends, and its row's contents."""
        environments, worker, script = self._environments, self._worker, self._scripts[row]
        assert script is not None
        if row in environments.raised:
            self._raise(row, script)
        observation = environments.observation(row)
        info = environments.infos.pop(row, {})
        if environments.games:
            observation, *result, info = environments.games[row].take(observation, info)  # type: ignore[assignment]
        if self._is_in_reset[row]:
            worker.phase, self._is_in_reset[row] = Phase.RESET, False
            self._send(row, script, (observation, info))
        else:
            worker.phase = Phase.STEP
            if self._is_last(row):
                observation = snapshot(observation)  # the script continues from it in another call
            self._send(row, script, (observation, *result, info))

    def _raise(self, row: int, script: Script) -> None:
        is_in_reset = self._is_in_reset[row]
        self._worker.phase = Phase.RESET if is_in_reset else Phase.STEP
        script.close()
        try:
            self._environments.check(row)
        except DataError as error:
            if self._environments.games:
                raise  # results of several agents are recorded here: it is the environment's own error
            self._worker.phase = Phase.RECORDING  # the environment's process checks data for the recorder
            if is_in_reset:
                locate(error, self._envs[row], 0)
            raise

    def _is_last(self, row: int) -> bool:  # noqa: ARG002 - for a subclass
        """Whether this is a row's last timestep of this call."""
        return False

    def _send(self, row: int, script: Script, result: Any) -> None:
        is_step = len(result) == 5
        end = self._sent(row, script, result)
        if is_step:
            self._recorder.record_reward_of(row)
        if end is None:
            self._ready[row] = True
            if is_step:
                self._stepped(row)
            return
        self._runs[row] = False
        self._environments.scheduler.end(row)
        if isinstance(end, End):
            self._take_end(row, end)
        else:
            self._leave_out(row, end)

    def _sent(self, row: int, script: Script, result: Any) -> End | AbnormalTrajectoryError | None:
        """Send a script a result; return its trajectory's end, or why it is left out, or None."""
        try:
            script.send(result)
        except StopIteration as stopped:
            end: End = stopped.value
            return end
        except AbnormalTrajectoryError as error:
            self._hooks[row].lost(error)
            return error
        except BaseException as error:
            self._note(own_error(error))
            if len(result) == 2 and isinstance(error, DataError):
                locate(error, self._envs[row], 0)
            if own_error(error) is not error:
                raise own_error(error) from None
            raise
        return None

    def _stepped(self, row: int) -> None:
        """Count a timestep of a current episode."""

    def history_of(self, row: int, n: int, earlier: int = 0) -> History:
        """Return the first n actions of a row's trajectory recorded here, and known rewards.

        `n` includes `earlier` timesteps in earlier calls.
        """
        recorder = self._recorder
        # A row that has finished its part of a fragment does not run, but its episode goes on in the next fragment.
        if self._scripts[row] is None or self._is_in_reset[row] or isinstance(recorder, MultiAgentRows):
            return History([], first=earlier)  # of several agents, `Environments` has this call's actions
        numbers = recorder.numbers_of(row, recorder.rows[row].begun, n - earlier)
        actions = recorder.actions.gather(numbers)
        rewards = np.array([recorder.rewards[number] for number in numbers.tolist()], np.float64)
        return History(singles_of(self.spaces[1], actions), rewards, earlier)

    def _prepare_explaining(self, error: BaseException) -> bool:
        """Return whether an exception concerns a trajectory, as opposed to a process."""
        worker = self._worker
        if isinstance(error, WorkerError):
            worker.trajectory = None  # the current trajectory need not be the lost one
            return False
        if self._row >= 0 and self._runs[self._row] and not self._is_in_reset[self._row]:
            self._singles = [self._environments.last_action(self._row)] * self._n_rows
        return True


def _same_kind(chosen: Any, actions: Any) -> bool:
    if actions.__class__ is np.ndarray:
        return chosen.__class__ is np.ndarray and chosen.dtype == actions.dtype
    given = dict(leaves(chosen)) if isinstance(chosen, dict | tuple) else {}
    return all(getattr(given.get(path), "dtype", None) == leaf.dtype for path, leaf in leaves(actions))
