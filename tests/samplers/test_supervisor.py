"""Who comes and goes, with workers that are only told about."""

from typing import Any

import pytest

from streamsampler.engines.base import Died
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.samplers.supervisor import Supervisor
from streamsampler.scheduling.restarts import Policy
from streamsampler.workers.board import Progress

TICKET = Ticket(1, range(3))


class Workers:
    """An engine whose workers stand still in the middle of a step."""

    n_workers = 1

    def __init__(self):
        self.killed, self.retired = [], []
        self.phase = Phase.STEP

    def progress(self, worker):
        return Progress(1, 7, 2, self.phase)

    def request_progress(self, worker):
        pass

    def stacks(self, worker):
        return "a stack"

    def kill_worker(self, worker):
        self.killed.append(worker)

    def retire(self, worker):
        self.retired.append(worker)
        return True

    def restart(self, worker):
        pass


class Course:
    """A supervisor, and time that passes as it is told to."""

    def __init__(self, **policy):
        self.now = 0.0
        self.engine: Any = Workers()
        self.supervisor = Supervisor(self.engine, Policy(**policy), lambda: self.now)

    def until_killed(self, limit=100):
        for _ in range(limit):
            planned = self.supervisor.planned(None)
            assert planned is not None
            self.now += planned
            self.supervisor.waited(planned, planned, lambda: {0: TICKET})
            if self.engine.killed:
                return self.engine.killed.pop()
        return None

    def bury(self):
        return self.supervisor.buried(Died(0, -9), self.engine.progress(0), 1)


def test_who_hangs_before_it_is_told_to_go_is_a_loss_like_any_other():
    course = Course(step_timeout=1.0)
    course.supervisor.replace(0)
    assert course.until_killed() == 0
    incident = course.bury()
    assert incident is not None
    assert (incident.hung, incident.stack) == (True, "a stack")


def test_the_successor_of_one_that_hung_before_it_went_is_watched():
    course = Course(step_timeout=1.0)
    course.supervisor.replace(0)
    assert course.until_killed() == 0
    course.bury()
    assert course.supervisor.revive(0)
    assert course.until_killed() == 0


def test_who_dies_before_it_is_told_to_go_is_a_loss_and_who_dies_then_is_none():
    course = Course()
    course.supervisor.replace(0)
    assert course.bury() is not None
    assert course.supervisor.revive(0)
    course.supervisor.replace(0)
    course.supervisor.may_go(0)
    assert course.engine.retired == [0]
    assert course.bury() is None


@pytest.mark.parametrize("phase", list(Phase))
def test_what_is_done_once_a_ticket_is_no_step(phase):
    """A large ticket takes long to pack and to pickle, in code that cannot tell how far it is."""
    course = Course(step_timeout=1.0, construction_timeout=8.0)
    course.engine.phase = phase
    assert course.until_killed() == 0
    within_trajectories = {Phase.RESET, Phase.AGENT_RESET, Phase.ACTION, Phase.STEP}
    assert (course.now < 2.0) == (phase in {*within_trajectories, Phase.WAITING, Phase.CLOSE, Phase.CHECK})
