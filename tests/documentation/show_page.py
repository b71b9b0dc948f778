"""Show what the blocks of pages print: `python -m tests.documentation.show_page [--extras] PAGE…`, by name."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from tests.documentation.blocks import DOCS, blocks

__all__: list[str] = []

if __name__ == "__main__":
    for name in [argument for argument in sys.argv[1:] if argument != "--extras"]:
        page = DOCS / f"{name}.md"
        extras = [block.notes.get("extra", "") for block in blocks(page.read_text())]
        options = ["--extras", *" ".join(extras).split()] if "--extras" in sys.argv else []
        command = [sys.executable, "-m", "tests.documentation.run_page", str(page), *options]
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path.cwd())}
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        for line in run.stdout.splitlines():
            result = json.loads(line)
            print(f"--- {name}.md, line {result['line']}\n{result['output']}{result['error'] or ''}")
        print(run.stderr, end="")
