"""Restore an episode after a loss: apply its actions again, and compare what the environment says."""

from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.awaiting import Pendings
from streamsampler.core.errors import ActionError, UsageError, WorkerError
from streamsampler.data import trees
from streamsampler.data.digests import digest
from streamsampler.data.leaf_rows import Leaf
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, snapshot
from streamsampler.environments.closing import close_env
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.environments.updates import AnyEnv, AnyVectorEnv, EnvUpdate, describe
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import Binding, Cut, End, Script, own_error, trajectory
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import summary_of
from streamsampler.workers.resets import Resets, Standing, reset_one
from streamsampler.workers.vec.rows import singles_of

# ----------------------------------------------------------------------
# Make of an agent's action what its environment gets: a copy, and where that is asked for of the space's dtypes.
#
# An environment may change its action, such as clip it in place. Were that the agent's own array, trajectories would
# depend on those that the worker ran before.
#
# Where an agent returns floats of 64 bits, and the space has 32, an environment that gets the former does something
# that the recorded actions alone cannot repeat: an episode of fragments that is lost with its worker could not be
# restored.


Round = Callable[[Any], Any]


def _unchanged(action: Any) -> Any:
    return action


class Rounding(NamedTuple):
    """How actions get the floats of their space.

    Attributes:
        dtype: What has this dtype need not be looked at; None where nothing need be.
        round: Returns an action with the dtypes of the space: the same object where it has them.
    """

    dtype: np.dtype[Any] | None
    round: Round


AS_GIVEN = Rounding(None, _unchanged)
"""Leaves actions as the agent returned them."""


_UNCHANGEABLE = np.generic, int  # written in the function, `np.generic | int` costs 120 ns in each timestep


def own_copy(value: Any) -> Any:
    """Return a copy of an action, an observation or an info, which those who get it may keep and change."""
    kind = value.__class__
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, _UNCHANGEABLE):
        return value
    if kind is dict:
        return {key: own_copy(part) for key, part in value.items()}
    if kind is tuple:
        return tuple([own_copy(part) for part in value])
    return snapshot(value)


def rounding_for(space: AnySpace) -> Rounding:
    """Return how actions of a space get its floats; `AS_GIVEN` where the space has none."""
    function = _function_for(space, "action")
    if function is None:
        return AS_GIVEN
    # What was unpickled may have a dtype of its own, which actions do not have. And none has the dtype of no bytes.
    return Rounding(np.dtype(space.dtype.type if isinstance(space, gym_spaces.Box) else "V"), function)


def _function_for(space: AnySpace, path: str) -> Round | None:
    if isinstance(space, SpacesOfAgents):
        return _of_agents(space)
    if isinstance(space, gym_spaces.Box) and space.dtype.kind == "f":
        return _of_floats(Leaf(space, path, ActionError))
    if isinstance(space, gym_spaces.Dict):
        of_keys = {key: _function_for(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
        functions: dict[Any, Round] = {key: function for key, function in of_keys.items() if function is not None}
    elif isinstance(space, gym_spaces.Tuple):
        of_parts = [_function_for(child, f"{path}[{number}]") for number, child in enumerate(space.spaces)]
        functions = {number: function for number, function in enumerate(of_parts) if function is not None}
    else:
        return None
    return _of_parts(functions) if functions else None


def _of_floats(leaf: Leaf) -> Round:
    dtype, shape, generic = leaf.dtype, leaf.shape, leaf.dtype.type

    def rounded(value: Any) -> Any:
        if value.__class__ is np.ndarray:
            if value.dtype == dtype:
                return value
            if shape and value.shape == shape and value.dtype.kind == "f":
                # What is too large becomes infinite here; the recorder has it as it was, and raises.
                return value.astype(dtype)
        elif value.__class__ is generic:
            return value
        return leaf.convert(value)[()]

    return rounded


def _of_agents(spaces: SpacesOfAgents) -> Round:
    """Return what changes the actions of those agents that act."""
    functions: dict[str, Round | None] = {}

    def rounded(actions: Any) -> Any:
        for agent in actions.keys() - functions.keys():
            functions[agent] = _function_for(spaces[agent], "action")
        return {
            agent: action if (function := functions[agent]) is None else function(action)
            for agent, action in actions.items()
        }

    return rounded


def _of_parts(functions: Mapping[Any, Round]) -> Round:
    """Return what changes the parts of a Dict or Tuple that have floats."""

    def rounded(action: Any) -> Any:
        parts = {key: function(action[key]) for key, function in functions.items()}
        if all(part is action[key] for key, part in parts.items()):
            return action
        if isinstance(action, Mapping):
            return {**action, **parts}
        return tuple(parts.get(number, part) for number, part in enumerate(action))

    return rounded


# ----------------------------------------------------------------------


_LARGE_ROW = 512
"""From so many bytes of a row on, a row's words are added up with weights first: crc32 takes 26 µs for an image of 28
kB, and this a twentieth of it. So each byte of each observation can be compared, whatever its size: an environment that
differs may do so in few observations, or late."""


class AbandonedError(Exception):
    """The call ended while an episode was being restored.

    Args:
        ran: How many timesteps were run for that.
    """

    def __init__(self, ran: int) -> None:
        super().__init__("the call ended meanwhile")
        self.ran = ran


class NotRestoredError(Exception):
    """An episode came out differently when its actions were applied again, or something raised.

    Args:
        why: What is wrong.
        ran: How many timesteps were run for that.
    """

    def __init__(self, why: str, ran: int = 0) -> None:
        super().__init__(why)
        self.ran = ran


@contextlib.contextmanager
def no_failure(whose: str) -> Iterator[None]:
    """Turn what user code raises in the block into a `NotRestoredError`, since not the call fails, but the episode.

    A `WorkerError` is no such thing: it is about processes, or about other environments that are in them.

    Args:
        whose: Who raises, such as "its environment".
    """
    try:
        yield
    except (AbandonedError, NotRestoredError, WorkerError):
        raise
    except (Exception, SystemExit) as error:
        raise NotRestoredError(f"{whose} raised {summary_of(error)}") from error


class Compared(NamedTuple):
    """The arrays that are compared after a loss.

    Attributes:
        timesteps: Those of all timesteps that were recorded, (t, ...): the rewards, and the leaves of observations.
        last: The leaves of last observations, (n, ...).
    """

    timesteps: list[Array]
    last: list[Array]


def compared_of(rollouts: Rollouts) -> Compared:
    """Return the arrays of rollouts that are compared after a loss."""
    observations, last = (
        [leaf for _, leaf in trees.leaves(tree)] for tree in (rollouts.observations, rollouts.last_observations)
    )
    return Compared([rollouts.rewards, *observations], last)


class OfAgent(NamedTuple):
    """What one of several agents did in an episode.

    Attributes:
        agent: Its id, or its number.
        arrays: Those of its timesteps: the rewards, and the leaves of observations.
    """

    agent: Any
    arrays: list[Array]


def compared_of_agents(rollouts: Rollouts) -> dict[int, list[OfAgent]]:
    """Return the arrays of each of several agents that are compared after a loss, by position of the episode."""
    found: dict[int, list[OfAgent]] = {}
    for played in rollouts.policies:
        compared, ends = compared_of(played.rollouts), np.cumsum([0, *played.rollouts.lengths]).tolist()
        owners = zip(played.episodes.tolist(), played.agents.tolist(), strict=True)
        for place, (episode, number) in enumerate(owners):
            agent = played.known[number] if played.known else number
            arrays = [array[ends[place] : ends[place + 1]] for array in compared.timesteps]
            found.setdefault(episode, []).append(OfAgent(agent, arrays))
    return found


class Digests:
    """The digests of an episode's observations and rewards, which grow with it, in whatever pieces they come."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._of_agents: dict[Any, list[int]] = {}

    def add(self, compared: Compared, start: int, stop: int, agents: Iterable[OfAgent] = ()) -> None:
        """Take in the episode's next timesteps.

        Args:
            compared: What `compared_of` returns.
            start: The first of these timesteps among all that were recorded.
            stop: The one after the last.
            agents: What each of several agents did in them.
        """
        self._sums = _digests([array[start:stop] for array in compared.timesteps], self._sums)
        for agent, arrays in agents:
            self._of_agents[agent] = _digests(arrays, self._of_agents.get(agent, []))

    def values(self, compared: Compared, position: int) -> tuple[int, ...]:
        """Return the digests so far, and of what the last action led to, from which the episode goes on.

        Args:
            compared: What `compared_of` returns.
            position: The position of the episode among all that were recorded.
        """
        of_rewards, *sums = self._sums
        rows = slice(position, position + 1)
        last = [_digest(array[rows], so_far) for array, so_far in zip(compared.last, sums, strict=True)]
        agents = [number for agent in sorted(self._of_agents) for number in self._of_agents[agent]]
        return of_rewards, *last, *agents


def _digests(arrays: Sequence[Array], so_far: list[int]) -> list[int]:
    return [_digest(array, before) for array, before in zip(arrays, so_far or [0] * len(arrays), strict=True)]


def _digest(rows: Array, so_far: int) -> int:
    """Return the digest of some rows and of those before, of which it takes the digest: another one if a byte is."""
    if rows.dtype.hasobject:
        for row in rows:
            so_far = digest((row,), so_far)
        return so_far
    if rows.nbytes >= _LARGE_ROW * len(rows) > 0:
        rows = _weighted_sums(rows)
    return zlib.crc32(np.ascontiguousarray(rows), so_far)  # type: ignore[arg-type]


def _weighted_sums(rows: Array) -> Array:
    """Return the sum of each row's words, multiplied by weights."""
    as_bytes = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    n_words, n_left = divmod(as_bytes.shape[1], 8)
    weights = _weights(n_words + 1)
    # `einsum`, because it takes half the time of `@`, which is made for floats.
    sums: Array = np.einsum("ij,j->i", as_bytes[:, : 8 * n_words].view(np.uint64), weights[:-1])
    if n_left:
        left = np.zeros((len(rows), 8), np.uint8)
        left[:, :n_left] = as_bytes[:, 8 * n_words :]
        sums += left.view(np.uint64)[:, 0] * weights[-1]
    return sums


@functools.cache
def _weights(n: int) -> NDArray[np.uint64]:
    """Return n odd numbers, the same in each process: multiplied by an odd number, a word that differs still does."""
    return np.random.RandomState(0).randint(0, 1 << 63, n, np.uint64) | np.uint64(1)


class RestoredEpisode(NamedTuple):
    """An episode that was restored.

    Attributes:
        script: Its script, cut at the observation that the next action is chosen on.
        end: Where the last action led.
        digests: Of the observations and rewards so far.
        n_timesteps: The timesteps that were run for it.
    """

    script: Script
    end: End
    digests: Digests
    n_timesteps: int


def apply_actions(
    env: Any,
    seed: int,
    standing: Standing,
    row: WorkerRow,
    spaces: Any,
    version: int,
    limit: int | None = None,
    recorder: RolloutRecorder | None = None,
    begin: Callable[[int], None] | None = None,
) -> Pendings[RestoredEpisode]:
    """Drive a new script with an episode's actions.

    Args:
        env: The environment.
        seed: The episode's seed; the global generators are seeded with it already.
        standing: Where the episode stands, with its actions, (n, *A), and options.
        row: The worker's row of the board, where progress shows.
        spaces: Observation and action space.
        version: The agent version in hand: where it may not run any more, nothing is restored.
        limit: The number of timesteps that the episode may have; None for any.
        recorder: Records it; None for a recorder of one agent.
        begin: Lets several agents begin after the reset.

    Raises:
        NotRestoredError: What the environment says is not what it said before; or it raised.
        AbandonedError: The version may not run any more.

    Yields:
        What the environment returned, which may have to be awaited.
    """
    recorder, state = recorder or RolloutRecorder(*spaces), standing.state
    assert state is not None
    script = trajectory(
        lambda seed: reset_one(env, Resets(options=standing.options), 0, seed), Binding(env.step, recorder, waits=True),
        seed, begin, limit,
    )  # fmt: skip
    rounded = rounding_for(env.action_space).round
    try:
        with no_failure("its environment"):
            end = yield from _applied(
                script, map(rounded, singles_of(spaces[1], standing.actions)), recorder, row, version
            )
            recorder.end(end.observation, False, False)
            rollouts = recorder.finish()
            compared = compared_of(rollouts)
    except NotRestoredError as error:
        error.ran = len(recorder.float_rewards)
        raise
    n, digests = len(recorder.float_rewards), Digests()
    digests.add(compared, 0, n, compared_of_agents(rollouts).get(0, ()))
    if n != state.length or digests.values(compared, 0) != state.digests:
        raise NotRestoredError("the same actions did not lead to the same observations and rewards", n)
    return RestoredEpisode(script, end, digests, n)


def _applied(
    script: Script, actions: Iterable[Any], recorder: RolloutRecorder, row: WorkerRow, version: int
) -> Pendings[End]:
    """Drive a script with actions; return its end, or where it is cut after the last one."""
    try:
        pending = next(script)
        script.send((yield pending))
        row.set_phase(Phase.STEP)
        for n, action in enumerate(actions, 1):
            recorder.record_action(action)
            pending = script.send(own_copy(action))
            try:
                script.send((yield pending))
            except StopIteration as stopped:
                end: End = stopped.value
                return end
            row.words[row.timesteps_word] = n
            if row.attention and not row.may_run(version):
                raise AbandonedError(n)
        cut: End = script.throw(Cut())
    except RuntimeError as error:
        raise own_error(error) from None
    return cut


# ----------------------------------------------------------------------
# Refuse environments that a factory hands out again: what steps one would step the other.
#
# Whole trajectories, one after the other, do without; several that run at the same time do not. Nor do episodes that
# go on from call to call: of these, the workers of one process take turns.


_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Who runs episodes in an environment, which the owner keeps alive, so that no other one has its id."""


def are_one(one: Any, other: Any) -> bool:
    """Return whether two environments are the same below their wrappers."""
    return one.unwrapped is other.unwrapped


def refuse_copies_of(env: Any, others: Iterable[Any], update: EnvUpdate) -> None:
    """Refuse an environment that is one of others.

    Args:
        env: The environment.
        others: The others.
        update: What gave it.

    Raises:
        UsageError: It is one of them.
    """
    if any(are_one(env, other) for other in others):
        raise _error(env, update)


def claim(env: AnyEnv, owner: Any, update: Callable[[], EnvUpdate]) -> None:
    """Claim an environment for the episodes that go on in it.

    Args:
        env: The environment.
        owner: Who keeps it, until `release`.
        update: Returns what gave the environment.

    Raises:
        UsageError: Other episodes go on in it in this process.
    """
    key = id(env.unwrapped)
    if key in _owners:
        raise _error(env, update())
    _owners[key] = owner


def release(owner: Any) -> None:
    """Give up all environments that `owner` has claimed."""
    for key in [key for key, known in _owners.items() if known is owner]:
        _owners.pop(key, None)


def close_all(
    envs: Iterable[AnyEnv | AnyVectorEnv], but: Sequence[Any] = (), close: Callable[[Any], None] = close_env
) -> None:
    """Close environments; whatever they raise comes after all are closed.

    Args:
        envs: The environments.
        but: Those among them that stay open.
        close: Closes an environment.
    """
    with contextlib.ExitStack() as closing:
        for env in envs:
            if not any(env is kept for kept in but):
                closing.callback(close, env)


def _error(env: Any, update: EnvUpdate) -> UsageError:
    return UsageError(
        f"{describe(update)} must make a new environment each time: it gave one that is stepped already, the same "
        f"{type(env.unwrapped).__qualname__} again, and several are to be stepped side by side"
    )
