"""Import optional libraries, and say how to install a missing library.

Messages never name this package with an extra in brackets: streamsampler on PyPI is another project, which pip would
install.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Extra(NamedTuple):
    """The libraries of an extra.

    Attributes:
        name: The main library's name, in its own spelling.
        packages: The packages for pip.
    """

    name: str
    packages: tuple[str, ...]


EXTRAS = {
    "minari": Extra("Minari", ("h5py", "minari", "pillow")),
    "pandas": Extra("pandas", ("pandas",)),
    "parquet": Extra("pyarrow", ("pyarrow",)),
    "pettingzoo": Extra("PettingZoo", ("pettingzoo",)),
    "plot": Extra("matplotlib", ("matplotlib",)),
    "ray": Extra("Ray", ("ray",)),
    "sb3": Extra("Stable-Baselines3", ("stable-baselines3",)),
    "tensordict": Extra("tensordict", ("tensordict",)),
    "torch": Extra("PyTorch", ("torch",)),
    "video": Extra("PyAV", ("av",)),
}
"""The extras that messages name, as in `setup.cfg`."""


def install_hint(extra: str) -> str:
    """Return the commands that install an extra, anywhere and in a clone."""
    return f"pip install {' '.join(EXTRAS[extra].packages)} (in a clone of streamsampler: pip install '.[{extra}]')"


def missing(what: str, extra: str, error: ImportError) -> ImportError:
    """Return the error for a library that is missing or fails to import; `what` starts the message."""
    message = f"{what} needs {EXTRAS[extra].name}: {install_hint(extra)}"
    # An installed library may still fail, for lack of a shared object or of a dependency.
    is_absent = isinstance(error, ModuleNotFoundError) and "." not in (error.name or ".")
    return ImportError(message if is_absent else f"{message}; importing it raised {type(error).__name__}: {error}")


def needed(module: str, what: str, extra: str) -> Any:
    """Import a module of an optional library; `what` starts the message of the ImportError if it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(what, extra, error) from error
