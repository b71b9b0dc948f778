"""The slots of a worker with waiting environments: each has an environment, and an agent if agents remember.

A slot is free, taken, or closing. After an exception its environment is closed, and made again for the next trajectory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.errors import DataError
from streamsampler.core.timing import not_measuring
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.closing import EnvCloseError, close_error, close_replaced, closing_together
from streamsampler.environments.updates import AnyEnv, EnvUpdate, for_worker
from streamsampler.protocol.messages import Phase
from streamsampler.workers.alike import refuse_different
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.generators import kept_generators, restore_generators, seed_constructors
from streamsampler.workers.lending import LendingWorker
from streamsampler.workers.recorders import recorder_for
from streamsampler.workers.restoring import AS_GIVEN, refuse_copies_of
from streamsampler.workers.waiting.awaited_env import AwaitedEnv, EnvsOnLoop
from streamsampler.workers.waiting.driver import ShownFlight, TrajectorySetup
from streamsampler.workers.waiting.event_loop import CLEANUP_SECONDS, WorkerEventLoop
from streamsampler.workers.waiting.slot_agents import Slot, SlotAgents
from streamsampler.workers.waiting.threads import EnvsOnThreads, ThreadedEnv

_OF_AGENT = {Phase.ACTION, Phase.AGENT_RESET}


class Slots:
    """Makes slots as needed, and lends them to trajectories.

    `on_free` is called when a slot becomes free after closing, and not at a trajectory's end.
    """

    def __init__(
        self, worker: LendingWorker, most: int, loop: WorkerEventLoop, made_by: EnvsOnLoop | EnvsOnThreads,
        agents: SlotAgents, on_free: Callable[[], None],
    ) -> None:  # fmt: skip
        self._worker, self._most, self._loop, self._on_free = worker, most, loop, on_free
        self._agents = agents
        self._made_by = made_by
        self._closing: set[asyncio.Task[None]] = set()
        self._n_made = 0
        self._all: list[Slot] = []
        self._free: list[Slot] = []
        self._spaces: tuple[Any, Any] | None = None
        self._first: AwaitedEnv | ThreadedEnv | None = None  # made by the latest update; its slot may be abandoned

    @property
    def spaces(self) -> tuple[Any, Any]:
        assert self._spaces is not None
        return self._spaces

    @property
    def envs(self) -> list[AnyEnv]:
        """The environments, also those to be replaced."""
        return [slot.env for slot in self._all]

    @property
    def first_env(self) -> AnyEnv:
        """The first environment, made as all others; it may be abandoned."""
        assert self._first is not None
        return cast("AnyEnv", self._first.given)

    def update_env(self, update: EnvUpdate) -> None:
        """Replace or change the first environment; others are made from the update as needed.

        Raises:
            EnvCloseError: A replaced environment could not be closed; the worker then has none.
        """
        self._finish_closing()
        known, self._all, self._free, self._spaces = self._all, [], [], None
        usable = [slot.env for slot in known if not slot.is_spoiled]  # spoiled slots have closed theirs
        first = usable[0] if usable else None
        try:
            with closing_together(self._loop.complete), contextlib.ExitStack() as closing:
                for env in usable[1:]:
                    closing.callback(close_replaced, env, self._made_by.close)
        except Exception as error:
            with contextlib.suppress(EnvCloseError):
                close_replaced(first, self._made_by.close)
            raise error if isinstance(error, EnvCloseError) else close_error(first, error) from error
        env = self._made_by.apply(update, first)
        self._n_made = 0
        self._add(env, is_new=env is not first)
        self._agents.play_in(env)

    def _add(self, env: AnyEnv, *, is_new: bool = True) -> Slot:
        number, self._n_made = self._n_made, self._n_made + 1  # an abandoned slot keeps its number for hooks
        slot = Slot(number, self._new_setup(env, number))
        if number == 0:
            self._first = slot.setup.env
        if is_new:
            self._call_created_hooks(slot)
        if self._spaces is None:
            self._spaces = env.observation_space, env.action_space
        else:
            self._refuse_other(env)
        self._all.append(slot)
        self._free.append(slot)
        return slot

    def _new_setup(self, env: AnyEnv, number: int) -> TrajectorySetup:
        self._worker.make_callers(number + 1)
        callers = self._worker.hook_callers
        shown = ShownFlight(self._worker, callers[number]) if callers else None
        return TrajectorySetup(self._made_by.awaited(env), None, None, None, AS_GIVEN, recorder_for(env, None), shown)

    def _refuse_other(self, env: AnyEnv) -> None:
        """Close an environment with other spaces, or agents, than the first, and raise a DataError."""
        try:
            refuse_different([self.first_env, env])
        except DataError:
            self._begin_closing(env)
            self._worker.phase = Phase.ENV_CONSTRUCTION
            raise

    def _call_created_hooks(self, slot: Slot) -> None:
        if callers := self._worker.hook_callers:
            try:
                callers[slot.number].created(slot.env)
            except BaseException:
                self._begin_closing(slot.env)
                raise

    def new_recorder(self, slot: Slot) -> RolloutRecorder:
        return recorder_for(slot.env, slot.setup.agent)

    def take(self, _index: int) -> Slot | None:
        if not self._free:
            if len(self._all) >= self._most:
                return None
            self._add(self._made(self._n_made))
        slot = self._free.pop()
        try:
            if slot.is_spoiled:
                env = self._made(slot.number)
                self._refuse_other(env)
                slot.setup, slot.is_spoiled = self._new_setup(env, slot.number), False
                self._call_created_hooks(slot)
        except BaseException:
            self._free.append(slot)
            raise
        try:
            self._agents.assign(slot)
        except BaseException:
            slot.is_spoiled, slot.agent_mark = True, None
            self._begin_closing(slot.env)
            self._free.append(slot)
            raise
        return slot

    def _made(self, number: int) -> AnyEnv:
        """Return a new environment; the global generators are restored after its constructor."""
        worker = self._worker
        phase = worker.phase
        worker.enter(Phase.ENV_CONSTRUCTION)
        kept = kept_generators()
        try:
            seed_constructors(worker.context.seed)
            with not_measuring(), for_worker(worker.context.worker_number):
                update = worker.load(worker.in_force["env"]).of_slot(number)
                env = self._made_by.apply(update, None)
        finally:
            restore_generators(kept)
        refuse_copies_of(env, [slot.env for slot in self._all if not slot.is_spoiled], update)
        worker.enter(phase)
        return env

    def put_back(self, slot: Slot) -> None:
        if slot in self._all:
            slot.setup.recorder.clear()
            self._free.append(slot)

    def replace(self, slot: Slot) -> None:
        """Free a slot after its environment or agent raised: both are replaced before the next trajectory.

        If `close` is asynchronous, a task awaits it before the slot is free.
        """
        if slot not in self._all:
            return
        if self._worker.phase in _OF_AGENT:
            self._agents.replace_after(slot)
        slot.is_spoiled, slot.agent_mark = True, None
        if (closed := self._begin_closing(slot.env)) is None:
            self._free.append(slot)
        else:
            closed.add_done_callback(partial(self._free_closed, slot))

    def _begin_closing(self, env: AnyEnv) -> asyncio.Task[None] | None:
        """Close an environment, and ignore its exceptions; return the task of an asynchronous `close`."""
        closing: Any = None
        with contextlib.suppress(Exception, SystemExit):
            closing = self._made_by.begin_close(env)
        if not is_awaitable(closing):
            return None
        task = self._loop.get().create_task(_closed(closing))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _free_closed(self, slot: Slot, _: Any) -> None:
        if slot in self._all:
            self._free.append(slot)
            self._on_free()

    def _finish_closing(self) -> None:
        if self._closing:
            self._loop.complete(asyncio.wait(self._closing))

    def abandon(self, slot: Slot) -> None:
        """Remove a slot, because its trajectory continues after its cancellation."""
        self._all.remove(slot)
        name = name_of_env(slot.env)
        self._worker.warn_once(
            f"ends late: {name}",
            f"a trajectory in {name} was cancelled, but still runs: {self._made_by.why_still_running}. The worker does "
            "not use this environment again",
        )
        self._made_by.abandon(slot.env)

    def awaited(self, env: AnyEnv) -> AwaitedEnv | ThreadedEnv:
        """Return an object that awaits the environment's resets and steps."""
        known = next((slot.setup.env for slot in self._all if slot.env is env), None)
        return known or self._made_by.awaited(env)

    def lend_first(self) -> None:
        """Remove the first slot: fragments use its environment."""
        lent = self._all.pop(0)
        self._free = [slot for slot in self._free if slot is not lent]

    def close(self) -> None:
        self._finish_closing()
        slots, self._all, self._free = self._all, [], []
        with contextlib.ExitStack() as closing:
            for slot in slots:
                if not slot.is_spoiled:
                    closing.callback(self._made_by.close, slot.env)


async def _closed(closing: Any) -> None:
    with contextlib.suppress(Exception, SystemExit):
        await asyncio.wait_for(closing, CLEANUP_SECONDS)
