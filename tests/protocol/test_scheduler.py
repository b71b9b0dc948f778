"""Events in, instructions out: what the scheduler decides, without a process and without a clock."""

from typing import Any

import pytest

from streamsampler.core.fingerprints import Fingerprint
from streamsampler.core.times import Times
from streamsampler.protocol.events import (
    FailureReceived,
    LaunchPossible,
    ProgressSeen,
    ReportReceived,
    Waited,
    WorkerDied,
)
from streamsampler.protocol.facts import AlwaysTooLarge, FaultEndsCall, LossReplaced, UnneededFault
from streamsampler.protocol.faults import WorkerFault
from streamsampler.protocol.instructions import (
    AbandonOlder,
    Discard,
    Forget,
    Keep,
    Kill,
    Launch,
    Raise,
    ReadProgress,
    Reason,
    Refused,
    RequestProgress,
    Retire,
    Send,
    Warn,
)
from streamsampler.protocol.losses import Policy, unready
from streamsampler.protocol.messages import Continue, Failure, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.plans import AtLeast, Exactly, Streamed
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.run_twice_checks import RunTwiceChecks
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.states import SamplerState

STILL = Progress(1, 7, 2, Phase.STEP)


class Driven:
    """A scheduler, the time, and what it said; progress is told at once."""

    def __init__(self, n_workers=1, plan=None, **options):
        policy = {name: options.pop(name) for name in list(options) if name in Policy.__dataclass_fields__}
        self.scheduler = Scheduler(n_workers, policy=Policy(**policy), **options)
        self.now, self.progress, self.n, self.said = 0.0, STILL, 0, []
        self.said += self.scheduler.begin(plan or Exactly(3), 0.0)
        self.handle()

    def handle(self, *events):
        said = self.scheduler.handle(events, self.now)
        looked = [it for it in said if isinstance(it, ReadProgress)]
        said = [it for it in said if not isinstance(it, ReadProgress)]
        for look in looked:
            seen = ProgressSeen(dict.fromkeys(look.workers, self.progress))
            said += self.scheduler.handle([seen], self.now)
        self.said += said
        return said

    def known(self, worker=0):
        return self.scheduler.workers[worker]

    def tickets(self, worker=0):
        return self.known(worker).side.unanswered

    def report(self, worker=0, lengths=None, memory=0, agent_steps=None, **about):
        ticket = about.pop("ticket", None) or self.tickets(worker)[0]
        self.n += 1
        lengths = tuple(lengths if lengths is not None else [10] * len(ticket.indices))
        about.setdefault("n_timesteps", sum(lengths))
        report = Report(ticket, n_trajectories=len(lengths), **about)
        return ReportReceived(worker, self.n, report, None if report.abandoned else lengths, agent_steps, memory=memory)

    def failure(self, worker=0, trajectory=None, phase=Phase.STEP, kinds=("builtins.ValueError",), **about):
        self.n += 1
        failure = Failure(self.tickets(worker)[0], phase, trajectory, "ValueError: no", "", None, kinds, **about)
        return FailureReceived(worker, self.n, failure)

    def death(self, worker=0, exitcode=-9, **about):
        return WorkerDied(worker, about.pop("progress", self.progress), exitcode, **about)

    def until_killed(self, limit=100):
        """Let time pass until a worker is killed."""
        for _ in range(limit):
            seconds = self.scheduler.seconds_to_wait(self.now)
            assert seconds is not None
            self.now += seconds
            if kills := [it for it in self.handle(Waited(seconds, seconds)) if isinstance(it, Kill)]:
                return kills
        return []


def of(kind, instructions):
    return [each for each in instructions if isinstance(each, kind)]


def test_a_call_abandons_what_runs_and_gives_each_worker_a_start():
    driven = Driven(2, Exactly(8))
    abandon, *sends = driven.said
    assert abandon == AbandonOlder(1)
    starts = [send.message for send in sends if isinstance(send.message, Start)]
    assert [send.worker for send in sends[:2]] == [0, 1]
    assert all(start.version == 1 and start.tickets[0].version == 1 for start in starts)
    indices = [index for send in sends for ticket in send.message.tickets for index in ticket.indices]
    assert indices == list(range(len(indices)))


def test_a_report_is_counted_kept_and_answered_with_the_next_ticket():
    driven = Driven(1, Exactly(8))
    said = driven.handle(driven.report())
    assert said[0] == Keep(1)
    assert all(isinstance(send.message, Continue) for send in said[1:])


def test_a_report_has_the_fingerprint_of_a_worker_that_died_at_once():
    driven = Driven(1, Exactly(100))
    keep = of(Keep, driven.handle(driven.report(fingerprint=Fingerprint("numpy=1")), driven.death()))[0]
    assert keep.fingerprint == "numpy=1"


def test_the_batch_is_complete_when_its_last_trajectory_is_there():
    driven = Driven(1, Exactly(3))
    result = driven.scheduler.gathering.result
    while not result.complete:
        driven.handle(driven.report())
    assert next(iter(result.spans())).indices[0] == 0
    assert sum(len(span.indices) for span in result.spans()) == 3
    assert driven.scheduler.stop(0.0)[0] == AbandonOlder(2)


def test_busy_workers_stop_at_the_end_and_what_they_answer_is_stale():
    driven = Driven(2, AtLeast(10))
    driven.handle(driven.report(0))
    driven.handle(driven.report(0)) if driven.tickets(0) else None
    assert driven.scheduler.gathering.result.complete
    ended = driven.scheduler.end(0.0)
    assert Send(1, Stop()) in ended
    late = driven.report(1)
    driven.scheduler.begin(AtLeast(10), 0.0)
    assert Discard(late.number, Reason.STALE) in driven.handle(late)
    assert isinstance(of(Send, driven.said)[-1].message, Start)


def test_all_events_of_a_wait_are_handled_before_a_worker_gets_a_ticket():
    driven = Driven(2, Exactly(100))
    said = driven.handle(driven.report(0), driven.report(1))
    kinds = [type(each) for each in said]
    assert kinds[:2] == [Keep, Keep]
    assert set(kinds[2:]) == {Send}


def test_a_late_ticket_is_copied_after_a_look_at_its_worker_alone():
    driven = Driven(3, Exactly(100))
    speed = {"seconds": Times(step=0.1)}
    while driven.tickets(0) or driven.tickets(2):
        for worker in (0, 2):
            if driven.tickets(worker):
                driven.handle(driven.report(worker, **speed))
    assert driven.tickets(1)
    driven.now += 100.0
    (look,) = driven.scheduler.handle((), driven.now)
    assert look == ReadProgress((1,))
    copies = driven.scheduler.handle([ProgressSeen({1: Progress(1, 0, 2, Phase.STEP)})], driven.now)
    copied = {index for send in of(Send, copies) for ticket in send.message.tickets for index in ticket.indices}
    assert copied <= {index for ticket in driven.tickets(1) for index in ticket.indices}
    assert copied
    assert {send.worker for send in of(Send, copies)} <= {0, 2}


def test_while_one_worker_checks_for_all_no_other_one_has_work():
    driven = Driven(2, Exactly(100), checks=RunTwiceChecks("error"))
    assert {send.worker for send in of(Send, driven.said)} == {0}
    assert of(Send, driven.said)[0].message.check
    assert 1 in {send.worker for send in of(Send, driven.handle(driven.report(0)))}


def test_a_failure_ends_the_call_when_its_turn_has_come():
    driven = Driven(2, Exactly(100))
    first, second = driven.tickets(0)[0], driven.tickets(1)[0]
    said = driven.handle(driven.failure(1, second.indices[0]))
    assert not of(Raise, said), "trajectories before it may fail, too"
    said = driven.handle(driven.report(0, ticket=first))
    while not of(Raise, said):
        said = driven.handle(driven.report(0))
    (error,) = of(Raise, said)
    assert said[-1] == error
    assert error.fact == FaultEndsCall(WorkerFault(1, error.fact.fault.failure, 1))
    assert error.fact.fault.failure.trajectory == second.indices[0]
    assert error.refused is Refused.NOTHING


@pytest.mark.parametrize(
    ("phase", "refused"),
    [(Phase.AGENT_UPDATE, Refused.AGENT), (Phase.ENV_CONSTRUCTION, Refused.CALL), (Phase.HOOK_CREATED, Refused.CALL)],
)
def test_an_update_that_a_worker_cannot_apply_ends_the_call_at_once(phase, refused):
    driven = Driven(2, Exactly(100))
    (error,) = of(Raise, driven.handle(driven.failure(1, phase=phase)))
    assert error.refused is refused


def test_faults_outside_of_trajectories_are_decided_in_the_order_of_workers():
    driven = Driven(2, Exactly(100))
    failures = [driven.failure(worker, phase=Phase.AGENT_UPDATE) for worker in (1, 0)]
    (error,) = of(Raise, driven.handle(*failures))
    assert error.fact.fault.worker == 0


def test_a_dead_workers_tickets_run_again_in_a_new_one():
    driven = Driven(1, Exactly(3))
    lost = [index for ticket in driven.tickets() for index in ticket.indices]
    said = driven.handle(driven.death())
    assert said[0] == Forget(0)
    assert isinstance(of(Warn, said)[0].fact, LossReplaced)
    assert of(Launch, said) == [Launch(0)]
    again = [index for ticket in driven.tickets() for index in ticket.indices]
    assert set(again) <= set(lost)
    assert isinstance(of(Send, said)[0].message, Start)


def test_too_many_deaths_end_the_call():
    driven = Driven(1, Exactly(3), max_restarts=2)
    for _ in range(2):
        assert not of(Raise, driven.handle(driven.death()))
    (error,) = of(Raise, driven.handle(driven.death()))
    assert error.fact.quota is not None
    assert len(error.fact.history) == 3


def test_no_worker_is_started_where_the_engine_has_no_room_for_it():
    driven = Driven(1, Exactly(3))
    assert not of(Launch, driven.handle(driven.death(can_launch=False)))
    assert not of(Launch, driven.handle())
    assert not of(Launch, driven.handle(LaunchPossible(0), LaunchPossible(0, is_possible=False)))
    assert of(Launch, driven.handle(LaunchPossible(0)))


def test_a_death_after_the_end_is_a_loss_that_no_call_needed():
    driven = Driven(2, AtLeast(10))
    driven.handle(driven.report(0))
    driven.scheduler.end(0.0)
    driven.scheduler.begin(AtLeast(10), 0.0)
    said = driven.handle(driven.death(1))
    assert isinstance(of(Warn, said)[0].fact, UnneededFault)


def test_deaths_that_something_outside_may_have_caused_are_losses_by_chance():
    """Workers that start are killed, too, by whatever kills workers."""
    cases: list[tuple[dict[str, Any], str | None, bool]] = [
        ({"exitcode": -9}, None, True),
        ({"exitcode": None, "why": "lost its watchdog"}, None, True),
        ({"exitcode": 3}, None, False),
        ({"exitcode": -11}, None, False),
        ({"exitcode": -9}, "(it did not answer)", True),
        ({"exitcode": -9}, 'File "a", line 1', False),
    ]
    places = [(STILL, "trajectory 2"), (Progress(0, 0, None, Phase.WAITING), unready(0))]
    for death, stack, by_chance in cases:
        for seen, subject in places:
            driven = Driven(1, Exactly(3), step_timeout=1.0, construction_timeout=1.0)
            driven.progress = seen
            if stack is not None:
                assert driven.until_killed() == [Kill(0, hangs=True)]
            said = driven.handle(driven.death(progress=seen, stack=stack or "", **death))
            incident = of(Warn, said)[0].fact.fault.incident
            assert (incident.likeness.subject, incident.likeness.by_chance) == (subject, by_chance), (death, stack)


def test_a_worker_is_killed_for_a_hang_once_and_its_successor_is_watched():
    """Also one that hangs before it retires: a loss like any other."""
    driven = Driven(step_timeout=1.0)
    driven.known().side.mark_for_replacement()
    assert driven.until_killed() == [Kill(0, hangs=True)]
    assert of(RequestProgress, driven.said) == [RequestProgress(0)]
    assert driven.known().side.state is SamplerState.CONDEMNED
    assert not driven.until_killed()
    (warning,) = of(Warn, driven.handle(driven.death(stack="a stack")))
    assert (warning.fact.fault.incident.hung, warning.fact.fault.incident.stack) == (True, "a stack")
    assert driven.until_killed() == [Kill(0, hangs=True)]


def test_a_worker_that_is_being_killed_gets_no_ticket_ahead():
    """Nothing was there for it when it had room, and then trajectories turn out to be short."""
    driven = Driven(3, AtLeast(1_000), step_timeout=1.0)
    assert driven.known(2).side.room
    while driven.known(2).side.state is not SamplerState.CONDEMNED:
        driven.now += 0.5
        driven.scheduler.handle([Waited(0.5, 0.5)], driven.now)
        moving = Progress(1, int(driven.now * 2), 0, Phase.STEP)
        driven.scheduler.handle([ProgressSeen({0: moving, 1: moving, 2: STILL})], driven.now)
    said = driven.handle(driven.report(0, seconds=Times(step=0.05)))
    assert {send.worker for send in of(Send, said)} == {0, 1}
    assert {send.worker for send in of(Send, driven.handle(driven.death(2)))} >= {2}


def test_a_worker_that_shows_progress_does_not_hang():
    driven = Driven(step_timeout=1.0)
    for n in range(100):
        driven.progress = Progress(1, n, 2, Phase.STEP)
        seconds = driven.scheduler.seconds_to_wait(driven.now)
        assert seconds is not None
        driven.now += seconds
        assert not of(Kill, driven.handle(Waited(seconds, seconds)))


def test_packing_a_large_ticket_is_no_step():
    """It takes long, in code that cannot tell how far it is."""
    hooks = {Phase.HOOK_START, Phase.HOOK_TIMESTEP, Phase.HOOK_END, Phase.HOOK_LOST, Phase.DROP_IF}
    within_trajectories = {Phase.RESET, Phase.AGENT_RESET, Phase.ACTION, Phase.STEP, *hooks}
    for phase in set(Phase) - {Phase.UNSEEN, Phase.STARTING, Phase.CALL, Phase.IN_FLIGHT}:
        driven = Driven(step_timeout=1.0, construction_timeout=8.0)
        driven.progress = Progress(1, 7, 2, phase)
        assert driven.until_killed()
        assert (driven.now < 2.0) == (phase in {*within_trajectories, Phase.WAITING, Phase.CLOSE, Phase.CHECK}), phase


def test_an_event_loop_that_waits_does_not_hang():
    """It ends what waits for too long itself. A step that computes for as long holds it up, and hangs."""
    driven = Driven(step_timeout=1.0)
    driven.progress = Progress(1, 7, 2, Phase.IN_FLIGHT, waits=5)
    assert not driven.until_killed()
    driven.progress = Progress(1, 7, 2, Phase.STEP, waits=6)
    began = driven.now
    assert driven.until_killed() == [Kill(0, hangs=True)]
    assert driven.now - began > 1.0


def answer_all(driven, worker=0, **about):
    said = []
    while driven.tickets(worker):
        said += driven.handle(driven.report(worker, **about))
    return said


def test_a_worker_that_is_too_large_retires_when_it_has_answered_all():
    driven = Driven(1, Streamed(), max_worker_memory=1000, close_timeout=2.0)
    assert not of(Retire, driven.handle(driven.report(memory=1000)))
    said = driven.handle(driven.report(memory=1001))
    said += answer_all(driven, memory=1001)
    assert of(Retire, said) == [Retire(0, is_too_large=True)]
    assert driven.known().side.state is SamplerState.RETIRING
    assert driven.scheduler.seconds_to_wait(driven.now) == 2.0
    assert driven.until_killed() == [Kill(0)]
    said = driven.handle(driven.death())
    assert not of(Warn, said), "no loss"
    assert of(Launch, said) == [Launch(0)]
    assert driven.scheduler.seconds_to_wait(driven.now) is None


def test_a_worker_that_is_too_large_from_the_start_is_warned_of_once():
    driven = Driven(2, Streamed(), max_worker_memory=1000)
    said = driven.handle(driven.report(0, memory=2000), driven.report(1, memory=2000))
    assert [each.fact for each in of(Warn, said)] == [AlwaysTooLarge(0, 2000, 1000)]


def test_a_worker_that_cannot_be_replaced_goes_on():
    driven = Driven(1, Streamed(), max_worker_memory=1000, can_retire=False)
    said = driven.handle(driven.report(memory=2000))
    assert not of(Retire, said)
    assert driven.known().side.state is not SamplerState.RETIRING
    assert of(Send, said)


def test_an_exception_that_counts_as_a_loss_costs_the_worker():
    driven = Driven(1, Exactly(100), restart_on=(OSError,))
    said = driven.handle(driven.failure(trajectory=0, kinds=("builtins.OSError",)))
    assert isinstance(of(Warn, said)[0].fact, LossReplaced)
    said += answer_all(driven, abandoned=True, lengths=[])
    assert of(Retire, said) == [Retire(0)]


def test_tickets_in_advance_are_kept_if_the_call_would_have_cut_them():
    driven = Driven(2, Exactly(20))
    while not driven.scheduler.gathering.result.complete:
        busy = next(worker for worker in range(2) if driven.tickets(worker))
        driven.handle(driven.report(busy))
    driven.scheduler.end(0.0)
    said = driven.scheduler.prefetch(Exactly(20, first=20), 0.0)
    for worker in range(2):
        while driven.tickets(worker) and driven.tickets(worker)[0].version < driven.scheduler.ticket_version:
            said += driven.handle(driven.report(worker, abandoned=True, lengths=[], n_timesteps=0))
    assert said[0] == AbandonOlder(2)
    given = [ticket for worker in range(2) for ticket in driven.tickets(worker)]
    assert given
    early = driven.report(0)
    assert driven.handle(early) == [], "it is put off until the next call"
    said = driven.scheduler.begin(Exactly(20, first=20), 0.0, sampled_version=1, keeps_prefetched=True)
    assert said[0] == Keep(early.number)
    assert not of(AbandonOlder, said)


def test_a_worker_that_died_is_awaited_no_longer():
    driven = Driven(2, AtLeast(10))
    driven.handle(driven.report(0))
    driven.scheduler.end(0.0)
    driven.scheduler.prefetch(AtLeast(10, first=1), 0.0)
    assert driven.scheduler.awaits_answers
    driven.handle(driven.death(1))
    assert not driven.scheduler.awaits_answers
    said = driven.scheduler.begin(AtLeast(10, first=1), 0.0, sampled_version=1, keeps_prefetched=True)
    assert Forget(1) in said


def test_a_worker_that_died_in_the_meantime_is_replaced_as_soon_as_it_can_be():
    driven = Driven(1, Exactly(3))
    answer_all(driven)
    driven.scheduler.end(0.0)
    driven.scheduler.prefetch(Exactly(3, first=3), 0.0)
    assert driven.handle(driven.death(can_launch=False)) == []
    assert driven.handle(LaunchPossible(0)) == [], "it is about the worker in the dead one's place"
    driven.scheduler.begin(Exactly(3, first=3), 0.0, sampled_version=1, keeps_prefetched=True)
    assert of(Launch, driven.handle()) == [Launch(0)]


def test_timesteps_in_advance_are_counted_as_the_plan_of_their_call_does():
    driven = Driven(1, AtLeast(10))
    answer_all(driven)
    driven.scheduler.end(0.0)
    driven.scheduler.prefetch(AtLeast(10, first=1), 0.0)
    early = driven.report(lengths=[10], agent_steps=(20,))
    driven.handle(early)
    driven.scheduler.begin(AtLeast(20, 1, counts_agents=True), 0.0, sampled_version=1, keeps_prefetched=True)
    assert driven.scheduler.gathering.result.complete


def test_tickets_in_advance_are_abandoned_if_the_call_is_another_one():
    driven = Driven(1, Exactly(3))
    answer_all(driven)
    driven.scheduler.end(0.0)
    driven.scheduler.prefetch(Exactly(3, first=3), 0.0)
    early = driven.report(0)
    driven.handle(early)
    said = driven.scheduler.begin(Exactly(3), 0.0)
    assert said[0] == AbandonOlder(3)
    assert Discard(early.number, Reason.STALE) in said


def test_a_ticket_says_which_version_it_is_of():
    driven = Driven(1, Exactly(3))
    assert {ticket.version for ticket in driven.tickets()} == {1}
    assert isinstance(driven.tickets()[0], Ticket)
