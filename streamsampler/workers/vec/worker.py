"""The worker of several environments, with one call of the agent for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from streamsampler.data.recorder import Rollouts
from streamsampler.environments.updates import (
    AnyEnv,
    AnyVectorEnv,
    EnvCloseError,
    EnvUpdate,
    ExistingEnvUpdate,
    apply_any_env_update,
)
from streamsampler.errors import DataError, UsageError, positive
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.scheduling.blocks import Layout
from streamsampler.seeding import Stream, derived_seed
from streamsampler.serialization import dumps, loads
from streamsampler.workers.base import Outcome, Worker, WorkerContext
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.vec.agents import AgentPool
from streamsampler.workers.vec.block import Block, Seconds
from streamsampler.workers.vec.native import NativeRunner
from streamsampler.workers.vec.native_seeds import heeding_seeds
from streamsampler.workers.vec.recorder import BatchRecorder
from streamsampler.workers.vec.slots import SlotRunner

__all__ = ["VecWorker"]

_N_ENVS = 8


class VecWorker(Worker):
    """Runs several environments side by side, and asks the agent once for the actions of all of them.

    What is batched together can show in the last bits of an agent's numbers, and so can what an agent draws for a whole
    batch. So trajectories are run in *blocks* of consecutive indices, and what happens in a block is a function of the
    block alone: the same batches for any number of workers, any engine and any timing, as with `DefaultWorker`. Another
    `n_envs` or `block_size` may give other batches.

    A block has one trajectory for each environment, or `block_size` trajectories. Longer blocks lose less where
    environments wait for the longest trajectory; shorter ones are better shared among workers. Fewer
    trajectories than `n_envs` for each worker leave environments idle or their work unused: take fewer environments
    then.

    The global generators (`random`, `numpy.random`, torch) and an agent with `get_actions` are seeded at the start of
    each block, from its first trajectory's seed; each environment at the start of each trajectory, from the
    trajectory's. An agent without `get_actions` is asked for one action at a time; if it has `reset`, every slot gets a
    copy of its own, which is reset with the trajectory's seed, just as in `DefaultWorker`.

    It also takes an environment that is vectorised natively, a `gymnasium.vector.VectorEnv`; see
    `native.NativeRunner`. Where that one resets itself, `batch.seeds[i]` restarts a trajectory only if it is the
    first of its slot in its block.

    Pass it as ``worker_class=VecWorker, worker_args={"n_envs": 32}``.

    Args:
        context: What the worker is made with.
        n_envs: How many environments; None for 8, or for as many as a vector environment has.
        block_size: How many trajectories make a block; None for as many as there are environments.

    Raises:
        UsageError: An argument cannot work.
    """

    can_rehearse = True
    can_take_options = True

    def __init__(self, context: WorkerContext, *, n_envs: int | None = None, block_size: int | None = None) -> None:
        super().__init__(context)
        self._block = self.layout({"n_envs": n_envs, "block_size": block_size}).block
        self._n_envs = None if n_envs is None else positive("n_envs", n_envs)
        self._agents = AgentPool(hint=context.worker_number == 0)
        self._runner: SlotRunner | NativeRunner | None = None
        self._envs: list[AnyEnv | AnyVectorEnv] = []
        self._recorder: BatchRecorder | None = None

    @classmethod
    def layout(cls, worker_args: Mapping[str, Any]) -> Layout:
        """Return how many trajectories run side by side, and how many make a block.

        Args:
            worker_args: `n_envs` and `block_size`, where they are given.

        Raises:
            UsageError: They are no positive integers, or a block cannot fill the environments.
        """
        n_envs, block_size = worker_args.get("n_envs"), worker_args.get("block_size")
        n_slots = _N_ENVS if n_envs is None else positive("n_envs", n_envs)
        size = n_slots if block_size is None else positive("block_size", block_size)
        if n_envs is not None and size < n_slots:
            raise UsageError(f"block_size is {size}: a block cannot fill n_envs={n_slots} environments")
        return Layout(n_slots, size)

    # ------------------------------------------------------------------ updates

    def update_agent(self, agent_update: Any) -> None:
        """Replace the agent, or hand it new parameters; with copies for slots, each of them."""
        self.phase = Phase.AGENT_CONSTRUCTION if self._agents.empty else Phase.AGENT_UPDATE
        runner = self._runner
        n_slots, spaces = (1, None) if runner is None else (runner.n_slots, runner.spaces)
        self._agents.update(agent_update, n_slots, spaces)

    def update_env(self, env_update: EnvUpdate) -> None:
        """Replace or change the environments, one after the other.

        Raises:
            UsageError: A vector environment that has not `n_envs` environments, or does not fit otherwise.
            Exception: What an environment raises; then there is none until the next update.
        """
        self.phase = Phase.ENV_CONSTRUCTION
        old, self._envs, self._runner = self._envs, [], None
        try:
            self._envs = self._updated(env_update, old)
            self._runner = self._make_runner(self._envs)
        except BaseException as error:
            if isinstance(error, EnvCloseError):
                self.phase = Phase.CLOSE
            _close_quietly([*self._envs, *old])
            self._envs = []
            raise
        self._recorder = BatchRecorder(*self._runner.spaces)

    def _updated(self, update: EnvUpdate, old: list[AnyEnv | AnyVectorEnv]) -> list[AnyEnv | AnyVectorEnv]:
        """Apply an update in each slot. What it has used up of `old` is taken out."""
        pickled = dumps(update, "the environment") if isinstance(update, ExistingEnvUpdate) else None
        envs = self._envs
        envs.append(apply_any_env_update(update, old.pop(0) if old else None))
        if isinstance(envs[0], VectorEnv):
            while old:
                old.pop(0).close()
            envs[0] = heeding_seeds(envs[0], update)
            return envs
        for _ in range(1, self._n_envs or _N_ENVS):
            mine = update if pickled is None else loads(pickled)
            env = apply_any_env_update(mine, old.pop(0) if old else None)
            if any(env is other for other in envs):
                # The update hands out one and the same environment: each slot gets a copy of the update, and with it
                # an environment of its own.
                env = apply_any_env_update(loads(dumps(update, "the environment")), None)
            envs.append(env)
        return envs

    def _make_runner(self, envs: list[AnyEnv | AnyVectorEnv]) -> SlotRunner | NativeRunner:
        first = envs[0]
        if isinstance(first, VectorEnv):
            if self._n_envs is not None and self._n_envs != first.num_envs:
                raise UsageError(f"n_envs is {self._n_envs}, but the vector environment has {first.num_envs}")
            if first.num_envs > self._block:
                raise UsageError(
                    f"a block of {self._block} trajectories cannot fill a vector environment of {first.num_envs}: "
                    f'pass worker_args={{"n_envs": {first.num_envs}}}'
                )
            return NativeRunner(first, self)
        single = [env for env in envs if isinstance(env, gymnasium.Env)]
        for env in single[1:]:
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise DataError(
                    "the environments of one worker must have the same spaces: one has "
                    f"{first.observation_space} and {first.action_space}, another has {env.observation_space} and "
                    f"{env.action_space}"
                )
        return SlotRunner(single, self)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of a single trajectory."""
        assert self._runner is not None
        return self._runner.spaces

    def environments(self) -> Sequence[AnyEnv | AnyVectorEnv]:
        """Return the environments, or the vector environment."""
        return tuple(self._envs)

    # ------------------------------------------------------------------ rolling out

    def rehearse(self, version: int, indices: range, seeds: list[int], stand_ins: Sequence[Any]) -> None:
        """Run a block in stand-ins, one trajectory in each environment, without recording it."""
        runner = self._runner
        if isinstance(runner, NativeRunner):
            agent = self._agents.batched(runner.n_slots)
            NativeRunner(stand_ins[0], self).rehearse(version, indices, seeds, agent)
            return
        self._runner = SlotRunner(list(stand_ins), self)
        recorder = BatchRecorder(*self._runner.spaces)
        try:
            self._run(Block(version, 0, indices, seeds), recorder, Seconds())
        finally:
            self._runner = runner
            self.ran_timesteps += len(recorder.rewards)

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the ticket's trajectories, block by block."""
        runner = self._runner
        if isinstance(runner, NativeRunner):
            return runner.rollout(ticket, seeds, self._agents.batched(runner.n_slots))
        recorder, seconds = self._recorder, Seconds()
        assert recorder is not None
        recorder.clear()
        may_run = True
        for first in range(0, len(seeds), ticket.block):
            if not may_run:
                break
            stop = first + ticket.block
            try:
                may_run = self._run(
                    Block(ticket.version, first, ticket.indices[first:stop], seeds[first:stop]), recorder, seconds
                )
            finally:
                self.ran_timesteps = len(recorder.rewards)
        if not may_run:
            return self._outcome(None, recorder, seconds, recorder.n_ended, recorder.n_timesteps)
        rollouts = self._finished(recorder, ticket)
        return self._outcome(rollouts, recorder, seconds, rollouts.n_trajectories, rollouts.n_timesteps)

    def _finished(self, recorder: BatchRecorder, ticket: Ticket) -> Rollouts:
        """Return what was recorded; if some of it is wrong, raise the error of the first such trajectory.

        So the error does not depend on what is looked at first, nor on how much of a block was run.
        """
        first: DataError | None = None
        position, phase = 0, self.phase
        while True:
            try:
                rollouts = self.finished(
                    partial(recorder.finish, None if first is None else position), ticket.indices, self._envs[0]
                )
            except DataError as error:
                first, position, phase = error, error.position or 0, self.phase
                if position:
                    continue
                raise
            if first is None:
                return rollouts
            self.phase, self.trajectory = phase, ticket.indices[position]
            raise first

    def _outcome(
        self, rollouts: Rollouts | None, recorder: BatchRecorder, seconds: Seconds, n_trajectories: int,
        n_timesteps: int,
    ) -> Outcome:  # fmt: skip
        return Outcome(
            rollouts=rollouts,
            n_trajectories=n_trajectories,
            n_timesteps=n_timesteps,
            n_abandoned=recorder.n_begun - n_trajectories,
            abandoned_timesteps=len(recorder.rewards) - n_timesteps,
            seconds=(seconds.reset, seconds.agent, seconds.step),
        )

    def _run(self, block: Block, recorder: BatchRecorder, seconds: Seconds) -> bool:
        runner = self._runner
        assert isinstance(runner, SlotRunner)
        agent = self._agents.batched(runner.n_slots)
        self.trajectory = block.indices[0]
        self.row.begin_trajectory(block.indices[0])
        self.phase = Phase.AGENT_RESET
        seed_generators(block.seeds[0])
        agent.row = -1
        agent.begin_block(derived_seed(block.seeds[0], Stream.AGENT))
        return runner.run(block, agent, recorder, seconds)

    def shutdown(self) -> None:
        """Close the environments."""
        self.phase, self.trajectory = Phase.CLOSE, None
        envs, self._envs, self._runner = self._envs, [], None
        while envs:
            env = envs.pop(0)
            try:
                env.close()
            except BaseException:
                _close_quietly(envs)
                raise


def _close_quietly(envs: Sequence[AnyEnv | AnyVectorEnv]) -> None:
    """Close environments after another error, and ignore what that raises."""
    for env in envs:
        with contextlib.suppress(Exception):
            env.close()
