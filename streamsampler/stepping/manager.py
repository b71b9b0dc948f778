"""The calls of all managers of environments, wherever the environments live."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.errors import ClosedError, UsageError, positive
from streamsampler.seeding import check_seed
from streamsampler.stepping.episodes import Episodes
from streamsampler.stepping.ledger import Ledger
from streamsampler.stepping.options import ManagerOptions, Updates
from streamsampler.stepping.rows import put_actions
from streamsampler.stepping.states import EnvEvent, EnvState
from streamsampler.stepping.stepper import Autoreset
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.transport import Broken, Done, Transport
from streamsampler.stepping.vector_env import ManagedVectorEnv

__all__ = ["BaseEnvManager", "EnvIds"]

EnvIds: TypeAlias = Sequence[int] | NDArray[np.int64]
"""Numbers of environments, each from 0 to n_envs - 1."""


class BaseEnvManager(abc.ABC):
    """Steps environments from the caller's process; see `EnvManager`.

    Args:
        updates: What makes each environment.
        options: The arguments that all managers take.
        seed: From which the seeds of episodes are derived.

    Attributes:
        n_envs: How many environments there are.
        seed: The seed.
        failures: How often environments failed, and were there again.
    """

    def __init__(self, updates: Updates, options: ManagerOptions, seed: int | None) -> None:
        self.n_envs = options.n_envs
        self.seed = check_seed(seed)
        self.failures = 0
        self._updates = updates
        self._options = options
        self._ledger = Ledger(self.n_envs)
        self._transport: Transport | None = None
        self._closed = False

    # ------------------------------------------------------------------ life

    @abc.abstractmethod
    def _new_transport(self) -> Transport:
        """Return what carries requests to the environments, not started."""

    def launch(self) -> None:
        """Make the environments; the first call that needs them does so as well.

        After `close` it makes new ones, whose episodes are those of the first launch again.

        Raises:
            UsageError: They are there already, or their spaces differ.
        """
        if self._transport is not None:
            raise UsageError("the environments are there already: call close() before launch()")
        transport = self._new_transport()
        try:
            transport.start()
        except BaseException:
            transport.close()
            raise
        if self._closed:
            self._ledger.launch()
        self._closed = False
        self._transport = transport
        self._episodes = Episodes(transport.rows, self._options, self.seed)

    def close(self) -> None:
        """Close the environments; may be repeated. `launch` makes new ones."""
        transport, self._transport = self._transport, None
        if not self._closed:
            self._ledger.close()
        self._closed = True
        if transport is not None:
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launched(self) -> Transport:
        if self._transport is None:
            if self._closed:
                raise ClosedError("the environments are closed: call launch() for new ones")
            self.launch()
        assert self._transport is not None
        return self._transport

    @property
    def observation_space(self) -> Any:
        """The observation space of each environment."""
        return self._launched().rows.observation_space

    @property
    def action_space(self) -> Any:
        """The action space of each environment."""
        return self._launched().rows.action_space

    @property
    def states(self) -> tuple[EnvState, ...]:
        """The state of each environment."""
        return tuple(self._ledger.states)

    @property
    def autoreset(self) -> Autoreset:
        """What becomes of an environment whose episode has ended."""
        return self._options.autoreset

    def vector_env(self) -> ManagedVectorEnv:
        """Return the environments as a `gymnasium.vector.VectorEnv`, in this manager's autoreset mode.

        Closing it closes the manager.

        Raises:
            UsageError: The manager has `max_episodes`, after which there would be nothing to step.
        """
        if self._options.max_episodes is not None:
            raise UsageError("a vector environment has no end: make the manager without max_episodes")
        return ManagedVectorEnv(self)

    # ------------------------------------------------------------------ resets

    def reset(
        self, env_ids: EnvIds | None = None, *, seed: Any = None, options: Mapping[str, Any] | None = None
    ) -> Steps:
        """Reset environments, and wait for all of them. The results of steps that are open are discarded.

        Args:
            env_ids: The environments; None for all.
            seed: None goes on with the seeds of each environment. An integer begins them again, each environment with
                seeds derived from it. A list has the seed of the next episode of each of `env_ids`, a dict by
                environment; later episodes get seeds derived from it and their number.
            options: Options of this reset, and of all resets until others are given; None changes nothing.

        Returns:
            The results of these environments, in the order of `env_ids`.

        Raises:
            UsageError: An argument cannot work.
            WorkerError: An environment failed, and `on_failure` is "raise".
        """
        chosen = self._request_resets(env_ids, seed, options)
        while not all(env_id in self._ledger.arrived for env_id in chosen):
            self._take_in(None)
        return self._handed_out(chosen)

    def async_reset(
        self, env_ids: EnvIds | None = None, *, seed: Any = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Begin to reset environments; `recv` returns the results. Arguments and errors are those of `reset`."""
        self._request_resets(env_ids, seed, options)

    def _request_resets(self, env_ids: Any, seed: Any, options: Any) -> list[int]:
        transport = self._launched()
        chosen = self._chosen(env_ids)
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"options must be a dict, got {type(options).__name__}")
        seeds = {} if seed is None else self._episodes.restart(chosen, seed)
        self._discard(chosen)
        self._episodes.set_next_seeds(seeds)
        self._episodes.forget_limits(chosen)
        self._ledger.request(chosen, EnvEvent.RESET)
        transport.reset(chosen, {} if options is None else {env_id: dict(options) for env_id in chosen})
        return chosen

    def _discard(self, env_ids: Sequence[int]) -> None:
        """Wait for the results of open requests of environments, and throw them away."""
        while not self._ledger.waiting.isdisjoint(env_ids):
            self._take_in(None)
        for env_id in env_ids:
            if env_id in self._ledger.arrived:
                self._ledger.hand_out(env_id, EnvEvent.DISCARDED)

    def _chosen(self, env_ids: Any) -> list[int]:
        if env_ids is None:
            return list(range(self.n_envs))
        chosen = [positive("an environment's number", env_id, least=0) for env_id in env_ids]
        for env_id in chosen:
            if env_id >= self.n_envs:
                raise UsageError(f"there is no environment {env_id}: there are {self.n_envs}, from 0 on")
        if len(set(chosen)) < len(chosen):
            raise UsageError(f"an environment is named twice: {chosen}")
        return chosen

    # ------------------------------------------------------------------ steps

    def send(self, actions: Any, env_ids: EnvIds | None = None) -> None:
        """Send actions to environments; `recv` returns the results.

        Args:
            actions: Actions stacked to arrays of (K, ...), nested as the action space is; or, without `env_ids`, a dict
                of actions by environment.
            env_ids: The K environments; None for all of them, or for those that the dict names.

        Raises:
            UsageError: An environment is unknown, or awaits no action; nothing is sent then.
            ActionError: The actions are of another shape, kind or number.
        """
        self._send(actions, env_ids)

    def _send(self, actions: Any, env_ids: EnvIds | None) -> list[int]:
        """Do what `send` does, and return the environments in their order."""
        transport = self._launched()
        if (
            env_ids is None
            and isinstance(actions, Mapping)
            and all(isinstance(key, int | np.integer) for key in actions)
        ):
            env_ids = list(actions)
            actions = _stacked(list(actions.values()))
        chosen = list(range(self.n_envs)) if env_ids is None else self._chosen(env_ids)
        self._ledger.refuse_busy(chosen)
        put_actions(transport.rows, chosen, actions)
        self._ledger.request(chosen, EnvEvent.SENT)
        if lost := self._episodes.take_lost(chosen):
            self._end_lost(transport, lost)
            transport.step([env_id for env_id in chosen if env_id not in lost])
        else:
            transport.step(chosen)
        return chosen

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> Steps:
        """Return the results that have arrived, those of resets included; wait until there are enough.

        Args:
            min_envs: How many to wait for, at most as many as there are open requests; None for the manager's.
            timeout: Seconds after which the results are returned that there are, also if there are none; None for the
                manager's `recv_timeout`.

        Raises:
            UsageError: Nothing was sent.
            WorkerError: An environment failed, and `on_failure` is "raise". Results that arrived are kept.
        """
        self._launched()
        if not self._ledger.n_open:
            raise UsageError("there is nothing to receive: call send() or async_reset() first")
        least = min(self._options.min_envs if min_envs is None else positive("min_envs", min_envs), self._ledger.n_open)
        seconds = self._options.recv_timeout if timeout is None else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        self._take_in(0)
        while len(self._ledger.arrived) < min(least, self._ledger.n_open):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._take_in(left)
        return self._handed_out(list(self._ledger.arrived))

    def step(self, actions: Any, env_ids: EnvIds | None = None) -> Steps:
        """Send actions, and return the results of these environments, in their order; see `send` and `recv`."""
        chosen = self._send(actions, env_ids)
        while not all(env_id in self._ledger.arrived for env_id in chosen):
            self._take_in(None)
        return self._handed_out(chosen)

    @property
    def ready(self) -> dict[int, Any]:
        """The environments that await an action, with their observations."""
        self._launched()
        return {env_id: self._episodes.observation(env_id) for env_id in self._ledger.of(EnvState.READY)}

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a result has arrived that `recv` will return, or an environment awaits an action.

        Args:
            timeout: Seconds to wait at most; None for any time.

        Returns:
            Whether there is one; False also where no request is open.
        """
        self._launched()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (self._ledger.arrived or self._ledger.of(EnvState.READY)) and self._ledger.waiting:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._take_in(left)
        return bool(self._ledger.arrived or self._ledger.of(EnvState.READY))

    def random_actions(self, env_ids: EnvIds | None = None) -> Any:
        """Return random actions, stacked: one for each of `env_ids`, or for each environment."""
        space = self.action_space
        return _stacked([space.sample() for _ in self._chosen(env_ids)])

    # ------------------------------------------------------------------ attributes and methods

    def call(self, name: str, *args: Any, env_ids: EnvIds | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of environments, and return the results.

        Raises:
            AttributeError: An environment has none of that name.
            UsageError: A step of one of them is open.
        """
        return self._ask(env_ids, "call", name, lambda n: [(args, kwargs)] * n)

    def get_attr(self, name: str, env_ids: EnvIds | None = None) -> list[Any]:
        """Return an attribute of environments; errors are those of `call`."""
        return self._ask(env_ids, "get", name, lambda n: [None] * n)

    def set_attr(self, name: str, values: Any, env_ids: EnvIds | None = None) -> None:
        """Set an attribute of environments: to the same value, or to those of a list with one for each of them."""
        self._ask(env_ids, "set", name, lambda n: _values_for(values, n))

    def render(self, env_ids: EnvIds | None = None) -> list[Any]:
        """Return what `render` of environments returns."""
        return self._ask(env_ids, "render", "render", lambda n: [None] * n)

    def _ask(self, env_ids: Any, kind: str, name: str, arguments_for: Any) -> list[Any]:
        transport = self._launched()
        chosen = self._chosen(env_ids)
        self._take_in(0)
        busy = sorted(self._ledger.waiting.intersection(chosen))
        if busy:
            raise UsageError(f"environment {busy[0]} has no result yet of what it was sent: call recv() first")
        return transport.request(chosen, kind, name, arguments_for(len(chosen)))

    # ------------------------------------------------------------------ results

    def _take_in(self, timeout: float | None) -> None:
        """Wait for events, and record them.

        Raises:
            WorkerError: An environment failed, and `on_failure` is "raise".
        """
        transport = self._launched()
        if not self._ledger.waiting and timeout is None:
            return
        first: BaseException | None = None
        for event in transport.collect(timeout):
            if isinstance(event, Done):
                self._ledger.answer(event.env_ids)
                self._episodes.keep_infos(event.infos)
            else:
                first = first or self._break(transport, event)
        if first is not None:
            raise first

    def _break(self, transport: Transport, event: Broken) -> BaseException | None:
        """Record a failure; return the error to raise, if it is to be raised."""
        self.failures += 1
        states = self._ledger.states
        lost = [env_id for env_id in event.env_ids if env_id not in self._ledger.arrived]
        if self._options.on_failure == "raise" or event.is_final:
            self._ledger.fail(lost)
            self._episodes.lose([env_id for env_id in event.env_ids if event.is_new and env_id not in lost])
            return event.error
        again = [env_id for env_id in lost if states[env_id] is EnvState.RESETTING]
        if again:
            transport.reset(again, {})
        self._end_lost(transport, [env_id for env_id in lost if states[env_id] is EnvState.STEPPING])
        running = [env_id for env_id in event.env_ids if states[env_id] is EnvState.READY or env_id not in lost]
        self._episodes.lose(running if event.is_new else [])
        return None

    def _end_lost(self, transport: Transport, env_ids: list[int]) -> None:
        """End the episodes of environments that failed, with an open step."""
        self._episodes.fail(env_ids)
        if self._options.autoreset == "same_step" and env_ids:
            transport.reset(env_ids, {})
        else:
            self._ledger.answer(env_ids)

    def _handed_out(self, env_ids: list[int]) -> Steps:
        steps, events = self._episodes.hand_out(env_ids, self._ledger.states)
        for env_id, event in zip(env_ids, events, strict=True):
            self._ledger.hand_out(env_id, event)
        return steps


def _stacked(values: list[Any]) -> Any:
    first = values[0] if values else None
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([value[i] for value in values]) for i in range(len(first)))
    return np.array(values)


def _values_for(values: Any, n: int) -> list[Any]:
    if not isinstance(values, list):
        return [values] * n
    if len(values) != n:
        raise UsageError(f"there are {len(values)} values for {n} environments")
    return values
