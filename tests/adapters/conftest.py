"""Tests of the adapters. Those in the files below need the extras; the others need none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

NEED_EXTRAS = {
    *("test_layer_calls.py", "test_maskable.py", "test_mlp.py", "test_own_kinds.py", "test_recurrent.py"),
    *("test_rows.py", "test_sb3_models.py", "test_shared_parameters.py"),
    *("test_torch.py", "test_torch_in_samplers.py", "test_torch_settings.py"),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the extras these files cannot be imported: whoever asks for their tests is to see just that."""
    asked_for = config.getoption("markexpr").replace("not extras", "").find("extras") >= 0
    missing = importlib.util.find_spec("torch") is None
    return True if collection_path.name in NEED_EXTRAS and missing and not asked_for else None
