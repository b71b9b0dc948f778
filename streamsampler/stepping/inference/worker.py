"""The worker of `inference="parent"`: trajectories run in the sampler's process, environments in others."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streamsampler.core.errors import NotReproducibleError, WorkerHungError
from streamsampler.core.serialization import HeldPayload, Payload
from streamsampler.engines.base import Answered, EnvsRestored, Event, Logged
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.local import LocalChannel, LocalEngine
from streamsampler.engines.registry import EngineName
from streamsampler.environments.updates import EnvUpdate
from streamsampler.protocol.losses import Policy
from streamsampler.protocol.messages import Message, Phase, Start, Ticket
from streamsampler.rollouts.script import End
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.stepping.inference.env_processes import Launch, RolloutTransport
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.inference.evaluation_mode import EvaluationMode
from streamsampler.stepping.inference.fragments import RemoteEnvGroup, RemoteEnvGroups, RemoteMultiAgentEnvGroup
from streamsampler.stepping.inference.remote_rows import RemoteRows
from streamsampler.stepping.options import watch_of
from streamsampler.stepping.pools import new_pool_of
from streamsampler.stepping.rollout_server import RolloutServer
from streamsampler.workers.alike import refuse_different
from streamsampler.workers.base import AbnormalTrajectoryError, Outcome, Worker, WorkerContext
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.threads import ThreadLimit
from streamsampler.workers.turns import turn
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.lanes import LaneRunner
from streamsampler.workers.vec.row_recorders import RowTrajectory
from streamsampler.workers.vec.tickets import RunningTicket
from streamsampler.workers.vec.worker import VecWorker

_LOG = logging.getLogger("streamsampler")


class RemoteLanes(RemoteRows, LaneRunner):
    """Runs trajectories in environments of other processes.

    If the agent can wait, each lane has its own pace. In blocks, and for an agent with memory, environments wait for
    each other.
    """

    def __init__(self, environments: Environments, worker: Worker, **more: Any) -> None:
        super().__init__(list(environments.proxies), worker, environments=environments, **more)
        self._is_loss = False  # whether the last exception concerns a process, as opposed to a trajectory

    @property
    def failed_ahead(self) -> bool:
        """Whether the last exception may concern a later ticket's trajectory."""
        return not self._is_loss and super().failed_ahead

    def _is_done(self) -> bool:
        return self._tickets.current.n_ended >= self._n_wanted

    def _begin_ticket(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        running = super()._begin_ticket(ticket, seeds, agent)
        self.together = not (agent.can_wait and self._in_lanes)
        self._environments.history_of = self.history_of
        return running

    def _reset_function(self, row: int, index: int) -> Callable[..., Any]:
        return self._request_reset(row, index)

    def _take_end(self, row: int, end: End) -> None:
        super()._take_end(row, end)
        self._find_live()

    def _leave_out(self, row: int, error: AbnormalTrajectoryError) -> None:
        super()._leave_out(row, error)
        self._find_live()

    def forget(self) -> tuple[int, int]:
        """Forget all tickets; wait for steps in flight, to count them."""
        self._environments.history_of = None
        try:
            self._environments.abandon()
        finally:
            forgotten = super().forget()
        return forgotten

    def _explain(self, error: BaseException) -> None:
        self._is_loss = not self._prepare_explaining(error)
        if not self._is_loss:
            super()._explain(error)

    def _running_trajectories(self) -> list[RowTrajectory]:
        running = super()._running_trajectories()
        if self._worker.phase is Phase.STEP:
            return running
        # Environments of other rows step meanwhile: the agent may never act on their observations.
        return [each for each in running if self._acting[each.row]]


class ParentWorker(VecWorker):
    """Runs trajectories as `VecWorker` does, in environments of other processes."""

    shares_agent = True
    launch: Launch
    close_timeout: float  # seconds that all environments together may take
    _running: RemoteEnvGroups | None

    def __init__(self, context: WorkerContext, *, groups: int = 1, **worker_args: Any) -> None:
        super().__init__(context, **worker_args)
        self._n_row_groups = groups
        self._environments: Environments | None = None
        self._must_choose = False  # whether it is still unknown if trajectories can run in lanes

    def pids(self) -> list[int]:
        return [pid for environments in self._all_environments() for pid in environments.pids()]

    def send_settings(self) -> None:
        for environments in self._all_environments():
            environments.send_settings()

    def take_losses(self) -> list[BaseException]:
        """Return the losses of processes since the last call."""
        losses: list[BaseException] = []
        for environments in self._all_environments():
            losses += environments.losses
            environments.losses = []
        return losses

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or update all environments, by an update that their processes load."""
        assert isinstance(env_update, Payload)
        self.phase = Phase.ENV_CONSTRUCTION
        self._drop_runner()
        self._leave_lent()
        self._envs, self._probed = [], (None, None)
        if self._environments is None:
            n_envs = self.layout({"n_envs": self._n_envs}).rows
            self._environments = Environments(n_envs, self.launch, self.close_timeout)
        self._environments.update(env_update)
        refuse_different(self._environments.proxies)
        self._envs = list(self._environments.proxies)
        self.make_callers(len(self._envs))
        self._runner = RemoteLanes(self._environments, self, callers=self.hook_callers, n_groups=self._n_row_groups)
        if not self._agents.empty:
            self._choose_lanes()

    def _leave_lent(self) -> None:
        if self._lends():
            self._environments, self._envs = None, []

    def _all_environments(self) -> list[Environments]:
        """Return those of whole trajectories and those of fragments, perhaps the same."""
        own = [] if self._environments is None else [self._environments]
        running = self._running
        return own if running is None or running.environments in own else [*own, running.environments]

    def _choose_lanes(self, *, anew: bool = True) -> None:
        # The check changes the agent's memory, and here the agent is no copy: it must not run while episodes go on.
        # With several agents, policies make it when they start to play elsewhere, and restore their memory afterwards.
        runner, running = self._runner, self._running
        has_agent = running is not None and not running.agent_is_lent and not self._has_several()
        self._must_choose = has_agent and runner is not None and not self._agents.batched(runner.n_slots).can_wait
        self.runs_lanes = False
        if not self._must_choose:
            super()._choose_lanes(anew=anew)

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        before = self._n_repeated()
        try:
            return super().rollout(ticket, seeds)
        finally:
            self.ran_timesteps += self._n_repeated() - before
            self.running_timesteps += sum(environments.n_open_steps for environments in self._all_environments())

    def _n_repeated(self) -> int:
        return sum(environments.n_repeated for environments in self._all_environments())

    def _take_environments(self) -> None:
        running = self._running
        if running is not None:
            running.agent_is_lent = True
        super()._take_environments()
        if self._players is not None and not self._players.players.plays_in([env.unwrapped for env in self._envs]):
            self._seat()  # the policies play in environments of fragments
        if self._must_choose:
            self.phase = Phase.AGENT_UPDATE
            self._choose_lanes()

    def _run(self, ticket: Ticket, seeds: list[int], reset_seconds: float, *, alone: bool = False) -> Outcome:
        """Run the ticket's trajectories, again from their seeds if an environment cannot be restored."""
        lost = 0
        try:
            while True:
                try:
                    return super()._run(ticket, seeds, reset_seconds, alone=alone)
                except NotReproducibleError as error:
                    # The quota of losses ends this loop: each time, a process was lost.
                    lost += self.ran_timesteps
                    _LOG.warning("%s. Trajectories in flight are run again from their seeds", error)
        finally:
            self.ran_timesteps += lost

    def _make_groups(self, base_version: int) -> RemoteEnvGroups:
        assert self._environments is not None
        kind = RemoteEnvGroup if self._players is None else RemoteMultiAgentEnvGroup
        group = partial(
            kind, batch_rows=self._batch_rows, environments=self._environments, n_groups=self._n_row_groups,
            asked=lambda: self._asked(self._batch_rows()),
        )  # fmt: skip
        return RemoteEnvGroups(self, base_version, self._environments, group)

    def abandon(self) -> tuple[int, int]:
        """Forget running trajectories of later tickets."""
        before = self._n_repeated()
        n_abandoned, timesteps = super().abandon()
        return n_abandoned, timesteps + self._n_repeated() - before

    def shutdown(self) -> None:
        self.phase, self.trajectory = Phase.CLOSE, None
        self._drop_runner()
        self._leave_lent()
        self._envs = []
        if self._environments is not None:
            self._environments.close_all()

    def end(self) -> None:
        for environments in self._all_environments():
            environments.shut_down()


class _ParentChannel(LocalChannel):
    """The connection of worker and sampler, which share the agent; environments are made elsewhere."""

    def __init__(self, mode: EvaluationMode, worker: int, events: deque[Event], threads: ThreadLimit) -> None:
        super().__init__(worker, events, threads)
        self._mode = mode

    def load(self, payload: Payload) -> Any:
        if isinstance(payload, HeldPayload):
            return self._mode.hold(payload.held)
        return payload if isinstance(payload.about, EnvironmentFacts) else super().load(payload)


class ParentEngine(LocalEngine):
    """A single worker in this process; its environments run in `setup.n_workers` processes, subject to `policy`."""

    def __init__(
        self, setup: WorkerSetup, *, policy: Policy, engine: EngineName, start_method: StartMethod, n_groups: int = 1
    ) -> None:
        new_pool = new_pool_of(engine, start_method)
        make_room(setup.n_workers)  # processes start with the first call
        self._worker: ParentWorker | None = None
        self._mode = EvaluationMode()
        factory = copy.copy(setup.factory)
        factory.worker_class = ParentWorker
        factory.worker_args = {**factory.worker_args, "groups": n_groups}
        here = replace(setup, factory=factory)

        limits = policy.step_timeout, None, policy.construction_timeout
        of_losses = replace(policy, restart_on=())  # the sampler judges exceptions of environments

        def launch(updates: Mapping[int, Payload]) -> RolloutTransport:
            new_server = partial(RolloutServer, seed=setup.seed, max_episode_length=factory.max_episode_length)
            return RolloutTransport(
                updates, setup.n_workers, new_server, of_losses, watch_of(*limits), setup.threads, new_pool=new_pool
            )

        def make(context: WorkerContext) -> Worker:
            worker = here.make_worker(context)
            assert isinstance(worker, ParentWorker)
            worker.launch, worker.close_timeout = launch, policy.close_timeout
            self._worker = worker
            return worker

        super().__init__(1, make, setup.seed, threads=setup.threads)

    def _channel(self, worker: int, events: deque[Event], threads: ThreadLimit) -> LocalChannel:
        return _ParentChannel(self._mode, worker, events, threads)

    def send(self, worker: int, message: Message) -> None:
        """Enqueue a message; send this process's settings to the environments' processes before."""
        if isinstance(message, Start) and self._worker is not None:
            self._worker.send_settings()
        super().send(worker, message)

    def publish(self, payload: Payload) -> Any:
        if isinstance(payload, HeldPayload):
            return payload
        return Payload(payload.data, tuple(bytes(buffer) for buffer in payload.buffers), payload.about)

    def wait(self, timeout: float | None) -> list[Event]:
        with turn(), self._mode:  # another thread's sampler may use the same module
            events = super().wait(timeout)
        losses = [] if self._worker is None else self._worker.take_losses()
        return [*(EnvsRestored(0, isinstance(error, WorkerHungError)) for error in losses), *events]

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        try:
            return super().close(read_answers=read_answers)
        finally:
            if self._worker is not None:
                self._worker.end()

    def pids(self) -> list[int]:
        return [] if self._worker is None else self._worker.pids()
