"""The manager's record of each environment's episode; makes `Steps` of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.trees import map_tree, map_trees
from streamsampler.stepping.env_scheduler import EnvScheduler
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.episode_seeds import EpisodeSeeds
from streamsampler.stepping.histories import Histories
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.parameter_sets import ParameterSets
from streamsampler.stepping.past_requests import PastRequest, PastRequests
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.values import place_of


def taken(array: NDArray[Any], place: Any) -> NDArray[Any]:
    found: NDArray[Any] = array[place]
    return found.copy() if place.__class__ is slice else found


class RoundResults(NamedTuple):
    """The results of a step of all environments, none of which failed."""

    observations: Any  # leaves of (n_envs, ...): the observations for the next actions
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[int, dict[str, Any]]  # the non-empty infos, by environment
    ended: list[int]  # the environments with ended episodes
    last_observations: Any = None  # of `ended`, leaves of (len(ended), ...), if they are reset in the same step


_ROUNDS_TOGETHER = 64
"""After so many rounds the timesteps, counts and histories of all environments are updated together: an update in each
round would double the time of a round."""


class EnvEpisodes:
    """Each environment's episode: its number, timesteps, and next seed; the only writer of these."""

    def __init__(
        self, rows: Rows, options: ManagerOptions, seed: int, parameters: ParameterSets, scheduler: EnvScheduler
    ) -> None:
        n_envs = options.n_envs
        self._rows = rows
        self._options = options
        self._scheduler = scheduler
        self._copies = options.copy or not rows.has_views
        self.seeds = EpisodeSeeds(seed, n_envs)
        self._numbers = np.full(n_envs, -1, np.int64)
        self._timesteps = np.zeros(n_envs, np.int64)
        self._seeds_now = np.zeros(n_envs, np.int64)
        self._n_results = np.zeros(n_envs, np.int64)
        self._none_or_all = (0, n_envs)
        self._n_rounds = 0  # rounds not yet added to timesteps, numbers of results and histories
        self._slots = np.zeros(n_envs, np.uint8)  # the slots of the last received observations
        self._infos: dict[int, dict[str, Any]] = {}
        self._histories: Histories | None = None
        with_digests = options.on_failure == "restore" and options.verify == "steps"
        if options.on_failure == "restore":
            self._histories = Histories(rows, n_envs, options.restore_limit, with_digests, parameters)
        self.takes_rounds = not with_digests  # whether `make_round_results` records enough to restore environments
        self._requests = PastRequests(n_envs)
        # Options removed since: by environment, with the seed of the last reset using them.
        self._begun_with: dict[int, tuple[int, dict[str, Any]]] = {}
        for env_id in range(n_envs):
            rows.seeds[env_id] = self.seeds.next(env_id)

    @property
    def n_results(self) -> NDArray[np.int64]:
        """How many results of each environment the caller has received."""
        self._settle()
        return self._n_results

    def _settle(self) -> None:
        n, self._n_rounds = self._n_rounds, 0
        if n:
            self._timesteps += n
            self._n_results += n
            if self._histories is not None:
                self._histories.settle_rounds(self._timesteps)

    def set_next_seeds(self, seeds: Mapping[int, int]) -> None:
        for env_id, seed in seeds.items():
            self._rows.seeds[env_id] = seed

    def now(self, env_id: int) -> tuple[int, Any]:
        """Return the number of an environment's episode, and its observation, None between episodes."""
        goes_on = self._scheduler.has_episode(env_id)
        return int(self._numbers[env_id]), self._rows.observation(env_id) if goes_on else None

    @property
    def first_unstarted(self) -> int:
        """The least episode number that no environment has started."""
        return int(self._numbers.max()) + 1

    def forget(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._infos.pop(env_id, None)
            self._begun_with.pop(env_id, None)

    def parameters_in_use(self) -> list[int]:
        """Return the numbers of the parameter sets of current episodes."""
        recorded = [] if self._histories is None else self._histories.set_numbers
        return [*recorded, *self._rows.parameters.tolist()]

    def keep_infos(self, infos: Mapping[int, dict[str, Any]]) -> None:
        self._infos.update(infos)

    def keep_options(self, options: Mapping[int, dict[str, Any] | None]) -> None:
        """Keep removed options, to restore episodes started with them."""
        if self._histories is not None:
            for env_id, of_one in options.items():
                if of_one is not None:
                    self._begun_with[env_id] = self._histories.seeds[env_id], of_one

    def restore_order(self, env_id: int, *, remake: bool) -> RestoreOrder | None:
        """Return the order to restore a lost environment; None if it had no episode.

        `remake`: the environment exists and must be made again. Raises NotRestoredError if the history is too short.
        """
        self._settle()
        order = self._restore_order(env_id, remake)
        if order is None:
            return self.remake_order(env_id, remake=remake)
        order = replace(order, requests=self._requests.to_repeat(env_id, self._place(env_id)[0]))
        seed, options = self._begun_with.get(env_id, (None, None))
        return order if options is None or order.seed != seed else replace(order, options=options)

    def remake_order(self, env_id: int, *, remake: bool) -> RestoreOrder | None:
        """Return the order to make an environment without an episode again, if it needs any.

        Raises NotRestoredError if it had too many requests.
        """
        requests = self._requests.to_repeat(env_id, None)
        return RestoreOrder(env_id, remake, requests=requests) if remake or requests else None

    def keep_request(self, env_id: int, request: PastRequest) -> bool:
        """Record a `call` or `set_attr`, to repeat it on a replacement; return whether it exceeds the limit."""
        self._settle()
        episode, timestep = self._place(env_id)
        return self._requests.record(env_id, episode, request._replace(timestep=timestep))

    def _place(self, env_id: int) -> tuple[int, int]:
        """Return the number and timesteps of the episode, including a result not yet received."""
        number, n = int(self._numbers[env_id]), int(self._timesteps[env_id])
        if env_id not in self._scheduler.arrived:
            return number, n
        return (number + 1, 0) if self._has_begun(env_id) else (number, n + 1)

    def _has_ended(self, env_id: int) -> bool:
        """Whether an arrived result, not yet received, ends an episode."""
        rows = self._rows
        return env_id in self._scheduler.failed or bool(rows.terminated[env_id] or rows.truncated[env_id])

    def _has_begun(self, env_id: int) -> bool:
        """Whether an arrived result, not yet received, starts an episode."""
        scheduler = self._scheduler
        if self._has_ended(env_id) and self._options.autoreset == "same_step":
            return True
        begins = scheduler.states[env_id] is EnvState.RESETTING or env_id in scheduler.over
        return begins and env_id not in scheduler.failed

    def _restore_order(self, env_id: int, remake: bool) -> RestoreOrder | None:
        histories, scheduler = self._histories, self._scheduler
        assert histories is not None
        has_arrived = env_id in scheduler.arrived
        if has_arrived and self._has_begun(env_id):
            return histories.order_of_reset(env_id, remake)
        if env_id in scheduler.over or env_id in scheduler.lost or (has_arrived and self._has_ended(env_id)):
            return None
        n = int(self._timesteps[env_id])
        if has_arrived:
            return histories.order_of_result(env_id, n + 1, remake)
        return histories.order(env_id, n, int(self._slots[env_id]), remake)

    def rewind(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._rows.slots[env_id] = self._slots[env_id]

    def make_steps(self, env_ids: list[int], abnormal: NDArray[np.bool_] | None) -> Steps:
        """Return results to their caller; `abnormal` is the value of the method `abnormal`.

        Each call costs about as much as two steps. So it uses slices for consecutive environments, and visits single
        ones only at an episode's end.
        """
        self._settle()
        rows, place = self._rows, place_of(env_ids)
        ids = np.array(env_ids, np.int64)
        failed = self._take_failed(env_ids)
        self._timesteps[place] += 1
        for env_id in self._scheduler.start_episodes(env_ids):
            self._begin(env_id)
        terminated, truncated = taken(rows.terminated, place), taken(rows.truncated, place)
        rewards, slots = taken(rows.rewards, place), taken(rows.slots, place)
        same_step = self._options.autoreset == "same_step"
        before = 1 - slots
        if failed is not None:
            terminated[failed], truncated[failed], rewards[failed] = False, True, 0.0
            if not same_step:
                before = np.where(failed, slots, before)
        ended = terminated | truncated
        observations, previous = self._observed(slots, ids, place), self._observed(before, ids, place)
        last = self._last(ids, observations, previous, ended, failed) if same_step else observations
        if abnormal is not None:
            truncated |= abnormal
            ended |= abnormal
            failed = abnormal if failed is None else failed | abnormal
        steps = Steps(
            ids, observations, rewards, terminated=terminated, truncated=truncated,
            info_by_row=self._taken_infos(env_ids), last_observations=last, episodes=taken(self._numbers, place),
            timesteps=taken(self._timesteps, place), actions=rows.action_values.taken(0, place),
            previous_observations=previous,
            failed=np.zeros(len(ids), np.bool_) if failed is None else failed, seeds=taken(self._seeds_now, place),
            result_numbers=taken(self._n_results, place),
        )  # fmt: skip
        self._n_results[place] += 1
        self._end_episodes(env_ids, ended, abnormal)
        self._slots[place] = slots
        if self._histories is not None:
            timesteps = taken(self._timesteps, place)
            self._histories.record(ids.copy(), timesteps, steps.actions, rewards, observations)
        return steps

    def make_round_results(self, infos: Mapping[int, dict[str, Any]]) -> RoundResults:
        """Return the results of a round, in which no environment failed."""
        rows = self._rows
        self._n_rounds += 1
        for env_id in tuple(self._scheduler.over):  # usually empty
            self._scheduler.over.discard(env_id)
            self._begin(env_id)
        terminated, truncated, rewards = rows.terminated.copy(), rows.truncated.copy(), rows.rewards.copy()
        self._slots[...] = rows.slots
        last, ended = None, list[int]()
        if rows.plain_leaves and self._copies and np.count_nonzero(rows.slots) in self._none_or_all:
            observations = rows.plain_leaves[rows.slots[0]].copy()  # the general way takes five times as long
        else:
            observations = self._observed(rows.slots, None, slice(0, len(rewards)))
        if self._histories is not None:
            self._histories.keep_round(rows.actions, rewards)
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            ended = np.flatnonzero(terminated | truncated).tolist()
            if self._options.autoreset == "same_step":
                last = rows.last_values.taken(0, ended)
            for env_id in self._scheduler.end_round(ended):
                self._begin(env_id)
        if self._n_rounds == _ROUNDS_TOGETHER:
            self._settle()
        return RoundResults(observations, rewards, terminated, truncated, infos, ended, last)

    def _observed(self, slots: NDArray[np.uint8], ids: NDArray[np.int64] | None, place: Any) -> Any:
        """Copy observations, or return views if requested and if the environments are consecutive."""
        n_second = np.count_nonzero(slots)
        if place.__class__ is not slice or 0 < n_second < len(slots):
            return self._rows.observation_values.taken(slots, np.arange(len(slots)) if ids is None else ids)
        slot = int(n_second > 0)
        if self._copies:
            return self._rows.observation_values.taken(slot, place)

        def view(leaf: Any) -> Any:
            shown = leaf[slot, place]
            shown.flags.writeable = False  # the worker writes this row
            return shown

        return map_tree(view, self._rows.observations)

    def _take_failed(self, env_ids: list[int]) -> NDArray[np.bool_] | None:
        """Return and forget which results end their episodes by a failure."""
        failed = self._scheduler.failed
        if failed.isdisjoint(env_ids):
            return None
        found = np.array([env_id in failed for env_id in env_ids], np.bool_)
        failed.difference_update(env_ids)
        return found

    def _begin(self, env_id: int) -> None:
        if self._histories is not None:
            self._histories.start_episode(env_id)
        self._numbers[env_id] += 1
        self._seeds_now[env_id] = self._rows.seeds[env_id]
        self._timesteps[env_id] = -self._n_rounds
        self._rows.seeds[env_id] = self.seeds.next(env_id)

    def _last(
        self, ids: NDArray[np.int64], observations: Any, previous: Any, ended: NDArray[np.bool_],
        failed: NDArray[np.bool_] | None,
    ) -> Any:  # fmt: skip
        if not np.count_nonzero(ended):
            return observations

        def join(final: Any, current: Any, before: Any) -> Any:
            joined = current.copy()
            joined[ended] = final
            if failed is not None:
                joined[failed] = before[failed]
            return joined

        return map_trees(join, self._rows.last_values.taken(0, ids[ended]), observations, previous)

    def _end_episodes(self, env_ids: list[int], ended: NDArray[np.bool_], abnormal: NDArray[np.bool_] | None) -> None:
        """Report received results to the scheduler; start the next episodes in mode "same_step"."""
        ids = np.array(env_ids) if np.count_nonzero(ended) else None
        over = () if ids is None else ids[ended].tolist()
        failed = () if ids is None or abnormal is None else ids[abnormal].tolist()
        for env_id in self._scheduler.receive(env_ids, over, failed):
            self._begin(env_id)

    def abnormal(self, env_ids: list[int]) -> NDArray[np.bool_] | None:
        """Return the results whose infos report a failure; None if none does."""
        if not self._infos:
            return None
        found = [env_id in self._infos and self.is_abnormal(self._infos[env_id]) for env_id in env_ids]
        return np.array(found, np.bool_) if any(found) else None

    def is_abnormal(self, info: dict[str, Any]) -> bool:
        is_abnormal = self._options.abnormal
        if is_abnormal(info):
            return True
        # After a reset in the same step, `final_info` holds the ended episode's own info.
        return self._options.autoreset == "same_step" and "final_info" in info and bool(is_abnormal(info["final_info"]))

    def _taken_infos(self, env_ids: list[int]) -> dict[int, dict[str, Any]]:
        if not self._infos:
            return {}
        infos = self._infos
        return {row: infos.pop(env_id) for row, env_id in enumerate(env_ids) if env_id in infos}
