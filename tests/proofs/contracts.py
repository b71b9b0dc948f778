"""The contracts with every engine by every start method, and the fault tests with `queues` by every start method.

In each run of the slow tests everything is tried with one start method for each way that messages go.
"""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["prove"]


def prove(scale: str, engine: str | None = None) -> None:
    """Run the tests; in the short form those of the same batches.

    Args:
        scale: "short" or "long".
        engine: If given, only tests whose names have this word.

    Raises:
        AssertionError: A test failed; pytest says which one.
    """
    tests = ["tests/contracts"] if scale == "short" else ["tests/contracts", "tests/faults/test_with_queues.py"]
    words = " and ".join(word for word in ("same" if scale == "short" else "", engine) if word)
    tier = "not extras and not slow" if scale == "short" else "not extras"
    options = ["-q", "--one-process", "-m", tier, "-k", words]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env={**os.environ, "ALL_BY_ALL": "1"})
    assert done.returncode == 0
