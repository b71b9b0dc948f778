"""Ways of damaging a file: bytes that flip, go missing or come from elsewhere, and JSON with other values in it."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamsampler.data.shards import read_manifest, shard_name, write_manifest

STRANGE = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf"), "", "x", "0",
    "array", "<f8", "O", "V9", [], [[]], [1, 2], {}, {"$": "array"}, {"$": "nothing"}, {"space": "Box"}, {"dict": {}},
    {"$": "array", "dtype": "<f8", "shape": [10**12], "base64": ""}, {"space": "Discrete", "n": -3, "start": 0},
]  # fmt: skip
"""Values that stand where others should."""


def forget_shards(folder: Path, n_left: int) -> None:
    """Let a folder hold its first shards only, as if the run that wrote it had been killed then."""
    manifest = read_manifest(folder)
    for number in range(n_left, len(manifest.shards)):
        (folder / shard_name(number)).unlink()
    write_manifest(folder, replace(manifest, shards=manifest.shards[:n_left], complete=False))


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return some bytes with a few of them changed, cut off, doubled or moved."""
    changed = bytearray(data)
    match chance.randrange(6):
        case 0:
            del changed[chance.randrange(len(changed)) :]
        case 1:
            start = chance.randrange(len(changed))
            del changed[start : start + chance.choice((1, 2, 8, 100))]
        case 2:
            start = chance.randrange(len(changed))
            changed[start : start + 8] = chance.choice((b"\0" * 8, b"\xff" * 8, chance.randbytes(8)))
        case 3:
            start = chance.randrange(len(changed))
            changed[start:start] = changed[: chance.randrange(200)]
        case _:
            for _ in range(chance.choice((1, 1, 1, 3))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def damaged_json(value: Any, chance: random.Random) -> Any:
    """Return a copy of some JSON with another value in one place, or without one, or nested deeply."""
    value = copy.deepcopy(value)
    inner, places = value, 0
    while isinstance(inner, dict | list) and inner:
        key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        places += 1
        if not isinstance(inner[key], dict | list) or chance.random() < 0.2:
            match chance.randrange(8):
                case 0:
                    del inner[key]
                case 1 if isinstance(inner[key], int):
                    inner[key] += chance.choice((-1, 1))
                case 2:
                    inner[key] = nested(chance.choice((3, 900)))
                case _:
                    inner[key] = chance.choice(STRANGE)
            return value
        inner = inner[key]
    return chance.choice(STRANGE)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def with_entry(npz: bytes, name: str, contents: bytes) -> bytes:
    """Return an `.npz` file with another entry in the place of one, checksums and all."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(npz)) as before, zipfile.ZipFile(out, "w") as after:
        for info in before.infolist():
            after.writestr(info, contents if info.filename == f"{name}.npy" else before.read(info))
    return out.getvalue()


def with_bomb(npz: bytes, name: str, begin: bytes, n_bytes: int) -> bytes:
    """Return an `.npz` file with an entry that begins so, and is zeros from there on.

    Args:
        npz: The file.
        name: The entry; takes the place of one of this name.
        begin: How it begins.
        n_bytes: How many zeros follow, a number of millions.
    """
    out, million = io.BytesIO(), bytes(1_000_000)
    with zipfile.ZipFile(io.BytesIO(npz)) as before, zipfile.ZipFile(out, "w") as after:
        for info in before.infolist():
            if info.filename != f"{name}.npy":
                after.writestr(info, before.read(info))
        bomb = zipfile.ZipInfo(f"{name}.npy")
        bomb.compress_type, bomb._compresslevel = zipfile.ZIP_DEFLATED, 1  # type: ignore[attr-defined]
        with after.open(bomb, "w", force_zip64=True) as entry:
            entry.write(begin)
            for _ in range(n_bytes // len(million)):
                entry.write(million)
    return out.getvalue()


def entry(npz: bytes, name: str) -> bytes:
    """Return an entry of an `.npz` file: a `.npy` file."""
    with zipfile.ZipFile(io.BytesIO(npz)) as archive:
        return archive.read(f"{name}.npy")


def header_of(npz: bytes) -> Any:
    """Return the JSON of a file's header."""
    return json.loads(entry(npz, "header")[128:])


def npy(shape: object, descr: object = "|u1", data: bytes = b"", version: int = 1) -> bytes:
    """Return a `.npy` file whose header claims what it is told to."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + data


def with_header(npz: bytes, header: Any) -> bytes:
    """Return an `.npz` file with another header."""
    data = json.dumps(header).encode()
    return with_entry(npz, "header", npy((len(data),), data=data))
