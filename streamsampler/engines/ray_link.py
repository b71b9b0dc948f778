"""The sampler's end of what it shares with one actor; for the engine of Ray."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from enum import Enum
from functools import partial
from typing import Any

import ray
from ray.runtime_env import RuntimeEnv

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.engines.linked import EngineLink, shown_stacks
from streamsampler.engines.ray_cluster import Demand
from streamsampler.engines.ray_worker import GROUPS, Hello, RaySetup, RayWorker, versions
from streamsampler.protocol.messages import Continue, Exit, Message, Start

_MOST_SECONDS = 1.0
"""How long the end of an actor that was killed is waited for."""

_STACKS_SECONDS = 1.0

_ACTOR = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=GROUPS)(RayWorker)


class Kind(Enum):
    """What a call of an actor's method was for."""

    HELLO = "hello"
    END = "end"
    TALK = "talk"
    LOOK = "look"


Post = Callable[["RayLink", Kind, int, "Future[Any]"], None]


class RayLink(EngineLink):
    """An actor, and the calls of its methods that have not returned.

    Nothing here waits for the actor: each call's future tells the engine when it is done, in a thread of Ray's.

    Args:
        number: The worker number.
        options: What Ray is to give the actor.
        post: Is given the link, the kind and the place of a call, and its future.

    Attributes:
        hello: What the worker said first; None before.
        dying: Why the worker died, while its last answers may still arrive; None otherwise.
        deadline: Until when they are waited for.
        said: What calls returned, by place, that came before others of an earlier place.
        unanswered: How many tickets are.
        closing: Whether the worker has received an `Exit`.
    """

    def __init__(self, number: int, options: Mapping[str, Any], post: Post) -> None:
        super().__init__(number)
        self.hello: Hello | None = None
        self.dying: str | None = None
        self.deadline = 0.0
        self.said: dict[int, Any] = {}
        self.unanswered = 0
        self.closing = False
        self._post = post
        self._place = self._next_place = 0  # how many messages were sent, and how many calls are done
        self._exit_place = -1
        self._looking = False
        self._end: Future[Any] = Future()
        self._actor = _ACTOR.options(**options).remote(number)
        self._call(Kind.HELLO, self._actor.hello)

    def _call(self, kind: Kind, method: Any, *arguments: Any, place: int = -1) -> Future[Any]:
        future: Future[Any] = method.remote(*arguments).future()
        future.add_done_callback(partial(self._post, self, kind, place))
        return future

    def run(self, hello: Hello, setup: RaySetup) -> None:
        """Let the worker run, which has said hello."""
        self.hello = hello
        self._end = self._call(Kind.END, self._actor.run, setup)

    def send(self, message: Message) -> None:
        """Send a message."""
        if isinstance(message, Start | Continue):
            self.unanswered += len(message.tickets)
        elif isinstance(message, Exit):
            self._exit_place = self._place
        self._call(Kind.TALK, self._actor.talk, self._place, message, place=self._place)
        self._place += 1

    def take_next(self) -> tuple[bytes | None, list[Any]] | None:
        """Return what the next call in order returned, None if that has not come: a row of the board, and answers.

        The last one is that of the call which lasts as long as the worker.
        """
        if self._next_place not in self.said:
            return None
        self.closing = self.closing or self._next_place == self._exit_place
        self._next_place += 1
        row, said = self.said.pop(self._next_place - 1)
        return row, said

    def note_end(self, returned: Any) -> None:
        """Note what the call returned that lasts as long as the worker: it comes after all others."""
        self.said[self._place] = returned
        self._place += 1

    @property
    def is_silent(self) -> bool:
        """Whether all calls are done."""
        return self._next_place == self._place

    def look(self) -> None:
        """Ask for the worker's row of the board, unless it was asked already."""
        if not self._looking and not self.ended:
            self._looking = True
            self._call(Kind.LOOK, self._actor.look)

    def note_look(self) -> None:
        """Note that the worker's row came, or never will."""
        self._looking = False

    def abandon_older(self, version: int) -> None:
        """Let the worker abandon rollouts of older versions."""
        self._actor.abandon_older.remote(version)

    def request_progress(self) -> None:
        """Ask the worker to show each timestep."""
        self._actor.request_progress.remote()

    # ------------------------------------------------------------------ the end

    @property
    def pid(self) -> int:
        """The worker's process id, on its own machine; 0 before it has started."""
        return 0 if self.hello is None else self.hello.pid

    def ends_within(self, timeout: float) -> bool:
        """Return whether the worker ends within `timeout` seconds."""
        return bool(wait([self._end], max(0.0, timeout)).done)

    def last_row(self) -> bytes | None:
        """Return the worker's row of the board as it was at the end; None if the worker was lost, or has not ended."""
        if not self._end.done() or self._end.exception() is not None:
            return None
        row: bytes = self._end.result()[0]
        return row

    def kill(self, *, gently: bool = False) -> None:
        """Kill the actor."""
        del gently
        with contextlib.suppress(Exception):  # Ray itself may be gone
            ray.kill(self._actor)

    def stacks(self) -> str:
        """Return the worker's Python stacks."""
        with contextlib.suppress(Exception):
            text = ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS)
            threads = shown_stacks(text, ["/site-packages/ray/", "/threading.py"]).split("\n\n")
            return "\n\n".join(thread for thread in threads if " File " in thread)
        return "(it did not answer: it is stopped or lost, or native code holds the interpreter's lock)"

    def close(self, timeout: float) -> None:
        """Kill the actor, and wait for its end, as far as it has run."""
        if not self.ended:
            self.kill()
        self.ended = True
        if self.hello is not None:
            self.ends_within(min(timeout, _MOST_SECONDS))


# ----------------------------------------------------------------------
# Start actors, and find the reason where they do not start; for the engine of Ray.


_START_SECONDS = 60.0  # that workers may take to start
_PREPARED_SECONDS = 600.0  # the same where Ray installs packages or fetches files for them first
_PREPARING = {"pip", "uv", "conda", "container", "image_uri", "working_dir", "py_modules"}
_MOST_FAILED = 3  # starts in a row


class Starts:
    """The actors that are started in the place of dead ones, and what holds for the start of each.

    Args:
        setup: What all workers are given.
        demand: What they need of the cluster.
        runtime_env: Ray's runtime environment for them, if there is one.
        post: See `RayLink`.

    Attributes:
        seconds: How long actors may take to start.

    Raises:
        UsageError: The runtime environment has something that Ray does not know.
    """

    def __init__(self, setup: RaySetup, demand: Demand, runtime_env: Mapping[str, Any] | None, post: Post) -> None:
        if unknown := set(runtime_env or ()) - RuntimeEnv.known_fields:  # which Ray would ignore
            raise UsageError(f"runtime_env has {', '.join(sorted(unknown))}, which Ray does not know")
        self._setup = setup
        self._demand = demand
        self._options = {"num_cpus": 1, **demand.options}
        if runtime_env:
            self._options["runtime_env"] = dict(runtime_env)
        self.seconds = _PREPARED_SECONDS if _PREPARING.intersection(runtime_env or ()) else _START_SECONDS
        self._post = post
        self._next: dict[int, RayLink] = {}
        self._failed = 0
        self._trouble: SamplerError | None = None
        self._deadline = math.inf

    def new(self, worker: int) -> RayLink:
        """Return the link to a new actor.

        Raises:
            UsageError: Ray refuses what it is asked for.
        """
        try:
            return RayLink(worker, self._options, self._post)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Ray refuses worker_resources or runtime_env: {error}") from error

    def begin(self, worker: int) -> None:
        """Start an actor that is to take the place of a dead one."""
        self._next[worker] = self.new(worker)

    def again(self, link: RayLink) -> None:
        """Start another actor instead of one that ended before it ran, unless that happened too often."""
        self._failed += 1
        if self._failed > _MOST_FAILED:
            self._failed = 0
            self._next.pop(link.number, None)
            self._trouble = SamplerError(f"worker {link.number} could not be started: it {link.dying}")
        else:
            self.begin(link.number)

    def is_ready(self, worker: int) -> bool:
        """Return whether an actor has started in the place of a dead one; start one if none is on its way."""
        if worker not in self._next:
            self.begin(worker)
        return self._next[worker].hello is not None

    def take(self, worker: int) -> RayLink:
        """Return the link to the actor that takes the place of a dead one, whether or not it has started."""
        return self._next.pop(worker) if worker in self._next else self.new(worker)

    @property
    def links(self) -> Collection[RayLink]:
        """The actors that have not yet taken the places of dead ones."""
        return self._next.values()

    def greet(self, link: RayLink, hello: Hello) -> None:
        """Let an actor run that has started, if it understands what it is sent."""
        here = versions()
        named = [(name, there, here.get(name)) for name, there in hello.versions.items()]
        differ = [f"{name} {there}, here {ours}" for name, there, ours in named if there != ours]
        if differ:
            self._next.pop(link.number, None)
            self._trouble = SamplerError(
                f"the node {hello.host} of the Ray cluster has other versions ({'; '.join(differ)}), with which "
                "batches may differ: install the same ones there, or name them in runtime_env={'pip': [...]}"
            )
            return
        self._failed = 0
        link.run(hello, self._setup)

    # ------------------------------------------------------------------ where nothing starts

    def seconds_left(self, *, idle: bool) -> float:
        """Return for how many more seconds nothing may happen.

        Args:
            idle: Whether nothing can happen but that an actor starts.
        """
        if not idle or all(link.hello is not None for link in self._next.values()):
            self._deadline = math.inf
        elif self._deadline == math.inf:
            self._deadline = time.monotonic() + self.seconds
        return self._deadline - time.monotonic()

    def raise_trouble(self) -> None:
        """Raise what went wrong; in particular, if nothing could happen for too long.

        Raises:
            SamplerError: It says why an actor cannot start, or what the cluster has.
        """
        trouble, self._trouble = self._trouble, None
        if trouble is None and time.monotonic() >= self._deadline:
            self._deadline = math.inf
            trouble = self.late(len(self._next))
        if trouble is not None:
            raise trouble

    def late(self, n_missing: int) -> SamplerError:
        """Return the error of so many actors that have not started in time."""
        return SamplerError(
            f"{n_missing} of {self._demand.n_workers} workers have not started within {self.seconds:g} s in the Ray "
            f"cluster, of which each needs {self._demand}: {self._demand.in_use()}; `ray list actors` and the logs of "
            "the nodes say more"
        )
