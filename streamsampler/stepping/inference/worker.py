"""The worker of a sampler whose agent stays in its own process: trajectories run here, environments elsewhere."""

from __future__ import annotations

import logging
from typing import Any

from streamsampler.core.errors import NotReproducibleError
from streamsampler.core.serialization import Payload
from streamsampler.environments.updates import EnvUpdate
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.stepping.inference.env_processes import Launch
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.inference.fragments import ParentGroups
from streamsampler.stepping.inference.waiting import HookedParentRunner, WaitingRunner
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.vec.fragments import RunningGroups
from streamsampler.workers.vec.worker import VecWorker

_LOG = logging.getLogger("streamsampler")


class ParentWorker(VecWorker):
    """Runs trajectories as `VecWorker` does, in environments that are in other processes.

    Attributes:
        launch: Returns the processes of the environments. Its engine sets it.
        close_timeout: Seconds that all environments together may take to close. Its engine sets it.
    """

    launch: Launch
    close_timeout: float

    def __init__(self, context: WorkerContext, *, groups: int = 1, **worker_args: Any) -> None:
        super().__init__(context, **worker_args)
        self._n_row_groups = groups
        self._environments: Environments | None = None
        self._must_choose = False  # whether it is not known yet if trajectories can run in lanes

    def pids(self) -> list[int]:
        """Return the ids of the environments' processes."""
        return [] if self._environments is None else self._environments.pids()

    def take_losses(self) -> list[BaseException]:
        """Return the losses of processes since the last time."""
        if self._environments is None:
            return []
        losses, self._environments.losses = self._environments.losses, []
        return losses

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environments, all at once.

        Args:
            env_update: The update, pickled: it is loaded where the environments are.
        """
        assert isinstance(env_update, Payload)
        self._forget_groups()
        self.phase = Phase.ENV_CONSTRUCTION
        self._envs, self._runner = [], None
        if self._environments is None:
            n_envs = self.layout({"n_envs": self._n_envs}).rows
            self._environments = Environments(n_envs, self.launch, self.close_timeout)
        self._environments.update(env_update)
        self._envs = list(self._environments.proxies)
        if self.context.hooks is None:
            self._runner = WaitingRunner(self._environments, self, self._n_row_groups)
        else:
            self._callers = self._callers or [HookCaller(self, self.context.hooks) for _ in self._envs]
            self._runner = HookedParentRunner(self._environments, self, self._callers)
        if not self._agents.empty:
            self._choose_lanes()

    def _choose_lanes(self) -> None:
        # To find out changes what the agent remembers, and here it is no copy: not before its episodes are over.
        runner = self._runner
        self._must_choose = (
            self._groups is not None and runner is not None and not self._agents.batched(runner.n_slots).can_wait
        )
        self.runs_lanes = False
        if not self._must_choose:
            super()._choose_lanes()

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, or fragments."""
        assert self._environments is not None
        if self.resets is None or self.resets.fragments is None:
            self._forget_groups()
            if self._must_choose:
                self.phase = Phase.AGENT_UPDATE
                self._choose_lanes()
        before = self._environments.n_repeated
        try:
            return super().rollout(ticket, seeds)
        finally:
            self.ran_timesteps += self._environments.n_repeated - before
            self.running_timesteps += self._environments.n_open_steps

    def _run(self, ticket: Ticket, seeds: list[int], reset_seconds: float, *, alone: bool = False) -> Outcome:
        """Run the ticket's trajectories; again from their seeds, where an environment cannot be restored."""
        lost = 0
        try:
            while True:
                try:
                    return super()._run(ticket, seeds, reset_seconds, alone=alone)
                except NotReproducibleError as error:
                    # Each time round a process was lost, of which there is a quota.
                    lost += self.ran_timesteps
                    _LOG.warning("%s. Trajectories under way are run again from their seeds", error)
        finally:
            self.ran_timesteps += lost

    def _make_groups(self, base_version: int) -> RunningGroups:
        assert self._environments is not None
        return ParentGroups(self, base_version, self._environments, self._agents, self._n_row_groups)

    def abandon(self) -> tuple[int, int]:
        """Forget the trajectories of later tickets that run already; see `Worker.abandon`."""
        before = 0 if self._environments is None else self._environments.n_repeated
        n_abandoned, timesteps = super().abandon()
        after = 0 if self._environments is None else self._environments.n_repeated
        return n_abandoned, timesteps + after - before

    def shutdown(self) -> None:
        """Close the environments; their processes stay."""
        self._forget_groups()
        self.phase, self.trajectory = Phase.CLOSE, None
        self._envs, self._runner = [], None
        if self._environments is not None:
            self._environments.close_all()

    def end(self) -> None:
        """End the processes."""
        if self._environments is not None:
            self._environments.shut_down()
