"""Which parameters of a test the default tests have, and which those with `-m slow`."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["mostly_slow"]


def mostly_slow(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return the parameters: the first ones, `quick` in number, are for the default tests, the others are slow.

    With two such parameters only the combinations of quick ones are quick.
    """
    return [value if i < quick else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.slow], id=value.id)
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)
