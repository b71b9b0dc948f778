"""Limit the threads that numerical libraries compute on, in a worker or for a while in this process.

Some sums depend on how many threads share them: trajectories depend on that number. And workers share the machine
already: with a thread for each core in each of them, they slow each other down.
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
"""What libraries read when they are loaded."""


_OF_USERS = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
}
"""By which environment variables users set the numbers of libraries that threadpoolctl controls, by its names."""


def check_threads(value: Any) -> int | None:
    """Return `value` as the argument `worker_threads` of a sampler.

    Raises:
        UsageError: It is neither a positive integer nor None.
    """
    return None if value is None else positive("worker_threads", value)


def set_unset(environ: MutableMapping[str, str], threads: int | None) -> None:
    """Set the variables that are not set, for libraries that are not loaded yet.

    Args:
        environ: The environment variables.
        threads: How many threads; None leaves all as it is.
    """
    if threads is not None:
        for name in VARIABLES:
            environ.setdefault(name, str(threads))


class ThreadLimit:
    """Limits the libraries that are loaded to a number of threads: torch; and OpenBLAS and MKL, by threadpoolctl.

    OpenBLAS and MKL are left alone where the user's environment variables are about them, or there is no threadpoolctl.

    Args:
        threads: How many threads; None leaves all as it is.
        environ: The user's environment variables.
    """

    def __init__(self, threads: int | None, environ: Mapping[str, str]) -> None:
        self._threads = threads
        self._kinds = {kind for kind, names in _OF_USERS.items() if not any(name in environ for name in names)}
        self._n_modules = 0
        self._libraries: dict[str, Any] = {}  # what has get_num_threads and set_num_threads
        self._before: dict[str, int] = {}

    def hold(self) -> None:
        """Limit the libraries that are loaded by now. Where none was loaded since the last call this costs nothing."""
        if self._threads is None or len(sys.modules) == self._n_modules:
            return
        self._n_modules = len(sys.modules)
        torch = sys.modules.get("torch")
        if hasattr(torch, "set_num_threads"):  # it may be half-way loaded
            self._libraries["torch"] = torch
        if self._kinds:
            for library in libraries():
                if library.internal_api in self._kinds:
                    self._libraries[library.filepath] = library
        self._apply(self._threads)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Limit libraries in this block alone, and restore the numbers that were found."""
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
    """Return the libraries that are loaded and compute on threads, as threadpoolctl has them; without it, none.

    They are looked for again once another module is loaded: in a process with many libraries, looking takes as long as
    a short trajectory. Copies of a process in which this was called have them from their start.
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


# ----------------------------------------------------------------------
# Probe the kernels that NumPy and torch compute with: a fixed piece of arithmetic, and the digest of its bits.
#
# The probe is a small network at several batch shapes, in float32 and float64: matrix products, tanh, exp, log and
# sums. It is so small that libraries compute it on one thread, however many they may use: the number of threads, on
# which bits may depend as well, is not part of a fingerprint. Nor are a GPU's kernels, and those of environments.


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
