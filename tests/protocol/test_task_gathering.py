"""Sections of several tasks in one call: what is assigned, when, and at whose turn a failure counts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from streamsampler.core.errors import SpentQuota
from streamsampler.core.times import Times
from streamsampler.protocol.facts import FaultEndsCall, LossReplaced, LostInClosing, TooManyDropped, UnneededFault
from streamsampler.protocol.gathering import Assignment
from streamsampler.protocol.index_queue import IndexQueue
from streamsampler.protocol.instructions import Keep, Kill, Launch, Raise, Retire, Send, Warn
from streamsampler.protocol.messages import Dropped, Phase, Start, Ticket
from streamsampler.protocol.plans import Layout, Streamed
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.run_twice_checks import TaskChecks
from streamsampler.protocol.task_gathering import TaskGathering
from streamsampler.protocol.task_sections import Section, Sections, TaskName
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import TICKET_BYTES
from tests.protocol.test_scheduler import Driven, of


def sections_of(*amounts: int, first: int = 0, check: bool = False) -> Sections:
    """Return sections of so many trajectories, each of a task of its own."""
    found: list[Section] = []
    for number, n in enumerate(amounts):
        start = found[-1].stop if found else 0
        found.append(Section(TaskName(number, f"t{number}"), start, start + n, first, check))
    return Sections(found)


def gathering_of(*amounts: int, n_workers: int = 2, layout: Layout = Layout(), known: Any = ()) -> TaskGathering:
    """Return a gathering; `known` has seconds and bytes of a trajectory of tasks whose throughput is known."""
    plan = Streamed(limit=sum(amounts), fixed=True, sections=sections_of(*amounts))
    throughputs: dict[int, Throughput] = {}
    for task, (seconds, n_bytes) in enumerate(known):
        throughputs[task] = Throughput()
        for worker in range(n_workers):
            throughputs[task].measure([10] * 10, 10 * seconds, worker, 10 * n_bytes)
    return TaskGathering(plan, throughputs, n_workers=n_workers, layout=layout)


def run(gathering: TaskGathering, worker: int, assignment: Assignment, dropped: Any = ()) -> None:
    n = len(assignment.indices) - len(dropped)
    gathering.receive(worker, assignment.indices, [10] * n, 0, 0.0, dropped)


@pytest.mark.parametrize("seed", range(30))
def test_tickets_are_those_of_each_task_alone(seed):
    """Whole blocks from the start of each section, none across its end; each index once, also after losses."""
    dice = random.Random(seed)
    block, lengthens = dice.choice([(1, False), (3, False), (4, True)])
    layout = Layout(block, block, lengthens=lengthens)
    amounts = [dice.choice([1, 2, 7, 30, 200]) for _ in range(dice.randrange(1, 8))]
    known = [(dice.choice([1e-4, 0.02, 1.0]), 100)] * dice.randrange(len(amounts) + 1)
    gathering = gathering_of(*amounts, n_workers=3, layout=layout, known=known)
    for number in range(len(amounts)):
        gathering.run_blocks(number, longer=lengthens)
    sections, held = gathering.plan.sections, dict[int, Assignment]()
    ran: list[int] = []
    while not gathering.result.complete:
        worker = dice.randrange(3)
        if worker in held:
            assignment = held.pop(worker)
            if dice.random() < 0.2:
                gathering.put_back(worker, assignment.indices)
            else:
                run(gathering, worker, assignment)
                ran += assignment.indices
                gathering.result.pop_spans()
        elif (found := gathering.assign(worker)) is not None:
            held[worker] = found
            section = sections.of(found.indices)
            own = section.own_indices(found.indices)
            assert own.stop <= section.stop - section.start
            alone = IndexQueue(range(section.stop - section.start), block, lengthens=lengthens)
            assert found.block == alone.block_of(own)
            assert alone.block_at(own.start).start == own.start
            assert own.stop == len(alone.own) or alone.block_at(own.stop).start == own.stop
    assert sorted(ran) == list(range(sum(amounts)))


def test_none_waits_for_the_last_trajectories_of_a_task():
    gathering = gathering_of(1, 1, 3, n_workers=3)
    assert [gathering.assign(worker) for worker in range(3)] == [
        Assignment(range(1)), Assignment(range(1, 2)), Assignment(range(2, 3)),
    ]  # fmt: skip


def test_a_task_without_a_report_gets_tickets_of_one_unit():
    gathering = gathering_of(100, 100, layout=Layout(4, 4), known=[(1e-4, 10)])
    found = [gathering.assign(worker) for worker in (0, 1, 0, 1, 0, 1)]
    sizes = [len(it.indices) for it in found if it is not None and it.indices[0] < 100]
    assert sizes[0] > 30
    assert sum(sizes) == 100
    assert [len(it.indices) for it in found[len(sizes) :] if it is not None] == [4] * (6 - len(sizes))


def test_what_others_say_of_their_lengths_says_nothing_of_a_task():
    gathering = gathering_of(1_000, 1_000, known=[(0.05, 10), (0.001, 10)])
    sizes = {}
    while (assignment := gathering.assign(0)) is not None:
        sizes[gathering.plan.sections.number_of(assignment.indices[0])] = len(assignment.indices)
        run(gathering, 0, assignment)
        gathering.result.pop_spans()
        if len(sizes) == 2:
            break
    assert sizes == {0: 2, 1: 100}


@pytest.mark.parametrize("n_bytes", [0, TICKET_BYTES // 16, 10 * TICKET_BYTES])
def test_workers_run_ahead_of_one_long_trajectory_as_far_as_memory_goes(n_bytes):
    """They do not wait behind it; and what they hold for the consumer is bounded, whatever trajectories take."""
    gathering = gathering_of(1, 5_000, known=[(100.0, n_bytes), (0.01, n_bytes)])
    first = gathering.assign(0)
    assert first is not None
    n_ahead = 0
    while (assignment := gathering.assign(1)) is not None:
        run(gathering, 1, assignment)
        n_ahead += len(assignment.indices)
    most = 4 * 2 * TICKET_BYTES
    assert n_ahead == 5_000 if not n_bytes else 7 <= n_ahead <= max(7, most // n_bytes)
    assert not n_bytes or n_ahead * n_bytes > 0.9 * most
    run(gathering, 0, first)
    gathering.result.pop_spans()
    assert gathering.result.complete or gathering.assign(1) is not None


def test_copies_are_assigned_while_all_that_runs_is_of_one_section():
    gathering = gathering_of(1, 1, known=[(1.0, 0), (0.001, 0)])
    assert gathering.assign(0)
    assert gathering.assign(1) == Assignment(range(1, 2))
    assert not gathering.may_copy
    run(gathering, 1, Assignment(range(1, 2)))
    assert gathering.may_copy
    assert gathering.throughput.seconds == 1.0
    assert gathering.assign_copy(1, now=5.0) == Assignment(range(1))


def driven_by(*amounts: int, n_workers: int = 1, check: bool = False, first: int = 0, **options: Any) -> Driven:
    sections = sections_of(*amounts, first=first, check=check)
    plan = Streamed(limit=sections[-1].stop, fixed=True, sections=sections)
    return Driven(n_workers, plan, **options)


def test_an_exception_names_its_task_and_the_tasks_own_trajectory():
    driven = driven_by(1, 3, first=6)
    driven.handle(driven.report(lengths=[10], seconds=Times(step=0.1)))
    driven.scheduler.pop_spans()
    said = driven.handle(driven.failure(trajectory=1))
    (error,) = of(Raise, said)
    assert isinstance(error.fact, FaultEndsCall)
    fault = error.fact.fault
    assert fault.failure is not None
    assert (fault.task, fault.failure.trajectory) == (TaskName(1, "t1"), 6)
    assert str(fault) == "worker 0 failed while stepping the environment in trajectory 6 of task 't1': ValueError: no"


@pytest.mark.parametrize("phase", [Phase.ENV_CONSTRUCTION, Phase.AGENT_CONSTRUCTION, Phase.CHECK])
def test_an_environment_that_cannot_be_made_counts_at_its_tasks_turn(phase):
    driven = driven_by(1, 1, 1, n_workers=2)
    assert not of(Raise, driven.handle(driven.failure(1, phase=phase)))
    said = driven.handle(driven.report(0))
    assert of(Keep, said), "the consumer of the stream gets it before"
    assert not of(Raise, said)
    driven.scheduler.pop_spans()
    (error,) = of(Raise, driven.handle())
    assert isinstance(error.fact, FaultEndsCall)
    assert error.fact.fault.task == TaskName(1, "t1")


def test_a_death_names_the_task_in_hand():
    driven = driven_by(1, 2, n_workers=2, max_restarts=0)
    seen = Progress(1, 3, 1, Phase.STEP)
    driven.handle(driven.death(1, progress=seen))
    driven.handle(driven.report(0))
    driven.scheduler.pop_spans()
    (error,) = of(Raise, driven.handle())
    assert isinstance(error.fact, FaultEndsCall)
    incident = error.fact.fault.incident
    assert incident is not None
    assert (incident.task, incident.trajectory) == (TaskName(1, "t1"), 0)
    assert str(incident).endswith("while stepping the environment in trajectory 0 of task 't1'")


CLOSES = Progress(1, 3, None, Phase.CLOSE, task=0)
"""Of a worker that closes the first task's environment."""


def test_a_death_while_an_environment_is_closed_names_its_task_and_costs_nothing():
    driven = driven_by(1, 2, n_workers=2, max_restarts=0)
    for _ in range(3):
        (ticket,) = driven.tickets(1)
        said = driven.handle(driven.death(1, progress=CLOSES))
        (warning,) = of(Warn, said)
        assert isinstance(warning.fact, LostInClosing)
        text = str(warning.fact.fault)
        assert text.startswith("worker 1 was killed by SIGKILL")
        assert text.endswith("while closing the environment of task 't0'")
        assert of(Launch, said)
        driven.handle()
        assert [(again.indices) for again in driven.tickets(1)] == [ticket.indices]
    driven.handle(driven.report(0), driven.report(1))
    assert driven.scheduler.pop_spans()
    assert not of(Raise, driven.said)


def test_a_death_in_closing_whose_trajectories_are_lacking_counts_for_their_task():
    """Their answer was lost on its way: the worker in this one's place runs them again, and may die again."""
    driven = driven_by(1, 2, n_workers=1, max_restarts=1)
    assert not of(Raise, driven.handle(driven.death(0, progress=CLOSES)))
    assert [ticket.indices for ticket in driven.tickets()][:1] == [range(1)]
    (error,) = of(Raise, driven.handle(driven.death(0, progress=CLOSES)))
    assert isinstance(error.fact, FaultEndsCall)
    assert (error.fact.fault.task, error.fact.quota) == (
        TaskName(0, "t0"),
        SpentQuota(2, " within 60 s", "max_restarts", 1),
    )


def test_equal_deaths_in_closing_have_an_end_where_any_number_may_be():
    driven = driven_by(1, 2, n_workers=1, max_restarts=None, max_lifetime_restarts=None)
    for _ in range(20):
        if errors := of(Raise, driven.handle(driven.death(0, exitcode=-11, progress=CLOSES))):
            break
    (error,) = errors
    assert isinstance(error.fact, FaultEndsCall)
    assert error.fact.quota == SpentQuota(3, " of the environment of task 't0'", "max_restarts", None)


def test_a_death_while_a_worker_retires_is_none_of_a_task():
    driven = driven_by(1, 2, n_workers=2, max_worker_memory=10)
    driven.handle(driven.report(0, memory=20))
    assert of(Retire, driven.said)
    assert not any(
        isinstance(it.fact, LostInClosing) for it in of(Warn, driven.handle(driven.death(0, progress=CLOSES)))
    )


@pytest.mark.parametrize("limits", [{}, {"step_timeout": 100.0}, {"construction_timeout": 100.0}])
def test_an_environment_that_is_not_closed_in_time_costs_its_worker(limits):
    driven = driven_by(1, 2, n_workers=2, close_timeout=4.0, max_restarts=0, **limits)
    driven.progress = replace(CLOSES, task=None, phase=Phase.STEP)
    began = driven.now
    assert not driven.until_killed(10)
    driven.progress = CLOSES
    began = driven.now
    assert driven.until_killed() == [Kill(0, hangs=True), Kill(1, hangs=True)]
    assert 4.0 <= driven.now - began <= 6.0
    said = driven.handle(driven.death(1, stack="in close"))
    (warning,) = of(Warn, said)
    assert "worker 1 made no progress for" in str(warning.fact.fault)
    assert str(warning.fact.fault).endswith("while closing the environment of task 't0'")
    assert not of(Raise, said)


def test_a_sampler_that_closes_nothing_within_calls_sleeps_until_something_happens():
    driven = Driven(2, Streamed(limit=3, fixed=True))
    assert driven.scheduler.seconds_to_wait(driven.now) is None


def test_each_task_has_its_own_quota_of_losses():
    driven = driven_by(2, 2, 2, max_restarts=1)
    for task in range(3):
        for index in (2 * task, 2 * task + 1):
            if index % 2:
                assert not of(Raise, driven.handle(driven.death(progress=Progress(1, 3, index, Phase.STEP))))
            (ticket, *_) = driven.tickets()
            driven.handle(driven.report(ticket=ticket))
            driven.scheduler.pop_spans()
    assert sum(isinstance(it.fact, LossReplaced) for it in of(Warn, driven.said)) == 3


def test_a_death_in_a_task_of_an_earlier_call_counts_for_nothing():
    """The environment of a task that ended the call before is being made still, in other workers."""
    driven = driven_by(1, 2, n_workers=2, max_restarts=0)
    plan = Streamed(limit=3, fixed=True, sections=sections_of(3))
    driven.scheduler.end(driven.now)
    driven.scheduler.begin(plan, driven.now)
    said = driven.handle(driven.death(1, progress=Progress(1, 0, None, Phase.ENV_CONSTRUCTION, task=1)))
    (warning,) = of(Warn, said)
    assert isinstance(warning.fact, UnneededFault)
    assert str(warning.fact.fault).endswith("while making the environment of task 't1'")
    assert not of(Raise, said)


@pytest.mark.parametrize(
    "progress", [Progress(1, 0, None, Phase.ENV_CONSTRUCTION, task=0), Progress(1, 7, 0, Phase.STEP)]
)
def test_a_worker_that_answers_after_it_seemed_to_hang_is_none_of_a_task(progress):
    driven = driven_by(1, n_workers=1, max_restarts=0, step_timeout=1.0, construction_timeout=1.0)
    driven.progress = progress
    assert driven.until_killed() == [Kill(0, hangs=True)]
    driven.handle(driven.report(lengths=[10]), driven.death(progress=Progress(1, 0, None, Phase.WAITING)))
    assert not of(Raise, driven.said)
    assert [type(it.fact) for it in of(Warn, driven.said)] == [UnneededFault]


def test_a_worker_that_hangs_before_it_has_begun_is_a_loss_of_the_sampler():
    driven = driven_by(1, n_workers=1, max_restarts=0, step_timeout=1.0)
    driven.progress = Progress(0, 0, None, Phase.WAITING)
    assert driven.until_killed(1_000) == [Kill(0, hangs=True)]
    (error,) = of(Raise, driven.handle(driven.death()))
    assert isinstance(error.fact, FaultEndsCall)
    assert error.fact.fault.task is None


def test_deaths_without_work_are_the_samplers_own():
    driven = driven_by(1, 3, n_workers=2, max_restarts=1)
    driven.handle(driven.death(0, progress=Progress(1, 3, 0, Phase.STEP)))
    idle = Progress(0, 0, None, Phase.WAITING)
    assert not of(Raise, driven.handle(driven.death(1, progress=idle)))
    (error,) = of(Raise, driven.handle(driven.death(1, progress=idle)))
    assert isinstance(error.fact, FaultEndsCall)
    assert error.fact.fault.task is None
    assert [incident.task for incident in error.fact.history] == [None, None]


def test_too_many_that_are_left_out_are_counted_by_task():
    """Of each task alone: many that are kept of another one do not make up for it."""
    driven = driven_by(2_000, 150, on_failure="drop")
    while not driven.scheduler._gathering.result.complete:
        (ticket,) = driven.tickets()[:1]
        lost = [k for k, index in enumerate(ticket.indices) if index >= 2_000 or index % 40 == 0]
        dropped = tuple(Dropped(k, "step", "no") for k in lost)
        lengths = [10] * (len(ticket.indices) - len(lost))
        said = driven.handle(driven.report(lengths=lengths, dropped=dropped, seconds=Times(step=0.01)))
        driven.scheduler.pop_spans()
        said += driven.handle()
        if errors := of(Raise, said):
            break
    error = errors[0]
    assert isinstance(error.fact, TooManyDropped)
    assert (error.fact.n_dropped, error.fact.n_kept, error.fact.last.trajectory) == (100, 0, 99)
    assert error.fact.task == TaskName(1, "t1")


def test_a_task_that_may_have_killed_its_worker_in_the_check_is_not_checked_again():
    checks = TaskChecks("warn")
    driven = driven_by(3, 3, n_workers=2, check=True, checks=checks)
    assert [send.message.check for send in of(Send, driven.said) if isinstance(send.message, Start)] == [True, True]
    assert checks.is_due(0)
    driven.handle(driven.death(0, progress=Progress(1, 3, 0, Phase.STEP)))
    assert not checks.is_due(0)
    starts = [send.message for send in of(Send, driven.said) if isinstance(send.message, Start)]
    assert [start.check for start in starts] == [True, True, False]
    assert checks.is_due(1)


def test_sections_translate_indices():
    sections = sections_of(3, 5, first=8)
    assert [sections.number_of(index) for index in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    ticket = Ticket(1, range(4, 7))
    own = sections.of(ticket.indices).own_indices(ticket.indices)
    assert own == range(9, 12)
    assert sections[1].indices_of_call(own) == ticket.indices
