"""Give a manager's environments the interface of `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError, WorkerError, positive
from streamsampler.data.infos import Infos
from streamsampler.data.spaces import row_spec
from streamsampler.data.trees import map_tree, map_trees, object_array
from streamsampler.stepping.call_errors import DifferentSpacesError, NoCallPendingError
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.row_infos import joined_infos
from streamsampler.stepping.steps import Steps
from streamsampler.workers.vec.columns import leaves_of
from streamsampler.workers.vec.rows import row_of

if TYPE_CHECKING:
    from streamsampler.stepping.base_manager import BaseEnvManager
    from streamsampler.stepping.episodes import RoundResults

_LOG = logging.getLogger("streamsampler")


def send_on(manager: BaseEnvManager, actions: Any) -> None:
    """Send stacked actions to all environments; reset failed ones instead, unless the caller resets."""
    if manager._start_round(actions):
        return
    failed = _failed(manager) if manager.autoreset != "disabled" else []
    if not failed:
        manager.send(actions)
        return
    others = [env_id for env_id in range(manager.n_envs) if env_id not in failed]
    manager.send(_rows(manager.action_space, actions, others, manager.n_envs), others)
    manager.async_reset(failed)


def receive_on(manager: BaseEnvManager, timeout: float | None = None) -> Steps:
    """Return the results of all environments.

    With autoreset "same_step", failed environments are reset as if in the same step. If an environment failed
    otherwise, the others' results are discarded, so that the caller can step all of them.
    """
    try:
        return _reset_failed(manager, manager.recv_from(timeout=timeout))
    except WorkerError:
        _discard_open(manager)
        raise


def _discard_open(manager: BaseEnvManager) -> None:
    """Receive open results; log further failures."""
    while any(state in (EnvState.STEPPING, EnvState.RESETTING) for state in manager.states):
        try:
            manager.recv(min_envs=manager.n_envs)
        except WorkerError as error:  # its environment has failed, so it has no open request any more
            _LOG.warning("another failure in the same step: %s", error)


def _reset_failed(manager: BaseEnvManager, steps: Steps) -> Steps:
    if not np.count_nonzero(steps.failed) or manager.autoreset != "same_step":
        return steps
    failed = _failed(manager)

    def joined(current: Any, begun: Any) -> Any:
        of_all = current.copy()
        of_all[failed] = begun
        return of_all

    begun = manager.reset(failed)
    infos = dict(steps.info_by_row)
    for row, env_id in enumerate(failed):
        info = infos.get(env_id, {})
        infos[env_id] = {**begun.info_by_row.get(row, {}), "final_info": info.get("final_info", info)}
    return replace(steps, observations=map_trees(joined, steps.observations, begun.observations), info_by_row=infos)


def _failed(manager: BaseEnvManager) -> list[int]:
    states = manager.states
    if EnvState.FAILED not in states:
        return []
    return [env_id for env_id, state in enumerate(states) if state is EnvState.FAILED]


def _rows(space: Any, actions: Any, rows: list[int], n: int) -> Any:
    """Return some of n rows of stacked actions; other actions are left to raise later."""
    if isinstance(space, gym_spaces.Dict) and isinstance(actions, Mapping):
        return {key: _rows(space.spaces.get(key), part, rows, n) for key, part in actions.items()}
    if isinstance(space, gym_spaces.Tuple) and isinstance(actions, tuple) and len(actions) == len(space.spaces):
        return tuple(_rows(child, part, rows, n) for child, part in zip(space.spaces, actions, strict=True))
    if isinstance(actions, np.ndarray):
        return actions[rows] if actions.shape[:1] == (n,) else actions
    return [actions[row] for row in rows] if isinstance(actions, list | tuple) and len(actions) == n else actions


def _as_gymnasium_has_it(leaf: Any) -> Any:
    return tuple(leaf) if leaf.dtype.hasobject else leaf


_EMPTY: Final[dict[str, Any]] = {"final_info": {}}
"""The infos of most environments when an episode ends and the next starts."""

ObservationMode: TypeAlias = 'Literal["same", "different"] | tuple[gym_spaces.Space[Any], gym_spaces.Space[Any]]'
_Stepped: TypeAlias = "tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]"


class ManagedVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps all environments of a manager at once; for scripts written against Gymnasium.

    As in Gymnasium, an integer seed s gives environment e the seed s + e. Later episodes get seeds derived from it, the
    same for any number of workers: those of `EpisodeSeeds`; Gymnasium's own environments go on drawing instead.

    Infos are in the form of Gymnasium's vector environments, with a mask `_key` for each key. An episode that ended
    because its environment failed is truncated, and marked in `infos["env_failed"]`. After a `step` that raised,
    `reset` starts new episodes in all environments; the next `step` resets failed environments, and steps the others.

    A call made too early, too late or twice raises an exception of this package, and at the same time of Gymnasium's
    `AsyncVectorEnv`: `ClosedEnvironmentError`, `AlreadyPendingCallError`, `NoAsyncCallError`, `ResetNeeded`, or
    `multiprocessing.TimeoutError`.

    Args:
        manager: The manager; `close` closes it.
        observation_mode: See `EnvManager.vector_env`.
    """

    def __init__(self, manager: BaseEnvManager, observation_mode: ObservationMode = "same") -> None:
        self.manager = manager
        self.num_envs = manager.n_envs
        mode = AutoresetMode[manager.autoreset.upper()]
        self._is_same_step = mode is AutoresetMode.SAME_STEP
        self.observation_space, self.single_observation_space = _observation_spaces(manager, observation_mode)
        self.single_action_space = manager.action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._has_objects = any(
            row_spec(leaf)[1].hasobject for _, leaf in leaves_of(self.single_observation_space, "observation")
        )
        self.metadata = {**manager.get_attr("metadata", [0])[0], "autoreset_mode": mode}
        self.render_mode = manager.get_attr("render_mode", [0])[0]
        self.spec = manager.get_attr("spec", [0])[0]
        self._resetting, self._has_options = list(range(self.num_envs)), False  # the arguments of `reset_async`
        self._called: tuple[Any, ...] | None = None  # the results for `call_wait`
        self._open_call: Literal["reset", "step"] | None = None  # the call with outstanding results

    def __del__(self) -> None:
        """Do nothing, like Gymnasium's own before 1.3: the manager may be in use, and otherwise closes itself."""

    @property  # type: ignore[misc]  # as in Gymnasium's own, it cannot be set
    def np_random(self) -> Any:
        """Copies of the environments' random generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        return self.get_attr("np_random_seed")

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of the boolean array `options["reset_mask"]`.

        Raises:
            UsageError: The number of seeds is not that of environments, or the mask is invalid, or leaves out
                environments without any reset so far.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"options must be a dict, got {type(options).__name__}")
        options = None if options is None else dict(options)
        env_ids = _masked(None if options is None else options.pop("reset_mask", None), self.num_envs)
        states = self.manager.states
        if void := [e for e, state in enumerate(states) if e not in env_ids and state is EnvState.VOID]:
            raise UsageError(f'environments {void} were never reset: call reset() without options["reset_mask"] first')
        seeds = _seeds(seed, self.num_envs)
        chosen = None if seeds is None else {e: s for e, s in seeds.items() if e in env_ids}
        self.manager.async_reset(env_ids, seed=chosen, options=options)
        self._resetting, self._has_options = env_ids, options is not None
        self._open_call = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the results of `reset_async`; see `step_wait`."""
        env_ids = self._resetting
        steps = self._awaited("reset", lambda: self.manager.recv_from(env_ids, timeout))
        if self._has_options:
            self.manager.forget_options(env_ids)  # Gymnasium's environments reset themselves without options
        infos = joined_infos({env_ids[row]: it for row, it in steps.info_by_row.items()}, self.num_envs)
        observations = steps.observations if len(env_ids) == self.num_envs else self.manager.observations()
        return self._batched(observations), infos

    def step(self, actions: Any) -> _Stepped:
        send_on(self.manager, actions)
        results = self.manager._end_round()
        return self._stepped(receive_on(self.manager)) if results is None else self._of_round(results)

    def step_async(self, actions: Any) -> None:
        send_on(self.manager, actions)
        self._open_call = "step"

    def step_wait(self, timeout: float | None = None) -> _Stepped:
        """Return the results of `step_async`, after at most `timeout` seconds; None for no limit.

        Raises:
            UsageError: No step was requested; also Gymnasium's `NoAsyncCallError`.
            TimeoutError: Results are missing by then; call again to wait on. Also `multiprocessing.TimeoutError`.
        """
        if timeout is None and (results := self.manager._end_round()) is not None:
            self._open_call = None
            return self._of_round(results)
        return self._stepped(self._awaited("step", lambda: receive_on(self.manager, timeout)))

    def _awaited(self, call: Literal["reset", "step"], receive: Callable[[], Steps]) -> Steps:
        """Return the value of `receive`; after an interrupt or a timeout, the caller may call again."""
        if self._open_call != call and EnvState.CLOSED not in self.manager.states:
            raise NoCallPendingError(f"there is nothing to wait for: call {call}_async() first", call)
        try:
            steps = receive()
        except WorkerError:
            self._open_call = None
            raise
        self._open_call = None
        return steps

    def _stepped(self, steps: Steps) -> _Stepped:
        infos = joined_infos(steps.info_by_row, self.num_envs)
        if np.count_nonzero(steps.failed):
            infos |= {"env_failed": steps.failed.copy(), "_env_failed": steps.failed}
        if self._is_same_step and (ended := np.flatnonzero(steps.ended).tolist()):
            last = [row_of(steps.last_observations, row) for row in ended]
            infos |= _final(self.num_envs, ended, last, infos)
        return self._batched(steps.observations), steps.rewards, steps.terminated, steps.truncated, infos

    def _of_round(self, results: RoundResults) -> _Stepped:
        observations, rewards, terminated, truncated, by_env, ended, last_observations = results
        # In the mode "same_step" each ended episode has a last info, even an empty dict: `_final` adds it.
        is_empty = len(by_env) == len(ended) and all(info == _EMPTY for info in by_env.values())
        infos = {} if is_empty else joined_infos(by_env, self.num_envs)
        if ended and self._is_same_step:
            last = [row_of(last_observations, row) for row in range(len(ended))]
            infos |= _final(self.num_envs, ended, last, infos)
        return self._batched(observations), rewards, terminated, truncated, infos

    def _batched(self, observations: Any) -> Any:
        return map_tree(_as_gymnasium_has_it, observations) if self._has_objects else observations

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self.manager.call(name, *args, **kwargs))

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        self._called = self.call(name, *args, **kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:  # noqa: ARG002 - Gymnasium's argument
        """Return the results of `call_async`; raise UsageError without a call."""
        called, self._called = self._called, None
        if called is None:
            raise NoCallPendingError("there is nothing to wait for: call call_async() first", "call")
        return called

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return tuple(self.manager.get_attr(name))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: the same value for each environment, or the items of a list."""
        self.manager.set_attr(name, list(values) if isinstance(values, list | tuple) else values)

    def render(self) -> tuple[Any, ...] | None:
        return tuple(self.manager.render())

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - Gymnasium's arguments
        self.manager.close()


def _observation_spaces(manager: BaseEnvManager, mode: Any) -> tuple[Any, Any]:
    if isinstance(mode, str) and mode == "same":
        single = manager.observation_space
        return batch_space(single, manager.n_envs), single
    if not manager.are_stacked:
        raise DifferentSpacesError(
            f"observation_mode={mode!r} needs observation spaces that differ only in their bounds, but these are "
            f"{', '.join(map(str, manager.observation_spaces))}"
        )
    if isinstance(mode, str) and mode == "different":
        spaces = manager.observation_spaces
        return batch_differing_spaces(spaces), spaces[0]
    if not isinstance(mode, tuple) or len(mode) != 2 or not all(isinstance(space, gym_spaces.Space) for space in mode):
        raise UsageError(
            'observation_mode must be "same", "different", or a tuple of the batched observation space and that of a '
            f"single environment, got {mode!r}"
        )
    return mode


def _masked(mask: Any, n_envs: int) -> list[int]:
    if mask is None:
        return list(range(n_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n_envs,) or not mask.any():
        raise UsageError(f'options["reset_mask"] must be a boolean array of {n_envs}, not all False, got {mask!r}')
    chosen: list[int] = np.flatnonzero(mask).tolist()
    return chosen


def _seeds(seed: Any, n_envs: int) -> dict[int, int] | None:
    if seed is None:
        return None
    if isinstance(seed, str | bytes) or not isinstance(seed, Sequence | np.ndarray):
        first = positive("seed", seed, least=0)
        return {env_id: first + env_id for env_id in range(n_envs)}
    if len(seed) != n_envs:
        raise UsageError(f"seed has {len(seed)} items, but there are {n_envs} environments")
    return {env_id: value for env_id, value in enumerate(seed) if value is not None}


def _final(n_envs: int, ended: list[int], last_observations: list[Any], infos: Infos) -> Infos:
    """Return the last observation and info of each ended episode."""
    all_last: list[Any] = [None] * n_envs
    for env_id, last in zip(ended, last_observations, strict=True):
        all_last[env_id] = last
    mask = np.zeros(n_envs, np.bool_)
    mask[ended] = True
    of_infos = {"final_info": infos.get("final_info", {}), "_final_info": mask.copy()}
    return {"final_obs": object_array(all_last), "_final_obs": mask, **of_infos}
