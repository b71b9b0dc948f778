"""The sampler's end of an actor of Ray. Needs `pip install ray`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from enum import Enum
from functools import partial
from typing import Any

import ray

from streamsampler.engines.linked import EngineLink, shown_stacks
from streamsampler.engines.ray_worker import GROUPS, Hello, RaySetup, RayWorker
from streamsampler.protocol.messages import Continue, Exit, Message, Start

_MOST_SECONDS = 1.0
"""Most seconds to wait for the end of a killed actor."""

_STACKS_SECONDS = 1.0

_ACTOR = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=GROUPS)(RayWorker)


class Kind(Enum):
    """The purpose of a call of an actor's method."""

    HELLO = "hello"
    END = "end"
    TALK = "talk"
    LOOK = "look"


Post = Callable[["RayLink", Kind, int, "Future[Any]"], None]


class RayLink(EngineLink):
    """An actor, and the unfinished calls of its methods.

    Nothing here waits for the actor: `post` receives the link, kind and number of a call, and its future, in a thread
    of Ray's.
    """

    def __init__(self, number: int, options: Mapping[str, Any], post: Post) -> None:
        super().__init__(number)
        self.hello: Hello | None = None  # the worker's first message
        self.dying: str | None = None  # reason of its death, while its last answers may still arrive
        self.deadline = 0.0  # when they are no longer awaited
        self.results: dict[int, Any] = {}  # results of calls ahead of an unfinished earlier call, by number
        self.unanswered = 0  # tickets
        self.closing = False  # whether the worker has received an `Exit`
        self._post = post
        self._place = self._next_place = 0  # numbers of messages sent, and of calls done
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
        """Let the worker run, after its `hello`."""
        self.hello = hello
        self._end = self._call(Kind.END, self._actor.run, setup)

    def send(self, message: Message) -> None:
        if isinstance(message, Start | Continue):
            self.unanswered += len(message.tickets)
        elif isinstance(message, Exit):
            self._exit_place = self._place
        self._call(Kind.TALK, self._actor.talk, self._place, message, place=self._place)
        self._place += 1

    def pop_next(self) -> tuple[bytes | None, list[Any]] | None:
        """Return the result of the next call in order, a row of the board and answers; None before it arrives.

        The last result is from `run`.
        """
        if self._next_place not in self.results:
            return None
        self.closing = self.closing or self._next_place == self._exit_place
        self._next_place += 1
        row, answers = self.results.pop(self._next_place - 1)
        return row, answers

    def record_end(self, returned: Any) -> None:
        """Record the result of `run`, after all other calls."""
        self.results[self._place] = returned
        self._place += 1

    @property
    def is_silent(self) -> bool:
        """Whether all calls are done."""
        return self._next_place == self._place

    def look(self) -> None:
        """Request the worker's row of the board, unless a request is pending."""
        if not self._looking and not self.ended:
            self._looking = True
            self._call(Kind.LOOK, self._actor.look)

    def record_look(self) -> None:
        """Record that the requested row arrived, or never will."""
        self._looking = False

    def abandon_older(self, version: int) -> None:
        self._actor.abandon_older.remote(version)

    def request_progress(self) -> None:
        self._actor.request_progress.remote()

    @property
    def pid(self) -> int:
        """The worker's process id, on its own machine; 0 before it has started."""
        return 0 if self.hello is None else self.hello.pid

    def ends_within(self, timeout: float) -> bool:
        return bool(wait([self._end], max(0.0, timeout)).done)

    def last_row(self) -> bytes | None:
        """Return the worker's row of the board from its end; None if it was lost, or has not ended."""
        if not self._end.done() or self._end.exception() is not None:
            return None
        row: bytes = self._end.result()[0]
        return row

    def kill(self, *, gently: bool = False) -> None:
        del gently
        with contextlib.suppress(Exception):  # Ray itself may be gone
            ray.kill(self._actor)

    def stacks(self) -> str:
        with contextlib.suppress(Exception):
            text = ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS)
            threads = shown_stacks(text, ["/site-packages/ray/", "/threading.py"]).split("\n\n")
            return "\n\n".join(thread for thread in threads if " File " in thread)
        return "(it did not answer: it is stopped or lost, or native code holds the interpreter's lock)"

    def close(self, timeout: float) -> None:
        """Kill the actor, and wait for its end if it has run."""
        if not self.ended:
            self.kill()
        self.ended = True
        if self.hello is not None:
            self.ends_within(min(timeout, _MOST_SECONDS))
