"""Damaged files and manifests: a `StorageError` or the right data."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from gymnasium import spaces as S

import streamsampler
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.files import load
from streamsampler.data.manifest import MANIFEST
from streamsampler.data.npz import read, save
from streamsampler.errors import StorageError
from tests.data.damage import damaged_bytes, damaged_json, entry, header_of, with_entry, with_header
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_shards import LENGTHS, write_all

SECONDS = {"short": 30.0, "long": 900.0}
SPACE = S.Dict(
    {
        "image": S.Box(0, 255, (4, 4, 3), np.uint8),
        "word": S.Text(4),
        "both": S.Tuple([S.Discrete(3), S.MultiBinary(2), S.MultiDiscrete([2, 3])]),
    }
)
ENTRIES = ("header", "rewards", "lengths", "indices", "terminated", "observations.word", "observations.both.0")


def prove(scale: str) -> None:
    """Damage files for as long as the scale says, each in another way."""
    chance = random.Random(20_251)
    counts: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + SECONDS[scale]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch = batch_of(tickets([2, 1, 3, 4], [], SPACE), SPACE)
        files = [save(batch, folder / f"{packed}.npz", compress=packed).read_bytes() for packed in (False, True)]
        write_all(folder / "whole", batch_of(tickets(LENGTHS, [])))
        while time.monotonic() < end:
            for _ in range(20):
                _damage_a_file(folder / "x.npz", chance.choice(files), batch, chance, counts)
            _damage_a_manifest(folder / "whole", chance, counts)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())), f"; {grown:.0f} MB more at most")
    assert grown < 300, "memory was taken for what was only claimed"


def _damage_a_file(
    path: Path, data: bytes, batch: TrajectoryBatch, chance: random.Random, counts: Counter[str]
) -> None:
    exact = False
    match chance.randrange(3):
        case 0:
            kind, data, exact = "bytes of files", damaged_bytes(data, chance), True
        case 1:
            kind, data = "headers", with_header(data, damaged_json(header_of(data), chance))
        case _:
            name = chance.choice(ENTRIES)
            kind, data = "arrays", with_entry(data, name, damaged_bytes(entry(data, name), chance))
    path.write_bytes(data)
    with contextlib.suppress(StorageError):
        read(path, "lengths", "rewards")
    try:
        there = load(path)
    except StorageError:
        counts[f"{kind} refused"] += 1
        return
    counts[f"{kind} read"] += 1
    assert isinstance(there, TrajectoryBatch)
    assert not exact or there == batch, "bytes changed, and other data came back"
    repr(there)


def _damage_a_manifest(folder: Path, chance: random.Random, counts: Counter[str]) -> None:
    manifest = (folder / MANIFEST).read_bytes()
    whole = streamsampler.TrajectoryFolder(folder).to_batch()
    changed = damaged_bytes(manifest, chance)
    if chance.random() < 0.7:
        changed = json.dumps(damaged_json(json.loads(manifest), chance)).encode()
    try:
        (folder / MANIFEST).write_bytes(changed)
        assert streamsampler.TrajectoryFolder(folder).to_batch() == whole
        counts["manifests read"] += 1
    except StorageError:
        counts["manifests refused"] += 1
    finally:
        (folder / MANIFEST).write_bytes(manifest)
