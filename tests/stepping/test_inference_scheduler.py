"""What the scheduler of a sampler's environments in other processes decides, event by event."""

from streamsampler.errors import RolloutError
from streamsampler.protocol.losses import Losses, Policy
from streamsampler.stepping.env_messages import (
    IT_RAISED,
    CountLoss,
    CountRestored,
    CountUnrestored,
    EnvsFailed,
    KeepError,
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
)  # fmt: skip
from streamsampler.stepping.env_states import EnvEvent, EnvState
from streamsampler.stepping.inference.scheduler import RolloutScheduler
from tests.stepping.test_env_scheduler import died, incident

DIED = died(0, 1)
LOST = [CountLoss(DIED.error), MakeOrders(1, [0, 1], (), Place.NEW)]


def stepping(losses: Losses | None = None) -> RolloutScheduler:
    """Return a scheduler of two environments, which are at their first step."""
    scheduler = RolloutScheduler(2, losses)
    for env_id in (0, 1):
        scheduler.start_trajectory(env_id)
    assert scheduler.handle([RequestsDone([0, 1])]) == []
    assert scheduler.receive() == [0, 1]
    scheduler.request([0, 1], EnvEvent.SENT)
    return scheduler


def raised(env_id: int = 0) -> EnvsFailed:
    return EnvsFailed([env_id], RolloutError("it raised", worker_number=0, phase="step", trajectory=None), 0, env_id)


def test_what_an_environment_raises_is_its_result():
    scheduler = stepping()
    event = raised()
    assert scheduler.handle([event, DIED])[0] == KeepError(0, event.error)
    assert scheduler.receive() == [0]
    assert (scheduler.over, scheduler.waiting) == ({0}, {1})
    scheduler.start_trajectory(0)
    assert (scheduler.over, scheduler.states[0]) == (set(), EnvState.RESETTING)


def test_results_are_held_until_their_environment_is_what_it_was():
    scheduler = stepping()
    assert scheduler.handle([RequestsDone([0]), DIED]) == LOST
    assert scheduler.handle([OrdersMade(1, {}, [0, 1])]) == [RestoreEnvs((0, 1)), RequestSteps([1])]
    assert (scheduler.receive(), scheduler.restoring) == ([], {0, 1})
    restored = Restored(0, 1, "")
    assert scheduler.handle([restored]) == [CountRestored(restored)]
    assert (scheduler.receive(), scheduler.restoring) == ([0], {1})
    assert scheduler.is_open(1)


def test_a_reset_is_requested_again():
    scheduler = RolloutScheduler(2)
    scheduler.start_trajectory(0)
    assert scheduler.handle([DIED]) == [CountLoss(DIED.error), MakeOrders(1, [0], (), Place.NEW)]
    assert scheduler.handle([OrdersMade(1, {})]) == [RestoreEnvs((0, 1)), RequestResets([0])]
    assert scheduler.restoring == set()


def test_what_is_not_wanted_is_not_restored():
    scheduler = stepping()
    scheduler.handle([RequestsDone([0])])
    scheduler.forget()
    assert scheduler.over == {0}
    assert scheduler.handle([DIED]) == LOST[:1]
    assert scheduler.states == [EnvState.STEPPING, EnvState.FAILED]
    assert not scheduler.is_open(1)


def test_an_environment_that_does_something_else_is_given_up():
    scheduler = stepping()
    scheduler.handle([DIED])
    scheduler.handle([OrdersMade(1, {}, [0, 1])])
    restored = Restored(0, 0, "its observation is another one")
    assert scheduler.handle([restored, raised(1)]) == [
        CountRestored(restored), ReleaseEnvs([0]), CountUnrestored(0, "its observation is another one"),
        ReleaseEnvs([1]), CountUnrestored(1, IT_RAISED),
    ]  # fmt: skip
    assert (scheduler.over, scheduler.restoring, scheduler.waiting) == ({0, 1}, set(), set())


def test_a_history_that_is_not_kept():
    """Nothing was asked of the new environment: it ignores nothing."""
    scheduler = stepping()
    scheduler.handle([DIED])
    assert scheduler.handle([OrdersMade(1, {0: "too long"}, [1])]) == [
        RestoreEnvs((0, 1)), RequestSteps([1]), CountUnrestored(0, "too long"),
    ]  # fmt: skip


def test_a_spent_quota_is_an_error_and_nothing_is_restored():
    scheduler = stepping(Losses(Policy(max_restarts=0)))
    event = died(0, 1, incidents=(incident(),))
    (failure,) = scheduler.handle([event])
    assert isinstance(failure, RaiseFailure)
    assert failure.quota == (1, " within 60 s", "max_restarts", 0)
    assert not any(map(scheduler.is_open, (0, 1)))
