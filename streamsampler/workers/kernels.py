"""Probe the kernels that NumPy and torch compute with: a fixed piece of arithmetic, and the digest of its bits.

The probe is a small network at several batch shapes, in float32 and float64: matrix products, tanh, exp, log and sums.
It is so small that libraries compute it on one thread, however many they may use: the number of threads, on which bits
may depend as well, is not part of a fingerprint. Nor are a GPU's kernels, and those of environments.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.protocol.messages import Fingerprint

_INPUTS, _WIDTH, _OUTPUTS = 17, 64, 6
_BATCHES = 1, 8, 32  # kernels differ with the shape, from a single row on
_DTYPES = "float32", "float64"


def fingerprint() -> Fingerprint:
    """Return this process's fingerprint; the same object, until torch is loaded."""
    return _fingerprint(hasattr(sys.modules.get("torch"), "inference_mode"))  # it may be half-way loaded


@functools.lru_cache
def _fingerprint(with_torch: bool) -> Fingerprint:
    torch = sys.modules["torch"] if with_torch else None
    bits = [f"numpy={_digest(_in_numpy())}"]
    if torch is not None:
        # A torch that cannot compute this raises in the agent, where that can be told.
        with contextlib.suppress(Exception):
            bits.append(f"torch={_digest(_in_torch(torch))}")
    return Fingerprint(" ".join(bits), socket.gethostname())


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


def _numbers(rows: int, columns: int, dtype: str) -> NDArray[Any]:
    """Return numbers between -1 and 1 that are the same everywhere: a division is rounded correctly."""
    whole = (np.arange(rows * columns).reshape(rows, columns) * 7919 + 104_729) % 2039 - 1019
    return np.divide(whole, 1021, dtype=dtype)


def _in_numpy() -> Iterator[NDArray[Any]]:
    for dtype in _DTYPES:
        hidden, out = _numbers(_INPUTS, _WIDTH, dtype), _numbers(_WIDTH, _OUTPUTS, dtype)
        for n in _BATCHES:
            products = _numbers(n, _INPUTS, dtype) @ hidden
            activations = np.tanh(products)
            exponentials = np.exp(activations @ out)
            sums = exponentials.sum(axis=1)
            yield from (products, activations, exponentials, sums, np.log(sums), activations.sum(keepdims=True))
        yield hidden @ out[:, 0]


def _in_torch(torch: Any) -> Iterator[NDArray[Any]]:
    def tensor(rows: int, columns: int, dtype: str) -> Any:
        return torch.from_numpy(_numbers(rows, columns, dtype))

    with torch.inference_mode():
        for dtype in _DTYPES:
            hidden, out = tensor(_WIDTH, _INPUTS, dtype), tensor(_OUTPUTS, _WIDTH, dtype)
            bias = tensor(1, _WIDTH, dtype)[0]
            for n in _BATCHES:
                products = torch.nn.functional.linear(tensor(n, _INPUTS, dtype), hidden, bias)
                activations = products.tanh()
                logits = torch.nn.functional.linear(activations, out)
                sums = activations.sum().reshape(1)
                for values in (products, activations, logits, logits.exp(), logits.log_softmax(1), sums):
                    yield values.numpy()
