"""Drive the script of a trajectory as a coroutine: await its environment, and an agent that waits.

A step's result counts as soon as it is there: a cancelled trajectory may never continue. Errors get their phase,
timestep and time limit here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from streamsampler.agents.masks import MaskFinder
from streamsampler.agents.updates import name_of
from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.errors import ActionError, DataError
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import Binding, Cut, End, Script, own_error, phase_of, trajectory
from streamsampler.workers.base import Worker
from streamsampler.workers.explain import explain_rollout, locate, name_of_env
from streamsampler.workers.finishing import value_of
from streamsampler.workers.restoring import Rounding, own_copy
from streamsampler.workers.seams import ShownTrajectory
from streamsampler.workers.several.policy_set import EnvAgents
from streamsampler.workers.single import Part
from streamsampler.workers.trajectory_context import TrajectoryContext
from streamsampler.workers.waiting.awaited_env import AwaitedEnv
from streamsampler.workers.waiting.deadlines import Clock, place_of_wait
from streamsampler.workers.waiting.ready_rows import RowAgent
from streamsampler.workers.waiting.threads import LateCancelledError, ThreadedEnv
from streamsampler.workers.waiting.turns import FlightTotals, Turns


class ShownFlight(ShownTrajectory):
    """Shows the trajectories of a driver to hooks.

    Attributes:
        context_of: Returns a trajectory's context from its index and its seed.
    """

    context_of: Callable[[int, int], TrajectoryContext]


@dataclass(slots=True, eq=False)
class TrajectorySetup:
    """The environment, agent and recorder of a trajectory.

    Without a `reset` of the agent, masks or hooks, the attribute for them is None. `rounding` gives actions the floats
    of their space.
    """

    env: AwaitedEnv | ThreadedEnv
    agent: Any
    reset_agent: Callable[[int], None] | None
    masks: MaskFinder | None
    rounding: Rounding
    recorder: RolloutRecorder
    shown: ShownFlight | None


class FlightDriver:
    """Drives scripts one after the other: of a whole trajectory, or of the parts in a fragment.

    The board of the worker shows the timesteps of all trajectories in flight, whose sums are in `totals`.

    Attributes:
        reset: Resets the environment, `reset(seed=seed)`; set before `script` is called.
        binding: For the scripts.
        info: The info of the last observation.
        has_begun: Whether the environment was reset.
        n_timesteps: The timesteps so far.
        restored_timesteps: The timesteps run to restore an episode.
        phase: The phase of the exception.
        clock: The times of the trajectory and its waits.
        is_cancelled: Whether the worker has cancelled it.
    """

    reset: Callable[..., Any]

    def __init__(self, worker: Worker, setup: TrajectorySetup, index: int, totals: FlightTotals) -> None:
        self._worker, self._setup, self._totals = worker, setup, totals
        self.clock = Clock(math.inf)  # until its start
        self._turns = Turns(worker, index, self.clock)
        self._seed = 0  # of the last script
        self.binding = Binding(setup.env.step, setup.recorder, setup.shown, waits=True)
        self.info: Any = None
        self.has_begun = self.is_cancelled = False
        self.n_timesteps = self.restored_timesteps = 0
        self.phase = Phase.RESET

    @property
    def index(self) -> int:
        return self._turns.index

    def script(self, seed: int, limit: int | None) -> Script:
        """Return a new script of a trajectory, limited to so many timesteps; None for no limit."""
        self._seed = seed
        begin = None if self._setup.reset_agent is None else self._begin_agent
        return trajectory(self.reset, self.binding, seed, begin, limit)

    async def run(self, parts: Iterable[Part], take_end: Callable[[End], None] | None = None) -> None:
        """Drive scripts, each to its end, or for the timesteps of its part.

        The iterable yields the next part after the previous has ended. `take_end` ends the record of a part.
        """
        shown = self._setup.shown
        for index, seed_generators, script, binding, n_timesteps in parts:
            self._turns.index = index
            if seed_generators is not None:
                seed_generators()
            if shown is not None and binding is None:
                shown.context = shown.context_of(index, self._seed)
            await self._drive(script, binding, n_timesteps, take_end or self._end)

    def _end(self, end: End) -> None:
        self._setup.recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)

    async def _drive(  # noqa: C901 - one trajectory, with the phase of each of its parts
        self, script: Script, binding: Binding | None, n_timesteps: int, take_end: Callable[[End], None]
    ) -> None:
        setup, turns, recorder = self._setup, self._turns, self._setup.recorder
        rewards, rounding = recorder.float_rewards, setup.rounding
        stop = len(rewards) + n_timesteps
        action: Any = None
        agent_info: Any = None
        outside: Phase | None = None  # the phase outside the script
        try:
            turns.begin(Phase.RESET)
            observation: Any = script.send(binding)
            if binding is None:
                try:
                    result = await turns.take(observation, Phase.RESET, self._totals.reset)
                except LateCancelledError:
                    self.has_begun = True
                    raise
                except Exception as error:
                    script.throw(error)  # so that its traceback shows the script's line
                    raise
                self.info = result[-1] if isinstance(result, tuple) and result else None
                observation = script.send(result)
            self.has_begun = True
            end: End | None = None
            while end is None:
                if len(rewards) >= stop:
                    turns.begin(Phase.STEP)
                    end = script.throw(Cut())
                    break
                outside = Phase.ACTION
                turns.begin(outside)
                began = perf_counter()
                chosen = self._ask(observation)
                self._totals.agent.running += perf_counter() - began
                if is_awaitable(chosen):
                    chosen = await turns.take(chosen, outside, self._totals.agent)
                action, agent_info = chosen
                recorder.record_action(action)
                if rounding.dtype is not None:
                    action = rounding.round(action)
                outside = Phase.RECORDING
                if agent_info.__class__ is not dict or agent_info:
                    recorder.record_agent_info(len(rewards), agent_info)
                if setup.shown is not None:
                    self._show_action(setup.shown, action, agent_info)
                action = own_copy(action)
                outside = None
                turns.begin(Phase.STEP)
                pending = script.send(action)
                try:
                    result = await turns.take(pending, Phase.STEP, self._totals.step)
                except LateCancelledError:
                    self._take_step(None)
                    raise
                except Exception as error:
                    script.throw(error)
                    raise
                self._take_step(result)  # before another turn: the trajectory may be cancelled then
                await turns.let_others(Phase.STEP, self._totals.step)
                try:
                    observation = script.send(result)
                except StopIteration as stopped:
                    end = stopped.value
            outside = Phase.ACTION
            if not end.terminated and agent_info.__class__ is dict and "value" in agent_info:
                await self._record_last_value(end.observation)
            outside = Phase.RECORDING
            take_end(end)
            turns.end()
        except GeneratorExit:  # its task was destroyed
            script.close()
            raise
        except BaseException as error:
            script.close()
            turns.end()
            raised = own_error(error)
            self._worker.phase = self.phase = phase_of(raised, outside, self._worker.phase)
            if self.clock.exceeded is not None and isinstance(error, Exception | asyncio.CancelledError):
                raised = self._too_long(place_of_wait(error))
            elif isinstance(raised, asyncio.CancelledError) and not self.is_cancelled:
                raised = RuntimeError(f"{self._call} raised asyncio.CancelledError, although nothing cancelled it")
            if setup.shown is not None:
                setup.shown.lost(raised)
            try:
                explain_rollout(self._worker, raised, action, setup.env, recorder, asking=FlightDriver._drive)
            finally:
                self.phase = self._worker.phase
            if raised is not error:
                raise raised from (error if isinstance(raised, TimeoutError | RuntimeError) else None)
            raise

    def finish(self) -> Rollouts:
        setup, self.phase = self._setup, Phase.RECORDING
        try:
            return setup.recorder.finish()
        except DataError as error:
            locate(error, setup.env, error.timestep)
            if isinstance(error, ActionError):
                self.phase = Phase.ACTION
            raise

    async def wait(self, pending: Any) -> Any:
        if not is_awaitable(pending):
            return pending
        return await self._turns.take(pending, Phase.RESET, self._totals.reset)

    def error_of_limit(self) -> TimeoutError:
        """Return the error of a trajectory over a time limit that continues after its cancellation."""
        self.phase = self._turns.phase
        return self._too_long("; it was cancelled, but still runs")

    @property
    def _call(self) -> str:
        when = "" if self.phase is Phase.RESET else f", at timestep {self.n_timesteps},"
        if name := {Phase.RESET: "reset", Phase.STEP: "step"}.get(self.phase):
            return f"{name} of {name_of_env(self._setup.env)}{when}"
        agent = self._setup.agent
        call = agent.awaited_call if isinstance(agent, EnvAgents | RowAgent) else f"get_action of {name_of(agent)}"
        return f"{call}{when}"

    def _too_long(self, place: str) -> TimeoutError:
        return TimeoutError(f"{self._call} exceeded {self.clock.exceeded}{place}")

    def _begin_agent(self, seed: int) -> None:
        assert self._setup.reset_agent is not None
        self._turns.begin(Phase.AGENT_RESET)
        self._setup.reset_agent(derived_seed(seed, SeedUse.AGENT))

    def _ask(self, observation: Any) -> Any:
        setup = self._setup
        if setup.masks is None:
            return setup.agent.get_action(observation)
        return setup.agent.get_action(observation, action_mask=setup.masks(observation, self.info))

    @staticmethod
    def _show_action(shown: ShownFlight, action: Any, agent_info: Any) -> None:
        assert shown.context is not None
        shown.context.action, shown.agent_info = action, agent_info

    def _take_step(self, result: Any) -> None:
        self.info = result[-1] if isinstance(result, tuple) and result else None
        self.n_timesteps += 1
        self._totals.n_timesteps += 1
        row = self._worker.row
        row.words[row.timesteps_word] = self._totals.n_timesteps

    async def _record_last_value(self, observation: Any) -> None:
        get_value = getattr(self._setup.agent, "get_value", None)
        if get_value is None:
            return
        value = get_value(observation)
        if is_awaitable(value):
            value = await self._turns.take(value, Phase.ACTION, self._totals.agent)
        self._setup.recorder.record_last_value(value_of(lambda _: value, observation))
