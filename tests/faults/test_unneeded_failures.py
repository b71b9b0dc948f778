"""C1 and C5: whether a call fails, and for which trajectory, depends on the seed alone, not on timing or workers.

Losses and failures that are not needed, at any time, are in the exploration of the protocol.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.environments.updates import NewEnvUpdate
from streamsampler.errors import RolloutError, WorkerError
from streamsampler.protocol.messages import Start, Ticket
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.loop import WorkerLoop
from tests.faults.conftest import slow
from tests.scripted.agents import above_half
from tests.scripted.failing import Brittle
from tests.workers.contexts import context_of, new_board

SEED = 11


def tried(call: Any, *arguments: Any) -> Any:
    """Return a batch, or what is said of the trajectory that ended the call."""
    try:
        return call(*arguments)
    except WorkerError as error:
        return type(error), error.trajectory, error.phase, type(getattr(error, "original", None))


def streamed(sampler: Any, number: int) -> list[Any]:
    """Return what a stream hands out before it has handed out so many, or raises."""
    found: list[Any] = []
    with sampler.stream() as stream:
        while len(found) < number and not isinstance((found or [None])[-1], tuple):
            found.append(tried(next, stream))
    return found


def outcomes(make: Any, env: Any, n_rounds: int, **options: Any) -> list[Any]:
    found: list[Any] = []
    with make(above_half, env, seed=SEED, **options) as sampler:
        for _ in range(n_rounds):
            found.append(tried(sampler.obtain_samples, 100))
            found.append(tried(sampler.obtain_trajectories, 20))
            found.append(streamed(sampler, 40))
    return found


@pytest.mark.parametrize(
    ("options", "env", "n_rounds"),
    [
        ({}, {"one_in": 30}, 3),
        slow({}, {"one_in": 30}, 12),
        slow({}, {"one_in": 30, "wrong": "lock"}, 8),  # it is not known of which trajectory of a ticket
        slow({"worker_class": VecWorker, "worker_args": {"n_envs": 3}}, {"one_in": 30}, 6),
        # Losses of the whole life: how many of them come within so many seconds depends on the machine.
        slow({"restart_on": OSError, "max_restarts": 1, "limits": Limits(restart_window=None)}, {"one_in": 15}, 3),
        slow({"on_failure": "drop"}, {"one_in": 15}, 3),
        slow({"on_failure": "drop"}, {"one_in": 1}, 1),  # the order of indices decides when there were too many
    ],
)
def test_a_call_fails_for_the_first_trajectory_that_it_needs_and_for_no_other(
    options: dict[str, Any], env: dict[str, Any], n_rounds: int
) -> None:
    expected = outcomes(LocalSampler, partial(Brittle, **env), n_rounds, **options)
    assert outcomes(MultiprocessingSampler, partial(Brittle, **env), n_rounds, n_workers=3, **options) == expected
    failed = [one for one in expected if isinstance(one, tuple)]
    assert all(one[0] is RolloutError for one in failed)
    assert bool(failed) == (options.get("on_failure") != "drop" or env["one_in"] == 1)
    assert len(failed) < len(expected) or env["one_in"] == 1
    if not options:
        broken = [stream for stream in expected[2::3] if isinstance(stream[-1], tuple)]
        assert all(stream[-1][1] == len(stream) - 1 for stream in broken)
        assert max(map(len, broken)) > 1


def test_an_environment_that_raised_is_closed_quietly() -> None:
    """What it says to that is no news, whether the batch needed the trajectory or not."""
    with LocalSampler(above_half, partial(Brittle, one_in=1), n_workers=1, seed=SEED) as sampler:
        with pytest.raises(RolloutError, match="the arm is stuck"):
            sampler.obtain_trajectories(1)
        assert len(sampler.obtain_trajectories(1, env_update=partial(Brittle, one_in=0))) == 1


def test_an_environment_whose_trajectory_was_left_out_in_vain_is_closed_quietly() -> None:
    """The call is over before agent and environment are replaced: the next one's update finds them as they were."""
    said: list[Any] = []

    class Channel:
        interruptible = False

        def __init__(self) -> None:
            self.messages: list[Any] = [
                Start(1, (Ticket(1, range(1)),), agent=above_half, env=NewEnvUpdate(partial(Brittle, one_in=1))),
                Start(2, (Ticket(2, range(1)),), env=NewEnvUpdate(partial(Brittle, one_in=0))),
            ]

        def receive(self, *, wait: bool) -> Any:
            return self.messages.pop(0) if len(self.messages) == 2 - len(said) else None

        def load(self, payload: Any) -> Any:
            return payload

        def answer(self, answer: Any, contents: Any = None) -> None:
            said.append(answer)

    board = new_board()
    context = context_of(board, seed=SEED, drop_unless=lambda kinds: board.abandon_older(2) or False)
    loop = WorkerLoop(Channel(), DefaultWorker, context)
    for _ in range(4):
        loop.turn(wait=False)
    assert [(type(answer).__name__, answer.abandoned) for answer in said] == [("Report", True), ("Report", False)]
