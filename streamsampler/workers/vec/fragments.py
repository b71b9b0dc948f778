"""Run fragments side by side: the environments of a group take each timestep together, in one batch of the agent.

Which environments share a batch, and in which row each is, does not depend on the number of workers: group g has
environments `g * n_rows` to `(g + 1) * n_rows - 1`. So even agents whose rows depend on each other do the same for any
number of workers. Each group has a copy of the agent, and the global generators have their own state in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from streamsampler.environments.updates import AnyEnv
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.distinct_envs import claim, close_all, release
from streamsampler.workers.resets import FragmentOrder
from streamsampler.workers.restoring import AbandonedError
from streamsampler.workers.vec.groups import Group, Row

__all__ = ["RunningGroups"]


class RunningGroups:
    """The groups of environments of fragments that a worker has.

    Args:
        worker: The worker.
        base_version: The agent version in which these environments began.
        n_rows: How many environments a group has.
        make: Makes so many environments.
    """

    _group: Callable[..., Group] = Group

    def __init__(self, worker: Worker, base_version: int, n_rows: int, make: Callable[[int], list[AnyEnv]]) -> None:
        self.base_version = base_version
        self._worker, self._n_rows, self._make = worker, n_rows, make
        self._seeds = TrajectorySeeds(worker.context.seed, base_version)
        self._groups: dict[int, Group] = {}
        self._loaded: dict[str, tuple[Any, Any]] = {}
        # What was told when a lost worker was replaced, maybe some calls ago, and the agent then: groups that were
        # complete are run again in the next call.
        self._known: tuple[FragmentOrder | None, Any] = None, None

    def close(self) -> None:
        """Close the environments but the worker's own; whatever they raise comes after all are closed."""
        release(self)
        groups, self._groups = self._groups, {}
        envs = [row.env for group in groups.values() for row in group.rows]
        close_all(envs, self._worker.environments())

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket, which is of one group."""
        worker, number, restored = self._worker, ticket.indices[0], 0
        worker.trajectory = None  # what is made and updated here is of none
        is_new = number not in self._groups
        if is_new:
            self._groups[number] = self._made(number, order)
        group = self._groups[number]
        group.update_agent(self._load)
        if order.standings and order is not self._known[0]:
            self._known = order, worker.in_force["agent"]
        known, agent = self._known
        if is_new and known is not None and (first := group.rows[0].number) in known.standings:
            replaced = known.standings[first].agent_is_replaced or agent is not worker.in_force["agent"]
            try:
                restored = group.take_over(known.standings, ticket.version, agent_is_replaced=replaced)
            except AbandonedError as error:
                worker.ran_timesteps += error.ran
                return Outcome(None, 0, 0)
        group.seconds = [0.0, 0.0, 0.0]
        if not group.run(ticket.version, order.n_timesteps):
            return Outcome(None, 0, 0, len(group.rows), worker.ran_timesteps)
        if known is not order and known is not None and self._has_all(known.standings):
            self._known = None, None  # the actions are not needed any more
        rollouts = group.gather()
        worker.ran_timesteps += restored
        return Outcome(rollouts, rollouts.n_trajectories, rollouts.n_timesteps, seconds=tuple(group.seconds))

    def _has_all(self, envs: Iterable[int]) -> bool:
        """Return whether these environments are running."""
        return all(env // self._n_rows in self._groups for env in envs)

    def _made(self, number: int, order: FragmentOrder) -> Group:
        worker, first, n_envs = self._worker, number * self._n_rows, order.n_envs
        worker.enter(Phase.ENV_CONSTRUCTION)
        numbers = range(first, min(first + self._n_rows, n_envs))
        own = cast("list[AnyEnv]", [*worker.environments()])
        envs = self._make(len(numbers)) if self._groups else own[: len(numbers)]
        for env in envs:
            claim(env, self, lambda: worker.load(worker.in_force["env"]))
        rows = [Row(each, env) for each, env in zip(numbers, envs, strict=True)]
        return self._group(number, self._n_rows, rows, n_envs, self._seeds, worker)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind][0] is not payload:
            self._loaded[kind] = payload, self._worker.load(payload)
        return self._loaded[kind][1]
