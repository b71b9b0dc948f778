"""Step all environments of a manager for a caller who resets none: those that have failed are reset."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsampler.data.trees import map_trees
from streamsampler.errors import WorkerError
from streamsampler.stepping.states import EnvState
from streamsampler.stepping.steps import Steps

if TYPE_CHECKING:
    from streamsampler.stepping.manager import BaseEnvManager

__all__ = ["receive_on", "send_on", "step_on"]

_LOG = logging.getLogger("streamsampler")


def step_on(manager: BaseEnvManager, actions: Any) -> Steps:
    """Do what `send_on` and `receive_on` do."""
    if manager.autoreset == "disabled" or not _failed(manager):
        manager.send(actions)
    else:
        send_on(manager, actions)
    return receive_on(manager)


def send_on(manager: BaseEnvManager, actions: Any) -> None:
    """Send one action to each environment; reset those instead that have failed, unless the caller resets.

    Args:
        manager: The manager.
        actions: Actions of all environments, stacked.
    """
    failed = _failed(manager) if manager.autoreset != "disabled" else []
    if not failed:
        manager.send(actions)
        return
    others = [env_id for env_id in range(manager.n_envs) if env_id not in failed]
    manager.send(_rows(actions, others, manager.n_envs), others)
    manager.async_reset(failed)


def receive_on(manager: BaseEnvManager, timeout: float | None = None) -> Steps:
    """Return the results of all environments; see `recv_from` for the timeout.

    With autoreset "same_step" those that have failed by it are reset, as if they had been in the same step.

    Raises:
        WorkerError: An environment failed. The results of the others are discarded: the caller can step all of them.
    """
    try:
        return _begun_again(manager, manager.recv_from(timeout=timeout))
    except WorkerError:
        _discard_open(manager)
        raise


def _discard_open(manager: BaseEnvManager) -> None:
    """Receive what is open; what else has failed is logged."""
    while any(state in (EnvState.STEPPING, EnvState.RESETTING) for state in manager.states):
        try:
            manager.recv(min_envs=manager.n_envs)
        except WorkerError as error:  # its environment has failed, and nothing of it is open any more
            _LOG.warning("in the same step: %s", error)


def _begun_again(manager: BaseEnvManager, steps: Steps) -> Steps:
    failed = _failed(manager) if manager.autoreset == "same_step" else []
    if not failed:
        return steps

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


def _rows(actions: Any, rows: list[int], n: int) -> Any:
    """Return some rows of stacked actions; those that have not n of them are left to be refused."""
    if isinstance(actions, dict):
        return {key: _rows(part, rows, n) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_rows(part, rows, n) for part in actions)
    stacked = np.asarray(actions)
    return stacked[rows] if stacked.shape[:1] == (n,) else stacked
