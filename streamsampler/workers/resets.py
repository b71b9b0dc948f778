"""Check and store a call's seeds, reset options and tasks, and reset environments with them.

`Resets` travels to workers with a `Start`. `EpisodeCheckpoints` records the environments of fragments, to restore them.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streamsampler.core.awaiting import then
from streamsampler.core.errors import UsageError, positive
from streamsampler.core.seeding import Indices, TrajectorySeeds
from streamsampler.data import trees
from streamsampler.data.recorder import EpisodeState, Rollouts
from streamsampler.data.trees import Tree
from streamsampler.environments.parameters import SetParameters, drawn_parameters, parameter_setter, with_info
from streamsampler.environments.updates import AnyEnv, EnvUpdate, task_setter
from streamsampler.protocol.task_sections import NO_SECTIONS, Sections

Options: TypeAlias = Mapping[str, Any]
ResetOptions: TypeAlias = Options | Sequence[Options | None]


class EpisodeCheckpoint(NamedTuple):
    """Holds the state of an environment of fragments, for a worker which restores it.

    Attributes:
        episode: The number of the suspended episode, or else of the next.
        state: The suspended episode's state, or None.
        actions: Its actions so far; None if no longer stored.
        agent: See `EnvFragment.agent`.
        options: Its reset options.
        agent_is_replaced: Whether `state` contains the memory of an older agent: the new agent is reset.
    """

    episode: int
    state: EpisodeState | None
    actions: Tree | None
    agent: bytes | None = None
    options: dict[str, Any] | None = None
    agent_is_replaced: bool = False


@dataclass(frozen=True)
class FragmentOrder:
    """Holds the arguments of a call for fragments.

    Attributes:
        n_timesteps: Number of timesteps in each environment.
        n_envs: Number of environments of all workers together; groups of them belong to the workers in turn.
        base_version: The agent version of the environments' start. Episode k of environment e has the seed of
            trajectory `e + k * n_envs` of this version.
        standings: The states of environments to restore; all others are new.
        restore_limit: Longer episodes are not restored.
    """

    n_timesteps: int
    n_envs: int
    base_version: int
    standings: Mapping[int, EpisodeCheckpoint] = field(default_factory=dict)
    restore_limit: int = 100_000


@dataclass(frozen=True)
class Resets:
    """Holds a call's seeds, reset options and tasks by trajectory index, or its order of fragments.

    Attributes:
        options: Common options, a tuple with each trajectory's own, or None.
        tasks: Task values set before resets, each for `n_of_task` consecutive trajectories.
        version: The agent version if tickets use another number (see `Ticket`), else None.
        first: The index of the call's first trajectory, with the first seed, options and task.
        sections: Which indices belong to which task where workers run several tasks; the other attributes then use each
            task's own indices.
    """

    seeds: tuple[int, ...] | None = None
    options: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None = None
    fragments: FragmentOrder | None = None
    tasks: tuple[Any, ...] | None = None
    n_of_task: int = 1
    version: int | None = None
    first: int = 0
    sections: Sections = NO_SECTIONS

    def seeds_of(self, derived: TrajectorySeeds, indices: Indices) -> list[int]:
        """Return the user's seeds of trajectories, or the sampler's own where none is given, as in a check."""
        if self.fragments is not None:
            return TrajectorySeeds(derived.seed, self.fragments.base_version).of(indices)
        if self.version is not None and self.version != derived.agent_version:
            derived = TrajectorySeeds(derived.seed, self.version)
        if self.seeds is None:
            return derived.of(indices)
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        given = range(self.first, self.first + len(self.seeds))
        return [self.seeds[index - self.first] if index in given else derived[index] for index in indices]

    def options_of(self, index: int) -> dict[str, Any] | None:
        """Return a copy of a trajectory's options, which its environment may modify."""
        if isinstance(self.options, tuple):
            return copy.deepcopy(self.options[(index - self.first) % len(self.options)])
        return copy.deepcopy(self.options)

    def task_index(self, index: int) -> int:
        assert self.tasks is not None
        return (index - self.first) // self.n_of_task % len(self.tasks)

    @property
    def says_only_version(self) -> bool:
        return self.version is not None and self.seeds is None and self.options is None

    @property
    def changes_resets(self) -> bool:
        return self.options is not None or self.tasks is not None

    @property
    def kind_of_tasks(self) -> Hashable:
        """The part of an environment changed by tasks: tasks of the same kind overwrite each other's changes."""
        if self.tasks is None:
            return None
        first = self.tasks[0]
        return frozenset(first.parameters) if isinstance(first, SetParameters) else "task"

    @property
    def is_fixed(self) -> bool:
        return self.seeds is not None or isinstance(self.options, tuple) or self.tasks is not None

    @property
    def n_replaceable(self) -> int | None:
        """Number of consecutive interchangeable trajectories, for replacing dropped ones; None if all differ."""
        is_one_of_a_kind = self.seeds is not None or isinstance(self.options, tuple)
        return None if self.tasks is None or is_one_of_a_kind else self.n_of_task

    @property
    def vector_arguments(self) -> dict[str, Any]:
        """Keyword arguments for a vector environment's `reset`, or an error if trajectories need different resets."""
        if self.tasks is not None:
            raise UsageError(
                "a vector environment takes no tasks: pass an environment which is not vectorised; VecWorker makes "
                "several of it"
            )
        if isinstance(self.options, tuple):
            raise UsageError(
                "a vector environment takes one dict of reset options for all its environments: pass one dict, or an "
                "environment which is not vectorised; VecWorker makes several of it"
            )
        if self.options is None:
            return {}
        if "reset_mask" in self.options:
            raise UsageError('a vector environment takes no "reset_mask" in reset_options: the worker sets it')
        return {"options": self.options_of(0)}


def given_resets(n_trajectories: Any, seeds: Any, reset_options: Any, tasks: Any = None) -> tuple[int, Resets | None]:
    """Check the arguments of `obtain_trajectories`; return the number of trajectories and their resets.

    With tasks, `n_trajectories` is for each task; None stands for the number of seeds.
    """
    if tasks is not None:
        tasks = _checked_tasks(tasks)
        n_of_task = positive("n_trajectories (of each task)", n_trajectories)
        n, given = given_resets(n_of_task * len(tasks), seeds, reset_options)
        return n, replace(given or Resets(), tasks=tasks, n_of_task=n_of_task)
    if seeds is None and n_trajectories is None:
        raise UsageError("n_trajectories must be an integer, got None: pass a number of trajectories, or seeds=[…]")
    checked = None if seeds is None else _checked_seeds(seeds)
    if n_trajectories is None and checked is not None:
        n_trajectories = len(checked)
    n = positive("n_trajectories", n_trajectories)
    if checked is not None and len(checked) != n:
        raise UsageError(f"n_trajectories is {n}, but seeds has {len(checked)} items")
    options = _checked_options(reset_options, n)
    return n, None if checked is None and options is None else Resets(checked, options)


def tasks_in_turn(tasks: Any, given: Resets | None) -> Resets | None:
    return given if tasks is None else replace(given or Resets(), tasks=_checked_tasks(tasks))


def tasks_as_recorded(tasks: Any, numbers: Mapping[int, int], given: Resets | None) -> Resets:
    """Return the resets of a recorded call from its trajectories' task numbers."""
    checked, resets = _checked_tasks(tasks), given or Resets()
    for first in {0, min(numbers)}:
        for n_of_task in range(1, max(numbers) + 2):
            found = replace(resets, tasks=checked, n_of_task=n_of_task, first=first)
            if all(found.task_index(index) == number for index, number in numbers.items()):
                return found
    raise UsageError(
        f"the {len(checked)} tasks do not match those of the recorded trajectories: pass all tasks of their call, in "
        "the same order"
    )


def streamed_resets(
    first: int, n_trajectories: Any, seeds: Any, reset_options: Any, tasks: Any = None
) -> tuple[int | None, Resets | None]:
    """Check a stream's arguments; return its number of trajectories from `first` on, or None, and their resets.

    Seeds, options and tasks cover the trajectories from index 0 on.
    """
    if tasks is not None:
        of_all, resets = given_resets(n_trajectories, seeds, reset_options, tasks)
        if first >= of_all:
            raise UsageError(
                f"trajectory {first} does not exist: the tasks have {of_all} trajectories, numbered from 0"
            )
        return of_all - first, resets
    n = None if n_trajectories is None else positive("n_trajectories", n_trajectories)
    is_list = isinstance(reset_options, Sequence) and not isinstance(reset_options, str | bytes)
    if seeds is None and not is_list:
        return n, common_resets(reset_options)
    total = None if seeds is not None else max(1, len(reset_options))
    total, resets = given_resets(total, seeds, reset_options)
    if first >= total or (n is not None and first + n > total):
        wanted = f"trajectory {first}" if n is None else f"trajectories {first} to {first + n - 1}"
        raise UsageError(f"no seeds or reset_options for {wanted}: they cover {total} trajectories, numbered from 0")
    return total - first if n is None else n, resets


def common_resets(reset_options: Any) -> Resets | None:
    """Return the resets of a call with at most a single dict of options for all trajectories."""
    if reset_options is None:
        return None
    if not isinstance(reset_options, Mapping):
        raise UsageError(
            f"reset_options must be a dict for all trajectories, got {_shown(reset_options)}; obtain_trajectories "
            "also accepts a list with one for each"
        )
    return Resets(options=dict(reset_options))


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, str | bytes) or not hasattr(seeds, "__iter__"):
        raise UsageError(f"seeds must be a sequence of integers, one for each trajectory, got {_shown(seeds)}")
    checked = tuple(positive(f"seeds[{position}]", seed, least=0) for position, seed in enumerate(seeds))
    if not checked:
        raise UsageError("seeds is empty: pass at least one seed")
    return checked


def _checked_tasks(tasks: Any) -> tuple[Any, ...]:
    if not isinstance(tasks, Sequence | np.ndarray) or isinstance(tasks, str | bytes):
        raise UsageError(
            f"tasks must be a list of task values (see SetTaskUpdate) or of SetParameters, got {_shown(tasks)}"
        )
    if not len(tasks):
        raise UsageError("tasks is empty: pass at least one task, or leave tasks out to use the environment unchanged")
    names = {frozenset(task.parameters) if isinstance(task, SetParameters) else None for task in tasks}
    if len(names) > 1:
        raise UsageError(
            "tasks must be of one kind: all of them SetParameters with the same names, or none. Otherwise a parameter "
            "set by one task would remain in the environment during the next"
        )
    for position, task in enumerate(tasks):
        if isinstance(task, EnvUpdate) and not (isinstance(task, SetParameters) and not task.has_environment):
            raise UsageError(
                f"tasks[{position}] is {_shown(task)}: pass the task value itself, or SetParameters without an "
                "environment; pass a new environment as env_update"
            )
    return tuple(tasks)


def _checked_options(options: Any, n: int) -> dict[str, Any] | tuple[dict[str, Any] | None, ...] | None:
    if options is None:
        return None
    if isinstance(options, Mapping):
        return dict(options)
    if not isinstance(options, Sequence) or isinstance(options, str | bytes):
        raise UsageError(f"reset_options must be a dict, or a list with one for each trajectory, got {_shown(options)}")
    for position, each in enumerate(options):
        if each is not None and not isinstance(each, Mapping):
            raise UsageError(f"reset_options[{position}] must be a dict or None, got {_shown(each)}")
    if len(options) != n:
        raise UsageError(f"there are {n} trajectories, but reset_options has {len(options)} items")
    return tuple(None if each is None else dict(each) for each in options)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__qualname__}"


TASK_INDEX = "task_index"
_ADVICE = "rename it with a wrapper; with tasks=[…] the sampler writes the number of the task to this info"


def reset_function(env: AnyEnv, resets: Resets | None, indices: Iterable[int]) -> Callable[..., Any]:
    if resets is None or not resets.changes_resets:
        return env.reset
    coming = iter(indices)
    return lambda seed: reset_one(env, resets, next(coming), seed)


@dataclass(frozen=True, slots=True)
class ResetOrder:
    """Holds the arguments of a trajectory's reset. The environment may modify `options` and `task`."""

    index: int
    seed: int
    options: dict[str, Any] | None = None
    task: Any = None
    task_number: int | None = None


def order_of(index: int, seed: int, resets: Resets | None) -> ResetOrder:
    if resets is None or not resets.changes_resets:
        return ResetOrder(index, seed)
    if resets.tasks is None:
        return ResetOrder(index, seed, resets.options_of(index))
    number = resets.task_index(index)
    return ResetOrder(index, seed, resets.options_of(index), copy.deepcopy(resets.tasks[number]), number)


def reset_one(env: AnyEnv, resets: Resets | None, index: int, seed: int) -> Any:
    """Reset an environment for a trajectory; see `carry_out`."""
    if resets is None or not resets.changes_resets:
        return env.reset(seed=seed)
    return carry_out(env, order_of(index, seed, resets))


def carry_out(env: AnyEnv, order: ResetOrder) -> Any:
    """Reset an environment for a trajectory: set its task first, and pass its options.

    Raises:
        UsageError: The environment does not accept the task.
    """
    reset = env.reset if order.options is None else partial(env.reset, options=order.options)
    if order.task_number is None:
        return reset(seed=order.seed)
    if (call_on_thread := getattr(env, "call_on_thread", None)) is not None:  # `ThreadedEnv`
        return _carried_out(call_on_thread(partial(_set_task, order)), reset, order)
    drawn = _set_task(order, env)
    return then(reset(seed=order.seed), lambda result: _with_task(result, order, drawn))


async def _carried_out(setting: Awaitable[Any], reset: Callable[..., Any], order: ResetOrder) -> Any:
    drawn = await setting
    return _with_task(await reset(seed=order.seed), order, drawn)


def _set_task(order: ResetOrder, env: AnyEnv) -> Any:
    task = order.task
    if isinstance(task, SetParameters):
        if getattr(env, "has_wrapper_attr", lambda _: False)("parameters_in_force"):
            raise UsageError(
                "tasks=[SetParameters(…), …] would be overridden by the SetParameters already in force: put all "
                "parameters into each task, and first replace the environment with env_update="
            )
        drawn = drawn_parameters(task.parameters, order.seed)
        parameter_setter(env, task.parameters)(drawn)
        return drawn
    task_setter(env)(task)
    return None


def _with_task(result: Any, order: ResetOrder, drawn: Any) -> Any:
    if drawn is not None:
        result = with_info(result, order.task.info_key, drawn, "pass SetParameters(…, info_key=…) another name")
    return with_info(result, TASK_INDEX, order.task_number, _ADVICE)


class EpisodeCheckpoints:
    """Holds each environment's state after its last reported fragment, and the actions of its suspended episode.

    With `agents_stay`, agents survive the loss of environments: actions are then stored even if agents are not
    restorable.
    """

    def __init__(self, *, agents_stay: bool = False) -> None:
        self._agents_stay = agents_stay
        self._standings: dict[int, EpisodeCheckpoint] = {}
        self._actions: dict[int, list[Tree]] = {}  # of the suspended episodes

    def known(self, numbers: Container[int]) -> dict[int, EpisodeCheckpoint]:
        return {
            number: standing._replace(actions=self.actions_of(number))
            for number, standing in self._standings.items()
            if number in numbers
        }

    def put(self, standings: Mapping[int, EpisodeCheckpoint]) -> None:
        for number, standing in standings.items():
            self._standings[number] = standing._replace(actions=None, agent_is_replaced=False)
            self._actions.pop(number, None)
            if standing.actions is not None:
                self._actions[number] = [standing.actions]

    def episode_of(self, number: int) -> int:
        standing = self._standings.get(number)
        return -1 if standing is None or standing.state is None else standing.episode

    def actions_of(self, number: int) -> Tree | None:
        if number not in self._actions:
            return None
        self._actions[number] = [trees.concatenate(self._actions[number])]
        return self._actions[number][0]

    def record(self, rollouts: Rollouts, options: dict[str, Any] | None, restore_limit: int) -> None:
        """Record the states of environments after a fragment, without the actions of very long episodes."""
        stop, lengths = 0, rollouts.lengths.tolist()
        ends = list(accumulate(lengths))
        for fragment in rollouts.fragments:
            number, state, stop = fragment.number, fragment.state, stop + fragment.n_episodes
            began_before = fragment.continued and fragment.n_episodes == 1
            if not began_before:
                self._actions.pop(number, None)
            last = fragment.first + fragment.n_episodes
            if state is None:
                self._actions.pop(number, None)
                self._standings[number] = EpisodeCheckpoint(last, None, None, fragment.agent)
                continue
            its_options = self._standings[number].options if began_before else options
            self._standings[number] = EpisodeCheckpoint(
                last - 1, state._replace(actions=None), None, fragment.agent, its_options
            )
            if state.length > restore_limit or not (state.restorable or self._agents_stay):
                self._actions.pop(number, None)
                continue
            length = lengths[stop - 1]
            if length == state.length or number in self._actions:
                rows = trees.take(rollouts.actions, slice(ends[stop - 1] - length, ends[stop - 1]))
                if state.actions is not None:
                    rows = trees.object_array(state.actions)
                kept = rows.copy() if rows.__class__ is np.ndarray else trees.map_tree(np.copy, rows)
                self._actions.setdefault(number, []).append(trees.owned(kept))
