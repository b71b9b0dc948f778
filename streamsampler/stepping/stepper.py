"""Run environments: make them, reset them and take their steps; write what they return into their rows."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from streamsampler.core.errors import ProtocolError, UsageError
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload, loads
from streamsampler.core.timing import not_measuring
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import FLAGS, flag_of, number_of
from streamsampler.data.trees import snapshot
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.parameters import SetParameters, parameter_setter, with_parameters
from streamsampler.environments.updates import EnvUpdate, apply_any_env_update, apply_env_update, for_worker
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import begin_of
from streamsampler.stepping.games import GameFacts, GameTeller, spaces_of
from streamsampler.stepping.generators import EnvGenerators
from streamsampler.stepping.histories import (
    BEFORE,
    NumberedParameters,
    PastRequest,
    RestoreOrder,
    digest_of_result,
    replay,
)
from streamsampler.stepping.ledger import IN_STEP, EnvTimes
from streamsampler.stepping.rows import Rows
from streamsampler.workers.board import WorkerRow, phase_number
from streamsampler.workers.explain import name_of_env, raised_in, step_error, summary_of
from streamsampler.workers.generators import generator_states, seed_generators
from streamsampler.workers.known_wrappers import EnvFacts
from streamsampler.workers.resets import ResetOrder, carry_out
from streamsampler.workers.restoring import NotRestoredError, refuse_copies_of

# ----------------------------------------------------------------------


STEPPING: Final = phase_number(Phase.STEP)
RESETTING: Final = phase_number(Phase.RESET)
MAKING: Final = phase_number(Phase.ENV_CONSTRUCTION)
_CALLING: Final = phase_number(Phase.CALL)
_CLOSING: Final = phase_number(Phase.CLOSE)
_WAITING: Final = phase_number(Phase.WAITING)
_STRING: Final = frozenset({str})

Autoreset = Literal["next_step", "same_step", "disabled"]


class Stepper:
    """Runs the environments of one process.

    Args:
        updates: What makes each environment, by its number.
        worker_number: The number of the worker that these environments are in.
        row: Where the worker shows which environment it runs, as the trajectory in hand, and what it does with it.
        autoreset: What becomes of an environment whose episode has ended.
        own_generators: Whether environments have states of their own of the global generators from the start.
        is_shared: Whether these generators are the caller's.

    Attributes:
        envs: The environments.
        rows: The rows; set before the first reset.
        fresh: Returns what makes an environment, as it was before anything was made of it; set before the first reset.
        making: The environment that is made, or was made last.
        times: Where the time goes.
        generators: The global generators.
        on_draws: Takes the number and the name of an environment that is found to draw from them, and what its states
            take, in seconds for each of its calls; set before the first reset.
        not_restored: Environments that could not be restored: they take no steps until they are given up, or reset.
    """

    rows: Rows
    fresh: Callable[[int], EnvUpdate]
    on_draws: Callable[[int, str, float], None]

    def __init__(
        self, updates: Mapping[int, EnvUpdate], worker_number: int, row: WorkerRow, autoreset: Autoreset, *,
        own_generators: bool = False, is_shared: bool = False,
    ) -> None:  # fmt: skip
        self._updates = dict(updates)
        self._worker_number = worker_number
        self._autoreset = autoreset
        self._options: dict[int, dict[str, Any] | None] = {}
        self._parameters: dict[int, NumberedParameters] = {}
        self._set: dict[int, int] = {}  # by environment: the number of those that its resets set
        self._is_over = dict.fromkeys(updates, True)  # the next step begins an episode
        self.envs: dict[int, gymnasium.Env[Any, Any]] = {}
        self.making = min(updates)
        self.not_restored: set[int] = set()
        self.times = EnvTimes(worker_number)
        self.generators = EnvGenerators(tuple(updates), is_shared=is_shared, found=self._found_draws)
        if own_generators:
            self.generators.give_own(updates)
        self._row = row
        self._n_stepped = 0

    def _found_draws(self, env_id: int, seconds: float) -> None:
        self.on_draws(env_id, name_of_env(self.envs[env_id]), seconds)

    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments; return the observation space and the action space of each."""
        for env_id, update in self._updates.items():
            self.making = env_id
            self.envs[env_id] = self._made(env_id, update, self.envs.values())
        return [(env.observation_space, env.action_space) for env in self.envs.values()]

    def _made(self, env_id: int, update: EnvUpdate, others: Collection[Any]) -> gymnasium.Env[Any, Any]:
        """Make an environment.

        Raises:
            UsageError: It is one of the others, which would be stepped together with it.
        """
        self.show(env_id, MAKING)
        with for_worker(self._worker_number, env_id):
            env: gymnasium.Env[Any, Any] = apply_env_update(update, None)
        refuse_copies_of(env, others, update)
        return env

    def remake(self, env_id: int) -> None:
        """Close an environment, whatever it raises, and make it anew."""
        self.show(env_id, MAKING)
        old = self.envs.pop(env_id, None)
        others = [*self.envs.values()] if old is None else [*self.envs.values(), old]
        if old is not None:
            with contextlib.suppress(Exception, SystemExit):  # it has failed already
                old.close()
        self._set.pop(env_id, None)
        self.envs[env_id] = self._made(env_id, self.fresh(env_id), others)

    def restore(self, order: RestoreOrder) -> str:
        """Make an environment what it was; return why it is not what it was, empty if it is.

        What its reset raises is raised: that is tried again, as any reset.
        """
        env_id, why_not = order.env_id, ""
        self._is_over[env_id] = True
        try:
            if order.remake:
                self.remake(env_id)
            for request in order.requests:
                if request.timestep == BEFORE:
                    why_not = self._repeated(env_id, request) or why_not
            if order.seed is not None:
                with not_measuring():
                    self._replay(order, why_not)
        except (Exception, SystemExit) as error:
            if order.seed is not None:
                self.not_restored.add(env_id)
                if self._row.words[self._row.phase_word] == RESETTING and not isinstance(error, NotRestoredError):
                    raise
            return str(error) if isinstance(error, NotRestoredError) else f"it raised {summary_of(error)}"
        self.not_restored.discard(env_id)
        return why_not

    def _repeated(self, env_id: int, request: PastRequest) -> str:
        """Repeat a request; return why the environment is not what it was then, empty if that is not known."""
        try:
            value = self.request(env_id, request.kind, request.name, copy.deepcopy(request.arguments))
        except (Exception, SystemExit):
            if not request.raised:
                raise
            return ""
        if request.raised:
            return f"{request.name} raised, and did not when it was repeated"
        if request.is_moved and request.digest is not None and digest_of_result(value) != request.digest:
            return (
                f"{request.name} was called in an earlier episode, and its result depends on what was then: it is "
                "another one when it is repeated before the reset"
            )
        return ""

    def _repeat(self, env_id: int, request: PastRequest) -> None:
        if why_not := self._repeated(env_id, request):
            raise NotRestoredError(why_not)

    def _replay(self, order: RestoreOrder, why_not: str) -> None:
        if why_not:
            raise NotRestoredError(why_not)
        env_id, rows = order.env_id, self.rows
        self.show(env_id, RESETTING)
        options = self._options.get(env_id) if order.options is None else order.options
        if order.parameters is not None:
            self._apply(env_id, order.parameters)
        repeat = partial(self._repeat, env_id)
        assert order.seed is not None
        with self.generators.beginning(env_id, order.seed):
            for _ in replay(self.envs[env_id], order, rows, options, repeat):
                self.show(env_id, STEPPING)
        rows.slots[env_id] = order.slot
        self._is_over[env_id] = False

    def end_episodes(self, env_ids: Sequence[int]) -> None:
        """Let the next step of environments be a reset, as that of an environment that raised."""
        self._is_over.update(dict.fromkeys(env_ids, True))

    def take_actions(self, actions: Mapping[int, Any]) -> None:
        """Keep actions that are of another dtype than the rows'.

        Raises:
            ProtocolError: This stepper takes none.
        """
        raise ProtocolError(f"{type(self).__name__} takes no actions but those in rows, and got {len(actions)}")

    def set_options(self, env_id: int, options: dict[str, Any] | None) -> None:
        """Remember the options of an environment's resets from now on."""
        self._options[env_id] = options

    def forget_options(self, env_id: int) -> dict[str, Any] | None:
        """Let later resets of an environment have no options; return those that it had."""
        return self._options.pop(env_id, None)

    def check_parameters(self, env_id: int, update: SetParameters) -> None:
        """Raise if an environment does not take parameters.

        Raises:
            UsageError: It does not; the message names it, and what it has.
        """
        try:
            parameter_setter(self.envs[env_id], update.parameters)
        except UsageError as error:
            raise UsageError(f"environment {env_id}: {error}") from None

    def set_parameters(self, env_id: int, parameters: NumberedParameters) -> None:
        """Let an environment's resets set parameters from the next one on."""
        self._parameters[env_id] = parameters

    def _apply(self, env_id: int, parameters: NumberedParameters) -> None:
        """Let the next reset of an environment set parameters."""
        if self._set.get(env_id) != parameters.number:
            self.envs[env_id] = with_parameters(self.envs[env_id], loads(parameters.payload))
            self._set[env_id] = parameters.number
        self.rows.parameters[env_id] = parameters.number

    def reset(self, env_id: int) -> dict[str, Any]:
        """Reset an environment with the seed in its row, and the options remembered; return the info."""
        info = self._begin(env_id)
        self._write_step(env_id, 0.0, False, False)
        return info

    def _begin(self, env_id: int) -> dict[str, Any]:
        rows = self.rows
        if env_id not in self.envs:
            self.remake(env_id)
        self.show(env_id, RESETTING)
        self.not_restored.discard(env_id)
        self._is_over[env_id] = True  # until it has begun
        if env_id in self._parameters:
            self._apply(env_id, self._parameters[env_id])
        options = copy.deepcopy(self._options.get(env_id))
        seed = int(rows.seeds[env_id])
        with self.times.resetting(), self.generators.beginning(env_id, seed):
            result = self.envs[env_id].reset(seed=seed, options=options)
        observation, info = begin_of(result)
        self._observe(env_id, observation)
        self._is_over[env_id] = False
        return _dict_of(info)

    def step(self, env_id: int) -> dict[str, Any]:
        """Take a step with the action in the environment's row; return the info.

        Where the episode has ended before, with autoreset "next_step", the environment is reset instead.
        """
        if self._is_over[env_id]:
            return self.reset(env_id)
        rows, row = self.rows, self._row
        words = row.words  # what `show` does: a call more would take a hundredth of what a step takes here
        words[row.trajectory_word] = env_id + 1
        words[row.phase_word] = STEPPING
        self._n_stepped = words[row.timesteps_word] = self._n_stepped + 1
        self.times.phase[0] = IN_STEP
        self.times.timesteps += 1
        action = rows.action(env_id)
        try:
            if self.generators.is_idle:  # a block that does nothing would take a twentieth of what a step takes here
                observation, reward, terminated, truncated, info = self.envs[env_id].step(action)
            else:
                with self.generators.calling(env_id):
                    observation, reward, terminated, truncated, info = self.envs[env_id].step(action)
        except BaseException as error:
            self._is_over[env_id] = True
            self._explain(error, env_id, action)
            raise
        if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
            terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        if info.__class__ is not dict or (info and not _STRING.issuperset(map(type, info))):
            info = _dict_of(info)
        kind = reward.__class__
        reward = reward if kind is float or kind is np.float64 else number_of(reward)
        over = self._is_over[env_id] = bool(terminated or truncated)
        if over:
            self.generators.end(env_id)
        if over and self._autoreset == "same_step":
            rows.put_last_observation(env_id, observation)
            final_info = {key: snapshot(value) for key, value in info.items()}  # before the reset, which may change it
            info = self._begin(env_id)
            info["final_info"] = final_info
        else:
            self._observe(env_id, observation)
        self._write_step(env_id, reward, terminated, truncated)
        return info

    def _explain(self, error: BaseException, env_id: int, action: Any) -> None:
        better = step_error(error, action, self.envs[env_id].action_space, Stepper.step)
        if better is not None:
            raise better from error

    def show(self, env_id: int, phase: int) -> None:
        """Show which environment runs, and what it does: that its reset or step begins is progress."""
        row = self._row
        words = row.words
        words[row.trajectory_word] = env_id + 1
        words[row.phase_word] = phase
        self._n_stepped = words[row.timesteps_word] = self._n_stepped + 1

    @property
    def phase_at_failure(self) -> str:
        """What the environment that raised was doing: a step that begins an episode is a reset."""
        return "reset" if self._row.words[self._row.phase_word] in (RESETTING, MAKING) else "step"

    def rest(self) -> None:
        """Show that no environment runs."""
        words = self._row.words
        words[self._row.trajectory_word] = 0
        words[self._row.phase_word] = _WAITING

    def _observe(self, env_id: int, observation: Any) -> None:
        slot = 1 - int(self.rows.slots[env_id])
        self.rows.put_observation(slot, env_id, observation)
        self.rows.slots[env_id] = slot

    def _write_step(self, env_id: int, reward: Any, terminated: Any, truncated: Any) -> None:
        rows = self.rows
        rows.rewards[env_id] = reward
        rows.terminated[env_id] = terminated
        rows.truncated[env_id] = truncated

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out what is no step; return its result.

        Args:
            env_id: The environment.
            kind: "call", "get", "set", "render", "wrappers", "check" (of parameters) or "parameters".
            name: The attribute or method.
            arguments: What it gets.
        """
        self.show(env_id, _CALLING)
        with self.generators.calling(env_id):
            return self._carried_out(env_id, kind, name, arguments)

    def _carried_out(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        env = self.envs[env_id]
        match kind:
            case "check":
                self.check_parameters(env_id, arguments)
            case "parameters":
                self.set_parameters(env_id, arguments)
            case "set":
                env.set_wrapper_attr(name, arguments)
            case "render":
                return env.render()
            case "wrappers":
                return class_names(env)
            case "get":
                return member_of(env, env_id, name)
            case _:
                return _called(env, env_id, name, *arguments)
        return None

    def close(self) -> None:
        """Close the environments; the first exception is raised when all are closed."""
        for error in self.close_all().values():
            raise error

    def close_all(self) -> dict[int, BaseException]:
        """Close the environments, and return what they raised, by environment."""
        raised: dict[int, BaseException] = {}
        while self.envs:
            env_id, env = self.envs.popitem()
            self.show(env_id, _CLOSING)
            try:
                env.close()
            except (Exception, SystemExit) as error:
                raised[env_id] = error
        return raised


def _dict_of(info: Any) -> dict[str, Any]:
    """Return a copy of an info.

    Raises:
        DataError: It is no dict, or has a key that is no string.
    """
    if info.__class__ is not dict or not _STRING.issuperset(map(type, info)):
        InfoRecorder("infos").record(0, info)
    return dict(info)


def name_of_class(cls: type) -> str:
    """Return what a class is called in every process; the class itself may be another object there."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_names(env: Any) -> set[str]:
    """Return the names of the classes of all wrappers of an environment, base classes included."""
    names: set[str] = set()
    while isinstance(env, gymnasium.Wrapper):
        names.update(map(name_of_class, type(env).__mro__))
        env = env.env
    return names


def _called(env: Any, env_id: int, name: str, positional: Any, named: Any) -> Any:
    """Return what a method returns, or an attribute that is none: arguments are ignored then, as Gymnasium does."""
    member = member_of(env, env_id, name)
    if callable(member):
        return member(*positional, **named)
    if positional or named:
        warnings.warn(
            f"{name} of environment {env_id} is no method: its value is returned, and the arguments of the call are "
            "ignored; get_attr() takes none",
            stacklevel=2,
        )
    return member


def member_of(env: Any, env_id: int, name: str) -> Any:
    """Return an attribute of an environment or of one of its wrappers.

    Raises:
        AttributeError: There is none; the message names the environment.
    """
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        raise AttributeError(
            f"environment {env_id} ({type(env.unwrapped).__qualname__}) has no attribute {name!r}, and neither have "
            "its wrappers"
        ) from None


# ----------------------------------------------------------------------
# Run the environments of a sampler whose agent stays in its own process: exactly what a worker there would do.


_DRAWS = (
    "something drew from a global generator (random, numpy.random or torch) in an environment: several share "
    "a process, so that trajectories would depend on one another. Draw from its np_random, or leave out "
    'inference="parent"'
)

_VECTOR = (
    'inference="parent" takes no vector environment: pass one that is not vectorised, of which as many are made as '
    'n_envs says, or leave out inference="parent"'
)


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
        self._orders: dict[int, ResetOrder] = {}
        self._given: dict[int, Any] = {}  # actions of another dtype than the rows'
        self._undrawn: tuple[Any, ...] = ()
        self._limit = math.inf if max_episode_length is None else max_episode_length
        self._lengths = dict.fromkeys(updates, 0)
        self._games: dict[int, GameTeller] = {}  # of those environments that have several agents

    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments, or change them; return the observation space and the action space of each."""
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
                    self._games[env_id] = GameTeller(env.unwrapped, self._limit)
        finally:
            self.envs = {**old, **self.envs}
        seed_generators(self._construction_seed)
        self._undrawn = generator_states()
        return [spaces_of(env) for env in self.envs.values()]

    def take_actions(self, actions: Mapping[int, Any]) -> None:
        """Keep actions that are of another dtype than the rows': the next steps are taken with them."""
        self._given.update(actions)

    def set_options(self, env_id: int, options: Any) -> None:
        """Remember how an environment's next trajectory begins."""
        self._orders[env_id] = options

    def _begin(self, env_id: int) -> dict[str, Any]:
        self.show(env_id, RESETTING)
        self._lengths[env_id] = 0
        observation, info = begin_of(carry_out(self.envs[env_id], self._orders[env_id]))
        self._refuse_draws()
        if env_id in self._games:
            observation, info = self._games[env_id].begun(observation, info)
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
        over = False
        if self._games:
            game = self._games[env_id]
            observation, info = game.stepped(action, observation, reward, terminated, truncated, info)
            reward, terminated, truncated, over = 0.0, False, False, game.is_over
        kind = reward.__class__
        rows.rewards[env_id] = reward if kind is float or kind is np.float64 else number_of(reward)
        if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
            terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        rows.terminated[env_id] = terminated
        rows.truncated[env_id] = truncated
        self._observe(env_id, observation)
        if terminated or truncated or over or length >= self._limit:
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
            return spaces_of(self.envs[env_id])
        if kind == "facts":
            return EnvFacts.of(env), GameFacts.of(env)
        if kind == "close":
            self.close()
            return None
        return super().request(env_id, kind, name, arguments)
