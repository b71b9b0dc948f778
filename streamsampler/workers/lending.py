"""Lend a worker's environments to fragments, and make others for whole trajectories."""

from __future__ import annotations

from abc import abstractmethod

from streamsampler.environments.updates import for_worker
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.fragments import FragmentEnvs
from streamsampler.workers.generators import seed_constructors
from streamsampler.workers.hooks import HookCaller


class LendingWorker(Worker):
    """Runs fragments, and whole trajectories between them.

    The worker's own environments are the first used by fragments, so a worker of fragments alone needs no others. The
    first ticket of whole trajectories after fragments makes further environments, from then on the worker's own.
    """

    _running: FragmentEnvs | None = None  # environments with suspended episodes of fragments

    def keep_fragments(self, base_version: int) -> None:
        """Close the environments of fragments unless their episodes can resume; the worker's own stay open."""
        running = self._running
        if running is not None and running.base_version != base_version:
            self._running, self.phase = None, Phase.CLOSE
            running.close()

    def _lends(self) -> bool:
        return self._running is not None and self._running.has(self.environments())

    @abstractmethod
    def _leave_lent(self) -> None:
        """Detach the worker from environments in use by fragments."""

    def make_callers(self, n: int) -> None:
        """Make the missing hook callers for n environments."""
        if (hooks := self.context.hooks) is not None:
            missing = range(len(self.hook_callers), n)
            self.hook_callers = [*self.hook_callers, *(HookCaller(self, hooks) for _ in missing)]

    def _take_environments(self) -> None:
        """Make environments for whole trajectories if fragments use the worker's own."""
        running = self._running
        if running is None or not self._lends():
            return
        self.enter(Phase.ENV_CONSTRUCTION)
        n_callers, self.hook_callers = len(self.hook_callers), ()  # each environment has its own copy of the hooks
        self.make_callers(n_callers)
        seed_constructors(self.context.seed)
        with for_worker(self.context.worker_number):
            self.update_env(self.load(self.in_force["env"]))
        if self._lends():
            # The update returns the same environment each time. The sampler will restore these episodes in it.
            self._running, self.has_ended_fragments = None, True
            running.forget()
        else:
            self.further_envs += len(self.environments())
