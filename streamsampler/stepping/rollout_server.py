"""Serve the environments of a sampler with `inference="parent"`: reset and step them as a worker would."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.vector import VectorEnv

from streamsampler.core.errors import UsageError
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload, loads
from streamsampler.data.infos import InfoRecorder
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import apply_any_env_update, for_worker
from streamsampler.rollouts.script import begin_of
from streamsampler.stepping.games import GameFacts, GameResultMaker, spaces_of
from streamsampler.stepping.generators import EnvGenerators
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.server import MAKING, RESETTING, EnvServer
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.generators import generator_states, seed_generators
from streamsampler.workers.known_wrappers import EnvFacts
from streamsampler.workers.resets import ResetOrder, carry_out

_DRAWS = (
    "an environment drew from a global generator (random, numpy.random or torch), which environments of a process "
    'share: trajectories would depend on each other. Let it draw from self.np_random, or use inference="worker"'
)

_VECTOR = (
    'inference="parent" does not support vector environments: pass a single environment, of which n_envs are made, or '
    'use inference="worker"'
)


class RolloutServer(EnvServer):
    """Serves the environments of a process, made and called as in a sampler's worker."""

    _converts = True

    def __init__(
        self, updates: Mapping[int, Payload], worker_number: int, row: WorkerRow, *, seed: int,
        max_episode_length: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(updates, worker_number, row)
        self.generators = EnvGenerators((), is_shared=False, found=lambda *_: None)  # draws raise an error here
        self._payloads = dict(updates)
        self._construction_seed = TrajectorySeeds(seed, 0)[0]
        self._orders: dict[int, ResetOrder] = {}
        self._given: dict[int, Any] = {}  # actions of another dtype than the rows'
        self._undrawn: tuple[Any, ...] = ()
        self._limit = math.inf if max_episode_length is None else max_episode_length
        self._lengths = dict.fromkeys(updates, 0)
        self._games: dict[int, GameResultMaker] = {}  # of environments of several agents

    def make(self) -> list[tuple[Any, Any]]:
        old, self.envs = self.envs, {}
        try:
            for env_id, payload in self._payloads.items():
                self.making = env_id
                seed_generators(self._construction_seed)
                with for_worker(self._worker_number):
                    self.show(env_id, MAKING)
                    env = apply_any_env_update(loads(payload), old.pop(env_id, None), several=True)
                if isinstance(env, VectorEnv):
                    env.close()
                    raise UsageError(_VECTOR)
                self.envs[env_id] = env
                self._games.pop(env_id, None)
                if isinstance(env.unwrapped, MultiAgentEnv):
                    self._games[env_id] = GameResultMaker(env.unwrapped, self._limit)
        finally:
            self.envs = {**old, **self.envs}
        seed_generators(self._construction_seed)
        self._undrawn = generator_states()
        return [spaces_of(env) for env in self.envs.values()]

    def take_actions(self, actions: Mapping[int, Any]) -> None:
        self._given.update(actions)

    def set_options(self, env_id: int, options: Any) -> None:
        self._orders[env_id] = options

    def _begin(self, env_id: int, slot: int) -> dict[str, Any]:
        self.show(env_id, RESETTING)
        self.not_restored.discard(env_id)
        self._is_over[env_id] = True  # until the reset has returned
        observation, info = self._converted_reset(env_id)
        self._show_begin(env_id, slot, observation)
        if info.__class__ is not dict:
            InfoRecorder("episode_infos").record(0, info)
        return info  # type: ignore[no-any-return]

    def _converted_reset(self, env_id: int) -> tuple[Any, Any]:
        self._lengths[env_id] = 0
        observation, info = begin_of(carry_out(self.envs[env_id], self._orders[env_id]))
        self._refuse_draws()
        return self._games[env_id].reset_result(observation, info) if env_id in self._games else (observation, info)

    def _reset_of(self, order: RestoreOrder) -> Callable[..., Any]:
        self._orders[order.env_id] = order.options
        return lambda **_: self._converted_reset(order.env_id)

    def _refuse_draws(self) -> None:
        if generator_states()[: len(self._undrawn)] != self._undrawn:
            seed_generators(self._construction_seed)
            self._undrawn = generator_states()
            raise UsageError(_DRAWS)

    def _actions_of(self, env_ids: Sequence[int], place: Any) -> Sequence[Any]:
        actions = super()._actions_of(env_ids, place)
        if not self._given:
            return actions
        return [self._given.pop(env_id, action) for env_id, action in zip(env_ids, actions, strict=True)]

    def _converted(
        self, env_id: int, action: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        length = self._lengths[env_id] = self._lengths[env_id] + 1
        over = length >= self._limit
        if self._games:
            game = self._games[env_id]
            observation, info = game.step_result(action, observation, reward, terminated, truncated, info)
            reward, terminated, truncated, over = 0.0, False, False, over or game.is_over
        if over:
            self._refuse_draws()
        return observation, reward, terminated, truncated, info

    def _taken_info(self, info: Any) -> dict[str, Any]:
        if info.__class__ is not dict:
            InfoRecorder("env_infos").record(0, info)
        return info  # type: ignore[no-any-return]

    def _end(self, env_id: int, slot: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        self._refuse_draws()  # at each end: calls return whole trajectories
        return super()._end(env_id, slot, observation, info)

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out a request; "update" updates an environment, "facts" returns its `EnvFacts` and `GameFacts`."""
        match kind:
            case "update":
                self._payloads = {env_id: arguments}
                self.make()
                return spaces_of(self.envs[env_id])
            case "facts":
                env = self.envs[env_id]
                return EnvFacts.of(env), GameFacts.of(env)
            case "close":
                for error in self.close_all().values():
                    raise error
                return None
        return super().request(env_id, kind, name, arguments)
