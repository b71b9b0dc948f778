"""Run the code of a page in a process of its own, and compare its output with the page."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from tests.documentation.blocks import blocks, pattern_of

__all__ = ["check"]


def check(page: pathlib.Path, folder: pathlib.Path, *options: str) -> None:
    """Run the blocks of a page of the repository that it is in, and compare their output.

    Args:
        page: The file.
        folder: Where they run.
        options: Options of `run_page`.

    Raises:
        AssertionError: A block raises, or prints something else.
    """
    root = str(page.parents[2])
    command = [sys.executable, "-m", "tests.documentation.run_page", str(page), *options]
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    shown = {block.line: block for block in blocks(page.read_text())}
    for line in done.stdout.splitlines():
        result = json.loads(line)
        block = shown[result["line"]]
        where = f"{page.name}, line {block.line}"
        assert result["error"] is None, f"{where} raises:\n{result['error']}"
        if block.output is not None:
            pattern = pattern_of(block.output, labels_only=block.notes.get("output") == "labels")
            output = result["output"]
            assert pattern.fullmatch(output), f"{where} shows:\n{block.output}\nand prints:\n{output}"
    assert done.returncode == 0, done.stderr
