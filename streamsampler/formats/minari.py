"""Trajectories as a dataset of Minari, in HDF5. Needs `pip install h5py minari pillow`.

```python
from minari import MinariDataset
from streamsampler.formats import export

export(batch, "dataset", to="minari", dataset_id="cartpole/random-v0")
dataset = MinariDataset("dataset")
```

`minari.load_dataset("cartpole/random-v0")` finds it if the folder is `~/.minari/datasets/cartpole/random-v0/data`; the
id is taken from such a path if it is not given.

An episode has T actions and T + 1 observations; images are not compressed. `infos` holds what `env.reset` and
`env.step` returned, T + 1 rows as Minari's own collector has them, and under `agent_infos` what the agent did, T rows.
Where a key was missing in some of an episode's rows, `_key` is its mask, and the key holds zeros or empty text there.
Infos that are no numbers of one shape and no text are JSON, as `streamsampler.storage.npz` describes it. A `/` in a
key nests, as in HDF5. Episode metadata have `seed`, `trajectory_index` and `agent_version`; the dataset's have
`streamsampler`: the sampler's seed, the provenance and the version. `env_spec` is there where the environment's id is
registered when the export is made.

Before something is written its space is reserved, because HDF5 ends the process where the disk is full.

An HDF5 file may be damaged when a process is killed while it writes to it. So each shard is written to a file of its
own, which stays when it is whole; at the end these are copied into one. Until then they need the space once more.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from streamsampler.errors import UsageError
from streamsampler.extras import needed
from streamsampler.formats.minari_episodes import Episodes
from streamsampler.formats.source import Source
from streamsampler.formats.staging import Staging, make_whole, reserve, system_errors
from streamsampler.samplers.progress import Display

__all__ = ["write"]

_EXTRA = "minari"
_MAIN = "main_data.hdf5"
_TEXTS = ("author", "author_email", "code_permalink", "algorithm_name", "description")
_SETS = ("author", "author_email")
_LAYOUT = 1
"""Rises when parts that an earlier version wrote could not be continued."""


def write(
    source: Source,
    out: Path,
    shown: Display,
    *,
    dataset_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a source as a dataset of Minari, or continue where a killed process stopped.

    Args:
        source: What to write.
        out: The dataset's folder, with `metadata.json` and `main_data.hdf5`.
        shown: Shows the progress.
        dataset_id: Minari's name for it, such as "cartpole/random-v0"; None for one made of the folder's path, or of
            the environment's name.
        metadata: Some of author, author_email, code_permalink, algorithm_name and description.

    Raises:
        ImportError: Minari is not there; says how to install it.
        UsageError: The id or the metadata are none, or the folder cannot be made.
        StorageError: A shard is damaged, or Minari cannot hold the spaces or the infos.
        OSError: The folder cannot be written; the same call continues.
    """
    storage = needed("minari.dataset.minari_storage", "the format Minari", _EXTRA).MinariStorage
    h5py = needed("h5py", "the format Minari", _EXTRA)
    about = _about(source, out, dataset_id, metadata)
    episodes = Episodes(source)
    identity = source.identity()
    minari_version = about["minari_version"]
    known = None if identity is None else {**identity, "layout": _LAYOUT, "minari": minari_version}
    with Staging(out, known) as staging, system_errors(out):
        parts = [staging.path / f"part-{number:06}" for number in range(len(source))]
        there = next((number for number, part in enumerate(parts) if not part.exists()), len(parts))
        shown.update(partial(source.size_before, there), complete=False)
        for number, (_, batch) in enumerate(source.shards(there), there):
            reserve(staging.path, episodes.most_bytes(batch))
            _write_part(storage, source, episodes.of(batch), episodes.about(batch), parts[number])
            shown.update(partial(source.size_before, number + 1), complete=False)
        folder = staging.path / "dataset"
        _remove(folder)
        folder.mkdir()
        dataset = storage.new(
            folder, source.observation_space, source.action_space, _env_spec(source), jpeg_encoding=False
        )
        reserve(staging.path, 2**20 + sum((part / _MAIN).stat().st_size for part in parts) * 21 // 20)
        _join(h5py, parts, folder / _MAIN)
        dataset.update_metadata({**about, "total_episodes": source.n_trajectories, "total_steps": source.n_timesteps})
        dataset.update_metadata({"dataset_size": float(dataset.get_size())})
        staging.complete(folder)


def _write_part(storage: Any, source: Source, episodes: Iterator[Any], about: Iterator[Any], part: Path) -> None:
    """Write the episodes of a shard to a file of its own."""
    folder = part.with_name("part.tmp")
    _remove(folder)
    folder.mkdir()
    file = storage.new(folder, source.observation_space, source.action_space, jpeg_encoding=False)
    file.update_episodes(episodes)
    file.update_episode_metadata(about)
    make_whole(folder, part)


def _join(h5py: Any, parts: list[Path], path: Path) -> None:
    """Copy the episodes of all parts into one file; they are numbered in order."""
    number = 0
    with h5py.File(path, "w", track_order=True) as whole:
        for part in parts:
            with h5py.File(part / _MAIN, "r") as file:
                for own in range(len(file)):
                    name = f"episode_{number}"
                    file.copy(f"episode_{own}", whole, name=name)
                    whole[name].attrs["id"] = number
                    number += 1


def _remove(folder: Path) -> None:
    for path in folder.iterdir() if folder.exists() else ():
        path.unlink()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


# --- What is known of the dataset


def _about(source: Source, out: Path, dataset_id: str | None, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the metadata of the dataset, but for its size."""
    given = dict(metadata or {})
    for name, text in given.items():
        if name not in _TEXTS or not isinstance(text, str):
            raise UsageError(
                f"the metadata of a Minari dataset are texts, some of {', '.join(_TEXTS)}; not {name}={text!r}"
            )
    minari = needed("minari", "the format Minari", _EXTRA)
    parse = needed("minari.dataset.minari_dataset", "the format Minari", _EXTRA).parse_dataset_id
    name = dataset_id or _name_of(source, out)
    try:
        parse(name)
    except (ValueError, TypeError):
        raise UsageError(
            f"{name!r} is no id of a Minari dataset, such as 'cartpole/random-v0': letters, digits, '_' and '-', a "
            "namespace of two at least, and a version"
        ) from None
    facts = dict(source.facts)
    return {
        "algorithm_name": str(dict(facts.get("provenance") or {}).get("agent") or "unknown"),
        **{key: {text} if key in _SETS else text for key, text in given.items()},
        "dataset_id": name,
        "minari_version": minari.__version__,
        "streamsampler": facts,
    }


def _name_of(source: Source, out: Path) -> str:
    """Return a dataset's id where none is given."""
    parts = out.absolute().parts
    if parts[-1] == "data" and "datasets" in parts:
        after = parts[len(parts) - parts[::-1].index("datasets") : -1]
        if after:
            return "/".join(after)
    provenance = dict(source.facts.get("provenance") or {})
    words = [re.sub(r"[^\w]+", "-", str(provenance.get(name) or "")).strip("-") for name in ("environment", "agent")]
    environment = re.sub(r"-v\d+$", "", words[0]).lower()
    return f"{environment}/{words[1].lower() or 'agent'}-v0" if len(environment) > 1 else "streamsampler/dataset-v0"


def _env_spec(source: Source) -> Any | None:
    """Return the environment's spec if its id is registered; nothing is imported."""
    provenance = dict(source.facts.get("provenance") or {})
    name = provenance.get("environment")
    spec = gymnasium.registry.get(name.rpartition(":")[2]) if isinstance(name, str) else None
    if spec is None:
        return None
    spec = copy.deepcopy(spec)
    kwargs = provenance.get("env_kwargs")
    kwargs = dict(kwargs) if isinstance(kwargs, dict) else {}
    if limit := kwargs.pop("max_episode_steps", None):
        spec.max_episode_steps = None if limit == -1 else limit
    spec.kwargs.update(kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            type(spec).from_json(spec.to_json())
    except Exception:  # made by a function, or with wrappers that JSON does not hold
        return None
    return spec
