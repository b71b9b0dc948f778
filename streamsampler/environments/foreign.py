"""Recognise environments of other libraries, for errors: PettingZoo, the old package gym, dm_env."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

_KINDS = {
    "pettingzoo": "an environment of PettingZoo, for several agents: pass a callable that makes it, or its module's "
    "name; or wrap it in a gymnasium.Env in which one agent plays all (streamsampler/docs/several-agents.md shows how)",
    "gym": "an environment of the old package gym: make it one of Gymnasium's, by shimmy's GymV26CompatibilityV0 for "
    "instance",
    "dm_env": "an environment of dm_env: make it one of Gymnasium's, by shimmy's DmControlCompatibilityV0 for instance",
}
"""Descriptions of other libraries' environments for errors, by the package of their class or a base class."""
_CLASS_IN_TEXT = re.compile(r"<class '(?P<name>[\w.]+)'>")


def foreign_kind(obj: Any) -> str:
    """Describe an object or class of another library's environments for errors; "" for others."""
    kind = obj if isinstance(obj, type) else type(obj)
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((_KINDS[package] for package in packages if package in _KINDS), "")


def foreign_kind_in(text: str) -> str:
    """Describe the class in an error message of Gymnasium likewise."""
    match = _CLASS_IN_TEXT.search(text)
    if match is None:
        return ""
    module, _, name = match["name"].rpartition(".")
    found: Any = sys.modules.get(module)
    found = vars(found).get(name) if isinstance(found, ModuleType) else None
    if isinstance(found, type):
        return foreign_kind(found)
    return _KINDS.get(match["name"].partition(".")[0], "")
