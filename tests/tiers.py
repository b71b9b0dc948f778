"""Which parameters and how many examples the default tests have, and which others those with `-m slow`."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["costly", "mostly_slow"]


def mostly_slow(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return the parameters: the first ones, `quick` in number, are for the default tests, the others are slow.

    With two such parameters only the combinations of quick ones are quick.
    """
    return [value if i < quick else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.slow], id=value.id)
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)


def costly(n: int) -> settings:
    """Return the settings of a property whose examples cost much: by default it is tried with n, not with 25.

    With `--hypothesis-profile thorough` it is ten times as many, as everywhere.
    """
    return settings(max_examples=max(1, n * settings().max_examples // 25))
