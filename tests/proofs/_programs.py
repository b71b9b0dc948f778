"""Programs of what cuts across samplers and managers, for the digests: each is drawn from its number.

Fragments of both kinds of workers; filters; tasks; parameters of environments; rows of managers; an agent in the
sampler's process; several agents; masks of actions. Workers are killed at random instants: while they start, restore
episodes, run, and send. Numbers are exact, or come from arithmetic that is the same on every machine.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from streamsampler import (
    EnvManager,
    Limits,
    LocalSampler,
    MultiAgentBatch,
    MultiprocessingSampler,
    SerialEnvManager,
    SetParameters,
    VecWorker,
)
from streamsampler.data.batch_fields import value_of
from streamsampler.environments import Choice, Uniform
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.contracts.scenarios import Lanes as Rows
from tests.contracts.scenarios import Memory
from tests.fragments.agents import Sticky
from tests.proofs._engines import make_sampler
from tests.proofs._kills import disturbed
from tests.proofs.restores import Maze, row_of
from tests.scripted import masks
from tests.scripted.envs import Counting, Nested
from tests.scripted.games import DEFAULT, Chooser, Comings, Stay, Turns

__all__ = [
    "FIRST_WITH_MASKS",
    "Fleeting",
    "Guided",
    "GuidedRows",
    "Keeping",
    "Measuring",
    "Mixed",
    "Rows",
    "add",
    "digest_of_trees",
    "seen_by",
    "seen_of",
]

_FIELDS = (
    *("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "fragments"),
    *("env_infos", "agent_infos", "episode_infos", "lengths", "indices", "seeds", "agent_versions", "seed"),
)
_RAW = ("raw_observations", "raw_last_observations", "raw_rewards")
_OF_AGENTS = ("agent_ids", "episode_numbers", "env_timesteps")


class Draw(random.Random):
    """Draws a program.

    Args:
        name: Of the program.
        forced: An engine and a start method, for all programs that can run with them.

    Attributes:
        forced: The same.
        apart: Draws what must not change what is seen: whether there are processes, and whom to kill.
    """

    def __init__(self, name: str, forced: dict[str, Any]) -> None:
        super().__init__(name)
        self.forced = forced
        self.apart = random.Random(f"{name}, {forced}")

    def __new__(cls, name: str, _forced: dict[str, Any]) -> Draw:
        return super().__new__(cls)


def add(found: Any, value: Any) -> None:
    """Add a value to a digest: its structure, types, shapes and bytes."""
    if isinstance(value, dict):
        for key in sorted(value):
            found.update(f"{{{key}:".encode())
            add(found, value[key])
    elif isinstance(value, tuple):
        for child in value:
            found.update(b"(")
            add(found, child)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"{value.dtype.str}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    else:
        found.update(repr(value.tolist() if isinstance(value, np.ndarray) else value).encode())


def digest_of_trees(trees: Any) -> str:
    """Return the digest of a tree, or of a list of trees."""
    found = hashlib.sha256()
    for each in trees if isinstance(trees, list) else [trees]:
        add(found, each)
    return found.hexdigest()[:24]


def seen_of(batch: Any) -> dict[str, Any]:
    """Return all that a user can see of a batch, but for its accounts."""
    seen = {name: value_of(batch, name) for name in _FIELDS}
    if batch.raw is not None:
        seen |= {name: getattr(batch, name) for name in _RAW}
    if batch.agents is not None:
        seen |= {name: getattr(batch, name) for name in _OF_AGENTS}
    if isinstance(batch, MultiAgentBatch):
        seen["policies"] = {name: seen_of(each) for name, each in batch.policies.items()}
        names = "returns", "took_part", "reset_infos", "last_infos"
        seen["episodes"] = {name: getattr(batch.episodes, name) for name in names}
    return seen


class Measuring:
    """Adds up what it sees of a trajectory, in numbers that are the same on every machine.

    In memory: its own attributes are lost with a worker, and episodes of fragments go on.
    """

    def on_trajectory_start(self, context: Any) -> None:
        """Begin to count."""
        context.memory["total"] = 0

    def on_timestep(self, context: Any) -> None:
        """Count."""
        context.memory["total"] += context.timestep * (1 + int(context.terminated))
        context.metrics["steps"] = context.timestep
        if context.timestep % 4 == 0:
            context.metrics["fourth"] = {"of": context.timestep, "index": context.index}

    def on_trajectory_end(self, context: Any) -> None:
        """Say what was counted."""
        context.metrics.update(total=context.memory["total"], seed=str(context.seed), version=context.agent_version)


class Updated:
    """Has a parameter."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def get_action(self, observation: Any) -> Any:
        """Is called of those that act on one row at a time alone."""
        raise NotImplementedError

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


class Keeping(Memory):
    """Has the name that is in files which were written earlier."""


def first_numbers(observations: Any) -> Any:
    """Return a number of each row."""
    return observations["place"][:, 0] if isinstance(observations, dict) else observations[:, 0]


class Fleeting(Updated):
    """Draws for each row from its episode's stream, and remembers nothing."""

    row_independent = True

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        """Return actions, and what they were drawn from."""
        drawn = draws.random()
        actions = np.floor(8 * drawn + first_numbers(observations)) + self.parameter
        return actions.astype(np.int64) % 2, {"drawn": drawn}


class Mixed(Updated):
    """Lets rows depend on one another, and draws for all from one generator: it has them as one block."""

    def reset(self, seed: int) -> None:
        """Forget."""
        self.total, self.rng = 0.0, np.random.default_rng(seed)

    def get_actions(self, observations: Any) -> Any:
        """Return actions, and what they were drawn from."""
        first = first_numbers(observations)
        self.total = 0.5 * self.total + sum(np.floor(first).tolist())
        drawn = self.rng.random(len(first))
        return (np.floor(8 * drawn + self.total) + self.parameter).astype(np.int64) % 2, {"drawn": drawn}

    def get_state(self) -> Any:
        """Return what it remembers."""
        return self.total, self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.total, generator = state
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = generator


class Batched(Updated):
    """Is asked for all agents that it plays at once; draws from each one's own stream."""

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        """Return actions, and what they were drawn from."""
        drawn = draws.random()
        return (np.floor(4 * drawn + observations[:, 1]) + self.parameter).astype(np.int64) % 4, {"drawn": drawn}


def cached(kind: Any) -> Any:
    """Return a class that caches its spaces, as PettingZoo documents it, and that workers get by value."""

    class Cached(kind):
        """Caches its spaces."""

        @functools.cache  # noqa: B019 - as users write it
        def observation_space(self, agent: str) -> Any:
            """Return an agent's."""
            return super().observation_space(agent)

        @functools.cache  # noqa: B019
        def action_space(self, agent: str) -> Any:
            """Return an agent's."""
            return super().action_space(agent)

    return Cached


class Guided(Keeping):
    """Makes of its action one that is allowed, and says what is."""

    def get_action(self, observation: Any, *, action_mask: Any = None) -> tuple[int, dict[str, Any]]:
        """Draw an action."""
        numbers = observation["numbers"] if isinstance(observation, dict) else observation
        action, info = super().get_action(numbers)
        return guided(action, action_mask), {**info, "mask": action_mask}


class GuidedRows(Fleeting):
    """Does so for each row."""

    def get_actions(self, observations: Any, *, draws: Any, action_masks: Any = None) -> Any:
        """Return actions, and what they were drawn from."""
        numbers = observations["numbers"] if isinstance(observations, dict) else observations
        actions, infos = super().get_actions(numbers, draws=draws)
        actions = [guided(*each) for each in zip(actions, action_masks, strict=True)]
        return np.array(actions), {**infos, "mask": action_masks}


class GuidedBlocks(GuidedRows):
    """Does not say that rows are independent."""

    row_independent = False


def guided(action: int, mask: Any) -> int:
    """Return the action of this number among those that are allowed."""
    there = np.flatnonzero(mask)
    return int(there[int(action) % len(there)])


class Tasked(Counting):
    """Shows its attributes in its rewards."""

    def __init__(self, longest: int = 10) -> None:
        super().__init__(longest)
        self.task: Any = 0
        self.mass, self.size = 0.0, 0

    def set_task(self, task: Any) -> None:
        """Take a task: a number, or attributes by name, as parameters come to what has this method."""
        self.__dict__.update(task if isinstance(task, dict) else {"task": task})

    def step(self, action: Any) -> Any:
        """Make a step."""
        observation, reward, *rest = super().step(action)
        return observation, reward + self.task + 8 * self.mass + 1024 * self.size, *rest


@contextmanager
def _sampler(draw: Draw, agents: Any, envs: Any, *, parent: float = 0.0, **options: Any) -> Iterator[Any]:
    """Yield a sampler, whose workers are killed at random instants, between calls and within them.

    Args:
        draw: Draws the program.
        agents: The sampler's agents.
        envs: Its environments.
        parent: How probable it is that agents stay in this process.
        options: Further options of the sampler.
    """
    options = {"seed": draw.randrange(10_000), **options, "n_workers": draw.choice([1, 2, 3, 5])}
    dice = draw.apart
    if parent and dice.random() < parent and not draw.forced:
        n_envs = options["n_workers"] + dice.choice([0, 2])
        options |= {"inference": "parent", "worker_args": {"n_envs": n_envs}, "max_restarts": None}
        options |= {"limits": Limits(max_lifetime_restarts=None)}
        with MultiprocessingSampler(agents, envs, **options) as here, _killing(dice, here):
            yield here
        return
    if dice.random() < 0.3 and not draw.forced:
        with LocalSampler(agents, envs, **options) as local:
            yield local
        return
    options |= {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    with make_sampler(agents, envs, **options, **draw.forced) as sampler, _killing(dice, sampler):
        yield sampler


def _killing(dice: random.Random, sampler: Any) -> Any:
    pauses = [dice.choice([0.001, 0.01, 0.1]) * dice.random() for _ in range(dice.randint(0, 5))]
    return disturbed(sampler.worker_pids, random.Random(dice.random()), pauses)


def _side_by_side(draw: Draw) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": draw.choice([2, 3, 8])}}


def _agent_and_worker(draw: Draw, hooks: float = 0.0) -> tuple[Any, dict[str, Any]]:
    """Draw an agent, and the kind of worker that runs it."""
    agent: Any = Keeping(draw.randrange(5))
    if draw.random() < 0.4:
        options = _side_by_side(draw)
        return draw.choice([Keeping, Rows, Fleeting])(draw.randrange(5)), options
    return agent, {"hooks": Measuring()} if hooks and draw.random() < hooks else {}


def _call(draw: Draw, sampler: Any, *, exact: bool = True, **updates: Any) -> list[Any]:
    if draw.random() < 0.5:
        updates["agent_update"] = (draw.randrange(9),)
    kind = draw.choice(["samples", "trajectories", "exact", "stream"])
    if kind == "samples" or (kind == "exact" and not exact):
        found = [sampler.obtain_samples(draw.randint(1, 200), **updates)]
    else:
        found = _obtained(draw, sampler, kind, updates, {"trajectories": 30, "exact": 9, "stream": 15})
    return list(map(seen_of, found))


def _obtained(draw: Draw, sampler: Any, kind: str, updates: Any, most: dict[str, int]) -> list[Any]:
    n = draw.randint(1, most[kind]) if kind != "stream" else 0
    if kind == "trajectories":
        return [sampler.obtain_trajectories(n, **updates)]
    if kind == "exact":
        return [sampler.obtain_exact_trajectories(n, **updates)]
    return list(itertools.islice(sampler.stream(**updates), draw.randint(1, most[kind])))


def _fragments(draw: Draw) -> list[Any]:
    agent = Keeping(draw.randrange(5))
    with _sampler(draw, agent, Sticky, **_filters(draw, 0.3)) as sampler:
        return _of_fragments(draw, sampler, [1, 2, 5, 11])


def _fragments_side_by_side(draw: Draw) -> list[Any]:
    agent = draw.choice([Rows, Fleeting, Keeping, Mixed])(draw.randrange(5))
    with _sampler(draw, agent, Sticky, **_side_by_side(draw), **_filters(draw, 0.3)) as sampler:
        return _of_fragments(draw, sampler, [3, 5, 12])


def _of_fragments(draw: Draw, sampler: Any, numbers: list[int]) -> list[Any]:
    seen, n_envs = [], draw.choice(numbers)
    for _ in range(draw.randint(2, 6)):
        update: Any = {"agent_update": (draw.randrange(9),)} if draw.random() < 0.6 else {}
        seen.append(seen_of(sampler.obtain_fragments(draw.choice([1, 4, 9, 25]), n_envs, **update)))
        if draw.random() < 0.1:  # which leaves the episodes in hand alone
            seen.append(seen_of(sampler.obtain_trajectories(3)))
    return seen


def _filters(draw: Draw, chance: float) -> dict[str, Any]:
    filters: dict[str, Any] = {}
    if draw.random() < chance:
        filters["observation_filter"] = RunningNorm(clip=draw.choice([None, 1.5]))
    if draw.random() < chance:
        filters["reward_filter"] = RunningReturnNorm(draw.choice([0.5, 1.0]))
    return filters


def _filtered(draw: Draw) -> list[Any]:
    env = draw.choice([Sticky, partial(Counting, 10), Nested])
    options = _filters(draw, 0.7) or {"observation_filter": RunningNorm()}
    agent: Any
    if draw.random() < 0.3:
        agent, options = draw.choice([Rows, Fleeting])(draw.randrange(5)), options | _side_by_side(draw)
    else:
        agent = Keeping(draw.randrange(5))
        options |= {"hooks": Measuring()} if draw.random() < 0.5 else {}
    seen: list[Any] = []
    with _sampler(draw, agent, env, **options) as sampler:
        for _ in range(draw.randint(2, 5)):
            seen += _call(draw, sampler)
        last = sampler.filters.observation
        if last is not None and env is not Nested:
            seen.append((last.mean, last.variance))
    return seen


def _tasks(draw: Draw) -> list[Any]:
    agent, options = _agent_and_worker(draw, hooks=0.5)
    seen: list[Any] = []
    with _sampler(draw, agent, partial(Tasked, draw.choice([1, 10])), **options) as sampler:
        for _ in range(draw.randint(1, 4)):
            tasks: list[Any] = [draw.choice([draw.randrange(5), {"task": 7}]) for _ in range(draw.randint(1, 6))]
            if draw.random() < 0.3:
                tasks = [SetParameters({"mass": Uniform(n, n + 1.0)}) for n in range(len(tasks))]
            seen.append(seen_of(sampler.obtain_trajectories(draw.randint(1, 6), tasks=tasks)))
            if draw.random() < 0.6:
                seen += _call(draw, sampler)
    return seen


def _parameters(draw: Draw) -> list[Any]:
    agent, options = _agent_and_worker(draw)
    drawn: list[dict[str, Any]] = [
        {"mass": Uniform(1.0, 2.0)},
        {"mass": 0.5, "size": Choice([1, 2, 3])},
        {"size": Choice([4, 5])},
        {"task": Choice([6, 7], [0.25, 0.75])},
    ]
    seen: list[Any] = []
    env = SetParameters(draw.choice(drawn), Tasked)
    with _sampler(draw, agent, env, **options) as sampler:
        for _ in range(draw.randint(1, 5)):
            update: Any = {"env_update": SetParameters(draw.choice(drawn))} if draw.random() < 0.5 else {}
            seen += _call(draw, sampler, **update)
        if draw.random() < 0.3 and not options:
            seen.append(seen_of(sampler.obtain_fragments(12, 3)))
    return seen


def _in_parent(draw: Draw) -> list[Any]:
    """Whatever the engine: the workers have environments alone, and are always the same."""
    agent: Any = draw.choice([Rows, Fleeting, Keeping, Mixed])(draw.randrange(5))
    env = draw.choice([Sticky, Nested])
    n_envs = draw.choice([3, 7])
    options: dict[str, Any] = {"worker_args": {"n_envs": n_envs}, **_filters(draw, 0.2 if env is Sticky else 0.0)}
    options |= {"n_workers": draw.apart.choice([1, 2, 3]), "seed": draw.randrange(10_000), "max_restarts": None}
    options |= {"inference": "parent", "limits": Limits(max_lifetime_restarts=None)}
    seen: list[Any] = []
    with MultiprocessingSampler(agent, env, **options) as sampler, _killing(draw.apart, sampler):
        if draw.random() < 0.3:
            return _of_fragments(draw, sampler, [n_envs])
        for _ in range(draw.randint(1, 4)):
            seen += _call(draw, sampler, exact=False)
    return seen


def _rows(draw: Draw) -> list[Any]:
    """Step environments of a manager, whose workers are killed after some results, and restored."""
    n_envs, autoreset = draw.choice([1, 4, 7]), draw.choice(["next_step", "same_step", "disabled"])
    options: dict[str, Any] = {"n_envs": n_envs, "seed": draw.randrange(10_000), "autoreset": autoreset}
    env, n_workers = draw.choice([Maze, Sticky]), min(n_envs, draw.apart.choice([0, 1, 2, 3]))
    manager: Any = (
        SerialEnvManager(env, **options)
        if not n_workers
        else EnvManager(env, n_workers=n_workers, on_failure="restore", max_restarts=None, **options)
    )
    kills = {draw.apart.randrange(60) for _ in range(3)}
    seen: list[Any] = []
    with manager:
        steps = manager.reset(options={"start": draw.choice([0.0, 2.0])})
        for number in range(60):
            rows = steps.by_env()
            seen.append(tuple(repr(row_of(rows[env_id])) for env_id in sorted(rows)))
            if n_workers and number in kills:
                os.kill(draw.apart.choice([pid for pid in manager.worker_pids() if pid]), signal.SIGKILL)
            ended = [env_id for env_id in sorted(rows) if rows[env_id].ended[0]] if autoreset == "disabled" else []
            going = [env_id for env_id in range(n_envs) if env_id not in ended]
            if ended:
                manager.async_reset(ended)
            if going:
                manager.send(_actions(env, number, going), going)
            steps = manager.recv(min_envs=n_envs)
    return seen


def _actions(env: Any, number: int, env_ids: list[int]) -> Any:
    values = (number * 7 + np.array(env_ids) * 3) % 5
    if env is Sticky:
        return values % 2
    return {"turn": values % 3, "force": np.stack([values / 8, values % 2], 1).astype(np.float32)}


def by_turns(agent_id: str, index: int) -> str:
    """Return who plays an agent: red and blue swap from trajectory to trajectory."""
    return ("red", "blue")[(index + agent_id.startswith("blue")) % 2]


def _several(draw: Draw) -> list[Any]:
    form: Any = draw.choice([Comings, Turns])
    form = cached(form) if draw.apart.random() < 0.5 else form
    stays: list[Any] = [DEFAULT, {"red_0": Stay(0, 1), "red_1": Stay(0, 9), "blue_0": Stay(3, 6), "blue_1": Stay(1, 2)}]
    env = partial(form, stays=draw.choice(stays))
    agents: Any = {name: draw.choice([Chooser, Batched])(draw.randrange(4)) for name in ("red", "blue")}
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        agents = draw.choice([Chooser, Batched])(1)
    elif draw.random() < 0.5:
        options["policy_of"] = by_turns
    if draw.random() < 0.3:
        options["hooks"] = Measuring()
    if draw.random() < 0.3:
        options["max_episode_length"] = draw.choice([1, 4, 6])
    seen: list[Any] = []
    with _sampler(draw, agents, env, parent=0.3, **options) as sampler:
        for _ in range(draw.randint(1, 5)):
            updates: dict[str, Any] = {}
            if draw.random() < 0.6:
                update = (draw.randrange(4),)
                updates["agent_update"] = {draw.choice(["red", "blue"]): update} if isinstance(agents, dict) else update
            seen += map(seen_of, _call_several(draw, sampler, updates))
    return seen


def _call_several(draw: Draw, sampler: Any, updates: dict[str, Any]) -> list[Any]:
    kind = draw.choice(["env_steps", "agent_steps", "trajectories", "exact", "stream"])
    if kind.endswith("steps"):
        return [sampler.obtain_samples(draw.randint(1, 150), count=kind, **updates)]
    return _obtained(draw, sampler, kind, updates, {"trajectories": 20, "exact": 9, "stream": 12})


class Zero(masks.Masked):
    """Has actions that begin at 0, also by a method."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.action_space = spaces.Discrete(6)
        if place == "method":
            self.action_masks = self.mask


def _masked(draw: Draw) -> list[Any]:
    """Environments refuse what they do not allow."""
    env, side_by_side = partial(Zero, draw.choice(masks.PLACES)), draw.random() < 0.6
    agent: Any = draw.choice([Guided, GuidedRows, GuidedBlocks]) if side_by_side else Guided
    options = _side_by_side(draw) if side_by_side else {}
    in_fragments = draw.random() < 0.5
    if not in_fragments and draw.random() < 0.4:
        options["hooks"] = Measuring()
    seen: list[Any] = []
    with _sampler(draw, agent(draw.randrange(5)), env, **options) as sampler:
        if in_fragments:
            return _of_fragments(draw, sampler, [3, 5, 12])
        for _ in range(draw.randint(1, 4)):
            seen += _call(draw, sampler)
    return seen


KINDS = _fragments, _fragments_side_by_side, _filtered, _tasks, _parameters, _in_parent, _rows, _several
FIRST_WITH_MASKS = 200
"""From this program on they are of masks: those before are what they were."""


def seen_by(number: int, **forced: Any) -> list[Any]:
    """Run a program, and return all that its user sees, as trees.

    Args:
        number: The program.
        forced: An engine and a start method, for all programs that can run with them.
    """
    kind = KINDS[number % len(KINDS)] if number < FIRST_WITH_MASKS else _masked
    return kind(Draw(f"program {number}", forced))
