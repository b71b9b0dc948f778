"""The calls of all managers of environments, wherever the environments live."""

from __future__ import annotations

import abc
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, check_seed, derived_seed
from streamsampler.core.times import Times
from streamsampler.core.timing import ScriptTimes
from streamsampler.data.trees import object_array
from streamsampler.environments.parameters import SetParameters
from streamsampler.stepping.call_errors import (
    CallPendingError,
    EnvsClosedError,
    NoCallPendingError,
    ResultsTimeoutError,
    refuse_busy,
)
from streamsampler.stepping.env_scheduler import EnvScheduler
from streamsampler.stepping.env_states import Autoreset, EnvState
from streamsampler.stepping.episodes import EnvEpisodes, RoundResults
from streamsampler.stepping.manager_stats import ManagerStats
from streamsampler.stepping.options import (
    ManagerOptions,
    Updates,
    chosen_envs,
    copied_options,
    timeout_seconds,
    values_for,
)
from streamsampler.stepping.parameter_sets import ParameterSets
from streamsampler.stepping.receiver import Receiver
from streamsampler.stepping.rows import Kind
from streamsampler.stepping.several_agents import SeveralAgents, by_agent, several_agents
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.transport import Transport

EnvIds: TypeAlias = Sequence[int] | NDArray[np.int64]
"""Environments by their numbers, from 0 to n_envs - 1."""


class BaseEnvManager(abc.ABC):
    """Steps environments from the caller's process; see `EnvManager`."""

    def __init__(self, updates: Updates, options: ManagerOptions, seed: int | None, n_workers: int = 1) -> None:
        self.n_envs = options.n_envs
        self.seed = check_seed(seed)
        self._accounts = ManagerStats(
            workers=[Times()] * n_workers, worker_timesteps=[0] * n_workers, script=ScriptTimes()
        )
        self._updates = updates
        self._options = options
        self._scheduler = EnvScheduler(self.n_envs)
        self._parameters = ParameterSets()
        self._transport: Transport | None = None
        self._several: SeveralAgents | None = None
        self._closed = False
        self._everyone = list(range(self.n_envs))

    @abc.abstractmethod
    def _new_transport(self) -> Transport: ...

    def launch(self) -> None:
        """Make the environments. The first call to need them launches them as well.

        After `close` it makes new ones, with the episodes of the first launch again.

        Raises:
            UsageError: They are launched already; or some have a single agent, and others several; or `policy_of` does
                not suit their agents.
        """
        if self._transport is not None:
            raise UsageError("the environments are launched already: call close() before launch()")
        transport, options = self._new_transport(), self._options
        try:
            transport.start()
            scheduler = EnvScheduler(
                self.n_envs, options.on_failure, options.autoreset, options.max_episodes, renew=options.renew,
                restart_wait=options.restart_wait, losses=transport.losses,
            )  # fmt: skip
            episodes = EnvEpisodes(transport.rows, options, self.seed, self._parameters, scheduler)
            several = several_agents(transport.spaces, options.policy_of, self.seed, episodes.now)
            own_spaces = _seeded(transport.spaces.action, self.seed)
            self._send_parameters(transport, list(self._parameters.latest))
        except BaseException:
            transport.close()
            raise
        self._scheduler, self._episodes, self._several, self._own_spaces = scheduler, episodes, several, own_spaces
        self._receiver = Receiver(transport, scheduler, episodes, self._options, self._accounts)
        self._accounts.tick(running=True)
        self._transport, self._closed = transport, False

    def _send_parameters(self, transport: Transport, env_ids: list[int]) -> None:
        latest = [self._parameters.latest[env_id] for env_id in env_ids]
        transport.request(env_ids, "parameters", "set_parameters", latest)

    def close(self) -> None:
        """Close the environments; may be repeated. `launch` makes new ones."""
        transport, self._transport = self._transport, None
        if not self._closed:
            self._scheduler.close()
        self._closed = True
        if transport is not None:
            # After an interruption, messages may be incomplete.
            if transport.is_ours and not transport.in_critical_section:
                self._count(transport)
            self._accounts.tick(running=False)
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launched(self) -> Transport:
        transport = self._ensure_launched()
        if transport.in_critical_section:  # an earlier call was interrupted
            self._receiver.resynchronize()
        self._receiver.open_round()
        return transport

    def _ensure_launched(self) -> Transport:
        """Launch if needed, without completing an interrupted call: another thread may ask."""
        if self._transport is None:
            if self._closed:
                raise EnvsClosedError("the environments are closed: call manager.launch() to make new ones")
            self.launch()
        assert self._transport is not None
        if not self._transport.is_ours:
            raise UsageError(
                "this process was forked from the owner of these environments, and cannot use them: call close() and "
                "launch() to make its own"
            )
        return self._transport

    @property
    def observation_space(self) -> Any:
        """The common observation space of all environments.

        Raises:
            UsageError: They differ: see `observation_spaces`.
        """
        return self._spaces_of(0, self._launched().spaces.common("observation"), "observation")

    @property
    def action_space(self) -> Any:
        """The common action space of all environments.

        Raises:
            UsageError: They differ: see `action_spaces`.
        """
        return self._spaces_of(0, self._launched().spaces.common("action"), "action")

    @property
    def observation_spaces(self) -> tuple[Any, ...]:
        """The observation space of each environment; they may differ."""
        spaces = self._launched().spaces.observation
        return tuple(self._spaces_of(env_id, space, "observation") for env_id, space in enumerate(spaces))

    @property
    def are_stacked(self) -> bool:
        """Whether observations of all environments have the same shape and dtype, and are stacked."""
        return self._launched().rows.has_views

    @property
    def action_spaces(self) -> tuple[Any, ...]:
        """The action space of each environment; they may differ."""
        spaces = self._launched().spaces.action
        return tuple(self._spaces_of(env_id, space, "action") for env_id, space in enumerate(spaces))

    def _spaces_of(self, env_id: int, space: Any, kind: Kind) -> Any:
        return space if self._several is None else self._several.spaces_of(env_id, kind)

    @property
    def states(self) -> tuple[EnvState, ...]:
        """The state of each environment."""
        self._scheduler.open_round()
        return tuple(self._scheduler.states)

    @property
    def autoreset(self) -> Autoreset:
        """The policy at an episode's end."""
        return self._options.autoreset

    @property
    def failures(self) -> int:
        """How often an environment raised, or a worker died or hung."""
        return self._accounts.failures

    @property
    def stats(self) -> ManagerStats:
        """Counts since the manager was made. Idle workers are asked for their latest report."""
        if self._transport is not None:
            self._count(self._launched())
            self._accounts.tick(running=True)
        return self._accounts

    def _count(self, transport: Transport) -> None:
        transport.in_critical_section = True
        for report in transport.reports():
            self._accounts.take_worker(report)
        transport.in_critical_section = False

    def reset(
        self, env_ids: EnvIds | None = None, *, seed: Any = None, options: Mapping[str, Any] | None = None,
        every_episode: bool = False,
    ) -> Steps:  # fmt: skip
        """Reset environments, and wait for all of them. The results of open steps are discarded.

        Args:
            env_ids: The environments; None for all.
            seed: None continues the seeds of each environment. An integer restarts them, derived from it for each
                environment. A list has the seed of the next episode of each of `env_ids`, a dict by environment; later
                episodes get seeds derived from these.
            options: Options of this and all later resets, until changed; None changes nothing.
            every_episode: Whether later episodes repeat the next one's seed, until seeds are given again.

        Returns:
            The results of these environments, in the order of `env_ids`.

        Raises:
            UsageError: An argument cannot work.
            WorkerError: An environment failed: see `on_failure`.
        """
        return self._awaited(self._request_resets(env_ids, seed, options, every_episode))

    def async_reset(
        self, env_ids: EnvIds | None = None, *, seed: Any = None, options: Mapping[str, Any] | None = None,
        every_episode: bool = False,
    ) -> None:  # fmt: skip
        """Request resets without waiting; `recv` returns the results. Arguments and errors are those of `reset`.

        An environment with an open step is reset during a later call, after the step.
        """
        self._request_resets(env_ids, seed, options, every_episode)

    def forget_options(self, env_ids: EnvIds | None = None) -> None:
        """Remove the options of later resets.

        Raises:
            UsageError: An environment has an open request.
        """
        transport = self._launched()
        chosen = chosen_envs(env_ids, self.n_envs)
        busy = [env_id for env_id in chosen if env_id in self._scheduler.waiting or env_id in self._scheduler.arrived]
        if busy:
            raise UsageError(f"environment {busy[0]} has an open step or reset: call recv() first")
        transport.in_critical_section = True
        self._episodes.keep_options(transport.forget_options(chosen))
        transport.in_critical_section = False

    def _request_resets(self, env_ids: Any, seed: Any, options: Any, every_episode: bool) -> list[int]:
        transport = self._ensure_launched()
        chosen = chosen_envs(env_ids, self.n_envs)
        copied = copied_options(options)
        if every_episode and seed is None:
            raise UsageError("every_episode=True repeats a seed in each episode: pass the seed, reset(seed=…)")
        seeds = {} if seed is None else self._episodes.seeds.restart(chosen, seed, every_episode=every_episode)
        if transport.in_critical_section:  # an earlier call was interrupted
            self._receiver.resynchronize(chosen)
        self._receiver.open_round()
        transport.send_settings()
        transport.in_critical_section = True
        self._receiver.reset({env_id: (seeds.get(env_id), copied) for env_id in chosen})
        transport.in_critical_section = False
        return chosen

    def send(self, actions: Any, env_ids: EnvIds | None = None) -> None:
        """Send actions to environments; `recv` returns the results.

        Args:
            actions: Actions stacked to arrays of (K, ...), nested like the action space; or a sequence of K actions;
                or, without `env_ids`, a dict of actions by environment. For several agents: a dict by policy, with an
                action for each row of `steps[policy]`, where `steps` has the last results of these environments in this
                order.
            env_ids: The K environments; None for all, or for those in the dict.

        Raises:
            UsageError: An environment is unknown, or does not wait for an action; or a policy is unknown, or missing
                although its agents are to act. Nothing is sent then.
            ActionError: The actions are of another shape, kind or number.
        """
        self._send(actions, env_ids)

    def _send(self, actions: Any, env_ids: EnvIds | None, *, together: bool = False) -> list[int]:
        """Send actions; return the environments in order."""
        transport, several = self._launched(), self._several
        by_env = several is None and env_ids is None and isinstance(actions, Mapping)
        if by_env and _are_by_env(actions, transport.rows.actions):
            if not actions:
                return []
            env_ids, actions = list(actions), list(actions.values())
        chosen = self._everyone if env_ids is None else chosen_envs(env_ids, self.n_envs)
        refuse_busy(self._scheduler.states, chosen)
        if several is not None:
            actions = several.joint_actions(chosen, actions)
        transport.rows.action_values.put_some(0, chosen, actions)
        transport.in_critical_section = True
        self._receiver.carry_out(self._scheduler.send(chosen, together=together))
        transport.in_critical_section = False
        return chosen

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> Steps:
        """Wait for results, those of resets included, and return all arrived ones.

        Args:
            min_envs: How many to wait for, at most the number of open requests; None for the manager's `min_envs`.
            timeout: Seconds after which the results so far are returned, even none at all; None for the manager's
                `recv_timeout`.

        Raises:
            UsageError: Nothing was sent.
            WorkerError: An environment failed: see `on_failure`. Arrived results are kept.
        """
        self._launched()
        scheduler = self._scheduler
        if not scheduler.n_open:
            raise NoCallPendingError("there is nothing to receive: call send() or async_reset() first", "recv")
        least = min(self._options.min_envs if min_envs is None else positive("min_envs", min_envs), scheduler.n_open)
        seconds = self._options.recv_timeout if timeout is None else timeout_seconds(timeout)
        self._receiver.receive(0)
        self._receive_until(lambda: len(scheduler.arrived) >= min(least, scheduler.n_open), seconds)
        return self._return_steps(list(scheduler.arrived))

    def step(self, actions: Any, env_ids: EnvIds | None = None) -> Steps:
        """Send actions, and return the results of these environments, in their order; see `send` and `recv`."""
        return self._awaited(self._send(actions, env_ids, together=True))

    def _start_round(self, actions: Any) -> bool:
        """Step all environments if all wait for actions; return whether they do.

        For callers without need of `Steps`: `_end_round` returns the results, or, after a failure, `recv_from`. Any
        other call may come in between.
        """
        transport, everyone = self._transport, self._everyone
        if transport is None or transport.in_critical_section or not transport.is_ours:
            return False
        if not (self._scheduler.can_start_round and self._episodes.takes_rounds):
            return False
        if isinstance(actions, Mapping) and _are_by_env(actions, transport.rows.actions):
            return False
        transport.rows.put_all_actions(actions)
        self._receiver.start_round(everyone)
        return True

    def _end_round(self) -> RoundResults | None:
        """Return the results of `_start_round`; None if `recv_from` has them. May be called again."""
        if self._transport is None or self._transport.in_critical_section:
            return None
        return self._receiver.end_round(self._everyone)

    def recv_from(self, env_ids: EnvIds | None = None, timeout: float | None = None) -> Steps:
        """Wait for all results of these environments, and return them in their order.

        Args:
            env_ids: The environments; None for all.
            timeout: Most seconds to wait; None for no limit.

        Raises:
            UsageError: An environment was sent nothing, or is unknown.
            TimeoutError: Results are missing after `timeout`. Arrived results are kept.
            WorkerError: An environment failed, as for `recv`.
        """
        self._launched()
        chosen = chosen_envs(env_ids, self.n_envs)
        for env_id in chosen:
            if env_id not in self._scheduler.waiting and env_id not in self._scheduler.arrived:
                raise NoCallPendingError(
                    f"there is nothing to receive from environment {env_id}: call send() or async_reset() first", "recv"
                )
        return self._awaited(chosen, timeout_seconds(timeout))

    def _awaited(self, env_ids: list[int], timeout: float | None = None) -> Steps:
        scheduler, wanted = self._scheduler, frozenset(env_ids)
        if not self._receive_until(lambda: scheduler.arrived.keys() >= wanted, timeout, env_ids):
            missing = sorted(wanted - scheduler.arrived.keys())
            raise ResultsTimeoutError(
                f"environments {missing} have no results after {timeout:g} s: call again to wait on, or pass a longer "
                "timeout"
            )
        return self._return_steps(env_ids)

    def _return_steps(self, env_ids: list[int]) -> Steps:
        steps = self._receiver.return_steps(env_ids)
        return steps if self._several is None else self._several.shown(steps, self.autoreset)

    def _receive_until(self, is_enough: Callable[[], bool], seconds: float | None, awaited: Sequence[int] = ()) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not is_enough():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._receiver.receive(left, awaited)
        return True

    def observations(self) -> Any:
        """Return the last observation of each environment: leaves of (n_envs, ...), or dicts by agent.

        Raises:
            UsageError: An environment has an open step or reset, or was never reset.
        """
        rows = self._launched().rows
        busy = [*self._scheduler.in_states(EnvState.VOID), *self._scheduler.waiting]
        if busy:
            raise UsageError(f"environment {min(busy)} has no observation yet: call reset() or recv() first")
        observations = rows.observation_values.taken(rows.slots, np.arange(self.n_envs))
        return observations if self._several is None else object_array(list(map(by_agent, observations)))

    @property
    def ready(self) -> dict[int, Any]:
        """The environments in the state READY, which wait for an action, with their observations."""
        rows = self._launched().rows
        ready = {env_id: rows.observation(env_id) for env_id in self._scheduler.in_states(EnvState.READY)}
        return ready if self._several is None else {env_id: by_agent(turn) for env_id, turn in ready.items()}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `recv` has a result, or an environment waits for an action; return whether either is so.

        Args:
            timeout: Most seconds to wait; None for no limit.
        """
        self._launched()

        def has_something() -> bool:
            return bool(self._scheduler.arrived or self._scheduler.in_states(EnvState.READY))

        self._receive_until(lambda: has_something() or not self._scheduler.waiting, timeout_seconds(timeout))
        return has_something()

    def random_actions(self, env_ids: EnvIds | None = None) -> Any:
        """Return a random action for each environment, or each of `env_ids`, stacked; for several agents by policy.

        The n-th random action of an environment since the launch is a function of the manager's seed.

        Raises:
            UsageError: An environment is unknown; or, of several agents, does not wait for an action.
        """
        transport, chosen = self._launched(), chosen_envs(env_ids, self.n_envs)
        if self._several is not None:
            refuse_busy(self._scheduler.states, chosen)
            return self._several.random_actions(chosen)
        return transport.rows.action_values.stacked(chosen, [self._own_spaces[env_id].sample() for env_id in chosen])

    def call(self, name: str, /, *args: Any, env_ids: EnvIds | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of environments, and return the results; or return attributes, if it is no method.

        The call is repeated on the replacement of a lost environment: in the same episode at its timestep, in later
        ones before the reset. If its result then differs, the episode is reported as not restored.

        Raises:
            AttributeError: An environment has nothing of this name.
            UsageError: An environment has an open step, or only the manager may call this method.
        """
        if name in ("reset", "step", "close"):
            raise UsageError(f"call({name!r}) would bypass the manager's records: use manager.{name}()")
        return self._request(env_ids, "call", name, lambda n: [(args, kwargs)] * n)

    def get_attr(self, name: str, env_ids: EnvIds | None = None) -> list[Any]:
        """Return an attribute of environments; errors are those of `call`."""
        return self._request(env_ids, "get", name, lambda n: [None] * n)

    def set_attr(self, name: str, values: Any, env_ids: EnvIds | None = None) -> None:
        """Set an attribute of environments: the same value for each, or the items of a list.

        It is set on the wrapper having it, as by Gymnasium's `set_wrapper_attr`, and otherwise made.

        Raises:
            UsageError: An environment has an open step, or the list has more or fewer items.
        """
        self._request(env_ids, "set", name, lambda n: values_for(values, n))

    def wrappers(self, env_ids: EnvIds | None = None) -> list[set[str]]:
        """Return the full names of the classes of each environment's wrappers, base classes included."""
        return self._request(env_ids, "wrappers", "wrappers", lambda n: [None] * n)

    def set_parameters(self, parameters: Mapping[str, Any] | SetParameters, env_ids: EnvIds | None = None) -> None:
        """Set parameters of environments before each of their later resets.

        Values are drawn in the environment's process from the episode's seed, so they are the same for any number of
        workers; the reset's info has them in `infos["parameters"]`. They hold until others of the same names are set,
        for replacements of lost environments too.

        Args:
            parameters: Constants, and distributions of `streamsampler.environments`, by name; or a `SetParameters`
                without an environment, for another way to set them.
            env_ids: The environments; None for all.

        Raises:
            UsageError: An environment has no such parameters, or an open step; nothing is set then.
        """
        update = parameters if isinstance(parameters, SetParameters) else SetParameters(parameters)
        if update.has_environment:
            raise UsageError("set_parameters is for existing environments: pass SetParameters without an environment")
        chosen = chosen_envs(env_ids, self.n_envs)
        self._request(chosen, "check", "set_parameters", lambda n: [update] * n)
        self._parameters.set(chosen, update, self._episodes.parameters_in_use())
        transport = self._launched()
        transport.in_critical_section = True
        self._send_parameters(transport, chosen)
        transport.in_critical_section = False

    def render(self, env_ids: EnvIds | None = None) -> list[Any]:
        """Return the results of `render` of environments."""
        return self._request(env_ids, "render", "render", lambda n: [None] * n)

    def _request(self, env_ids: Any, kind: str, name: str, arguments_for: Any) -> list[Any]:
        self._launched()
        chosen = chosen_envs(env_ids, self.n_envs)
        if not isinstance(name, str):
            raise UsageError(f"the name of a method or attribute must be a string, got {name!r}")
        self._receiver.receive(0)
        busy = sorted(self._scheduler.waiting.intersection(chosen))
        if busy:
            raise CallPendingError(f"environment {busy[0]} has an open step or reset: call recv() first", name)
        return self._receiver.request(chosen, kind, name, arguments_for(len(chosen)))


def _are_by_env(actions: Mapping[Any, Any], rows: Any) -> bool:
    """Whether a dict has actions by environment; of an empty Dict space, an empty dict is an action."""
    is_action = not actions and isinstance(rows, dict) and not rows
    return not is_action and all(isinstance(key, int | np.integer) for key in actions)


def _seeded(spaces: Sequence[Any], seed: int) -> list[Any]:
    """Copy each space, with a generator of its own, seeded from the manager's seed."""
    seeds = TrajectorySeeds(seed, 0)
    own = [copy.deepcopy(space) for space in spaces]
    for env_id, space in enumerate(own):
        space.seed(derived_seed(seeds[env_id], SeedUse.AGENT))
    return own
