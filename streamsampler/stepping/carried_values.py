"""Send values outside shared memory, by pickle, in messages about rows.

Actions travel with the request of a step, observations with its answer. With arrays of a fixed size alone, messages
carry only ids; without shared memory they carry everything.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.core.errors import SerializationError
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.stepping.frames import IDS, TOGETHER, ids_frame, pickle_frame, pickled
from streamsampler.stepping.rows import Rows
from streamsampler.workers.explain import summary_of

_ACTIONS = "the action of an environment"


def step_frame(rows: Rows, env_ids: Sequence[int], *, together: bool) -> bytes:
    """Return a request of steps with the actions in rows."""
    if not rows.actions_are_carried:
        return ids_frame(tuple(env_ids), TOGETHER if together else IDS)
    carried = [rows.action_values.carried(0, env_id) for env_id in env_ids], rows.carried_seeds(env_ids)
    return pickle_frame(("step", list(env_ids), dumps(carried, _ACTIONS).owned(), together))


def put_actions(rows: Rows, env_ids: Sequence[int], carried: Payload) -> None:
    """Write the contents of a `step_frame` into this process's rows."""
    actions, seeds = loads(carried)
    for env_id, parts in zip(env_ids, actions, strict=True):
        rows.action_values.put_carried(0, env_id, parts)
    rows.put_carried_seeds(env_ids, seeds)  # a step after an episode's end starts an episode


def actions_frame(rows: Rows, actions: Mapping[int, Any]) -> bytes:
    """Return a message with actions of another dtype than the rows'."""
    return pickle_frame(("actions", dumps(actions, _ACTIONS).owned() if rows.actions_are_carried else actions))


def packed_result(rows: Rows, env_id: int, info: dict[str, Any]) -> bytes:
    """Pickle the parts of a result outside the rows."""
    if not rows.observations_are_carried:
        return pickled(info)
    try:
        return pickled((info, rows.carried_result(env_id)))
    except Exception as error:  # any error: this runs user code
        if not rows.observations_have_objects:
            raise
        raise SerializationError(f"its observation or info cannot be pickled: {summary_of(error)}") from error


def unpacked_result(rows: Rows, env_id: int, packed: bytes) -> dict[str, Any]:
    result = pickle.loads(packed)
    if not rows.observations_are_carried:
        info: dict[str, Any] = result
        return info
    info, carried = result
    rows.put_carried_result(env_id, carried)
    return info
