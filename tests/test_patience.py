"""What tests wait for is what users wait for again when the test is over."""

import subprocess
import sys

CODE = """
import importlib
import pytest
from tests import patience

monkeypatch = pytest.MonkeyPatch()
patience.wait_for_processes(monkeypatch)
monkeypatch.undo()
for name in patience.LIMITS:
    module, _, constant = name.rpartition(".")
    assert getattr(importlib.import_module(f"streamsampler.{module}"), constant) < patience.PATIENCE, name
"""


def test_limits_are_what_they_were_in_a_process_that_had_not_imported_them():
    subprocess.run([sys.executable, "-c", CODE], check=True)
