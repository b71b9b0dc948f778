"""Make batches from a manager's steps: each environment's episodes, in the order of their indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from streamsampler.core.errors import ActionError, DataError, UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.data.assembly import assemble
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.spaces import check_actions, short
from streamsampler.data.trees import snapshot, take
from streamsampler.stepping.episodes import EnvEpisodes
from streamsampler.stepping.steps import Steps
from streamsampler.workers.vec.batch_infos import BatchInfos
from streamsampler.workers.vec.row_recorders import RowTrajectory, StepRecorder
from streamsampler.workers.vec.rows import row_of

if TYPE_CHECKING:
    from streamsampler.stepping.base_manager import BaseEnvManager


StartT = TypeVar("StartT")
EpisodeT = TypeVar("EpisodeT")


@suggesting()
class StepsRecorder(ABC, Generic[StartT, EpisodeT]):
    """Records the steps of a manager, and makes batches of whole episodes; see `EnvManager.recorder`.

    Episode k of environment e has the index e + k * n_envs. A batch has the episodes with the lowest indices not yet
    taken, in this order, so quick environments and short episodes are not over-represented. Episodes that failed or
    were cut short by a reset are left out.

    Attributes:
        n_left_out: How many episodes were left out.
    """

    def __init__(self, manager: BaseEnvManager, episodes: EnvEpisodes, max_held: int) -> None:
        self._manager, self._episodes = manager, episodes
        self._max_held = positive("max_held", max_held)
        n_envs, first = manager.n_envs, episodes.first_unstarted
        self._n_results = episodes.n_results.copy()  # the number of each environment's next result to add
        self._now: dict[int, EpisodeT] = {}  # current episodes, by environment
        self._next_starts: dict[int, StartT] = {}  # resets in the same step as the previous end
        self._next = [first] * n_envs  # the number of each environment's first episode not yet ended
        self._seeds: dict[int, int] = {}  # of episodes not yet taken, by index
        self._ended: dict[int, EpisodeT | None] = {}  # by index; None for left-out episodes
        self._waited_for = first * n_envs  # the least index of an episode not yet ended
        self._ready: list[int] = []  # indices before it, not yet taken
        self._is_interrupted = False  # then columns may differ in length
        self.n_left_out = 0

    @abstractmethod
    def _check_infos(self, steps: Steps, agent_infos: Any) -> None:
        """Raise DataError for infos that do not fit these steps."""

    @abstractmethod
    def _starts_of(self, steps: Steps) -> tuple[Mapping[int, StartT], Mapping[int, StartT], Any]:
        """Return resets, by row: in rows of their own, and in rows of ends; and `prepared` for `_record`."""

    @abstractmethod
    def _new_episode(self, env_id: int, index: int, start: StartT | None) -> EpisodeT: ...

    @abstractmethod
    def _record(self, steps: Steps, rows: list[int], prepared: Any, agent_infos: Any) -> None:
        """Record timesteps of current episodes: of some rows, with `prepared` from `_starts_of`."""

    @abstractmethod
    def _end_record(self, steps: Steps, row: int, episode: EpisodeT) -> None:
        """End an episode's record with its last timestep; raise DataError if its data are bad."""

    @abstractmethod
    def _forget(self, env_id: int) -> None:
        """Discard an environment's current episode, or its last if none is current."""

    @abstractmethod
    def _keep(self, episodes: list[EpisodeT]) -> None:
        """Discard all other episodes."""

    @abstractmethod
    def _batch_of(self, indices: list[int], episodes: list[EpisodeT]) -> TrajectoryBatch[Any, Any]: ...

    def add(self, steps: Steps, agent_infos: Mapping[str, Any] | None = None) -> None:
        """Record steps. Add all the manager returns, once, in order; with `copy=False` before the next `send`.

        Args:
            steps: The results of K environments, or a selection of them.
            agent_infos: The agent's infos for the actions of these steps: leaves of (K, ...). For several agents, such
                a dict for each policy with infos, with a row for each of its actions.

        Raises:
            UsageError: Steps were left out, or added twice; the environments were launched again; an earlier call was
                interrupted; or an environment is more than `max_held` episodes ahead of the slowest.
            ActionError: An action of an ended episode is outside its space: the episode is left out.
            DataError: `agent_infos` is no dict of K rows, or an info is no dict with strings as keys: nothing is
                recorded.
        """
        if self._manager._episodes is not self._episodes:
            raise UsageError("the environments were launched again after this recorder was made: make a new recorder")
        self._refuse_interrupted()
        if agent_infos is not None:
            self._check_infos(steps, agent_infos)
        starts, begins, prepared = self._starts_of(steps)
        self._refuse_others(steps)
        self._is_interrupted = True
        self._n_results[steps.env_ids] += 1
        rows = self._rows_to_record(steps, starts)
        failed, ended = steps.failed.tolist(), steps.ended.tolist()
        self._record(steps, [row for row in rows if not failed[row]], prepared, agent_infos)
        wrong: DataError | None = None
        for row in rows:
            if ended[row]:
                wrong = self._end(steps, row) or wrong
        for row, start in begins.items():
            env_id = int(steps.env_ids[row])
            if int(steps.episodes[row]) + 1 == self._next[env_id]:
                self._next_starts[env_id] = start
        self._is_interrupted = False
        if wrong is not None:
            raise wrong
        self._refuse_too_many()

    def _refuse_others(self, steps: Steps) -> None:
        expected = self._n_results[steps.env_ids]
        if len(wrong := np.flatnonzero(steps.result_numbers != expected)):
            row = wrong[0]
            raise UsageError(
                f"timestep {steps.timesteps[row]} of episode {steps.episodes[row]} of environment {steps.env_ids[row]} "
                f"is not its next result: it is number {steps.result_numbers[row]}, but number {expected[row]} comes "
                "next. Add all Steps returned by the manager since the recorder was made, each once, in order"
            )

    def _rows_to_record(self, steps: Steps, starts: Mapping[int, StartT]) -> list[int]:
        """Start new episodes; return the rows of episodes recorded from their start."""
        rows = []
        where = zip(steps.env_ids.tolist(), steps.episodes.tolist(), steps.timesteps.tolist(), strict=True)
        for row, (env_id, number, timestep) in enumerate(where):
            if not timestep:
                self._begin(env_id, number, starts.get(row))
                continue
            if number < self._next[env_id]:
                continue
            if timestep == 1 and env_id in self._next_starts:
                self._begin(env_id, number, self._next_starts[env_id])
            rows.append(row)
        return rows

    def _begin(self, env_id: int, number: int, start: StartT | None) -> None:
        """Start an episode, unless the recorder was made later; the current episode, if any, was cut short."""
        self._next_starts.pop(env_id, None)
        while self._next[env_id] < number:  # a reset discarded these episodes
            self._close(env_id, None)
        if self._next[env_id] == number and env_id not in self._now:
            self._now[env_id] = self._new_episode(env_id, env_id + number * len(self._next), start)

    def _end(self, steps: Steps, row: int) -> DataError | None:
        env_id = int(steps.env_ids[row])
        if steps.failed[row]:
            self._close(env_id, None)
            return None
        episode = self._now[env_id]
        try:
            self._end_record(steps, row, episode)
        except DataError as error:
            self._close(env_id, None)
            error.args = (f"{error} of an episode of environment {env_id}: the episode is left out",)
            return error
        self._seeds[env_id + self._next[env_id] * len(self._next)] = int(steps.seeds[row])
        self._close(env_id, episode)
        return None

    def _close(self, env_id: int, episode: EpisodeT | None) -> None:
        self.n_left_out += episode is None
        self._ended[env_id + self._next[env_id] * len(self._next)] = episode
        self._next[env_id] += 1
        if self._now.pop(env_id, None) is not None and episode is None:
            self._forget(env_id)
        while self._waited_for in self._ended:
            if self._ended[self._waited_for] is None:
                del self._ended[self._waited_for]
            else:
                self._ready.append(self._waited_for)
            self._waited_for += 1

    def _refuse_interrupted(self) -> None:
        if self._is_interrupted:
            raise UsageError(
                "an earlier call of this recorder was interrupted, by Ctrl-C or an error: make a new recorder"
            )

    def _refuse_too_many(self) -> None:
        ahead = max(self._next) - min(self._next)
        if ahead > self._max_held:
            raise UsageError(
                f"an environment is {ahead} episodes ahead of environments {self.missing}, and max_held is "
                f"{self._max_held}: step these environments first (send(actions, env_ids)), or pass a larger max_held"
            )

    @property
    def missing(self) -> list[int]:
        """The environments with the slowest episodes: later ones cannot be taken before these end."""
        least = min(self._next)
        return [env_id for env_id, number in enumerate(self._next) if number == least]

    def __len__(self) -> int:
        """Return how many trajectories can be taken."""
        return len(self._ready)

    def take(self, n_trajectories: int | None = None) -> TrajectoryBatch[Any, Any]:
        """Return the next trajectories in the order of their indices; later ones stay.

        Args:
            n_trajectories: How many; None for all available.

        Raises:
            UsageError: Fewer have ended, and the error names the environments to wait for; or an earlier call was
                interrupted.
            DataError: Infos of these trajectories do not fit together.
        """
        self._refuse_interrupted()
        if n_trajectories is not None:
            positive("n_trajectories", n_trajectories)
        taken = self._ready[:n_trajectories]
        if n_trajectories is not None and len(taken) < n_trajectories:
            raise UsageError(
                f"only {len(taken)} of {n_trajectories} trajectories are complete: step environments {self.missing} "
                "and add their Steps"
            )
        batch = self._batch_of(taken, [it for index in taken if (it := self._ended[index]) is not None])
        self._is_interrupted = True
        del self._ready[: len(taken)]
        for index in taken:
            del self._ended[index], self._seeds[index]
        self._keep([*self._now.values(), *[it for it in self._ended.values() if it is not None]])
        self._is_interrupted = False
        return batch

    def _assembled(
        self, make: Callable[..., TrajectoryBatch[Any, Any]], gather: Callable[..., Any], indices: list[int],
        episodes: list[EpisodeT], spaces: tuple[Any, Any],
    ) -> TrajectoryBatch[Any, Any]:  # fmt: skip
        segments = []
        if episodes:
            delivery = Delivery(0, gather(episodes, np.empty), spaces=spaces)
            numbers = np.array(indices)
            bounds = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(indices)]  # of runs without a gap
            for first, stop in pairwise(bounds):
                segments.append(Segment(delivery, first, stop, range(indices[first], indices[first] + stop - first)))
        return make(
            segments, observation_space=spaces[0], action_space=spaces[1],
            seeds_of=lambda indices: [self._seeds[index] for index in indices.tolist()], agent_version=0,
            seed=self._manager.seed,
        )  # fmt: skip


class RowsRecorder(StepsRecorder[dict[str, Any], RowTrajectory]):
    """Records the steps of environments of a single agent."""

    def __init__(self, manager: BaseEnvManager, spaces: tuple[Any, Any], episodes: EnvEpisodes, max_held: int) -> None:
        super().__init__(manager, episodes, max_held)
        self._spaces = spaces
        self._timesteps = StepRecorder(*spaces, manager.n_envs, in_order=False)

    def _check_infos(self, steps: Steps, agent_infos: Any) -> None:
        if not isinstance(agent_infos, Mapping):
            raise DataError(f"agent_infos must be a dict of arrays with a row for each step, got {short(agent_infos)}")
        BatchInfos("agent_infos").record(np.arange(len(steps)), agent_infos)

    def _starts_of(self, steps: Steps) -> tuple[Mapping[int, dict[str, Any]], Mapping[int, dict[str, Any]], Any]:
        infos, begins = {row: snapshot(info) for row, info in steps.info_by_row.items()}, dict[int, dict[str, Any]]()
        for row in np.flatnonzero(steps.ended).tolist() if self._manager.autoreset == "same_step" else ():
            info = infos.pop(row, {})
            begins[row] = {key: value for key, value in info.items() if key != "final_info"}
            infos[row] = info.get("final_info", {})
        for info in (*infos.values(), *begins.values()):
            InfoRecorder("infos").record(0, info)
        return infos, begins, infos

    def _new_episode(self, env_id: int, index: int, start: dict[str, Any] | None) -> RowTrajectory:
        recorder = self._timesteps
        if start:
            recorder.episode_infos.record(recorder.n_begun, start)
        recorder.n_begun += 1
        return RowTrajectory(None, 0, index, env_id, -1, recorder.n_begun - 1)

    def _record(self, steps: Steps, rows: list[int], infos: Mapping[int, dict[str, Any]], agent_infos: Any) -> None:
        if not rows:
            return
        recorder, index = self._timesteps, np.array(rows)
        ids = steps.env_ids[index]
        everyone = len(ids) == recorder.n_rows and bool((ids[1:] > ids[:-1]).all())
        recorder.begin_call(None if everyone else ids, len(ids))
        recorder.observations.extend(take(steps.previous_observations, index), len(ids))
        recorder.actions.extend(take(steps.actions, index), len(ids))
        recorder.rewards.frombytes(steps.rewards[index].astype(np.float64).tobytes())
        if agent_infos is not None:
            recorder.agent_infos.record_next(recorder.first, len(index), agent_infos, index, len(steps))
        for number, (row, env_id) in enumerate(zip(rows, ids.tolist(), strict=True), recorder.first):
            trajectory = self._now[env_id]
            if not trajectory.length:
                trajectory.begun = recorder.first
            trajectory.length += 1
            if row in infos:
                recorder.record_env_info(number, infos[row])

    def _end_record(self, steps: Steps, row: int, trajectory: RowTrajectory) -> None:
        env_id, recorder = int(steps.env_ids[row]), self._timesteps
        actions = recorder.actions.gather(recorder.numbers_of(env_id, trajectory.begun, trajectory.length))
        if (outside := check_actions(self._spaces[1], actions)) is not None:
            timestep, message = outside
            raise ActionError(f"{message}, at timestep {timestep}")
        trajectory.last = snapshot(row_of(steps.last_observations, row))
        trajectory.terminated, trajectory.truncated = bool(steps.terminated[row]), bool(steps.truncated[row])

    def _forget(self, env_id: int) -> None:
        """Do nothing: `_keep` discards its timesteps."""

    def _keep(self, episodes: list[RowTrajectory]) -> None:
        self._timesteps.keep(episodes)

    def _batch_of(self, indices: list[int], episodes: list[RowTrajectory]) -> TrajectoryBatch[Any, Any]:
        return self._assembled(assemble, self._timesteps.gather, indices, episodes, self._spaces)
