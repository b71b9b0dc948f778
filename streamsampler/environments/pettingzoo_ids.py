"""Finding what PettingZoo's names of environments stand for: modules with a function `parallel_env`, or `env`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from typing import Any

from streamsampler.errors import UnknownEnvironmentError
from streamsampler.extras import install_hint

__all__ = ["AEC", "JOINT_VIEW", "PARALLEL", "MakesMultiAgentEnv", "is_pettingzoo_id"]

PARALLEL, AEC = "parallel_env", "env"
"""The functions of PettingZoo's modules that make a `ParallelEnv` and an `AECEnv`."""

JOINT_VIEW = "wrap it in a gymnasium.Env in which one agent plays all (streamsampler.several_agents shows how)"
_PACKAGE = "pettingzoo"


def is_pettingzoo_id(env_id: str) -> bool:
    """Return whether an id is PettingZoo's: `pettingzoo.…`, `mpe2.…`, `module:parallel_env` or `module:env`."""
    return env_id.startswith((f"{_PACKAGE}.", "mpe2.")) or env_id.rpartition(":")[2] in (PARALLEL, AEC)


class MakesMultiAgentEnv:
    """Makes an environment of a module.

    Args:
        env_id: `module` for its `ParallelEnv`, or its `AECEnv` where it has no other one; or `module:parallel_env`, or
            `module:env`.

    Raises:
        UnknownEnvironmentError: There is no such module, it cannot be imported, or it has no such function.
    """

    def __init__(self, env_id: str) -> None:
        module, colon, name = env_id.rpartition(":")
        self._module = module if colon else env_id
        self._names: tuple[str, ...] = (name,) if colon else (PARALLEL, AEC)
        self.__qualname__ = env_id
        self._function()

    def __call__(self, **kwargs: Any) -> Any:
        """Make the environment."""
        return self._function()(**kwargs)

    def _function(self) -> Any:
        module = self._module
        if module.startswith(f"{_PACKAGE}.") and importlib.util.find_spec(_PACKAGE) is None:
            raise UnknownEnvironmentError(
                f"the environment {self.__qualname__!r} needs PettingZoo: {install_hint('pettingzoo')}. Or {JOINT_VIEW}"
            )
        try:
            found = importlib.import_module(module)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
            why = "there is no such module" if missing else f"importing it raised {type(error).__name__}: {error}"
            raise UnknownEnvironmentError(
                f"unknown environment {self.__qualname__!r}: {why}{_near(module) if missing else ''}"
            ) from error
        there = [name for name in (PARALLEL, AEC) if callable(getattr(found, name, None))]
        name = next((name for name in self._names if name in there), None)
        if name is None:
            hint = f"; it has {there[0]}: ask for '{module}:{there[0]}'" if there else ""
            raise UnknownEnvironmentError(f"the module {module} has no function {' or '.join(self._names)}{hint}")
        return getattr(found, name)


def _near(module: str) -> str:
    family, _, name = module.rpartition(".")
    try:
        path = importlib.import_module(family).__path__
    except Exception:
        return ""
    names = [each.name for each in pkgutil.iter_modules(path) if "_v" in each.name]
    bare = name.rpartition("_v")[0] or name
    near = [it for it in names if it.startswith(f"{bare}_v")] or difflib.get_close_matches(name, names, n=3)
    return f". Did you mean {' or '.join(repr(f'{family}.{it}') for it in near)}?" if near else ""
