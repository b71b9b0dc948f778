"""Serve a manager's environments: episodes with seeds of their own, stepped by the manager's caller."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import gymnasium

from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import loads
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.trees import snapshot
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.parameters import SetParameters, parameter_setter, with_parameters
from streamsampler.environments.updates import EnvUpdate, apply_env_update, for_worker
from streamsampler.rollouts.script import begin_of
from streamsampler.stepping.env_states import Autoreset
from streamsampler.stepping.generators import EnvGenerators
from streamsampler.stepping.joint_env import JointEnv
from streamsampler.stepping.parameter_sets import NumberedParameters
from streamsampler.stepping.past_requests import BEFORE, PastRequest, digest_of_result
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.server import MAKING, RESETTING, EnvServer
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import name_of_env, note_missing_action, step_error
from streamsampler.workers.restoring import NotRestoredError, refuse_copies_of

_STRING: Final = frozenset({str})


class EpisodeServer(EnvServer):
    """Serves a manager's environments in a single process.

    With `is_shared`, its global generators are the caller's. With `own_generators`, each environment has its own
    states.
    """

    def __init__(
        self, updates: Mapping[int, EnvUpdate], worker_number: int, row: WorkerRow, autoreset: Autoreset, *,
        own_generators: bool = False, is_shared: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(updates, worker_number, row)
        self._updates = dict(updates)
        self._autoreset = autoreset
        self._options: dict[int, dict[str, Any] | None] = {}
        self._parameters: dict[int, NumberedParameters] = {}
        self._set: dict[int, int] = {}  # by environment: the number of its current parameters
        self.generators = EnvGenerators(tuple(updates), is_shared=is_shared, found=self._found_draws)
        if own_generators:
            self.generators.drawing.update(updates)

    def _found_draws(self, env_id: int, seconds: float) -> None:
        self.on_draws(env_id, name_of_env(self.envs[env_id]), seconds)

    def make(self) -> list[tuple[Any, Any]]:
        for env_id, update in self._updates.items():
            self.making = env_id
            self.envs[env_id] = self._made(env_id, update, self.envs.values())
        return [(env.observation_space, env.action_space) for env in self.envs.values()]

    def _made(self, env_id: int, update: EnvUpdate, others: Collection[Any]) -> gymnasium.Env[Any, Any]:
        """Make an environment; refuse an object among `others`, which would be stepped twice."""
        self.show(env_id, MAKING)
        with for_worker(self._worker_number, env_id):
            env: gymnasium.Env[Any, Any] = apply_env_update(update, None, several=True)
        if isinstance(env.unwrapped, MultiAgentEnv):
            env = JointEnv(env)
        refuse_copies_of(env, others, update)
        return env

    def remake(self, env_id: int) -> None:
        """Close an environment and make it again; suppress exceptions of `close`."""
        self.show(env_id, MAKING)
        old = self.envs.pop(env_id, None)
        others = [*self.envs.values()] if old is None else [*self.envs.values(), old]
        if old is not None:
            with contextlib.suppress(Exception, SystemExit):
                old.close()
        self._set.pop(env_id, None)
        self.envs[env_id] = self._made(env_id, self.fresh(env_id), others)

    def _prepare(self, order: RestoreOrder) -> str:
        why_not = ""
        if order.remake:
            self.remake(order.env_id)
        for request in order.requests:
            if request.timestep == BEFORE:
                why_not = self._repeated(order.env_id, request) or why_not
        return why_not

    def _repeated(self, env_id: int, request: PastRequest) -> str:
        """Repeat a request; return how the environment differs from the lost one, or ""."""
        try:
            value = self.request(env_id, request.kind, request.name, copy.deepcopy(request.arguments))
        except (Exception, SystemExit):
            if not request.raised:
                raise
            return ""
        if request.raised:
            return f"{request.name} raised originally, but not when it was repeated"
        if request.is_moved and request.digest is not None and digest_of_result(value) != request.digest:
            return (
                f"{request.name} was called in an earlier episode, and its result depends on that episode: it "
                "differs when the call is repeated before the reset"
            )
        return ""

    def _repeat(self, env_id: int, request: PastRequest) -> None:
        if why_not := self._repeated(env_id, request):
            raise NotRestoredError(why_not)

    def _reset_of(self, order: RestoreOrder) -> Callable[..., Any]:
        options = self._options.get(order.env_id) if order.options is None else order.options
        if order.parameters is not None:
            self._apply(order.env_id, order.parameters)
        return _with_options(self.envs[order.env_id].reset, options)

    def _replaying(self, order: RestoreOrder) -> contextlib.AbstractContextManager[None]:
        assert order.seed is not None
        return self.generators.beginning(order.env_id, order.seed)

    def _actions_to_replay(self, order: RestoreOrder) -> Iterable[Any]:
        return (self.rows.kept_action(order.env_id, order.actions, t) for t in range(order.n_timesteps))

    def set_options(self, env_id: int, options: dict[str, Any] | None) -> None:
        self._options[env_id] = options

    def forget_options(self, env_id: int) -> dict[str, Any] | None:
        return self._options.pop(env_id, None)

    def _check_parameters(self, env_id: int, update: SetParameters) -> None:
        try:
            parameter_setter(self.envs[env_id], update.parameters)
        except UsageError as error:
            raise UsageError(f"environment {env_id}: {error}") from None

    def set_parameters(self, env_id: int, parameters: NumberedParameters) -> None:
        self._parameters[env_id] = parameters

    def _apply(self, env_id: int, parameters: NumberedParameters) -> None:
        if self._set.get(env_id) != parameters.number:
            env, update = self.envs[env_id], loads(parameters.payload)
            if isinstance(env, JointEnv):  # next to parameters of the environment inside
                env.env = with_parameters(env.env, update)
            else:
                self.envs[env_id] = with_parameters(env, update)
            self._set[env_id] = parameters.number
        self.rows.parameters[env_id] = parameters.number

    def _begin(self, env_id: int, slot: int) -> dict[str, Any]:
        if env_id not in self.envs:
            self.remake(env_id)
        self.show(env_id, RESETTING)
        self.not_restored.discard(env_id)
        self._is_over[env_id] = True  # until the reset has returned
        if env_id in self._parameters:
            self._apply(env_id, self._parameters[env_id])
        seed, options = int(self.rows.seeds[env_id]), self._options.get(env_id)
        reset = partial(_with_options(self.envs[env_id].reset, options), seed=seed)
        with self.times.resetting:
            result = self.generators.reset(env_id, seed, reset)
        observation, info = begin_of(result)
        self._show_begin(env_id, slot, observation)
        return self._taken_info(info) if info.__class__ is not dict or info else {}

    def _taken_info(self, info: Any) -> dict[str, Any]:
        """Copy an info; raise DataError if it is no dict with strings as keys."""
        if info.__class__ is not dict or not _STRING.issuperset(map(type, info)):
            InfoRecorder("infos").record(0, info)
        return dict(info)

    def _end(self, env_id: int, slot: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        self.generators.end(env_id)
        if self._autoreset != "same_step":
            return super()._end(env_id, slot, observation, info)
        self.rows.put_last_observation(env_id, observation)
        final_info = {key: snapshot(value) for key, value in info.items()}  # before the reset, which may change it
        return {**self._begin(env_id, slot), "final_info": final_info}

    def _explained(self, error: BaseException, env_id: int, action: Any) -> BaseException:
        env = self.envs[env_id]
        note_missing_action(error, env, action)
        its = env.unwrapped if isinstance(env.unwrapped, MultiAgentEnv) else env
        better = step_error(error, action, its.action_space, EnvServer.step)
        if better is not None:
            better.__cause__ = error
        return better or error

    def _carried_out(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        match kind:
            case "check":
                return self._check_parameters(env_id, arguments)
            case "parameters":
                return self.set_parameters(env_id, arguments)
        return super()._carried_out(env_id, kind, name, arguments)


def _with_options(reset: Callable[..., Any], options: dict[str, Any] | None) -> Callable[..., Any]:
    """Bind a copy of the options, if any: not every environment's `reset` accepts them."""
    return reset if options is None else partial(reset, options=copy.deepcopy(options))
