"""Ask policies for the actions of agents: all that one policy plays in one call, or each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.base import Agent, acts_alone, give_spaces, mask_argument, reset_agent_function, row_keywords
from streamsampler.agents.draws import Draws, OfRows
from streamsampler.agents.filters import FilterParameters
from streamsampler.agents.masks import ACTION_MASKS, Mask, MaskFinder
from streamsampler.agents.policies import SHARED, Policies, PolicyUpdates
from streamsampler.agents.updates import updated_agent
from streamsampler.core.errors import ActionError, DataError, UsageError
from streamsampler.core.seeding import seed_of_agent
from streamsampler.core.serialization import dumps, loads
from streamsampler.data import trees
from streamsampler.data.spaces import same_spaces
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.workers.finishing import value_by_row, value_of, with_filter
from streamsampler.workers.masks import Warn, masks_reach
from streamsampler.workers.resets import Resets
from streamsampler.workers.vec.rows import info_of_row, singles_of

_FIRST_ROOM = 8
"""For how many agents there is room at first, where any number may appear."""
_AT_ONE_PLACE = frozenset(("slots", "starts"))
_OF_ROWS = frozenset(("draws", "seeds", "starts"))


class Seat:
    """One agent of the environment in the trajectory in hand, and what plays it.

    Args:
        agent_id: The agent.
        number: Its number among all that may take part.
        policy: What plays it.

    Attributes:
        agent_id: The agent.
        number: Its number among all that may take part.
        policy: What plays it.
        get_action: That of its own copy of the policy; None where the policy is asked for several together.
        info: The policy's last info.
        last_info: What the environment said last of it, in answer to an action.
        early_info: What it said before the first one, until the agent is asked for that.
        recorder: Where its trajectory is recorded; None before it acts.
        record_observation: That of its recorder.
        record_action: That of its recorder.
        keep_reward: Appends a float to the rewards of its recorder.
    """

    __slots__ = (
        *("agent_id", "early_info", "get_action", "info", "keep_reward", "last_info", "number", "policy"),
        *("record_action", "record_observation", "recorder"),
    )

    def __init__(self, agent_id: str, number: int, policy: _Policy) -> None:
        self.agent_id, self.number, self.policy = agent_id, number, policy
        self.get_action: Callable[[Any], Any] | None = None
        self.info: Any = None
        self.last_info: Any = None
        self.early_info: Any = None
        self.recorder: Any = None

    def record_in(self, recorder: Any) -> None:
        """Let what the agent does be recorded."""
        self.recorder = recorder
        self.record_observation, self.record_action = recorder.record_observation, recorder.record_action
        self.keep_reward = recorder.float_rewards.append

    def mask_of(self, find: MaskFinder, observation: Any) -> Mask | None:
        """Return the mask of its next action; see `MaskFinder`."""
        info, self.early_info = self.last_info if self.early_info is None else self.early_info, None
        return find(observation, info)

    def masked(self, find: MaskFinder, get_action: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a function that chooses an action on an observation, by one that takes a mask, too."""
        return lambda observation: get_action(observation, action_mask=self.mask_of(find, observation))

    def value_of(self, observation: Any) -> float | None:
        """Return what its policy gives an observation where its infos have values; None where it gives none."""
        if self.info.__class__ is not dict or "value" not in self.info:
            return None
        agent = self.policy.copy_of(self.number)
        get_value = getattr(agent, "get_value", None)
        if self.policy.together and (by_row := value_by_row(agent)) is not None:
            get_value = partial(by_row, slot=self.number)
        return None if get_value is None else value_of(get_value, observation)


class _Policy:
    """An agent that plays some agents of an environment.

    Args:
        name: Its name.
        agent: The agent.
        warn: See `MaskFinder`.

    Attributes:
        name: Its name.
        spaces: The observation and action space of those that it plays; None before it plays any.
        together: Whether it is asked for several of them in one call.
        is_new: Whether none of them has begun in the trajectory in hand.
    """

    def __init__(self, name: str, agent: Agent, warn: Warn) -> None:
        self.name, self._agent, self.together, self._warn = name, agent, False, warn
        self._takes_masks = False
        self.is_new = True
        self._env: MultiAgentEnv | None = None
        self.spaces: tuple[Space[Any], Space[Any]] | None = None
        self._first = ""  # the agent whose spaces these are
        self._copies: dict[int, Any] = {}
        self._filter: Any = None
        self._fitting: set[str] = set()

    def update(self, update: Any) -> None:
        """Replace the agent, or hand it and its copies new parameters; see `agents.updates.apply_agent_update`."""
        updated = updated_agent(self._agent, update, self.spaces)
        if updated is self._agent:
            for each in self._copies.values():
                if each is not updated:
                    updated_agent(each, update, None)
            return
        self._agent, self._copies = updated, {}
        if self._filter is not None and self.spaces is not None:
            self._apply_filter(self.spaces[0])
        self._look_at_agent()

    def take_filter(self, given: Any) -> None:
        """Show the agent observations as a filter changes them."""
        self._filter = given
        if self.spaces is not None:
            self._apply_filter(self.spaces[0])

    def _apply_filter(self, space: Any) -> None:
        filtered = with_filter(self._agent, self._filter, space)
        if filtered is self._agent:
            for each in self._copies.values():
                if each is not filtered:
                    each.set_param_values(FilterParameters(self._filter, space))
        self._agent = filtered
        self._look_at_agent()

    def move_to(self, env: MultiAgentEnv) -> None:
        """Play in another environment from now on."""
        self.spaces, self._copies, self._fitting = None, {}, set()
        self._env, self._n_agents = env, _FIRST_ROOM if env.is_open else len(env.numbers)
        self._look_at_agent()

    def join(self, agent_id: str) -> None:
        """Prepare to play an agent of the environment.

        Raises:
            UsageError: It plays agents with other spaces.
        """
        if agent_id in self._fitting:
            return
        assert self._env is not None
        spaces = self._env.observation_space[agent_id], self._env.action_space[agent_id]
        if self.spaces is None:
            self._first, self.spaces = agent_id, spaces
            give_spaces(self._agent, *spaces)
            if self._filter is not None:
                self._apply_filter(spaces[0])
        elif not same_spaces(self.spaces, spaces):
            raise UsageError(
                f"policy {self.name!r} plays {self._first!r} and {agent_id!r}, whose spaces differ: {self.spaces[0]} "
                f"and {self.spaces[1]}, {spaces[0]} and {spaces[1]}. Give each of them a policy of its own, by "
                "policy_of="
            )
        self._find_mask = MaskFinder(None, spaces[1], self._warn)
        self._fitting.add(agent_id)  # to compare spaces takes long

    def _look_at_agent(self) -> None:
        if self._env is None:
            return
        agent: Any = self._agent
        self._reset = reset_agent_function(agent)
        self._get_actions: Any = getattr(agent, "get_actions", None)
        self._keywords = row_keywords(self._get_actions) if callable(self._get_actions) else set()
        # What is told which rows begin may remember something by a row's place: then all rows are asked for in each
        # step. Where agents act in turn, it would remember what it saw in the turns of others; where any may appear, it
        # is not known how many rows there are.
        self._all_rows = bool(self._keywords & _AT_ONE_PLACE)
        remembers = self._reset is not None and not self._keywords & _OF_ROWS
        self.together = (
            callable(self._get_actions)
            and self._n_agents > 1  # or there is nothing to batch, as where there is one agent without an id
            and not remembers
            and not (self._all_rows and (self._env.takes_turns or self._env.is_open))
            and mask_argument(getattr(agent, "reset", len)) is None
        )
        self._takes_masks = masks_reach(agent, self._warn, together=self.together)
        self._draws, self._seeds = Draws(self._n_agents), np.zeros(self._n_agents, dtype=np.int64)
        self._starts = np.zeros(self._n_agents, dtype=np.bool_)

    def copy_of(self, number: int) -> Any:
        """Return the agent that plays agent number `number`: the same for all where it remembers nothing."""
        if self.together or self._reset is None:
            return self._agent
        if number not in self._copies:
            # The first one is the agent itself, as where there is one agent.
            self._copies[number] = loads(dumps(self._agent, "the agent")) if self._copies else self._agent
        return self._copies[number]

    def begin(self, seats: Sequence[Seat], seed: int) -> None:
        """Begin the trajectories of agents.

        Args:
            seats: The agents.
            seed: The trajectory's seed for its agents.
        """
        seeds = [seed_of_agent(seed, seat.number) for seat in seats]
        if self.together:
            self._begin_together(seats, seeds)
            return
        for seat, own in zip(seats, seeds, strict=True):
            agent = self.copy_of(seat.number)
            seat.get_action = getattr(agent, "get_action", None)
            if not acts_alone(agent):
                raise UsageError(
                    f"policy {self.name!r} has get_actions alone, and is asked for one agent at a time: it remembers "
                    "something of each, or there can be but one. Give it get_action, too"
                )
            if self._takes_masks:
                seat.get_action = seat.masked(self._find_mask, agent.get_action)
            if (reset := reset_agent_function(agent)) is not None:
                reset(own)

    def _make_room(self, n_agents: int) -> None:
        """Make room for so many agents, and for as many again: any number may appear."""
        if n_agents > self._n_agents:
            more = (0, 2 * n_agents - self._n_agents)
            self._n_agents = 2 * n_agents
            self._draws = self._draws.with_rows(self._n_agents)
            self._seeds, self._starts = np.pad(self._seeds, more), np.pad(self._starts, more)

    def _begin_together(self, seats: Sequence[Seat], seeds: list[int]) -> None:
        self._make_room(1 + max(seat.number for seat in seats))
        if self.is_new:
            self.is_new, self._draws = False, Draws(self._n_agents)
            if self._reset is not None:
                self._reset(seeds[0])
        if "draws" in self._keywords:
            prepared = self._draws.prepare(seeds)
            for position, seat in enumerate(seats):
                self._draws.begin(seat.number, prepared, position)
        for seat, own in zip(seats, seeds, strict=True):
            self._seeds[seat.number], self._starts[seat.number] = own, True

    def ask(
        self, seats: Sequence[Seat], numbers: NDArray[np.int64], observations: Mapping[str, Any],
        actions: dict[str, Any],
    ) -> None:  # fmt: skip
        """Ask for the actions of agents, which have these numbers, together; sets their infos."""
        rows = numbers
        if self._all_rows:
            rows = np.arange(self._n_agents)
            self._starts |= ~np.isin(rows, numbers)  # what is remembered of those who are not there would run on
            own = dict(zip(numbers.tolist(), seats, strict=True))
            asked = [own.get(number, seats[0]) for number in range(self._n_agents)]
        else:
            asked = [*seats]
        shown = [observations[seat.agent_id] for seat in asked]
        assert self.spaces is not None
        keywords = self._values(rows, numbers)
        if self._takes_masks:
            masks = {seat: seat.mask_of(self._find_mask, observations[seat.agent_id]) for seat in seats}
            has_masks = self._find_mask.size is not None
            keywords[ACTION_MASKS] = np.stack([masks[seat] for seat in asked]) if has_masks else None  # type: ignore[misc]
        chosen = self._get_actions(_stacked(self.spaces[0], shown), **keywords)
        if not isinstance(chosen, tuple) or len(chosen) != 2 or not isinstance(chosen[1], dict):
            raise UsageError("get_actions must return a tuple (actions, agent_infos), with agent_infos a dict")
        found, infos = chosen
        if "starts" in self._keywords:
            self._starts[numbers] = False
        places = numbers.tolist() if self._all_rows else range(len(seats))
        singles = _rows_of_actions(self.spaces[1], found, len(shown))
        if infos:
            _check_rows(infos, len(shown))
        for place, seat in zip(places, seats, strict=True):
            actions[seat.agent_id] = singles[place]
            seat.info = info_of_row(infos, place) if infos else {}

    def _values(self, rows: Any, numbers: Any) -> dict[str, Any]:
        """Return what the keywords stand for in this step."""
        values: dict[str, Any] = {}
        if "draws" in self._keywords:
            values["draws"] = self._draws_of(numbers)
        for name, of_all in (("seeds", self._seeds), ("starts", self._starts)):
            if name in self._keywords:
                values[name] = of_all[rows].copy()
        if "slots" in self._keywords:
            values["slots"] = rows
        return values

    def _draws_of(self, numbers: NDArray[np.int64]) -> OfRows:
        """Return what the rows that are asked for draw from, of which those alone draw that act."""
        everybody = len(numbers) == self._n_agents
        if everybody or self._all_rows:
            self._draws.only(None if everybody else np.isin(np.arange(self._n_agents), numbers))
            return self._draws
        return self._draws.of_rows(numbers)


class Players:
    """The agents of an environment, each played by the policy that was chosen for it: stand where an agent stands.

    Args:
        given: `Policies`, or an agent, which plays all.
        env: The environment.
        warn: See `MaskFinder`.

    Attributes:
        given: The same.
        acting: The agents that act in this step, in the order of `MultiAgentEnv.numbers`.
        turn: See `let_act`.
    """

    def __init__(self, given: Any, env: MultiAgentEnv, warn: Warn) -> None:
        self.given = given
        self._is_shared = not isinstance(given, Policies)
        self._chosen = Policies({SHARED: given}) if self._is_shared else given
        self._policies = {name: _Policy(name, agent, warn) for name, agent in self._chosen.agents.items()}
        self._applied: dict[str, tuple[Any, Any]] = {}
        self._seats: dict[str, Seat] = {}
        self._groups: list[tuple[_Policy, list[Seat], NDArray[np.int64]]] = []
        self._grouped: list[Seat] = []
        self.let_act([], None)
        self.move_to(env)

    def move_to(self, env: MultiAgentEnv) -> None:
        """Play in another environment from now on."""
        self._env = env
        self._numbers = env.numbers
        for policy in self._policies.values():
            policy.move_to(env)

    def update(self, update: Any) -> None:
        """Apply an update of the agent, or of policies by name.

        Raises:
            UsageError: The agent takes no such update.
        """
        if isinstance(update, FilterParameters):
            given = update["filter"]
            for name, policy in self._policies.items():
                own = given.get(name) if isinstance(given, Mapping) else given
                if own is not None:
                    policy.take_filter(own)
        elif isinstance(update, PolicyUpdates):
            for name, payloads in update.items():
                self._update_policy(self._policies[name], *payloads)
        elif self._is_shared:
            self._policies[SHARED].update(update)
        else:
            raise UsageError(f"several policies take a dict of updates by policy name, and not {update!r:.60}")

    @property
    def one_by_one(self) -> bool:
        """Whether each policy is asked for one agent at a time."""
        return not any(policy.together for policy in self._policies.values())

    def _update_policy(self, policy: _Policy, agent: Any, parameters: Any) -> None:
        """Apply what was not applied before: updates have those of earlier calls as well."""
        before = self._applied.get(policy.name, (None, None))
        if agent is not None and agent != before[0]:
            policy.update(loads(agent))
            before = (agent, None)
        if parameters is not None and parameters != before[1]:
            policy.update(loads(parameters))
        self._applied[policy.name] = (agent, parameters)

    # ------------------------------------------------------------------ a trajectory

    def begin(self, index: int, seed: int) -> None:
        """Begin a trajectory with the agents that are there after the reset.

        Args:
            index: The trajectory index.
            seed: Its seed for agents.
        """
        self._index, self._seed = index, seed
        self._seats = {}
        for policy in self._policies.values():
            policy.is_new = True
        self._begin_for(self._env.env.agents)

    def _begin_for(self, agent_ids: Sequence[str]) -> None:
        new: dict[str, list[Seat]] = {}
        for agent_id in sorted((it for it in agent_ids if it in self._numbers), key=self._numbers.__getitem__):
            name = self._chosen.name_for(agent_id, self._index)
            policy = self._policies[name]
            policy.join(agent_id)
            seat = self._seats[agent_id] = Seat(agent_id, self._numbers[agent_id], policy)
            new.setdefault(name, []).append(seat)
        for name, seats in new.items():
            self._policies[name].begin(seats, self._seed)

    def seat_of(self, agent_id: str) -> Seat:
        """Return what plays an agent, which begins now if it was not there before."""
        if agent_id not in self._seats:
            self._begin_for([agent_id])
        return self._seats[agent_id]

    def let_act(self, seats: list[Seat], turn: list[str] | None) -> None:
        """Note who acts.

        Args:
            seats: The agents.
            turn: What `MultiAgentEnv.turn` returned, if these are all of them: until it is another list, they act.
        """
        self.acting, self.turn = seats, turn

    def get_action(self, observations: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Choose the actions of those that act.

        Args:
            observations: Observations by agent id.

        Returns:
            Actions by agent id, and the policies' infos by agent id.
        """
        acting = self.acting
        if acting is not self._grouped:
            self._group()
        actions: dict[str, Any] = {}
        for policy, seats, numbers in self._groups:
            if policy.together:
                policy.ask(seats, numbers, observations, actions)
                continue
            for seat in seats:
                try:
                    chosen = seat.get_action(observations[seat.agent_id])  # type: ignore[misc]
                except Exception as error:
                    error.add_note(f"(agent {seat.agent_id!r} was to act)")
                    raise
                if not isinstance(chosen, tuple | list) or len(chosen) != 2:
                    raise wrong_answer(seat)
                actions[seat.agent_id], seat.info = chosen
        if len(self._groups) > 1:
            actions = {seat.agent_id: actions[seat.agent_id] for seat in acting}
        return actions, {seat.agent_id: seat.info for seat in acting}

    def _group(self) -> None:
        groups: dict[_Policy, list[Seat]] = {}
        for seat in self.acting:
            groups.setdefault(seat.policy, []).append(seat)
        self._groups = [(policy, seats, np.array([it.number for it in seats])) for policy, seats in groups.items()]
        self._grouped = self.acting


def wrong_answer(seat: Seat) -> UsageError:
    """Return the error of a `get_action` that returns no action and info."""
    return UsageError(
        f"get_action of policy {seat.policy.name!r} must return (action, agent_info), with agent_info a dict "
        f"(agent {seat.agent_id!r} was to act)"
    )


def refuse_for_several(resets: Resets) -> None:
    """Refuse what a call says of its trajectories that cannot be had of several agents yet.

    Raises:
        UsageError: It is for fragments, or of a sampler with `staleness=1`.
    """
    what = "fragments" if resets.fragments is not None else "staleness=1" if resets.version is not None else ""
    if what:
        raise UsageError(f"{what} cannot be had of environments of several agents yet: sample whole trajectories")


def _stacked(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Return observations as a batch: tree of (n, ...)."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _stacked(child, [each[key] for each in observations]) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        parts = zip(*observations, strict=True)
        return tuple(_stacked(child, part) for child, part in zip(space.spaces, parts, strict=True))
    # As is recorded: graphs and sequences are objects.
    return np.array(observations, dtype=space.dtype) if space.dtype is not None else trees.object_array(observations)


def _rows_of_actions(space: Space[Any], actions: Any, n: int) -> list[Any]:
    """Return the single actions of a batch.

    Raises:
        ActionError: There are not as many as observations.
    """
    try:
        singles = singles_of(space, actions)
    except (IndexError, KeyError, TypeError, ValueError):
        singles = []
    if len(singles) != n:
        raise ActionError(
            f"get_actions must return an action for each of {n} observations, and returned {actions!r:.80}"
        )
    return singles


def _check_rows(infos: Mapping[str, Any], n: int) -> None:
    for key, values in infos.items():
        if isinstance(values, Mapping):
            _check_rows(values, n)
        elif not isinstance(values, np.ndarray | list | tuple) or np.ndim(values) < 1 or len(values) != n:
            raise DataError(f"agent_infos[{key!r}] should have one row for each of {n} observations: {values!r:.60}")
