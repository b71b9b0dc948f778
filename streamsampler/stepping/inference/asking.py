"""Ask the agent for the rows that are ready, without waiting for slow environments, and record what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError
from streamsampler.data.trees import Tree, leaves, map_tree, snapshot
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.stepping.recorder import TimestepRecorder
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import locate
from streamsampler.workers.masks import RowMasks
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.columns import Columns
from streamsampler.workers.vec.rows import padded, singles_of
from streamsampler.workers.vec.steps import AlignedCopies, Trajectory

# ----------------------------------------------------------------------
# Which rows the agent is asked for together: all of them, or one half while environments of the other half step.


class RowGroups:
    """Parts rows into groups, and says of which groups the agent is to be asked.

    Rows of one process lie next to each other: so every group has some rows of each process, as far as there are.

    Args:
        n_rows: How many rows there are.
        n_groups: How many groups.
    """

    def __init__(self, n_rows: int, n_groups: int) -> None:
        group_of = np.arange(n_rows) % n_groups
        self._members = [group_of == group for group in range(n_groups)]
        self._last = n_groups - 1  # the group that was returned last

    def next(self, live: NDArray[np.bool_], ready: NDArray[np.bool_]) -> tuple[NDArray[np.bool_] | None, bool]:
        """Return the rows of the group to ask for next, in turn, and whether all live rows of it are ready.

        Groups of which all rows are ready come first; then those of which half are. No rows if there is none of these.

        Args:
            live: The rows that run a trajectory.
            ready: Those that wait for an action; not to be changed.
        """
        if len(self._members) == 1:  # quicker, and by far the most frequent
            n_live, n_ready = np.count_nonzero(live), np.count_nonzero(ready)
            return (ready if n_ready and 2 * n_ready >= n_live else None), n_ready == n_live
        for share in (1.0, 0.5):
            if (found := self._first(live, ready, share)) is not None:
                return found, share == 1.0
        return None, not live.any()

    def note(self, asked: NDArray[np.bool_]) -> None:
        """Note which rows the agent is asked for: the next group comes after theirs."""
        self._last = int(asked.argmax()) % len(self._members)

    def _first(self, live: NDArray[np.bool_], ready: NDArray[np.bool_], share: float) -> NDArray[np.bool_] | None:
        """Return the ready rows of the first group after the last one of whose live rows such a share are ready."""
        for after in range(1, len(self._members) + 1):
            members = self._members[(self._last + after) % len(self._members)]
            found: NDArray[np.bool_] = ready & members
            if found.any() and np.count_nonzero(found) >= share * np.count_nonzero(live & members):
                return found
        return None


# ----------------------------------------------------------------------


_NOT_BEGUN = -1
_NEVER = 2**62


class RowOwner(Protocol):
    """Runs trajectories in the rows of `Asking`, and is told what becomes of them.

    Attributes:
        seconds: The seconds of resets, of the agent and of steps.
    """

    seconds: list[float]

    def count(self, n: int) -> None:
        """Count timesteps that were run."""

    def take_in_hand(self, row: int) -> None:
        """Note that the next exception is about a row."""

    def row_ended(self, row: int) -> None:
        """Take a row's trajectory, which has ended, or has taken all timesteps that it was to take."""


class Asking:
    """Runs trajectories in rows: asks the agent for those that are ready, sends the actions, and records the results.

    The agent is asked when all rows are ready; or, when half of them are, after as long as a call of it takes: so what
    is lost by waiting for slow environments is at most what one more call would cost. Its batches always have all rows.
    Those that are not ready have a copy of one that is, and what comes out for them is not used. An agent that cannot
    wait is asked for all rows together; then their results are taken in together, too, in their order.

    Args:
        owner: What runs trajectories here.
        environments: The environments, one for each row.
        worker: Shows the phase.
        spaces: Observation and action space of one environment.
        n_groups: Into how many groups rows are parted: environments of one step while the agent is asked for another.
        rounds: Whether environments get actions as they are recorded, with the dtypes of their space, and not as the
            agent chose them.

    Attributes:
        together: Whether rows wait for each other.
        timesteps: What was recorded.
        running: The trajectory of each row.
        live: The rows that run a trajectory.
        ready: Those of them that wait for an action.
        asked: The rows that the agent was asked for last.
        numbers: Of the timestep that each row runs; negative before its trajectory's first one.
        earlier: How many timesteps each trajectory had that are not recorded here.
        lengths: How many it has had since.
        left: How many each row has still to take.
        masks: Finds masks of actions, for an agent that takes them.
        last_infos: The infos of the steps that arrived last, by row.
    """

    def __init__(
        self, owner: RowOwner, environments: Environments, worker: Worker, spaces: tuple[Any, Any], n_groups: int, *,
        rounds: bool,
    ) -> None:  # fmt: skip
        n_rows = environments.n_envs
        self._owner, self._environments, self._worker, self._spaces = owner, environments, worker, spaces
        self._rounds = rounds
        self._most = int(worker.context.max_episode_length or _NEVER)
        self._groups = RowGroups(n_rows, n_groups)
        self.together = False
        self.timesteps = TimestepRecorder(*spaces)
        self._checked = Columns(spaces[1], n_rows, "action", ActionError)
        self._copies = AlignedCopies()
        self._rows = np.arange(n_rows)
        self.running: list[Trajectory] = [Trajectory(None, 0, 0, row, _NOT_BEGUN) for row in range(n_rows)]
        self.live = np.zeros(n_rows, np.bool_)
        self.ready = np.zeros(n_rows, np.bool_)
        self.asked = np.zeros(n_rows, np.bool_)
        self.numbers = np.full(n_rows, _NOT_BEGUN)
        self.earlier = np.zeros(n_rows, np.int64)
        self.lengths = np.zeros(n_rows, np.int64)
        self.left = np.full(n_rows, _NEVER)
        self._stops = np.zeros(n_rows, np.int64)  # at which length each trajectory is over here
        self.masks: RowMasks | None = None
        self.last_infos: dict[int, Any] = {}
        self._infos: dict[int, Any] = {}  # by row, what came with the observations that are to be acted on, for masks
        self._call_seconds = 0.0  # what a call of the agent takes, on the average

    def clear(self) -> None:
        """Forget everything."""
        self.timesteps.clear()
        self._infos.clear()
        self.live[:] = self.ready[:] = False
        self.numbers[:] = _NOT_BEGUN

    def keep(self, trajectories: Sequence[Trajectory]) -> None:
        """Forget what none of these trajectories needs; see `TimestepRecorder.keep`."""
        before = self.timesteps.step
        self.timesteps.keep(trajectories)
        self.numbers[self.numbers >= 0] -= before - self.timesteps.step

    def begin(self, row: int, ticket: Any, position: int, index: int, earlier: int = 0) -> Trajectory:
        """Begin a trajectory in a row, whose environment is being reset; or go on with one that has had timesteps."""
        trajectory = self.running[row] = Trajectory(ticket, position, index, row, _NOT_BEGUN)
        self.live[row], self.ready[row], self.numbers[row] = True, False, _NOT_BEGUN
        self.earlier[row], self.lengths[row] = earlier, 0
        self._stops[row] = min(self._most - earlier, self.left[row])
        return trajectory

    def go_on(self, row: int, index: int, earlier: int, info: Any) -> None:
        """Go on with a trajectory that has had some timesteps, with the info of the last; its environment is ready."""
        self.begin(row, None, 0, index, earlier).number = self.timesteps.begin({})
        self._infos[row] = info
        self.ready[row] = True

    # ------------------------------------------------------------------ waiting

    def turn(self, agent: BatchedAgent, version: int, is_done: Callable[[], bool]) -> bool:
        """Take in results until the agent is to be asked, and ask it; return whether a version may still run.

        Args:
            agent: The agent.
            version: The version.
            is_done: Says whether there is something else to do than to wait.
        """
        worker, seconds = self._worker, self._owner.seconds
        worker.enter(Phase.STEP)
        began = perf_counter()
        asked = self._wait_for_all(is_done) if self.together else self._wait(is_done)
        between = perf_counter()
        seconds[2] += between - began
        if not worker.row.may_run(version):
            return False
        if asked is not None:
            worker.enter(Phase.ACTION)
            self._ask(agent, asked)
            seconds[1] += perf_counter() - between
        return True

    def _wait(self, is_done: Callable[[], bool]) -> NDArray[np.bool_] | None:
        """Wait until the agent is to be asked, and return for which rows; None if there is something else to do."""
        deadline = None
        while True:
            asked, is_whole = self._groups.next(self.live, self._usable())
            if is_whole or is_done():
                return asked
            timeout = None
            if asked is not None:
                now = perf_counter()
                deadline = now + self._call_seconds if deadline is None else deadline
                if now >= deadline:
                    return asked
                self._environments.transport.sleep(deadline - now)
                timeout = 0.0
            self._take(self._environments.take_arrived(timeout))

    def _wait_for_all(self, is_done: Callable[[], bool]) -> NDArray[np.bool_] | None:
        """Wait until all live rows are ready, and return them; None if there is something else to do."""
        environments, arrived = self._environments, set[int]()
        while (self.live & ~self._usable()).any():
            if is_done():
                return None
            arrived.update(environments.take_arrived(None))
            # What was restored meanwhile lies in its row again.
            if arrived.issuperset(np.flatnonzero(self.live & ~self.ready)) and arrived.isdisjoint(
                environments.restoring
            ):
                self._take(sorted(arrived))
                arrived.clear()
        return self.ready if self.live.any() else None

    def _usable(self) -> NDArray[np.bool_]:
        """Return which rows are ready, and not being restored; not to be changed."""
        if not self._environments.restoring:
            return self.ready
        usable = self.ready.copy()
        usable[list(self._environments.restoring)] = False
        return usable

    # ------------------------------------------------------------------ actions

    def _ask(self, agent: BatchedAgent, ready: NDArray[np.bool_]) -> None:
        """Let the agent choose actions for rows that are ready, and send them."""
        began = perf_counter()
        worker, timesteps, n_rows = self._worker, self.timesteps, len(self._rows)
        self.asked = ready.copy()
        self._groups.note(ready)
        (rows,) = ready.nonzero()
        everyone = len(rows) == n_rows
        sources = self._rows if everyone else np.where(ready, self._rows, rows[0])
        batch = self._observations(sources)
        seen = batch if everyone else map_tree(lambda leaf: leaf[rows], batch)
        numbers = self._number(rows)
        if agent.draws is not None:
            agent.draws.only(None if everyone else ready)
        worker.phase = Phase.ACTION
        masks = None
        if self.masks is not None:
            infos_of_rows = {row: self._infos.pop(row, None) for row in rows.tolist()}
            masks = self.masks.of(batch, infos_of_rows, rows.tolist(), sources.tolist())
        chosen, infos = agent.choose(self._copies.copy(batch), rows.tolist(), worker, self._record_agent_info, masks)
        worker.phase = Phase.ACTION
        if not everyone:
            chosen = padded(self._spaces[1], chosen, sources.tolist())
        self._checked.clear()
        self._checked.append(chosen)
        actions = self._checked.row_batch(0)
        if not everyone:
            actions = map_tree(lambda leaf: leaf[rows], actions)
        timesteps.record(rows, seen, actions)
        if infos:
            worker.phase = Phase.RECORDING
            timesteps.record_agent_infos(numbers, infos, rows, n_rows)
        worker.phase = Phase.STEP
        self.ready[rows] = False
        self._send(rows, chosen, actions)
        seconds = perf_counter() - began
        self._call_seconds += 0.1 * (seconds - self._call_seconds) if self._call_seconds else seconds

    def _number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number the next timestep of some rows."""
        first = self.timesteps.step
        numbers = self.numbers[rows] = np.arange(first, first + len(rows))
        if not (lengths := self.lengths[rows]).all():
            for place in np.flatnonzero(lengths == 0).tolist():
                self.running[int(rows[place])].begun = int(numbers[place])
        return numbers

    def _send(self, rows: NDArray[np.int64], chosen: Any, actions: Tree) -> None:
        """Request steps with actions: as they were recorded, or as the agent chose them."""
        if self._rounds or _same_kind(chosen, actions):
            self._environments.step_with(rows.tolist(), actions)
        else:
            singles = singles_of(self._spaces[1], chosen)
            self._environments.step(rows.tolist(), [singles[row] for row in rows.tolist()])

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
        masks = None if self.masks is None else self.masks.repeated(row)
        try:
            agent.choose(batch, [row], self._worker, lambda _row, _info: None, masks)
        except Exception:
            return True
        finally:
            self._worker.phase = Phase.ACTION
        return False

    # ------------------------------------------------------------------ results

    def _take(self, arrived: list[int]) -> None:
        """Take in the results of rows: of steps, or of resets."""
        environments, stepped = self._environments, []
        for row in arrived:
            if not self.live[row]:
                continue  # it was given up
            if environments.has_raised(row):
                self._owner.take_in_hand(row)
                self._owner.count(sum(self.numbers[it] >= 0 and not environments.has_raised(it) for it in arrived))
                self._raise(row)
            if self.numbers[row] >= 0:
                stepped.append(row)
            else:
                self._infos[row] = info = environments.take_info(row)
                self.running[row].number = self.timesteps.begin(info)
                self.ready[row] = True
        if stepped:
            self._take_steps(np.array(stepped))

    def _raise(self, row: int) -> None:
        """Raise what a row's environment raised."""
        in_reset = self.numbers[row] < 0
        self._worker.phase = Phase.RESET if in_reset else Phase.STEP
        try:
            self._environments.check(row)
        except DataError as error:
            if in_reset:
                self._worker.phase = Phase.RECORDING  # its process found out that it cannot be recorded
                locate(error, self._environments.proxies[row], 0)
            raise

    def _take_steps(self, rows: NDArray[np.int64]) -> None:
        """Record the results of steps, and end what ends."""
        environments, shared = self._environments, self._environments.transport.rows
        self._owner.count(len(rows))
        self.timesteps.record_rewards(self.numbers[rows], shared.rewards[rows])
        self.last_infos = {}
        if environments.infos:
            for row in rows.tolist():
                if info := environments.take_info(row):
                    self.last_infos[row] = info
                    self.timesteps.record_info(int(self.numbers[row]), info)
        if self.masks is not None:
            self._infos.update(self.last_infos)
        lengths = self.lengths[rows] = self.lengths[rows] + 1
        terminated, truncated = shared.terminated[rows], shared.truncated[rows]
        over = terminated | truncated | (lengths >= self._stops[rows])
        if not over.any():
            self.ready[rows] = True
            return
        self.ready[rows[~over]] = True
        for place in np.flatnonzero(over).tolist():
            self._end(int(rows[place]), bool(terminated[place]), bool(truncated[place]))

    def _end(self, row: int, terminated: bool, truncated: bool) -> None:
        trajectory = self.running[row]
        length = trajectory.length = int(self.lengths[row])
        trajectory.last = snapshot(self._environments.observation(row))
        trajectory.terminated = terminated
        trajectory.truncated = truncated or self.earlier[row] + length >= self._most
        self.left[row] -= length
        self.live[row] = self.ready[row] = False
        if terminated or trajectory.truncated:
            self._environments.end(row)
        self._owner.row_ended(row)

    def timestep_of(self, row: int) -> int:
        """Return which timestep of its trajectory a row is at, from 1; 0 before the first one."""
        comes_next = self._worker.phase is not Phase.STEP or not self.ready[row]
        return 0 if self.numbers[row] < 0 else int(self.lengths[row]) + comes_next

    def last_actions(self, row: int) -> list[Any]:
        """Return a row's last action, once for each row; nothing if there is none."""
        if row < 0 or self.numbers[row] < 0:
            return []
        return [self._environments.last_action(row)] * len(self._rows)

    def history_of(self, row: int, n: int) -> History:
        """Return the first actions of the trajectory in a row that are kept here, and the rewards that are known.

        Args:
            row: The row.
            n: How many actions at most, those before `earlier` included.
        """
        begun, earlier = self.running[row].begun, int(self.earlier[row])
        if begun == _NOT_BEGUN:
            return History([])
        actions, rewards = self.timesteps.history_of(row, begun, n - earlier)
        return History(singles_of(self._spaces[1], actions), rewards, earlier)


def _same_kind(chosen: Any, actions: Any) -> bool:
    """Whether what the agent chose has the dtypes of the actions that were made of it."""
    if actions.__class__ is np.ndarray:
        return chosen.__class__ is np.ndarray and chosen.dtype == actions.dtype
    given = dict(leaves(chosen)) if isinstance(chosen, dict | tuple) else {}
    return all(getattr(given.get(path), "dtype", None) == leaf.dtype for path, leaf in leaves(actions))
