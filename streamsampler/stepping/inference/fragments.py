"""Run fragments in environments of other processes: the rows of one batch, whose episodes go on from call to call.

They are one `WaitingGroup`, in which each goes at its own pace if the agent does not mind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from streamsampler.errors import NotReproducibleError
from streamsampler.protocol.messages import Ticket
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.inference.episodes import History
from streamsampler.stepping.inference.fragments_apart import WaitingGroup
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.resets import FragmentOrder
from streamsampler.workers.standings import Standings
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.fragments import RunningGroups
from streamsampler.workers.vec.rows import singles_of

__all__ = ["ParentGroups"]


class ParentGroups(RunningGroups):
    """The environments of fragments, all of them rows of one batch.

    An environment whose process is lost is restored to the very timestep, while the others wait for it. Where that
    cannot be, the whole fragment is run again: all episodes are taken back to where they stood before it, and in the
    one that cannot be restored a new one begins, as with a worker that is lost.

    Args:
        worker: The worker.
        base_version: The agent version in which the episodes began.
        environments: The environments.
        agents: The worker's agent.
        n_groups: See `Asking`.
    """

    def __init__(
        self, worker: Worker, base_version: int, environments: Environments, agents: AgentPool, n_groups: int
    ) -> None:
        super().__init__(worker, base_version, environments.n_envs, lambda _: [])
        self._environments = environments
        self._group = partial(WaitingGroup, environments, agents, n_groups)
        self._standings = Standings(agents_stay=True)
        self._agent: Any = None  # the one in force in the last fragment
        # What others did is over, also of environments that are no rows of this fragment.
        environments.forget()
        environments.settle(range(environments.n_envs))

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket."""
        environments, resets = self._environments, self._worker.resets
        environments.history_of = self._history_of
        if order.standings:
            self._standings.put(order.standings)
        try:
            outcome = self._run(ticket, order)
        except BaseException:
            environments.give_up()
            raise
        assert resets is not None
        assert not isinstance(resets.options, tuple)
        if outcome.rollouts is not None:
            self._standings.take(outcome.rollouts, resets.options, order.restore_limit)
            self._agent = self._worker.in_force["agent"]
            for env_id in range(order.n_envs):
                environments.forget_actions(env_id)
        return outcome

    def _run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        lost = 0
        while True:
            try:
                outcome = super().run(ticket, order)
            except NotReproducibleError:
                lost += self._worker.ran_timesteps
                self._worker.ran_timesteps = 0
            else:
                self._worker.ran_timesteps += lost
                return outcome
            # Each time round a process was lost, of which there is a quota.
            self._environments.forget()
            self._environments.settle(range(order.n_envs))
            self.close()
            self._known = replace(order, standings=self._standings.of(range(order.n_envs))), self._agent

    def _history_of(self, env_id: int, n: int) -> History | None:
        """Return an episode's first n actions, but for those that `Environments` has; None if they are not kept."""
        group = self._groups[0]
        assert isinstance(group, WaitingGroup)
        here = group.history_of(env_id, n)
        if self._standings.episode_of(env_id) != group.rows[env_id].episode:
            return here
        before = self._standings.actions_of(env_id)
        if before is None:
            return None
        return here._replace(actions=[*singles_of(self._worker.spaces[1], before), *here.actions][:n])
