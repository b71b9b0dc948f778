"""What the parent keeps of the episodes that go on, so that an environment can be restored, and how it is. No I/O."""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.data.digests import digest
from streamsampler.data.trees import map_tree, map_trees, same
from streamsampler.environments.parameters import Parameters, SetParameters
from streamsampler.rollouts.script import Binding, trajectory
from streamsampler.stepping.rows import Rows
from streamsampler.workers.restoring import NotRestoredError, own_copy
from streamsampler.workers.vec.rows import row_of

# ----------------------------------------------------------------------
# Parameters of environments, by number: an episode that is restored has those that it began with. Pure: no I/O.


@dataclass(frozen=True)
class NumberedParameters:
    """What resets of an environment set.

    Attributes:
        number: From 1 on, in the order in which they were given; rows of environments have 0 for none.
        payload: The `SetParameters`, pickled.
    """

    number: int
    payload: Payload


class ParameterSets:
    """What was given to the environments of a manager.

    Attributes:
        latest: What their resets set from now on, by environment.
    """

    def __init__(self) -> None:
        self.latest: dict[int, NumberedParameters] = {}
        self._values: dict[int, Parameters] = {}
        self._known: dict[int, NumberedParameters] = {}
        self._n_given = 0

    def set(self, env_ids: Iterable[int], update: SetParameters, in_use: Iterable[int]) -> None:
        """Let environments have other parameters, besides those of other names that they have.

        Args:
            env_ids: The environments.
            update: The parameters.
            in_use: The numbers of all episodes that go on.

        Raises:
            SerializationError: They cannot be pickled.
        """
        given: dict[int, NumberedParameters] = {}  # by the number of those before
        for env_id in env_ids:
            before = self.latest[env_id].number if env_id in self.latest else 0
            if before not in given:
                given[before] = self._new(SetParameters({**self._values.get(before, {}), **update.parameters},
                                                        info_key=update.info_key))  # fmt: skip
            self.latest[env_id] = given[before]
        kept = {*in_use, *(numbered.number for numbered in self.latest.values())}
        self._known = {number: numbered for number, numbered in self._known.items() if number in kept}
        self._values = {number: values for number, values in self._values.items() if number in kept}

    def _new(self, update: SetParameters) -> NumberedParameters:
        payload = dumps(update, "parameters").owned()
        self._n_given += 1
        self._values[self._n_given] = update.parameters
        numbered = self._known[self._n_given] = NumberedParameters(self._n_given, payload)
        return numbered

    def numbered(self, number: int) -> NumberedParameters | None:
        """Return those of a number; None for 0."""
        return self._known[number] if number else None


# ----------------------------------------------------------------------
# What `call` and `set_attr` did to environments, to do it again with those that replace them. Pure: no I/O.


BEFORE = -1
"""The timestep of what was requested before the reset that began the episode."""

_MOST = 1_000

TOO_MANY = (
    f"more than {_MOST:,} times its methods were called or its attributes set, which an environment that is made anew "
    "would have to repeat: use get_attr for what changes nothing, and options of resets"
)


class PastRequest(NamedTuple):
    """A call of a method, or the setting of an attribute.

    Attributes:
        timestep: How many timesteps the episode had by then; `BEFORE` for none, and no reset.
        kind: "call" or "set".
        name: Of the method or attribute.
        arguments: What it was called with, or set to.
        raised: Whether it raised; what it did before that is repeated, too.
        digest: Of its result; None where it has none that is compared.
        is_moved: Whether it was requested in an earlier episode, so that it is repeated before the reset.
    """

    timestep: int
    kind: str
    name: str
    arguments: Any
    raised: bool = False
    digest: bytes | None = None
    is_moved: bool = False


def digest_of_result(value: Any) -> bytes | None:
    """Return the digest of what a method returned, the same before and after it was pickled; None if it cannot be."""
    if value is None:
        return None
    try:
        payload = dumps(loads(dumps(value, "a result")), "a result")
    except Exception:  # anything: it is user code
        return None
    digest = hashlib.blake2b(payload.data, digest_size=16)
    for buffer in payload.buffers:
        digest.update(buffer)
    return digest.digest()


class PastRequests:
    """The requests that may have changed each environment.

    Args:
        n_envs: How many environments there are.
    """

    def __init__(self, n_envs: int) -> None:
        self._of: list[list[tuple[int, PastRequest]]] = [[] for _ in range(n_envs)]  # with the episode's number

    def record(self, env_id: int, episode: int, request: PastRequest) -> bool:
        """Keep a request that was carried out in an episode; return whether it is the first one too many."""
        kept = self._of[env_id]
        if len(kept) == _MOST:
            kept[:] = _needed(kept, episode)
        if len(kept) <= _MOST:
            kept.append((episode, request._replace(arguments=copy.deepcopy(request.arguments))))
            return len(kept) > _MOST
        return False

    def to_repeat(self, env_id: int, episode: int | None) -> Sequence[PastRequest]:
        """Return the requests to an environment, in their order, as they are to be repeated.

        Args:
            env_id: The environment.
            episode: The number of the episode that is to go on; None for none.

        Raises:
            NotRestoredError: There were too many.
        """
        kept = self._of[env_id]
        if len(kept) > _MOST:
            raise NotRestoredError(TOO_MANY)
        return [it if number == episode else it._replace(timestep=BEFORE, is_moved=True) for number, it in kept]


def _needed(kept: Sequence[tuple[int, PastRequest]], episode: int) -> list[tuple[int, PastRequest]]:
    """Return the requests without attributes that were set in earlier episodes, and to something else since."""
    needed = []
    set_later: set[str] = set()
    for number, request in reversed(kept):
        if request.kind == "call":
            set_later.clear()  # it may have looked at them
        elif number != episode:
            if request.name in set_later:
                continue
            set_later.add(request.name)
        needed.append((number, request))
    return needed[::-1]


# ----------------------------------------------------------------------


_FIRST_CAPACITY = 64
_TOGETHER = 64
"""So many results are put into their places at once, which takes a tenth of what doing it with each takes."""


@dataclass(frozen=True)
class RestoreOrder:
    """Make an environment what it was: n timesteps after the reset of its episode.

    Attributes:
        env_id: The environment.
        remake: Whether it is there, and to be made anew.
        seed: The seed of the episode's reset; None if there is no episode, and the environment is made anew only.
        actions: Leaves of (n, ...).
        rewards: (n,) what these actions led to.
        slot: Where the last observation lies in the environment's rows.
        digests: (n + 1,) of the observations, or of all but the last one; None where no digests are kept.
        requests: What is to be repeated that was requested before and between these actions.
        options: Those of the reset, where they are forgotten since; None where they are those that are remembered.
        parameters: Those that the reset set; None where it set none.
        carried: What of the last observation does not lie in memory that is shared.
    """

    env_id: int
    remake: bool = False
    seed: int | None = None
    actions: Any = None
    rewards: NDArray[np.float64] | None = None
    slot: int = 0
    digests: NDArray[np.uint32] | None = None
    options: dict[str, Any] | None = None
    parameters: NumberedParameters | None = None
    requests: Sequence[PastRequest] = ()
    carried: Sequence[Any] = ()


class Histories:
    """The seed, the actions and the rewards of the episode that goes on in each environment.

    Row t of an array is about timestep t of each environment's episode, from 1. Row 0 takes what is not kept.

    Args:
        rows: The rows of the environments.
        n_envs: How many environments there are.
        limit: How many timesteps of an episode are kept at most.
        with_digests: Whether digests of all observations are kept.
        parameters: What resets set.

    Attributes:
        limit: As above.
        seeds: The seed of each environment's episode.
        set_numbers: The number of the parameters of each environment's episode.
    """

    def __init__(self, rows: Rows, n_envs: int, limit: int, with_digests: bool, parameters: ParameterSets) -> None:
        self.limit = limit
        self.seeds = [0] * n_envs
        self.set_numbers = [0] * n_envs
        self._parameters = parameters
        self._rows = rows
        self._capacity = 0
        self._actions: Any = map_tree(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), rows.actions)
        self._rewards = np.zeros((0, n_envs))
        self._digests = np.zeros((0, n_envs), np.uint32) if with_digests else None
        self._recent: list[tuple[NDArray[np.int64], NDArray[np.int64], Any, NDArray[np.float64]]] = []
        self._rounds: list[tuple[Any, NDArray[np.float64]]] = []
        self._grow(min(limit, _FIRST_CAPACITY) + 1)

    def _grow(self, capacity: int) -> None:
        def grown(rows: Any) -> Any:
            longer = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
            longer[: len(rows)] = rows
            return longer

        self._actions = map_tree(grown, self._actions)
        self._rewards = grown(self._rewards)
        self._digests = None if self._digests is None else grown(self._digests)
        self._capacity = capacity

    def _places(self, timesteps: NDArray[np.int64]) -> NDArray[np.int64]:
        most = int(timesteps.max())
        if most > self.limit:
            timesteps = np.where(timesteps > self.limit, 0, timesteps)
            most = int(timesteps.max())
        if most >= self._capacity:
            self._grow(min(2 * most, self.limit) + 1)
        return timesteps

    def handed_out(
        self, ids: NDArray[np.int64], timesteps: NDArray[np.int64], actions: Any, rewards: NDArray[np.float64],
        observations: Any,
    ) -> None:  # fmt: skip
        """Keep what is handed to the caller: of K environments, leaves of (K, ...); timestep 0 is a reset's.

        The timesteps are kept as they are, and of all else copies: it is the caller's from now on.
        """
        self._recent.append((ids, timesteps, map_tree(np.copy, actions), rewards.copy()))
        if len(self._recent) == _TOGETHER:
            self._settle()
        if self._digests is not None:
            self._settle()
            for row, (env_id, timestep) in enumerate(zip(ids.tolist(), timesteps.tolist(), strict=True)):
                if timestep <= self.limit:
                    self._digests[timestep, env_id] = digest(row_of(observations, row))

    @property
    def takes_rounds(self) -> bool:
        """Whether results of all environments may be kept without their timesteps and observations."""
        return self._digests is None

    def keep_round(self, actions: Any, rewards: NDArray[np.float64]) -> None:
        """Keep copies of the results of all environments, leaves of (n_envs, ...), until `settle_rounds`."""
        kept = actions.copy() if actions.__class__ is np.ndarray else map_tree(np.copy, actions)
        self._rounds.append((kept, rewards.copy()))

    def settle_rounds(self, timesteps: NDArray[np.int64]) -> None:
        """Put the rounds into their places, given the timesteps of all environments after the last one."""
        self._settle()  # what is older
        rounds, self._rounds = self._rounds, []
        if rounds:
            all_actions, all_rewards = zip(*rounds, strict=True)
            before = np.arange(len(rounds) - 1, -1, -1)[:, None]
            # Of an episode that has ended since then nothing is needed.
            index = self._places(np.maximum(timesteps - before, 0)), np.arange(len(timesteps))
            self._rewards[index] = np.stack(all_rewards)
            map_trees(lambda kept, *each: kept.__setitem__(index, np.stack(each)), self._actions, *all_actions)

    def _settle(self) -> None:
        """Put what was handed out into its place."""
        if not self._recent:
            return
        recent, self._recent = self._recent, []
        all_ids, all_timesteps, all_actions, all_rewards = zip(*recent, strict=True)
        ids, timesteps = np.concatenate(all_ids), np.concatenate(all_timesteps)
        if len(ids):
            index = self._places(timesteps), ids
            self._rewards[index] = np.concatenate(all_rewards)
            map_trees(lambda kept, *each: kept.__setitem__(index, np.concatenate(each)), self._actions, *all_actions)

    def begin(self, env_id: int) -> None:
        """Begin an episode, with the seed and the parameters in the environment's rows."""
        self.seeds[env_id] = int(self._rows.seeds[env_id])
        self.set_numbers[env_id] = int(self._rows.parameters[env_id])

    def order(self, env_id: int, n: int, slot: int, remake: bool) -> RestoreOrder:
        """Return the order for an environment of which n timesteps were handed out, and that is wanted as it was then.

        Args:
            env_id: The environment.
            n: As above.
            slot: Where the last of these observations lies.
            remake: Whether the environment is there, and to be made anew.

        Raises:
            NotRestoredError: So many are not kept.
        """
        return self._order(env_id, n, slot, n + 1, remake)

    def order_of_result(self, env_id: int, n: int, remake: bool) -> RestoreOrder:
        """Return the order for an environment whose n-th timestep has arrived, and is not handed out.

        Raises:
            NotRestoredError: So many are not kept.
        """
        if n <= self.limit:
            self._settle()
            self._places(np.array([n]))
            self._rewards[n, env_id] = self._rows.rewards[env_id]
            map_trees(lambda kept, row: kept[n].__setitem__(env_id, row[env_id]), self._actions, self._rows.actions)
        return self._order(env_id, n, int(self._rows.slots[env_id]), n, remake)

    def order_of_reset(self, env_id: int, remake: bool) -> RestoreOrder:
        """Return the order for an environment whose reset has arrived, and is not handed out."""
        order = self._order(env_id, 0, int(self._rows.slots[env_id]), 0, remake)
        parameters = self._parameters.numbered(int(self._rows.parameters[env_id]))
        return replace(order, seed=int(self._rows.seeds[env_id]), parameters=parameters)

    def _order(self, env_id: int, n: int, slot: int, n_digests: int, remake: bool) -> RestoreOrder:
        if n > self.limit:
            raise NotRestoredError(
                f"its episode has {n:,} timesteps, and restore_limit is {self.limit:,}: give a larger one"
            )
        self._settle()
        actions = map_tree(lambda leaf: leaf[1 : n + 1, env_id].copy(), self._actions)
        rewards = self._rewards[1 : n + 1, env_id].copy()
        digests = None if self._digests is None else self._digests[:n_digests, env_id].copy()
        parameters = self._parameters.numbered(self.set_numbers[env_id])
        return RestoreOrder(
            env_id, remake, self.seeds[env_id], actions=actions, rewards=rewards, slot=slot, digests=digests,
            parameters=parameters, carried=self._rows.carried_observation(slot, env_id),
        )  # fmt: skip


# ----------------------------------------------------------------------
# Make an environment what it was, where it lives: apply the actions of its episode again, and compare.


def replay(
    env: Any, order: RestoreOrder, rows: Rows, options: dict[str, Any] | None, repeat: Callable[[PastRequest], None]
) -> Iterator[None]:
    """Reset an environment, apply the actions of an order, and compare what it returns bit by bit.

    Args:
        env: The environment.
        order: What it is to become; it has an episode.
        rows: Where the last observation lies.
        options: Those of the reset.
        repeat: Repeats a request.

    Yields:
        After the reset, and after each timestep.

    Raises:
        NotRestoredError: It does not return what it returned before.
    """
    assert order.seed is not None
    assert order.rewards is not None
    requests: dict[int, list[PastRequest]] = defaultdict(list)
    for request in order.requests:
        requests[request.timestep].append(request)
    recorded: Any = _Comparison(order, rows.new_value(order.env_id))
    reset = partial(env.reset, options=copy.deepcopy(options))
    script = trajectory(reset, Binding(env.step, recorded), order.seed)
    try:
        next(script)
        yield
        for t in range(len(order.rewards)):
            for request in requests[t]:
                repeat(request)
            try:
                script.send(own_copy(rows.kept_action(order.env_id, order.actions, t)))
            except StopIteration:
                raise _differs(f"its episode ended with timestep {t + 1}, where it went on before") from None
            yield
    finally:
        script.close()
    _compare_last(order, recorded.seen.parts(0, 0), rows)
    for request in requests[len(order.rewards)]:
        repeat(request)


class _Comparison:
    """Stands where a script's recorder stands, and compares what the environment returns with what it returned before.

    Args:
        order: What the environment is to become.
        seen: Holds one observation.

    Attributes:
        seen: The same, with the last observation.
        float_rewards: Those that were compared; for all else see `RolloutRecorder`.
    """

    # No observation has this shape, and no reward this class: all come to the methods.
    encoded_observations = observation_dtype = observation_shape = reward_class = None

    def __init__(self, order: RestoreOrder, seen: Any) -> None:
        assert order.rewards is not None
        self.seen, self.float_rewards = seen, list[float]()
        self._rewards, self._digests = order.rewards, order.digests

    def begin(self, info: Any) -> None:
        """Infos are not compared."""

    def record_env_info(self, step: int, info: Any) -> None:
        """Infos are not compared."""

    def record_observation(self, observation: Any) -> None:
        """Keep the last observation; compare it where the digests of all are known.

        Raises:
            NotRestoredError: It is another one.
        """
        t = len(self.float_rewards)
        if self._digests is not None or t == len(self._rewards):
            self.seen.put(0, 0, observation)
        if self._digests is not None and t < len(self._digests) and digest(self.seen.view(0, 0)) != self._digests[t]:
            raise _differs(f"its observation of timestep {t} is another one than before")

    def record_reward(self, reward: Any) -> None:
        """Compare a reward.

        Raises:
            NotRestoredError: It is another one.
        """
        before = float(self._rewards[len(self.float_rewards)])
        self.float_rewards.append(before)
        if np.float64(reward).tobytes() != np.float64(before).tobytes():
            raise _differs(f"its reward of timestep {len(self.float_rewards)} is {reward}, and was {before}")

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Return as booleans what the environment said."""
        return bool(terminated), bool(truncated)


def _compare_last(order: RestoreOrder, seen: Sequence[tuple[str, Any]], rows: Rows) -> None:
    """Compare the last observation with what lies in the rows.

    Raises:
        NotRestoredError: They differ.
    """
    assert order.rewards is not None
    rows.put_carried_observation(order.slot, order.env_id, order.carried)
    before = rows.parts_of_observation(order.slot, order.env_id)
    for (path, now), (_, then) in zip(seen, before, strict=True):
        if not same(now, then):
            raise _differs(f"its last observation{path}, of timestep {len(order.rewards)}, is another one than before")


def _differs(what: str) -> NotRestoredError:
    return NotRestoredError(
        f"{what}, after the same seed and actions; what it returns must depend on these alone, and it must draw from "
        'self.np_random alone (verify="steps" tells the first observation that differs)'
    )
