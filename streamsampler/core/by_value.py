"""Pickle objects of the user's main script by value, where cloudpickle pickles a name or only part of the object.

cloudpickle leaves wrappers such as `functools.lru_cache` to the standard pickler, which writes a name that no worker
can import. Here they are reduced to their function and arguments. Importable objects are pickled by name, as before.

Corrections to cloudpickle's own reduction of functions and classes:

- Functions of one scope share their cells: after a `nonlocal` assignment in one function, the others read its value.
- Classes have their `__slots__` when they are created.
- A class is rebuilt without `__init_subclass__` and its script's metaclass. Both ran when the script defined it, and
  their registrations are pickled, too; a second run would register an empty class.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import enum
import functools
import gc
import io
import pickle
import sys
import types
import typing
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import cloudpickle

__all__ = ["ByValuePickler", "contents_of", "dumps_by_value", "is_importable"]

_PROTOCOL = 5


def dumps_by_value(obj: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle an object as `cloudpickle.dumps` does, wrappers of the main script included."""
    file = io.BytesIO()
    ByValuePickler(file, _PROTOCOL, buffer_callback).dump(obj)
    return file.getvalue()


def is_importable(obj: Any) -> bool:
    """Return whether an object can be pickled by name: an importable module has it under its qualified name."""
    name, qualname = (getattr(obj, attribute, None) or "" for attribute in ("__module__", "__qualname__"))
    module = sys.modules.get(name)
    if module is None or name == "__main__" or _goes_by_value(name):
        return False
    try:
        return functools.reduce(getattr, qualname.split("."), module) is obj
    except AttributeError:
        return False


def _goes_by_value(module: str) -> bool:
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(module == name or module.startswith(f"{name}.") for name in registered)


_Cached: Any = type(functools.cache(lambda: None))


def _reduce_cached(cached: Any) -> Any:
    """Reduce a cached function to its function, the cache's parameters, and its other attributes."""
    if is_importable(cached):
        return NotImplemented
    function = _function_of(cached)
    own = {name: value for name, value in vars(cached).items() if getattr(function, name, None) is not value}
    for name in ("cache_parameters", *(["__wrapped__"] if cached.__wrapped__ is function else [])):
        del own[name]
    return _cached, (function, cached.cache_parameters()), own or None


def _cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _function_of(cached: Any) -> Any:
    """Return the function a cache calls, also behind `functools.wraps`."""
    parts = gc.get_referents(cached)
    if any(part is cached.__wrapped__ for part in parts):
        return cached.__wrapped__
    return [part for part in parts if callable(part) and not isinstance(part, type)][-1]


def _reduce_cached_property(found: Any) -> Any:
    # Without its lock (Python 3.11), which cannot be pickled.
    state = {name: value for name, value in vars(found).items() if name not in ("lock", "func")}
    return type(found), (found.func,), state


def _reduce_variable(variable: contextvars.ContextVar[Any]) -> Any:
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__ != "__main__":
            for name, value in list(vars(module).items()):
                if value is variable:
                    return getattr, (module, name)
    # The default, and the value in the current context.
    return _variable, (variable.name, *(_value_in(context, variable) for context in _contexts()))


def _contexts() -> tuple[contextvars.Context, contextvars.Context]:
    return contextvars.Context(), contextvars.copy_context()


def _value_in(context: contextvars.Context, variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (context.run(variable.get),)
    except LookupError:
        return ()


def _variable(name: str, default: tuple[Any, ...], value: tuple[Any, ...]) -> contextvars.ContextVar[Any]:
    variable = contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)
    if value and not (default and value[0] is default[0]):
        variable.set(value[0])
    return variable


def _reduce_type_name(found: Any) -> Any:
    if is_importable(found):
        return found.__reduce__()
    if isinstance(found, typing.NewType):
        return typing.NewType, (found.__name__, found.__supertype__), {"__module__": found.__module__}
    return type(found), (found.__name__,)


def _reduce_weak_reference(found: Any) -> Any:
    """Reduce a weak reference; after unpickling it is alive only if another object holds its target."""
    if isinstance(found, weakref.WeakMethod):
        return weakref.WeakMethod, (found() or _Gone().method,)
    return weakref.ref, (found() if found() is not None else _Gone(), *filter(None, [found.__callback__]))


class _Gone:
    """An object without owners: a weak reference to it is dead."""

    def method(self) -> None:
        pass


def _reduce_weak_dict(found: Any) -> Any:
    return type(found), (dict(found.items()),)


def contents_of(cell: types.CellType) -> tuple[Any, ...]:
    """Return a cell's value as a tuple, empty for an empty cell."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _reduce_cell(cell: types.CellType) -> Any:
    """Reduce a cell in two steps: its value may be the very function that owns the cell."""
    return types.CellType, (), contents_of(cell), None, None, _fill


def _fill(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    for value in contents:
        cell.cell_contents = value


def _with_own_cells(function: types.FunctionType, reduced: Any) -> Any:
    """Rebuild a function with its own cells, which other functions may share, instead of new cells."""
    make, (*args, cells), *rest = reduced
    return make, (*args, function.__closure__ if isinstance(cells, tuple) else cells), *rest


def _as_it_was_made(cls: type, reduced: Any) -> Any:
    """Rebuild a class with its slots, and without its definition's hooks."""
    if issubclass(cls, enum.Enum):
        return _with_all_members(cls, reduced)
    make, (constructor, name, bases, namespace, *tracking), *rest = reduced
    if "__slots__" in vars(cls) and typing.NamedTuple not in bases:  # a NamedTuple defines its own
        namespace = {**namespace, "__slots__": cls.__slots__}  # type: ignore[attr-defined]
    hooked = [base for base in cls.__mro__[1:] if "__init_subclass__" in vars(base) and not is_importable(base)]
    library = next(base for base in constructor.__mro__ if is_importable(base))
    args = constructor, name, bases, namespace, *tracking
    if not hooked and library is constructor:
        return make, args, *rest
    return _make_class, (make, args, library, hooked), *rest


def _with_all_members(cls: type[enum.Enum], reduced: Any) -> Any:
    """Rebuild an enumeration with aliases and composite members, and with its members' attributes.

    Raises:
        pickle.PicklingError: `__new__` of the class made a member that differs from its value.
    """
    kind = getattr(cls, "_member_type_", object)
    for name, member in cls.__members__.items():
        if kind is not object and kind.__eq__(member, member.value) is not True:
            raise pickle.PicklingError(
                f"{cls.__name__}.{name} is a {kind.__name__} that differs from its value: move {cls.__name__} into a "
                "module that workers can import"
            )
    make, (bases, _, qualname, _, *rest), (attributes, slots), *more, set_state = reduced
    values = {name: member.value for name, member in cls.__members__.items()}
    own = {
        name: {key: value for key, value in vars(member).items() if not (key[0] == key[-1] == "_")}
        for name, member in cls.__members__.items()
    }
    state = {key: value for key, value in attributes.items() if key not in values}, slots
    return make, (bases, cls.__name__, qualname, values, *rest), (set_state, state, own), *more, _set_members


def _set_members(cls: type[enum.Enum], state: Any) -> None:
    set_state, attributes, own = state
    set_state(cls, attributes)
    for name, of_member in own.items():
        there = vars(cls.__members__[name])
        there.update({key: value for key, value in of_member.items() if key not in there})


def _make_class(make: Any, args: Any, library: Any, hooked: list[type]) -> Any:
    """Create a class with cloudpickle's constructor `make`, unless this process has it already.

    Args:
        make: cloudpickle's constructor.
        args: Its arguments.
        library: The metaclass's nearest importable base.
        hooked: Bases with an `__init_subclass__` that ran in the script.
    """
    constructor, name, bases, namespace, tracker, extra = args
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    if known is not None:
        return known
    maker = constructor
    if library is not constructor:
        # `Maker` creates a class as the library's metaclass would; the class itself has the script's metaclass.
        methods = {"__new__": lambda _, *args: library.__new__(constructor, *args), "__prepare__": lambda *_: {}}
        maker = type(constructor)("Maker", (constructor,), methods)
    with contextlib.ExitStack() as silenced:
        for base in hooked:
            silenced.enter_context(_silenced(base))
        return make(maker, name, bases, namespace, tracker, extra)


@contextlib.contextmanager
def _silenced(base: Any) -> Iterator[None]:
    initialiser = vars(base).get("__init_subclass__")
    if initialiser is None:  # this base class is under construction, too
        yield
        return
    base.__init_subclass__ = classmethod(lambda cls, **_: super(base, cls).__init_subclass__())
    try:
        yield
    finally:
        base.__init_subclass__ = initialiser


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    types.CellType: _reduce_cell,
    contextvars.ContextVar: _reduce_variable,
    functools.cached_property: _reduce_cached_property,
    typing.NewType: _reduce_type_name,
    typing.ParamSpec: _reduce_type_name,
    typing.TypeVarTuple: _reduce_type_name,
    weakref.ref: _reduce_weak_reference,
    weakref.WeakMethod: _reduce_weak_reference,
    weakref.WeakKeyDictionary: _reduce_weak_dict,
    weakref.WeakValueDictionary: _reduce_weak_dict,
}


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects of the main script by value; see the module."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {**cloudpickle.Pickler.dispatch_table, **_REDUCERS}, copyreg.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Cached):
            return _reduce_cached(obj)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            _check_name(obj)
        elif isinstance(obj, types.FunctionType):
            return _with_own_cells(obj, reduced)
        elif isinstance(obj, type) and len(reduced) == 6:  # by value, not by name
            return _as_it_was_made(obj, reduced)
        return reduced


def _check_name(obj: Any) -> None:
    """Refuse objects of the main script that are pickled by name: workers could not import them."""
    if getattr(obj, "__module__", None) != "__main__" or type(obj).__module__ == "__main__":
        return
    if type(obj) not in ByValuePickler.dispatch_table and isinstance(name := obj.__reduce_ex__(_PROTOCOL), str):
        kind = type(obj)
        raise pickle.PicklingError(
            f"{name!r} of the main script is a {kind.__module__}.{kind.__qualname__}, which is pickled by its name: "
            "move it into a module that workers can import"
        )
