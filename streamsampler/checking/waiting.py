"""Measure the waits of an asynchronous environment, and check that it can be cancelled during a wait."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

from streamsampler.checking.actions import Actions
from streamsampler.checking.findings import Finding, Verdict, not_checked
from streamsampler.checking.ordinary_env import OrdinaryEnv
from streamsampler.checking.probes import Probed, stepped
from streamsampler.core.awaiting import is_awaitable
from streamsampler.core.words import count, duration
from streamsampler.data.differences import shown
from streamsampler.data.trees import same
from streamsampler.rollouts.script import begin_of
from streamsampler.workers.explain import summary_of, traceback_of
from streamsampler.workers.waiting.event_loop import CLEANUP_SECONDS

__all__ = ["CANCEL", "WAITS", "finding_of_waits", "findings_of_waiting"]

WAITS, CANCEL = "waits", "cancel"
"""Names of the findings."""

_LONG_TURN = 0.1
"""Seconds without a wait from which asyncio's own debug mode calls a turn slow, too."""
_HARDLY = 0.1
"""Share of waiting in a step below which several in flight gain little."""
_PLACES = 0.0, 0.25, 0.5, 0.75
"""Points of a step at which it is cancelled, as shares of a step's duration."""
_COMPARED = 3  # timesteps of the trajectories before and after the cancelled steps

_AWAIT = (
    "Await what takes long: asyncio.sleep instead of time.sleep, an asynchronous client instead of one that blocks, "
    "and await asyncio.to_thread(function) for computations and blocking calls"
)
_LET_THROUGH = (
    "Do not swallow asyncio.CancelledError, which a bare except and except BaseException catch: raise it again after "
    f"cleaning up, within {CLEANUP_SECONDS:g} s. Until then the worker cannot use the environment of a cancelled "
    "trajectory"
)
_ANEW = "Let reset renew everything a cancelled step may leave half done, such as a connection with a reply on its way"


def findings_of_waiting(agent: Any, env: OrdinaryEnv) -> list[Finding]:
    """Return findings on an environment's waits, and on resets after cancelled waits."""
    probed, actions = stepped(env, 0.0, agent), Actions(env, agent)
    return [finding_of_waits(probed, env.loop.longest_turn), _finding_of_cancelling(env, actions, probed.costs.step)]


def finding_of_waits(probed: Probed, longest_turn: float) -> Finding:
    """Return whether steps wait, so that other trajectories in flight continue meanwhile. Pure."""
    costs = probed.costs
    share = costs.waiting / costs.step if costs.step else 0.0
    step = f"a step of {1e3 * costs.step:.3g} ms waits {share:.0%} of its time"
    if longest_turn > _LONG_TURN:
        return Finding(
            WAITS, "warning",
            f"{step}; a reset or step computed for {duration(longest_turn)} without a wait, and all other "
            "trajectories in flight stand still meanwhile", f"{_AWAIT}. With a step_timeout, a worker that computes "
            "for longer is killed",
        )  # fmt: skip
    if share < _HARDLY:
        return Finding(
            WAITS, "warning", f"{step}: other trajectories in flight hardly continue meanwhile",
            f"{_AWAIT}. If nothing has to be awaited, write ordinary methods, without async",
        )  # fmt: skip
    return Finding(WAITS, "pass", f"{step}, in which other trajectories in flight continue")


def _finding_of_cancelling(env: OrdinaryEnv, actions: Actions, step_seconds: float) -> Finding:
    before, again = _beginning(env, actions), _beginning(env, actions)
    n_cancelled = 0
    for what, share in [("reset", 0.0), *(("step", share) for share in _PLACES)]:
        try:
            how, raised = env.loop.result_of(_cancelled(env, actions, what, share * step_seconds))
        except Exception as error:
            return _finding_of_next(error)
        if how != _CANCELLED and how != _ENDED:
            verdict: Verdict = "warning" if how == _RAISED else "failure"
            which = "" if raised is None else f" {summary_of(raised)}"
            return Finding(
                CANCEL, verdict, f"a {what} was cancelled where it waits, and {how}{which}", _LET_THROUGH,
                traceback_of(raised),
            )  # fmt: skip
        n_cancelled += how == _CANCELLED
    if not n_cancelled:
        return not_checked(CANCEL, "no reset and no step waited, so nothing could be cancelled")
    return _compared(env, actions, before, again, n_cancelled)


_CANCELLED, _ENDED, _RAISED, _RETURNED = "ended", "ended before", "raised", "returned all the same"
_GOES_ON = f"did not end within {CLEANUP_SECONDS:g} s"


async def _begun(env: OrdinaryEnv, actions: Actions, what: str) -> asyncio.Task[Any]:
    """Start a reset, or a step after a reset, and let it run up to its first wait."""
    pending: Any = env.awaited.reset(seed=1)
    if what == "step":
        actions.begin()
        chosen = actions.choose(*begin_of(await pending))
        pending = env.awaited.step((await chosen if is_awaitable(chosen) else chosen)[0])
    task: asyncio.Task[Any] = asyncio.ensure_future(pending)
    await asyncio.sleep(0)
    return task


async def _cancelled(env: OrdinaryEnv, actions: Actions, what: str, after: float) -> tuple[str, Exception | None]:
    """Cancel a reset or a step after some seconds; return how it ended, and its exception."""
    task = await _begun(env, actions, what)
    if after:
        await asyncio.wait([task], timeout=after)
    was_cancelled = task.cancel()
    await asyncio.wait([task], timeout=CLEANUP_SECONDS)
    try:
        task.result()
    except asyncio.InvalidStateError:
        return _GOES_ON, None
    except asyncio.CancelledError:
        return _CANCELLED, None
    except Exception as error:
        return _RAISED, error
    return _RETURNED if was_cancelled else _ENDED, None


def _compared(env: OrdinaryEnv, actions: Actions, before: list[Any], again: list[Any], n_cancelled: int) -> Finding:
    """Return whether cancelled steps change the next trajectory, provided that it is reproducible without them."""
    try:
        after = _beginning(env, actions)
    except Exception as error:
        return _finding_of_next(error)
    if same(before, again) and not same(before, after):
        was, now = next((old, new) for old, new in zip(before, after, strict=False) if not same(old, new))
        what = f"after a trajectory was cancelled the next trajectory differs: {shown(was)} was {shown(now)}"
        return Finding(CANCEL, "failure", what, _ANEW)
    times = count(n_cancelled, "time")
    return Finding(CANCEL, "pass", f"resets and steps were cancelled {times} where they wait, and ended")


def _finding_of_next(error: Exception) -> Finding:
    what = f"after a trajectory was cancelled the next trajectory raised {summary_of(error)}"
    return Finding(CANCEL, "failure", what, _ANEW, traceback_of(error))


def _beginning(env: OrdinaryEnv, actions: Actions) -> list[Any]:
    """Return the first results of a trajectory, always the same trajectory."""
    return list(_results(env, actions))


def _results(env: OrdinaryEnv, actions: Actions) -> Iterator[Any]:
    actions.begin()
    observation, info = begin_of(env.reset(seed=0))
    yield copy.deepcopy(observation)  # the environment may reuse it
    for _ in range(_COMPARED):
        action, _agent_info = env.loop.result_of(actions.choose(observation, info))
        observation, reward, terminated, truncated, info = env.step(action)
        yield from copy.deepcopy((observation, reward, terminated, truncated))
        if terminated or truncated:
            return
