"""What the parent knows of the episodes of environments, and making `Steps` of the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.data.trees import map_tree, map_trees
from streamsampler.stepping.histories import ParameterSets, PastRequest, PastRequests, RestoreOrder
from streamsampler.stepping.ledger import EnvEvent, EnvState
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.steps import Steps

# ----------------------------------------------------------------------
# Give each episode of each environment its seed, whatever the order in which environments are stepped.


class EpisodeSeeds:
    """The seeds of episodes: episode k of environment e has the seed of index e + k * n_envs, as in the samplers.

    Args:
        seed: The manager's seed.
        n_envs: How many environments there are.
    """

    def __init__(self, seed: int, n_envs: int) -> None:
        self._n_envs = n_envs
        common = TrajectorySeeds(seed, 0)
        # For each environment: its seeds, the index of its next episode, and the distance to the one after that.
        self._streams: list[tuple[Sequence[int] | TrajectorySeeds, int, int]] = [
            (common, env_id, n_envs) for env_id in range(n_envs)
        ]

    def next(self, env_id: int) -> int:
        """Return the seed of the next episode of an environment, and go on to the one after it."""
        seeds, index, stride = self._streams[env_id]
        self._streams[env_id] = seeds, index + stride, stride
        return seeds[index]

    def restart(self, env_ids: Sequence[int], seed: Any, *, every_episode: bool = False) -> dict[int, int]:
        """Begin the seeds of some environments again, from what a reset was given.

        Args:
            env_ids: The environments.
            seed: An integer, from which environment e gets derived ones; a list with a seed for the next episode of
                each of `env_ids`; or a dict of such by environment. Later episodes get seeds derived from it and their
                number.
            every_episode: Whether later episodes get the same seed as the next one.

        Returns:
            The seeds of the next episodes, by environment; those that the dict lacks are left alone.

        Raises:
            UsageError: It is none of these, or of another length, or names an environment that is not reset.
        """
        seeds = self._restarted(env_ids, seed)
        if every_episode:
            for env_id, of_all in seeds.items():
                self._streams[env_id] = (of_all,), 0, 0
        return seeds

    def _restarted(self, env_ids: Sequence[int], seed: Any) -> dict[int, int]:
        if isinstance(seed, Mapping):
            unknown = [env_id for env_id in seed if env_id not in env_ids]
            if unknown:
                raise UsageError(f"seed has seeds for environments {unknown}, which are not among those to be reset")
            return self._own(seed)
        if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes):
            if len(seed) != len(env_ids):
                raise UsageError(f"seed has {len(seed)} items, but {len(env_ids)} environments are to be reset")
            return self._own(dict(zip(env_ids, seed, strict=True)))
        common = TrajectorySeeds(positive("seed", seed, least=0), 0)
        for env_id in env_ids:
            self._streams[env_id] = common, env_id, self._n_envs
        return {env_id: self.next(env_id) for env_id in env_ids}

    def _own(self, seeds: Mapping[int, Any]) -> dict[int, int]:
        """Let environments go on from seeds of their own; none does if one of the seeds is wrong."""
        checked = {e: positive(f"the seed of environment {e}", seed, least=0) for e, seed in seeds.items()}
        for env_id, seed in checked.items():
            if seed >= 1 << 63:
                raise UsageError(f"the seed of environment {env_id} must be less than 2**63, got {seed}")
        for env_id, seed in checked.items():
            self._streams[env_id] = TrajectorySeeds(seed, 1), 0, 1
        return checked


# ----------------------------------------------------------------------


class Episodes:
    """The episode of each environment: its number, its timesteps, and the seed of the next one.

    Args:
        rows: The rows of the environments.
        options: The manager's arguments.
        seed: The manager's seed.
        parameters: What resets set.

    Attributes:
        seeds: The seeds of later episodes.
        n_results: How many results of each environment were handed out.
    """

    def __init__(self, rows: Rows, options: ManagerOptions, seed: int, parameters: ParameterSets) -> None:
        n_envs = options.n_envs
        self._rows = rows
        self._options = options
        self._copies = options.copy or not rows.has_views
        self.seeds = EpisodeSeeds(seed, n_envs)
        self._numbers = np.full(n_envs, -1, np.int64)
        self._timesteps = np.zeros(n_envs, np.int64)
        self._seeds_now = np.zeros(n_envs, np.int64)
        self.n_results = np.zeros(n_envs, np.int64)
        self._slots = np.zeros(n_envs, np.uint8)  # where the observations lie that were handed out last
        self._n_ended = np.zeros(n_envs, np.int64)  # since the caller's last reset
        self._is_over = np.ones(n_envs, np.bool_)  # the next result begins an episode
        self._failed: set[int] = set()  # their open step ended because of a failure
        self._lost: set[int] = set()  # their episode is lost, and its caller does not know yet
        self._infos: dict[int, dict[str, Any]] = {}
        self._histories = options.histories(rows, parameters)
        self._requests = PastRequests(n_envs)
        # Where the options of a reset are forgotten since: the seed of that reset, and the options.
        self._begun_with: dict[int, tuple[int, dict[str, Any]]] = {}
        for env_id in range(n_envs):
            rows.seeds[env_id] = self.seeds.next(env_id)

    def set_next_seeds(self, seeds: Mapping[int, int]) -> None:
        """Set the seeds of the next resets."""
        for env_id, seed in seeds.items():
            self._rows.seeds[env_id] = seed

    def goes_on(self, env_id: int) -> bool:
        """Whether an episode has begun and not ended, as far as was handed out."""
        return not self._is_over[env_id]

    @property
    def first_to_come(self) -> int:
        """The least number of an episode that has begun in no environment."""
        return int(self._numbers.max()) + 1

    def begin_anew(self, env_ids: list[int], counted: Collection[int]) -> None:
        """Forget what was open of environments that their caller resets: they run `max_episodes` episodes again.

        Args:
            env_ids: The environments.
            counted: Those that are reset after an episode's end, and run only what is left.
        """
        self._n_ended[[env_id for env_id in env_ids if env_id not in counted]] = 0
        self._lost.difference_update(env_ids)
        self._failed.difference_update(env_ids)
        for env_id in env_ids:
            self._infos.pop(env_id, None)
            self._begun_with.pop(env_id, None)

    def parameters_in_use(self) -> list[int]:
        """Return the numbers of the parameters with which episodes that go on have begun."""
        handed_out = [] if self._histories is None else self._histories.set_numbers
        return [*handed_out, *self._rows.parameters.tolist()]

    def keep_infos(self, infos: Mapping[int, dict[str, Any]]) -> None:
        """Keep the infos of results until they are handed out."""
        self._infos.update(infos)

    # ------------------------------------------------------------------ failures

    def lose(self, env_ids: Sequence[int]) -> None:
        """Record that episodes are lost: the next step of each is to end it."""
        self._lost.update(env_ids)

    def take_lost(self, env_ids: Sequence[int]) -> list[int]:
        """Return those of some environments whose episodes are lost, and forget that."""
        if not self._lost:
            return []
        lost = [env_id for env_id in env_ids if env_id in self._lost and not self._is_over[env_id]]
        self._lost.difference_update(env_ids)
        return lost

    def fail(self, env_ids: Sequence[int]) -> None:
        """Record that the open steps of environments end their episodes, because they failed."""
        self._failed.update(env_ids)

    # ------------------------------------------------------------------ restoring

    def keep_actions(self, env_ids: list[int], actions: Any) -> None:
        """Keep actions that are sent, where environments are to be restored."""
        if self._histories is not None:
            self._histories.sent(env_ids, actions, self._timesteps[env_ids] + 1)

    def keep_options(self, options: Mapping[int, dict[str, Any] | None]) -> None:
        """Keep options that are forgotten for the episodes that began with them, to restore these."""
        if self._histories is not None:
            for env_id, of_one in options.items():
                if of_one is not None:
                    self._begun_with[env_id] = self._histories.seeds[env_id], of_one

    def restore_order(self, env_id: int, state: EnvState, *, arrived: bool, remake: bool) -> RestoreOrder | None:
        """Return how an environment that is lost becomes what it was; None if it had no episode.

        Args:
            env_id: The environment.
            state: Its state.
            arrived: Whether a result has arrived that is not handed out.
            remake: Whether the environment is there, and to be made anew.

        Raises:
            NotRestoredError: The episode is longer than what is kept.
        """
        order = self._restore_order(env_id, state, arrived, remake)
        if order is None:
            return self.order_anew(env_id, remake=remake)
        order = replace(order, requests=self._requests.to_repeat(env_id, self._place(env_id, state, arrived)[0]))
        seed, options = self._begun_with.get(env_id, (None, None))
        return order if options is None or order.seed != seed else replace(order, options=options)

    def order_anew(self, env_id: int, *, remake: bool) -> RestoreOrder | None:
        """Return what makes an environment new that has no episode to go on; None if there is nothing to do.

        Args:
            env_id: The environment.
            remake: Whether it is there, and to be made anew.

        Raises:
            NotRestoredError: It cannot be what it was, whatever its episode.
        """
        requests = self._requests.to_repeat(env_id, None)
        return RestoreOrder(env_id, remake, requests=requests) if remake or requests else None

    def keep_request(self, env_id: int, state: EnvState, *, arrived: bool, request: PastRequest) -> bool:
        """Keep what `call` or `set_attr` did to an environment, to repeat it with the one that replaces it.

        Args:
            env_id: The environment.
            state: Its state.
            arrived: Whether a result has arrived that is not handed out.
            request: The request, whose timestep is not known.

        Returns:
            Whether it is the first one too many: from now on the environment cannot be restored.
        """
        episode, timestep = self._place(env_id, state, arrived)
        return self._requests.record(env_id, episode, request._replace(timestep=timestep))

    def _place(self, env_id: int, state: EnvState, arrived: bool) -> tuple[int, int]:
        """Return the number of the episode that an environment is in, and its timesteps, also if not handed out yet."""
        number, n = int(self._numbers[env_id]), int(self._timesteps[env_id])
        if not arrived:
            return number, n
        return (number + 1, 0) if self._has_begun(env_id, state) else (number, n + 1)

    def _has_begun(self, env_id: int, state: EnvState) -> bool:
        """Whether a result that has arrived, and is not handed out, is the first of an episode."""
        has_ended = env_id in self._failed or self._rows.terminated[env_id] or self._rows.truncated[env_id]
        if has_ended and self._options.autoreset == "same_step":
            return True
        return env_id not in self._failed and (state is EnvState.RESETTING or bool(self._is_over[env_id]))

    def _restore_order(self, env_id: int, state: EnvState, arrived: bool, remake: bool) -> RestoreOrder | None:
        histories, rows = self._histories, self._rows
        assert histories is not None
        episode_is_lost = self._is_over[env_id] or env_id in self._lost
        n = int(self._timesteps[env_id])
        if arrived:
            if self._has_begun(env_id, state):
                return histories.order_of_reset(env_id, remake)
            episode_is_lost |= env_id in self._failed or rows.terminated[env_id] or rows.truncated[env_id]
        if episode_is_lost:
            return None
        if arrived:
            return histories.order_of_result(env_id, n + 1, remake)
        return histories.order(env_id, n, int(self._slots[env_id]), remake)

    def rewind(self, env_ids: Sequence[int]) -> None:
        """Let the last observation be the one that was handed out last: a lost step may have written another one."""
        for env_id in env_ids:
            self._rows.slots[env_id] = self._slots[env_id]

    def has_failed(self, env_id: int) -> bool:
        """Whether the open step of an environment ends its episode, because it failed."""
        return env_id in self._failed

    # ------------------------------------------------------------------ results

    def hand_out(
        self, env_ids: list[int], states: Sequence[EnvState], abnormal: NDArray[np.bool_]
    ) -> tuple[Steps, list[EnvEvent]]:
        """Return the results of environments, and what becomes of each environment by it.

        Args:
            env_ids: The environments.
            states: Those of all environments.
            abnormal: What `abnormal` returned for these.
        """
        rows, ids = self._rows, np.array(env_ids, np.int64)
        failed = self._take_failed(env_ids)
        resets = self._is_over[ids]
        if self._needs_look(env_ids, states):
            resets |= np.fromiter((states[env_id] is EnvState.RESETTING for env_id in env_ids), np.bool_, len(ids))
        terminated, truncated, rewards = rows.terminated[ids], rows.truncated[ids], rows.rewards[ids]
        if failed.any():
            terminated[failed], truncated[failed], rewards[failed] = False, True, 0.0
        self._count(ids, resets)
        slots = rows.slots[ids]
        same_step = self._options.autoreset == "same_step"
        before = 1 - slots
        if failed.any() and not same_step:
            before = np.where(failed, slots, 1 - slots)
        observations, previous = self._observed(slots, ids), self._observed(before, ids)
        last = self._last(ids, observations, previous, terminated | truncated, failed) if same_step else observations
        truncated |= abnormal
        ended = terminated | truncated
        steps = Steps(
            ids, observations, rewards, terminated=terminated, truncated=truncated,
            info_by_row=self._taken_infos(env_ids), last_observations=last, episodes=self._numbers[ids],
            timesteps=self._timesteps[ids], actions=rows.taken_actions(ids), previous_observations=previous,
            failed=failed | abnormal, seeds=self._seeds_now[ids], result_numbers=self.n_results[ids],
        )  # fmt: skip
        self.n_results[ids] += 1
        events = self._events(env_ids, states, ended, abnormal)
        self._slots[ids] = slots
        if self._histories is not None:
            self._histories.handed_out(ids, self._timesteps[ids], rewards, observations)
        return steps, events

    def _observed(self, slots: NDArray[np.uint8], ids: NDArray[np.int64]) -> Any:
        """Return observations: copies, or views where that is wanted and the rows lie one after the other."""
        first, n = int(ids[0]) if len(ids) else 0, len(ids)
        if self._copies or (slots != slots[:1]).any() or (ids != np.arange(first, first + n)).any():
            return self._rows.taken_observations(slots, ids)

        def view(leaf: Any) -> Any:
            shown = leaf[slots[0] if n else 0, first : first + n]
            shown.flags.writeable = False  # it is the worker's row
            return shown

        return map_tree(view, self._rows.observations)

    def _take_failed(self, env_ids: list[int]) -> NDArray[np.bool_]:
        failed = np.zeros(len(env_ids), np.bool_)
        if self._failed:
            failed[:] = [env_id in self._failed for env_id in env_ids]
            self._failed.difference_update(env_ids)
        return failed

    @staticmethod
    def _needs_look(env_ids: list[int], states: Sequence[EnvState]) -> bool:
        return any(states[env_id] is EnvState.RESETTING for env_id in env_ids)

    def _count(self, ids: NDArray[np.int64], resets: NDArray[np.bool_]) -> None:
        self._timesteps[ids] += 1
        for env_id in ids[resets].tolist():
            self._begin(env_id)
            self._timesteps[env_id] = 0

    def _begin(self, env_id: int) -> None:
        """Begin to count an episode; its seed was that in the row."""
        if self._histories is not None:
            self._histories.begin(env_id)
        self._numbers[env_id] += 1
        self._seeds_now[env_id] = self._rows.seeds[env_id]
        self._is_over[env_id] = False
        self._rows.seeds[env_id] = self.seeds.next(env_id)

    def _last(
        self,
        ids: NDArray[np.int64],
        observations: Any,
        previous: Any,
        ended: NDArray[np.bool_],
        failed: NDArray[np.bool_],
    ) -> Any:
        """Return the last observations where environments are reset in the step that ends an episode."""
        if not ended.any():
            return observations

        def join(final: Any, current: Any, before: Any) -> Any:
            joined = current.copy()
            joined[ended] = final
            joined[failed] = before[failed]
            return joined

        return map_trees(join, self._rows.taken_last_observations(ids[ended]), observations, previous)

    def _events(
        self, env_ids: list[int], states: Sequence[EnvState], ended: NDArray[np.bool_], abnormal: NDArray[np.bool_]
    ) -> list[EnvEvent]:
        events = [EnvEvent.BEGAN if states[it] is EnvState.RESETTING else EnvEvent.STEPPED for it in env_ids]
        for row in np.flatnonzero(ended).tolist():
            events[row] = self._end(env_ids[row], is_abnormal=bool(abnormal[row]))
        return events

    def abnormal(self, env_ids: list[int]) -> NDArray[np.bool_]:
        """Return which of the results are those of environments that say in their infos that they failed."""
        abnormal = np.zeros(len(env_ids), np.bool_)
        if self._infos:
            abnormal[:] = [env_id in self._infos and self._is_abnormal(self._infos[env_id]) for env_id in env_ids]
        return abnormal

    def _is_abnormal(self, info: dict[str, Any]) -> bool:
        is_abnormal = self._options.abnormal
        if is_abnormal(info):
            return True
        # Where the environment was reset in the step that ended its episode, the episode's own info is in that one.
        return self._options.autoreset == "same_step" and "final_info" in info and bool(is_abnormal(info["final_info"]))

    def _end(self, env_id: int, *, is_abnormal: bool) -> EnvEvent:
        """Count an episode that ended; return what becomes of its environment."""
        self._n_ended[env_id] += 1
        limit = self._options.max_episodes
        self._is_over[env_id] = True
        if is_abnormal:
            return EnvEvent.BROKE  # an episode that has begun in the same step begins again at the next reset
        if limit is not None and self._n_ended[env_id] >= limit:
            return EnvEvent.REACHED_LIMIT  # an episode that has begun in the same step begins again at the next reset
        if self._options.autoreset == "same_step":
            self._begin(env_id)
            self._timesteps[env_id] = 0
        return EnvEvent.ENDED if self._options.autoreset == "disabled" else EnvEvent.STEPPED

    def _taken_infos(self, env_ids: list[int]) -> dict[int, dict[str, Any]]:
        if not self._infos:
            return {}
        infos = self._infos
        return {row: infos.pop(env_id) for row, env_id in enumerate(env_ids) if env_id in infos}
