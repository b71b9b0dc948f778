"""Run environments for a sampler whose agent stays in its own process: exactly what a worker there would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from streamsampler.core.errors import NotReproducibleError, RemoteTraceback, RolloutError, UsageError
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload, loads
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import FLAGS, flag_of, number_of
from streamsampler.environments.updates import apply_any_env_update, for_worker
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.stepper import MAKING, RESETTING, STEPPING, Stepper
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import begin_of, raised_in
from streamsampler.workers.generators import generator_states, seed_generators
from streamsampler.workers.known_wrappers import EnvFacts
from streamsampler.workers.resets import Resets, reset_one

# ----------------------------------------------------------------------
# The errors of environments in other processes.


HIDDEN = (
    "environment {} was lost with its process, and did something else when it was reset with its seed and its actions "
    "were applied again: it draws from something that its reset does not seed. Let it draw from self.np_random after "
    "super().reset(seed=seed)"
)
RAISED = "environment {} was lost with its process, and raised when its actions were applied again"
TOO_LONG = "environment {} was lost with its process, in an episode that is longer than can be restored"


class EnvironmentRaisedError(Exception):
    """Stands for an exception of an environment that cannot be brought from its process; says which one."""


def own(error: Any) -> BaseException:
    """Return what an environment raised; the error that tells of it where that did not cross the processes."""
    if not isinstance(error, RolloutError) or error.original is None:
        assert isinstance(error, BaseException)
        return error
    error.original.__cause__ = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
    return error.original


def not_restored(env_id: int, index: int | None, why: str) -> NotReproducibleError:
    """Return the error of an environment that cannot be restored.

    Args:
        env_id: The environment.
        index: Its trajectory.
        why: `HIDDEN`, `RAISED` or `TOO_LONG`.
    """
    return NotReproducibleError(why.format(env_id), worker_number=0, phase=Phase.STEP, trajectory=index)


# ----------------------------------------------------------------------


_DRAWS = (
    "something drew from a global generator (random, numpy.random or torch) in an environment: several share "
    "a process, so that trajectories would depend on one another. Draw from its np_random, or leave out "
    'inference="parent"'
)

_VECTOR = (
    'inference="parent" takes no vector environment: pass one that is not vectorised, of which as many are made as '
    'n_envs says, or leave out inference="parent"'
)


@dataclass(frozen=True, slots=True)
class Order:
    """How a trajectory begins.

    Attributes:
        index: Its index.
        seed: Its seed.
        resets: What the call says of this trajectory's reset; None for nothing.
    """

    index: int
    seed: int
    resets: Resets | None = None


@dataclass(frozen=True)
class _OneReset(Resets):
    """What a call says of one trajectory.

    Attributes:
        number: The number of its task.
    """

    number: int = 0

    def task_index(self, index: int) -> int:
        """Return the number of the task."""
        del index
        return self.number

    def task_of(self, index: int) -> Any:
        """Return the task."""
        del index
        assert self.tasks is not None
        return self.tasks[0]


def order_of(index: int, seed: int, resets: Resets | None) -> Order:
    """Return how a trajectory begins.

    Args:
        index: Its index.
        seed: Its seed.
        resets: What the call says of all its trajectories.
    """
    if resets is None or not resets.changes_resets:
        return Order(index, seed)
    options = resets.options_of(index)
    if resets.tasks is None:
        return Order(index, seed, None if resets.options is None else _OneReset(options=(options,)))
    one = None if resets.options is None else (options,)
    return Order(index, seed, _OneReset(options=one, tasks=(resets.task_of(index),), number=resets.task_index(index)))


class RolloutStepper(Stepper):
    """Runs the environments of one process, each of them made and asked as in a worker of a sampler.

    Args:
        updates: What makes each environment, pickled, by its number.
        worker_number: The number of the process.
        row: Where it shows what it does.
        seed: The sampler's seed.
        max_episode_length: After how many timesteps the sampler truncates trajectories; None for never.
    """

    def __init__(
        self,
        updates: Mapping[int, Payload],
        worker_number: int,
        row: WorkerRow,
        *,
        seed: int,
        max_episode_length: int | None = None,
    ) -> None:
        super().__init__(dict.fromkeys(updates, None), worker_number, row, "disabled")  # type: ignore[arg-type]
        self._payloads = dict(updates)
        self._construction_seed = TrajectorySeeds(seed, 0)[0]
        self._orders: dict[int, Order] = {}
        self._given: dict[int, Any] = {}  # actions of another dtype than the rows'
        self._undrawn: tuple[Any, ...] = ()
        self._limit = math.inf if max_episode_length is None else max_episode_length
        self._lengths = dict.fromkeys(updates, 0)

    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments, or change them; return the observation space and the action space of each."""
        old, self.envs = self.envs, {}
        try:
            for env_id, payload in self._payloads.items():
                self.making = env_id
                seed_generators(self._construction_seed)
                with for_worker(self._worker_number):
                    self.show(env_id, MAKING)
                    env = apply_any_env_update(loads(payload), old.pop(env_id, None))
                if isinstance(env, VectorEnv):
                    env.close()
                    raise UsageError(_VECTOR)
                self.envs[env_id] = env
        finally:
            self.envs = {**old, **self.envs}
        seed_generators(self._construction_seed)
        self._undrawn = generator_states()
        return [(env.observation_space, env.action_space) for env in self.envs.values()]

    def take(self, kind: str, *arguments: Any) -> None:
        """Keep actions that are of another dtype than the rows': the next steps are taken with them."""
        assert kind == "actions"
        self._given.update(arguments[0])

    def set_options(self, env_id: int, options: Any) -> None:
        """Remember how an environment's next trajectory begins."""
        self._orders[env_id] = options

    def _begin(self, env_id: int) -> dict[str, Any]:
        self.show(env_id, RESETTING)
        order = self._orders[env_id]
        self._lengths[env_id] = 0
        observation, info = begin_of(reset_one(self.envs[env_id], order.resets, order.index, order.seed))
        self._refuse_draws()
        self._observe(env_id, observation)
        if info.__class__ is not dict:
            InfoRecorder("episode_infos").record(0, info)
        return info  # type: ignore[no-any-return]

    def _refuse_draws(self) -> None:
        if generator_states()[: len(self._undrawn)] != self._undrawn:
            seed_generators(self._construction_seed)
            self._undrawn = generator_states()
            raise UsageError(_DRAWS)

    def step(self, env_id: int) -> dict[str, Any]:
        """Take a step with the environment's action; return the info."""
        rows = self.rows
        self.show(env_id, STEPPING)
        length = self._lengths[env_id] = self._lengths[env_id] + 1
        action = self._given.pop(env_id, None) if self._given else None
        if action is None:
            action = rows.action(env_id)
        try:
            observation, reward, terminated, truncated, info = self.envs[env_id].step(action)
        except (TypeError, ValueError) as error:
            if raised_in(error, RolloutStepper.step):
                raise UsageError("step must return (observation, reward, terminated, truncated, info)") from error
            raise
        kind = reward.__class__
        rows.rewards[env_id] = reward if kind is float or kind is np.float64 else number_of(reward)
        if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
            terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        rows.terminated[env_id] = terminated
        rows.truncated[env_id] = truncated
        self._observe(env_id, observation)
        if terminated or truncated or length >= self._limit:
            self._refuse_draws()  # wherever a trajectory ends, since what the call returns are whole ones
        if info.__class__ is not dict:
            InfoRecorder("env_infos").record(0, info)
        return info

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out what is no step; "update" changes an environment, "facts" tells what is known of it."""
        env = self.envs.get(env_id)
        if kind == "update":
            self._payloads = {env_id: arguments}
            self.make()
            env = self.envs[env_id]
            return env.observation_space, env.action_space
        if kind == "facts":
            return EnvFacts.of(env)
        if kind == "close":
            self.close()
            return None
        return super().request(env_id, kind, name, arguments)
