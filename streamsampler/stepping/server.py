"""Serve the environments of a process: reset, step and call them; write their results into their rows.

Failures are answers like results: the requester decides about them. In a worker process, both travel over its channel;
in the caller's process, they are calls.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

import gymnasium
import numpy as np

from streamsampler.core.errors import ProtocolError, UsageError
from streamsampler.core.timing import not_measuring
from streamsampler.data.spaces import FLAGS, flag_of, number_of
from streamsampler.environments.updates import EnvUpdate
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.env_messages import IT_RAISED
from streamsampler.stepping.env_times import IN_STEP, EnvTimes
from streamsampler.stepping.generators import EnvGenerators
from streamsampler.stepping.past_requests import PastRequest
from streamsampler.stepping.restores import RestoreOrder, replay
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.values import place_of
from streamsampler.workers.board import WorkerRow, phase_number
from streamsampler.workers.explain import raised_in, summary_of
from streamsampler.workers.restoring import NotRestoredError

STEPPING: Final = phase_number(Phase.STEP)
RESETTING: Final = phase_number(Phase.RESET)
MAKING: Final = phase_number(Phase.ENV_CONSTRUCTION)
_CALLING: Final = phase_number(Phase.CALL)
_CLOSING: Final = phase_number(Phase.CLOSE)
_WAITING: Final = phase_number(Phase.WAITING)

_TOGETHER_SECONDS = 5e-4
"""A finished result waits at most this long for others, so that the manager wakes up once for several."""


class Answers(ABC):
    """Receives the answers of environments."""

    failures: tuple[type[BaseException], ...]  # exceptions of environments; any other ends the call
    are_awaited: bool  # whether the caller sleeps until the first answer: answers do not wait for slow steps
    bring_all: bool = False  # whether answers carry the rows' contents, too

    @abstractmethod
    def keep(self, env_id: int, phase: str, info: dict[str, Any]) -> None:
        """Keep the info of a result for `give`."""

    @abstractmethod
    def give(self, env_ids: list[int]) -> None:
        """Answer with results, which are in the rows."""

    @abstractmethod
    def fail(self, env_id: int, phase: str, error: BaseException) -> None:
        """Answer with an exception, and its phase."""


class EnvServer(ABC):
    """Serves the environments of a process. The board shows the running environment in place of a trajectory."""

    rows: Rows  # set before the first reset, like `fresh` and `on_draws`
    fresh: Callable[[int], EnvUpdate]  # makes an environment as it was at first
    # Receives the number and name of an environment found to draw from the global generators, and the seconds its
    # own states add to each of its calls.
    on_draws: Callable[[int, str, float], None]
    generators: EnvGenerators
    _converts = False  # whether `_converted` changes the results of steps

    def __init__(self, env_ids: Collection[int], worker_number: int, row: WorkerRow) -> None:
        self._worker_number = worker_number
        self._is_over = dict.fromkeys(env_ids, True)  # whether the next step starts an episode
        self._ended = set(env_ids)  # environments with rows of an ended episode, even an earlier process's
        self.envs: dict[int, gymnasium.Env[Any, Any]] = {}
        self.making = min(env_ids)  # the environment being made, or made last
        self.not_restored: set[int] = set()  # they ignore steps until they are released or reset
        self.times = EnvTimes(worker_number)
        self._row = row
        self._n_stepped = 0
        self._seconds: dict[int, float] = {}  # of a step of each: follows a quick step at once, as cores are shared

    @abstractmethod
    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments; return the observation space and the action space of each."""

    def reset(self, env_ids: Sequence[int], answers: Answers) -> None:
        began = perf_counter()
        try:
            for env_id in env_ids:
                try:
                    info = self._begin(env_id, 1 - int(self.rows.slots[env_id]))
                    self.rows.put_results(env_id, 0.0)  # type: ignore[arg-type]
                    if info or answers.bring_all:
                        answers.keep(env_id, "reset", info)
                except answers.failures as error:
                    self._fail(env_id, error, answers)
                else:
                    answers.give([env_id])
        finally:
            self.times.env_seconds += perf_counter() - began

    @abstractmethod
    def _begin(self, env_id: int, slot: int) -> dict[str, Any]:
        """Reset an environment, `_show_begin` its episode, and return the info."""

    def _show_begin(self, env_id: int, slot: int, observation: Any) -> None:
        rows = self.rows
        rows.put_observation(slot, env_id, observation)
        rows.terminated[env_id] = rows.truncated[env_id] = False
        self._ended.discard(env_id)
        self._is_over[env_id] = False

    def step(self, env_ids: Sequence[int], answers: Answers) -> None:  # noqa: C901 - a single loop, see below
        """Step environments in turn, with the actions in rows; after an episode's end, reset instead.

        Every step runs in this loop: so it uses local variables only, and writes many results to rows at once.
        Environments in `not_restored` are skipped.
        """
        rows, envs, is_over, ended = self.rows, self.envs, self._is_over, self._ended
        failures, awaited, bring_all = answers.failures, answers.are_awaited, answers.bring_all
        row, not_restored, generators, converts = self._row, self.not_restored, self.generators, self._converts
        words, env_word, phase_word, count_word = row.words, row.trajectory_word, row.phase_word, row.timesteps_word
        n_before = n_stepped = self._n_stepped
        place = place_of(env_ids)
        dtype, shape, leaves = rows.plain_dtype, rows.plain_shape, rows.plain_leaves
        no: Any = np.False_  # NumPy has a single one, so that `is` finds it
        phase_of_times, expected_seconds = self.times.phase, self._seconds
        finished = _UnsentAnswers(rows, answers, env_ids, place)
        began = now = given_at = perf_counter()
        try:
            for env_id, action, slot in zip(
                env_ids, self._actions_of(env_ids, place), rows.free_slots(place), strict=True
            ):
                if not_restored and env_id in not_restored:
                    continue  # its manager does not know yet
                if awaited:
                    expected = expected_seconds.get(env_id, 0.0)
                    if finished.env_ids and now + expected - given_at > _TOGETHER_SECONDS:
                        finished.give()
                        given_at = now
                is_asked = False
                reward: Any = 0.0
                try:
                    if is_over[env_id]:
                        info = self._begin(env_id, slot)
                    else:
                        # `show` written out: calling it would take a hundredth of a whole step.
                        words[env_word], words[phase_word] = env_id + 1, STEPPING
                        n_stepped = words[count_word] = n_stepped + 1
                        phase_of_times[0], is_asked = IN_STEP, True
                        if generators.is_idle:  # an empty block would take a twentieth of a step
                            observation, reward, terminated, truncated, info = envs[env_id].step(action)
                        else:
                            with generators.calling(env_id):
                                observation, reward, terminated, truncated, info = envs[env_id].step(action)
                        is_asked = False
                        if converts:
                            observation, reward, terminated, truncated, info = self._converted(
                                env_id, action, observation, reward, terminated, truncated, info
                            )
                        if info.__class__ is not dict or info:
                            info = self._taken_info(info)
                        if reward.__class__ is not float and reward.__class__ is not np.float64:
                            reward = number_of(reward)
                        if (terminated is False or terminated is no) and (truncated is False or truncated is no):
                            if (
                                observation.__class__ is np.ndarray
                                and observation.dtype is dtype
                                and observation.shape == shape
                            ):
                                leaves[slot][env_id] = observation
                            else:
                                rows.put_observation(slot, env_id, observation)
                            if ended and env_id in ended:
                                self._write_flags(env_id, False, False)
                        else:
                            info = self._take_flags(env_id, slot, observation, terminated, truncated, info)
                    if info or bring_all:
                        if bring_all:
                            rows.put_results(env_id, reward)
                        answers.keep(env_id, "step", info)
                except failures as error:
                    finished.give()
                    self._fail(env_id, self._explained(error, env_id, action) if is_asked else error, answers)
                else:
                    if not bring_all:
                        finished.rewards.append(reward)
                    finished.env_ids.append(env_id)  # last: after Ctrl-C before this line, results are complete
                if awaited:
                    before, now = now, perf_counter()
                    took = now - before
                    expected_seconds[env_id] = took if took < expected else expected + 0.1 * (took - expected)
        finally:
            finished.give()
            self._n_stepped = n_stepped
            self.times.timesteps += n_stepped - n_before
            self.times.env_seconds += perf_counter() - began

    def _actions_of(self, env_ids: Sequence[int], place: Any) -> Sequence[Any]:
        return self.rows.actions_of(env_ids, place)

    def _converted(
        self, env_id: int, action: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        raise NotImplementedError

    @abstractmethod
    def _taken_info(self, info: Any) -> dict[str, Any]: ...

    def _take_flags(
        self, env_id: int, slot: int, observation: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> dict[str, Any]:
        if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
            terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        over = self._is_over[env_id] = bool(terminated or truncated)
        info = self._end(env_id, slot, observation, info) if over else self._observe(env_id, slot, observation, info)
        self._write_flags(env_id, terminated, truncated)
        return info

    def _end(self, env_id: int, slot: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        return self._observe(env_id, slot, observation, info)

    def _observe(self, env_id: int, slot: int, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        self.rows.put_observation(slot, env_id, observation)
        return info

    def _write_flags(self, env_id: int, terminated: Any, truncated: Any) -> None:
        self.rows.terminated[env_id], self.rows.truncated[env_id] = terminated, truncated
        if terminated or truncated:
            self._ended.add(env_id)
        else:
            self._ended.discard(env_id)

    def _fail(self, env_id: int, error: BaseException, answers: Answers) -> None:
        # A step after an episode's end is a reset.
        phase = "reset" if self._row.words[self._row.phase_word] in (RESETTING, MAKING) else "step"
        self.end_episodes([env_id])
        answers.fail(env_id, phase, error)

    def _explained(self, error: BaseException, env_id: int, action: Any) -> BaseException:  # noqa: ARG002
        if isinstance(error, TypeError | ValueError) and raised_in(error, EnvServer.step):
            better = UsageError("step must return (observation, reward, terminated, truncated, info)")
            better.__cause__ = error
            return better
        return error

    def end_episodes(self, env_ids: Sequence[int]) -> None:
        """Let the next steps of environments be resets."""
        self._is_over.update(dict.fromkeys(env_ids, True))

    def show(self, env_id: int, phase: int) -> None:
        """Show which environment runs, in which phase: the start of a reset or step counts as progress."""
        row = self._row
        words = row.words
        words[row.trajectory_word] = env_id + 1
        words[row.phase_word] = phase
        self._n_stepped = words[row.timesteps_word] = self._n_stepped + 1

    def rest(self) -> None:
        words = self._row.words
        words[self._row.trajectory_word] = 0
        words[self._row.phase_word] = _WAITING

    def restore(self, order: RestoreOrder) -> str:
        """Restore an environment to an order's timestep; return how it differs from the lost one, or "".

        Raises its reset's exceptions: resets are retried.
        """
        env_id, why_not = order.env_id, ""
        self._is_over[env_id] = True
        try:
            why_not = self._prepare(order)
            if order.seed is not None:
                self._replay(order, why_not)
        except (Exception, SystemExit) as error:
            if order.seed is not None:
                self.not_restored.add(env_id)
                if self._row.words[self._row.phase_word] == RESETTING and not isinstance(error, NotRestoredError):
                    raise
            return str(error) if isinstance(error, NotRestoredError) else IT_RAISED + summary_of(error)
        self.not_restored.discard(env_id)
        return why_not

    def _replay(self, order: RestoreOrder, why_not: str) -> None:
        if why_not:
            raise NotRestoredError(why_not)
        env_id, rows = order.env_id, self.rows
        outside = not_measuring()
        with outside, outside:
            self.show(env_id, RESETTING)
            reset, step = self._reset_of(order), self.envs[env_id].step
            if self._converts:
                step = partial(self._converted_step, env_id)
            with self._replaying(order):
                for _ in replay(
                    reset, step, self._actions_to_replay(order), order, rows, partial(self._repeat, env_id)
                ):
                    self.show(env_id, STEPPING)
        rows.slots[env_id] = order.slot
        self._is_over[env_id] = False

    def _prepare(self, order: RestoreOrder) -> str:  # noqa: ARG002 - for a subclass
        """Prepare for the order's reset; return how the environment differs from the lost one, or ""."""
        return ""

    @abstractmethod
    def _reset_of(self, order: RestoreOrder) -> Callable[..., Any]: ...

    def _replaying(self, order: RestoreOrder) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002 - likewise
        return contextlib.nullcontext()

    def _actions_to_replay(self, order: RestoreOrder) -> Iterable[Any]:
        return order.actions  # type: ignore[no-any-return]

    def _repeat(self, env_id: int, request: PastRequest) -> None:
        """Repeat a request; raise NotRestoredError if its result differs."""
        raise self._refused((env_id, request))

    def _converted_step(self, env_id: int, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self._converted(env_id, action, *self.envs[env_id].step(action))

    def take_actions(self, actions: Mapping[int, Any]) -> None:
        """Keep actions of another dtype than the rows', for the next steps."""
        raise self._refused(actions)

    def set_parameters(self, env_id: int, parameters: Any) -> None:  # noqa: ARG002 - for a subclass
        """Set parameters at each later reset."""
        raise self._refused(parameters)

    def _refused(self, what: Any) -> ProtocolError:
        return ProtocolError(f"{type(self).__name__} does not support this request: {what!r:.80}")

    @abstractmethod
    def set_options(self, env_id: int, options: Any) -> None: ...

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out a request other than a step: "call", "get", "set", "render", "wrappers", or a subclass's kind."""
        if env_id not in self.envs and kind != "parameters":
            raise UsageError(
                f"environment {env_id} raised when it was made again, so it does not exist: call "
                f"reset(env_ids=[{env_id}]), which makes it"
            )
        self.show(env_id, _CALLING)
        with self.generators.calling(env_id):
            return self._carried_out(env_id, kind, name, arguments)

    def _carried_out(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        env = self.envs[env_id]
        match kind:
            case "set":
                return env.set_wrapper_attr(name, arguments)
            case "render":
                return env.render()
            case "wrappers":
                return class_names(env)
            case "get":
                return member_of(env, env_id, name)
            case "call":
                return _called(env, env_id, name, *arguments)
        raise self._refused(kind)

    def close_all(self) -> dict[int, BaseException]:
        raised: dict[int, BaseException] = {}
        while self.envs:
            env_id, env = self.envs.popitem()
            self.show(env_id, _CLOSING)
            try:
                env.close()
            except (Exception, SystemExit) as error:
                raised[env_id] = error
        return raised


class _UnsentAnswers:
    """Results not answered yet, to be written to rows and given to `answers` at once."""

    __slots__ = ("_answers", "_place", "_requested", "_rows", "env_ids", "rewards")

    def __init__(self, rows: Rows, answers: Answers, requested: Sequence[int], place: Any) -> None:
        self._rows, self._answers, self._requested, self._place = rows, answers, requested, place
        self.env_ids: list[int] = []  # their environments; observations and ends are written already
        self.rewards: list[Any] = []  # empty if these are written, too

    def give(self) -> None:
        if self.env_ids:
            env_ids, self.env_ids = self.env_ids, []
            if self.rewards:
                place = self._place if len(env_ids) == len(self._requested) else place_of(env_ids)
                self._rows.put_results(place, self.rewards[: len(env_ids)])
                self.rewards = []
            self._answers.give(env_ids)


def name_of_class(cls: type) -> str:
    """Return a class's full name: other processes have another class object."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_names(env: Any) -> set[str]:
    """Return the names of the classes of all wrappers, base classes included."""
    names: set[str] = set()
    while isinstance(env, gymnasium.Wrapper):
        names.update(map(name_of_class, type(env).__mro__))
        env = env.env
    return names


def _called(env: Any, env_id: int, name: str, positional: Any, named: Any) -> Any:
    """Return a method's result; for any other attribute its value, ignoring arguments, as Gymnasium does."""
    member = member_of(env, env_id, name)
    if callable(member):
        return member(*positional, **named)
    if positional or named:
        warnings.warn(
            f"{name} of environment {env_id} is not a method: its value is returned, and the arguments of the call are "
            "ignored; use get_attr()",
            stacklevel=2,
        )
    return member


def member_of(env: Any, env_id: int, name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        raise AttributeError(
            f"environment {env_id} ({type(env.unwrapped).__qualname__}) has no attribute {name!r}, and neither have "
            "its wrappers"
        ) from None
