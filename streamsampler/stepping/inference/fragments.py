"""Run fragments in environments of other processes: the rows of one batch, whose episodes go on from call to call.

They are one `ParentGroup`, in which each goes at its own pace if the agent does not mind and there are no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError, NotReproducibleError, UsageError, WorkerError
from streamsampler.data.recorder import Rollouts
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import End
from streamsampler.stepping.inference.asking import Asking
from streamsampler.stepping.inference.environments import Environments, EnvProxy, History
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.explain import locate, row_at_fault
from streamsampler.workers.fragments import Row
from streamsampler.workers.generators import drawn_states, generator_states, set_states
from streamsampler.workers.hooks import TrajectoryContext
from streamsampler.workers.resets import FragmentOrder, Standing, Standings
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.fragments import Group, RunningGroups
from streamsampler.workers.vec.rows import singles_of
from streamsampler.workers.vec.steps import Trajectory
from streamsampler.workers.vec.worker import DRAWS

# ----------------------------------------------------------------------
# Hooks, which are here and their environments elsewhere.


class _EnvNotHere:
    """Stands for the context's `env` and `reset` in hooks: the environment is in another process."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UsageError(
            'hooks have no context.env and no context.reset with inference="parent": the environment is in another '
            'process. Let it say in its info what the hook needs, or use inference="worker"'
        )

    __getattr__ = __setattr__ = __call__ = _refuse


def without_env(context: TrajectoryContext) -> TrajectoryContext:
    """Return the context of a trajectory whose environment is in another process."""
    context.env = context.reset = _EnvNotHere()  # type: ignore[assignment]
    return context


def begun_of(proxy: EnvProxy, worker: Worker) -> Any:
    """Return what a reset returned that was requested."""
    try:
        return proxy.begun()
    except DataError as error:
        worker.phase = Phase.RECORDING  # its process found out that it cannot be recorded
        locate(error, proxy, 0)
        raise


# ----------------------------------------------------------------------


class GroupElsewhere(Group):
    """A group of environments that are in other processes, with the worker's own agent.

    Args:
        args: Those of `Group`.
        environments: The environments.
        agents: The worker's agent.
    """

    def __init__(self, *args: Any, environments: Environments, agents: AgentPool) -> None:
        super().__init__(*args)
        self._environments, self._pool = environments, agents
        self._its_agent: Any = None  # the payload of the agent that it has

    def history_of(self, row: int, n: int) -> History:  # noqa: ARG002 - for those that keep some
        """Return what this alone keeps of a row's episode: nothing, `Environments` has it; see `Asking.history_of`."""
        return History([])

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Take the agent that is in force, which has its parameters and filters already."""
        del load
        in_force = self._worker.in_force["agent"]
        if in_force is not self._its_agent:
            self._its_agent = in_force
            self._agent = self._pool.batched(self._n_rows)
            self._begin_new_agent()

    def _restore(self, row: Row, standing: Standing, version: int, agent_is_known: bool) -> int:
        ran = super()._restore(row, standing, version, agent_is_known)
        if not row.length:
            self._environments.end(row.number)  # its episode was given up: the next loss is not to restore it
        return ran

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, WorkerError):
            self._worker.trajectory = None  # the one in hand need not be the one that is lost
            return
        if self._worker.phase is Phase.STEP and isinstance(error, DataError):
            self._worker.phase = Phase.RECORDING  # what a step returned
        super()._explain(error)


class ParentGroup(GroupElsewhere):
    """The environments, each at its own pace within a fragment where the agent does not mind.

    That is an agent whose rows do not depend on each other, and which remembers nothing from step to step. Others are
    asked for all rows together; see `Asking`.

    Args:
        args: Those of `GroupElsewhere`.
        n_groups: See `Asking`.
        more: Further ones of `GroupElsewhere`.
    """

    def __init__(self, *args: Any, n_groups: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._asking = Asking(self, self._environments, self._worker, self.spaces, n_groups, rounds=self._rounds)

    def history_of(self, row: int, n: int) -> History:
        """Return what this alone keeps of a row's episode; see `Asking.history_of`."""
        return self._asking.history_of(row, n)

    # ------------------------------------------------------------------ running

    def _run(self, version: int, n_timesteps: int) -> bool:
        asking = self._asking
        asking.together = not (self.agent.can_wait and self._worker.runs_lanes)
        fresh = set_states(self._seed, self._generators)
        before = generator_states()
        asking.clear()
        asking.masks = self._masks
        self._ended, self._running = [[] for _ in self.rows], asking.running
        asking.left[:] = n_timesteps
        for position in range(len(self.rows)):
            self._go_on(position)
        while asking.live.any():
            self._row = -1
            if not asking.turn(self.agent, version, lambda: False):
                return False
        if not asking.together and generator_states()[: len(before)] != before:
            self._row = 0
            raise UsageError(DRAWS)
        self._generators = drawn_states(fresh)
        return True

    def _go_on(self, position: int) -> None:
        """Go on with the episode in a row, or request that one begins."""
        row = self.rows[position]
        row.begin_fragment()
        if row.length:
            self._asking.go_on(position, row.index, row.length, row.info)
        else:
            self._begin_next(position)

    def _begin_next(self, position: int) -> None:
        worker, row = self._worker, self.rows[position]
        worker.phase, self._row = Phase.RESET, position
        worker.take_in_hand(row.index)
        self._asking.begin(position, None, 0, row.index)
        self._environments.reset(row.number, row.index, row.seed, worker.resets)
        self._begin_agent(position)
        worker.phase, self._row = Phase.STEP, -1

    def count(self, n: int) -> None:
        """Count timesteps that were run."""
        worker = self._worker
        worker.ran_timesteps += n
        worker.row.words[worker.row.timesteps_word] = worker.ran_timesteps

    def take_in_hand(self, row: int) -> None:
        """Note that the next exception is about a row."""
        self._row = row

    def row_ended(self, row: int) -> None:
        """End the part of a row's episode in this fragment, and begin the next episode if there are timesteps left."""
        part, of_env = self._asking.running[row], self.rows[row]
        of_env.length += part.length
        of_env.info = self._asking.last_infos.get(row)
        self._end_part(row, End(part.last, part.terminated, part.truncated, limited=False, info=of_env.info))
        if not of_env.length and self._asking.left[row]:
            self._begin_next(row)

    def _gathered(self, parts: Sequence[Trajectory]) -> Rollouts:
        return self._asking.timesteps.gather(parts, self._worker.context.allocate)

    # ------------------------------------------------------------------ errors

    def _position_at_fault(self, error: BaseException) -> int:
        position = max(self._row, self.agent.row)
        self._singles = self._asking.last_actions(position)
        if position >= 0:
            return position
        asked = np.flatnonzero(self._asking.asked).tolist()
        if self._worker.phase is Phase.STEP or not asked:
            return 0  # it is about none of them, as Ctrl-C is
        if (position := row_at_fault(error, -1)) in asked:
            return position
        names = ", ".join(str(self._running[each].index) for each in asked)
        error.add_note(f"get_actions had the observations of trajectories {names}")
        if self._worker.phase is Phase.ACTION and isinstance(error, Exception):
            return next((each for each in asked if self._asking.raises_alone(self.agent, each)), asked[0])
        return asked[0]


class HookedParentGroup(GroupElsewhere):
    """The environments, which take each timestep together, with hooks in this process."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._environments.copies = True  # what a row goes on from in the next call, whatever is restored meanwhile

    def _context_of(self, row: int, index: int, seed: int, version: int) -> TrajectoryContext:
        return without_env(super()._context_of(row, index, seed, version))

    def _reset_function(self, row: Row) -> Callable[..., Any]:
        def reset(*, seed: int) -> Any:
            self._environments.reset(row.number, row.index, seed, self._worker.resets)
            return begun_of(self._environments.proxies[row.number], self._worker)

        return reset

    def _step_all(self) -> None:
        numbers, proxies = [row.number for row in self.rows], self._environments.proxies
        self._environments.step(numbers, self._singles[: len(numbers)])
        for number in numbers:
            proxies[number].is_requested = True
        super()._step_all()

    def _end_part(self, position: int, end: End) -> None:
        if end.ended:
            self._environments.end(self.rows[position].number)
        super()._end_part(position, end)


# ----------------------------------------------------------------------


class ParentGroups(RunningGroups):
    """The environments of fragments, all of them rows of one batch.

    An environment whose process is lost is restored to the very timestep, while the others wait for it. Where that
    cannot be, the whole fragment is run again: all episodes are taken back to where they stood before it, and in the
    one that cannot be restored a new one begins, as with a worker that is lost.

    Args:
        worker: The worker.
        base_version: The agent version in which the episodes began.
        environments: The environments.
        group: Makes a group.
    """

    def __init__(
        self, worker: Worker, base_version: int, environments: Environments, group: Callable[..., GroupElsewhere]
    ) -> None:
        super().__init__(worker, base_version, environments.n_envs, group)
        self._environments = environments
        self._standings = Standings(agents_stay=True)
        self._agent: Any = None  # the one in force in the last fragment
        # What others did is over, also of environments that are no rows of this fragment.
        environments.forget()
        environments.settle(range(environments.n_envs))

    def close(self) -> None:
        """Forget the episodes, and what was kept of them."""
        self._environments.history_of = None
        super().close()

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        """Run the fragment of a ticket."""
        environments, resets = self._environments, self._worker.resets
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
            self._standings.record(outcome.rollouts, resets.options, order.restore_limit)
            self._agent = self._worker.in_force["agent"]
            for env_id in range(order.n_envs):
                environments.forget_actions(env_id)
        return outcome

    def _run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        lost = 0
        while True:
            self._environments.history_of = self._history_of
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
            self._known = replace(order, standings=self._standings.known(range(order.n_envs))), self._agent

    def _history_of(self, env_id: int, n: int) -> History | None:
        """Return an episode's first n actions, but for those that `Environments` has; None if they are not kept."""
        group = self._groups[0]
        assert isinstance(group, GroupElsewhere)
        here = group.history_of(env_id, n)
        if self._standings.episode_of(env_id) != group.rows[env_id].episode:
            return here
        before = self._standings.actions_of(env_id)
        if before is None:
            return None
        return here._replace(actions=[*singles_of(self._worker.spaces[1], before), *here.actions][:n])
