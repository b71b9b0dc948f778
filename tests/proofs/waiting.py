"""Random programs of environments that wait: whatever is done, each outcome is that of the twin that does not wait.

The programs are those of the proof `random_programs` that have one agent and run one environment in each worker. Their
environments, and half of the agents, wait for times that depend on nothing that a trajectory is, and many trajectories
are in flight on the event loop of each worker; or environments that do not wait run on threads. Workers are killed and
stopped meanwhile, at random instants. The same is done by a `LocalSampler` in which nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from functools import partial
from typing import Any

from streamsampler import PerWorker, VecWorker
from tests.contracts.scenarios import Memory, first_number
from tests.proofs._engines import kept_open
from tests.proofs._programs import guided
from tests.proofs.random_programs import WORDS, Author, Program, run_program
from tests.scripted.waiting import waiting

_AGENT = {"agent", "agent_update", "agents"}
_ENV = {"env_update", "envs"}


class Alone(Memory):
    """Remembers what it saw of a trajectory, and draws from a generator of its own alone."""

    def get_action(self, observation: Any) -> Any:
        """Draw an action."""
        self.memory = 0.5 * self.memory + float(first_number(observation).flat[0])
        drawn = self.rng.random()
        return int(8 * drawn + self.memory + self.parameter) % 2, {"memory": self.memory, "drawn": drawn}


class ForgetfulAlone(Alone):
    """Raises in some trajectories."""

    def get_action(self, observation: Any) -> Any:
        """Draw an action."""
        if self.rng.random() < 0.001:
            raise ValueError("out of ideas")
        return super().get_action(observation)


class GuidedAlone(Alone):
    """Takes masks."""

    def get_action(self, observation: Any, *, action_mask: Any = None) -> Any:
        """Draw an action that the mask allows."""
        action, info = super().get_action(observation)
        return guided(action, action_mask), info


class SpeakingAlone(Alone):
    """Says a word, which depends on those that it sees."""

    def get_action(self, observation: Any) -> Any:
        """Draw a word."""
        action, info = super().get_action(observation["place"])
        return WORDS[(action + len(observation["said"])) % 3], info


class AloneAuthor(Author):
    """Draws programs whose agents draw from no global generator, which trajectories in flight share."""

    def agent(self) -> Any:
        if self.speaks:
            return SpeakingAlone(self.dice.randint(0, 9))
        return self.dice.choice([Alone, Alone, ForgetfulAlone, GuidedAlone])(self.dice.randint(0, 9))


class Pausing:
    """Waits before it acts."""

    _dice = random.Random(os.getpid())

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        if name == "agent":  # which is not there yet while this is unpickled
            raise AttributeError(name)
        return getattr(self.agent, name)

    async def get_action(self, observation: Any, **more: Any) -> Any:
        """Return the agent's action, later."""
        for _ in range(self._dice.choice([0, 1, 3])):
            await asyncio.sleep(0)
        return self.agent.get_action(observation, **more)


def changed(number: int, program: Program) -> Program:
    """Return a program whose environments wait, or run on threads, and its agents wait in every second one."""
    dice = random.Random(number)
    in_flight, pauses, on_threads = dice.choice([1, 2, 5, 40]), number % 2 == 0, dice.random() < 0.3

    def of(name: str, value: Any) -> Any:
        if isinstance(value, list | PerWorker):
            items = [of(name, item) for item in value]
            return items if isinstance(value, list) else PerWorker(items)
        if value is None:
            return None
        if name in _ENV:
            return value if on_threads else waiting(value)
        return Pausing(value) if pauses and type(value) in (Alone, ForgetfulAlone, SpeakingAlone) else value

    def mapped(given: dict[str, Any]) -> dict[str, Any]:
        return {name: of(name, value) if name in _AGENT | _ENV else value for name, value in given.items()}

    steps = [
        (name, tuple(mapped(it) if isinstance(it, dict) else it for it in arguments))
        for name, arguments in program.steps
    ]
    options = mapped(program.sampler) | {"worker_args": {"in_flight": in_flight, "threads": on_threads}}
    return Program(options, program.ways, steps)


def suits(number: int) -> bool:
    """Return whether a program has one agent, and one environment at a time in each worker."""
    author = AloneAuthor(number)
    return not author.several and author.program().sampler.get("worker_class") is not VecWorker


def prove(scale: str, engine: str | None = None, start_method: str | None = None) -> None:
    """Run random programs: 300 in the long form, with an engine and a start method; None for the default ones."""
    logging.getLogger("streamsampler").setLevel(logging.CRITICAL)  # it tells of each loss
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    tally: Counter[str] = Counter()
    numbers = filter(suits, range(10**6))
    with kept_open(engine):
        for n_programs in range(1, (300 if scale == "long" else 12) + 1):
            number = next(numbers)
            run_program(number, tally, partial(changed, number), AloneAuthor, engine=engine, start_method=start_method)
            if n_programs % 50 == 0:
                print(dict(tally), flush=True)
    print(dict(tally))
    assert tally["batches"] > tally["programs"]
    assert min(tally["errors"], tally["metrics"], tally["filters"]) > 0
