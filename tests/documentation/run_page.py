"""Run the blocks of a page: `python -m tests.documentation.run_page PAGE [--extras NAME…]`, in the current folder.

The result is a line of JSON for each block: the line at which it begins, its output, and its error or None.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import pathlib
import re
import subprocess
import sys
import traceback

from tests.documentation.blocks import Block, blocks

__all__: list[str] = []


def run_python(block: Block, page: pathlib.Path) -> None:
    """Run a block as a part of the script."""
    name = f"{page.name}:{block.line}"
    linecache.cache[name] = len(block.code), None, block.code.splitlines(keepends=True), name
    exec(compile(block.code, name, "exec"), vars(sys.modules["__main__"]))


def run_commands(block: Block) -> str:
    """Run each command of a block, but for those that install, and return what they print."""
    printed = ""
    for command in re.sub(r" *\\\n\s*", " ", block.code).splitlines():
        if command and not command.startswith(("pip ", "#")):
            line = re.sub(r"\bstreamsampler(?= )", f"{sys.executable} -m streamsampler", command, count=1)
            line = re.sub(r"^((?:\w+=\S+ )*)python\b", rf"\1{sys.executable}", line)
            run = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
            if run.returncode:
                raise RuntimeError(f"{command} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
            printed += run.stdout
    return printed


def main() -> None:
    """Run the page that is named on the command line."""
    page, extras = pathlib.Path(sys.argv[1]).resolve(), sys.argv[3:]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), "."])
    sys.path.insert(0, os.getcwd())
    sys.argv = [page.name]
    for block in blocks(page.read_text()):
        needs = block.notes.get("extra", "").split()
        if "not run" in block.notes or not set(needs) <= set(extras):
            continue
        if block.language == "diff" or block.notes.get("file", "").startswith("streamsampler/"):
            continue  # of the repository
        output, error = io.StringIO(), None
        try:
            if "file" in block.notes:
                pathlib.Path(block.notes["file"]).write_text(block.code)
            elif block.language == "sh":
                output.write(run_commands(block))
            else:
                with contextlib.redirect_stdout(output):
                    run_python(block, page)
        except BaseException:
            error = traceback.format_exc()
        line = json.dumps({"line": block.line, "output": output.getvalue(), "error": error})
        print(line, file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
