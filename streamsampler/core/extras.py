"""Libraries that are installed only where they are used: import one, or say how to install it.

Name the libraries, and never this package with an extra in brackets: the name streamsampler on PyPI belongs to another
project, and pip would install that one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Extra(NamedTuple):
    """What an extra of this package installs.

    Attributes:
        name: What the library calls itself.
        packages: What pip calls it, and what is installed with it.
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
"""The extras that messages name; those of `setup.cfg`."""


def install_hint(extra: str) -> str:
    """Return the commands that install the libraries of an extra: anywhere, and in a clone of this package."""
    return f"pip install {' '.join(EXTRAS[extra].packages)} (in a clone of streamsampler: pip install '.[{extra}]')"


def missing(what: str, extra: str, error: ImportError) -> ImportError:
    """Return the error for a library that is not installed, or cannot be imported.

    Args:
        what: What needs the library, as the first words of the message.
        extra: The extra that installs the library.
        error: What the import raised.
    """
    message = f"{what} needs {EXTRAS[extra].name}: {install_hint(extra)}"
    # A library that is installed may still fail, for want of a shared object or of what it imports itself.
    is_absent = isinstance(error, ModuleNotFoundError) and "." not in (error.name or ".")
    return ImportError(message if is_absent else f"{message}; importing it raised {type(error).__name__}: {error}")


def needed(module: str, what: str, extra: str) -> Any:
    """Return a module of a library.

    Args:
        module: The module's name.
        what: What needs it, as the first words of the message.
        extra: The extra that installs the library.

    Raises:
        ImportError: The module cannot be imported; says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(what, extra, error) from error
