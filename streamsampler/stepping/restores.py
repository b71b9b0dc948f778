"""Restore an environment, in its own process: repeat the actions of its episode, and compare. No I/O."""

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
    """Restore an environment to n timesteps after its episode's reset."""

    env_id: int
    remake: bool = False  # whether it exists, and is made again
    seed: int | None = None  # None without an episode: the environment is only made again
    actions: Any = None  # the n actions: leaves of (n, ...), or a list
    n_timesteps: int = 0
    rewards: Sequence[float] | NDArray[np.float64] = ()  # float64, of the last actions: as many as are known
    slot: int = 0  # of the last observation in the rows
    digests: NDArray[np.uint32] | None = None  # (n + 1,) of observations, or of all but the last; None: not recorded
    # The reset's options if they were removed since; None for the environment's current ones. For a sampler its
    # `ResetOrder`.
    options: Any = None
    parameters: NumberedParameters | None = None  # set by the reset
    requests: Sequence[PastRequest] = ()  # to repeat before and between these actions
    carried: Sequence[Any] = ()  # the parts of the last observation outside shared memory


def replay(
    reset: Callable[..., Any], step: Callable[[Any], Any], actions: Iterable[Any], order: RestoreOrder, rows: Rows,
    repeat: Callable[[PastRequest], None],
) -> Iterator[None]:  # fmt: skip
    """Reset an environment, repeat the actions, and compare its results bit by bit.

    Yields after the reset and each timestep; raises NotRestoredError at the first difference.
    """
    assert order.seed is not None
    requests: dict[int, list[PastRequest]] = defaultdict(list)
    for request in order.requests:
        requests[request.timestep].append(request)
    recorded: Any = _ReplayComparison(order, rows.new_value(order.env_id))
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
                raise _differs(f"its episode ended at timestep {t + 1}, but continued originally") from None
            yield
    finally:
        script.close()
    _compare_last(order, recorded.seen.parts(0, 0), rows)
    for request in requests[order.n_timesteps]:
        repeat(request)


class _ReplayComparison:
    """Takes the place of a script's recorder, and compares results; `seen` holds the last observation."""

    # No observation has this shape, no reward this class: so the script calls the methods for all.
    encoded_observations = observation_dtype = observation_shape = reward_class = None

    def __init__(self, order: RestoreOrder, seen: Any) -> None:
        self.seen, self.float_rewards = seen, list[float]()
        self._n, self._rewards, self._digests = order.n_timesteps, order.rewards, order.digests

    def begin(self, info: Any) -> None:
        """Do nothing: infos are not compared."""

    def record_env_info(self, step: int, info: Any) -> None:
        """Do nothing, like `begin`."""

    def record_observation(self, observation: Any) -> None:
        """Keep the last observation; raise NotRestoredError if a digest differs."""
        t = len(self.float_rewards)
        if self._digests is not None or t == self._n:
            self.seen.put(0, 0, observation)
        if self._digests is not None and t < len(self._digests) and digest(self.seen.view(0, 0)) != self._digests[t]:
            raise _differs(f"its observation of timestep {t} differs from the original")

    def record_reward(self, reward: Any) -> None:
        known = len(self.float_rewards) - (self._n - len(self._rewards))
        self.float_rewards.append(reward)
        if known < 0:
            return
        before = float(self._rewards[known])
        if np.float64(reward).tobytes() != np.float64(before).tobytes():
            raise _differs(f"its reward of timestep {len(self.float_rewards)} is {reward}, but was {before} originally")

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        return bool(terminated), bool(truncated)


def _compare_last(order: RestoreOrder, seen: Sequence[tuple[str, Any]], rows: Rows) -> None:
    rows.observation_values.put_carried(order.slot, order.env_id, order.carried)
    before = rows.observation_values.parts(order.slot, order.env_id)
    for (path, now), (_, then) in zip(seen, before, strict=True):
        if not same(now, then):
            raise _differs(f"its last observation{path}, of timestep {order.n_timesteps}, differs from the original")


def _differs(what: str) -> NotRestoredError:
    return NotRestoredError(
        f"{what}, after the same seed and actions: its results must depend on these alone, and it must draw only from "
        'self.np_random (verify="steps" finds the first different observation)'
    )
