"""Run fragments in environments of other processes: rows of a batch, with episodes lasting from call to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from streamsampler.core.errors import NotReproducibleError, UsageError
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import End
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.stepping.inference.remote_rows import RemoteRows
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.explain import row_at_fault
from streamsampler.workers.finishing import UNKNOWN
from streamsampler.workers.fragment_rows import FragmentRow
from streamsampler.workers.fragments import whose_memory
from streamsampler.workers.generators import generator_states
from streamsampler.workers.resets import EpisodeCheckpoint, EpisodeCheckpoints, FragmentOrder
from streamsampler.workers.restoring import NotRestoredError, no_failure, rounding_for
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.fragments import EnvGroup, EnvGroups
from streamsampler.workers.vec.rows import singles_of
from streamsampler.workers.vec.several_agents import PolicyBatches
from streamsampler.workers.vec.several_agents_fragments import MultiAgentEnvGroup
from streamsampler.workers.vec.worker import DRAWS

_LENT = "its agent has run whole trajectories since then, and "


class RemoteEnvGroup(RemoteRows, EnvGroup):
    """Environments of fragments in other processes, with the worker's own agent, which `asked` returns.

    If the agent can wait and its rows are independent, environments have their own pace in a fragment; otherwise the
    agent acts on all rows together.
    """

    def __init__(self, *args: Any, asked: Callable[[], BatchedAgent], **more: Any) -> None:
        super().__init__(*args, **more)
        self._agent_of_worker = asked
        self._its_agent: Any = None  # the payload of its agent
        self._earlier = [0] * len(self.rows)  # timesteps of each row's episode in earlier calls
        # Delayed exceptions, and the phases they came in, by `_when` and row.
        self._held: dict[tuple[int, int], tuple[BaseException, Phase]] = {}

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Use the current agent, with its current parameters and filters."""
        del load
        in_force = self._worker.in_force["agent"]
        if in_force is not self._its_agent:
            self._its_agent = in_force
            self.set_rows(self._batch_rows())
            self._agent = self._made_agent()
            self._begin_new_agent()

    def _made_agent(self) -> BatchedAgent:
        return self._agent_of_worker()

    def restore_lent_agent(self, packed: bytes | None) -> None:
        """Restore the agent's memory of these episodes, after it has run whole trajectories.

        `packed` is the memory; None if it could not be saved.
        """
        if self._worker.in_force["agent"] is not self._its_agent:
            return  # the agent was replaced, and starts without memory
        self._reconnect_agent()
        if packed is None:
            self._lose_all(_LENT + UNKNOWN)
            return
        try:
            with no_failure(whose_memory(self._worker)):
                self._prepare_agent()
                self._restore_agent(packed, is_replaced=False)
        except NotRestoredError as error:
            self._lose_all(_LENT + str(error))

    def _reconnect_agent(self) -> None:
        """Connect the agent with these environments again."""

    def _prepare_agent(self) -> None:
        """Prepare the agent for its memory of these episodes."""

    def history_of(self, row: int, n: int, earlier: int = 0) -> History:
        """Return the part of a row's history recorded only here."""
        return super().history_of(row, n, earlier or self._earlier[row])

    def _run_rows(self, version: int) -> bool:
        self.together = not (self.agent.can_wait and self._worker.runs_lanes)
        self._forget_rows()
        before = generator_states()
        if not super()._run_rows(version):
            return False
        if not self.together and generator_states()[: len(before)] != before:
            self._row = 0
            raise UsageError(DRAWS)
        return True

    def _begin(self, position: int) -> None:
        self._earlier[position] = self.rows[position].length
        super()._begin(position)

    def _begin_next(self, position: int) -> None:
        self._earlier[position] = 0
        super()._begin_next(position)

    def _reset_function(self, row: FragmentRow) -> Callable[..., Any]:
        return self._request_reset(row.number, row.index)

    def _forget_rows(self) -> None:
        super()._forget_rows()
        self._held.clear()

    def _take(self, arrived: Sequence[int]) -> None:
        super()._take(arrived)
        if self._held:
            self._raise_first()

    def _take_result(self, row: int, *result: Any) -> None:
        """Send a script its environment's result; delay an exception while an earlier one may come.

        Earlier by the seed, not by the clock: at an earlier timestep of the fragment, or in an earlier row.
        """
        when = self._when(row)
        try:
            super()._take_result(row, *result)
        except (Exception, SystemExit) as error:
            self._held[when, row] = error, self._worker.phase
            self._runs[row] = self._ready[row] = False

    def _when(self, row: int) -> int:
        """Return a number growing with a row's timesteps, and less by 1 during a reset."""
        return -self._left[row] - int(self._is_in_reset[row])

    def _raise_first(self) -> None:
        """Raise the earliest exception, once no running row can precede it."""
        _, row = first = min(self._held)
        if any((self._when(other), other) < first for other in np.flatnonzero(self._runs).tolist()):
            return
        error, self._worker.phase = self._held[first]
        self._held.clear()
        self._row, self._runs[row] = row, True
        try:
            raise error
        finally:
            del error  # its traceback has this frame, and frames that hold the processes' memory

    def _is_last(self, row: int) -> bool:
        return self._left[row] == 1

    def _stepped(self, row: int) -> None:
        self._left[row] -= 1
        if not self._left[row]:
            self._runs[row] = self._ready[row] = False
            self._cut(row)

    def _take_end(self, row: int, end: End) -> None:
        if end.ended:
            self._left[row] -= 1
        super()._take_end(row, end)

    def _restore(self, row: FragmentRow, standing: EpisodeCheckpoint, version: int, agent_is_known: bool) -> int:
        ran = super()._restore(row, standing, version, agent_is_known)
        if not row.length:
            self._environments.scheduler.end(row.number)  # its episode was abandoned: the next loss must not restore it
        return ran

    def _explain(self, error: BaseException) -> None:
        if self._prepare_explaining(error):
            super()._explain(error)

    def _position_at_fault(self, error: BaseException) -> int:
        position = max(self._row, self.agent.row)
        if position >= 0:
            return position
        asked = np.flatnonzero(self._acting).tolist()
        if self._worker.phase is Phase.STEP or not asked:
            return 0  # it concerns no row, such as Ctrl-C
        if (position := row_at_fault(error, -1)) in asked:
            return position
        names = ", ".join(str(self._running[each].index) for each in asked)
        error.add_note(f"get_actions had the observations of trajectories {names}")
        if self._worker.phase is Phase.ACTION and isinstance(error, Exception):
            return next((each for each in asked if self._raises_alone(each)), asked[0])
        return asked[0]


class RemoteMultiAgentEnvGroup(RemoteEnvGroup, MultiAgentEnvGroup):
    """Environments of several agents in other processes, with the worker's own policies.

    The policies alternate between these environments and those of whole trajectories.
    """

    def _made_agent(self) -> BatchedAgent:
        agent = super()._made_agent()
        assert isinstance(agent, PolicyBatches)
        agent.players.move_to([cast("MultiAgentEnv", row.env.unwrapped) for row in self.rows])
        self._play_with(agent.players)
        return agent

    def _reconnect_agent(self) -> None:
        self._agent = self._made_agent()

    def _prepare_agent(self) -> None:
        for position, row in enumerate(self.rows):
            if row.length:
                self._begin_agent(position)


class RemoteEnvGroups(EnvGroups):
    """The environments of fragments, all of them rows of a single batch.

    A lost environment is restored to its timestep, while the others wait. If it cannot be, the fragment is run again:
    all episodes return to its start, and this environment starts a new episode, as after a worker's loss.
    """

    def __init__(
        self, worker: Worker, base_version: int, environments: Environments, group: Callable[..., RemoteEnvGroup]
    ) -> None:
        super().__init__(worker, base_version, environments.n_envs, group)
        self.environments = environments
        self.agent_is_lent = False  # whether whole trajectories used the agent since the last fragment
        self._standings = EpisodeCheckpoints(agents_stay=True)
        self._agent: Any = None  # the agent of the last fragment
        environments.copies = True  # a row continues from its observation in the next call, after any restores
        # Discard other requests, even of environments without a row in this fragment.
        environments.scheduler.forget()
        environments.settle(range(environments.n_envs))

    def close(self) -> None:
        """Forget the episodes and their records; end processes other than the worker's own."""
        self.environments.history_of = None
        is_own = self.has(self._worker.environments())
        try:
            super().close()
        finally:
            if not is_own:
                self.environments.shut_down()

    def _restore_lent_agent(self, n_envs: int) -> None:
        if not self.agent_is_lent:
            return
        self.agent_is_lent = False
        for group in self._groups.values():
            assert isinstance(group, RemoteEnvGroup)
            standings = self._standings.known(range(n_envs))
            group.restore_lent_agent(next((standing.agent for standing in standings.values() if standing.agent), None))

    def run(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        environments, resets = self.environments, self._worker.resets
        self._restore_lent_agent(order.n_envs)
        if order.standings:
            self._standings.put(order.standings)
        try:
            outcome = self._run(ticket, order)
        except BaseException:
            environments.abandon()
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
            self.environments.history_of = self._history_of
            try:
                outcome = super().run(ticket, order)
            except NotReproducibleError:
                lost += self._worker.ran_timesteps
                self._worker.ran_timesteps = 0
            else:
                self._worker.ran_timesteps += lost
                return outcome
            # The quota of losses ends this loop: each time, a process was lost.
            self.environments.scheduler.forget()
            self.environments.settle(range(order.n_envs))
            self.forget()
            self._known = replace(order, standings=self._standings.known(range(order.n_envs))), self._agent

    def _history_of(self, env_id: int, n: int) -> History | None:
        """Return an episode's first n actions without those in `Environments`; None if they are lost."""
        group = self._groups[0]
        assert isinstance(group, RemoteEnvGroup)
        here = group.history_of(env_id, n)
        if self._standings.episode_of(env_id) != group.rows[env_id].episode:
            return here
        before = self._standings.actions_of(env_id)
        if before is None:
            return None
        rounded = rounding_for(group.rows[env_id].env.action_space).round  # several agents' actions need no rounding
        actions = map(rounded, singles_of(self._worker.spaces[1], before))
        return here._replace(actions=[*actions, *here.actions][:n])
