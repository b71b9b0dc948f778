"""Make the virtual environments of the peers, one from each file in `requirements/`.

    python -m benchmarks peers [NAME...]

An environment that was made from the same file is kept. A peer that cannot be installed is reported with the reason, in
the table and in `.venvs/NAME.failed`, which the harness shows instead of figures; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REQUIREMENTS = FOLDER / "requirements"
VENVS = FOLDER.parent / ".venvs"
_LIMIT = 1800


class NotInstalled(Exception):
    """A peer cannot be installed; the message is the reason, in a line."""


def main() -> int:
    """Make the missing environments, and print a table."""
    names = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    parser = argparse.ArgumentParser(description="Make the virtual environments of the benchmarks' peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all, if none is given")
    chosen = parser.parse_args().names or names
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(names)}")
    VENVS.mkdir(exist_ok=True)
    failures = sum(not report(name) for name in chosen)
    return 1 if failures else 0


def report(name: str) -> bool:
    """Make one environment, print one line about it, and return whether it exists."""
    failed = VENVS / f"{name}.failed"
    failed.unlink(missing_ok=True)
    try:
        outcome = make(name)
    except NotInstalled as reason:
        failed.write_text(f"{reason}\n")
        print(f"{name:12} not installed: {reason}", flush=True)
        return False
    print(f"{name:12} {outcome}: {pins(name)}", flush=True)
    return True


def make(name: str) -> str:
    """Make one environment, unless it is there already.

    Raises:
        NotInstalled: There is no such Python, pip cannot install what the file asks for, or it cannot be imported.
    """
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    venv, digest = VENVS / name, hashlib.sha256(text.encode()).hexdigest()
    stamp = venv / "made-from"
    if stamp.exists() and stamp.read_text() == digest:
        return "was there"
    if venv.exists():
        shutil.rmtree(venv)
    run([find_python(setting(text, "python")), "-m", "venv", str(venv)])
    python = str(venv / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS / f"{name}.txt")])
    # Some libraries do not declare all their requirements.
    run([python, "-c", f"import {setting(text, 'import')}"])
    stamp.write_text(digest)
    return "installed"


def setting(text: str, key: str) -> str:
    """Return the value of a comment line `# KEY: VALUE` in a requirements file.

    Raises:
        NotInstalled: There is no such line.
    """
    found = re.search(rf"^# {key}: (\S+)$", text, re.MULTILINE)
    if not found:
        raise NotInstalled(f"its requirements file has no line '# {key}: VALUE'")
    return found[1]


def find_python(version: str) -> str:
    """Return an interpreter of that version: this one, one of pyenv's, or one in the path.

    Raises:
        NotInstalled: There is none.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    if found:
        return str(found[-1])
    in_path = shutil.which(f"python{version}")
    if in_path is None:
        raise NotInstalled(f"there is no Python {version} here")
    return in_path


def run(command: list[str]) -> None:
    """Run a command, and raise an error if it fails.

    Raises:
        NotInstalled: It failed; the reason is its last line about an error.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"no end after {_LIMIT} s of {' '.join(command[:4])}") from error
    if done.returncode:
        raise NotInstalled(reason(done.stderr + done.stdout))


def reason(output: str) -> str:
    """Return the most informative line of pip's output: an exception's, or the last that begins with ERROR."""
    lines = [line.strip() for line in output.splitlines()]
    exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    errors = [line.partition(": ")[2] for line in lines if line.startswith("ERROR: ")]
    found = exceptions[-1:] or errors[-1:] or [line for line in lines if line][-1:]
    return found[0][:200] if found else "it failed without a word"


def pins(name: str) -> str:
    """Return the pinned requirements, in one line."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    return " ".join(line for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
    sys.exit(main())
