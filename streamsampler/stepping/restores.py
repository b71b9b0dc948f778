"""Make an environment what it was, where it lives: apply the actions of its episode again, and compare."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from streamsampler.data.trees import leaves
from streamsampler.stepping.histories import RestoreOrder, digest_of
from streamsampler.stepping.past_requests import PastRequest
from streamsampler.stepping.rows import Rows
from streamsampler.workers.explain import begin_of
from streamsampler.workers.restoring import NotRestoredError, Said, say_again

__all__ = ["replay"]


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
    n = len(order.rewards)
    requests: dict[int, list[PastRequest]] = defaultdict(list)
    for request in order.requests:
        requests[request.timestep].append(request)
    seen = rows.new_value(order.env_id)
    begun = begin_of(env.reset(seed=order.seed, options=copy.deepcopy(options)))
    for t, said in enumerate(say_again(env, begun, _actions(order, rows, requests, repeat))):
        if t:
            _compare(said, float(order.rewards[t - 1]), t)
        if order.digests is not None or t == n:
            seen.put(0, 0, said.observation)
        if order.digests is not None and t < len(order.digests) and digest_of(seen.view(0, 0)) != order.digests[t]:
            raise _differs(f"its observation of timestep {t} is another one than before")
        yield
    _compare_last(order, seen.view(0, 0), rows)
    for request in requests[n]:
        repeat(request)


def _actions(
    order: RestoreOrder, rows: Rows, requests: Mapping[int, list[PastRequest]], repeat: Callable[[PastRequest], None]
) -> Iterator[Any]:
    """Yield the actions, and repeat before each what was requested then."""
    assert order.rewards is not None
    for t in range(len(order.rewards)):
        for request in requests.get(t, ()):
            repeat(request)
        yield rows.kept_action(order.env_id, order.actions, t)


def _compare_last(order: RestoreOrder, seen: Any, rows: Rows) -> None:
    """Compare the last observation with what lies in the rows.

    Raises:
        NotRestoredError: They differ.
    """
    assert order.rewards is not None
    before = rows.view(order.slot, order.env_id)
    for (path, now), (_, then) in zip(leaves(seen), leaves(before), strict=True):
        if now.tobytes() != then.tobytes():
            raise _differs(f"its last observation{path}, of timestep {len(order.rewards)}, is another one than before")


def _compare(said: Said, reward: float, timestep: int) -> None:
    """Compare what a timestep led to with what it led to before: a reward, and no end.

    Raises:
        NotRestoredError: They differ.
    """
    if np.float64(said.reward).tobytes() != np.float64(reward).tobytes():
        raise _differs(f"its reward of timestep {timestep} is {said.reward}, and was {reward}")
    if said.ended:
        raise _differs(f"its episode ended with timestep {timestep}, where it went on before")


def _differs(what: str) -> NotRestoredError:
    return NotRestoredError(
        f"{what}, after the same seed and actions; what it returns must depend on these alone, and it must draw from "
        'self.np_random alone (verify="steps" tells the first observation that differs)'
    )
