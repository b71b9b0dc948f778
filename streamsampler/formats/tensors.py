"""Timesteps as a TensorDict, in memory, with the keys of TorchRL's collectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from streamsampler.core.errors import StorageError
from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.leaf_selection import LeafSelection, way_out
from streamsampler.formats.columns import Column, info_rows, leaf_column, space_columns
from streamsampler.formats.sources import Source, Sourced, open_source

if TYPE_CHECKING:
    from tensordict import TensorDict

_log = logging.getLogger("streamsampler")
_WHERE = {"env_infos": ("next", "env_infos"), "agent_infos": ("agent_infos",)}


@suggesting()
def to_tensordict(
    source: Sourced, *, fields: Sequence[str] | None = None, without: Sequence[str] = (), policy: str | None = None
) -> TensorDict:
    """Return trajectories as a TensorDict of T timesteps, in memory; needs `pip install tensordict`.

    Where possible the tensors share the memory of a batch: writing into them changes the batch.

    Timesteps are the batch dimension, T, and the keys those of TorchRL's collectors:

    | key | |
    |---|---|
    | `observation`, `action` | (T, …), nested as the space nests; positions of Tuple spaces are keys `"0"`, `"1"` |
    | `("next", "observation")` | the observation after the action; at a trajectory's end the true final observation |
    | `("next", "reward")`, `("next", "terminated")`, `("next", "truncated")`, `("next", "done")` | (T, 1) |
    | `terminated`, `truncated`, `done` | (T, 1), all false: no action was chosen after an end |
    | `("collector", "traj_ids")` | (T,) the number of the trajectory, from 0 |
    | `policy_version` | (T,) the agent version |
    | `("next", "env_infos", KEY)`, `("agent_infos", KEY)` | (T, …); `_KEY` is the mask of an info with missing values |

    Dtypes are kept: rewards are float64. A TensorDict holds numbers: other infos are omitted, with a warning.

    Args:
        source: As in `streamsampler.formats.export`.
        fields: As in `export`.
        without: As in `export`.
        policy: As in `export`.

    Raises:
        ImportError: tensordict is not installed.
        DataError: The source has no trajectories.
        StorageError: The file or the folder is damaged, or a space has values that are no numbers.
    """
    parts = list(_parts(open_source(source, LeafSelection(fields, without), policy)))
    return parts[0] if len(parts) == 1 else import_module("torch").cat(parts)


def _parts(source: Source) -> Iterator[Any]:
    torch, tensordict = (needed(name, "the format TensorDict", "tensordict") for name in ("torch", "tensordict"))
    for path, space in source.leaf_spaces():
        if leaf_column(space).kind != "numbers":
            raise StorageError(
                f"a TensorDict holds numbers, but {'.'.join(path)} is a {type(space).__name__} space{way_out(path)}"
            )
    infos, _ = source.survey()
    numbers = {name: _tensor_numbers(infos[name], name) for name in _WHERE}
    for first, batch in source.shards():
        made = tensordict.TensorDict({}, batch_size=[batch.n_timesteps])
        for path, rows in _rows(batch, first, numbers).items():
            made[path] = torch.from_numpy(np.require(rows, rows.dtype.newbyteorder("="), ["C", "W"]))
        yield made


def _rows(batch: TrajectoryBatch[Any, Any], first: int, infos: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Return the rows of a shard by key; `first` is the number of trajectories before it."""
    found: dict[KeyPath, Any] = {}
    spaces: list[tuple[KeyPath, Any, Any]] = [
        (("observation",), batch.observation_space, batch.observations),
        (("action",), batch.action_space, batch.actions),
        (("next", "observation"), batch.observation_space, batch.next_observations),
    ]
    for root, space, tree in spaces:
        found |= {key: rows for key, _, rows in space_columns(space, tree, root)}
    found["next", "reward"] = batch.rewards[:, None]
    last = batch.starts + batch.lengths - 1
    for name in ("terminated", "truncated"):
        found[name,] = np.zeros((batch.n_timesteps, 1), np.bool_)
        found["next", name] = np.zeros((batch.n_timesteps, 1), np.bool_)
        found["next", name][last, 0] = getattr(batch, name)
    found["done",] = np.zeros((batch.n_timesteps, 1), np.bool_)
    found["next", "done"] = found["next", "terminated"] | found["next", "truncated"]
    found["collector", "traj_ids"] = np.repeat(np.arange(first, first + len(batch)), batch.lengths)
    found["policy_version",] = np.repeat(batch.agent_versions, batch.lengths)
    for name, root in _WHERE.items():
        for path, column, rows, present in info_rows(getattr(batch, name), batch.n_timesteps, infos[name], name, root):
            found[path] = rows
            if not column.always:
                found[*path[:-1], f"_{path[-1]}"] = np.ones(len(rows), np.bool_) if present is None else present
    return found


def _tensor_numbers(columns: dict[KeyPath, Column], name: str) -> dict[KeyPath, Column]:
    kept = {path: column for path, column in columns.items() if column.kind == "numbers"}
    if left_out := [f"{name}[{'/'.join(path)!r}]" for path in columns.keys() - kept.keys()]:
        _log.warning("a TensorDict holds only numbers: %s %s omitted", ", ".join(sorted(left_out)),
                     "is" if len(left_out) == 1 else "are")  # fmt: skip
    return kept
