"""Make an environment what it was, where it lives: apply the actions of its episode again, and compare. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.digests import digest
from streamsampler.data.trees import same
from streamsampler.rollouts.script import Binding, trajectory
from streamsampler.stepping.parameter_sets import NumberedParameters
from streamsampler.stepping.past_requests import PastRequest
from streamsampler.stepping.rows import Rows
from streamsampler.workers.restoring import NotRestoredError, own_copy


@dataclass(frozen=True)
class RestoreOrder:
    """Make an environment what it was: n timesteps after the reset of its episode.

    Attributes:
        env_id: The environment.
        remake: Whether it is there, and to be made anew.
        seed: The seed of the episode's reset; None if there is no episode, and the environment is made anew only.
        actions: The n actions: leaves of (n, ...), or a list.
        n_timesteps: The same n.
        rewards: What the last ones of these actions led to, float64: as many as are known.
        slot: Where the last observation lies in the environment's rows.
        digests: (n + 1,) of the observations, or of all but the last one; None where no digests are kept.
        requests: What is to be repeated that was requested before and between these actions.
        options: Those of the reset, where they are forgotten since; None where they are those that are remembered. For
            a sampler its `ResetOrder`.
        parameters: Those that the reset set; None where it set none.
        carried: What of the last observation does not lie in memory that is shared.
    """

    env_id: int
    remake: bool = False
    seed: int | None = None
    actions: Any = None
    n_timesteps: int = 0
    rewards: Sequence[float] | NDArray[np.float64] = ()
    slot: int = 0
    digests: NDArray[np.uint32] | None = None
    options: Any = None
    parameters: NumberedParameters | None = None
    requests: Sequence[PastRequest] = ()
    carried: Sequence[Any] = ()


def replay(
    reset: Callable[..., Any], step: Callable[[Any], Any], actions: Iterable[Any], order: RestoreOrder, rows: Rows,
    repeat: Callable[[PastRequest], None],
) -> Iterator[None]:  # fmt: skip
    """Reset an environment, apply actions, and compare what it returns bit by bit.

    Args:
        reset: Resets the environment: `reset(seed=seed)`.
        step: Steps it.
        actions: The actions.
        order: What it is to become; it has an episode.
        rows: Where the last observation lies.
        repeat: Repeats a request.

    Yields:
        After the reset, and after each timestep.

    Raises:
        NotRestoredError: It does not return what it returned before.
    """
    assert order.seed is not None
    requests: dict[int, list[PastRequest]] = defaultdict(list)
    for request in order.requests:
        requests[request.timestep].append(request)
    recorded: Any = _Comparison(order, rows.new_value(order.env_id))
    script = trajectory(reset, Binding(step, recorded), order.seed)
    try:
        next(script)
        yield
        for t, action in enumerate(actions):
            for request in requests[t]:
                repeat(request)
            try:
                script.send(own_copy(action))
            except StopIteration:
                raise _differs(f"its episode ended with timestep {t + 1}, where it went on before") from None
            yield
    finally:
        script.close()
    _compare_last(order, recorded.seen.parts(0, 0), rows)
    for request in requests[order.n_timesteps]:
        repeat(request)


class _Comparison:
    """Stands where a script's recorder stands, and compares what the environment returns with what it returned before.

    Args:
        order: What the environment is to become.
        seen: Holds one observation.

    Attributes:
        seen: The same, with the last observation.
        float_rewards: Those so far; for all else see `RolloutRecorder`.
    """

    # No observation has this shape, and no reward this class: all come to the methods.
    encoded_observations = observation_dtype = observation_shape = reward_class = None

    def __init__(self, order: RestoreOrder, seen: Any) -> None:
        self.seen, self.float_rewards = seen, list[float]()
        self._n, self._rewards, self._digests = order.n_timesteps, order.rewards, order.digests

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
        if self._digests is not None or t == self._n:
            self.seen.put(0, 0, observation)
        if self._digests is not None and t < len(self._digests) and digest(self.seen.view(0, 0)) != self._digests[t]:
            raise _differs(f"its observation of timestep {t} is another one than before")

    def record_reward(self, reward: Any) -> None:
        """Compare a reward, if it is known.

        Raises:
            NotRestoredError: It is another one.
        """
        known = len(self.float_rewards) - (self._n - len(self._rewards))
        self.float_rewards.append(reward)
        if known < 0:
            return
        before = float(self._rewards[known])
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
    rows.put_carried_observation(order.slot, order.env_id, order.carried)
    before = rows.parts_of_observation(order.slot, order.env_id)
    for (path, now), (_, then) in zip(seen, before, strict=True):
        if not same(now, then):
            raise _differs(f"its last observation{path}, of timestep {order.n_timesteps}, is another one than before")


def _differs(what: str) -> NotRestoredError:
    return NotRestoredError(
        f"{what}, after the same seed and actions; what it returns must depend on these alone, and it must draw from "
        'self.np_random alone (verify="steps" tells the first observation that differs)'
    )
