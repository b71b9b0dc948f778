"""Trajectories as a Minari dataset, in HDF5. Needs `pip install h5py minari pillow`.

`minari.load_dataset("cartpole/random-v0")` finds it in the folder `~/.minari/datasets/cartpole/random-v0/data`; without
an explicit id, it is derived from such a path.

An episode has T actions and T + 1 observations; images are not compressed. `infos` holds the infos of `env.reset` and
`env.step`, in T + 1 rows like Minari's own collector, and under `agent_infos` those of the agent, in T rows. Missing
rows are zeros or empty text, with a mask `_key`. Infos other than text and numbers of equal shape are JSON. A `/` in a
key nests, as in HDF5. Episode metadata have `seed`, `trajectory_index` and `agent_version`; the dataset's have
`streamsampler`: the sampler's seed, the provenance and the version. `env_spec` is written if the environment's id is
registered during the export; the command's `--import MODULE` imports the registering module.

The space of each shard is reserved before it is written, because HDF5 aborts the process when the disk is full.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.extras import needed
from streamsampler.core.progress import Display
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.leaf_selection import way_out
from streamsampler.formats.columns import Column, ColumnRows, info_rows
from streamsampler.formats.export_folder import allocate, new_folder
from streamsampler.formats.sources import Source

_HELD = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary, gym_spaces.Text)
_LARGEST = 2**63
_OF_AGENT = ("agent_infos",)
_DATASET, _TEXT = 4096, 8192
"""Twice the bytes that HDF5 needs for a dataset besides its rows, about, and the surplus for text."""


class EpisodeFile:
    """Converts trajectories to Minari's episodes, if Minari can hold their spaces and names."""

    def __init__(self, source: Source) -> None:
        for path, space in source.leaf_spaces():
            if not isinstance(space, _HELD):
                raise StorageError(
                    f"Minari cannot hold {'.'.join(path)}, a {type(space).__name__} space{way_out(path)}"
                )
            _check_name(path, path)
        infos, _ = source.survey()
        self._env_columns, self._agent_columns = infos["all_env_infos"], infos["agent_infos"]
        _check_infos(self._env_columns, self._agent_columns)
        self._make = needed("minari.data_collector", "the format Minari", "minari").EpisodeBuffer

    def episodes_in(self, batch: TrajectoryBatch[Any, Any], first: int) -> Iterator[Any]:
        """Yield an episode for each trajectory of a shard, the first with id `first`."""
        n_timesteps = batch.n_timesteps
        env_infos = list(info_rows(batch.env_infos, n_timesteps, self._env_columns, "env_infos"))
        resets = list(info_rows(batch.episode_infos, len(batch), self._env_columns, "episode_infos"))
        agent_infos = list(info_rows(batch.agent_infos, n_timesteps, self._agent_columns, "agent_infos", _OF_AGENT))
        for i, (start, length) in enumerate(zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)):
            this, steps = slice(i, i + 1), slice(start, start + length)
            infos: dict[str, Any] = {}
            for reset, info in zip(resets, env_infos, strict=True):
                _add(infos, info, (reset, this), (info, steps))
            for info in agent_infos:
                _add(infos, info, (info, steps))
            observations = [trees.take(batch.observations, steps), trees.take(batch.last_observations, this)]
            ends = np.zeros((2, length), np.bool_)
            ends[:, -1] = batch.terminated[i], batch.truncated[i]
            seed = batch.seeds[i]
            yield self._make(
                id=first + i,
                seed=seed if -_LARGEST <= seed < _LARGEST else str(seed),  # Minari reads both back as integers
                observations=_plain(trees.concatenate(observations)),
                actions=_plain(trees.take(batch.actions, steps)),
                rewards=batch.rewards[steps],
                terminations=ends[0],
                truncations=ends[1],
                infos=infos,
            )

    def most_bytes(self, batch: TrajectoryBatch[Any, Any]) -> int:
        """Return an upper bound of a shard's size in HDF5."""
        n_bytes = n_text = n_datasets = 0
        for name in ("observations", "last_observations", "actions", "env_infos", "agent_infos", "episode_infos"):
            for _, leaf in trees.leaves(getattr(batch, name)):
                n_datasets += 2  # an info may have a mask
                n_text += leaf.dtype == object
                n_bytes += 2 * leaf.nbytes
                if leaf.dtype == object:
                    n_bytes += 2 * sum(len(repr(value)) for value in leaf)
        return n_bytes + 20 * batch.n_timesteps + len(batch) * (_DATASET * (n_datasets + 8) + _TEXT * n_text)


def _name(path: KeyPath) -> KeyPath:
    return tuple("/".join(path).split("/"))


def _check_name(path: KeyPath, name: KeyPath) -> None:
    if any(part in ("", ".") or "/" in part or "\0" in part for part in name):
        raise StorageError(f"Minari cannot hold {'.'.join(path)}: this is no valid name in HDF5")


def _check_infos(env_columns: Mapping[KeyPath, Column], agent_columns: Mapping[KeyPath, Column]) -> None:
    """Check that names are valid in HDF5, not both group and value, and not used twice."""
    names = []
    columns = [*env_columns.items(), *(((*_OF_AGENT, *path), column) for path, column in agent_columns.items())]
    for path, column in columns:
        name = _name(path)
        _check_name(path, name)
        names += [name] if column.always else [name, (*name[:-1], f"_{name[-1]}")]
    groups = {name[:depth] for name in names for depth in range(1, len(name))}
    twice = next((name for name in names if name in groups or names.count(name) > 1), None)
    if twice is not None:
        raise StorageError(f"Minari cannot hold two infos with the name {'/'.join(twice)!r}: rename one of them")


def _add(infos: dict[str, Any], info: ColumnRows, *parts: tuple[ColumnRows, slice]) -> None:
    """Add parts of an info's rows, with a mask if some are missing; nothing if all are missing."""
    rows = np.concatenate([each.rows[part] for each, part in parts])
    masks = [
        np.ones(part.stop - part.start, np.bool_) if each.present is None else each.present[part]
        for each, part in parts
    ]
    present = np.concatenate(masks)
    if not present.any():
        return
    *groups, name = _name(info.path)
    for group in groups:
        infos = infos.setdefault(group, {})
    infos[name] = rows if info.column.kind == "numbers" else [text or "" for text in rows]
    if not present.all():
        infos[f"_{name}"] = present


def _plain(tree: Any) -> Any:
    """Return a tree with text as lists, as Minari expects."""
    if isinstance(tree, dict):
        return {key: _plain(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_plain(child) for child in tree)
    return list(tree) if tree.dtype == object else tree


_log = logging.getLogger("streamsampler")
_EXTRA = "minari"
_MAIN = "main_data.hdf5"
_TEXTS = ("author", "author_email", "code_permalink", "algorithm_name", "description")
_SETS = ("author", "author_email")


def write(
    source: Source,
    out: Path,
    shown: Display,
    *,
    dataset_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a source as a Minari dataset, with `metadata.json` and `main_data.hdf5`.

    Args:
        source: The source.
        out: The dataset's folder.
        shown: Shows the progress.
        dataset_id: Minari's name for it, such as "cartpole/random-v0"; None derives it from the folder's path, or from
            the environment's name.
        metadata: Some of author, author_email, code_permalink, algorithm_name and description.

    Raises:
        ImportError: Minari is not installed.
        UsageError: The id or the metadata are invalid.
        StorageError: A shard is damaged, or Minari cannot hold the spaces or the infos.
        OSError: The folder cannot be written; it is removed.
    """
    storage = needed("minari.dataset.minari_storage", "the format Minari", _EXTRA).MinariStorage
    needed("h5py", "the format Minari", _EXTRA)
    about = _about(source, out, dataset_id, metadata)
    episodes = EpisodeFile(source)
    spaces = source.observation_space, source.action_space
    with new_folder(out) as folder:
        dataset = storage.new(folder, *spaces, _env_spec(source), jpeg_encoding=False)
        for first, batch in source.shards(shown):
            _reserve(folder, episodes.most_bytes(batch))
            dataset.update_episodes(episodes.episodes_in(batch, first))
            facts = [
                {"trajectory_index": index, "agent_version": version}
                for index, version in zip(batch.indices.tolist(), batch.agent_versions.tolist(), strict=True)
            ]
            dataset.update_episode_metadata(facts, range(first, first + len(batch)))
        dataset.update_metadata(about)


def _reserve(folder: Path, n_bytes: int) -> None:
    """Check with a trial file that the disk has room: HDF5 cannot open a file with reserved space at its end."""
    trial = folder / "space.tmp"
    try:
        allocate(trial, (folder / _MAIN).stat().st_size, n_bytes)
    finally:
        trial.unlink(missing_ok=True)


def _about(source: Source, out: Path, dataset_id: str | None, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    for name, text in (metadata or {}).items():
        if name not in _TEXTS or not isinstance(text, str):
            raise UsageError(
                f"the metadata of a Minari dataset are strings, some of {', '.join(_TEXTS)}, not {name}={text!r}"
            )
    minari = needed("minari", "the format Minari", _EXTRA)
    parse = needed("minari.dataset.minari_dataset", "the format Minari", _EXTRA).parse_dataset_id
    name = dataset_id or _name_of(source, out)
    try:
        parse(name)
    except (ValueError, TypeError):
        raise UsageError(
            f"{name!r} is no id of a Minari dataset, such as 'cartpole/random-v0': letters, digits, '_' and '-', a "
            "namespace of at least two characters, and a version"
        ) from None
    return {
        "algorithm_name": str(source.provenance.get("agent") or "unknown"),
        **{key: {text} if key in _SETS else text for key, text in (metadata or {}).items()},
        "dataset_id": name,
        "minari_version": minari.__version__,
        "streamsampler": dict(source.facts),
    }


def _name_of(source: Source, out: Path) -> str:
    parts = out.absolute().parts
    if parts[-1] == "data" and "datasets" in parts:
        after = parts[len(parts) - parts[::-1].index("datasets") : -1]
        if after:
            return "/".join(after)
    names = (str(source.provenance.get(name) or "").lower() for name in ("environment", "agent"))
    environment, agent = (re.sub(r"[^\w]+", "-", name).strip("-") for name in names)
    environment = re.sub(r"-v\d+$", "", environment)
    return f"{environment}/{agent or 'agent'}-v0" if len(environment) > 1 else "streamsampler/dataset-v0"


def _env_spec(source: Source) -> Any | None:
    """Return the spec of a registered environment; with a warning None if Minari cannot write it."""
    name, kwargs = (source.provenance.get(each) for each in ("environment", "env_kwargs"))
    registered = gymnasium.registry.get(str(name).rpartition(":")[2])
    if registered is None:
        return None
    spec = copy.deepcopy(registered)
    kwargs = dict(kwargs) if isinstance(kwargs, dict) else {}
    if limit := kwargs.pop("max_episode_steps", None):
        spec.max_episode_steps = None if limit == -1 else limit
    spec.kwargs.update(kwargs)
    for point in ("entry_point", "vector_entry_point"):
        setattr(spec, point, _importable(getattr(spec, point)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            type(spec).from_json(spec.to_json())
    except Exception as reason:  # registered with a lambda, or with wrappers that JSON cannot hold
        _log.warning(
            "the dataset has no env_spec, so Minari cannot recreate the environment %r: %s. Register it with "
            'entry_point="module:Class" in a module that other programs can import',
            name, reason,
        )  # fmt: skip
        return None
    return spec


def _importable(entry_point: Any) -> Any:
    """Return "module:name" for an importable class or function; any other entry point unchanged."""
    module, name = (getattr(entry_point, each, None) for each in ("__module__", "__qualname__"))
    is_there = module != "__main__" and getattr(sys.modules.get(str(module)), str(name), None) is entry_point
    return f"{module}:{name}" if callable(entry_point) and is_there else entry_point
