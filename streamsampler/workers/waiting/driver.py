"""Drive the script of one trajectory as a coroutine: await its environment, and its agent where that waits, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import coroutine
from typing import Any

from streamsampler.agents.masks import MaskFinder
from streamsampler.agents.updates import name_of
from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.errors import ActionError, DataError
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.timing import collector_in_use
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import Binding, Cut, End, Script, own_error, phase_of, trajectory
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.explain import explain_rollout, locate, name_of_env
from streamsampler.workers.finishing import value_of
from streamsampler.workers.restoring import Rounding, own_copy
from streamsampler.workers.seams import ShownTrajectory
from streamsampler.workers.single import Part
from streamsampler.workers.trajectory_context import TrajectoryContext
from streamsampler.workers.waiting.awaited_env import AwaitedEnv
from streamsampler.workers.waiting.deadlines import Clock, place_of_wait

_LONGEST_TURN = 1e-2
"""Seconds for which a trajectory may go on, from step to step, without waiting: a sampler may have called it off."""


@dataclass(slots=True, eq=False)
class Spent:
    """Seconds of trajectories in flight, summed over them.

    Attributes:
        running: In which their code ran.
        waiting: In which they waited, or their code could have run and another one's did.
    """

    running: float = 0.0
    waiting: float = 0.0


@dataclass(slots=True, eq=False)
class FlightTotals:
    """What trajectories in flight have taken since the last report, summed over them.

    Attributes:
        reset: Seconds of resets.
        agent: Seconds of the agent.
        step: Seconds of steps.
        n_timesteps: Their timesteps that are in no answer yet.
        n_timed_out: How often one exceeded a time limit.
    """

    reset: Spent = field(default_factory=Spent)
    agent: Spent = field(default_factory=Spent)
    step: Spent = field(default_factory=Spent)
    n_timesteps: int = 0
    n_timed_out: int = 0

    def take_timed_out(self) -> int:
        """Return how often a trajectory exceeded a time limit, and set it to 0."""
        taken, self.n_timed_out = self.n_timed_out, 0
        return taken

    def take_seconds(self) -> tuple[Spent, Spent, Spent]:
        """Return the seconds of resets, of the agent and of steps, and set them to 0."""
        seconds = self.reset, self.agent, self.step
        self.reset, self.agent, self.step = Spent(), Spent(), Spent()
        return seconds


class ShownFlight(ShownTrajectory):
    """Shows the trajectories of a driver to hooks.

    Attributes:
        context_of: Returns the context of a trajectory that begins, or goes on: takes its index and its seed.
    """

    context_of: Callable[[int, int], TrajectoryContext]


@dataclass(slots=True, eq=False)
class Surroundings:
    """What a trajectory runs in, and is recorded by.

    Attributes:
        env: The environment.
        agent: The agent.
        reset_agent: Resets the agent with a seed; None if it has no `reset`.
        masks: Finds masks of actions, for an agent that takes them.
        rounding: Gives actions the floats of their space.
        recorder: The recorder.
        shown: Shows timesteps to hooks; None without these.
    """

    env: AwaitedEnv
    agent: Any
    reset_agent: Callable[[int], None] | None
    masks: MaskFinder | None
    rounding: Rounding
    recorder: RolloutRecorder
    shown: ShownFlight | None


class Turns:
    """Lets one trajectory have its turn: what belongs to it is in place while its code runs, and no other's.

    Args:
        worker: The worker, whose board shows which trajectory's code runs, and in which phase.
        index: The trajectory's index.
        clock: Is told since when the trajectory waits.

    Attributes:
        index: The trajectory's index.
        phase: The phase of the last turn.
    """

    def __init__(self, worker: Worker, index: int, clock: Clock) -> None:
        self._worker, self.index, self._clock = worker, index, clock
        self._block: Any = None  # the `timed` block that the trajectory is in
        self.phase = Phase.RESET
        self._waited_at = perf_counter()  # when others could have a turn last

    def begin(self, phase: Phase) -> None:
        """Begin a turn."""
        worker, self.phase = self._worker, phase
        row = worker.row
        worker.phase, worker.trajectory = phase, self.index
        row.words[row.phase_word] = phase_number(phase)
        row.words[row.trajectory_word] = self.index + 1
        collector_in_use().here = self._block

    def end(self) -> None:
        """End a turn."""
        collector = collector_in_use()
        self._block, collector.here = collector.here, None

    async def let_others(self, phase: Phase, spent: Spent) -> None:
        """Let others have a turn, and messages come in, where this trajectory has waited for nothing for long."""
        if perf_counter() - self._waited_at > _LONGEST_TURN:
            await self.take(asyncio.sleep(0), phase, spent)

    @coroutine
    def take(self, awaitable: Any, phase: Phase, spent: Spent) -> Generator[Any, Any, Any]:
        """Await something, with a turn each time that it goes on."""
        steps, clock = awaitable.__await__(), self._clock
        resume: Callable[[], Any] = partial(next, steps)
        began = clock.waits_since = perf_counter()
        try:
            while True:
                self.begin(phase)
                try:
                    future = resume()
                except StopIteration as stopped:
                    if clock.exceeded is not None:
                        raise asyncio.CancelledError from None  # it came too late, although it came
                    return stopped.value
                finally:
                    ended = perf_counter()
                    spent.running += ended - began
                    self.end()
                try:
                    yield future
                    resume = partial(next, steps)
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:
                    resume = partial(steps.throw, error)
                finally:
                    began = self._waited_at = perf_counter()
                    spent.waiting += began - ended
        finally:
            clock.waits_since = None


class FlightDriver:
    """Drives scripts one after the other: that of a whole trajectory, or those of the parts in a fragment.

    Args:
        worker: The worker, whose board shows the timesteps of all trajectories in flight.
        around: What they run in.
        index: The first one's index.
        waited: Where seconds and timesteps are added up.

    Attributes:
        reset: Resets the environment: `reset(seed=seed)`; set before `script` is called.
        binding: For the scripts.
        info: The info that came with the last observation.
        has_begun: Whether the environment was reset.
        n_timesteps: The timesteps so far.
        restored_timesteps: Those that were run to restore an episode.
        phase: What the trajectory was doing when it raised.
        clock: Since when it runs and waits.
    """

    reset: Callable[..., Any]

    def __init__(self, worker: Worker, around: Surroundings, index: int, waited: FlightTotals) -> None:
        self._worker, self._around, self._waited = worker, around, waited
        self.clock = Clock(perf_counter())
        self._turns = Turns(worker, index, self.clock)
        self._seed = 0  # of the script that was made last
        self.binding = Binding(around.env.step, around.recorder, around.shown, waits=True)
        self.info: Any = None
        self.has_begun = False
        self.n_timesteps = self.restored_timesteps = 0
        self.phase = Phase.RESET

    @property
    def index(self) -> int:
        """The index of the trajectory in hand."""
        return self._turns.index

    def script(self, seed: int, limit: int | None) -> Script:
        """Return a new script of a trajectory, which may have so many timesteps; None for any number."""
        self._seed = seed
        begin = None if self._around.reset_agent is None else self._begin_agent
        return trajectory(self.reset, self.binding, seed, begin, limit)

    async def run(self, parts: Iterable[Part], take_end: Callable[[End], None] | None = None) -> None:
        """Drive scripts, each to its end, or for as many timesteps as its part may have.

        Args:
            parts: The parts. The next one is asked for after each part.
            take_end: Ends the record of a part; None for the recorder's `end`.

        Raises:
            BaseException: What environment, agent or hooks raise.
        """
        shown = self._around.shown
        for index, seed_generators, script, binding, n_timesteps in parts:
            self._turns.index = index
            if seed_generators is not None:
                seed_generators()
            if shown is not None and binding is None:
                shown.context = shown.context_of(index, self._seed)
            await self._drive(script, binding, n_timesteps, take_end or self._end)

    def _end(self, end: End) -> None:
        self._around.recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)

    async def _drive(  # noqa: C901 - one trajectory, with the phase of each of its parts
        self, script: Script, binding: Binding | None, n_timesteps: int, take_end: Callable[[End], None]
    ) -> None:
        around, turns, recorder = self._around, self._turns, self._around.recorder
        rewards, rounding = recorder.float_rewards, around.rounding
        stop = len(rewards) + n_timesteps
        action: Any = None
        agent_info: Any = None
        outside: Phase | None = None  # the phase of what is not the script's
        try:
            turns.begin(Phase.RESET)
            observation: Any = script.send(binding)
            if binding is None:
                observation = await self._next(script, observation, "reset")
            self.has_begun = True
            while True:
                if len(rewards) >= stop:
                    turns.begin(Phase.STEP)
                    end: End = script.throw(Cut())
                    break
                outside = Phase.ACTION
                turns.begin(outside)
                began = perf_counter()
                chosen = self._ask(observation)
                self._waited.agent.running += perf_counter() - began
                if is_awaitable(chosen):
                    chosen = await turns.take(chosen, outside, self._waited.agent)
                action, agent_info = chosen
                recorder.record_action(action)
                if rounding.dtype is not None:
                    action = rounding.round(action)
                outside = Phase.RECORDING
                if agent_info.__class__ is not dict or agent_info:
                    recorder.record_agent_info(len(rewards), agent_info)
                if around.shown is not None:
                    self._show_action(around.shown, action, agent_info)
                action = own_copy(action)
                outside = None
                turns.begin(Phase.STEP)
                pending = script.send(action)
                observation = await self._next(script, pending, "step")
                if observation.__class__ is End:
                    end = observation
                    break
            outside = Phase.ACTION
            if not end.terminated and agent_info.__class__ is dict and "value" in agent_info:
                await self._record_last_value(end.observation)
            outside = Phase.RECORDING
            take_end(end)
        except GeneratorExit:  # nothing runs it any more
            script.close()
            raise
        except BaseException as error:
            script.close()
            turns.end()
            raised = own_error(error)
            self._worker.phase = self.phase = phase_of(raised, outside, self._worker.phase)
            if self.clock.exceeded is not None:
                raised = self._too_long(place_of_wait(error))
            if around.shown is not None:
                around.shown.lost(raised)
            try:
                explain_rollout(self._worker, raised, action, around.env, recorder, asking=FlightDriver._drive)
            finally:
                self.phase = self._worker.phase
            if raised is not error:
                raise raised from (None if self.clock.exceeded is None else error)
            raise

    def finish(self) -> Rollouts:
        """Return the record."""
        around, self.phase = self._around, Phase.RECORDING
        try:
            return around.recorder.finish()
        except DataError as error:
            locate(error, around.env, error.timestep)
            if isinstance(error, ActionError):
                self.phase = Phase.ACTION
            raise

    async def wait(self, pending: Any) -> Any:
        """Return the result of a reset or a step that restores an episode."""
        if not is_awaitable(pending):
            return pending
        return await self._turns.take(pending, Phase.RESET, self._waited.reset)

    def error_of_limit(self) -> TimeoutError:
        """Return the error of a trajectory that exceeded a time limit, and has not ended although it was cancelled."""
        self.phase = self._turns.phase
        return self._too_long("; it was cancelled, and goes on")

    def _too_long(self, place: str) -> TimeoutError:
        name = {Phase.RESET: "reset", Phase.STEP: "step"}.get(self.phase)
        of = name_of(self._around.agent) if name is None else name_of_env(self._around.env)
        when = "" if self.phase is Phase.RESET else f", at timestep {self.n_timesteps},"
        return TimeoutError(f"{name or 'get_action'} of {of}{when} exceeded {self.clock.exceeded}{place}")

    async def _next(self, script: Script, pending: Any, what: str) -> Any:
        """Return what a script yields when it is sent the result of a reset or a step; its end where it ends."""
        try:
            if what == "reset":
                result = await self._turns.take(pending, Phase.RESET, self._waited.reset)
            else:
                result = await self._turns.take(pending, Phase.STEP, self._waited.step)
        except Exception as error:
            return script.throw(error)  # so its traceback says what the script did
        self.info = result[-1] if isinstance(result, tuple) and result else None
        if what == "step":
            self._count_timestep()  # now, since one that is cancelled need not have been taken
            await self._turns.let_others(Phase.STEP, self._waited.step)
        try:
            return script.send(result)
        except StopIteration as stopped:
            return stopped.value

    def _begin_agent(self, seed: int) -> None:
        assert self._around.reset_agent is not None
        self._around.reset_agent(derived_seed(seed, SeedUse.AGENT))

    def _ask(self, observation: Any) -> Any:
        around = self._around
        if around.masks is None:
            return around.agent.get_action(observation)
        return around.agent.get_action(observation, action_mask=around.masks(observation, self.info))

    @staticmethod
    def _show_action(shown: ShownFlight, action: Any, agent_info: Any) -> None:
        assert shown.context is not None
        shown.context.action, shown.agent_info = action, agent_info

    def _count_timestep(self) -> None:
        self.n_timesteps += 1
        self._waited.n_timesteps += 1
        row = self._worker.row
        row.words[row.timesteps_word] = self._waited.n_timesteps

    async def _record_last_value(self, observation: Any) -> None:
        """Record the agent's value of the last observation of the trajectory, while the agent remembers it."""
        get_value = getattr(self._around.agent, "get_value", None)
        if get_value is None:
            return
        value = get_value(observation)
        if is_awaitable(value):
            value = await self._turns.take(value, Phase.ACTION, self._waited.agent)
        self._around.recorder.record_last_value(value_of(lambda _: value, observation))
