"""Suites of tasks on the command line: their file, and the agents of the tasks."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamsampler.cli import options as shared
from streamsampler.cli.grouped import contents_of_file, is_from_file, option, options_of, take_options
from streamsampler.cli.values import POSITIVE

if TYPE_CHECKING:
    from streamsampler.cli.environments import Spaces

_KEYS = ("env", "env-kwargs", "num-trajectories", "normalise", "bounds", "agent")
_EXAMPLE = '[tasks.push] with env = "Push-v1"'


@dataclass(frozen=True)
class TaskEntry:
    """A task of a suite's file.

    Attributes:
        env_id: The id of its environment.
        env_kwargs: Arguments for making it.
        n_trajectories: Number of trajectories; None for the number of all tasks.
        normalise: The returns that become the scores 0 and 1; None to leave returns as they are.
        bounds: The least and the largest return; None for the bounds of all tasks.
        agent: The name of its agent; None for the agent of all tasks.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    n_trajectories: int | None
    normalise: list[Any] | None
    bounds: list[Any] | None
    agent: str | None


@dataclass(frozen=True)
class SuiteFile:
    """The file of a suite.

    Attributes:
        path: Its name.
        tasks: The tasks by name.
    """

    path: str
    tasks: dict[str, TaskEntry]

    def n_trajectories(self, ctx: click.Context, of_all: int | None) -> int | dict[str, int] | None:
        """Return the number of trajectories of each task; None if another option gives it.

        An option on the command line overrides the numbers of the file.
        """
        others = ("seeds", "scenarios", "until_halfwidth", "until_decided")
        if any(ctx.params.get(name) is not None and not is_from_file(ctx, name) for name in others):
            return None if of_all is None or is_from_file(ctx, "num_trajectories") else of_all
        own = {name: it.n_trajectories for name, it in self.tasks.items() if it.n_trajectories is not None}
        if not own or (of_all is not None and not is_from_file(ctx, "num_trajectories")):
            return of_all
        lacking = [name for name in self.tasks if name not in own and of_all is None]
        if lacking and ctx.params.get("resume") is not None:  # all numbers are those of the file to resume
            return None
        if lacking:
            raise click.UsageError(
                f"the number of trajectories of {lacking[0]!r} is missing: give num-trajectories to each task of "
                f"{self.path!r}, or "
                "--num-trajectories for all others."
            )
        return {name: own.get(name, of_all or 0) for name in self.tasks}

    def normalise(self) -> dict[str, Any] | None:
        """Return the returns of the scores 0 and 1, by task; None if no task has any."""
        own = {name: it.normalise for name, it in self.tasks.items() if it.normalise is not None}
        return own or None

    def bounds(self, of_all: Any) -> Any:
        """Return the bounds of returns: those of all tasks, or by task if a task has its own; None without bounds."""
        own = {name: it.bounds for name, it in self.tasks.items() if it.bounds is not None}
        return {name: own.get(name, of_all) for name in self.tasks} if own else of_all


def _from_suite(ctx: click.Context, _param: click.Parameter, name: str | None) -> SuiteFile | None:
    """Read a suite's file, with its other keys as options of the command: an option's callback.

    Raises:
        click.BadParameter: The file cannot be read, is no TOML, or has no table of tasks.
    """
    if name is None:
        return None
    found = contents_of_file(name, "TOML", tomllib.loads)
    tasks = found.pop("tasks", None)
    if not isinstance(tasks, Mapping) or not tasks:
        raise click.BadParameter(f"{name!r} has no tasks: write a table for each,  {_EXAMPLE}")
    take_options(ctx, name, found)
    entries: dict[str, TaskEntry] = {}
    for task, said in tasks.items():
        entries |= _entries(f"{name!r}: [tasks.{task}]", task, said)
    return SuiteFile(name, entries)


def _entries(where: str, name: str, said: Any) -> dict[str, TaskEntry]:
    """Return the task of a table, or all tasks of a group's tables."""
    if not isinstance(said, Mapping):
        raise click.BadParameter(f"{where} should be a table, {_EXAMPLE}, but is {said!r}")
    inner = {key: value for key, value in said.items() if key not in _KEYS and isinstance(value, Mapping)}
    if inner and "env" not in said and len(inner) == len(said):
        found: dict[str, TaskEntry] = {}
        for key, value in inner.items():
            found |= _entries(f"{where.removesuffix(']')}.{key}]", f"{name}/{key}", value)
        return found
    known = {key.replace("_", "-"): value for key, value in said.items()}
    if unknown := next((key for key in known if key not in _KEYS), None):
        near = difflib.get_close_matches(unknown, _KEYS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"A task has {', '.join(_KEYS)}."
        raise click.BadParameter(f"{where} has {unknown!r}, which no task has. {hint}")
    if "env" not in known:
        raise click.BadParameter(f"{where} has no env: give its environment's id")
    entry = TaskEntry(
        _value(where, known, "env", str, "a text"),
        _value(where, known, "env-kwargs", Mapping, "a table") or {},
        _value(where, known, "num-trajectories", int, "a whole number"),
        _value(where, known, "normalise", list, "a list of two numbers"),
        _value(where, known, "bounds", list, "a list of two numbers"),
        _value(where, known, "agent", str, "a text"),
    )
    return {name: entry}


def _value(where: str, said: Mapping[str, Any], key: str, kind: type, shown: str) -> Any:
    value = said.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise click.BadParameter(f"{where}: {key} should be {shown}, but is {value!r}")
    return value


SUITE = options_of(
    option(
        shared.RUNS, "--suite", callback=_from_suite, is_eager=True, metavar="FILE",
        help="Tasks in place of ENV_ID: a TOML file with a table per task, [tasks.push], with 'env' and optionally "
             "'env-kwargs', 'num-trajectories', 'normalise' (the returns that become the scores 0 and 1), 'bounds' "
        "and 'agent'. Its other keys are options of this command."),
    option(shared.RUNS, "--task", "tasks", multiple=True, metavar="NAME",
        help="With --suite: only this task, as in a job array; may be repeated. 'streamsampler merge' makes the file "
             "of a whole run from the files of all tasks, byte for byte."),
    option(shared.WHERE, "--open-envs", type=POSITIVE, metavar="N", show_default="2",
        help="With --suite: largest number of tasks with an open environment in each process."),
)  # fmt: skip
"""The options of a suite."""

TABLE = option(
    "Output", "--table", type=click.Choice(["md", "csv"]),
    help="With --suite: print only a table, in Markdown or as comma-separated values.",
)  # fmt: skip


def check_tasks(env_id: str | None, options: Mapping[str, Any]) -> None:
    """Check that either an environment or a suite is given, and options of suites only with a suite.

    Raises:
        click.UsageError: Neither is given, or both; or an option needs a suite.
    """
    if (options["suite"] is None) == (env_id is None):
        both = "ENV_ID and --suite exclude each other: a suite's file names the environments."
        raise click.UsageError("Missing argument 'ENV_ID', or --suite FILE." if env_id is None else both)
    given = [name for name in ("tasks", "open_envs", "table") if options.get(name)]
    if options["suite"] is None and given:
        shown = {"tasks": "--task"}.get(given[0], f"--{given[0].replace('_', '-')}")
        raise click.UsageError(f"{shown} needs a suite of tasks: give --suite FILE, too.")


def environments_of(suite: SuiteFile, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Spaces]]:
    """Make the environments of the tasks to run; return them and their spaces by task.

    Raises:
        UsageError: No environment has this id; names the task.
        click.ClickException: Making an environment fails.
    """
    from streamsampler.cli.environments import environment_of
    from streamsampler.evaluation.suites.suite_arguments import with_task

    envs: dict[str, Any] = {}
    spaces: dict[str, Spaces] = {}
    for name, task in suite.tasks.items():
        envs[name] = task.env_id
        if not options["tasks"] or name in options["tasks"]:
            kwargs = {**options["env_kwargs"], **task.env_kwargs}
            envs[name], spaces[name] = with_task(name, environment_of, task.env_id, kwargs)
    return envs, spaces


def agents_of(suite: SuiteFile, options: Mapping[str, Any], spaces: Mapping[str, Spaces]) -> Callable[[str], Any]:
    """Return a function from a task's name to its agent, for `evaluate`.

    Args:
        suite: The suite.
        options: The options of the command.
        spaces: The spaces of the tasks to run.

    Raises:
        UsageError: No such agent exists; names the task.
    """
    from streamsampler.cli.agents import is_model_file, load_agents
    from streamsampler.evaluation.suites.suite_arguments import with_task

    agents, models = dict[str, Any](), dict[str, Any]()
    for name, of_task in spaces.items():
        own = suite.tasks[name].agent
        said = options if own is None else {**options, "agent": own, "policies": None}
        if said["agent"] in models:
            agents[name] = models[said["agent"]]
            continue
        agents[name] = with_task(name, partial(load_agents, said, of_task, predicting=True))
        if is_model_file(said["agent"]):
            models[said["agent"]] = agents[name]  # a file is read once; the library checks the spaces of each task
    return lambda task: agents[task]


def agents_to_compare(
    suite: SuiteFile, options: Mapping[str, Any], spaces: Mapping[str, Spaces]
) -> list[Callable[[str], Any]]:
    """Return a function from a task's name to its agent, for each agent to compare; see `agents_of`."""
    from streamsampler.cli.agents import load_each
    from streamsampler.evaluation.suites.suite_arguments import with_task

    if own := next((name for name, task in suite.tasks.items() if task.agent is not None), None):
        raise click.UsageError(f"{suite.path!r}: [tasks.{own}] has an agent, but --agent names the agents to compare.")
    names = options["agents"]
    of_tasks: dict[str, list[Any]] = {}
    for name, of_task in spaces.items():
        load = partial(
            load_each, names, options["vec_normalize"], [of_task] * len(names), options["deterministic"],
            predicting=True,
        )  # fmt: skip
        of_tasks[name] = with_task(name, load)
    return [lambda task, position=position: of_tasks[task][position] for position in range(len(names))]  # type: ignore[misc]
