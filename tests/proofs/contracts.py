"""The contracts with every engine by every start method, and the fault tests with `queues` by every start method.

In each run of the slow tests everything is tried with one start method for each way that messages go.
"""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["prove"]

_LONG = ["tests/contracts", "tests/faults/test_with_queues.py"]
_SHORT = ["tests/contracts/test_c1_reproducible.py::test_same_batches_in_one_life"]


def prove(scale: str, engine: str | None = None) -> None:
    """Run the tests; in the short form the core of C1.

    Args:
        scale: "short" or "long".
        engine: If given, only tests whose names have this word.

    Raises:
        AssertionError: A test failed; pytest says which one.
    """
    tests = _SHORT if scale == "short" else _LONG
    options = ["-q", "--one-process", "-m", "not extras", *(("-k", engine) if engine is not None else ())]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env={**os.environ, "ALL_BY_ALL": "1"})
    assert done.returncode == 0
