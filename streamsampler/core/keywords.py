"""Suggest the right keyword when a call receives an unknown keyword."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from streamsampler.core.errors import UnknownArgumentError

Called = TypeVar("Called", bound=Callable[..., Any])

# Synonyms: names in this package, on its command line and in other libraries. Each call has one name of each group.
_SYNONYMS = [
    {"n_timesteps", "num_samples", "n_samples", "num_timesteps", "total_timesteps", "n_steps", "num_steps"},
    {"n_trajectories", "num_trajectories", "n_traj_per_worker", "n_episodes", "num_episodes", "n_eval_episodes"},
    {"n_workers", "num_workers", "n_jobs", "num_env_runners"},
    {"n_envs", "num_envs", "n_environments"},
    {"agent", "agents", "policy", "model"},
    {"env", "envs", "env_id", "environment", "env_fn", "env_fns"},
    {"max_episode_length", "max_path_length", "max_episode_steps", "time_limit"},
    {"env_kwargs", "env_config"},
    {"progress", "progress_bar", "show_progress_bar"},
]
# The fields of `streamsampler.protocol.limits.Limits`, which used to be arguments of their own.
LIMITS = {
    *("construction_timeout", "close_timeout", "restart_window", "max_lifetime_restarts", "max_worker_memory"),
}


def meant(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to end a sentence: the likely name, or all known names."""
    names = list(known)
    if name == "inference":
        return (
            ": only MultiprocessingSampler has it. With Ray, each step of the environments would take some "
            "milliseconds; LocalSampler does the same with worker_class=VecWorker"
        )
    if name in LIMITS and "limits" in names:
        return f": pass limits=Limits({name}=…)"
    synonyms = next((group for group in _SYNONYMS if name in group), set())
    near = [it for it in names if it in synonyms] or difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    if near:
        return f": did you mean {' or '.join(map(repr, near))}?"
    return f"; it has {', '.join(names)}" if names else "; it has none"


def refuse_unknown(name: str, given: Iterable[str], called: Callable[..., Any], also: Iterable[str] = ()) -> None:
    """Raise UnknownArgumentError for keywords that `called` would not accept; its first parameter does not count."""
    parameters = list(inspect.signature(called).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for each in given:
        if each not in known and each not in also:
            raise UnknownArgumentError(f"{name} has no argument {each!r}{meant(each, [*known, *also])}")


def suggesting(*more: Iterable[str]) -> Callable[[Called], Called]:
    """Return a decorator that makes unknown keywords raise `UnknownArgumentError` with a suggestion.

    On a class, it covers the constructor and the public methods, inherited methods of this package included. Functions
    with `**options` are covered only if `more` lists these.
    """

    def decorate(called: Called) -> Called:
        if not isinstance(called, type):
            return cast("Called", _with_suggestions(called, frozenset().union(*more)))
        for cls in called.__mro__:
            if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
                _decorate_class(cls)
        return called

    return decorate


def _decorate_class(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        kind = type(value) if isinstance(value, staticmethod | classmethod) else None
        function = value.__func__ if kind else value
        if (name == "__init__" or not name.startswith("_")) and inspect.isfunction(function):
            checked = _with_suggestions(function, frozenset())
            setattr(cls, name, kind(checked) if kind else checked)


def _with_suggestions(function: Any, more: frozenset[str]) -> Any:
    code = inspect.unwrap(function).__code__
    takes_any = code.co_flags & inspect.CO_VARKEYWORDS
    if hasattr(function, "takes_keywords") or (takes_any and not more):
        return function
    own = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(own) | more

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        if given and not given.keys() <= names:
            wrong = next(name for name in given if name not in names)
            # An inherited constructor goes by the name of the class that is constructed.
            name = type(args[0]).__name__ if function.__name__ == "__init__" and args else function.__name__
            known = [name for name in own if name not in ("self", "cls")] + sorted(more)
            raise UnknownArgumentError(f"{name} has no argument {wrong!r}{meant(wrong, known)}")
        return function(*args, **given)

    checked.takes_keywords = names  # type: ignore[attr-defined]
    return checked
