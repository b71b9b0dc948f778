"""Check the arguments of a suite: its tasks, and values that may differ between tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from streamsampler.core.errors import UsageError
from streamsampler.environments.ids import find_spec, is_pettingzoo_id
from streamsampler.evaluation.agents import refuse_several_tasks
from streamsampler.evaluation.suites.suite_evaluation import Scale, group_of
from streamsampler.samplers.per_worker import PerWorker

Value = TypeVar("Value")


def checked_suite(envs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the environments of a suite by name.

    Raises:
        UsageError: The suite is empty, a name is invalid, or an environment is missing or a list.
        UnknownEnvironmentError: No environment has the given id; names the task.
    """
    if not envs:
        raise UsageError('the suite is empty: give an environment for each task, {"push": env, "reach": "Reach-v1"}')
    for name, env in envs.items():
        _check_name(name)
        if env is None or isinstance(env, list | tuple | PerWorker | Mapping):
            raise UsageError(
                f"the task {name!r} has {'no environment' if env is None else f'a {type(env).__name__}'}: give each "
                "task a single environment, an id or a callable that makes one"
            )
        with_task(name, _check_id, env)
    groups = {group: name for name in envs for group in _groups_of(name)}
    if both := next((name for name in envs if name in groups), None):
        raise UsageError(
            f"{both!r} is a task, but {groups[both]!r} makes it a group of tasks, too: give the task another name"
        )
    return dict(envs)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise UsageError(f"the names of tasks are strings, and {name!r} is of type {type(name).__name__}")
    parts = name.split("/")
    if not all(part and part == part.strip() and part.isprintable() for part in parts):
        raise UsageError(
            f"{name!r} cannot name a task: a name has no blanks at its ends, no line breaks, and a slash only between "
            "a group's name and a task's, as in 'manipulation/push'"
        )


def _groups_of(name: str) -> Iterable[str]:
    while name := group_of(name):
        yield name


def _check_id(env: Any) -> None:
    refuse_several_tasks(env)
    if isinstance(env, str) and not is_pettingzoo_id(env):
        find_spec(env)


def with_task(name: str, called: Callable[..., Value], *args: Any) -> Value:
    """Call a function, and name the task in its usage errors.

    Raises:
        UsageError: As the function raises it, or a class derived from it.
    """
    try:
        return called(*args)
    except UsageError as error:
        raise type(error)(f"task {name!r}: {error}") from error.__cause__


def by_task(argument: str, given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a value for each task.

    Raises:
        UsageError: The dict lacks a task, or has an unknown task.
    """
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    if unknown := [name for name in given if name not in names]:
        raise UsageError(f"{argument} has {unknown[0]!r}, which is no task; the tasks are {', '.join(names)}")
    if missing := [name for name in names if name not in given]:
        raise UsageError(
            f"{argument} lacks {missing[0]!r}: its keys must be the names of all tasks, {', '.join(names)}"
        )
    return {name: given[name] for name in names}


def checked_normalise(given: Any, names: Sequence[str]) -> dict[str, Scale] | None:
    """Return the returns of the scores 0 and 1, by task; None without normalisation.

    Raises:
        UsageError: A task has no pair of different finite numbers.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(
            'normalise must be a dict with the returns of the scores 0 and 1 of each task, {"push": (random, '
            "reference)}; got "
            f"{given!r:.60}"
        )
    return {name: _scale(name, it) for name, it in by_task("normalise", given, names).items()}


def _scale(name: str, given: Any) -> Scale:
    where = f"normalise[{name!r}]"
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2 or not all(map(_is_number, given)):
        raise UsageError(f"{where} must be two finite numbers, the returns of the scores 0 and 1, but is {given!r:.60}")
    low, high = map(float, given)
    if low == high:
        raise UsageError(
            f"{where} is ({low:g}, {high:g}): the returns of the scores 0 and 1 are equal; give two different returns"
        )
    return low, high


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
