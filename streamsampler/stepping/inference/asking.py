"""Ask the agent for the rows that are ready, without waiting for slow environments, and record what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.trees import Array, Tree, leaves, map_tree
from streamsampler.errors import ActionError, UsageError, positive
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.recorder import TimestepRecorder
from streamsampler.workers.base import Worker
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.columns import Columns
from streamsampler.workers.vec.rows import padded, singles_of
from streamsampler.workers.vec.steps import AlignedCopies, Trajectory

# ----------------------------------------------------------------------
# Which rows the agent is asked for together: all of them, or one half while environments of the other half step.


def checked_groups(worker_args: Mapping[str, Any], n_envs: int) -> int:
    """Return into how many groups the rows are parted.

    Args:
        worker_args: The sampler's; `groups` may be among them.
        n_envs: How many rows there are.

    Raises:
        UsageError: It is no number from 1 to `n_envs`.
    """
    n_groups = positive("groups", worker_args.get("groups", 1))
    if n_groups > n_envs:
        raise UsageError(f"groups is {n_groups}, but there are only {n_envs} environments")
    return n_groups


class RowGroups:
    """Parts rows into groups, and says of which groups the agent is to be asked.

    Rows of one process lie next to each other: so every group has some rows of each process, as far as there are.

    Args:
        n_rows: How many rows there are.
        n_groups: How many groups.
    """

    def __init__(self, n_rows: int, n_groups: int) -> None:
        self.n_groups = n_groups
        self._group_of = np.arange(n_rows) % n_groups
        self._last = n_groups - 1  # the group that was returned last

    def whole(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows of a group all of whose live rows are ready; groups in turn. No row if there is none.

        Args:
            live: The rows that run a trajectory.
            ready: Those that wait for an action.
        """
        n_live, n_ready = self._count(live), self._count(ready)
        return self._next(ready, (n_ready == n_live) & (n_ready > 0))

    def half(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the same of a group of which half of the live rows are ready."""
        n_live, n_ready = self._count(live), self._count(ready)
        return self._next(ready, (2 * n_ready >= n_live) & (n_ready > 0))

    def note(self, asked: NDArray[np.bool_]) -> None:
        """Note which rows the agent is asked for: the next group comes after theirs."""
        self._last = int(self._group_of[asked.argmax()])

    def _count(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(self._group_of[rows], minlength=self.n_groups)

    def _next(self, ready: NDArray[np.bool_], possible: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows that are ready of the possible group that comes first after the last one."""
        in_turn = (self._last + 1 + np.arange(self.n_groups)) % self.n_groups
        group = next((each for each in in_turn if possible[each]), -1)
        found: NDArray[np.bool_] = ready & (self._group_of == group)
        return found


# ----------------------------------------------------------------------


_NOT_BEGUN = -1


class Asking:
    """Says for which rows the agent is asked, and when; asks it, and records each timestep.

    The agent is asked when all rows are ready; or, when half of them are, after as long as a call of it takes: so what
    is lost by waiting for slow environments is at most what one more call would cost. Its batches always have all rows.
    Those that are not ready have a copy of one that is, and what comes out for them is not used.

    Args:
        environments: The environments, one for each row.
        worker: Shows the phase.
        spaces: Observation and action space of one environment.
        n_groups: Into how many groups rows are parted: environments of one step while the agent is asked for another.
        rounds: Whether environments get actions as they are recorded, with the dtypes of their space, and not as the
            agent chose them.

    Attributes:
        timesteps: What was recorded.
        live: The rows that run a trajectory.
        ready: Those of them that wait for an action.
        asked: The rows that the agent was asked for last.
        numbers: Of the timestep that each row runs; negative before its trajectory's first one.
    """

    def __init__(
        self, environments: Environments, worker: Worker, spaces: tuple[Any, Any], n_groups: int, *, rounds: bool
    ) -> None:
        n_rows = environments.n_envs
        self._environments, self._worker, self._spaces = environments, worker, spaces
        self._rounds = rounds
        self._groups = RowGroups(n_rows, n_groups)
        self.timesteps = TimestepRecorder(*spaces)
        self._checked = Columns(spaces[1], n_rows, "action", ActionError)
        self._copies = AlignedCopies()
        self._rows = np.arange(n_rows)
        self.live = np.zeros(n_rows, np.bool_)
        self.ready = np.zeros(n_rows, np.bool_)
        self.asked = np.zeros(n_rows, np.bool_)
        self.numbers = np.full(n_rows, _NOT_BEGUN)
        self._call_seconds = 0.0  # what a call of the agent takes, on the average

    def clear(self) -> None:
        """Forget everything."""
        self.timesteps.clear()
        self.live[:] = self.ready[:] = False
        self.numbers[:] = _NOT_BEGUN

    def keep(self, trajectories: Sequence[Trajectory]) -> None:
        """Forget what none of these trajectories needs; see `TimestepRecorder.keep`."""
        before = self.timesteps.step
        self.timesteps.keep(trajectories)
        self.numbers[self.numbers >= 0] -= before - self.timesteps.step

    def begin(self, row: int, *, ready: bool) -> None:
        """Begin a trajectory in a row, whose environment is ready, or is being reset."""
        self.live[row], self.ready[row], self.numbers[row] = True, ready, _NOT_BEGUN

    def end(self, row: int) -> None:
        """End a row's trajectory."""
        self.live[row] = self.ready[row] = False

    # ------------------------------------------------------------------ waiting

    def wait(self, take: Callable[[list[int]], None], n_ended: Callable[[], int]) -> NDArray[np.bool_]:
        """Wait until the agent is to be asked, and return for which rows: maybe none, if there is something else to do.

        Args:
            take: Takes the rows whose results have arrived.
            n_ended: Returns a number: if it changes, there is something else to do.
        """
        return self._await_rows(take, n_ended) if self._groups.n_groups == 1 else self._await_group(take, n_ended)

    def _await_rows(self, take: Callable[[list[int]], None], n_ended: Callable[[], int]) -> NDArray[np.bool_]:
        ended, deadline, usable = n_ended(), None, self._usable()
        while (n_ready := np.count_nonzero(usable)) < (n_live := np.count_nonzero(self.live)) and n_ended() == ended:
            timeout = None
            if 2 * n_ready >= n_live:
                now = perf_counter()
                deadline = now + self._call_seconds if deadline is None else deadline
                if now >= deadline:
                    break
                self._environments.transport.sleep(deadline - now)
                timeout = 0.0
            take(self._environments.take_arrived(timeout))
            usable = self._usable()
        return usable

    def _await_group(self, take: Callable[[list[int]], None], n_ended: Callable[[], int]) -> NDArray[np.bool_]:
        """Do the same for one of several groups, while environments of the others step."""
        ended, deadline = n_ended(), None
        while True:
            ready = self._usable()
            asked = self._groups.whole(self.live, ready)
            if asked.any() or not self.live.any() or n_ended() != ended:
                return asked
            timeout = None
            if (half := self._groups.half(self.live, ready)).any():
                now = perf_counter()
                deadline = now + self._call_seconds if deadline is None else deadline
                if now >= deadline:
                    return half
                self._environments.transport.sleep(deadline - now)
                timeout = 0.0
            take(self._environments.take_arrived(timeout))

    def _usable(self) -> NDArray[np.bool_]:
        """Return which rows are ready, and not being restored; not to be changed."""
        if not self._environments.restoring:
            return self.ready
        usable = self.ready.copy()
        usable[list(self._environments.restoring)] = False
        return usable

    # ------------------------------------------------------------------ actions

    def ask(self, agent: BatchedAgent, ready: NDArray[np.bool_], note: Callable[[NDArray[np.int64]], None]) -> None:
        """Let the agent choose actions for rows that are ready, and send them.

        Args:
            agent: The agent.
            ready: The rows.
            note: Takes their numbers before the agent is asked, when `numbers` has those of the new timesteps.
        """
        began = perf_counter()
        worker, timesteps, n_rows = self._worker, self.timesteps, len(self._rows)
        self.asked = ready.copy()
        self._groups.note(ready)
        rows = np.flatnonzero(ready)
        everyone = len(rows) == n_rows
        sources = self._rows if everyone else np.where(ready, self._rows, rows[0])
        batch = self._observations(sources)
        seen = batch if everyone else map_tree(lambda leaf: leaf[rows], batch)
        numbers = np.arange(timesteps.step, timesteps.step + len(rows))
        self.numbers[rows] = numbers
        note(rows)
        if agent.draws is not None:
            agent.draws.only(None if everyone else ready)
        worker.phase = Phase.ACTION
        chosen, infos = agent.choose(self._copies.copy(batch), rows.tolist(), worker, self._record_agent_info)
        worker.phase = Phase.ACTION
        if not everyone:
            chosen = padded(self._spaces[1], chosen, sources.tolist())
        self._checked.clear()
        self._checked.append(chosen)
        actions = map_tree(lambda leaf: leaf[rows], self._checked.row_batch(0))
        timesteps.record(rows, seen, actions)
        if infos:
            worker.phase = Phase.RECORDING
            timesteps.record_agent_infos(numbers, infos, rows, n_rows)
        worker.phase = Phase.STEP
        self.ready[rows] = False
        if self._rounds or _same_kind(chosen, actions):
            self._environments.step_with(rows.tolist(), actions)
        else:
            singles = singles_of(self._spaces[1], chosen)
            self._environments.step(rows.tolist(), [singles[row] for row in rows.tolist()])
        seconds = perf_counter() - began
        self._call_seconds += 0.1 * (seconds - self._call_seconds) if self._call_seconds else seconds

    def _observations(self, rows: NDArray[np.int64]) -> Tree:
        shared = self._environments.transport.rows
        slots = shared.slots[rows]
        batch: Tree = map_tree(lambda leaf: leaf[slots, rows], shared.observations)
        return batch

    def _record_agent_info(self, row: int, info: Any) -> None:
        self.timesteps.record_agent_info(int(self.numbers[row]), info)

    def raises_alone(self, agent: BatchedAgent, row: int) -> bool:
        """Return whether the agent raises when all rows have one row's observation."""
        batch = self._copies.copy(self._observations(np.full(len(self._rows), row)))
        try:
            agent.choose(batch, [row], self._worker, lambda _row, _info: None)
        except Exception:
            return True
        finally:
            self._worker.phase = Phase.ACTION
        return False

    # ------------------------------------------------------------------ results

    def record_results(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Record the results of steps that have arrived; return which of them terminated, and which were truncated."""
        environments, shared = self._environments, self._environments.transport.rows
        self.timesteps.record_rewards(self.numbers[rows], shared.rewards[rows])
        if environments.infos:
            for row in rows.tolist():
                if info := environments.take_info(row):
                    self.timesteps.record_info(int(self.numbers[row]), info)
        return shared.terminated[rows], shared.truncated[rows]

    def n_stepped(self, arrived: Sequence[int]) -> int:
        """Return how many of some results are of steps that did not raise."""
        raised = self._environments.has_raised
        return sum(self.numbers[row] >= 0 and not raised(row) for row in arrived)

    def history_of(self, row: int, begun: int, n: int) -> tuple[list[Any], Array]:
        """Return the first actions and rewards of a row's trajectory.

        Args:
            row: The row.
            begun: The number of its first timestep.
            n: How many timesteps at most.
        """
        actions, rewards = self.timesteps.history_of(row, begun, n)
        return singles_of(self._spaces[1], actions), rewards


def _same_kind(chosen: Any, actions: Any) -> bool:
    """Whether what the agent chose has the dtypes of the actions that were made of it."""
    if actions.__class__ is np.ndarray:
        return chosen.__class__ is np.ndarray and chosen.dtype == actions.dtype
    given = dict(leaves(chosen)) if isinstance(chosen, dict | tuple) else {}
    return all(getattr(given.get(path), "dtype", None) == leaf.dtype for path, leaf in leaves(actions))
