"""Workers that hang, retire and die, with an engine that only records what it is asked."""

from unittest.mock import Mock, call

import pytest

from streamsampler.engines.base import Died
from streamsampler.protocol.messages import Phase, Report
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.restarts import Policy, unready
from streamsampler.protocol.states import Happened, SamplerSide, SamplerState
from streamsampler.samplers.supervisor import Hang, Supervisor, WorkerRecord


def standing_still():
    """Return an engine whose worker stands still in the middle of a step."""
    engine = Mock(n_workers=1)
    engine.progress.return_value = Progress(1, 7, 2, Phase.STEP)
    engine.stacks.return_value, engine.memory_bytes.return_value, engine.retire.return_value = "a stack", 0, True
    return engine


class Course:
    """A supervisor of one worker, which has a ticket, and time that passes with each wait."""

    def __init__(self, **policy):
        self.now = 0.0
        self.engine = standing_still()
        self.records = []
        self.new_record()
        self.supervisor = Supervisor(self.engine, self.records, Policy(**policy), lambda: self.now)
        self.start()

    def new_record(self):
        self.records[:] = [WorkerRecord(SamplerSide(0, version=1))]

    @property
    def record(self):
        return self.records[0]

    def start(self):
        if not self.supervisor.start_if_absent(self.record):
            pytest.fail("the worker was not absent")
        self.record.side.assign(range(3))

    def answer(self):
        side = self.record.side
        side.record_answer(Report(side.unanswered[0]))
        self.supervisor.retire_if_marked(self.record)

    def until_killed(self, limit=100):
        for _ in range(limit):
            seconds = self.supervisor.wait_limit(None)
            assert seconds is not None
            self.now += seconds
            self.supervisor.kill_overdue(seconds, seconds)
            if self.engine.kill_worker.call_args_list == [call(0)]:
                self.engine.kill_worker.reset_mock()
                return True
        return False

    def die(self):
        incident = self.supervisor.loss_of(Died(0, -9), self.record, self.engine.progress(0), 1)
        self.record.side.apply(Happened.DIED)
        self.new_record()
        return incident


def test_a_worker_is_killed_for_a_hang_once_and_its_successor_is_watched():
    """Also one that hangs before it retires: a loss like any other."""
    course = Course(step_timeout=1.0)
    course.record.side.mark_for_replacement()
    assert course.until_killed()
    assert course.record.side.state is SamplerState.CONDEMNED
    assert not course.until_killed()
    incident = course.die()
    assert incident is not None
    assert (incident.hung, incident.stack) == (True, "a stack")
    course.start()
    assert course.until_killed()


def test_what_may_have_been_killed_or_stopped_from_outside_is_a_loss_by_chance():
    """Workers that start are killed, too, by whatever kills workers."""
    cases = [
        (Died(0, -9), None, True),
        (Died(0, None, "lost its watchdog"), None, True),
        (Died(0, 3), None, False),
        (Died(0, -11), None, False),
        (Died(0, -9), "(it did not answer)", True),
        (Died(0, -9), 'File "a", line 1', False),
    ]
    places = [(Progress(1, 7, 2, Phase.STEP), "trajectory 2"), (Progress(0, 0, None, Phase.WAITING), unready(0))]
    for died, stack, by_chance in cases:
        for seen, subject in places:
            course = Course(step_timeout=1.0)
            course.record.hang = None if stack is None else Hang(seen, 1.0, stack)
            incident = course.supervisor.loss_of(died, course.record, seen, seen.version or None)
            assert incident is not None
            assert incident.likeness is not None
            assert (incident.likeness.subject, incident.likeness.by_chance) == (subject, by_chance)


def test_a_worker_that_dies_before_it_retires_is_a_loss_and_one_that_dies_then_is_none():
    course = Course()
    course.record.side.mark_for_replacement()
    course.supervisor.retire_if_marked(course.record)
    assert not course.engine.retire.called
    assert course.die() is not None
    course.start()
    course.record.side.mark_for_replacement()
    course.answer()
    assert course.engine.retire.call_args_list == [call(0)]
    assert course.die() is None


def test_a_worker_that_takes_too_long_to_retire_is_killed_and_is_no_loss():
    course = Course(close_timeout=2.0)
    assert course.supervisor.wait_limit(None) is None
    course.record.side.mark_for_replacement()
    course.answer()
    assert course.supervisor.wait_limit(None) == 2.0
    assert course.until_killed()
    assert (course.now, course.supervisor.wait_limit(None)) == (2.0, None)
    assert course.die() is None
    course.start()
    assert course.supervisor.wait_limit(None) is None


def test_a_worker_that_cannot_be_replaced_goes_on():
    course = Course()
    course.engine.retire.return_value = False
    course.record.side.mark_for_replacement()
    course.answer()
    assert (course.record.side.state, course.record.side.room) == (SamplerState.WAITING, 2)


def test_a_worker_is_too_large_until_it_is_being_replaced():
    course = Course(max_worker_memory=1000)
    found = [course.supervisor.is_too_large(course.record)]
    course.engine.memory_bytes.return_value = 1001
    found.append(course.supervisor.is_too_large(course.record))
    course.record.side.mark_for_replacement()
    assert [*found, course.supervisor.is_too_large(course.record)] == [False, True, False]


# The first two of these are of the dead alone, the other one of environments that no sampler runs.
def test_what_is_done_once_a_ticket_is_no_step():
    """A large ticket takes long to pack and to pickle, in code that cannot tell how far it is."""
    hooks = {Phase.HOOK_START, Phase.HOOK_TIMESTEP, Phase.HOOK_END, Phase.HOOK_LOST, Phase.DROP_IF}
    within_trajectories = {Phase.RESET, Phase.AGENT_RESET, Phase.ACTION, Phase.STEP, *hooks}
    for phase in set(Phase) - {Phase.UNSEEN, Phase.STARTING, Phase.CALL}:
        course = Course(step_timeout=1.0, construction_timeout=8.0)
        course.engine.progress.return_value = Progress(1, 7, 2, phase)
        assert course.until_killed()
        assert (course.now < 2.0) == (phase in {*within_trajectories, Phase.WAITING, Phase.CLOSE, Phase.CHECK}), phase
