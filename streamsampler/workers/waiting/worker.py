"""The worker of waiting environments: many trajectories in flight on an event loop.

`AsyncWorker` turns tickets into flights, reports their records, and checks that nothing draws from the global
generators while trajectories share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, cast

import gymnasium

from streamsampler.agents.base import acts_alone
from streamsampler.agents.updates import name_of
from streamsampler.core.errors import DataError, UsageError, positive
from streamsampler.core.times import Times
from streamsampler.core.timing import TaskCollector, collecting, collector_in_use, timed
from streamsampler.data.joining import joined
from streamsampler.data.recorder import Rollouts
from streamsampler.environments.closing import EnvCloseError, closing_together, closing_with
from streamsampler.environments.updates import AnyEnv, EnvUpdate
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.protocol.plans import Layout
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.board import phase_number
from streamsampler.workers.finishing import shares
from streamsampler.workers.fragments import FragmentEnv
from streamsampler.workers.generators import generator_states, seed_generators
from streamsampler.workers.lending import LendingWorker
from streamsampler.workers.purity import CheckStopped
from streamsampler.workers.recorders import recorder_for
from streamsampler.workers.resets import Resets, reset_function
from streamsampler.workers.several.fragments import MultiAgentFragmentEnv
from streamsampler.workers.single import WHOLE
from streamsampler.workers.trajectory_context import TrajectoryContext, reset_of
from streamsampler.workers.waiting.awaited_env import EnvsOnLoop
from streamsampler.workers.waiting.deadlines import ATTEMPTS, TimeLimits
from streamsampler.workers.waiting.driver import FlightDriver
from streamsampler.workers.waiting.event_loop import WorkerEventLoop
from streamsampler.workers.waiting.flights import Flights, TicketInFlight
from streamsampler.workers.waiting.fragments import AwaitedEnvs, FragmentPlace
from streamsampler.workers.waiting.ready_rows import ReadyRows, RowAgent
from streamsampler.workers.waiting.single_flight import run_single
from streamsampler.workers.waiting.slot_agents import Slot, SlotAgents
from streamsampler.workers.waiting.slots import Slots
from streamsampler.workers.waiting.threads import EnvsOnThreads, has_strays
from streamsampler.workers.waiting.turns import FlightTotals

_STRAY_DRAWS = (
    "something drew from a global generator (random, numpy.random or torch) while a cancelled trajectory was still in "
    "its step, which may have drawn. Let environments draw from their np_random, and end their waits when they are "
    "cancelled, or after a time limit"
)

_FRAGMENTS_OF_ROWS = (
    "the agent ({}) has get_actions alone, but fragments of environments that wait need get_action: give it "
    "get_action, too, or obtain trajectories"
)
_IN_FLIGHT = 16
_WAITED_IN = (Phase.RESET, Phase.ACTION, Phase.STEP)
_DRAWS = (
    "something drew from a global generator (random, numpy.random or torch) while several trajectories were in "
    "flight, so they depend on each other. Let the agent draw from its own generator, which its reset(seed=…) seeds, "
    'and the environment from its np_random; or pass worker_args={"in_flight": 1}'
)


class AsyncWorker(LendingWorker):
    """Runs many trajectories at the same time on an event loop, in environments and with agents that wait.

    An environment may have ``async def reset`` and ``async def step``, with Gymnasium's arguments and results; an agent
    ``async def get_action``. Each trajectory in flight has its own environment, made when first needed, and, if the
    agent has a `reset`, its own copy of the agent, or an agent that shares its parameters. Trajectories depend on their
    seeds only, and are the same as in `DefaultWorker`, however long anything waits.

    An agent with `get_actions` only, and ``row_independent = True``, is asked for all trajectories that are ready: in
    batches of 16 rows, or, if it is an ``async def``, with a row for each ready trajectory.

    Trajectories of the worker's later tickets begin as soon as there is room. An abandoned trajectory is cancelled: its
    `reset` or `step` receives `asyncio.CancelledError` at its `await`, and its environment is next reset or closed.

    Pass it as ``worker_args={"in_flight": 200}``, with the default `worker_class` or with ``AsyncWorker``.

    With ``threads=True`` environments are ordinary blocking ones: each has its own thread, on which it is made, reset,
    stepped and closed. A thread cannot be cancelled: an abandoned step runs to its end.

    Args:
        context: The worker's context.
        in_flight: The most trajectories in flight at the same time.
        threads: Whether environments run on threads.

    Raises:
        UsageError: `in_flight` is no positive integer, or `threads` neither True nor False.
    """

    _running: AwaitedEnvs | None

    can_drop = can_call_hooks = can_rehearse = can_play_several = can_continue = can_take_options = waits = True
    asks_for_rows = True
    runs_lanes = True
    revision = ""  # the same trajectories as in DefaultWorker

    def __init__(self, context: WorkerContext, *, in_flight: int = _IN_FLIGHT, threads: bool = False) -> None:
        super().__init__(context)
        self._in_flight = positive("in_flight", in_flight)
        self._loop = WorkerEventLoop(self)
        self._limits = TimeLimits(context.step_timeout, context.trajectory_timeout)
        self._made_by = EnvsOnThreads() if _checked_threads(threads) else EnvsOnLoop()
        self._flights = flights = Flights(self, self._loop, self._limits)
        self._agents = SlotAgents(self, in_flight, ReadyRows(self, self._loop, flights.totals))
        self._slots = Slots(self, in_flight, self._loop, self._made_by, self._agents, flights.notify)
        self._draws_before: tuple[Any, ...] = ()
        self._may_draw = False

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:
        """Return the number of trajectories in flight.

        Raises:
            UsageError: `in_flight` is no positive integer, or `threads` neither True nor False.
        """
        _checked_threads(worker_args.get("threads", False))
        return Layout(positive("in_flight", worker_args.get("in_flight", _IN_FLIGHT)))

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or pass it new parameters.

        Raises:
            UsageError: It has `get_actions` only, and its rows depend on each other, or on their places.
        """
        self.phase = Phase.AGENT_CONSTRUCTION if self._agents.agent is None else Phase.AGENT_UPDATE
        self._agents.update(agent_update)

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environments.

        Raises:
            UsageError: The environment is not asynchronous, or a wrapper would unpack a coroutine.
            Exception: From the environment; the worker then has none until the next update.
        """
        self.phase = Phase.ENV_CONSTRUCTION
        self._flights.cancel()
        self._leave_lent()
        try:
            with closing_with(self._loop.complete):
                self._slots.update_env(env_update)
        except EnvCloseError:
            self.phase = Phase.CLOSE
            raise

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        return self._slots.spaces

    def environments(self) -> Sequence[AnyEnv]:
        return self._slots.envs[:1]

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories or fragments, and later tickets' trajectories meanwhile."""
        flights, began = self._flights, perf_counter()
        order = None if self.resets is None else self.resets.fragments
        if order is None:
            self._take_environments()
            flights.use(self._slots, self._trajectory, ATTEMPTS)
        else:
            running_envs = self._envs_of_fragments(order.base_version)
            running_envs.begin_call(ticket.version, cast("Resets", self.resets), order)
            flights.use(running_envs, partial(self._fragment, order.n_timesteps), 1)
        running = flights.make_current(ticket, seeds)
        self._record_generators(ticket, seeds[0])
        self.phase = Phase.STEP
        try:
            with collecting(TaskCollector(collector_in_use())):
                may_run = self._loop.run(flights.run(), flights.on_message)
            if may_run:
                self._refuse_draws(ticket)
            seconds = self._seconds(perf_counter() - began)
            if not may_run:
                return self._abandoned_outcome(running, seconds)
            self._raise_failure(running)
            return self._outcome(running, seconds) if order is None else self._outcome_of_fragments(running, seconds)
        except BaseException:
            phase, trajectory = self.phase, self.trajectory
            if flights.raised_in is not None:
                phase, trajectory, flights.raised_in = flights.raised_in, None, None
            self.ran_timesteps, self.running_timesteps = flights.cancel()[1], 0
            flights.totals.take_seconds()
            flights.totals.take_timed_out()
            self.phase, self.trajectory = phase, trajectory
            raise

    def _envs_of_fragments(self, base_version: int) -> AwaitedEnvs:
        agents = self._agents
        if agents.players is None and not acts_alone(agents.agent):
            self.phase = Phase.ACTION
            raise UsageError(_FRAGMENTS_OF_ROWS.format(name_of(agents.agent)))
        if self._running is None:
            kind = FragmentEnv if agents.players is None else MultiAgentFragmentEnv
            self._running = AwaitedEnvs(self, base_version, kind, self._in_flight, lambda: self._may_draw)
        return self._running

    def _record_generators(self, ticket: Ticket, seed: int) -> None:
        has_process = (
            self.descriptor is not None
        )  # in the caller's process, user code may have drawn since the last ticket
        if self._flights.current.begun and has_process and isinstance(self._made_by, EnvsOnThreads):
            self._refuse_draws(ticket)  # threads ran on since the last ticket
        is_alone = not (has_strays() or self._loop.has_abandoned)
        self._may_draw = self._in_flight == 1 and is_alone
        seed_generators(seed)
        self._draws_before = generator_states()

    def _refuse_draws(self, ticket: Ticket) -> None:
        """Raise an error if anything has drawn from the global generators, which trajectories in flight share."""
        before = self._draws_before
        if not self._may_draw and generator_states()[: len(before)] != before:
            self.phase, self.trajectory = Phase.STEP, ticket.indices[0]
            raise UsageError(_DRAWS if self._in_flight > 1 else _STRAY_DRAWS)

    def _raise_failure(self, running: TicketInFlight) -> None:
        if (failure := running.failure) is not None:
            self.phase, self.trajectory = failure.phase, failure.index
            raise failure.error

    def _seconds(self, elapsed: float) -> Times:
        """Divide the time of a rollout among resets, the agent and steps.

        The time of running code belongs to its phase. The rest is a common wait of all trajectories, divided by the
        sums of their waits.
        """
        spent = self._flights.totals.take_seconds()
        running, waiting = sum(each.running for each in spent), sum(each.waiting for each in spent)
        if not waiting:
            reset, agent, step = spent
            return shares(elapsed, reset.running, agent.running, step.running)
        share = max(elapsed - running, 0.0) / waiting
        for phase, each in zip(_WAITED_IN, spent, strict=True):
            if each.waiting:
                collector_in_use().add_seconds("waiting", phase_number(phase), share * each.waiting)
        timed.gauge("in_flight", (running + waiting) / elapsed)
        return Times(*(each.running + share * each.waiting for each in spent))

    def _outcome(self, running: TicketInFlight, seconds: Times) -> Outcome:
        ticket, recorded, dropped = running.ticket, running.recorded, dict(running.dropped)
        env, rollouts = self._slots.first_env, None
        while positions := sorted(recorded.keys() - dropped.keys()):
            indices = [ticket.indices[position] for position in positions]
            parts = [recorded[position][0] for position in positions]
            try:
                rollouts = self.finished(partial(joined, parts), indices, env)
                break
            except DataError as error:
                if not self.drops(error):
                    raise
                assert self.trajectory is not None
                left_out = self.left_out_by(error, ticket, self.trajectory, indices)
                dropped.update((each.position, each) for each in left_out.values())
        metrics = {name: how for position in positions for name, how in recorded[position][1].metrics.items()}
        n_timesteps = 0 if rollouts is None else rollouts.n_timesteps
        self._end_ticket(running)
        return Outcome(
            rollouts, len(positions), n_timesteps, seconds=seconds, metrics=tuple(metrics.items()),
            dropped=tuple(sorted(dropped.values())), n_timed_out=self._flights.totals.take_timed_out(),
        )  # fmt: skip

    def _outcome_of_fragments(self, running: TicketInFlight, seconds: Times) -> Outcome:
        running_envs, numbers, records = self._running, running.ticket.indices, running.recorded
        assert running_envs is not None
        parts = [records[position][0] for position in range(len(numbers))]
        rollouts = self.finished(partial(joined, parts), running_envs.owners(numbers), self._slots.first_env)
        running_envs.tell(running_envs.envs(numbers), rollouts)
        metrics = {name: how for _, recorder in records.values() for name, how in recorder.metrics.items()}
        self._end_ticket(running)
        return Outcome(
            rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=seconds, metrics=tuple(metrics.items()),
            n_timed_out=self._flights.totals.take_timed_out(),
        )  # fmt: skip

    def _end_ticket(self, running: TicketInFlight) -> None:
        self._flights.end_ticket()
        self.ran_timesteps = running.ran_timesteps + running.restored_timesteps
        self._flights.totals.n_timesteps -= running.ran_timesteps
        self.running_timesteps = self._flights.totals.n_timesteps

    def _abandoned_outcome(self, running: TicketInFlight, seconds: Times) -> Outcome:
        n_ended = len(running.recorded)
        n_timesteps = sum(rollouts.n_timesteps for rollouts, _ in running.recorded.values())
        n_begun, n_ran = self._flights.cancel()
        self.ran_timesteps, self.running_timesteps = n_ran, 0
        return Outcome(
            None, n_ended, n_timesteps, n_begun - n_ended, n_ran - n_timesteps, seconds,
            n_timed_out=self._flights.totals.take_timed_out(),
        )  # fmt: skip

    def abandon(self) -> tuple[int, int]:
        self.running_timesteps = 0
        return self._flights.cancel()

    async def _trajectory(self, version: int, index: int, seed: int, slot: Slot, driver: FlightDriver) -> Rollouts:
        setup = slot.setup
        if setup.shown is not None:
            setup.shown.context_of = partial(self._context_of, slot, version)
        await self._run_whole(driver, reset_function(cast("AnyEnv", setup.env), self.resets, (index,)), index, seed)
        return driver.finish()

    async def _fragment(
        self, n_timesteps: int, version: int, _number: int, _seed: int, place: FragmentPlace, driver: FlightDriver
    ) -> Rollouts:
        await place.run(version, n_timesteps, driver)
        return driver.finish()

    async def _run_whole(
        self, driver: FlightDriver, reset: Callable[..., Any], index: int, seed: int, *, seeds_generators: bool = False
    ) -> None:
        driver.reset = reset
        seeding = partial(seed_generators, seed) if seeds_generators or self._may_draw else None
        await driver.run([(index, seeding, driver.script(seed, self.context.max_episode_length), None, WHOLE)])

    def _context_of(self, slot: Slot, version: int, index: int, seed: int) -> TrajectoryContext:
        setup = slot.setup
        agent = setup.agent.given if isinstance(setup.agent, RowAgent) else setup.agent
        return TrajectoryContext(
            slot.env, agent, index, seed, self.agent_version(version), self.context.worker_number,
            setup.recorder, reset=reset_of(cast("AnyEnv", setup.env), self, index), reset_agent=setup.reset_agent,
        )  # fmt: skip

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run a trajectory in a stand-in, and discard it.

        Raises:
            CheckStopped: The version may not run any more.
        """
        slot = self._slots.take(indices[0])
        assert slot is not None  # nothing is in flight
        recorder = recorder_for(stand_ins[0], slot.setup.agent)
        setup = replace(slot.setup, env=stand_ins[0], recorder=recorder, shown=None)
        setup.recorder.record_agent_info = stand_ins[0].take_agent_info
        driver = FlightDriver(self, setup, indices[0], FlightTotals())
        reset = reset_function(cast("AnyEnv", setup.env), self.resets, indices)
        trajectory = self._run_whole(driver, reset, indices[0], seeds[0], seeds_generators=True)
        may_go_on = partial(self.row.may_run, version)
        has_ended = True
        try:
            has_ended = run_single(
                self._loop, driver, trajectory, self._limits, lambda: (may_go_on(), not self.is_called_off())
            )
        except asyncio.CancelledError:
            raise CheckStopped from None
        finally:
            if has_ended:
                self._slots.put_back(slot)
            else:
                self._slots.abandon(slot)

    def make_env(self, update: EnvUpdate) -> AnyEnv:
        return self._made_by.apply(update, None)

    def close_env(self, env: AnyEnv) -> None:
        self._made_by.close(env)

    def stepped(self, env: Any) -> Any:
        return self._slots.awaited(env)

    def keep_fragments(self, base_version: int) -> None:
        with closing_together(self._loop.complete):
            super().keep_fragments(base_version)

    def _leave_lent(self) -> None:
        if self._lends():
            self._slots.lend_first()

    def shutdown(self) -> None:
        self.phase, self.trajectory = Phase.CLOSE, None
        self._flights.cancel()
        self._leave_lent()
        with closing_together(self._loop.complete):
            self._slots.close()

    def end(self) -> None:
        """Close the event loop."""
        self._loop.close()


def _checked_threads(threads: Any) -> bool:
    if threads.__class__ is not bool:
        raise UsageError(f"threads must be True or False, got {threads!r:.80}")
    return bool(threads)
