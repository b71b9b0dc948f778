"""The worker of several environments, with a single agent call for all of them.

`VecWorker` owns environments and agent, and makes the runner for them. An exception in lanes may belong to a later
ticket: then agent and environments are rebuilt, and the current ticket runs alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from streamsampler.agents.base import is_agent
from streamsampler.agents.independence import Independence
from streamsampler.core.errors import UsageError, positive
from streamsampler.core.serialization import dumps, loads
from streamsampler.environments.closing import EnvCloseError
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import (
    AnyEnv,
    AnyVectorEnv,
    EnvUpdate,
    ExistingEnvUpdate,
    apply_any_env_update,
    for_worker,
)
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.protocol.plans import Layout
from streamsampler.workers.alike import refuse_different
from streamsampler.workers.base import Outcome, WorkerContext
from streamsampler.workers.generators import generator_states, seed_constructors, seed_generators
from streamsampler.workers.lending import LendingWorker
from streamsampler.workers.masks import masks_reach
from streamsampler.workers.resets import FragmentOrder
from streamsampler.workers.restoring import are_one, close_all, refuse_copies_of
from streamsampler.workers.several.policy_set import PolicySet
from streamsampler.workers.vec.agents import AgentPool, BatchedAgent
from streamsampler.workers.vec.fragments import EnvGroup, EnvGroups
from streamsampler.workers.vec.lanes import MULTIPLE, LaneRunner, rows_of_lanes
from streamsampler.workers.vec.native import NativeRunner
from streamsampler.workers.vec.native_seeds import using_seeds
from streamsampler.workers.vec.rehearsal import RehearsalRunner, with_info_callback
from streamsampler.workers.vec.several_agents import PolicyBatches
from streamsampler.workers.vec.several_agents_fragments import MultiAgentEnvGroup

_N_ENVS = 16
DRAWS = (
    "something drew from a global generator (random, numpy.random or torch), which all running trajectories share, so "
    "they would depend on each other. Draw from the keyword draws in get_actions, and from np_random in the "
    'environment; or pass worker_args={"block_size": n}, which runs trajectories in fixed blocks of n'
)
_SINGLE = "pass a single environment, of which VecWorker makes several"
_NO_FRAGMENTS = f"a vector environment runs no fragments: {_SINGLE}, and n_envs=… to obtain_fragments"
_NO_HOOKS = (
    "a vector environment takes no hooks and no drop_if, because it steps all its environments in a single call: "
    f"{_SINGLE}"
)


class VecWorker(LendingWorker):
    """Runs several environments in each process, and asks the agent once for all their actions.

    *In lanes* each trajectory depends on nothing but itself, as with `DefaultWorker`: an environment begins the next
    trajectory as soon as the last has ended. This needs an agent with ``row_independent = True`` (see
    `streamsampler.Agent`), which a probe checks, and which draws from ``draws``. Batches have whole multiples of 16
    rows, unless more than a third would be padding (`lanes.rows_of_lanes`). Trajectory i runs in environment i mod
    `n_envs` where the environments differ (`PerEnv`), where the agent takes ``slots``, and where rows depend on their
    place in the batch.

    *In blocks*, with all other agents or a `block_size`, trajectories of consecutive indices may influence each other,
    but nothing outside the block does. A block has a trajectory for each environment, or `block_size` trajectories:
    longer blocks wait less for their longest trajectory; shorter blocks are easier to share among workers. Each block's
    first trajectory seeds the global generators (`random`, `numpy.random`, torch) and an agent with `get_actions`.

    So batches are the same for any number of workers, any engine and any timing. Another `n_envs` or `block_size` may
    change them: the shape of an agent's batch can show in the last bits of its numbers.

    Each trajectory resets its environment with its seed. An agent without `get_actions` is asked for each action
    separately; if it has `reset`, every environment gets a copy of it, which is reset with the trajectory's seed, as in
    `DefaultWorker`.

    A native `gymnasium.vector.VectorEnv` works, too, without hooks; see `native.NativeRunner`. If it resets itself,
    `batch.seeds[i]` restarts a trajectory only if it was the first of its slot in its block. Without a `block_size`,
    its blocks get longer within a call: the first 6 have a trajectory for each environment, then 3 have two, 3 four, 3
    eight, and all others 16 for each.

    Pass it as ``worker_class=VecWorker, worker_args={"n_envs": 32}``.

    Args:
        context: The worker's context.
        n_envs: The most environments of a worker, made as calls need them; None for 16, or for the number in a vector
            environment.
        block_size: Trajectories in a block. None for lanes where the agent allows them, otherwise for the number of
            environments, or for growing blocks of a vector environment.

    Raises:
        UsageError: An argument cannot work.
    """

    _running: EnvGroups | None

    further_args = frozenset({"groups"})  # for inference="parent"
    can_play_several = True
    can_rehearse = can_continue = continues_side_by_side = can_take_options = can_call_hooks = asks_for_rows = True
    can_differ_side_by_side = True
    revision = "trajectories in lanes of whole multiples of 16 rows, or in blocks of one size"

    def __init__(self, context: WorkerContext, *, n_envs: int | None = None, block_size: int | None = None) -> None:
        super().__init__(context)
        self._block = self.layout({"n_envs": n_envs, "block_size": block_size}).block
        self._may_run_lanes = block_size is None
        self._failed_ahead = False  # whether the last exception may belong to a later ticket
        self._probed: tuple[Any, Independence | None] = None, None  # the probed agent and the result
        self._update_of: Callable[[int], EnvUpdate]  # returns the environments' last update for a slot
        self._n_envs = None if n_envs is None else positive("n_envs", n_envs)
        self._agents = AgentPool(hint=context.worker_number == 0)
        self._players: PolicyBatches | None = None  # the policies of environments with several agents
        self._runner: LaneRunner | NativeRunner | None = None
        self._envs: list[AnyEnv | AnyVectorEnv] = []

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:
        """Return the number of trajectories that run together, and the size of a block, or of the first ones.

        Raises:
            UsageError: `n_envs` or `block_size` is no positive integer, or a block cannot fill the environments.
        """
        n_envs, block_size = worker_args.get("n_envs"), worker_args.get("block_size")
        n_slots = _N_ENVS if n_envs is None else positive("n_envs", n_envs)
        size = n_slots if block_size is None else positive("block_size", block_size)
        if n_envs is not None and size < n_slots:
            raise UsageError(
                f"block_size={size} is less than n_envs={n_slots}: a block needs a trajectory for each environment"
            )
        # A single environment never waits at a block's end.
        return Layout(n_slots, size, lengthens=block_size is None and n_slots > 1)

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or pass new parameters to it and its copies."""
        self.phase = Phase.AGENT_CONSTRUCTION if self._agents.empty else Phase.AGENT_UPDATE
        runner = self._runner
        if runner is not None and self._has_several():
            if self._players is not None and not is_agent(agent_update):
                self._players.players.update(agent_update)
            else:
                self._agents.update(agent_update, None)
                self._seat()
            return
        self._agents.update(agent_update, None if runner is None else runner.spaces)
        agent = self._agents.first
        masks_reach(agent, self.warn_once, together=callable(getattr(agent, "get_actions", None)))
        self._choose_lanes()

    def _has_several(self) -> bool:
        return bool(self._envs) and isinstance(self._envs[0].unwrapped, MultiAgentEnv)

    def _seat(self) -> None:
        """Assign policies to environments with several agents, if both exist."""
        if not self._has_several() or self._agents.empty:
            self._players = None
            return
        given = self._agents.first
        envs = [each for env in self._envs if isinstance(each := env.unwrapped, MultiAgentEnv)]
        if self._players is not None and self._players.players.given is given:
            self._players.players.move_to(envs)
        else:
            players = PolicySet(given, envs, self.warn_once, across=True, n_envs=len(envs))
            self._players = PolicyBatches(players, self)
        self.runs_lanes = self._may_run_lanes

    def _asked(self, n_rows: int | None = None) -> BatchedAgent:
        """Return the agent for so many rows, None for the runner's; or the policies."""
        if self._players is not None:
            return self._players
        n_rows = n_rows or self._lane_runner.n_slots
        return self._agents.batched(n_rows, min(self._most_envs, n_rows))

    @property
    def _may_lanes(self) -> bool:
        return self._may_run_lanes and self._agents.row_independent

    def _batch_rows(self) -> int:
        """Return the rows of the agent's batches, in fragments too."""
        fills = self._players is None and self._agents.asked_together and self._may_lanes
        return rows_of_lanes(self._most_envs) if fills else self._most_envs

    def _choose_lanes(self, *, anew: bool = True) -> None:
        """Decide between lanes and blocks: probe an agent with declared row independence until the probe is conclusive.

        `anew` says whether another probe may find more than the last.
        """
        self._seat()
        if self._players is not None:
            return
        runner, agents = self._runner, self._agents
        self.runs_lanes = False
        if agents.empty or not isinstance(runner, LaneRunner):
            return
        together = agents.asked_together
        n_rows = self._batch_rows() if together else len(self._envs)
        runner.set_rows(n_rows)
        runner.allow_any_row(False)
        if not self._may_lanes:
            return
        agent, found = self._probed
        if found is None or agent is not agents.first or (anew and not found.conclusive):
            found = agents.probe(runner.spaces, n_rows)
            self._probed = agents.first, found
        runner.allow_any_row(found.of_place and (not together or n_rows % MULTIPLE == 0))
        self.runs_lanes = True

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change all environments.

        Raises:
            UsageError: A vector environment has another number of environments than `n_envs`, or does not fit
                otherwise.
            Exception: From an environment; the worker then has none until the next update.
        """
        self.phase = Phase.ENV_CONSTRUCTION
        self._drop_runner()
        self._leave_lent()
        self._probed = None, None
        old, self._envs = self._envs, []
        try:
            self._update_all(env_update, old)
            self._runner = self._make_runner(self._envs, differ=env_update.n_slots is not None)
            self.runs_longer_blocks = self._may_run_lanes and isinstance(self._runner, NativeRunner)
        except BaseException as error:
            if isinstance(error, EnvCloseError):
                self.phase = Phase.CLOSE
            with contextlib.suppress(Exception):
                close_all([*self._envs, *old])
            self._envs, self._runner = [], None
            raise
        if not self._agents.empty:
            self._choose_lanes()

    def _update_all(self, update: EnvUpdate, old: list[AnyEnv | AnyVectorEnv]) -> None:
        """Apply an update to each existing environment, and to the first at least; remove used ones from `old`.

        Different environments, and those of several agents (rows of a policy's batch), are all made at once.
        """
        if isinstance(update, ExistingEnvUpdate):
            pickled = dumps(update, "the environment")
            self._update_of = lambda _slot: loads(pickled)
        else:
            self._update_of = update.of_slot
        if update.n_slots not in (None, self._most_envs):
            raise UsageError(
                f"got {update.n_slots} environments for each worker, but n_envs is {self._most_envs}: make them equal"
            )
        n = max(1, len(old))
        self._add(update.of_slot(0), old)
        if isinstance(self._envs[0], VectorEnv) and update.n_slots is None:
            while old:
                old.pop(0).close()
            self._envs[0] = using_seeds(self._envs[0], update)
            return
        if update.n_slots is not None or self._has_several():
            n = self._most_envs
        for slot in range(1, n):
            self._add(self._update_of(slot), old)

    def _add(self, update: EnvUpdate, old: list[AnyEnv | AnyVectorEnv]) -> None:
        """Apply an update in the next slot.

        Constructors draw the same numbers in each slot: any slot may run any trajectory, and the number of slots
        depends on the worker's tickets so far.
        """
        envs, known = self._envs, {id(each) for each in old}
        seed_constructors(self.context.seed)
        env = apply_any_env_update(update, old.pop(0) if old else None, several=True)
        if any(are_one(env, other) for other in envs):
            # The update returned an earlier slot's environment: a copy of the update may return a copy of it.
            env = apply_any_env_update(loads(dumps(update, "the environment")), None, several=True)
            refuse_copies_of(env, envs, update)
        envs.append(env)
        if len(envs) > 1 and any(isinstance(each, VectorEnv) for each in envs):
            raise UsageError(f"a vector environment cannot be one of a worker's several environments: {_SINGLE}")
        if not isinstance(env, VectorEnv):
            self.make_callers(len(envs))
            if self.hook_callers and id(env) not in known:
                self.hook_callers[len(envs) - 1].created(env)

    def need_environments(self, n: int) -> None:
        n_before, n = len(self._envs), min(n, self._most_envs)
        if n <= n_before or not isinstance(self._runner, LaneRunner):
            return
        self.enter(Phase.ENV_CONSTRUCTION)
        with for_worker(self.context.worker_number):
            for slot in range(n_before, n):
                self._add(self._update_of(slot), [])
        self._drop_runner()
        self._runner = self._make_runner(self._envs, differ=False)
        if not self._agents.empty:
            self.enter(Phase.AGENT_UPDATE)  # an agent without get_actions may need copies for more rows
            self._choose_lanes(anew=False)
            self._asked()

    def _make_runner(self, envs: list[AnyEnv | AnyVectorEnv], *, differ: bool) -> LaneRunner | NativeRunner:
        first = envs[0]
        if isinstance(first, VectorEnv):
            if self._n_envs is not None and self._n_envs != first.num_envs:
                raise UsageError(
                    f"n_envs is {self._n_envs}, but the vector environment has {first.num_envs}: leave n_envs out"
                )
            if first.num_envs > self._block:
                raise UsageError(
                    f"a block of {self._block} trajectories is too small for a vector environment of {first.num_envs}: "
                    f'pass worker_args={{"n_envs": {first.num_envs}}}'
                )
            if self.context.hooks is not None:
                raise UsageError(_NO_HOOKS)
            return NativeRunner(first, self)
        single = [env for env in envs if isinstance(env, gymnasium.Env)]
        refuse_different(single)
        n_rows = len(single) if self._has_several() else self._most_envs
        return LaneRunner(single, self, n_rows=n_rows, fixed_rows=differ, callers=self.hook_callers)

    @property
    def _most_envs(self) -> int:
        return self._n_envs or _N_ENVS

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        assert self._runner is not None
        return self._runner.spaces

    def environments(self) -> Sequence[AnyEnv | AnyVectorEnv]:
        return tuple(self._envs)

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run trajectories in stand-ins, each in its own environment, and discard them."""
        runner, note = self._runner, stand_ins[0].take_agent_info
        if isinstance(runner, NativeRunner):
            agent = with_info_callback(self._agents.batched(runner.n_slots), note)
            NativeRunner(stand_ins[0], self).run(Ticket(version, indices), seeds, agent, len(seeds))
            return
        agent = (
            self._asked()
            if self._players is None
            else PolicyBatches(self._players.players, self, records_all_infos=True)
        )
        agent = with_info_callback(agent, note)
        rehearsing = RehearsalRunner(list(stand_ins), self, n_rows=self._lane_runner.n_slots)
        rehearsing.n_ran = n_before = self.row.words[self.row.timesteps_word]
        try:
            # Blocks seed the global generators, as nothing may draw from them; so lanes are rehearsed as a block, too.
            rehearsing.run_blocks(Ticket(version, indices, len(indices)), seeds, agent)
        finally:
            self.ran_timesteps += rehearsing.n_ran - n_before
            rehearsing.release()

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories in lanes or blocks; or its fragments."""
        if self.resets is not None and (order := self.resets.fragments) is not None:
            return self._run_fragments(ticket, order)
        self._take_environments()
        runner = self._runner
        if isinstance(runner, NativeRunner):
            return runner.rollout(ticket, seeds, self._agents.batched(runner.n_slots))
        seconds = 0.0
        if self.spoiled:
            self.spoiled = False
            seconds = self._rebuilt()
        try:
            return self._run(ticket, seeds, seconds)
        except (Exception, SystemExit):
            if not self._failed_ahead:
                raise
            lost = self.ran_timesteps
        # The exception may belong to a later ticket: then it is raised again at that ticket's turn.
        if not self.row.may_run(ticket.version):
            self.spoiled = True  # the payloads of this version may be freed already
            return Outcome(None, 0, 0)
        seconds += self._rebuilt()
        try:
            return self._run(ticket, seeds, seconds, alone=True)
        finally:
            self.ran_timesteps += lost

    def _run_fragments(self, ticket: Ticket, order: FragmentOrder) -> Outcome:
        if self._running is None:
            if isinstance(self._runner, NativeRunner):
                raise UsageError(_NO_FRAGMENTS)
            self._running = self._make_groups(order.base_version)
        return self._running.run(ticket, order)

    def _make_groups(self, base_version: int) -> EnvGroups:
        kind = EnvGroup if self._players is None else MultiAgentEnvGroup
        group = partial(kind, batch_rows=self._batch_rows)
        return EnvGroups(self, base_version, self._most_envs, group)

    def _rebuilt(self) -> float:
        """Replace agent and environments, and return the seconds this took."""
        began = perf_counter()
        self.context.rebuild()
        return perf_counter() - began

    @property
    def _lane_runner(self) -> LaneRunner:
        assert isinstance(self._runner, LaneRunner)
        return self._runner

    def _run(self, ticket: Ticket, seeds: list[int], reset_seconds: float, *, alone: bool = False) -> Outcome:
        if self._lane_runner.is_idle:
            n_before = len(self._envs)
            self.need_environments(len(seeds) if alone or not self.runs_lanes else self._n_held(len(seeds)))
            self.further_envs += 0 if self._running is None else len(self._envs) - n_before
        runner, agent = self._lane_runner, self._asked()
        agent.row = -1
        runner.seconds = [reset_seconds, 0.0, 0.0]
        try:
            if self.runs_lanes:
                seed_generators(seeds[0])
                before = generator_states()
                may_run = runner.run_lanes(ticket, seeds, agent, alone=alone)
                if may_run:
                    self._refuse_draws(before, ticket)
            else:
                may_run = runner.run_blocks(ticket, seeds, agent)
            if not may_run:
                return self._abandoned_outcome()
            left_out = runner.left_out()
            indices = [each.index for each in runner.ended()] if left_out else ticket.indices
            rollouts = self.finished_in_order(runner.gather, indices, self._envs[0]) if indices else None
        except BaseException:
            self.ran_timesteps, self._failed_ahead = runner.n_ran, runner.failed_ahead
            runner.forget()
            raise
        metrics = runner.metrics()
        runner.end_ticket()
        n_timesteps = 0 if rollouts is None else rollouts.n_timesteps
        self.ran_timesteps = n_timesteps + sum(each.length for each in left_out)
        runner.n_ran -= self.ran_timesteps
        self.running_timesteps = runner.n_ran
        dropped = tuple(each.left_out for each in left_out if each.left_out is not None)
        seconds = tuple(runner.seconds)
        return Outcome(rollouts, len(indices), n_timesteps, seconds=seconds, dropped=dropped, metrics=metrics)

    def _n_held(self, n: int) -> int:
        """Return the trajectories in all tickets of the worker, counted up to `_most_envs`; the current has n."""
        number = 1
        while n < self._most_envs and (later := self.look_ahead(number)) is not None:
            n, number = n + len(later[1]), number + 1
        return n

    def _refuse_draws(self, before: tuple[Any, ...], ticket: Ticket) -> None:
        """Raise an error if anything has drawn from the global generators, which trajectories share."""
        if generator_states()[: len(before)] != before:
            self.phase, self.trajectory = Phase.STEP, ticket.indices[0]
            raise UsageError(DRAWS)

    def _abandoned_outcome(self) -> Outcome:
        runner = self._lane_runner
        ended = runner.ended()
        n_timesteps = sum(each.length for each in ended)
        n_begun, n_ran = runner.forget()
        self.ran_timesteps, self.running_timesteps = n_ran, 0
        return Outcome(None, len(ended), n_timesteps, n_begun - len(ended), n_ran - n_timesteps, tuple(runner.seconds))

    def abandon(self) -> tuple[int, int]:
        """Forget the running trajectories of later tickets."""
        self.running_timesteps = 0
        return self._runner.forget() if isinstance(self._runner, LaneRunner) else (0, 0)

    def shutdown(self) -> None:
        self.phase, self.trajectory = Phase.CLOSE, None
        self._drop_runner()
        self._leave_lent()
        envs, self._envs = self._envs, []
        close_all(envs)

    def _leave_lent(self) -> None:
        if self._lends():
            running, envs, self._envs = self._running, self._envs, []
            assert running is not None
            close_all([env for env in envs if not running.has([env])])

    def _drop_runner(self) -> None:
        runner, self._runner = self._runner, None
        if isinstance(runner, LaneRunner):
            runner.release()
