"""The environments of a sampler whose agent stays in its own process: reset and stepped in others, and restored there.

What an environment was asked since its trajectory began is kept. Where its process dies or hangs, the same is asked of
a new one, and what it answers last is compared, before anything goes on: so a loss does not change a trajectory.
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
from streamsampler.stepping.env_messages import Broken, Restored
from streamsampler.stepping.games import GameElsewhere, GameFacts, game_of
from streamsampler.stepping.inference.processes import (
    HIDDEN,
    RAISED,
    TOO_LONG,
    EnvProcesses,
    Launch,
    RolloutTransport,
    not_restored,
    own,
)
from streamsampler.stepping.restores import IT_RAISED, RestoreOrder
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.known_wrappers import EnvElsewhere, EnvFacts
from streamsampler.workers.resets import ResetOrder, Resets, order_of

# ----------------------------------------------------------------------
# What stands for an environment of another process.


class EnvProxy(EnvElsewhere):
    """Stands for an environment in another process.

    A step that was requested for many environments together is only waited for. One that was not is requested.

    Args:
        environments: All environments.
        env_id: The number of this one.
        observation_space: Its observation space.
        action_space: Its action space.
        facts: What is known of it.
        game: What is known of it besides, if it has several agents.

    Attributes:
        game: What stands for it where it has several agents; else None.
    """

    def __init__(
        self, environments: Environments, env_id: int, observation_space: Any, action_space: Any, facts: EnvFacts,
        game: GameFacts | None = None,
    ) -> None:  # fmt: skip
        self.observation_space, self.action_space = observation_space, action_space
        self.facts = facts
        self.game: GameElsewhere | None = None
        if game is not None:
            self.game = game_of(game)
            self.observation_space, self.action_space = self.game.observation_space, self.game.action_space
        self.spec = SimpleNamespace(id=facts.name)  # type: ignore[assignment]
        self._environments, self._env_id = environments, env_id
        self.is_requested = False

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        """The environment without wrappers: what stands for one of several agents."""
        return self if self.game is None else self.game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory that is none of a call's."""
        assert seed is not None
        self.is_requested = False  # of a step that nothing was heard of
        self._environments.reset(self._env_id, 0, seed, None if options is None else Resets(options=options))
        return self.begun()

    def begun(self) -> tuple[Any, dict[str, Any]]:
        """Return what the reset returned that was requested."""
        observation, _, _, _, info = self._environments.result(self._env_id)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return what the step returned."""
        if self.is_requested:
            self.is_requested = False
        else:
            self._environments.step([self._env_id], [action])
        return self._environments.result(self._env_id)


# ----------------------------------------------------------------------
# What an environment in another process was asked since its trajectory began.


class History(NamedTuple):
    """What is kept elsewhere of what an environment did.

    Attributes:
        actions: Its first actions, as many at least as `Episode.actions` lacks.
        rewards: The rewards of consecutive steps, as far as they are known; none where `Episode.reward` is right.
        first: The timestep of the first of these.
    """

    actions: list[Any]
    rewards: Array | tuple[()] = ()
    first: int = 0


@dataclass(slots=True)
class Episode:
    """What an environment was asked since its trajectory began.

    Attributes:
        order: How it began; None if nothing was asked yet.
        is_wanted: Whether the results of open requests are wanted.
        n_asked: How many steps it was asked for.
        actions: Its actions, by timestep; not all, where others are kept elsewhere.
        n_known: How many of these requests, the reset included, have results that arrived.
        slot: Where the last of them lies.
        reward: The reward of the last one that was handed out.
    """

    order: ResetOrder | None = None
    is_wanted: bool = True
    n_asked: int = 0
    actions: dict[int, Any] = field(default_factory=dict)
    n_known: int = 0
    slot: int = 0
    reward: float = 0.0

    @property
    def index(self) -> int | None:
        """The index of its trajectory."""
        return None if self.order is None else self.order.index

    @property
    def is_asked(self) -> bool:
        """Whether there is a request without a result."""
        return self.n_known <= self.n_asked

    def complete(self, history: History | None) -> bool:
        """Add what is kept elsewhere; return whether it is known.

        Args:
            history: It; None where it is not kept any more.
        """
        if history is None:
            return False
        for timestep, action in enumerate(history.actions):
            self.actions.setdefault(timestep, action)  # those that are kept here are what the agent chose
        last = self.n_known - 2 - history.first  # the first result is the reset's
        if 0 <= last < len(history.rewards):
            self.reward = float(history.rewards[last])
        return True


# ----------------------------------------------------------------------


_LOG = logging.getLogger("streamsampler")


class Environments:
    """The environments, by their numbers.

    Args:
        n_envs: How many there are.
        launch: Returns the processes that they live in.
        close_timeout: Seconds that all of them together may take to close.

    Attributes:
        proxies: What stands for them in this process.
        history_of: Takes an environment and a number, and returns so many actions since its trajectory began; see
            `Episode.complete`. None where all are kept here.
        infos: The infos of last results that were not taken yet, by environment.
        losses: The errors of processes that were lost, and are made again.
        n_repeated: How many timesteps were run again for that, or in vain.
        restoring: Environments that are being restored: what was known of them may turn out wrong yet.
        games: What stands for environments of several agents, one for each; empty where they have one.
        copies: Whether observations of results are copies. Else they are views of rows, which are written again.
    """

    def __init__(self, n_envs: int, launch: Launch, close_timeout: float) -> None:
        self.n_envs = n_envs
        self.losses: list[BaseException] = []
        self.n_repeated = 0
        self.restoring: set[int] = set()
        self.copies = False
        self._processes = EnvProcesses(n_envs, launch, close_timeout, self._note_loss)
        self._episodes = [Episode() for _ in range(n_envs)]
        self.infos: dict[int, dict[str, Any]] = {}
        self._raised: dict[int, BaseException] = {}
        self._arrived: set[int] = set()  # environments with results that were not told of yet
        self._lost: dict[int, None] = {}  # environments that are to be restored, or reset again
        self.proxies: list[EnvProxy] = []
        self.games: list[GameElsewhere] = []
        self.history_of: Callable[[int, int], History | None] | None = None
        self._not_restored: NotReproducibleError | None = None

    # ------------------------------------------------------------------ life

    def update(self, payload: Payload) -> None:
        """Make the environments, or change those that are there; see `EnvProcesses.update`."""
        self.proxies = []
        if self._processes.running and not self.settle(range(self.n_envs), STUCK_SECONDS):
            self._processes.shut_down()  # one hangs, after the end of the call that it ran in
        facts = self._processes.update(payload)
        rows = self.transport.rows
        self._begin_anew()
        spaces = rows.observation_space, rows.action_space
        self.proxies = [EnvProxy(self, env_id, *spaces, *facts[env_id]) for env_id in range(self.n_envs)]
        self.games = [proxy.game for proxy in self.proxies if proxy.game is not None]

    def _begin_anew(self) -> None:
        """Forget what environments were asked: there are others, or none."""
        self._episodes = [Episode() for _ in range(self.n_envs)]
        for forgotten in (self.infos, self._raised, self._lost, self._arrived, self.restoring):
            forgotten.clear()

    def close_all(self) -> None:
        """Close the environments, and let their processes wait for others; see `EnvProcesses.close_environments`."""
        self.proxies = []
        self._begin_anew()
        self._processes.close_environments()

    def shut_down(self) -> None:
        """Close the environments, and end their processes; may be repeated."""
        self.proxies = []
        self._processes.shut_down()

    @property
    def transport(self) -> RolloutTransport:
        """What carries requests to their processes."""
        return self._processes.transport

    def send_settings(self) -> None:
        """Give the processes that there are this one's settings."""
        if self._processes.running:
            self.transport.send_settings()

    def pids(self) -> list[int]:
        """Return the ids of the processes that there are."""
        return self._processes.pids()

    def _note_loss(self, error: WorkerError) -> None:
        self.losses.append(error)
        _LOG.warning("%s; a new one takes its place", error.worded(error.quota))

    # ------------------------------------------------------------------ requests

    def reset(self, env_id: int, index: int, seed: int, resets: Resets | None) -> None:
        """Request that an environment begins a trajectory."""
        self.settle([env_id])
        self._episodes[env_id] = Episode(order_of(index, seed, resets))
        self._ask(env_id)

    def step(self, env_ids: Sequence[int], actions: Sequence[Any]) -> None:
        """Request a step of each of some environments that have no open request."""
        given, now = {}, []
        rows = self.transport.rows
        for env_id, action in zip(env_ids, actions, strict=True):
            episode = self._episodes[env_id]
            episode.actions[episode.n_asked] = action
            episode.n_asked += 1
            now.append(env_id)
            if not rows.put_action_exactly(env_id, action):
                given[env_id] = action
        if given:
            self.transport.give(given)
        self.transport.step(now)

    def step_with(self, env_ids: Sequence[int], actions: Tree) -> None:
        """Request a step of each of some environments, with actions that `history_of` knows from now on.

        Args:
            env_ids: The environments, which have no open request, and are not being restored.
            actions: Their actions, leaves of (k, …) of the dtypes of the action space.
        """
        for env_id in env_ids:
            self._episodes[env_id].n_asked += 1
        for (_, rows), (_, given) in zip(leaves(self.transport.rows.actions), leaves(actions), strict=True):
            rows[env_ids] = given
        self.transport.step(env_ids)

    def _ask(self, env_id: int) -> None:
        """Ask the environment for the result that is not known yet."""
        episode = self._episodes[env_id]
        assert episode.order is not None
        if not episode.n_known:
            self.transport.reset([env_id], {env_id: episode.order})  # type: ignore[dict-item]
            return
        action = episode.actions[episode.n_known - 1]
        if not self.transport.rows.put_action_exactly(env_id, action):
            self.transport.give({env_id: action})
        self.transport.step([env_id])

    # ------------------------------------------------------------------ results

    def result(self, env_id: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait for the result of an environment's open request, and return it.

        Returns:
            The observation, which lies where the next but one is going to be written unless `copies` says otherwise;
            the reward, how it ended, and the info.

        Raises:
            WorkerError: Too many processes were lost.
            NotReproducibleError: The environment cannot be restored.
            Exception: What the environment raised.
        """
        episode = self._episodes[env_id]
        while self._is_open(env_id):
            self.take_in(None)
        self._arrived.discard(env_id)
        self.check(env_id)
        observation = snapshot(self.observation(env_id)) if self.copies else self.observation(env_id)
        info = self.take_info(env_id)
        reward, terminated, truncated = self._results(env_id)
        episode.reward = reward
        if terminated or truncated:
            episode.order = None
        if self.games:
            return self.games[env_id].take(observation, info)  # type: ignore[return-value]
        return observation, reward, terminated, truncated, info

    def _is_open(self, env_id: int) -> bool:
        """Whether there is a request without a result, or the environment is being restored."""
        episode = self._episodes[env_id]
        return episode.order is not None and (episode.is_asked or env_id in self.restoring)

    def check(self, env_id: int) -> None:
        """Raise what an environment raised instead of giving its last result."""
        if self._raised and (error := self._raised.pop(env_id, None)) is not None:
            raise error

    def has_raised(self, env_id: int) -> bool:
        """Whether an environment raised instead of giving its last result."""
        return env_id in self._raised

    def take_info(self, env_id: int) -> dict[str, Any]:
        """Return the info of an environment's last result, and forget it."""
        return self.infos.pop(env_id, {})

    def end(self, env_id: int) -> None:
        """End an environment's trajectory: nothing goes on in it."""
        self._episodes[env_id].order = None

    def last_action(self, env_id: int) -> Any:
        """Return the last action that an environment was asked to take."""
        episode = self._episodes[env_id]
        return episode.actions.get(episode.n_asked - 1, self.transport.rows.action(env_id))

    def observation(self, env_id: int) -> Any:
        """Return a view of an environment's last observation."""
        rows = self.transport.rows
        return rows.view(int(rows.slots[env_id]), env_id)

    def forget_actions(self, env_id: int) -> None:
        """Forget an environment's actions so far, which `history_of` knows from now on, unless they are needed now."""
        if env_id not in self.restoring:
            self._episodes[env_id].actions, self._episodes[env_id].reward = {}, self._results(env_id)[0]

    def give_up(self) -> None:
        """Forget what environments were asked; steps under way are waited for, so that they are counted."""
        self.forget()
        if not (isinstance(error := sys.exception(), WorkerError) or is_interrupt(error)):
            self.settle(range(self.n_envs), STUCK_SECONDS)

    def settle(self, env_ids: Iterable[int], seconds: float | None = None) -> bool:
        """Wait for the results of open requests, at most so long, and throw them away; return whether all came."""
        until = None if seconds is None else perf_counter() + seconds
        env_ids = list(env_ids)
        for env_id in env_ids:
            self._episodes[env_id].is_wanted = False
        for env_id in env_ids:
            is_under_way = self._is_under_way(env_id)
            while self._is_open(env_id):
                if until is not None and perf_counter() >= until:
                    return False
                self.take_in(None if until is None else max(0.0, until - perf_counter()))
            self.n_repeated += is_under_way
            self._raised.pop(env_id, None)
            self.infos.pop(env_id, None)
            self._arrived.discard(env_id)
        return True

    @property
    def n_open_steps(self) -> int:
        """How many steps have no result yet, or one that was not told of."""
        return sum(map(self._is_under_way, range(self.n_envs)))

    def _is_under_way(self, env_id: int) -> bool:
        episode = self._episodes[env_id]
        is_new = env_id in self._arrived and env_id not in self._raised
        return episode.n_asked > 0 and (is_new or (episode.order is not None and episode.is_asked))

    def forget(self) -> None:
        """Forget what environments were asked: nothing goes on in them but open requests."""
        for env_id, episode in enumerate(self._episodes):
            episode.is_wanted = False
            if not self._is_open(env_id):
                episode.order = None

    def take_arrived(self, timeout: float | None) -> list[int]:
        """Return the environments whose open requests have got results since the last time.

        Args:
            timeout: Seconds to wait at most until something happens, if there are none; None for any time.
        """
        if timeout == 0.0 or self._arrived <= self.restoring:
            self.take_in(timeout)
        # What an environment did before it was lost is told when it is what it was.
        arrived = self._arrived - self.restoring
        self._arrived -= arrived
        return sorted(arrived)

    def take_in(self, timeout: float | None) -> None:
        """Take in what happened; wait for something at most so many seconds, None for any time.

        Raises:
            WorkerError: Too many processes were lost.
            NotReproducibleError: An environment cannot be restored.
        """
        self._not_restored = None
        for event in self.transport.collect(timeout):
            if isinstance(event, Broken):
                self._break(event)
            elif isinstance(event, Restored):
                self._take_restored(event)
            else:
                for env_id in event.env_ids:
                    self._done(env_id, event.infos.get(env_id))
        # When all is known: what a lost process answered before is not asked for again.
        lost, self._lost = self._lost, {}
        if lost:
            self._restore(list(lost))
        if self._not_restored is not None:
            raise self._not_restored

    def _done(self, env_id: int, info: dict[str, Any] | None) -> None:
        episode = self._episodes[env_id]
        episode.n_known += 1
        self._processes.record_success(env_id)
        episode.slot = int(self.transport.rows.slots[env_id])
        if info:
            self.infos[env_id] = info
        self._arrived.add(env_id)

    # ------------------------------------------------------------------ failures

    def _break(self, event: Broken) -> None:
        if event.is_new:
            self._name_trajectory(event)
        if self._processes.count_loss(event.error) or event.is_final:
            raise event.error
        if not event.is_new:
            (env_id,) = event.env_ids
            if env_id in self.restoring:
                self._end_restore(env_id, RAISED)
                return
            episode = self._episodes[env_id]
            self._raised[env_id] = own(event.error)
            episode.n_known = episode.n_asked + 1
            self._arrived.add(env_id)
            return
        assert isinstance(event.error, WorkerError)
        self._note_loss(event.error)
        self._lost.update(dict.fromkeys(event.env_ids))

    def _name_trajectory(self, event: Broken) -> None:
        """Let the error of a lost process name the trajectory that ran there."""
        order = None if event.culprit is None else self._episodes[event.culprit].order
        error = event.error
        if order is None or not isinstance(error, WorkerError) or error.trajectory is not None:
            return
        error.trajectory = order.index
        error.what = f"{error.what}; environment {event.culprit} ran trajectory {order.index}"
        error.args = (error.worded(error.quota, error.outlook),)

    def _restore(self, env_ids: Sequence[int]) -> None:
        """Let new environments become what the lost ones were, and ask them for what has no result."""
        orders, asked = [], []
        for env_id in env_ids:
            episode = self._episodes[env_id]
            self.restoring.discard(env_id)
            if episode.order is None or env_id in self._raised:
                continue
            if not episode.is_wanted:
                episode.order = None
                continue
            if self.history_of is not None and not episode.complete(self.history_of(env_id, episode.n_asked)):
                self._end_restore(env_id, TOO_LONG)
                continue
            if episode.n_known and (episode.is_asked or not self._has_ended(env_id)):
                orders.append(self._order(env_id))
            if episode.is_asked:
                asked.append(env_id)
        self.restoring.update(order.env_id for order in orders)
        self.transport.restore(orders)
        for env_id in asked:
            self._ask(env_id)

    def _has_ended(self, env_id: int) -> bool:
        """Whether the last result that is known ended the episode."""
        return any(self._results(env_id)[1:])

    def _order(self, env_id: int) -> RestoreOrder:
        """Return what makes a new environment what the lost one was when it gave its last result that is known."""
        episode, rows, n = self._episodes[env_id], self.transport.rows, self._episodes[env_id].n_known - 1
        assert episode.order is not None
        if not episode.is_asked:
            episode.reward = self._results(env_id)[0]
        rows.slots[env_id] = episode.slot  # of an open request, something may have been written already
        return RestoreOrder(
            env_id, seed=episode.order.seed, options=episode.order, slot=episode.slot, n_timesteps=n,
            actions=[episode.actions[t] for t in range(n)], rewards=[episode.reward] if n else (),
            carried=rows.carried_observation(episode.slot, env_id),
        )  # fmt: skip

    def _take_restored(self, event: Restored) -> None:
        self.n_repeated += event.n_timesteps or 0
        self.restoring.discard(event.env_id)
        if event.why_not:
            self._end_restore(event.env_id, RAISED if event.why_not.startswith(IT_RAISED) else HIDDEN)

    def _end_restore(self, env_id: int, why: str) -> None:
        """Give up an environment that cannot be restored."""
        episode = self._episodes[env_id]
        self.restoring.discard(env_id)
        if episode.is_wanted:
            self._not_restored = not_restored(env_id, episode.index, why)
        if episode.is_asked and why is not TOO_LONG:
            self.transport.give_up([env_id])  # it ignores what it is asked
        episode.order = None

    def _results(self, env_id: int) -> tuple[float, bool, bool]:
        rows = self.transport.rows
        return float(rows.rewards[env_id]), bool(rows.terminated[env_id]), bool(rows.truncated[env_id])
