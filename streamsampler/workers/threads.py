"""Limit the threads that numerical libraries compute on, in a worker or for a while in this process.

Some sums depend on how many threads share them: trajectories depend on that number. And workers share the machine
already: with a thread for each core in each of them, they slow each other down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from streamsampler.errors import positive

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What libraries read when they are loaded."""


class _Control(NamedTuple):
    """How to get and set the number of threads of a library that is loaded.

    Attributes:
        get: Returns the number.
        set: Sets it.
    """

    get: Callable[[], int]
    set: Callable[[int], Any]


class _Kind(NamedTuple):
    """A library that is controlled by two functions in C.

    Attributes:
        file: What the name of its file contains.
        functions: What the functions may be called, those that set the number and those that get it.
        variables: The environment variables by which users set it.
    """

    file: str
    functions: tuple[tuple[str, str], ...]
    variables: tuple[str, ...]


_KINDS = (
    _Kind(
        "openblas",
        tuple(
            (f"{prefix}openblas_set_num_threads{suffix}", f"{prefix}openblas_get_num_threads{suffix}")
            for prefix in ("scipy_", "")  # as in the wheels of NumPy and SciPy
            for suffix in ("64_", "", "_64")
        ),
        ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    ),
    _Kind(
        "mkl_rt",
        (("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),),
        ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    ),
)


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
    """Limits the libraries that are loaded, torch, OpenBLAS and MKL, to a number of threads.

    OpenBLAS and MKL are left alone where the user's environment variables are about them.

    Args:
        threads: How many threads; None leaves all as it is.
        environ: The user's environment variables.
    """

    def __init__(self, threads: int | None, environ: Mapping[str, str]) -> None:
        self._threads = threads
        self._kinds = [kind for kind in _KINDS if not any(name in environ for name in kind.variables)]
        self._n_modules = 0
        self._controls: dict[str, _Control] = {}
        self._before: dict[str, int] = {}

    def hold(self) -> None:
        """Limit the libraries that are loaded by now. Where none was loaded since the last call this costs nothing."""
        if self._threads is None or len(sys.modules) == self._n_modules:
            return
        self._n_modules = len(sys.modules)
        for name, control in self._loaded():
            self._controls[name] = control
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
                self._controls[name].set(number)
            self._before.clear()

    def _apply(self, threads: int) -> None:
        for name, control in self._controls.items():
            if name not in self._before:
                self._before[name] = control.get()
                control.set(threads)

    def _loaded(self) -> Iterator[tuple[str, _Control]]:
        """Yield the libraries that were loaded since the last call."""
        torch: Any = sys.modules.get("torch")
        if "torch" not in self._controls and hasattr(torch, "set_num_threads"):  # it may be half-way loaded
            yield "torch", _Control(torch.get_num_threads, torch.set_num_threads)
        for path in _loaded_files() if self._kinds else ():
            kind = next((kind for kind in self._kinds if kind.file in path.name), None)
            if kind is not None and str(path) not in self._controls:
                control = _control_of(path, kind)
                if control is not None:
                    yield str(path), control


def _control_of(path: Path, kind: _Kind) -> _Control | None:
    try:
        library = ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOLOAD", ctypes.DEFAULT_MODE))
    except OSError:  # not loaded after all
        return None
    for setter, getter in kind.functions:
        if hasattr(library, setter) and hasattr(library, getter):
            return _Control(getattr(library, getter), getattr(library, setter))
    return None


def _loaded_files() -> list[Path]:
    """Return those of `_KINDS` that are loaded; where the system does not say, what NumPy and SciPy contain."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return _files_in_wheels()
    # Of thousands of lines, which are read for each sampler, a few are about these.
    lines = [line for line in lines if ".so" in line and any(kind.file in line for kind in _KINDS)]
    return [Path(name) for name in sorted({line[line.index("/") :] for line in lines})]


def _files_in_wheels() -> list[Path]:
    found: list[Path] = []
    for package in ("numpy", "scipy"):
        module = sys.modules.get(package)
        if module is not None and module.__file__ is not None:
            folder = Path(module.__file__).parent
            for place in (folder / ".dylibs", folder.with_name(f"{package}.libs")):
                found += sorted(place.glob("*openblas*"))
    return found
