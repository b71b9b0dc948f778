"""The default worker's way of leaving out trajectories that raise."""

from typing import Any

import pytest

from streamsampler.protocol.messages import Ticket
from tests.workers.test_default import Env, worker_of


def dropping(env: Env, rebuild: Any = None) -> tuple[Any, Any, list[int]]:
    """Return a worker that drops whatever raises, its board, and at which of the environment's steps it was rebuilt."""
    rebuilt: list[int] = []
    worker, board = worker_of(
        env, drop_unless=lambda kinds: False, rebuild=rebuild or (lambda: rebuilt.append(env.total))
    )
    return worker, board, rebuilt


def test_what_raised_when_nobody_wanted_it_any_more_is_made_anew_for_who_comes_next():
    """Or it would depend on the time what the next version's trajectories are run in."""
    board: Any = None

    def on_step(total):
        if total == 150:
            board.abandon_older(2)  # from here on nothing can be loaded that belongs to this version
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


def test_what_is_left_out_takes_time_too(monkeypatch):
    """Tickets are sized by it: if only what came after the last failure counted, they would grow without end."""
    now = 0.0

    def on_step(total):
        nonlocal now
        now += 1.0
        if total in (150, 380):
            raise OSError("the arm is stuck")

    monkeypatch.setattr("streamsampler.workers.default.perf_counter", lambda: now)
    monkeypatch.setattr("streamsampler.workers.finishing.perf_counter", lambda: now)
    env = Env(on_step=on_step)
    rebuilt = []

    def rebuild():
        nonlocal now
        now += 7.0
        rebuilt.append(env.total)

    worker, _, _ = dropping(env, rebuild)
    outcome = worker.rollout(Ticket(1, range(6)), [0] * 6)
    assert [position for position, *_ in outcome.dropped] == [1, 4]
    assert rebuilt == [150, 380]
    assert env.total == 480
    assert outcome.seconds[0] == 14.0
    assert sum(outcome.seconds) == pytest.approx(480 + 14)


def test_a_reset_that_raises_takes_time_too(monkeypatch):
    now = 0.0

    class Stuck(Env):
        def reset(self, **kwargs):
            nonlocal now
            now += 3.0
            raise OSError("the arm is stuck")

    monkeypatch.setattr("streamsampler.workers.default.perf_counter", lambda: now)
    monkeypatch.setattr("streamsampler.workers.finishing.perf_counter", lambda: now)
    worker, _, _ = dropping(Stuck())
    outcome = worker.rollout(Ticket(1, range(4)), [0] * 4)
    assert len(outcome.dropped) == 4
    assert outcome.seconds[:3] == (12.0, 0.0, 0.0)


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
