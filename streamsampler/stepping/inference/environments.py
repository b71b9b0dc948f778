"""Reset and step a sampler's environments in other processes, and restore lost ones.

The requests of each trajectory are recorded. After a death or hang, a new environment repeats them, and its last result
is compared before anything else happens: so a loss does not change a trajectory.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium

from streamsampler.core.errors import NotReproducibleError, WorkerError
from streamsampler.core.serialization import Payload
from streamsampler.data.trees import Array, Tree, leaves, snapshot
from streamsampler.engines.linked import STUCK_SECONDS
from streamsampler.stepping import env_messages
from streamsampler.stepping.env_states import EnvEvent
from streamsampler.stepping.failures import reword
from streamsampler.stepping.game_proxies import GameProxy, game_of
from streamsampler.stepping.games import GameFacts
from streamsampler.stepping.inference.env_processes import (
    TOO_LONG,
    EnvProcesses,
    Launch,
    RolloutTransport,
    not_restored,
    own,
)
from streamsampler.stepping.inference.scheduler import RolloutScheduler
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.known_wrappers import EnvElsewhere, EnvFacts
from streamsampler.workers.resets import ResetOrder, Resets, order_of

_LOG = logging.getLogger("streamsampler")


class EnvProxy(EnvElsewhere):
    """Stands in for an environment in another process."""

    def __init__(
        self, environments: Environments, env_id: int, observation_space: Any, action_space: Any, facts: EnvFacts,
        game: GameFacts | None = None,
    ) -> None:  # fmt: skip
        self.observation_space, self.action_space = observation_space, action_space
        self.facts = facts
        self.game = None if game is None else game_of(game)  # the stand-in of an environment of several agents
        if self.game is not None:
            self.observation_space, self.action_space = self.game.observation_space, self.game.action_space
        self.spec = SimpleNamespace(id=facts.name)  # type: ignore[assignment]
        self._environments, self._env_id = environments, env_id

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        return self if self.game is None else self.game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset outside a sampler's call."""
        assert seed is not None
        self._environments.reset(self._env_id, 0, seed, None if options is None else Resets(options=options))
        observation, _, _, _, info = self._environments.result(self._env_id)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._environments.step([self._env_id], [action])
        return self._environments.result(self._env_id)


class History(NamedTuple):
    """The part of an environment's record stored elsewhere."""

    actions: list[Any]  # the first ones, at least as many as `Episode.actions` lacks
    rewards: Array | tuple[()] = ()  # of consecutive steps, as far as known; empty if `Episode.reward` is right
    first: int = 0  # the timestep of the first reward


@dataclass(slots=True)
class Episode:
    """An environment's requests since its trajectory started."""

    order: ResetOrder | None = None  # of its reset; None before any request
    n_requested: int = 0  # requested steps
    actions: dict[int, Any] = field(default_factory=dict)  # by timestep, without those stored elsewhere
    slot: int = 0  # of the last result that arrived
    reward: float = 0.0  # of the last result that was received

    def complete(self, history: History | None, n_known: int) -> bool:
        """Add `history`, if it is not lost; return whether the record of n_known results is complete."""
        if history is None:
            return False
        for timestep, action in enumerate(history.actions):
            self.actions.setdefault(timestep, action)  # recorded ones are exactly the agent's
        last = n_known - 1 - history.first
        if 0 <= last < len(history.rewards):
            self.reward = float(history.rewards[last])
        return True


class Environments:
    """A sampler's environments, and the record of each; the only writer of these."""

    def __init__(self, n_envs: int, launch: Launch, close_timeout: float) -> None:
        self.n_envs = n_envs
        self.losses: list[BaseException] = []  # the errors of lost processes that were replaced
        self.n_repeated = 0  # timesteps run again after losses, or run in vain
        self.copies = False  # whether observations of results are copies, or views of rows, which are written again
        self._processes = EnvProcesses(n_envs, launch, close_timeout, self._count_loss)
        self.scheduler = RolloutScheduler(n_envs)
        self._episodes = [Episode() for _ in range(n_envs)]
        self.infos: dict[int, dict[str, Any]] = {}  # of last results that were not received yet
        self.raised: dict[int, BaseException] = {}  # exceptions in place of last results
        self._orders: dict[int, RestoreOrder] = {}  # not carried out yet
        self._errors: list[BaseException] = []  # to raise when all events are handled
        self.proxies: list[EnvProxy] = []  # the stand-ins in this process
        self.games: list[GameProxy] = []  # the stand-ins of environments of several agents
        # Receives an environment and a number n, and returns its trajectory's first n actions; see `Episode.complete`.
        # None if all are recorded here.
        self.history_of: Callable[[int, int], History | None] | None = None

    def update(self, payload: Payload) -> None:
        self.proxies = []
        if self._processes.running and not self.settle(range(self.n_envs), STUCK_SECONDS):
            self._processes.shut_down()  # an environment hangs, left over from an earlier call
        facts = self._processes.update(payload)
        rows = self.transport.rows
        self._clear_records()
        spaces = rows.observation_space, rows.action_space
        self.proxies = [EnvProxy(self, env_id, *spaces, *facts[env_id]) for env_id in range(self.n_envs)]
        self.games = [proxy.game for proxy in self.proxies if proxy.game is not None]

    def _clear_records(self) -> None:
        self._episodes = [Episode() for _ in range(self.n_envs)]
        self.scheduler = RolloutScheduler(self.n_envs, self._processes.losses)
        self.infos.clear()
        self.raised.clear()

    def close_all(self) -> None:
        """Close the environments; their processes stay."""
        self.proxies = []
        self._clear_records()
        self._processes.close_environments()

    def shut_down(self) -> None:
        self.proxies = []
        self._processes.shut_down()

    @property
    def transport(self) -> RolloutTransport:
        return self._processes.transport

    def send_settings(self) -> None:
        if self._processes.running:
            self.transport.send_settings()

    def pids(self) -> list[int]:
        return self._processes.pids()

    def _count_loss(self, error: WorkerError) -> None:
        self.losses.append(error)
        _LOG.warning("%s; a new one takes its place", error.worded(error.quota))

    def reset(self, env_id: int, index: int, seed: int, resets: Resets | None) -> None:
        if not self.scheduler.is_idle(env_id):
            self.settle([env_id])
        self._episodes[env_id] = Episode(order_of(index, seed, resets))
        self.scheduler.start_trajectory(env_id)
        self._send_request(env_id)

    def step(self, env_ids: Sequence[int], actions: Sequence[Any]) -> None:
        given = {}
        rows = self.transport.rows
        for env_id, action in zip(env_ids, actions, strict=True):
            episode = self._episodes[env_id]
            episode.actions[episode.n_requested] = action
            episode.n_requested += 1
            if not rows.action_values.put_exactly(0, env_id, action):
                given[env_id] = action
        if given:
            self.transport.give(given)
        self.scheduler.request(env_ids, EnvEvent.SENT)
        self.transport.step(env_ids)

    def step_with(self, env_ids: Sequence[int], actions: Tree) -> None:
        """Request steps with actions recorded by `history_of`: leaves of (k, …) of the action space's dtypes."""
        for env_id in env_ids:
            self._episodes[env_id].n_requested += 1
        for (_, rows), (_, given) in zip(leaves(self.transport.rows.actions), leaves(actions), strict=True):
            rows[env_ids] = given
        self.scheduler.request(env_ids, EnvEvent.SENT)
        self.transport.step(env_ids)

    def _send_request(self, env_id: int) -> None:
        episode = self._episodes[env_id]
        if not episode.n_requested:
            self.transport.reset([env_id], {env_id: episode.order})  # type: ignore[dict-item]
            return
        action = episode.actions[episode.n_requested - 1]
        if not self.transport.rows.action_values.put_exactly(0, env_id, action):
            self.transport.give({env_id: action})
        self.transport.step([env_id])

    def result(self, env_id: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait for the result of an open request, and return it; raise the environment's exception.

        Without `copies`, the observation is a view, overwritten by the result after the next.
        """
        episode = self._episodes[env_id]
        while self.scheduler.is_open(env_id):
            self.handle_events(None)
        self.scheduler.receive([env_id])
        self.check(env_id)
        observation = snapshot(self.observation(env_id)) if self.copies else self.observation(env_id)
        info = self.infos.pop(env_id, {})
        reward, terminated, truncated = self._results(env_id)
        episode.reward = reward
        if terminated or truncated:
            self.scheduler.end(env_id)
        if self.games:
            return self.games[env_id].take(observation, info)  # type: ignore[return-value]
        return observation, reward, terminated, truncated, info

    def check(self, env_id: int) -> None:
        """Raise an environment's exception in place of its last result."""
        if self.raised and (error := self.raised.pop(env_id, None)) is not None:
            raise error

    def last_action(self, env_id: int) -> Any:
        episode = self._episodes[env_id]
        return episode.actions.get(episode.n_requested - 1, self.transport.rows.action(env_id))

    def observation(self, env_id: int) -> Any:
        rows = self.transport.rows
        return rows.observation_values.view(int(rows.slots[env_id]), env_id)

    def forget_actions(self, env_id: int) -> None:
        """Forget actions, which `history_of` has from now on, unless a restore needs them."""
        if env_id not in self.scheduler.restoring:
            self._episodes[env_id].actions, self._episodes[env_id].reward = {}, self._results(env_id)[0]

    def abandon(self) -> None:
        """Forget all requests; wait for steps in flight, to count them."""
        self.scheduler.forget()
        if not (isinstance(error := sys.exception(), WorkerError) or is_interrupt(error)):
            self.settle(range(self.n_envs), STUCK_SECONDS)

    def settle(self, env_ids: Iterable[int], seconds: float | None = None) -> bool:
        """Wait for open requests, at most `seconds`, and discard their results; return whether all arrived."""
        until = None if seconds is None else perf_counter() + seconds
        scheduler = self.scheduler
        env_ids = list(env_ids)
        scheduler.discard(env_ids)
        for env_id in env_ids:
            is_under_way = self._is_in_flight(env_id)
            while scheduler.is_open(env_id):
                if until is not None and perf_counter() >= until:
                    return False
                self.handle_events(None if until is None else max(0.0, until - perf_counter()))
            self.n_repeated += is_under_way
            self.raised.pop(env_id, None)
            self.infos.pop(env_id, None)
            scheduler.receive([env_id])
        return True

    @property
    def n_open_steps(self) -> int:
        """Steps without a received result."""
        return sum(map(self._is_in_flight, range(self.n_envs)))

    def _is_in_flight(self, env_id: int) -> bool:
        has_news = self.scheduler.has_news(env_id) and env_id not in self.raised
        return has_news and self._episodes[env_id].n_requested > 0

    def receive_arrived(self, timeout: float | None) -> list[int]:
        """Return environments with new results; if there are none, handle events first."""
        if timeout == 0.0 or self.scheduler.arrived.keys() <= self.scheduler.restoring:
            self.handle_events(timeout)
        return self.scheduler.receive()

    def handle_events(self, timeout: float | None) -> None:
        """Receive events and carry out the scheduler's instructions; wait at most `timeout` seconds.

        Raises WorkerError after too many losses, NotReproducibleError if an environment cannot be restored.
        """
        events = self.transport.collect(timeout)
        slots, episodes = self.transport.rows.slots, self._episodes
        for event in events:
            if isinstance(event, env_messages.RequestsDone):
                self.infos.update(event.infos)
                for env_id in event.env_ids:
                    episodes[env_id].slot = int(slots[env_id])
            elif isinstance(event, env_messages.EnvsFailed) and event.is_new:
                self._name_trajectory(event)
        self._errors = []
        self._carry_out(self.scheduler.handle(events))
        if errors := self._errors:
            raise next((error for error in errors if not isinstance(error, NotReproducibleError)), errors[-1])

    def _carry_out(self, instructions: Sequence[env_messages.EnvInstruction]) -> None:
        for it in instructions:
            match it:
                case env_messages.RequestResets() | env_messages.RequestSteps():
                    for env_id in it.env_ids:
                        self._send_request(env_id)
                case env_messages.MakeOrders():
                    self._carry_out(self.scheduler.handle([self._make_orders(it)]))
                case env_messages.RestoreEnvs():
                    orders = [self._orders.pop(env_id) for env_id in it.env_ids if env_id in self._orders]
                    self.transport.restore(orders)
                case env_messages.ReleaseEnvs():
                    self.transport.release(it.env_ids)
                case _:
                    self._count(it)

    def _count(self, it: env_messages.EnvInstruction) -> None:
        match it:
            case env_messages.KeepError():
                self.raised[it.env_id] = own(it.error)
            case env_messages.CountLoss():
                assert isinstance(it.error, WorkerError)
                self._count_loss(it.error)
            case env_messages.CountRestored():
                self.n_repeated += it.restored.n_timesteps or 0
            case env_messages.CountUnrestored():
                order = self._episodes[it.env_id].order
                self._errors.append(not_restored(it.env_id, None if order is None else order.index, it.why))
            case env_messages.RaiseFailure():
                reword(it.error, it.quota, it.history)
                self._errors.append(it.error)

    def _name_trajectory(self, event: env_messages.EnvsFailed) -> None:
        culprit = event.culprit
        order = None if culprit is None or culprit in self.scheduler.over else self._episodes[culprit].order
        error = event.error
        if order is None or not isinstance(error, WorkerError) or error.trajectory is not None:
            return
        error.trajectory = order.index
        error.what = f"{error.what}; environment {culprit} ran trajectory {order.index}"
        error.args = (error.worded(error.quota, error.outlook),)

    def _make_orders(self, wanted: env_messages.MakeOrders) -> env_messages.OrdersMade:
        unkept = {}
        for env_id in wanted.to_restore:
            episode, is_waiting = self._episodes[env_id], env_id in self.scheduler.waiting
            self._orders.pop(env_id, None)
            n_known = episode.n_requested - is_waiting  # -1 for none, and no reset
            if self.history_of and not episode.complete(self.history_of(env_id, episode.n_requested), n_known):
                unkept[env_id] = TOO_LONG
            elif n_known >= 0 and (is_waiting or not self._has_ended(env_id)):
                self._orders[env_id] = self._order(env_id, n_known, is_waiting=is_waiting)
        return env_messages.OrdersMade(wanted.number, unkept, restored=self._orders.keys() & set(wanted.to_restore))

    def _has_ended(self, env_id: int) -> bool:
        return any(self._results(env_id)[1:])

    def _order(self, env_id: int, n: int, *, is_waiting: bool) -> RestoreOrder:
        episode, rows = self._episodes[env_id], self.transport.rows
        assert episode.order is not None
        if not is_waiting:
            episode.reward = self._results(env_id)[0]
        rows.slots[env_id] = episode.slot  # an open request may have written to the other slot
        return RestoreOrder(
            env_id, seed=episode.order.seed, options=episode.order, slot=episode.slot, n_timesteps=n,
            actions=[episode.actions[t] for t in range(n)], rewards=[episode.reward] if n else (),
            carried=rows.observation_values.carried(episode.slot, env_id),
        )  # fmt: skip

    def _results(self, env_id: int) -> tuple[float, bool, bool]:
        rows = self.transport.rows
        return float(rows.rewards[env_id]), bool(rows.terminated[env_id]), bool(rows.truncated[env_id])
