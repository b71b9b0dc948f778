"""What the scheduler of a manager's environments decides, event by event: no process, no environment, no clock."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

import streamsampler
from streamsampler.errors import ProtocolError, RolloutError, WorkerDiedError
from streamsampler.protocol.losses import Loss, Losses, LossKind, Policy
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.env_messages import (
    CountRestored,
    CountUnrestored,
    EnvReport,
    EnvsFailed,
    MakeOrders,
    OrdersMade,
    Place,
    RaiseFailure,
    ReleaseEnvs,
    RequestResets,
    RequestsDone,
    RequestSteps,
    Restored,
    RestoreEnvs,
    Rewind,
    StartEpisodes,
)  # fmt: skip
from streamsampler.stepping.env_scheduler import EnvScheduler
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.loss_scheduler import subject_of

READY, RESETTING, STEPPING = EnvState.READY, EnvState.RESETTING, EnvState.STEPPING
NEEDS_RESET, FAILED = EnvState.NEEDS_RESET, EnvState.FAILED


def incident(env_id: int = 0) -> Loss:
    likeness = LossKind(subject_of(env_id), "the gearbox is stuck")
    return Loss(0, "raised", Phase.STEP, None, None, 0.0, likeness=likeness)


def raised(env_id: int = 0, *, phase: str = "step", is_final: bool = False) -> EnvsFailed:
    incidents = (incident(env_id),)
    error = RolloutError("it raised", worker_number=0, phase=phase, trajectory=None, incidents=incidents)
    return EnvsFailed([env_id], error, 0, env_id, is_final=is_final)


def died(*env_ids: int, culprit: int | None = None, **fields) -> EnvsFailed:
    error = WorkerDiedError("it died", exitcode=-9, worker_number=0, phase=Phase.STEP, trajectory=None, **fields)
    return EnvsFailed(env_ids, error, 0, culprit, is_new=True)


def stepping(n_envs: int = 2, *args, **options) -> EnvScheduler:
    """Return a scheduler whose environments have begun, and are at a step."""
    scheduler = begun(n_envs, *args, **options)
    scheduler.send(range(n_envs))
    return scheduler


def begun(n_envs: int = 2, *args, **options) -> EnvScheduler:
    scheduler = EnvScheduler(n_envs, *args, **options)
    assert scheduler.reset(range(n_envs)) == [StartEpisodes(list(range(n_envs)))]
    scheduler.handle([RequestsDone(range(n_envs))], 0.0)
    receive(scheduler, range(n_envs))
    return scheduler


def receive(scheduler: EnvScheduler, env_ids: Sequence[int], ended=(), abnormal=()) -> list[int]:
    scheduler.start_episodes(env_ids)
    return scheduler.receive(env_ids, ended, abnormal)


def made(scheduler: EnvScheduler, instructions, unkept=(), now=0.0):
    """Report that orders are made; return what was asked, and what is asked then."""
    orders = instructions[-1]
    assert isinstance(orders, MakeOrders)
    answer = OrdersMade(orders.number, dict.fromkeys(unkept, "it is too long"))
    return (list(orders.to_restore), list(orders.to_remake), orders.place), scheduler.handle([answer], now)


def test_it_imports_nothing_that_does_anything():
    """No engine, no clock, no logging, no arrays, no memory that is shared."""
    package, seen, todo = Path(streamsampler.__file__).parent, set(), ["streamsampler.stepping.env_scheduler"]
    outside = set()
    while todo:
        module = todo.pop()
        seen.add(module)
        path = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                found = node.module.startswith("streamsampler.stepping") and node.module not in seen
                todo += [node.module] if found else []
                outside.add(node.module)
            elif isinstance(node, ast.Import):
                outside.update(alias.name for alias in node.names)
    rooms = {name.split(".")[1] for name in outside if name.startswith("streamsampler.")}
    assert rooms == {"core", "protocol", "stepping"}
    assert {name for name in outside if not name.startswith("streamsampler.")} <= {
        "__future__", "abc", "collections.abc", "dataclasses", "enum", "math", "types", "typing",
    }  # fmt: skip


def test_results_are_received_once():
    scheduler = begun()
    assert scheduler.send([1, 0], together=True) == (RequestSteps([1, 0], together=True),)
    assert (scheduler.states, scheduler.waiting) == ([STEPPING] * 2, {0, 1})
    with pytest.raises(ProtocolError, match="SENT is not allowed in state STEPPING"):
        scheduler.send([0])
    assert scheduler.handle([RequestsDone([1])], 0.0) == []
    assert list(scheduler.arrived) == [1]
    receive(scheduler, [1])
    with pytest.raises(ProtocolError, match="have no result to receive"):
        receive(scheduler, [1])
    with pytest.raises(ProtocolError, match="without an open request"):
        scheduler.handle([RequestsDone([1])], 0.0)
    assert (scheduler.states, scheduler.n_open) == ([STEPPING, READY], 1)


@pytest.mark.parametrize(
    ("autoreset", "max_episodes", "abnormal", "state", "is_over"),
    [
        ("next_step", None, [], READY, True),
        ("same_step", None, [], READY, False),
        ("disabled", None, [], NEEDS_RESET, True),
        ("same_step", 1, [], EnvState.FINISHED, True),
        ("same_step", None, [0], FAILED, True),
    ],
)
def test_an_episode_ends(autoreset, max_episodes, abnormal, state, is_over):
    scheduler = stepping(2, "restore", autoreset, max_episodes)
    scheduler.handle([RequestsDone([0, 1])], 0.0)
    assert receive(scheduler, [0, 1], [0], abnormal) == ([] if is_over else [0])
    assert (scheduler.states, 0 in scheduler.over) == ([state, READY], is_over)


def test_a_reset_waits_for_the_open_step_and_discards_it():
    scheduler = stepping()
    assert scheduler.reset([0, 1]) == []
    assert scheduler.handle([RequestsDone([1])], 0.0) == [StartEpisodes([1], n_discarded=1, n_abandoned=1)]
    assert (scheduler.states, scheduler.waiting) == ([STEPPING, RESETTING], {0, 1})
    assert scheduler.handle([RequestsDone([0, 1])], 0.0) == [StartEpisodes([0], n_discarded=1, n_abandoned=1)]
    assert list(scheduler.arrived) == [1]


def test_the_reset_after_an_end_goes_on_counting_episodes():
    scheduler = begun(1, "restore", "disabled", 2)
    for state, n_abandoned in ((NEEDS_RESET, 0), (EnvState.FINISHED, 0), (NEEDS_RESET, 0)):
        scheduler.send([0])
        scheduler.handle([RequestsDone([0])], 0.0)
        receive(scheduler, [0], [0])
        assert scheduler.states == [state]
        assert scheduler.reset([0]) == [StartEpisodes([0], n_abandoned=n_abandoned)]
        scheduler.handle([RequestsDone([0])], 0.0)
        receive(scheduler, [0])


def test_what_raises_is_restored_and_tried_once_more():
    scheduler = stepping()
    asked, then = made(scheduler, scheduler.handle([raised(0)], 0.0))
    assert asked == ([0], [], Place.REMADE)
    assert then == [RestoreEnvs([0]), RequestSteps([0])]
    restored = Restored(0, 0, "")
    assert scheduler.handle([restored], 0.0) == [CountRestored(restored)]
    again = raised(0)
    instructions = scheduler.handle([again], 0.0)
    assert instructions[-1] == RaiseFailure(again.error)
    asked, then = made(scheduler, instructions[:-1])
    assert (asked, then) == (([], [0], Place.REMADE), [RestoreEnvs([0])])
    assert (scheduler.states, scheduler.waiting) == ([FAILED, STEPPING], {1})


def test_a_reset_is_tried_as_often_as_the_quotas_allow():
    scheduler = EnvScheduler(1, losses=Losses(Policy(max_restarts=3, restart_on=(BaseException,))))
    scheduler.reset([0])
    for _ in range(3):
        asked, then = made(scheduler, scheduler.handle([raised(0, phase="reset")], 0.0))
        assert (asked, then) == (([], [0], Place.REMADE), [RestoreEnvs([0]), RequestResets([0])])
    *_, failure = scheduler.handle([raised(0, phase="reset")], 0.0)
    assert isinstance(failure, RaiseFailure)
    assert (failure.quota, len(failure.history)) == ((4, " within 60 s", "max_restarts", 3), 4)
    assert scheduler.states == [FAILED]


def test_success_forgets_failures():
    scheduler = stepping(1, losses=Losses(Policy(max_restarts=None, restart_on=(BaseException,))))
    for _ in range(9):
        made(scheduler, scheduler.handle([raised(0)], 0.0))
        scheduler.handle([RequestsDone([0])], 0.0)
        receive(scheduler, [0])
        scheduler.send([0])
    assert scheduler.states == [STEPPING]


def test_a_lost_process_takes_all_of_its_environments_along():
    """One is at a step, one awaits an action, one is at a reset, one was never reset."""
    scheduler = EnvScheduler(4)
    scheduler.reset([0, 1])
    scheduler.handle([RequestsDone([0, 1])], 0.0)
    receive(scheduler, [0, 1])
    scheduler.send([0])
    scheduler.reset([2])
    instructions = scheduler.handle([died(0, 1, 2, 3, culprit=0)], 0.0)
    assert instructions[0] == Rewind([0, 2])
    asked, then = made(scheduler, instructions)
    assert asked == ([0, 1], [2, 3], Place.NEW)
    assert then == [RestoreEnvs((0, 1, 2, 3)), RequestResets([2]), RequestSteps([0])]


def test_what_a_process_said_before_its_loss_is_outdated():
    scheduler = stepping()
    events: list[EnvReport] = [Restored(1, 3, "it differs"), raised(0), RequestsDone([1]), died(0, 1, culprit=0)]
    instructions = scheduler.handle(events, 0.0)
    assert [type(it) for it in instructions] == [Rewind, MakeOrders]
    asked, then = made(scheduler, instructions)
    assert asked == ([0, 1], [], Place.NEW)
    assert then == [RestoreEnvs((0, 1)), RequestSteps([0])]
    assert list(scheduler.arrived) == [1]


def test_nine_deaths_in_the_same_step_are_borne():
    scheduler = stepping(1, losses=Losses(Policy(max_restarts=100)))
    for _ in range(9):
        made(scheduler, scheduler.handle([died(0, culprit=0)], 0.0))
    last = died(0, culprit=0)
    assert scheduler.handle([last], 0.0)[-1] == RaiseFailure(last.error)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_an_episode_whose_actions_are_not_kept_ends(autoreset):
    scheduler = stepping(2, "restore", autoreset)
    _, then = made(scheduler, scheduler.handle([died(0, 1)], 0.0), unkept=[0])
    ends = [RequestResets([0])] if autoreset == "same_step" else []
    assert then == [RestoreEnvs((0, 1)), RequestSteps([1]), *ends, CountUnrestored(0, "it is too long")]
    assert scheduler.failed == {0}
    assert list(scheduler.arrived) == ([] if ends else [0])


def test_a_reset_takes_the_place_of_a_restore_that_raises():
    """Its worker has yet to carry the reset out: requested again, it would be answered twice."""
    scheduler = begun()
    instructions = scheduler.handle([died(0, 1)], 0.0)
    orders = instructions[-1]
    assert isinstance(orders, MakeOrders)
    assert scheduler.handle([OrdersMade(orders.number, {}, [0, 1])], 0.0) == [RestoreEnvs((0, 1))]
    scheduler.reset([0])
    assert scheduler.handle([raised(0, phase="reset"), Restored(1, 0, "")], 0.0)[1:] == []
    assert (scheduler.waiting, scheduler.restoring) == ({0}, set())


@pytest.mark.parametrize("is_open", [True, False])
def test_an_environment_that_does_something_else_ends_its_episode(is_open):
    scheduler = stepping() if is_open else begun()
    made(scheduler, scheduler.handle([died(0, 1)], 0.0))
    it = Restored(0, 3, "its reward is another one")
    expected = [CountRestored(it), ReleaseEnvs([0]), CountUnrestored(0, it.why_not)]
    assert scheduler.handle([it], 0.0) == expected
    assert (scheduler.failed, scheduler.lost) == (({0}, set()) if is_open else (set(), {0}))
    if not is_open:  # its caller is told with its next step, which is not taken
        assert scheduler.send([0, 1]) == [RequestSteps([1])]
        assert (list(scheduler.arrived), scheduler.failed, scheduler.lost) == ([0], {0}, set())


def test_what_raises_waits_before_it_is_tried_again():
    scheduler = stepping(2, restart_wait=2.0)
    _, then = made(scheduler, scheduler.handle([raised(0)], 10.0), now=10.0)
    assert then == []
    assert scheduler.seconds_to_wait(None, 11.0) == 1.0
    assert scheduler.seconds_to_wait(0.5, 11.0) == 0.5
    assert scheduler.handle([RequestsDone([1])], 11.0) == []
    assert scheduler.handle([], 12.0) == [RestoreEnvs([0]), RequestSteps([0])]
    assert scheduler.seconds_to_wait(None, 12.0) is None


def test_what_waits_is_not_done_twice_where_its_process_is_lost_meanwhile():
    scheduler = stepping(2, restart_wait=2.0)
    made(scheduler, scheduler.handle([raised(0)], 0.0))
    _, then = made(scheduler, scheduler.handle([died(0, 1)], 1.0), now=1.0)
    assert then == [RestoreEnvs((0, 1)), RequestSteps([0, 1])]
    assert scheduler.handle([], 2.0) == []


def test_an_episode_that_cannot_be_restored_does_not_wait():
    """Its caller may send the next action at once: to make it anew later would be in the middle of its next episode."""
    scheduler = stepping(2, restart_wait=2.0)
    _, then = made(scheduler, scheduler.handle([raised(0)], 0.0), unkept=[0])
    assert then == [RestoreEnvs([0]), CountUnrestored(0, "it is too long")]
    assert scheduler.handle([], 2.0) == []


def test_the_same_object_is_not_made_anew():
    scheduler = stepping(2, renew=False)
    asked, _ = made(scheduler, scheduler.handle([raised(0)], 0.0))
    assert asked == ([0], [], Place.SAME)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_with_reset_episodes_end_and_resets_are_tried_again(autoreset):
    scheduler = EnvScheduler(3, "reset", autoreset)
    scheduler.reset([0, 1])
    scheduler.handle([RequestsDone([0, 1])], 0.0)
    receive(scheduler, [0, 1])
    scheduler.send([0])
    scheduler.reset([2])
    instructions = scheduler.handle([died(0, 1, 2)], 0.0)
    ends = [RequestResets([0])] if autoreset == "same_step" else []
    assert instructions[2:] == ends
    asked, then = made(scheduler, instructions[:2])
    assert (asked, then) == (([], [0, 1, 2], Place.NEW), [RestoreEnvs((0, 1, 2)), RequestResets([2])])
    assert (scheduler.failed, scheduler.lost) == ({0}, {1})


def test_with_raise_environments_fail():
    scheduler = stepping(3, "raise")
    scheduler.handle([RequestsDone([1])], 0.0)
    event = died(0, 1, culprit=0)
    instructions = scheduler.handle([event], 0.0)
    assert instructions[-1] == RaiseFailure(event.error)
    assert (scheduler.states, scheduler.waiting) == ([FAILED, STEPPING, STEPPING], {2})
    assert (list(scheduler.arrived), scheduler.lost) == ([1], {1})


@pytest.mark.parametrize("is_final", [True, False])
def test_the_error_of_a_step_that_a_reset_discards_is_not_raised(is_final):
    scheduler = stepping(2, "raise")
    scheduler.reset([0])
    instructions = scheduler.handle([raised(0, is_final=is_final)], 0.0)
    assert any(isinstance(it, RaiseFailure) for it in instructions) == is_final
    assert instructions[-1] == StartEpisodes([0], n_failed=1)


def test_a_round_takes_no_account_until_something_comes_in_between():
    scheduler = begun()
    assert scheduler.can_start_round
    scheduler.in_round = True
    assert (scheduler.states, scheduler.waiting, scheduler.can_start_round) == ([READY] * 2, set(), False)
    assert scheduler.end_round([1]) == []
    scheduler.open_round()
    assert (scheduler.states, scheduler.waiting, scheduler.in_round) == ([STEPPING] * 2, {0, 1}, False)


def test_a_round_that_is_closed_in_between():
    scheduler = begun()
    scheduler.in_round = True
    scheduler.close()
    scheduler.open_round()
    assert scheduler.states == [EnvState.CLOSED] * 2


@pytest.mark.parametrize(("autoreset", "max_episodes"), [("disabled", None), ("next_step", 3)])
def test_no_round_where_environments_do_not_go_on(autoreset, max_episodes):
    assert not begun(2, "restore", autoreset, max_episodes).can_start_round


def test_an_interrupt():
    """Environment 0 is about to be received, 1 has arrived, 2 is at a step, 3 at one that its caller resets."""
    scheduler = stepping(4)
    scheduler.handle([RequestsDone([0, 1])], 0.0)
    scheduler.received = [0]
    scheduler.resynchronize()
    assert (scheduler.states[0], scheduler.waiting, list(scheduler.arrived)) == (FAILED, {2, 3}, [1])
    instructions = scheduler.recover([EnvsFailed([0, 1, 2, 3], InterruptedError(), 0, is_new=True)], [3], [])
    assert instructions[-1] == StartEpisodes([3], n_discarded=1, n_abandoned=1)
    asked, then = made(scheduler, instructions[:-1])
    assert asked == ([1, 2], [0, 3], Place.NEW)
    assert then == [RestoreEnvs([0, 1, 2, 3]), RequestSteps([2])]


@pytest.mark.parametrize("is_new", [False, True])
def test_with_raise_an_environment_is_lost_whose_result_has_arrived(is_new):
    """Its caller receives that result; the next step would begin an episode otherwise, and look like one of this."""
    scheduler = stepping(1, "raise")
    scheduler.handle([RequestsDone([0])])
    scheduler.handle([died(0) if is_new else raised(0)])
    receive(scheduler, [0])
    scheduler.send([0])
    assert scheduler.failed == {0}
    assert list(scheduler.arrived) == [0]
