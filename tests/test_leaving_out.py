"""The default worker's way of leaving out trajectories that raise."""

from typing import Any

import pytest

from streamsampler.protocol import Ticket

from .test_default_worker import Env, worker_of


def dropping(env: Env) -> tuple[Any, Any, list[int]]:
    """Return a worker that drops whatever raises, its board, and at which of the environment's steps it was rebuilt."""
    worker, board = worker_of(env)
    rebuilt: list[int] = []
    worker.dropping = lambda kinds: False
    worker.rebuild = lambda: rebuilt.append(env.total)
    return worker, board, rebuilt


def test_what_raised_when_nobody_wanted_it_any_more_is_made_anew_for_who_comes_next():
    """Or it would depend on the time what the next version's trajectories are run in."""
    board = None

    def on_step(total):
        if total == 150:
            board.want(2)  # from here on nothing can be loaded that belongs to this version
            raise OSError("the arm is stuck")

    env = Env(on_step=on_step)
    worker, board, rebuilt = dropping(env)
    outcome = worker.rollout(Ticket(1, range(3)), [0] * 3)
    assert outcome.rollouts is None
    assert (outcome.n_trajectories, outcome.dropped, rebuilt) == (1, (), [])
    outcome = worker.rollout(Ticket(2, range(3)), [0] * 3)
    assert outcome.n_trajectories == 3
    assert rebuilt == [150]
    worker.rollout(Ticket(2, range(3, 6)), [0] * 3)
    assert rebuilt == [150]


def test_an_error_that_is_no_trajectorys_is_raised():
    """There is no telling which one to leave out: another cut into tickets would lay it to another one."""
    worker, _, _ = dropping(Env())
    finish = worker._recorder.finish

    def failing():
        raise OSError("no space left")

    worker._recorder.finish = failing
    with pytest.raises(OSError, match="no space left"):
        worker.rollout(Ticket(1, range(3)), [0] * 3)
    assert worker.trajectory is None
    worker._recorder.finish = finish
    assert worker.rollout(Ticket(1, range(3)), [0] * 3).n_trajectories == 3
