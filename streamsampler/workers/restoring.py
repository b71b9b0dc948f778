"""Restore a lost episode: apply its actions in a new script, and compare digests of observations and rewards.

Also: actions as the environment receives them (`Rounding`, `own_copy`), and the owners of environments with suspended
episodes (`claim`, `release`).
"""

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
from streamsampler.workers.resets import EpisodeCheckpoint, Resets, reset_one
from streamsampler.workers.vec.rows import singles_of

# An environment receives a copy of the agent's action: it may modify the action, for example clip it in place, and with
# the agent's own array later trajectories would depend on earlier ones.
#
# For fragments the copy also has the space's dtype. If the agent returned float64 for a float32 space, the recorded
# float32 action would not repeat the environment's computation, and a lost episode could not be restored.


Round = Callable[[Any], Any]


def _unchanged(action: Any) -> Any:
    return action


class Rounding(NamedTuple):
    """Converts actions to the floats of their space.

    Attributes:
        dtype: Actions of this dtype need no conversion; None if no action does.
        round: Returns an action with the dtypes of the space: the same object if it has them.
    """

    dtype: np.dtype[Any] | None
    round: Round


AS_GIVEN = Rounding(None, _unchanged)
"""Converts nothing."""


_UNCHANGEABLE = np.generic, int  # written in the function, `np.generic | int` costs 120 ns in each timestep


def own_copy(value: Any) -> Any:
    """Return a copy of an action, an observation or an info, for a receiver which may store and modify it."""
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
    """Return the conversion of a space's actions; `AS_GIVEN` for a space without floats."""
    function = _function_for(space, "action")
    if function is None:
        return AS_GIVEN
    # A new dtype object, since that of an unpickled space is not identical to the actions'. No action has dtype "V".
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
                # Values out of range become infinite here; the recorder receives the original, and raises.
                return value.astype(dtype)
        elif value.__class__ is generic:
            return value
        return leaf.convert(value)[()]

    return rounded


def _of_agents(spaces: SpacesOfAgents) -> Round:
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
    def rounded(action: Any) -> Any:
        parts = {key: function(action[key]) for key, function in functions.items()}
        if all(part is action[key] for key, part in parts.items()):
            return action
        if isinstance(action, Mapping):
            return {**action, **parts}
        return tuple(parts.get(number, part) for number, part in enumerate(action))

    return rounded


_LARGE_ROW = 512
"""Rows of at least this many bytes are reduced to a weighted sum of their words first: crc32 takes 26 µs for an image
of 28 kB, the sum a twentieth. Thus every byte is compared: an environment may differ in few observations, or late."""


class AbandonedError(Exception):
    """The call ended while an episode was being restored, after `ran` timesteps."""

    def __init__(self, ran: int) -> None:
        super().__init__("the call ended before the episode was restored")
        self.ran = ran


class NotRestoredError(Exception):
    """An episode's actions led to another result when applied again, or user code raised, after `ran` timesteps."""

    def __init__(self, why: str, ran: int = 0) -> None:
        super().__init__(why)
        self.ran = ran


@contextlib.contextmanager
def no_failure(whose: str) -> Iterator[None]:
    """Replace user code's exceptions in the block by `NotRestoredError`: the episode is lost, and the call continues.

    A `WorkerError` passes through: it concerns processes, or other environments in them.
    """
    try:
        yield
    except (AbandonedError, NotRestoredError, WorkerError):
        raise
    except (Exception, SystemExit) as error:
        raise NotRestoredError(f"{whose} raised {summary_of(error)}") from error


class ComparedArrays(NamedTuple):
    """Holds the arrays which are compared after a loss.

    Attributes:
        timesteps: The rewards and the leaves of observations, (t, ...).
        last: The leaves of last observations, (n, ...).
    """

    timesteps: list[Array]
    last: list[Array]


def compared_of(rollouts: Rollouts) -> ComparedArrays:
    observations, last = (
        [leaf for _, leaf in trees.leaves(tree)] for tree in (rollouts.observations, rollouts.last_observations)
    )
    return ComparedArrays([rollouts.rewards, *observations], last)


class ArraysOfAgent(NamedTuple):
    """Holds the rewards and the leaves of observations of one of several agents in an episode."""

    agent: Any
    arrays: list[Array]


def compared_of_agents(rollouts: Rollouts) -> dict[int, list[ArraysOfAgent]]:
    found: dict[int, list[ArraysOfAgent]] = {}
    for played in rollouts.policies:
        compared, ends = compared_of(played.rollouts), np.cumsum([0, *played.rollouts.lengths]).tolist()
        owners = zip(played.episodes.tolist(), played.agents.tolist(), strict=True)
        for place, (episode, number) in enumerate(owners):
            agent = played.known[number] if played.known else number
            arrays = [array[ends[place] : ends[place + 1]] for array in compared.timesteps]
            found.setdefault(episode, []).append(ArraysOfAgent(agent, arrays))
    return found


class Digests:
    """Accumulates digests of an episode's observations and rewards, in pieces of any size."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._of_agents: dict[Any, list[int]] = {}

    def add(self, compared: ComparedArrays, start: int, stop: int, agents: Iterable[ArraysOfAgent] = ()) -> None:
        """Add the episode's next timesteps."""
        self._sums = _digests([array[start:stop] for array in compared.timesteps], self._sums)
        for agent, arrays in agents:
            self._of_agents[agent] = _digests(arrays, self._of_agents.get(agent, []))

    def values(self, compared: ComparedArrays, position: int) -> tuple[int, ...]:
        """Return the digests so far, including the observation after the last action."""
        of_rewards, *sums = self._sums
        rows = slice(position, position + 1)
        last = [_digest(array[rows], so_far) for array, so_far in zip(compared.last, sums, strict=True)]
        agents = [number for agent in sorted(self._of_agents) for number in self._of_agents[agent]]
        return of_rewards, *last, *agents


def _digests(arrays: Sequence[Array], so_far: list[int]) -> list[int]:
    return [_digest(array, before) for array, before in zip(arrays, so_far or [0] * len(arrays), strict=True)]


def _digest(rows: Array, so_far: int) -> int:
    """Return the digest of earlier rows, `so_far`, continued by these rows. A change of any byte changes it."""
    if rows.dtype.hasobject:
        for row in rows:
            so_far = digest((row,), so_far)
        return so_far
    if rows.nbytes >= _LARGE_ROW * len(rows) > 0:
        rows = _weighted_sums(rows)
    return zlib.crc32(np.ascontiguousarray(rows), so_far)  # type: ignore[arg-type]


def _weighted_sums(rows: Array) -> Array:
    as_bytes = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    n_words, n_left = divmod(as_bytes.shape[1], 8)
    weights = _weights(n_words + 1)
    # `einsum` takes half the time of `@`, which is optimised for floats only.
    sums: Array = np.einsum("ij,j->i", as_bytes[:, : 8 * n_words].view(np.uint64), weights[:-1])
    if n_left:
        left = np.zeros((len(rows), 8), np.uint8)
        left[:, :n_left] = as_bytes[:, 8 * n_words :]
        sums += left.view(np.uint64)[:, 0] * weights[-1]
    return sums


@functools.cache
def _weights(n: int) -> NDArray[np.uint64]:
    """Return n odd numbers, equal in each process: multiplication by an odd number maps different words differently."""
    return np.random.RandomState(0).randint(0, 1 << 63, n, np.uint64) | np.uint64(1)


class RestoredEpisode(NamedTuple):
    """Holds a restored episode and the number of timesteps run for it.

    Attributes:
        script: Its script, suspended at the observation for the next action.
        end: The result of the last action.
        digests: Digests of the observations and rewards so far.
    """

    script: Script
    end: End
    digests: Digests
    n_timesteps: int


def apply_actions(
    env: Any,
    seed: int,
    standing: EpisodeCheckpoint,
    row: WorkerRow,
    spaces: Any,
    version: int,
    limit: int | None = None,
    recorder: RolloutRecorder | None = None,
    begin: Callable[[int], None] | None = None,
) -> Pendings[RestoredEpisode]:
    """Drive a new script with an episode's recorded actions.

    The caller has seeded the global generators. `begin` starts several agents after the reset.

    Raises:
        NotRestoredError: Observations or rewards differ from the recorded ones, or user code raised.
        AbandonedError: The version may no longer run.

    Yields:
        Results of the environment, which may be pending.
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
    """Drive a script with actions; return its end, or its cut after the last action."""
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


# A factory may return the same environment again. Whole trajectories in sequence can share it. Those which run at
# the same time cannot, nor can suspended episodes, since several workers of a process take turns.


_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The owner of each environment by id. Owners keep their environments alive, so ids stay unique."""


def are_one(one: Any, other: Any) -> bool:
    return one.unwrapped is other.unwrapped


def refuse_copies_of(env: Any, others: Iterable[Any], update: EnvUpdate) -> None:
    if any(are_one(env, other) for other in others):
        raise _error(env, update)


def claim(env: AnyEnv, owner: Any, update: Callable[[], EnvUpdate]) -> None:
    """Claim an environment for an owner's episodes, until `release`.

    Raises:
        UsageError: The environment has another owner in this process.
    """
    key = id(env.unwrapped)
    if key in _owners:
        raise _error(env, update())
    _owners[key] = owner


def release(owner: Any) -> None:
    for key in [key for key, known in _owners.items() if known is owner]:
        _owners.pop(key, None)


def close_all(
    envs: Iterable[AnyEnv | AnyVectorEnv], but: Sequence[Any] = (), close: Callable[[Any], None] = close_env
) -> None:
    """Close environments; raise errors after all are closed."""
    with contextlib.ExitStack() as closing:
        for env in envs:
            if not any(env is kept for kept in but):
                closing.callback(close, env)


def _error(env: Any, update: EnvUpdate) -> UsageError:
    return UsageError(
        f"{describe(update)} must make a new environment each time, but it returned the same "
        f"{type(env.unwrapped).__qualname__} again: environments which are stepped side by side must be distinct"
    )
