"""Ask an agent with `get_actions` only, for all trajectories that are ready.

A trajectory enqueues its observation, and awaits the answer. All observations of a turn of the event loop are a batch
of the next turn. A row has no fixed place: so the agent must declare ``row_independent = True``, and may not remember
rows.
"""

from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import is_row_independent, mask_argument, row_keywords
from streamsampler.agents.draws import Draws, RowDraws
from streamsampler.agents.independence import NOTHING_KNOWN
from streamsampler.agents.masks import ACTION_MASKS, Mask
from streamsampler.agents.updates import name_of
from streamsampler.core.awaiting import has_coroutines, is_awaitable
from streamsampler.core.errors import UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.generators import preserved_generators
from streamsampler.workers.masks import masks_reach
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.vec.agents import probe_rows
from streamsampler.workers.vec.aligned_copies import AlignedCopies
from streamsampler.workers.vec.batch_infos import info_of_row
from streamsampler.workers.vec.lanes import MULTIPLE
from streamsampler.workers.vec.rows import checked_results, stacked
from streamsampler.workers.waiting.deadlines import Clock
from streamsampler.workers.waiting.event_loop import WorkerEventLoop
from streamsampler.workers.waiting.turns import FlightTotals, Spent, Turns

__all__ = ["ReadyRows", "refuse_rows_with_places"]

N_ROWS = MULTIPLE
"""The rows of each batch of an agent without waits: the number may show in a row's last bits."""

_Answer = tuple[Any, dict[str, Any]]


def refuse_rows_with_places(agent: Any) -> None:
    """Raise a UsageError for an agent with `get_actions` only, if rows depend on each other or on their places."""
    by_place = sorted(row_keywords(agent.get_actions) & {"slots", "starts"})
    reset = getattr(agent, "reset", None)
    if callable(reset) and (name := mask_argument(reset)) is not None:
        by_place.append(name)
    if by_place:
        raise _refusal(agent, f"it takes {by_place[0]}, as agents with a memory of each row do")
    if not is_row_independent(agent):
        raise _refusal(agent, "it does not say row_independent = True")


def _refusal(agent: Any, reason: str) -> UsageError:
    return UsageError(
        f"the agent ({name_of(agent)}) has get_actions alone, so AsyncWorker asks it for all trajectories that are "
        f"ready, in any rows; but {reason}. Let each row depend on its observation and draws alone, or give the "
        "agent get_action"
    )


@dataclass(slots=True, eq=False)
class _ReadyRow:
    """A trajectory ready for an action.

    `answer` receives action and info, and is cancelled with the trajectory.
    """

    number: int
    index: int
    observation: Any
    mask: Mask | None
    answer: asyncio.Future[_Answer]


class ReadyRows:
    """Asks the agent for all ready rows; adds the agent's seconds to `totals`."""

    def __init__(self, worker: Worker, loop: WorkerEventLoop, totals: FlightTotals) -> None:
        self._worker, self._loop, self._totals = worker, loop, totals
        self._agent: Any = None
        self._get_actions: Callable[..., Any]
        self._keywords: set[str] = set()
        self._waits = self._takes_masks = self._is_called = False
        self._is_probed = self._is_conclusive = False
        self._spaces: tuple[Space[Any], Space[Any]] | None = None
        self._draws = Draws(N_ROWS)
        self._drawing = threading.Lock()  # an agent may draw on a thread
        self._seeds = [0] * N_ROWS  # by slot
        self._n_begun = [0] * N_ROWS  # by slot: trajectories so far
        self._ready: list[_ReadyRow] = []
        self._memory = AlignedCopies()

    def use(self, agent: Any) -> None:
        self._is_probed = agent is self._agent and self._is_conclusive
        self.replace(agent)

    def replace(self, agent: Any) -> None:
        """Use a copy of the agent, also for trajectories in flight."""
        self._agent, self._get_actions = agent, agent.get_actions
        self._keywords = row_keywords(agent.get_actions)
        self._waits = has_coroutines(agent, "get_actions") or has_coroutines(agent.get_actions, "__call__")
        self._takes_masks = masks_reach(agent, self._worker.warn_once, together=True)

    def of_slot(self, number: int, spaces: tuple[Space[Any], Space[Any]]) -> RowAgent:
        """Return the stand-in for the agent in a slot; `spaces` is the same object for the same environments."""
        if spaces is not self._spaces:
            self._spaces, self._is_probed, self._memory = spaces, False, AlignedCopies()
        if not (self._is_probed or self._waits):  # a probe would send requests to a service
            self._probe(spaces)
        while number >= len(self._seeds):
            self._seeds += [0] * len(self._seeds)
            self._n_begun += [0] * len(self._n_begun)
            with self._drawing:
                self._draws = self._draws.with_rows(len(self._seeds))
        return (_MaskedRowAgent if self._takes_masks else RowAgent)(self, number, self._agent)

    def _probe(self, spaces: tuple[Space[Any], Space[Any]]) -> None:
        with preserved_generators():
            found = probe_rows(self._agent, spaces, N_ROWS)
        if not (found.of_place or found is NOTHING_KNOWN):
            raise _refusal(self._agent, "the result of a row changed with its place in the batch")
        self._is_probed, self._is_conclusive = True, found.conclusive

    def begin(self, number: int, seed: int) -> None:
        """Begin a trajectory in a slot; `seed` is its seed for agents."""
        self._seeds[number] = seed
        self._n_begun[number] += 1
        if "draws" in self._keywords:
            with self._drawing:
                self._draws.begin(number, self._draws.prepare([seed]), 0)

    def ask(self, number: int, observation: Any, mask: Mask | None) -> asyncio.Future[_Answer]:
        index = self._worker.trajectory
        assert index is not None
        loop = self._loop.get()
        row = _ReadyRow(number, index, observation, mask, loop.create_future())
        self._ready.append(row)
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._ask_for_all)
        return row.answer

    def _ask_for_all(self) -> None:
        """Ask for all ready rows, except of cancelled trajectories."""
        rows, self._ready, self._is_called = [row for row in self._ready if not row.answer.done()], [], False
        rows.sort(key=lambda row: row.index)
        if self._waits:
            if rows:
                self._loop.start(self._await_answers(rows))
            return
        for start in range(0, len(rows), N_ROWS):
            self._answer(rows[start : start + N_ROWS])

    def _answer(self, rows: list[_ReadyRow]) -> None:
        began, turns = perf_counter(), self._turns_for(rows)
        turns.begin(Phase.ACTION)
        drawn = self._draws.__getstate__() if "draws" in self._keywords else None
        try:
            answers: list[_Answer | BaseException] = [*self._asked(rows)]
        except BaseException as error:
            if drawn is not None:
                self._draws.__setstate__(drawn)
            answers = self._asked_one_by_one(rows, error)
        finally:
            turns.end()
        self._totals.agent.running += perf_counter() - began
        for row, answer in zip(rows, answers, strict=True):
            _give(row, answer)

    def _asked_one_by_one(self, rows: list[_ReadyRow], error: BaseException) -> list[_Answer | BaseException]:
        """Return the answers of a batch that raised, row by row: a trajectory's exception must not depend on others.

        Each row alone has the same bits as among the others.
        """
        if len(rows) == 1 or is_interrupt(error):
            return [error] * len(rows)
        answers: list[_Answer | BaseException] = []
        for row in rows:
            try:
                answers += self._asked([row])
            except BaseException as own:
                answers.append(own)
                if is_interrupt(own):
                    return [own] * len(rows)
        if not any(isinstance(answer, BaseException) for answer in answers):
            answers[0] = _with_names(error, rows)
        return answers

    def _asked(self, rows: list[_ReadyRow]) -> list[_Answer]:
        """Return the answers to rows; copies of the first fill the batch."""
        filled = rows + rows[:1] * (N_ROWS - len(rows))
        keywords = self._values(filled)
        return self._rows_of(self._get_actions(self._memory.copy(self._batch(filled)), **keywords), filled)[: len(rows)]

    async def _await_answers(self, rows: list[_ReadyRow]) -> None:
        """Ask for rows, and answer each; cancelled when all their trajectories are."""
        task = asyncio.current_task()
        assert task is not None
        for row in rows:
            row.answer.add_done_callback(partial(_cancel_unneeded, task, rows))
        spent = Spent()
        answers: list[_Answer | BaseException]
        try:
            answers = [*self._rows_of(await self._turns_for(rows).take(self._call(rows), Phase.ACTION, spent), rows)]
        except asyncio.CancelledError as error:
            if all(row.answer.cancelled() for row in rows):
                raise
            answers = [error] * len(rows)
        except BaseException as error:
            answers = _one_for_each(_with_names(error, rows), len(rows))
        finally:
            self._totals.agent.running += spent.running  # trajectories count their own waits
        for row, answer in zip(rows, answers, strict=True):
            _give(row, answer)

    async def _call(self, rows: list[_ReadyRow]) -> Any:
        chosen = self._get_actions(self._batch(rows), **self._values(rows))
        return await chosen if is_awaitable(chosen) else chosen

    def _turns_for(self, rows: list[_ReadyRow]) -> Turns:
        return Turns(self._worker, rows[0].index, Clock(math.inf))

    def _batch(self, rows: list[_ReadyRow]) -> Any:
        assert self._spaces is not None
        return stacked(self._spaces[0], [row.observation for row in rows])

    def _values(self, rows: list[_ReadyRow]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        numbers = [row.number for row in rows]
        if "draws" in self._keywords:
            values["draws"] = _DrawsOfRows(self, numbers, [self._n_begun[number] for number in numbers])
        if "seeds" in self._keywords:
            values["seeds"] = np.array([self._seeds[number] for number in numbers])
        if self._takes_masks:
            masks = [row.mask for row in rows if row.mask is not None]
            values[ACTION_MASKS] = np.stack(masks) if masks else None
        return values

    def _rows_of(self, chosen: Any, rows: list[_ReadyRow]) -> list[_Answer]:
        """Return each row's own copy of its answer."""
        assert self._spaces is not None
        if is_awaitable(chosen):
            if isinstance(chosen, CoroutineType):
                chosen.close()  # otherwise Python warns about it
            raise UsageError(f"get_actions of {name_of(self._agent)} returned an awaitable: write it as async def")
        actions, infos = checked_results(self._spaces[1], chosen, len(rows))
        return [(action, own_copy(info_of_row(infos, place))) for place, action in enumerate(actions)]

    def drawn(self, numbers: NDArray[np.int64], begun: Sequence[int], draw: Callable[[RowDraws], Any]) -> Any:
        """Draw for the trajectories of some slots; 0 for trajectories other than the `begun`-th of their slot."""
        there = np.array([self._n_begun[number] == n for number, n in zip(numbers.tolist(), begun, strict=True)])
        with self._drawing:
            if there.all():
                return draw(self._draws.of_rows(numbers))
            found = draw(self._draws.of_rows(numbers[there]))
        result = np.zeros((len(there), *found.shape[1:]))
        result[there] = found
        return result


class _DrawsOfRows(RowDraws):
    """Draws for the rows of a batch.

    An agent that waits may draw after slots were added, and after other trajectories have begun in them.
    """

    def __init__(self, ready: ReadyRows, numbers: Sequence[int], begun: Sequence[int]) -> None:
        self.n_rows = len(numbers)
        self._ready, self._numbers, self._begun = ready, np.array(numbers), begun

    def random(self) -> Any:
        return self._ready.drawn(self._numbers, self._begun, lambda rows: rows.random())

    def normal(self, k: int) -> Any:
        return self._ready.drawn(self._numbers, self._begun, lambda rows: rows.normal(k))


class RowAgent:
    """Stands in a slot for an agent with `get_actions` only, and asks for single actions.

    Attributes:
        given: The agent.
        awaited_call: The awaited call, for messages.
    """

    def __init__(self, ready: ReadyRows, number: int, agent: Any) -> None:
        self._ready, self._number, self.given = ready, number, agent
        self.__qualname__ = name_of(agent)  # for messages
        self.awaited_call = f"get_actions of {self.__qualname__}"
        if callable(get_value := getattr(agent, "get_value", None)):
            self.get_value = get_value

    def reset(self, seed: int) -> None:
        self._ready.begin(self._number, seed)

    def get_action(self, observation: Any) -> Any:
        return self._ready.ask(self._number, observation, None)


class _MaskedRowAgent(RowAgent):
    """A `RowAgent` for agents that take masks."""

    def get_action(self, observation: Any, *, action_mask: Mask | None = None) -> Any:
        return self._ready.ask(self._number, observation, action_mask)


def _give(row: _ReadyRow, answer: _Answer | BaseException) -> None:
    """Answer a trajectory, unless it was cancelled."""
    if row.answer.done():
        return
    if not isinstance(answer, BaseException):
        row.answer.set_result(answer)
        return
    if isinstance(answer, StopIteration):  # futures refuse it
        wrapped = RuntimeError("get_actions raised StopIteration")
        wrapped.__cause__ = answer
        answer = wrapped
    row.answer.set_exception(answer)


def _with_names(error: BaseException, rows: list[_ReadyRow]) -> BaseException:
    """Return an error with a note of the trajectories in its batch, if several."""
    if len(rows) > 1:
        names = ", ".join(str(row.index) for row in rows)
        error.add_note(f"get_actions had the observations of trajectories {names}")
    return error


def _one_for_each(error: BaseException, n: int) -> list[_Answer | BaseException]:
    """Return an exception and copies of it: each trajectory adds its own notes."""
    try:
        return [error, *(copy.copy(error) for _ in range(n - 1))]
    except Exception:  # its constructor does not take its `args`
        return [error] * n


def _cancel_unneeded(task: asyncio.Task[None], rows: list[_ReadyRow], _: Any) -> None:
    # Only once: another cancellation would end the agent's cleanup, such as closing a connection.
    if not task.cancelling() and all(row.answer.cancelled() for row in rows):
        task.cancel()
