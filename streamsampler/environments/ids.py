"""Resolve ids of environments: of Gymnasium, and of PettingZoo."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id

from streamsampler.core.errors import UnknownEnvironmentError
from streamsampler.core.extras import install_hint
from streamsampler.core.words import AGENT_FIRST

_PACKAGES = (
    ("ale_py", "ale-py", ("ALE/",)),
    ("minigrid", "minigrid", ("BabyAI-", "MiniGrid-")),
    ("miniworld", "miniworld", ("MiniWorld-",)),
    ("metaworld", "metaworld", ("Meta-World/",)),
    ("browsergym.core", "browsergym-core", ("browsergym/",)),
    ("shimmy", "shimmy[bsuite]", ("bsuite/",)),
    ("shimmy", "shimmy[dm-control]", ("dm_control/",)),
    ("highway_env", "highway-env", ("highway-", "merge-")),
    ("gymnasium_robotics", "gymnasium-robotics", ("Adroit", "AntMaze", "Fetch", "FrankaKitchen", "Hand", "PointMaze")),
    ("panda_gym", "panda-gym", ("Panda",)),
)
"""Well-known packages that register environments: the module to import, the package to install, prefixes of ids."""


def find_spec(env_id: str) -> EnvSpec:
    """Resolve an id as `gymnasium.make` does: ``[module:][namespace/]name[-v0]``.

    Raises:
        UnknownEnvironmentError: No environment has this id; suggests near ids.
    """
    module, colon, name = env_id.rpartition(":")
    if colon:
        _import_for(module, env_id)
    latest = _latest_version(name)
    spec = gymnasium.registry.get(name, latest)
    if spec is None:
        if colon and callable(getattr(sys.modules.get(module), name, None)):
            raise UnknownEnvironmentError(
                f"unknown environment {env_id!r}: {name} of the module {module} is not registered. Register it with "
                f"gymnasium.register; or for several agents let {module} have a function {PARALLEL} or {AEC}, and use "
                f"'{module}:{PARALLEL}'"
            )
        raise UnknownEnvironmentError(_unknown(name))
    if latest is not None and (latest.version or 0) > (spec.version or 0):
        text = f"The environment {name} is out of date. The latest version is {latest.id}."
        # As if raised in Gymnasium: its filter shows only its own warnings of this category, once each.
        gymnasium.logger.warn(text, category=DeprecationWarning, stacklevel=0)
    elif spec.id != name:
        gymnasium.logger.warn(f"{name} has no version: {spec.id} is used, the latest one.", stacklevel=0)
    return spec


def with_version(env_id: str) -> str:
    """Add the latest version to an id without version, if its module is imported."""
    module, colon, name = env_id.rpartition(":")
    spec = gymnasium.registry.get(name, _latest_version(name))
    return env_id if spec is None else f"{module}{colon}{spec.id}"


def _import_for(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        if missing and f"{module}.".startswith(f"{error.name}."):  # type: ignore[attr-defined]
            raise UnknownEnvironmentError(f"unknown environment {env_id!r}: there is no module {module!r}") from error
        raise UnknownEnvironmentError(
            f"the environment {env_id!r} cannot be found: importing {module} raised {type(error).__name__}: {error}"
        ) from error


def _latest_version(name: str) -> EnvSpec | None:
    """Return the newest registered version of an environment; None for an unknown name or version."""
    try:
        namespace, bare_name, version = parse_env_id(name)
    except gymnasium.error.Error:
        return None
    latest = find_highest_version(namespace, bare_name)
    if latest is None or (version is not None and name not in gymnasium.registry):
        return None
    return gymnasium.registry.get(f"{namespace}/{bare_name}-v{latest}" if namespace else f"{bare_name}-v{latest}")


def _unknown(name: str) -> str:
    if name == "random":
        return f"'random' is an agent, not an environment: {AGENT_FIRST}"
    for module, package, beginnings in _PACKAGES:
        if name.startswith(beginnings):
            return (
                f"unknown environment {name!r}. The package {module} registers such ids: use '{module}:{name}' "
                f"(if it is not installed, pip install '{package}')."
            )
    namespace, slash, own_name = name.partition("/")
    if slash and namespace in _PETTINGZOO_NAMESPACES:
        module = f"{_PACKAGE}.{namespace}.{own_name.replace('-v', '_v')}"
        return (
            f"unknown environment {name!r}. It is PettingZoo's: use its module, {module!r}, or pass lambda: "
            f"pettingzoo.make('parallel', '…')."
        )
    # Keys: ids with and without version and namespace, in lower case. Later entries win: newest version, no namespace.
    names: dict[str, str] = {}
    for spec in sorted(gymnasium.registry.values(), key=lambda spec: (spec.namespace is None, spec.version or 0)):
        qualified = f"{spec.namespace}/{spec.name}" if spec.namespace else spec.name
        names |= dict.fromkeys((spec.name.lower(), qualified.lower(), spec.id.lower()), spec.id)
    bare = name.rpartition("/")[2].lower()
    forms = difflib.get_close_matches(name.lower(), names, n=3) + difflib.get_close_matches(bare, names, n=3)
    near = list(dict.fromkeys(names[form] for form in forms))[:3]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"unknown environment {name!r}.{hint} If another package registers it, use 'package:{name}'."


PARALLEL, AEC = "parallel_env", "env"
"""The functions of PettingZoo's modules that make a `ParallelEnv` and an `AECEnv`."""

JOINT_VIEW = "wrap it in a gymnasium.Env in which one agent plays all (streamsampler/docs/several-agents.md shows how)"
_PACKAGE = "pettingzoo"
_PETTINGZOO_NAMESPACES = ("atari", "butterfly", "classic", "sisl")


def is_pettingzoo_id(env_id: str) -> bool:
    """Return whether an id is PettingZoo's: `pettingzoo.…`, `mpe2.…`, `module:parallel_env` or `module:env`."""
    return env_id.startswith((f"{_PACKAGE}.", "mpe2.")) or env_id.rpartition(":")[2] in (PARALLEL, AEC)


class PettingZooFactory:
    """Makes an environment of a PettingZoo module.

    Args:
        env_id: `module` for its `ParallelEnv`, or else its `AECEnv`; or `module:parallel_env`, or `module:env`.

    Raises:
        UnknownEnvironmentError: The module is missing, fails to import, or has no such function.
    """

    def __init__(self, env_id: str) -> None:
        module, colon, name = env_id.rpartition(":")
        self._module = module if colon else env_id
        self._names: tuple[str, ...] = (name,) if colon else (PARALLEL, AEC)
        self.__qualname__ = env_id
        self._function()

    def __call__(self, **kwargs: Any) -> Any:
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
            hint = f"; it has {there[0]}: use '{module}:{there[0]}'" if there else ""
            raise UnknownEnvironmentError(f"the module {module} has no function {' or '.join(self._names)}{hint}")
        return getattr(found, name)


def _near(module: str) -> str:
    import pkgutil  # only here, since most programs name existing modules

    family, _, name = module.rpartition(".")
    try:
        path = importlib.import_module(family).__path__
    except Exception:
        return ""
    names = [each.name for each in pkgutil.iter_modules(path) if "_v" in each.name]
    bare = name.rpartition("_v")[0] or name
    near = [it for it in names if it.startswith(f"{bare}_v")] or difflib.get_close_matches(name, names, n=3)
    return f". Did you mean {' or '.join(repr(f'{family}.{it}') for it in near)}?" if near else ""
