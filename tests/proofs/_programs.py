"""Programs of what cuts across samplers and managers, for the digests: each is drawn from its number.

Fragments of both kinds of workers, whose workers are killed between calls; filters; tasks; parameters of environments;
rows of managers, whose workers are killed while they step; an agent in the sampler's process; several agents. Numbers
in them are exact, or come from arithmetic that is the same on every machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from streamsampler import (
    EnvManager,
    LocalSampler,
    MultiAgentBatch,
    MultiprocessingSampler,
    SerialEnvManager,
    SetParameters,
    VecWorker,
)
from streamsampler.environments import Choice, Uniform
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.fragments.agents import Sticky
from tests.proofs._engines import make_sampler
from tests.proofs.restores import Maze, row_of
from tests.scripted.envs import Counting, Nested
from tests.scripted.games import DEFAULT, Chooser, Comings, Stay, Turns

__all__ = ["KINDS", "Keeping", "Measuring", "add", "digest_of_trees", "seen_by", "seen_of"]

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


# ------------------------------------------------------------------ what is seen


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
    seen = {name: getattr(batch, name) for name in _FIELDS}
    if batch.raw is not None:
        seen |= {name: getattr(batch, name) for name in _RAW}
    if batch.agents is not None:
        seen |= {name: getattr(batch, name) for name in _OF_AGENTS}
    if isinstance(batch, MultiAgentBatch):
        seen["policies"] = {name: seen_of(each) for name, each in batch.policies.items()}
        episodes = batch.episodes
        seen["episodes"] = {
            name: getattr(episodes, name) for name in ("returns", "took_part", "reset_infos", "last_infos")
        }
    return seen


# ------------------------------------------------------------------ agents and environments


class Measuring:
    """Adds up what it sees of a trajectory, in numbers that are the same on every machine."""

    def on_trajectory_start(self, context: Any) -> None:
        """Begin to count."""
        self.total = 0

    def on_timestep(self, context: Any) -> None:
        """Count."""
        self.total += context.timestep * (1 + int(context.terminated))
        context.metrics["steps"] = context.timestep
        if context.timestep % 4 == 0:
            context.metrics["fourth"] = {"of": context.timestep, "index": context.index}

    def on_trajectory_end(self, context: Any) -> None:
        """Say what was counted."""
        context.metrics.update(total=self.total, seed=str(context.seed), version=context.agent_version)


class Keeping:
    """Adds up what it sees of an episode, draws from generators of its own and of everybody, and can say where it is.

    It acts on whole numbers and on nested observations, too.
    """

    def __init__(self, parameter: int = 0) -> None:
        self.parameter, self.memory = parameter, 0.0
        self.rng = random.Random(0)

    def reset(self, seed: int) -> None:
        """Forget."""
        self.memory, self.rng = 0.0, random.Random(seed)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Draw an action, and tell what it was drawn from."""
        place = observation["place"] if isinstance(observation, dict) else observation
        self.memory = 0.5 * self.memory + float(place.reshape(-1)[0])
        drawn = self.rng.random() + random.random() + np.random.random()
        return int(8 * drawn + self.memory + self.parameter) % 2, {"memory": self.memory, "drawn": drawn}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values

    def get_state(self) -> Any:
        """Return where it is."""
        return self.memory, self.rng.getstate()

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.memory, generator = state
        self.rng.setstate(generator)


class Rows:
    """Draws for each row from its episode's stream, and adds up what it sees in each row."""

    row_independent = True

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter
        self.memory = np.zeros(())  # for any number of rows

    def get_action(self, observation: Any) -> Any:
        """Is not called."""
        raise NotImplementedError

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        """Return actions, and what they were drawn from."""
        first = observations["place"][:, 0] if isinstance(observations, dict) else observations[:, 0]
        self.memory = np.where(starts, 0.0, 0.5 * self.memory) + first
        drawn = draws.random()
        actions = (np.floor(8 * drawn + self.memory) + self.parameter).astype(np.int64) % 2
        return actions, {"memory": self.memory.copy(), "drawn": drawn}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values

    def get_state(self) -> Any:
        """Return what it remembers."""
        return self.memory.copy()

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.memory = state.copy()


class Fleeting(Rows):
    """Draws for each row from its episode's stream, and remembers nothing."""

    def get_actions(self, observations: Any, *, draws: Any) -> Any:  # type: ignore[override]
        """Return actions, and what they were drawn from."""
        first = observations["place"][:, 0] if isinstance(observations, dict) else observations[:, 0]
        drawn = draws.random()
        return (np.floor(8 * drawn + first) + self.parameter).astype(np.int64) % 2, {"drawn": drawn}


class Mixed(Rows):
    """Lets rows depend on one another, and draws for all from one generator: it has them as one block."""

    row_independent = False

    def reset(self, seed: int) -> None:
        """Forget."""
        self.total, self.rng = 0.0, np.random.default_rng(seed)

    def get_actions(self, observations: Any) -> Any:  # type: ignore[override]
        """Return actions, and what they were drawn from."""
        first = observations["place"][:, 0] if isinstance(observations, dict) else observations[:, 0]
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


# ------------------------------------------------------------------ samplers


def _sampler(draw: Draw, agents: Any, envs: Any, **options: Any) -> Any:
    options |= {"seed": draw.randrange(10_000), "n_workers": draw.choice([1, 2, 3, 5])}
    if draw.apart.random() < 0.3 and not draw.forced:
        return LocalSampler(agents, envs, **options)
    return make_sampler(agents, envs, max_restarts=None, **options, **draw.forced)


def _side_by_side(draw: Draw) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": draw.choice([2, 3, 8])}}


def _kill_workers(draw: Draw, sampler: Any) -> None:
    """Kill some of the workers, where there are any, between two calls."""
    if not isinstance(sampler, MultiprocessingSampler):
        return
    for pid in sampler.worker_pids():
        if draw.apart.random() < 0.5 and pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _call(draw: Draw, sampler: Any, *, exact: bool = True, **updates: Any) -> list[Any]:
    if draw.random() < 0.5:
        updates["agent_update"] = (draw.randrange(9),)
    kind = draw.choice(["samples", "trajectories", "exact", "stream"])
    if kind == "samples" or (kind == "exact" and not exact):
        return [sampler.obtain_samples(draw.randint(1, 200), **updates)]
    if kind == "trajectories":
        return [sampler.obtain_trajectories(draw.randint(1, 30), **updates)]
    if kind == "exact":
        return [sampler.obtain_exact_trajectories(draw.randint(1, 9), **updates)]
    return list(itertools.islice(sampler.stream(**updates), draw.randint(1, 15)))


def _fragments(draw: Draw) -> list[Any]:
    return _of_fragments(draw, _sampler(draw, Keeping(draw.randrange(5)), Sticky, **_filters(draw, 0.3)))


def _fragments_side_by_side(draw: Draw) -> list[Any]:
    agent = draw.choice([Rows, Fleeting, Keeping, Mixed])(draw.randrange(5))
    return _of_fragments(draw, _sampler(draw, agent, Sticky, **_side_by_side(draw), **_filters(draw, 0.3)), [3, 5, 12])


def _of_fragments(draw: Draw, sampler: Any, numbers: Any = (1, 2, 5, 11)) -> list[Any]:
    seen: list[Any] = []
    with sampler:
        n_envs = draw.choice(numbers)
        for _ in range(draw.randint(2, 6)):
            update: Any = {"agent_update": (draw.randrange(9),)} if draw.random() < 0.6 else {}
            batch = sampler.obtain_fragments(draw.choice([1, 4, 9, 25]), n_envs, **update)
            seen.append(seen_of(batch))
            _kill_workers(draw, sampler)
            if draw.random() < 0.1:  # which ends the episodes in hand
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
    filters = _filters(draw, 0.7) or {"observation_filter": RunningNorm()}
    agent: Any
    if draw.random() < 0.3:
        agent, options = draw.choice([Rows, Fleeting])(draw.randrange(5)), _side_by_side(draw)
    else:
        agent, options = Keeping(draw.randrange(5)), {"hooks": Measuring()} if draw.random() < 0.5 else {}
    seen: list[Any] = []
    with _sampler(draw, agent, env, **filters, **options) as sampler:
        for _ in range(draw.randint(2, 5)):
            seen += map(seen_of, _call(draw, sampler))
            _kill_workers(draw, sampler)
        last = sampler.filters.observation
        if last is not None and env is not Nested:
            seen.append((last.mean, last.variance))
    return seen


def _tasks(draw: Draw) -> list[Any]:
    agent: Any = Keeping(draw.randrange(5))
    options: dict[str, Any] = {}
    if draw.random() < 0.4:
        options = _side_by_side(draw)
        agent = draw.choice([Keeping, Rows, Fleeting])(draw.randrange(5))
    elif draw.random() < 0.5:
        options = {"hooks": Measuring()}
    seen: list[Any] = []
    with _sampler(draw, agent, partial(Tasked, draw.choice([1, 10])), **options) as sampler:
        for _ in range(draw.randint(1, 4)):
            tasks: list[Any] = [draw.choice([draw.randrange(5), {"task": 7}]) for _ in range(draw.randint(1, 6))]
            if draw.random() < 0.3:
                tasks = [SetParameters({"mass": Uniform(n, n + 1.0)}) for n in range(len(tasks))]
            seen.append(seen_of(sampler.obtain_trajectories(draw.randint(1, 6), tasks=tasks)))
            if draw.random() < 0.6:
                seen += map(seen_of, _call(draw, sampler))
            _kill_workers(draw, sampler)
    return seen


def _parameters(draw: Draw) -> list[Any]:
    agent: Any = Keeping(draw.randrange(5))
    options: dict[str, Any] = {}
    if draw.random() < 0.4:
        options = _side_by_side(draw)
        agent = draw.choice([Keeping, Rows, Fleeting])(draw.randrange(5))
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
            seen += map(seen_of, _call(draw, sampler, **update))
            _kill_workers(draw, sampler)
        if draw.random() < 0.3 and not options:
            seen.append(seen_of(sampler.obtain_fragments(12, 3)))
    return seen


def _in_parent(draw: Draw) -> list[Any]:
    """Whatever the engine: the workers have environments alone, and are always the same."""
    agent: Any = draw.choice([Rows, Fleeting, Keeping, Mixed])(draw.randrange(5))
    env = draw.choice([Sticky, Nested])
    n_envs = draw.choice([3, 7])
    options = {"worker_args": {"n_envs": n_envs}, **_filters(draw, 0.2 if env is Sticky else 0.0)}
    n_workers, seed, seen = draw.apart.choice([1, 2, 3]), draw.randrange(10_000), list[Any]()
    with MultiprocessingSampler(
        agent, env, n_workers=n_workers, seed=seed, inference="parent", max_restarts=None, **options
    ) as sampler:
        if draw.random() < 0.3:
            return _of_fragments(draw, sampler, [n_envs])
        for _ in range(draw.randint(1, 4)):
            seen += map(seen_of, _call(draw, sampler, exact=False))
            _kill_workers(draw, sampler)
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


class Batched:
    """Is asked for all agents that it plays at once; draws from each one's own stream."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def get_action(self, observation: Any) -> Any:
        """Is not called."""
        raise NotImplementedError

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        """Return actions, and what they were drawn from."""
        drawn = draws.random()
        return (np.floor(4 * drawn + observations[:, 1]) + self.parameter).astype(np.int64) % 4, {"drawn": drawn}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


def by_turns(agent_id: str, index: int) -> str:
    """Return who plays an agent: red and blue swap from trajectory to trajectory."""
    return ("red", "blue")[(index + agent_id.startswith("blue")) % 2]


def _several(draw: Draw) -> list[Any]:
    form = draw.choice([Comings, Turns])
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
    with _sampler(draw, agents, env, **options) as sampler:
        for _ in range(draw.randint(1, 5)):
            updates: dict[str, Any] = {}
            if draw.random() < 0.6:
                update = (draw.randrange(4),)
                updates["agent_update"] = {draw.choice(["red", "blue"]): update} if isinstance(agents, dict) else update
            seen += map(seen_of, _call_several(draw, sampler, updates))
            _kill_workers(draw, sampler)
    return seen


def _call_several(draw: Draw, sampler: Any, updates: dict[str, Any]) -> list[Any]:
    kind = draw.choice(["env_steps", "agent_steps", "trajectories", "exact", "stream"])
    if kind == "trajectories":
        return [sampler.obtain_trajectories(draw.randint(1, 20), **updates)]
    if kind == "exact":
        return [sampler.obtain_exact_trajectories(draw.randint(1, 9), **updates)]
    if kind == "stream":
        return list(itertools.islice(sampler.stream(**updates), draw.randint(1, 12)))
    return [sampler.obtain_samples(draw.randint(1, 150), count=kind, **updates)]


KINDS: dict[str, Callable[[Draw], list[Any]]] = {
    "fragments": _fragments,
    "fragments side by side": _fragments_side_by_side,
    "filters": _filtered,
    "tasks": _tasks,
    "parameters": _parameters,
    "agent in the parent": _in_parent,
    "rows of managers": _rows,
    "several agents": _several,
}


def seen_by(number: int, **forced: Any) -> list[Any]:
    """Run a program, and return all that its user sees, as trees.

    Args:
        number: The program.
        forced: An engine and a start method, for all programs that can run with them.
    """
    kinds = tuple(KINDS.values())
    return kinds[number % len(kinds)](Draw(f"program {number}", forced))
