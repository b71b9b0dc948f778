"""Limit the threads of numerical libraries, in a worker or temporarily in this process.

Some sums depend on the number of threads, and so do trajectories. Workers also share the machine's cores already: with
a thread for each core in each worker, they slow each other down.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import positive
from streamsampler.core.fingerprints import Fingerprint

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Environment variables which libraries read when they are loaded."""


_OF_USERS = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
}
"""Users' environment variables for the libraries under threadpoolctl's control, by its names."""


def check_threads(value: Any) -> int | None:
    return None if value is None else positive("worker_threads", value)


def set_unset(environ: MutableMapping[str, str], threads: int | None) -> None:
    if threads is not None:
        for name in VARIABLES:
            environ.setdefault(name, str(threads))


class ThreadLimit:
    """Limits the threads of loaded libraries: torch; OpenBLAS and MKL by threadpoolctl.

    OpenBLAS and MKL are left alone if the user's environment variables configure them, or without threadpoolctl.
    """

    def __init__(self, threads: int | None, environ: Mapping[str, str]) -> None:
        self._threads = threads
        self._kinds = {kind for kind, names in _OF_USERS.items() if not any(name in environ for name in names)}
        self._n_modules = 0
        self._libraries: dict[str, Any] = {}  # objects with get_num_threads and set_num_threads
        self._before: dict[str, int] = {}

    def hold(self) -> None:
        """Limit the libraries loaded by now. Without a new module since the last call this costs nothing."""
        if self._threads is None or len(sys.modules) == self._n_modules:
            return
        self._n_modules = len(sys.modules)
        torch = sys.modules.get("torch")
        if hasattr(torch, "set_num_threads"):  # it may be partly loaded
            self._libraries["torch"] = torch
        if self._kinds:
            for library in libraries():
                if library.internal_api in self._kinds:
                    self._libraries[library.filepath] = library
        self._apply(self._threads)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        if self._threads is None:
            yield
            return
        try:
            self._apply(self._threads)
            self.hold()
            yield
        finally:
            for name, number in self._before.items():
                self._libraries[name].set_num_threads(number)
            self._before.clear()

    def _apply(self, threads: int) -> None:
        for name, library in self._libraries.items():
            if name not in self._before:
                self._before[name] = library.get_num_threads()
                library.set_num_threads(threads)


def libraries() -> list[Any]:
    """Return the loaded libraries with thread pools, from threadpoolctl; empty without it.

    The search repeats only after another module is loaded: in a process with many libraries it takes as long as a short
    trajectory. Forks of this process inherit the result.
    """
    return _libraries(len(sys.modules), next(reversed(sys.modules)))


@functools.lru_cache(maxsize=1)
def _libraries(_n_modules: int, _last_module: str) -> list[Any]:
    try:
        # Here, so that `import streamsampler` need not load threadpoolctl.
        import threadpoolctl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return []
    found: list[Any] = threadpoolctl.ThreadpoolController().lib_controllers
    return found


# The fingerprint is a digest of fixed arithmetic by NumPy's and torch's kernels: a small network at several batch
# shapes, in float32 and float64, with matrix products, tanh, exp, log and sums. It is small enough for a single thread:
# a fingerprint does not contain the number of threads, although bits may depend on it. Nor does it cover a GPU's
# kernels or those of environments.


_INPUTS, _WIDTH, _OUTPUTS = 17, 64, 6
_BATCHES = 1, 8, 32  # kernels differ with the shape, from a single row on
_DTYPES = "float32", "float64"


def fingerprint() -> Fingerprint:
    """Return this process's fingerprint; the same object until torch is loaded."""
    return _fingerprint(hasattr(sys.modules.get("torch"), "inference_mode"))  # it may be partly loaded


@functools.lru_cache
def _fingerprint(with_torch: bool) -> Fingerprint:
    torch = sys.modules["torch"] if with_torch else None
    bits = [f"numpy={_digest(_in_numpy())}"]
    if torch is not None:
        # A torch which cannot compute this raises again in the agent, where the error is reported.
        with contextlib.suppress(Exception):
            bits.append(f"torch={_digest(_in_torch(torch))}")
    return Fingerprint(" ".join(bits), socket.gethostname())


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


def _numbers(rows: int, columns: int, dtype: str) -> NDArray[Any]:
    """Return numbers between -1 and 1, equal on every machine since division is rounded correctly."""
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
