"""The probe: its digest is the same in each process with the same kernels, and another one with others."""

import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from streamsampler.workers import threads as kernels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CONFIG: Any = np.show_config(mode="dicts")


def probed(first="", **variables):
    """Return the digests in a process with these environment variables."""
    code = f"{first}\nfrom streamsampler.workers.threads import fingerprint\nprint(fingerprint().bits)"
    environ = {**os.environ, **variables}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    return dict(part.split("=") for part in run.stdout.split())


def test_kernels_of_numpy_itself_are_told_apart_and_each_process_finds_the_same():
    own = dict(part.split("=") for part in kernels.fingerprint().bits.split())
    found = probed()
    assert found["numpy"] == own["numpy"]
    if newest := CONFIG.get("SIMD Extensions", {}).get("found", ()):
        assert probed(NPY_DISABLE_CPU_FEATURES=",".join(newest)) != found


@pytest.mark.slow
@pytest.mark.skipif("openblas" not in str(CONFIG["Build Dependencies"]), reason="NumPy has no OpenBLAS here")
def test_the_kernels_of_openblas_are_told_apart():
    digests = {probed(OPENBLAS_CORETYPE=name)["numpy"] for name in ("Nehalem", "Sandybridge", "Haswell")}
    assert len(digests) >= 2, "a processor without them chooses others"


@pytest.mark.extras
def test_the_kernels_of_torch_are_told_apart():
    others: list[dict[str, str]] = [{}, {"ATEN_CPU_CAPABILITY": "default"}, {"MKL_CBWR": "COMPATIBLE"}]
    found = [probed("import torch", **variables) for variables in others]
    assert len({bits["numpy"] for bits in found}) == 1
    assert len({bits["torch"] for bits in found}) == 3


def test_the_probe_draws_nothing_and_takes_no_half_of_a_torch(monkeypatch):
    """What the user says of floating-point errors does not matter; another thread may be importing torch."""
    state = np.random.get_state(legacy=False)
    kernels._fingerprint.cache_clear()
    with np.errstate(all="raise"):
        assert kernels.fingerprint() is kernels.fingerprint()
    np.testing.assert_equal(np.random.get_state(legacy=False), state)
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    assert "torch" not in kernels.fingerprint().bits
