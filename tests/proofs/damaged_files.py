"""Damaged files and manifests, and small ones that unpack to much: a `StorageError` or the right data."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from streamsampler import LocalSampler, TrajectoryFolder, sample_to_folder
from streamsampler.data.npz import read, save
from streamsampler.data.shards import MANIFEST, load
from streamsampler.errors import StorageError
from tests.data.damage import damaged_bytes, damaged_json, entry, header_of, npy, with_bomb, with_entry, with_header
from tests.scripted.envs import Nested

SECONDS = {"short": 30.0, "long": 900.0}
MUCH = 600_000_000
"""Bytes that a bomb unpacks to: those of a header are let through up to 268 million."""

ENTRIES = ("header", "rewards", "lengths", "indices", "terminated", "observations.image", "observations.task.0")


def prove(scale: str) -> None:
    """Damage files for as long as the scale says, each in another way."""
    chance, counts = random.Random(20_251), Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + SECONDS[scale]
    with tempfile.TemporaryDirectory() as name, LocalSampler("random", Nested, seed=1) as sampler:
        path, batch = Path(name, "x.npz"), sampler.obtain_trajectories(4)
        files = [save(batch, path, compress=packed).read_bytes() for packed in (False, True)]
        whole = sample_to_folder(sampler, Path(name, "whole"), n_trajectories=9, shard_size=20).to_batch()
        while time.monotonic() < end:
            for _ in range(20):
                _damage_a_file(path, chance.choice(files), batch, chance, counts)
            _damage_a_manifest(Path(name, "whole", MANIFEST), whole, chance, counts)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())), f"; {grown:.0f} MB more at most")
    assert grown < 300, "memory was taken for what was only claimed"


def _damage_a_file(path: Path, data: bytes, batch: Any, chance: random.Random, counts: Counter[str]) -> None:
    kind = chance.choices(["bytes", "header", "array", "bomb"], [33, 33, 33, 1])[0]
    name = chance.choice(ENTRIES)
    if kind == "bytes":
        data = damaged_bytes(data, chance)
    elif kind == "header":
        data = with_header(data, damaged_json(header_of(data), chance))
    elif kind == "array":
        data = with_entry(data, name, damaged_bytes(entry(data, name), chance))
    else:
        descr, size = chance.choice([("<f8", 8), ("<i8", 8), ("|b1", 1), ("|u1", 1), ("<f4", 4)])
        rows = chance.choice([MUCH // size, len(batch.rewards), len(batch)])
        shape = (rows, *([MUCH // size // rows] if rows * size < MUCH else []))
        data = with_bomb(data, name, npy(shape, descr), MUCH)
    path.write_bytes(data)
    with contextlib.suppress(StorageError):
        read(path, "lengths", "rewards")
    try:
        there = load(path)
    except StorageError:
        counts[f"{kind} refused"] += 1
        return
    counts[f"{kind} read"] += 1
    assert kind != "bytes" or there == batch, "bytes changed, and other data came back"
    repr(there)


def _damage_a_manifest(path: Path, whole: Any, chance: random.Random, counts: Counter[str]) -> None:
    manifest = path.read_bytes()
    changed = damaged_bytes(manifest, chance)
    if chance.random() < 0.7:
        changed = json.dumps(damaged_json(json.loads(manifest), chance)).encode()
    try:
        path.write_bytes(changed)
        assert TrajectoryFolder(path.parent).to_batch() == whole
        counts["manifest read"] += 1
    except StorageError:
        counts["manifest refused"] += 1
    finally:
        path.write_bytes(manifest)
