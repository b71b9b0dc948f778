"""Apply the settings of the sampler's process in its workers, so that batches do not depend on the process.

`SETTINGS` change the results of environments and agents: torch's default dtype, NumPy's error state, the precision of
decimals; environment variables, working directory and `sys.path` come on top. A worker's own changes stay: after a
change in the sampler's process, workers set only the changed setting again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple, Self

_LOG = logging.getLogger("streamsampler")
_HASH_SEED = "PYTHONHASHSEED"


def hash_seed() -> str:
    """Return the hash seed of workers: a numeric `PYTHONHASHSEED` of this process, otherwise "0".

    With random hash seeds, the order of a set of strings would depend on the worker.
    """
    value = os.environ.get(_HASH_SEED, "")
    return value if value.isdecimal() else "0"


def working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


class Setting(NamedTuple):
    """A setting of a process that changes the results of environments and agents.

    Attributes:
        name: Its name in messages.
        module: Its module; the setting is ignored unless the sampler's process has loaded it.
        read: Returns the value from the module, picklable and comparable.
        apply: Sets the value in the module.
        default: A fresh process's value, for which a worker need not load the module.
    """

    name: str
    module: str
    read: Callable[[Any], Any]
    apply: Callable[[Any, Any], object]
    default: Any = None


def _decimal_context(decimal: Any) -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = tuple(sorted(signal.__name__ for signal, is_set in context.traps.items() if is_set))
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps


def _set_decimal_context(decimal: Any, value: tuple[Any, ...]) -> None:
    *numbers, traps = value
    decimal.setcontext(decimal.Context(*numbers, flags=[], traps=[getattr(decimal, name) for name in traps]))


def _warning_filters(warnings: Any) -> tuple[Any, ...]:
    return tuple((action, text, _named(kind), module, line) for action, text, kind, module, line in warnings.filters)


def _set_warning_filters(warnings: Any, filters: tuple[Any, ...]) -> None:
    warnings.resetwarnings()  # also clears the cache of decisions by the old filters
    for action, text, kind, module, line in filters:
        if (category := _found(kind) if isinstance(kind, tuple) else kind) is not None:
            warnings.filters.append((action, text, category, module, line))


def _named(category: type) -> Any:
    """Return a warning class as the names of module and class, or itself if a worker cannot find it by name.

    Libraries filter their own warnings on import; for the classes, workers would have to import every library of the
    script.
    """
    names = category.__module__, category.__qualname__
    return names if names[0] != "__main__" and _found(names) is category else category


def _found(names: tuple[str, str]) -> Any:
    """Return a class by its names; None if its module is not loaded, so that no warning can have this class."""
    module, path = names
    return functools.reduce(lambda it, name: getattr(it, name, None), path.split("."), sys.modules.get(module))


def _torch_determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_torch_determinism(torch: Any, value: tuple[bool, bool]) -> None:
    if value != _torch_determinism(torch):  # the call imports torch's compiler: two seconds
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _keep_cpu(torch: Any, _: str) -> None:
    """Reset the default device to the CPU, where agents' modules are."""
    if str(torch.get_default_device()) != _CPU:
        torch.set_default_device(None)  # None means the CPU, at no cost per call


_CPU = "cpu"
TORCH_DEVICE = "torch's default device"

SETTINGS = (
    Setting("NumPy's error state", "numpy", lambda numpy: numpy.geterr(), lambda numpy, value: numpy.seterr(**value)),
    Setting("warning filters", "warnings", _warning_filters, _set_warning_filters),
    Setting("decimal context", "decimal", _decimal_context, _set_decimal_context),
    Setting(
        "locale", "locale", lambda locale: locale.setlocale(locale.LC_ALL),
        lambda locale, value: locale.setlocale(locale.LC_ALL, value),
    ),
    Setting("recursion limit", "sys", lambda sys: sys.getrecursionlimit(), lambda sys, n: sys.setrecursionlimit(n)),
    Setting(
        "torch's default dtype", "torch", lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda torch, name: torch.set_default_dtype(getattr(torch, name)), "float32",
    ),
    Setting(
        "torch's precision of float32 products", "torch", lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, value: torch.set_float32_matmul_precision(value), "highest",
    ),
    Setting(
        "torch's deterministic algorithms", "torch", _torch_determinism, _set_torch_determinism, (False, False),
    ),
    Setting(TORCH_DEVICE, "torch", lambda torch: str(torch.get_default_device()), _keep_cpu, _CPU),
    Setting(
        "jax_enable_x64", "jax", lambda jax: bool(jax.config.jax_enable_x64),
        lambda jax, value: jax.config.update("jax_enable_x64", value), False,
    ),
)  # fmt: skip
"""The settings shared with workers. A new setting needs only an entry here."""


_last_environ: tuple[Mapping[Any, Any], Mapping[str, str]] = {}, {}  # the operating system's bytes, and decoded


def _environ_here() -> Mapping[str, str]:
    """Return the environment variables with the hash seed, the same mapping while none has changed.

    Decoding all of them would cost a tenth of a sampler's call.
    """
    global _last_environ
    encoded = getattr(os.environ, "_data", None)
    if encoded is None or encoded != _last_environ[0]:
        _last_environ = dict(encoded or {}), {**os.environ, _HASH_SEED: hash_seed()}
    return _last_environ[1]


@dataclass(frozen=True)
class ProcessSettings:
    """The settings of a process.

    `cwd` is "/" if the working directory was removed; `values` has those of `SETTINGS` whose modules are loaded, by
    name.
    """

    environ: Mapping[str, str]
    path: tuple[str, ...]
    cwd: str
    values: Mapping[str, Any]

    @classmethod
    def of_this_process(cls) -> Self:
        """Read the settings as the calling thread sees them."""
        values = {}
        for setting in SETTINGS:
            if (module := sys.modules.get(setting.module)) is not None:
                with contextlib.suppress(Exception):  # the module may be partly loaded, or lack the setting
                    values[setting.name] = setting.read(module)
        return cls(_environ_here(), tuple(sys.path), working_directory() or "/", values)

    @property
    def torch_device(self) -> str:
        return str(self.values.get(TORCH_DEVICE, _CPU))

    def without_values(self) -> ProcessSettings:
        """Return a copy with only environment variables and folders, which the standard pickler can pickle."""
        return replace(self, values={})

    def apply_values(self, before: Mapping[str, Any]) -> None:
        """Set the values that differ from those applied before."""
        for setting in SETTINGS:
            if setting.name in self.values and before.get(setting.name) != self.values[setting.name]:
                _apply(setting, self.values[setting.name])

    def apply_folders(self, before: ProcessSettings | None) -> None:
        """Set the environment variables and folders that differ from those applied before (None for the first time)."""
        if before is None or before.environ != self.environ:
            self._apply_environ(os.environ if before is None else before.environ)
        if before is None:
            sys.path[:] = self.path
        elif before.path != self.path:
            sys.path[:] = [*self.path, *(entry for entry in sys.path if entry not in {*before.path, *self.path})]
        if before is None or before.cwd != self.cwd:
            for directory in ("/", self.cwd):  # stays in "/" if the other was removed meanwhile
                with contextlib.suppress(OSError):
                    os.chdir(directory)

    def _apply_environ(self, before: Mapping[str, str]) -> None:
        zone = os.environ.get("TZ")
        for name in before.keys() - self.environ.keys():
            os.environ.pop(name, None)  # a fork server may have started before the variable was deleted
        os.environ.update({name: value for name, value in self.environ.items() if before.get(name) != value})
        if os.environ.get("TZ") != zone and hasattr(time, "tzset"):
            time.tzset()


def _apply(setting: Setting, value: Any) -> None:
    module = sys.modules.get(setting.module)
    if module is None and value == setting.default:
        return
    try:
        module = module or _imported(setting.module)
        if module is not None:
            setting.apply(module, value)
    except Exception as error:
        _LOG.warning(
            "%s of the sampler's process, %r, cannot be set in this worker, so its results may differ: %s: %s",
            setting.name, value, type(error).__name__, error,
        )  # fmt: skip


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:  # on another machine; neither agent nor environment can need the module
        return None


class SettingsInForce:
    """The settings that this process, a worker, has received from its sampler's process.

    Args:
        portable: The sampler's process may be on another machine, with other variables and folders.
    """

    def __init__(self, *, portable: bool = False) -> None:
        self._portable = portable
        self._given: ProcessSettings | None = None

    def apply_folders(self, settings: ProcessSettings) -> None:
        if not self._portable:
            settings.apply_folders(self._given)
            self._given = (
                settings.without_values() if self._given is None else replace(settings, values=self._given.values)
            )

    def apply(self, settings: ProcessSettings) -> None:
        self.apply_folders(settings)
        settings.apply_values({} if self._given is None else self._given.values)
        self._given = settings

    def loaded(self, n_modules: int) -> None:
        """Set all settings again if imports have changed them; `n_modules` is the number of modules before."""
        if self._given is not None and len(sys.modules) != n_modules:
            self._given.apply_values({})
