"""Try the tests: each mutation of the package must make a test fail.

    python -m tests.mutations              # all of them, a second to a minute each
    python -m tests.mutations arena seeds  # those whose names contain one of the words

`mutations.toml` has, for each mutation, a file, a text that stands in it exactly once, another text, and the tests
that are to fail: those of the default tier, else the slow ones, else those of the extras. Each is applied to a copy of
the tree, so work may go on meanwhile; two are tried at a time.
"""

from __future__ import annotations

import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]
_LIST = pathlib.Path(__file__).with_name("mutations.toml")
_SECONDS = 300
_AT_A_TIME = 2
# What pytest ends with: 0 all passed, 1 some failed, 5 none was selected.
_VERDICTS = {0: "SURVIVED", 1: "killed", 5: "SURVIVED"}
_TIERS = [
    "not slow and not extras and not types",
    "slow and not extras and not types",
    "extras and not slow and not types",
]


def _copy(folder: pathlib.Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=_ROOT, check=True, capture_output=True
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        if (_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, folder / name)


def _tested(folder: pathlib.Path, tests: list[str], tier: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", tier, *tests]
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output = process.communicate(timeout=_SECONDS)[0].decode()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "killed, as the tests never end"
    return _VERDICTS.get(process.returncode) or f"NOT TRIED: pytest ended with {process.returncode}\n{output[-2000:]}"


def _try(folder: pathlib.Path, mutation: dict[str, Any]) -> str:
    path = folder / mutation["file"]
    text = path.read_text()
    if (n := text.count(mutation["old"])) != 1:
        return f"NOT TRIED: {mutation['file']} has its old text {n} times"
    path.write_text(text.replace(mutation["old"], mutation["new"]))
    try:
        verdicts = (_tested(folder, mutation["tests"], tier) for tier in _TIERS)
        return next((verdict for verdict in verdicts if verdict != "SURVIVED"), "SURVIVED")
    finally:
        path.write_text(text)


def main(words: list[str]) -> int:
    """Try the mutations whose names contain one of the words; return 1 if one of them was not killed."""
    mutations = tomllib.loads(_LIST.read_text())["mutation"]
    chosen = [one for one in mutations if not words or any(word in one["name"] for word in words)]
    folders: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()

    def verdict(mutation: dict[str, Any]) -> str:
        folder, began = folders.get(), time.monotonic()
        try:
            found = _try(folder, mutation)
        finally:
            folders.put(folder)
        print(f"{time.monotonic() - began:5.1f} s  {mutation['name']}: {found}", flush=True)
        return found

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(_AT_A_TIME) as pool:
        for number in range(_AT_A_TIME):
            folder = pathlib.Path(name, str(number))
            _copy(folder)
            folders.put(folder)
        verdicts = list(pool.map(verdict, chosen))
    n_killed = sum(verdict.startswith("killed") for verdict in verdicts)
    print(f"{n_killed} of {len(chosen)} mutations killed")
    return int(not chosen or n_killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
