"""Limit the threads that numerical libraries compute on, in a worker or for a while in this process.

Some sums depend on how many threads share them: trajectories depend on that number. And workers share the machine
already: with a thread for each core in each of them, they slow each other down.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from streamsampler.core.errors import positive

try:
    import threadpoolctl  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    threadpoolctl = None

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
        if self._kinds and threadpoolctl is not None:
            for library in threadpoolctl.ThreadpoolController().lib_controllers:
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
