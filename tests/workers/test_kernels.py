"""The probe: its digest is the same in each process with the same kernels, and another one with others."""

import os
import subprocess
import sys

import numpy as np
import pytest

from streamsampler.workers import kernels

CODE = """
import sys, time
{first}
from streamsampler.workers.kernels import fingerprint
found = fingerprint()
print(found.bits, found.blas or "-", found.torch or "-", sep="|")
"""


def probed(first="", **variables):
    """Return the digests and the names of the kernels in a process with these environment variables."""
    environ = {**os.environ, **variables}
    code = CODE.format(first=first)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    bits, blas, torch = run.stdout.strip().split("|")
    return dict(part.split("=") for part in bits.split()), blas, torch


def test_each_process_finds_the_same():
    own = dict(part.split("=") for part in kernels.fingerprint().bits.split())
    assert probed()[0]["numpy"] == own["numpy"]
    assert kernels.fingerprint() is kernels.fingerprint()


@pytest.mark.slow
@pytest.mark.skipif(kernels.fingerprint().blas == "", reason="NumPy has no OpenBLAS here")
def test_the_kernels_of_openblas_are_told_apart():
    digests: dict[str, str] = {}
    for name in ("Nehalem", "Sandybridge", "Haswell"):
        bits, blas, _ = probed(OPENBLAS_CORETYPE=name)  # a processor without them chooses others, and says so
        assert digests.setdefault(blas, bits["numpy"]) == bits["numpy"]
    assert len(set(digests.values())) == len(digests) >= 2, digests
    bits, blas, _ = probed()  # on AMD's it is called Zen, and computes with Haswell's kernels: other name, same bits
    assert digests.get(blas, bits["numpy"]) == bits["numpy"]


def test_the_kernels_of_numpy_itself_are_told_apart():
    newest = kernels.fingerprint().simd
    if not newest:
        pytest.skip("NumPy uses no kernels for newer processors here")
    assert probed(NPY_DISABLE_CPU_FEATURES=",".join(newest))[0] != probed()[0]


@pytest.mark.extras
def test_the_kernels_of_torch_are_told_apart():
    found = [
        probed("import torch"),
        probed("import torch", ATEN_CPU_CAPABILITY="default"),
        probed("import torch", MKL_CBWR="COMPATIBLE"),
    ]
    assert len({bits["numpy"] for bits, _, _ in found}) == 1
    assert len({bits["torch"] for bits, _, _ in found}) == 3
    assert found[1][2] == "DEFAULT"


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
