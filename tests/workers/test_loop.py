"""A worker's loop, told by hand."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from streamsampler import LocalSampler
from streamsampler.agents.base import CallableAgent
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start, Stop, Ticket
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.loop import WorkerLoop, run_worker
from tests.scripted.failing import Env
from tests.workers.contexts import context_of, new_board


class Channel:
    interruptible = True

    def __init__(self, *messages):
        self.messages = list(messages)
        self.answers: list[Any] = []

    def receive(self, *, wait):
        assert self.messages or not wait, "it would wait for ever"
        return self.messages.pop(0) if self.messages else None

    def load(self, payload):
        return payload

    def answer(self, answer, contents=None):
        self.answers.append((answer, contents))


UPDATES: dict[str, Any] = {"agent": CallableAgent(lambda _: 1), "env": as_env_update(Env)}


def start(version, *tickets, **updates):
    return Start(version, tuple(Ticket(version, indices) for indices in tickets), **{**UPDATES, **updates})


@pytest.fixture
def board():
    return new_board()


def live(channel, board):
    """Let a worker live until it has nothing to do; return the function that lets it go on with a message."""
    loop = WorkerLoop(channel, DefaultWorker, context_of(board))

    def go_on(*messages):
        channel.messages += messages
        for _ in range(20):  # more turns than any of these tests has messages and tickets
            if not loop.turn(wait=False):
                break

    go_on()
    return go_on


def abandoned_report(version, indices):
    return Report(Ticket(version, indices), abandoned=True)


def test_each_ticket_gets_one_answer_and_the_spaces_are_told_once_a_version(board):
    """Not once for good: the report that carried them may have been stale, and was never looked at."""
    channel = Channel(start(1, range(2), range(2, 3)))
    go_on = live(channel, board)
    go_on(Continue((Ticket(1, range(3, 7)),)))
    go_on(start(2, range(1)))
    assert [answer.ticket.indices for answer, _ in channel.answers] == [range(2), range(2, 3), range(3, 7), range(1)]
    assert [contents[0].n_trajectories for _, contents in channel.answers] == [2, 1, 4, 1]
    spaces = (Env.observation_space, Env.action_space)
    assert [contents[1] for _, contents in channel.answers] == [spaces, None, None, spaces]


@pytest.mark.parametrize("abandoned", [True, False])
def test_what_nobody_wants_is_given_up_unrun(board, abandoned):
    if abandoned:
        board.abandon_older(2)
    channel = Channel(start(1, range(2), range(2, 4)), *[Stop()] * (not abandoned))
    live(channel, board)
    assert [answer for answer, _ in channel.answers] == [
        abandoned_report(1, range(2)),
        abandoned_report(1, range(2, 4)),
    ]


def test_a_failing_update_fails_the_first_ticket_and_gives_up_the_rest(board):
    channel = Channel(start(1, range(2), range(2, 4), env=as_env_update(lambda: 3)))
    go_on = live(channel, board)
    go_on(Continue((Ticket(1, range(4, 5)),)))
    failure, *rest = (answer for answer, _ in channel.answers)
    assert isinstance(failure, Failure)
    assert (failure.ticket.indices, failure.phase) == (range(2), Phase.ENV_CONSTRUCTION)
    assert rest == [abandoned_report(1, range(2, 4)), abandoned_report(1, range(4, 5))]


def test_exit_closes_the_environment(board):
    channel = Channel(start(1, range(1), env=as_env_update(lambda: Env("close"))), Exit())
    run_worker(channel, DefaultWorker, context_of(board))
    ((failure, error),) = channel.answers
    assert (failure.ticket, failure.phase, str(error)) == (None, Phase.CLOSE, "in close")


def test_a_long_message_is_cut_in_the_summary(board):
    def complain(_):
        raise ValueError("x" * 10_000)

    channel = Channel(start(1, range(1), agent=CallableAgent(complain)))
    live(channel, board)
    ((failure, _),) = channel.answers
    assert len(failure.summary) < 3_000
    assert len(failure.traceback) > 10_000


def test_what_may_take_long_outside_trajectories_is_shown_before_it_begins(board):
    """Such as a worker's constructor, which imports what its class needs, and the pickling of what was recorded."""
    shown = []

    def show():
        shown.append(board.progress(0).phase)

    class Slow(DefaultWorker):
        def __init__(self, context):
            show()
            super().__init__(context)

        def finished(self, finish, indices, env=None):
            return super().finished(lambda: (show(), finish())[1], indices, env)

    class Sending(Channel):
        def answer(self, answer, contents=None):
            show()

    loop = WorkerLoop(Sending(start(1, range(1))), Slow, context_of(board))
    assert all(loop.turn(wait=False) for _ in range(2))
    assert shown == [Phase.AGENT_CONSTRUCTION, Phase.RECORDING, Phase.SENDING]


class Untimed(DefaultWorker):
    """Leaves the seconds of its outcomes at their default."""

    def rollout(self, ticket, seeds):
        return replace(super().rollout(ticket, seeds), seconds=(0.0, 0.0, 0.0))


def test_a_worker_that_measures_no_seconds_is_measured_by_the_loop(board):
    channel = Channel(start(1, range(4)))
    loop = WorkerLoop(channel, Untimed, context_of(board))
    assert all(loop.turn(wait=False) for _ in range(2))
    ((report, _),) = channel.answers
    assert report.seconds.reset == report.seconds.agent == 0.0 < report.seconds.step


def test_workers_that_measure_no_seconds_all_get_some_of_the_work():
    with LocalSampler("random", "CartPole-v1", n_workers=3, seed=1, worker_class=Untimed, check=None) as sampler:
        for _ in range(3):
            batch = sampler.obtain_trajectories(300)
            assert set(batch.worker_numbers.tolist()) == {0, 1, 2}


class Ahead(DefaultWorker):
    """Looks ahead in each rollout, and says that seven timesteps of later tickets ran."""

    seen: ClassVar[list[Any]] = []

    def rollout(self, ticket, seeds):
        found = [self.look_ahead(number) for number in (1, 2, 3)]
        assert all(each is None or len(each[1]) == len(each[0].indices) for each in found)
        self.seen.append([None if each is None else each[0].indices for each in found])
        outcome = super().rollout(ticket, seeds)
        self.running_timesteps = 7
        return outcome

    def abandon(self):
        abandoned = (2, self.running_timesteps)
        self.running_timesteps = 0
        return abandoned


def test_a_worker_that_looks_ahead_takes_in_tickets_and_nothing_else(board):
    channel = Channel(start(1, range(2)))
    loop = WorkerLoop(channel, Ahead, context_of(board))
    assert loop.turn(wait=False)
    # The others come while the first ticket runs: after the first look, which finds nothing.
    channel.messages += [None, Continue((Ticket(1, range(2, 4)),)), Continue((Ticket(1, range(4, 5)),)), Stop(), Exit()]
    assert loop.turn(wait=False)
    assert Ahead.seen == [[range(2, 4), range(4, 5), None]]
    assert board.ran_timesteps(0) == channel.answers[0][0].n_timesteps + 7
    assert loop.turn(wait=False), "the Stop that was kept"
    reports = [answer for answer, _ in channel.answers]
    assert [report.abandoned for report in reports] == [False, True, True]
    assert [(report.n_abandoned, report.abandoned_timesteps) for report in reports] == [(0, 0), (2, 7), (2, 0)]
    assert board.ran_timesteps(0) == sum(report.ran_timesteps for report in reports)
    assert not loop.turn(wait=False)
