"""What samplers can do, one line for each: `LIVES` of samplers, and what each of their calls is to show.

A life is one sampler with its options; the names of its calls are capabilities. `test_scenarios` lets each sampler
live in this process, in processes and in others, and wants the same to be seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import gymnasium
import numpy as np

from streamsampler import PerWorker, SetParameters, SetTaskUpdate, VecWorker
from streamsampler.environments import Choice, Uniform
from streamsampler.filters import RunningNorm, RunningReturnNorm
from streamsampler.testing import Fault, Faults
from tests.scripted.agents import Batched, Stamping
from tests.scripted.envs import AnyLength, Counting, Nested, Shapes
from tests.scripted.games import Chooser, Comings, Turns
from tests.scripted.vectors import Vector

SEED = 20_240_607

Call = Callable[[Any, Callable[[Any], Any]], Any]
"""Calls a sampler, with a function that adds the faults of the scenario to environments; returns what is seen."""


@dataclass(frozen=True)
class Life:
    """One sampler: what it is made of, its calls by the capabilities that they show, and whom to kill meanwhile."""

    agents: Any
    envs: Any
    calls: dict[str, Call]
    options: dict[str, Any] = field(default_factory=dict)
    kills: tuple[Fault, ...] = (Fault("kill", trajectory=1, version=2),)
    n_workers: int | None = None  # where what is seen depends on it
    in_parent: bool = False  # the agent, in processes; the twin in this process runs lanes
    variant: bool = False  # of another life: it is in the slow tier

    def see(self, sampler: Any, wrap: Callable[[Any], Any] = lambda env: env) -> dict[str, Any]:
        """Make all calls; return by capability what is seen."""
        return {name: call(sampler, wrap) for name, call in self.calls.items()}


def kill_in_each_of(*versions: int) -> tuple[Fault, ...]:
    return tuple(Fault("kill", trajectory=1, version=version) for version in versions)


class World(Nested):
    """Shows all that may be set: its task, a parameter and a reset option; may raise in some trajectories.

    Args:
        noise: Whether it draws from the global generators as well.
        failing: The share of trajectories that raise.
    """

    def __init__(self, noise: bool = True, failing: float = 0.0) -> None:
        super().__init__()
        self.noise, self.failing, self.task, self.mass = noise, failing, 0.0, 0.0

    def set_task(self, task: Any) -> None:
        """Take a task: a number, or attributes by name, as parameters come to what has this method."""
        self.__dict__.update(task if isinstance(task, dict) else {"task": task})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.level = (options or {}).get("level", 0)
        self.breaks = self.np_random.random() < self.failing
        return observation, info | {"level": self.level, "odd": bool(self.np_random.random() < 0.3)}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.noise:
            self.place += random.random() - np.random.random()
        if self.breaks and self.t == 1:
            raise OSError("broken on purpose")
        observation, reward, *rest = super().step(action)
        return observation, reward + self.task + 8 * self.mass + 64 * self.level, *rest


def first_number(observation: Any) -> Any:
    """The first number of an observation, or of each row of observations."""
    while isinstance(observation, dict | tuple):
        observation = observation["place"] if isinstance(observation, dict) else observation[0]
    return np.asarray(observation, np.float64)


class Memory:
    """Remembers what it saw of a trajectory; draws from a generator of its own and from the global ones."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def reset(self, seed: int) -> None:
        self.memory: Any = 0.0
        self.rng = random.Random(seed)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.memory = 0.5 * self.memory + float(first_number(observation).flat[0])
        drawn = self.rng.random() + random.random() + np.random.random()
        return int(8 * drawn + self.memory + self.parameter) % 2, {"memory": self.memory, "drawn": drawn}

    def set_param_values(self, values: tuple[int]) -> None:
        (self.parameter,) = values

    def get_state(self) -> Any:
        return self.memory, self.rng.getstate()

    def set_state(self, state: Any) -> None:
        self.memory, generator = state
        self.rng = random.Random()
        self.rng.setstate(generator)


class Lanes(Memory):
    """Acts on several rows that do not depend on one another; draws for each from its trajectory's stream."""

    row_independent = True
    reset = None  # type: ignore[assignment]
    memory: Any = np.zeros(())  # for any number of rows

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> tuple[Any, dict[str, Any]]:
        first = first_number(observations).reshape(len(starts), -1)[:, 0]
        self.memory = np.where(starts, 0.0, 0.5 * self.memory) + first
        drawn = draws.random()
        actions = np.floor(8 * drawn + self.memory) + self.parameter
        return actions.astype(np.int64) % 2, {"memory": self.memory.copy(), "drawn": drawn}

    def get_state(self) -> Any:
        return self.memory.copy()

    def set_state(self, state: Any) -> None:
        self.memory = state.copy()


class Block(Memory):
    """Acts on rows that depend on one another: it draws for all of a block from one generator."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        first = first_number(observations).reshape(len(observations), -1)[:, 0]
        self.memory = 0.5 * self.memory + float(np.floor(first).sum())
        drawn = np.array([self.rng.random() for _ in first])
        return (np.floor(8 * drawn + self.memory) + self.parameter).astype(np.int64) % 2, {"drawn": drawn}


class Measuring:
    """Adds up what it sees of a trajectory."""

    aggregation: ClassVar = {"total": "sum", "last_index": "last"}

    def on_trajectory_start(self, context: Any) -> None:
        self.total = 0.0

    def on_timestep(self, context: Any) -> None:
        self.total += context.reward

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics.update(total=self.total, last_index=context.index, word=f"seed {context.seed}")


def is_odd(info: dict[str, Any]) -> bool:
    return bool(info.get("odd"))


def red_and_blue_in_turn(agent_id: str, index: int) -> str:
    return ("red", "blue")[(index + agent_id.startswith("blue")) % 2]


class Dying:
    """An environment of several agents, with faults that are due after so many of its steps."""

    def __init__(self, env: Any, faults: Faults) -> None:
        self.env, self.faults, self.n_steps = env, faults, 0

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, actions: Any) -> Any:
        self.n_steps += 1
        self.faults.maybe("step", step=self.n_steps)
        return self.env.step(actions)


class DyingVector(gymnasium.vector.VectorWrapper):
    """A vector environment with faults that are due after so many of its steps."""

    def __init__(self, env: Any, faults: Faults) -> None:
        super().__init__(env)
        self.faults, self.n_steps = faults, 0

    def step(self, actions: Any) -> Any:
        self.n_steps += 1
        self.faults.maybe("step", step=self.n_steps)
        return self.env.step(actions)


def with_faults(faults: Faults, envs: Any) -> Any:
    """Add faults to environments of any kind, or to an update of them."""
    if isinstance(envs, list | PerWorker):
        return type(envs)([with_faults(faults, env) for env in envs])
    if isinstance(envs, Vector):
        return lambda: DyingVector(envs(), faults)
    if isinstance(envs, partial) and envs.func in (Comings, Turns):
        return lambda: Dying(envs(), faults)
    if isinstance(envs, SetTaskUpdate | SetParameters):
        return envs  # what it changes has them, unless it makes one
    return faults.env(envs)


def samples(n: int = 60, env: Any = None, **updates: Any) -> Call:
    def call(sampler: Any, wrap: Any) -> Any:
        return sampler.obtain_samples(n, env_update=None if env is None else wrap(env), **updates)

    return call


def trajectories(n: int | None = 7, env: Any = None, **updates: Any) -> Call:
    def call(sampler: Any, wrap: Any) -> Any:
        return sampler.obtain_trajectories(n, env_update=None if env is None else wrap(env), **updates)

    return call


def exact(n: int = 42, **updates: Any) -> Call:
    """As many of each worker as make `n` together, which 1, 2, 3 and 7 divide."""
    return lambda sampler, wrap: sampler.obtain_exact_trajectories(n // sampler.n_workers, **updates)


def stream(n: int = 7, **updates: Any) -> Call:
    """The first ones of a stream, which is left then."""
    return lambda sampler, wrap: list(islice(sampler.stream(**updates), n))


def fragments(n: int = 6, n_envs: int = 7, **updates: Any) -> Call:
    return lambda sampler, wrap: sampler.obtain_fragments(n, n_envs, **updates)


def metrics(sampler: Any, wrap: Any) -> Any:
    return dict(sampler.stats.metrics)


TASKS = [5.0, 3.0, 4.0]
LEVELS = [{"level": number % 3} for number in range(7)]
ONE_BY_ONE: dict[str, Call] = {
    "samples": samples(),
    "trajectories by number, with other parameters": trajectories(agent_update=(3,)),
    "another agent": trajectories(5, agent_update=Memory(1)),
    "exact": exact(),
    "a stream, with other parameters": stream(agent_update=(2,)),
    "reset options for all": samples(40, reset_options={"level": 2}),
    "reset options for each": trajectories(reset_options=LEVELS),
    "tasks": trajectories(2, tasks=TASKS),
    "tasks in turn": samples(40, tasks=TASKS),
    "a stream of tasks": stream(6, n_trajectories=2, tasks=TASKS),
    "parameters as tasks": trajectories(2, tasks=[SetParameters({"mass": Uniform(n, n + 1)}) for n in TASKS]),
    "no task": trajectories(5),
    "parameters": samples(40, env=SetParameters({"mass": Choice([1, 2, 3])})),
    "wide observations": trajectories(9, env=partial(Counting, 10, 3_000)),
    "tuples and dicts": trajectories(env=partial(Shapes, "tuple")),
    "small integers": samples(30, env=partial(Shapes, "integers")),
}
SEEDS_AND_TASK_UPDATES: dict[str, Call] = {
    "seeds": trajectories(None, seeds=[7, 7, 2**31 + 5, 0, *range(100, 106)]),
    "seeds with reset options": trajectories(None, seeds=range(7), reset_options=LEVELS),
    "seeds with tasks": trajectories(2, seeds=range(6), tasks=TASKS),
    "a task that stays": lambda sampler, wrap: sampler.obtain_samples(40, env_update=SetTaskUpdate(World, 8.0)),
    "the task has stayed": samples(30),
}
BY_BLOCKS: dict[str, Call] = {
    "samples": samples(),
    "trajectories by number, with other parameters": trajectories(13, agent_update=(3,)),
    "a stream": stream(11),
    "exact": exact(),
}
BY_LONGER_BLOCKS: dict[str, Call] = {
    "samples": samples(200),
    "trajectories by number, with other parameters": trajectories(53, agent_update=(3,)),
    "a few": trajectories(2),
    "a stream": stream(41),
    "exact": exact(84),
}
FRAGMENTS: dict[str, Call] = {
    "fragments": fragments(),
    "fragments go on": fragments(),
    "fragments go on with other parameters": fragments(agent_update=(3,)),
    "whole trajectories between fragments": trajectories(5),
    "fragments go on after them": fragments(),
    "an evaluation between fragments": stream(4),
    "fragments go on after it": fragments(),
    "fragments of another length": fragments(11),
}
PARTICIPANTS: dict[str, Call] = {
    "timesteps of the environment": samples(90),
    "timesteps of agents": samples(150, count="agent_steps"),
    "trajectories by number": trajectories(9),
    "seeds": trajectories(None, seeds=[3, 1, 4]),
    "exact": exact(),
    "a stream": stream(7),
}
POLICIES = {
    **PARTICIPANTS,
    "one policy has other parameters": trajectories(9, agent_update={"red": (3,)}),
    "one policy is another": samples(60, agent_update={"red": (1,), "blue": Chooser(2)}),
}
SIDE_BY_SIDE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
IN_BLOCKS: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
QUIET = partial(World, noise=False)
TWO_FILTERS: dict[str, Any] = {
    "observation_filter": RunningNorm(clip=1.5),
    "reward_filter": RunningReturnNorm(0.9),
}
LATE = (Fault("kill", step=9, times=3),)  # in an episode that began in an earlier call, or where it is restored
AFTER_A_WHILE = (Fault("kill", step=20),)  # of an environment's steps, in all of its trajectories
AGAIN = (Fault("kill", step=20, times=3),)


def filtered(**more: Call) -> dict[str, Call]:
    return {
        "filters that know nothing yet": samples(),
        "filters": samples(agent_update=(3,)),
        "a filtered stream": stream(5),
        "statistics": lambda sampler, wrap: sampler.filters,
        **more,
    }


LIVES: dict[str, Life] = {
    "one by one": Life(Memory(), World, ONE_BY_ONE, kills=kill_in_each_of(2, 4, 5, 7, 8, 10, 11, 13, 14)),
    "seeds and task updates": Life(Memory(), World, SEEDS_AND_TASK_UPDATES, kills=(Fault("kill", step=3),)),
    "at most 4 timesteps": Life(Memory(), World, BY_BLOCKS, {"max_episode_length": 4}),
    "lists": Life(
        [Stamping(10), Stamping(20), Stamping(30)],
        3 * [AnyLength],
        {
            "samples": samples(),
            "one agent each, of which one stays": trajectories(8, agent_update=PerWorker([(11,), None, (31,)])),
            "exact": exact(),
            "an environment each": samples(30, env=[partial(Counting, 2), partial(Counting, 9), partial(Counting, 4)]),
            "the same for all": stream(7, agent_update=(7,)),
        },
        kills=kill_in_each_of(2, 3, 4),
        n_workers=3,
    ),
    "blocks": Life(Block(), World, BY_BLOCKS, IN_BLOCKS, kills=kill_in_each_of(1, 2, 3)),
    "lanes": Life(
        Lanes(), QUIET, {**BY_BLOCKS, "tasks": trajectories(2, tasks=TASKS)}, SIDE_BY_SIDE,
        kills=kill_in_each_of(1, 2, 5),
    ),
    **{
        f"native vector environments that reset themselves: {mode}": Life(
            Batched(), Vector(mode), BY_BLOCKS, IN_BLOCKS, AFTER_A_WHILE, variant=mode != "NEXT_STEP"
        )
        for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED")
    },
    **{
        f"native vector environments with blocks that get longer: {mode}": Life(
            Batched(), Vector(mode), BY_LONGER_BLOCKS, SIDE_BY_SIDE, AFTER_A_WHILE, variant=mode != "SAME_STEP"
        )
        for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED")
    },
    "the agent in the parent": Life(
        Lanes(), QUIET, {name: call for name, call in BY_BLOCKS.items() if name != "exact"}, SIDE_BY_SIDE,
        in_parent=True,
    ),
    "fragments": Life(Memory(), QUIET, FRAGMENTS, kills=LATE),
    "fragments in lanes": Life(Lanes(), QUIET, FRAGMENTS, SIDE_BY_SIDE, kills=LATE),
    "fragments in blocks": Life(Block(), QUIET, FRAGMENTS, SIDE_BY_SIDE, kills=LATE, variant=True),
    "fragments with the agent in the parent": Life(Lanes(), QUIET, FRAGMENTS, SIDE_BY_SIDE, LATE, in_parent=True),
    "filters": Life(Memory(), World, filtered(fragments=fragments()), TWO_FILTERS, kills=kill_in_each_of(1, 2)),
    "filters in lanes": Life(Lanes(), QUIET, filtered(), {**SIDE_BY_SIDE, **TWO_FILTERS}, kills=kill_in_each_of(1, 2)),
    "hooks and drop_if": Life(
        Memory(),
        World,
        {
            "samples": samples(),
            "metrics of samples": metrics,
            "trajectories by number": trajectories(15),
            "metrics of trajectories": metrics,
            "n of each task": trajectories(3, tasks=TASKS),
            "a stream": stream(5),
        },
        {"hooks": Measuring(), "drop_if": is_odd},
        kills=tuple(Fault("kill", "reset", trajectory=2, version=version) for version in (1, 2, 3)),
    ),
    "hooks and drop_if in blocks": Life(
        Block(), World, {"samples": samples(), "metrics": metrics, "trajectories by number": trajectories(15)},
        {**IN_BLOCKS, "hooks": Measuring(), "drop_if": is_odd},
        (Fault("kill", "reset", trajectory=2, version=2),),
        variant=True,
    ),
    "failures are left out": Life(
        Memory(),
        partial(World, failing=0.3),
        {
            "trajectories by number": trajectories(15),
            "samples": samples(),
            "n of each task": trajectories(3, tasks=TASKS),
            "a stream": stream(),
            "wide observations": trajectories(7, env=partial(Counting, 10, 3_000)),
        },
        {"on_failure": "drop"},
        kills=(Fault("kill", where="reset", trajectory=2, version=1), Fault("kill", "reset", trajectory=3, version=2)),
    ),
    "staleness=1": Life(
        Memory(),
        World,
        {
            f"{name}, {number}": call
            for number in (1, 5)
            for name, call in {
                "samples": samples(agent_update=(number,)),
                "of the version before": trajectories(agent_update=(number + 1,)),
                "another environment": samples(40, env=World, agent_update=(number + 2,)),
                "tasks": trajectories(2, tasks=TASKS, agent_update=(number + 3,)),
            }.items()
        },
        {"staleness": 1},
        kills=kill_in_each_of(1, 3),
    ),
    "several agents, one policy": Life(Chooser(), partial(Comings), PARTICIPANTS, kills=AGAIN),
    "several agents by turns": Life(Chooser(), partial(Turns), PARTICIPANTS, kills=AGAIN),
    "several agents, policies that change places": Life(
        {"red": Chooser(), "blue": Chooser(1)}, partial(Comings), POLICIES,
        {"policy_of": red_and_blue_in_turn, "hooks": Measuring()}, AGAIN,
    ),
}  # fmt: skip
