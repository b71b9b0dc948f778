"""The probe: its digest is the same in each process with the same kernels, and another one with others."""

import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from streamsampler.workers import kernels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CONFIG: Any = np.show_config(mode="dicts")

CODE = """
import sys, time
{first}
from streamsampler.workers.kernels import fingerprint
found = fingerprint()
print(found.bits)
"""


def probed(first="", **variables):
    """Return the digests in a process with these environment variables."""
    environ = {**os.environ, **variables}
    code = CODE.format(first=first)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    return dict(part.split("=") for part in run.stdout.split())


def test_each_process_finds_the_same():
    own = dict(part.split("=") for part in kernels.fingerprint().bits.split())
    assert probed()["numpy"] == own["numpy"]
    assert kernels.fingerprint() is kernels.fingerprint()


@pytest.mark.slow
@pytest.mark.skipif("openblas" not in str(CONFIG["Build Dependencies"]), reason="NumPy has no OpenBLAS here")
def test_the_kernels_of_openblas_are_told_apart():
    digests = {probed(OPENBLAS_CORETYPE=name)["numpy"] for name in ("Nehalem", "Sandybridge", "Haswell")}
    assert len(digests) >= 2, "a processor without them chooses others"


def test_the_kernels_of_numpy_itself_are_told_apart():
    newest = CONFIG.get("SIMD Extensions", {}).get("found", ())
    if not newest:
        pytest.skip("NumPy uses no kernels for newer processors here")
    assert probed(NPY_DISABLE_CPU_FEATURES=",".join(newest)) != probed()


@pytest.mark.extras
def test_the_kernels_of_torch_are_told_apart():
    found = [
        probed("import torch"),
        probed("import torch", ATEN_CPU_CAPABILITY="default"),
        probed("import torch", MKL_CBWR="COMPATIBLE"),
    ]
    assert len({bits["numpy"] for bits in found}) == 1
    assert len({bits["torch"] for bits in found}) == 3


def test_the_probe_disturbs_nothing():
    """It draws nothing, and what the user says of floating-point errors does not matter."""
    state = np.random.get_state(legacy=False)
    kernels._fingerprint.cache_clear()
    with np.errstate(all="raise"):
        kernels.fingerprint()
    np.testing.assert_equal(np.random.get_state(legacy=False), state)


def test_half_a_torch_is_none(monkeypatch):
    """Another thread is importing it, or it is no torch at all."""
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    assert "torch" not in kernels.fingerprint().bits
