"""Random programs: whatever is called, updated, killed or stopped, each outcome is a `LocalSampler`'s, bit for bit.

A program is drawn from one number: a sampler (workers, kind of worker, agents and environments for all or for each,
what is done about failures), and what is done with it: calls of every kind, with and without updates, updates that are
refused, streams that are left early or run into an error, copies by pickling, stops after which another sampler goes on
from the state (the `LocalSampler` goes on itself), replays of what was sampled last, fragments with whole trajectories
between them. In some, exceptions are tried again, also without quotas, where only equal losses end it. Some programs
have hooks with metrics, a `drop_if`, filters, or masks of actions; some are of several agents, which come and go, and
in some trajectories come back. A third of them has `staleness=1`, and learns between calls while workers run ahead. Of
these, and of those with `VecWorker`, as of all others, some are of several agents, for which one policy or two act, and
some show words, and take words. In half of them some trajectories raise: whether a call fails, and for which
trajectory, is a function of the seed. Four long ones have up to 600 calls and 150 streams, within whose reach one in 80
trajectories raises, on 1, 2, 3 and 8 workers. In the others workers are killed and stopped meanwhile, at random
instants. The same is done with a `LocalSampler`, whose workers nobody disturbs, and every batch, every metric, all
statistics of filters and every error are compared. No program is left out.
"""

from __future__ import annotations

import faulthandler
import logging
import pickle
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import Limits, LocalSampler, PerWorker, SetTaskUpdate, TrajectoryBatch, VecWorker
from streamsampler.errors import RolloutError, SamplerError, SerializationError
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm
from streamsampler.protocol.messages import Phase
from tests.proofs._engines import kept_open, make_sampler
from tests.proofs._kills import disturbed
from tests.proofs._programs import Batched, Fleeting, Guided, GuidedRows, Keeping, Measuring, Mixed, Rows
from tests.scripted.agents import above_half
from tests.scripted.failing import Brittle
from tests.scripted.games import Chooser, Comings, Stay

_LONGEST_PROGRAM = 180.0
_STEP_TIMEOUT = 0.6
_FAILING: list[tuple[int, dict[str, Any]]] = [
    (600, {}),
    (300, {"on_failure": "drop"}),
    (
        60,
        {"restart_on": OSError, "max_restarts": 2, "limits": Limits(restart_window=None)},
    ),  # each loss replaces a process
    (300, {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}),
]


class Forgetful(Keeping):
    """Raises in some trajectories."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Draw an action."""
        if self.rng.random() < 0.001:
            raise ValueError("out of ideas")
        return super().get_action(observation)


class Guarded(Brittle):
    """Says in its infos which of its actions it allows, and does not insist."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory."""
        return self._with_mask(super().reset(seed=seed))

    def step(self, action: int) -> Any:
        """Make a step."""
        return self._with_mask(super().step(action))

    def _with_mask(self, result: Any) -> Any:
        *rest, info = result
        first = float(np.asarray(rest[0]).flat[0])
        mask = [first < 0.6, first > 0.3, first > 0.7]
        return *rest, info if first > 0.9 else {**info, "action_mask": mask}


WORDS = "left", "right", "stay"


class Spoken(Brittle):
    """Shows words, beside its numbers, and takes words."""

    action_space: spaces.Space[Any] = spaces.Text(5)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.observation_space = spaces.Dict(place=self.observation_space, said=spaces.Text(9))

    def observe(self) -> Any:
        """Return numbers, and what the first one is called."""
        numbers = super().observe()
        return {"place": numbers, "said": "x" * int(8 * numbers[0]) + "y"}

    def step(self, action: Any) -> Any:
        """Make a step."""
        assert isinstance(action, str)
        return super().step(WORDS.index(action))


class Speaking(Keeping):
    """Says a word, which depends on those that it sees."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Draw a word."""
        action, info = super().get_action(observation["place"])
        return WORDS[(action + len(observation["said"])) % 3], info


class SpeakingRows(Fleeting):
    """Does so for each row."""

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        """Return words, and what they were drawn from."""
        actions, infos = super().get_actions(observations, draws=draws)
        each = zip(actions.tolist(), observations["said"], strict=True)
        return [WORDS[(action + len(said)) % 3] for action, said in each], infos


class SpeakingTogether(Mixed):
    """Does so for rows that depend on one another."""

    def get_actions(self, observations: Any) -> Any:
        """Return words, and what they were drawn from."""
        actions, infos = super().get_actions(observations)
        return [WORDS[action] for action in actions.tolist()], infos


class Across(Batched):
    """Is asked for all agents that it plays in all environments at once."""

    row_independent = True


class EitherWay(Brittle):
    """Raises in `step`, or in `reset`."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory."""
        result = super().reset(seed=seed)
        if self.left == self.wrong_at + 1 and self.np_random.random() < 0.3:
            self.fail()
        return result


class Raising(Measuring):
    """Hooks with metrics; in one trajectory of so many, or in none, one of them raises."""

    aggregation: ClassVar = {"total": "sum", "version": "last"}

    def __init__(self, one_in: int, where: str) -> None:
        self.one_in, self.where = one_in, where

    def _maybe(self, where: str, context: Any) -> None:
        if where == self.where and self.one_in and context.seed % self.one_in == 0:
            raise LookupError("no such table")

    def on_trajectory_start(self, context: Any) -> None:
        """Begin to add up."""
        super().on_trajectory_start(context)
        self._maybe("start", context)

    def on_timestep(self, context: Any) -> None:
        """Add a reward."""
        super().on_timestep(context)
        context.metrics["mean"] = context.rewards.mean()
        if context.timestep == 3:
            self._maybe("timestep", context)

    def on_trajectory_end(self, context: Any) -> None:
        """Say what was found."""
        super().on_trajectory_end(context)
        self._maybe("end", context)


def is_odd(info: dict[str, Any]) -> bool:
    """Return whether a trajectory is abnormal, which some of the long ones are."""
    return bool(info.get("left") == 21)


class Returning(Comings):
    """Several agents; in one trajectory of so many an agent is listed again after its end."""

    def __init__(self, one_in: int, longest: int) -> None:
        super().__init__({"red_0": Stay(0, longest), "red_1": Stay(1, 3), "blue_1": Stay(0, 2 + longest)})
        self.one_in = one_in

    def begin(self, seed: Any) -> None:
        """Begin a trajectory."""
        super().begin(seed)
        self.is_wrong = bool(self.one_in and seed % self.one_in == 0)

    def step(self, actions: Any) -> Any:
        """Make a step."""
        self.agents = [agent for agent in self.agents if agent in actions]
        result = super().step(actions)
        if self.is_wrong and self.t == 5:
            self.agents.append("red_1")
        return result


class Program(NamedTuple):
    """A sampler, the signals that disturb its workers, and what is done: methods of `Runner`, and their arguments."""

    sampler: dict[str, Any]
    ways: list[signal.Signals]
    steps: list[tuple[str, tuple[Any, ...]]]


class Author:
    """Draws a program from a number."""

    def __init__(self, number: int) -> None:
        self.dice = dice = random.Random(number)
        self.vec = dice.random() < 0.35
        self.n_workers = dice.choice([1, 2, 3, 4, 8])
        self.width = dice.choice([2, 3, 1100])
        self.lags = number % 3 == 2
        self.apart = random.Random(f"more of {number}")  # of what came later: programs are what they were
        self.several = (self.apart.random() < 0.3) if self.vec or self.lags else dice.random() < 0.25
        self.speaks = not self.several and self.apart.random() < 0.2
        self.policies = ["red", "blue"] if self.several and self.apart.random() < 0.5 else []
        self.can_stop, self.stops = True, random.Random(f"stops of {number}")

    def env(self) -> Any:
        dice = self.dice
        if self.several:
            return partial(Returning, dice.choice([0, 0, 20, 150]), dice.randint(4, 12))
        one_in, wrong = dice.choice([0, 0, 10, 40, 150]), dice.choice(["step", "step", "reset", "shape", "lock"])
        kind = Spoken if self.speaks else dice.choice([Brittle, Brittle, Guarded])
        return partial(kind, dice.randint(1, 30), one_in, wrong, self.width, dice.choice([0.0, 0.0, 0.0002, 0.001]))

    def agent(self) -> Any:
        if self.policies:
            return {policy: self.policy() for policy in self.policies}
        if self.several:
            return self.policy()
        if self.speaks:
            return self.dice.choice([SpeakingRows, SpeakingTogether, Speaking] if self.vec else [Speaking])(
                self.dice.randint(0, 9)
            )
        alone = self.dice.choice([Keeping, Keeping, Forgetful, Guided])
        return (self.dice.choice([Mixed, Fleeting, Rows, GuidedRows, alone]) if self.vec else alone)(
            self.dice.randint(0, 9)
        )

    def policy(self) -> Any:
        return self.apart.choice([Chooser, Chooser, Batched, Across])(self.dice.randint(0, 3))

    def for_each(self, make: Any) -> Any:
        return self.dice.choice([PerWorker, list])([make() for _ in range(self.n_workers)])

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
        ways: list[signal.Signals] = []
        if dice.random() < 0.7:
            options |= {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
            ways = [signal.SIGKILL] * dice.randint(1, 8) + [signal.SIGSTOP] * dice.choice([0, 0, 0, 1])
            dice.shuffle(ways)
            options |= {"restart_on": OSError} if dice.random() < 0.5 else {}  # functions of the seed, as often as not
        elif dice.random() < 0.5:
            options |= {
                "restart_on": OSError,
                "max_restarts": dice.choice([0, 1, 2, 3, None]),
                "limits": Limits(restart_window=None),
            }
        # A new sampler has not used up any restarts.
        self.can_stop = "restart_on" not in options or options["max_restarts"] is None
        self.add_extras(options)
        each = dice.random() < 0.2 and not self.policies
        options["agents"] = self.for_each(self.agent) if each else self.agent()
        options["envs"] = self.for_each(self.env) if dice.random() < 0.2 else self.env()
        steps = [step for _ in range(dice.randint(4, 12)) for step in self.steps()]
        if self.can_stop:
            for _ in range(self.stops.choice([0, 1, 1, 2])):
                steps.insert(self.stops.randint(0, len(steps)), ("stop", ()))
        return Program({"n_workers": self.n_workers, **options}, ways, steps)

    def add_extras(self, options: dict[str, Any]) -> None:
        dice = self.dice
        if dice.random() < 0.4:
            options["hooks"] = Raising(dice.choice([0, 0, 0, 20, 60]), dice.choice(["start", "timestep", "end"]))
        if dice.random() < 0.25:
            options["drop_if"] = is_odd
        if not (self.lags or self.several or self.speaks) and dice.random() < 0.4:
            options["observation_filter"] = RunningNorm(clip=dice.choice([None, 1.0, 10.0]))
        if not (self.lags or self.several) and dice.random() < 0.2:
            options["reward_filter"] = RunningReturnNorm(dice.choice([0.0, 0.9, 1.0]))

    def updates(self) -> dict[str, Any]:
        dice = self.dice
        found: dict[str, Any] = {}
        if dice.random() < 0.4:
            make = dice.choice([lambda: (dice.randint(0, 9),), self.policy if self.policies else self.agent])
            if self.policies:
                found["agent_update"] = {self.apart.choice(self.policies): make()}
            else:
                found["agent_update"] = PerWorker(list(self.for_each(make))) if dice.random() < 0.2 else make()
        if dice.random() < 0.25:
            make = dice.choice([self.env, lambda: SetTaskUpdate(self.env(), float(dice.randint(0, 5)))])
            make = self.env if self.several else make  # which take no tasks
            found["env_update"] = self.for_each(make) if dice.random() < 0.2 else make()
        return found

    def steps(self) -> list[tuple[str, tuple[Any, ...]]]:
        dice = self.dice
        others = ["exact", "stream", "stream", "copy", "refused", "fragments", "fragments", "replay", "replay"]
        kind = dice.choice(["samples"] * 3 + ["trajectories"] * 2 + others)
        if kind == "replay":
            return [(kind, (dice.random(), dice.random() < 0.3))]
        if kind == "fragments":
            step: Any = kind, (dice.randint(1, 40), dice.choice([3, 3, 3, 4]), self.updates())
            return [step, *([("replay", (dice.random(), True))] if dice.random() < 0.3 else [])]
        if kind == "stream" and not self.lags:
            return [(kind, (dice.randint(0, 80), dice.random() < 0.5, self.updates()))]
        if kind in ("copy", "refused"):
            step = kind, (dice.random() < 0.5,)
        else:
            n = dice.randint(1, 8) if kind == "exact" else dice.randint(1, dice.choice([3, 40, 400]))
            step = "obtain", ({"stream": "samples", "exact": "exact_trajectories"}.get(kind, kind), n, self.updates())
        return [step, ("learn", (dice.choice([0, 10_000, 1_000_000]),))] if self.lags else [step]


def failing(n_calls: int, options: dict[str, Any], n_workers: int) -> Program:
    """Return a program of calls and streams, which goes on after each error, and whose workers nobody kills."""
    dice = random.Random(2024)
    steps: list[Any] = [("obtain", ("samples", 300, {}))] * (n_calls - n_calls // 3)
    steps += [("obtain", ("trajectories", dice.randint(1, 60), {})) for _ in range(n_calls // 3)]
    steps += [("stream", (dice.randint(1, 300), False, {})) for _ in range(n_calls // 4)]
    dice.shuffle(steps)
    alike = {"agents": above_half, "envs": partial(EitherWay, 24, 80), "seed": 2024}
    return Program({"n_workers": n_workers, **alike, **options}, [], steps)


class Runner:
    """Does what a program says with a sampler, and keeps the outcomes.

    Args:
        sampler: The sampler.
        env: Its environment.
        make: Makes another one like it, which goes on where it is stopped; None where it is not.
    """

    def __init__(self, sampler: Any, env: Any, make: Callable[[], Any] | None = None) -> None:
        self.sampler, self.make = sampler, make
        self.outcomes: list[Any] = []
        self.open: list[Any] = []
        self.last: Any = None  # the batch that was returned last
        self.env, self.env_of_last = env, env  # the environment in force, and the one that batch is of

    def run(self, program: Program) -> list[Any]:
        for name, arguments in program.steps:
            getattr(self, name)(*arguments)
        self.sampler.close()
        return self.outcomes

    def keep(self, call: Any, *arguments: Any, **updates: Any) -> bool:
        """Keep what a call returns, or what is said of its failure; return whether it succeeded."""
        try:
            self.outcomes.append(found := call(*arguments, **updates))
            self.env = updates.get("env_update", self.env)
        except SamplerError as error:
            if isinstance(error, RolloutError) and error.phase is not Phase.ENV_CONSTRUCTION:
                self.env = updates.get("env_update", self.env)  # what raised is a trajectory in it
            told = getattr(error, "trajectory", None), getattr(error, "phase", None)
            original = getattr(error, "original", None)
            what = type(original).__name__ if isinstance(original, SerializationError) else repr(original)
            self.outcomes.append((type(error).__name__, *told, what))
            return False
        if isinstance(found, TrajectoryBatch) and call != self._replayed:  # which goes on where a part was cut
            self.last, self.env_of_last = found, self.env
        if metrics := self.sampler.stats.metrics:
            self.outcomes.append(dict(metrics))
        if filters := self.sampler.filters:
            self.outcomes.append(filters)
        return True

    def obtain(self, what: str, n: int, updates: dict[str, Any]) -> None:
        self.keep(getattr(self.sampler, f"obtain_{what}"), n, **updates)

    def stream(self, n: int, left_open: bool, updates: dict[str, Any]) -> None:
        stream = self.sampler.stream(**updates)
        while n and self.keep(lambda **_: next(stream), **updates):
            n -= 1
        if left_open:
            self.open.append(stream)  # the next call ends it
        else:
            stream.close()

    def fragments(self, n_timesteps: int, n_envs: int, updates: dict[str, Any]) -> None:
        self.keep(self.sampler.obtain_fragments, n_timesteps, n_envs, **updates)

    def replay(self, where: float, actions: bool) -> None:
        """Run a trajectory of the last batch again, with the agent or without it."""
        if self.last is not None and len(self.last):
            one = self.last[int(where * len(self.last))]
            version, index = int(one.agent_versions[0]), int(one.indices[0])
            env = None if self.env is self.env_of_last else self.env_of_last
            self.keep(self._replayed, version, index, recorded=self.last, actions=actions, env=env)

    def _replayed(self, version: int, index: int, **options: Any) -> Any:
        found = self.sampler.replay(version, index, **options)
        assert found.same, str(found)
        return found.trajectory

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

    def stop(self) -> None:
        """Stop, and go on in a new sampler."""
        while self.open:
            self.open.pop().close()
        if self.make is None:
            return
        state = self.sampler.state_dict(agents=True)
        self.sampler.close()
        self.sampler = self.make()
        self.sampler.load_state_dict(state)

    def refused(self, agent: bool) -> None:
        update: Any = {"agent_update": (1, 2, 3)} if agent else {"env_update": _no_environment}
        self.keep(self.sampler.obtain_trajectories, 3, **update)


def _no_environment() -> gymnasium.Env[Any, Any]:
    raise OSError("there is none")


def run_program(
    number: int, tally: Counter[str], change: Callable[[Program], Program] = lambda program: program,
    author: type[Author] = Author, **how: Any,
) -> None:  # fmt: skip
    """Run a program on processes and on a `LocalSampler`, and compare.

    Args:
        number: What it is drawn from.
        tally: Where it is counted what happened.
        change: Returns the program that processes run, which does the same.
        author: Draws it.
        how: The engine and the start method, as `MultiprocessingSampler` takes them; none for the default ones.
    """
    faulthandler.dump_traceback_later(_LONGEST_PROGRAM, exit=True)
    local, program = author(number).program(), change(author(number).program())
    expected = Runner(LocalSampler(**local.sampler), local.sampler["envs"]).run(local)
    options = {**how, **program.sampler}
    if signal.SIGSTOP in program.ways:
        limits = replace(options.get("limits", Limits()), construction_timeout=5.0)
        options |= {"step_timeout": _STEP_TIMEOUT, "limits": limits}
    make = partial(make_sampler, **options)
    runner, dice = Runner(make(), program.sampler["envs"], make), random.Random(number)
    pauses = [dice.choice([0.005, 0.03, 0.15]) * dice.random() for _ in program.ways]
    with disturbed(lambda: runner.sampler.worker_pids(), dice, pauses, program.ways) as killed:
        found = runner.run(program)
    faulthandler.cancel_dump_traceback_later()
    kinds = {tuple: "errors", dict: "metrics", Filters: "filters"}
    tally.update(kinds.get(type(outcome), "batches") for outcome in expected)
    tally.update(programs=1, disturbed=len(killed), restarts=runner.sampler.stats.restarts)
    compare(f"program {number}, {program}", expected, found)


def run_failing(n_calls: int, options: dict[str, Any], workers: list[int], tally: Counter[str], **how: Any) -> None:
    """Run the same failing program on a `LocalSampler`, twice, and on processes, and compare."""
    local = failing(n_calls, options, 1)
    expected = Runner(LocalSampler(**local.sampler), local.sampler["envs"]).run(local)
    errors = sum(isinstance(outcome, tuple) for outcome in expected)
    assert errors > n_calls / 40 or "on_failure" in options, f"{errors} errors show nothing"
    for n_workers in [0, *workers]:
        program = failing(n_calls, options, n_workers or 3)
        sampler = make_sampler(**how, **program.sampler) if n_workers else LocalSampler(**program.sampler)
        found = Runner(sampler, program.sampler["envs"]).run(program)
        compare(f"{n_calls} calls, {options}, {n_workers} workers", expected, found)
        tally.update({"failing programs": 1, "errors of these": errors})


def compare(what: str, expected: list[Any], found: list[Any]) -> None:
    """Compare outcomes bit for bit."""
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        assert type(one) is type(other), f"{what}, outcome {position}: {other!r}, not {one!r}"
        assert one == other, f"{what}, outcome {position}: {other!r}, not {one!r}"
    assert len(expected) == len(found), f"{what}: {len(found)} outcomes, not {len(expected)}"


def prove(scale: str, engine: str | None = None, start_method: str | None = None) -> None:
    """Run random programs: 500 in the long form, with an engine and a start method; None for the default ones."""
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    tally: Counter[str] = Counter()
    long = scale == "long"
    with kept_open(engine):
        for n_calls, options in _FAILING:
            n_calls, workers = (n_calls, [1, 2, 3, 8]) if long else (n_calls // 15, [3])
            run_failing(n_calls, options, workers, tally, engine=engine, start_method=start_method)
        for number in range(500 if long else 12):
            run_program(number, tally, engine=engine, start_method=start_method)
            if number % 50 == 49:
                print(dict(tally), flush=True)
    print(dict(tally))
    assert tally["batches"] > tally["programs"]
    assert min(tally["errors"], tally["metrics"], tally["filters"]) > 0
