"""Random programs: whatever is called, updated, killed or stopped, each outcome is a `LocalSampler`'s, bit for bit.

A program is drawn from one number: a sampler (workers, kind of worker, agents and environments for all
or for each, what is done about failures), and what is done with it: calls of every kind, with and without updates,
updates that are refused, streams that are left early or run into an error, copies by pickling. Some programs have hooks
with metrics, a `drop_if`, or filters. A third of them has `staleness=1`, and learns between calls while workers run
ahead. Meanwhile its workers are killed and stopped, at random instants. The same is done with a `LocalSampler`, whose
workers nobody disturbs, and every batch, every metric, all statistics of filters and every error are compared. No
program is left out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np

from streamsampler import LocalSampler, PerWorker, SetTaskUpdate, VecWorker
from streamsampler.errors import SamplerError
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm
from tests.proofs._engines import kept_open, make_sampler
from tests.scripted.failing import Brittle

_LONGEST_PROGRAM = 180.0
_STEP_TIMEOUT = 0.6


class Drawer:
    """Draws its actions from a generator of its own and from the global ones."""

    def __init__(self, parameter: int = 0, one_in: int = 0) -> None:
        self.parameter, self.one_in = parameter, one_in

    def reset(self, seed: int) -> None:
        """Seed its generator."""
        self.generator = np.random.default_rng(seed)
        self.fails = self.one_in > 0 and self.generator.integers(self.one_in) == 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Draw an action."""
        if self.fails and self.generator.random() < 0.3:
            raise ValueError("out of ideas")
        drawn = self.generator.random() + random.random() + np.random.random()
        return int(drawn * 100 + self.parameter) % 3, {"drawn": drawn}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


class Adder(Drawer):
    """Decides for several observations at a time, and draws for all of them."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """Draw actions."""
        if self.one_in and int(observations.sum() * 1000) % (20 * self.one_in) == 0:
            raise ValueError("out of ideas")
        return (observations.sum(axis=1) * 10 + np.random.random() + self.parameter).astype(np.int64) % 3, {}


class Apart(Drawer):
    """Decides for several observations at a time, for each by itself."""

    row_independent = True

    def get_actions(self, observations: Any, *, draws: Any) -> tuple[Any, dict[str, Any]]:
        """Draw actions."""
        if self.one_in and (np.floor(observations[:, 0] * 1000) % (20 * self.one_in) == 0).any():
            raise ValueError("out of ideas")
        drawn = draws.random() + draws.normal(2)[:, 1] ** 2
        return (observations[:, 1] * 10 + drawn * 100 + self.parameter).astype(np.int64) % 3, {"drawn": drawn}


class Measuring:
    """Hooks with metrics that keep something of the trajectory in hand; in some trajectories one raises.

    Args:
        one_in: In one trajectory of so many; 0 for none.
        where: Which of them raises.
    """

    aggregation: ClassVar = {"weighted": "sum", "last": "last"}

    def __init__(self, one_in: int, where: str) -> None:
        self.one_in, self.where = one_in, where

    def _maybe(self, where: str, context: Any) -> None:
        if where == self.where and self.one_in and context.seed % self.one_in == 0:
            raise LookupError("no such table")

    def on_trajectory_start(self, context: Any) -> None:
        """Begin to add up."""
        self.weighted, self.index = 0.0, context.index
        self._maybe("start", context)

    def on_timestep(self, context: Any) -> None:
        """Add a reward."""
        assert self.index == context.index
        self.weighted += context.reward * context.timestep + context.agent_info.get("drawn", 0.0)
        context.metrics["steps"] = context.timestep
        if context.timestep == 3:
            self._maybe("timestep", context)
            context.metrics["third"] = float(context.observation[0])

    def on_trajectory_end(self, context: Any) -> None:
        """Say what was found."""
        assert len(context.rewards) == context.timestep
        context.metrics.update(weighted=self.weighted, last=context.index, mean=context.rewards.mean())
        self._maybe("end", context)


def is_odd(info: dict[str, Any]) -> bool:
    """Return whether a trajectory is abnormal, which some of the long ones are."""
    return bool(info.get("left") == 21)


@dataclass
class Program:
    """What is made, and what is done with it.

    Attributes:
        n_workers: How many workers.
        agents: See `Sampler`.
        envs: See `Sampler`.
        options: The sampler's other arguments.
        kills: How many kills are tried.
        stops: How many times a worker is stopped.
        steps: What is done: the name of a method of `Runner`, and its arguments.
    """

    n_workers: int
    agents: Any
    envs: Any
    options: dict[str, Any]
    kills: int
    stops: int
    steps: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)


class Author:
    """Draws a program from a number."""

    def __init__(self, number: int) -> None:
        self.dice = dice = random.Random(number)
        self.of_extras = random.Random(f"hooks {number}")  # on their own: programs stay what they were
        self.vec = dice.random() < 0.35
        self.n_workers = dice.randint(1, 4)
        self.width = dice.choice([2, 3, 1100])
        self.lags = number % 3 == 2

    def env(self) -> Any:
        dice = self.dice
        one_in, wrong = dice.choice([0, 0, 10, 40, 150]), dice.choice(["step", "step", "reset", "shape", "lock"])
        pause = dice.choice([0.0, 0.0, 0.0002, 0.001])
        return partial(Brittle, dice.randint(1, 30), one_in, wrong, self.width, pause)

    def agent(self) -> Any:
        kind = self.dice.choice([Adder, Apart, Apart, Drawer]) if self.vec else Drawer
        return kind(self.dice.randint(0, 9), self.dice.choice([0, 0, 0, 60]))

    def for_each(self, make: Any) -> Any:
        items = [make() for _ in range(self.n_workers)]
        return self.dice.choice([PerWorker, list])(items)

    def program(self) -> Program:
        dice = self.dice
        options: dict[str, Any] = {"seed": dice.randrange(10**6), "staleness": int(self.lags)}
        if self.vec:
            args: dict[str, Any] = {"n_envs": dice.randint(1, 4)}
            args |= {"block_size": args["n_envs"] * dice.randint(1, 3)} if dice.random() < 0.4 else {}
            options |= {"worker_class": VecWorker, "worker_args": args}
        elif dice.random() < 0.3:
            options["on_failure"] = "drop"
        if dice.random() < 0.2:
            options["max_episode_length"] = dice.randint(1, 20)
        disturbed = dice.random() < 0.7
        kills, stops = (dice.randint(1, 8), dice.choice([0, 0, 0, 1])) if disturbed else (0, 0)
        if disturbed:
            options |= {"max_restarts": None, "max_lifetime_restarts": None}
        elif dice.random() < 0.5:
            options |= {"restart_on": OSError, "max_restarts": dice.randint(0, 3), "restart_window": None}
        agents = self.for_each(self.agent) if dice.random() < 0.2 else self.agent()
        envs = self.for_each(self.env) if dice.random() < 0.2 else self.env()
        program = Program(self.n_workers, agents, envs, options, kills, stops)
        program.steps = [self.step() for _ in range(dice.randint(4, 12))]
        self.add_extras(options)
        if self.lags:
            program.steps = [step for one in program.steps for step in (self.lagging(one), self.learning())]
        return program

    def add_extras(self, options: dict[str, Any]) -> None:
        dice = self.of_extras
        if dice.random() < 0.4:
            one_in, where = dice.choice([0, 0, 0, 20, 60]), dice.choice(["start", "timestep", "end"])
            options["hooks"] = Measuring(one_in, where)
        if dice.random() < 0.25:
            options["drop_if"] = is_odd
        if not self.lags and dice.random() < 0.4:
            options["observation_filter"] = RunningNorm(clip=dice.choice([None, 1.0, 10.0]))
        if not self.lags and dice.random() < 0.2:
            options["reward_filter"] = RunningReturnNorm(dice.choice([0.0, 0.9, 1.0]))

    def lagging(self, step: tuple[str, tuple[Any, ...]]) -> tuple[str, tuple[Any, ...]]:
        """Return a step that a sampler with staleness=1 takes: no stream."""
        kind, arguments = step
        return ("samples", (arguments[0] + 1, arguments[2])) if kind == "stream" else step

    def learning(self) -> tuple[str, tuple[Any, ...]]:
        return "learn", (self.dice.choice([0, 10_000, 1_000_000]),)

    def updates(self) -> dict[str, Any]:
        dice, found = self.dice, {}
        if dice.random() < 0.4:
            make = dice.choice([lambda: (dice.randint(0, 9),), self.agent])
            found["agent_update"] = PerWorker(list(self.for_each(make))) if dice.random() < 0.2 else make()
        if dice.random() < 0.25:
            make = dice.choice([self.env, lambda: SetTaskUpdate(self.env(), float(dice.randint(0, 5)))])
            found["env_update"] = self.for_each(make) if dice.random() < 0.2 else make()
        return found

    def step(self) -> tuple[str, tuple[Any, ...]]:
        dice = self.dice
        kind = dice.choice(["samples"] * 3 + ["trajectories"] * 2 + ["exact", "stream", "stream", "copy", "refused"])
        most = dice.choice([3, 40, 400])
        if kind in ("samples", "trajectories"):
            return kind, (dice.randint(1, most), self.updates())
        if kind == "exact":
            return kind, (dice.randint(1, 8), self.updates())
        if kind == "stream":
            return kind, (dice.randint(0, 80), dice.random() < 0.5, self.updates())
        return kind, (dice.random() < 0.5,)


class Runner:
    """Does what a program says with a sampler, and keeps the outcomes."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.outcomes: list[Any] = []
        self.open: list[Any] = []

    def run(self, program: Program) -> list[Any]:
        for name, arguments in program.steps:
            getattr(self, name)(*arguments)
        self.sampler.close()
        return self.outcomes

    def keep(self, call: Any, *arguments: Any, **updates: Any) -> bool:
        """Keep what a call returns, or what is said of its failure; return whether it succeeded."""
        try:
            self.outcomes.append(call(*arguments, **updates))
        except SamplerError as error:
            told = getattr(error, "trajectory", None), getattr(error, "phase", None)
            self.outcomes.append((type(error).__name__, *told, type(getattr(error, "original", None)).__name__))
            return False
        if metrics := self.sampler.stats.metrics:
            self.outcomes.append(dict(metrics))
        if filters := self.sampler.filters:
            self.outcomes.append(filters)
        return True

    def samples(self, n: int, updates: dict[str, Any]) -> None:
        self.keep(self.sampler.obtain_samples, n, **updates)

    def trajectories(self, n: int, updates: dict[str, Any]) -> None:
        self.keep(self.sampler.obtain_trajectories, n, **updates)

    def exact(self, n: int, updates: dict[str, Any]) -> None:
        self.keep(self.sampler.obtain_exact_trajectories, n, **updates)

    def stream(self, n: int, left_open: bool, updates: dict[str, Any]) -> None:
        stream = self.sampler.stream(**updates)
        while n and self.keep(next, stream):
            n -= 1
        if left_open:
            self.open.append(stream)  # the next call ends it
        else:
            stream.close()

    def learn(self, n: int) -> None:
        """Take some time, in which workers run ahead."""
        sum(range(n))

    def copy(self, closing: bool) -> None:
        old = self.sampler
        self.sampler = pickle.loads(pickle.dumps(old))
        if closing:
            old.close()
        else:
            del old  # garbage, which ends its workers, too
        self.open.clear()

    def refused(self, agent: bool) -> None:
        if agent:
            self.keep(self.sampler.obtain_trajectories, 3, agent_update=(1, 2, 3))
        else:
            self.keep(self.sampler.obtain_trajectories, 3, env_update=_no_environment)


def _no_environment() -> gymnasium.Env[Any, Any]:
    raise OSError("there is none")


class Disturber:
    """A thread that kills and stops workers of the runner's sampler, at random instants."""

    def __init__(self, runner: Runner, program: Program, number: int, tally: Counter[str]) -> None:
        self._runner, self._tally = runner, tally
        self._dice = random.Random(number)
        self._ways = [signal.SIGKILL] * program.kills + [signal.SIGSTOP] * program.stops
        self._dice.shuffle(self._ways)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._disturb)

    def _disturb(self) -> None:
        for way in self._ways:
            if self._over.wait(self._dice.choice([0.005, 0.03, 0.15]) * self._dice.random()):
                return
            with contextlib.suppress(SamplerError, OSError, IndexError):
                pid = self._dice.choice(self._runner.sampler.worker_pids())
                if os.getsid(pid) == os.getsid(0):
                    os.kill(pid, way)
                    self._tally["kills" if way is signal.SIGKILL else "stops"] += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run_program(number: int, tally: Counter[str], **how: Any) -> None:
    """Run a program on processes and on a `LocalSampler`, and compare.

    Args:
        number: What it is drawn from.
        tally: Where it is counted what happened.
        how: The engine and the start method, as `MultiprocessingSampler` takes them; none for the default ones.

    Raises:
        AssertionError: An outcome differs.
    """
    faulthandler.dump_traceback_later(_LONGEST_PROGRAM, exit=True)
    local = Author(number).program()
    expected = Runner(LocalSampler(local.agents, local.envs, n_workers=local.n_workers, **local.options)).run(local)
    program = Author(number).program()
    limits: dict[str, Any] = {"step_timeout": _STEP_TIMEOUT, "construction_timeout": 5.0} if program.stops else {}
    sampler = make_sampler(
        program.agents, program.envs, n_workers=program.n_workers, **how, **limits, **program.options
    )
    runner = Runner(sampler)
    with Disturber(runner, program, number, tally):
        found = runner.run(program)
    faulthandler.cancel_dump_traceback_later()
    tally["programs"] += 1
    for outcome in expected:
        kinds = {tuple: "errors", dict: "metrics", Filters: "filters"}
        tally[kinds.get(type(outcome), "batches")] += 1
    tally["restarts"] += runner.sampler.stats.restarts
    _compare(number, program, expected, found)


def _compare(number: int, program: Program, expected: list[Any], found: list[Any]) -> None:
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        assert type(one) is type(other), f"program {number}, {program}, outcome {position}: {other!r}, not {one!r}"
        assert one == other, f"program {number}, {program}, outcome {position}: {other!r}, not {one!r}"
    assert len(expected) == len(found), f"program {number}: {len(found)} outcomes, not {len(expected)}"


def prove(scale: str, engine: str | None = None, start_method: str | None = None) -> None:
    """Run random programs: 500 in the long form.

    Args:
        scale: "short" or "long".
        engine: The engine; None for the default one.
        start_method: How processes are started; None for the engine's own way.
    """
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    n_programs = 500 if scale == "long" else 12
    tally: Counter[str] = Counter()
    began = time.perf_counter()
    with kept_open(engine):
        for number in range(n_programs):
            run_program(number, tally, engine=engine, start_method=start_method)
            if number % 50 == 49:
                print(f"{time.perf_counter() - began:.0f} s: {dict(tally)}", flush=True)
    print(f"{n_programs} programs: {dict(tally)}")
    assert tally["programs"] == n_programs
    assert tally["batches"] > n_programs
    assert tally["errors"] > 0
    assert tally["metrics"] > 0
    assert tally["filters"] > 0
