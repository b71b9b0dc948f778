"""Try the tests: each mutation of the package must make a test fail.

    python -m tests.mutations              # all of them, a second to a minute each
    python -m tests.mutations arena seeds  # those whose names contain one of the words

`mutations.toml` has, for each mutation, a file, a text that stands in it exactly once, another text, and the tests
that are to fail. Each is applied to a copy of the tree, so work may go on meanwhile.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import Any

_ROOT = pathlib.Path(__file__).parents[2]
_LIST = pathlib.Path(__file__).with_name("mutations.toml")
_SECONDS = 300
# What pytest ends with: 0 all passed, 1 some failed.
_VERDICTS = {0: "SURVIVED", 1: "killed"}


def _copy(folder: pathlib.Path) -> None:
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=_ROOT, check=True, capture_output=True
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        if (_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, folder / name)


def _tested(folder: pathlib.Path, tests: list[str]) -> str:
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
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
        return _tested(folder, mutation["tests"])
    finally:
        path.write_text(text)


def main(words: list[str]) -> int:
    """Try the mutations whose names contain one of the words; return 1 if one of them was not killed."""
    mutations = tomllib.loads(_LIST.read_text())["mutation"]
    chosen = [one for one in mutations if not words or any(word in one["name"] for word in words)]
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        _copy(pathlib.Path(name))
        for mutation in chosen:
            began = time.monotonic()
            verdicts.append(_try(pathlib.Path(name), mutation))
            print(f"{time.monotonic() - began:5.1f} s  {mutation['name']}: {verdicts[-1]}", flush=True)
    n_killed = sum(verdict.startswith("killed") for verdict in verdicts)
    print(f"{n_killed} of {len(chosen)} mutations killed")
    return int(not chosen or n_killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
