"""C1 and C5: whether a call fails, and for which trajectory, depends on the seed alone, not on timing or workers."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.environments.updates import NewEnvUpdate
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerError
from streamsampler.protocol.messages import Start, Ticket
from streamsampler.testing import Fault, Faults
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.loop import WorkerLoop
from tests.faults.conftest import slow
from tests.faults.test_ends import gone
from tests.patience import PATIENCE
from tests.scripted.agents import above_half
from tests.scripted.failing import Brittle
from tests.workers.contexts import context_of, new_board

SEED = 11


def tried(call: Any, *arguments: Any) -> Any:
    """A batch, or what is said of the trajectory that ended the call."""
    try:
        return call(*arguments)
    except WorkerError as error:
        return type(error), error.trajectory, error.phase, type(getattr(error, "original", None))


def streamed(sampler: Any, number: int) -> list[Any]:
    """What a stream hands out before it has handed out so many, or raises."""
    found: list[Any] = []
    stream = sampler.stream()
    while len(found) < number:
        found.append(tried(next, stream))
        if isinstance(found[-1], tuple):
            break
    stream.close()
    return found


def outcomes(sampler: Any, n_rounds: int) -> list[Any]:
    found: list[Any] = []
    with sampler:
        for _ in range(n_rounds):
            found.append(tried(sampler.obtain_samples, 100))
            found.append(tried(sampler.obtain_trajectories, 20))
            found.append(tried(sampler.obtain_exact_trajectories, 1))
            found.append(streamed(sampler, 40))
    return found


def compare(make: Any, n_rounds: int, one_in: int = 30, **options: Any) -> list[Any]:
    env = partial(Brittle, one_in=one_in)
    expected = outcomes(LocalSampler(above_half, env, seed=SEED, **options), n_rounds)
    assert outcomes(LocalSampler(above_half, env, seed=SEED, **options), n_rounds) == expected
    found = outcomes(make(above_half, env, seed=SEED, **options), n_rounds)
    # Of exactly so many for each worker there are more with more workers.
    assert [one for position, one in enumerate(found) if position % 4 != 2] == [
        one for position, one in enumerate(expected) if position % 4 != 2
    ]
    return expected


@pytest.mark.parametrize("n_workers", [slow(1), slow(2), 3])
def test_a_call_fails_for_the_first_trajectory_that_it_needs_and_for_no_other(n_workers: int) -> None:
    expected = compare(lambda *given, **options: MultiprocessingSampler(*given, n_workers=n_workers, **options), 8)
    failed = [one for one in expected if isinstance(one, tuple)]
    assert 3 < len(failed) < 20
    assert {one[0] for one in failed} == {RolloutError}
    streams = [one for one in expected if isinstance(one, list)]
    assert any(len(one) > 1 and isinstance(one[-1], tuple) and one[-1][1] == len(one) - 1 for one in streams)


@pytest.mark.parametrize("n_rounds", [1, slow(3)])
@pytest.mark.parametrize(
    # Losses of the whole life: how many of them come within so many seconds depends on the machine.
    "options",
    [{"restart_on": OSError, "max_restarts": 1, "restart_window": None}, slow({"on_failure": "drop"})],
    ids=str,
)
@pytest.mark.slow
def test_losses_count_and_trajectories_are_left_out_in_the_same_order(options: dict[str, Any], n_rounds: int) -> None:
    expected = compare(
        lambda *given, **others: MultiprocessingSampler(*given, n_workers=3, **others), n_rounds, **options, one_in=15
    )
    assert any(isinstance(one, tuple) for one in expected) == ("restart_on" in options)


@pytest.mark.slow
def test_with_blocks_that_are_run_side_by_side() -> None:
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    expected = compare(lambda *given, **others: MultiprocessingSampler(*given, n_workers=3, **others), 6, **vec)
    assert any(isinstance(one, tuple) for one in expected)
    assert any(not isinstance(one, tuple) for one in expected)


@pytest.mark.slow
def test_where_most_are_left_out_the_call_ends_with_the_same_trajectory() -> None:
    """It is the order of indices that decides when there were too many."""
    errors = []
    for make, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 1), (MultiprocessingSampler, 3)):
        with make(above_half, partial(Brittle, one_in=1), n_workers=n_workers, seed=SEED, on_failure="drop") as sampler:
            with pytest.raises(RolloutError, match="trajectories failed and 0 did not") as caught:
                sampler.obtain_trajectories(1)
            errors.append((caught.value.trajectory, caught.value.phase))
    assert errors == 3 * [(99, "stepping the environment")]


def test_a_loss_that_is_not_needed_uses_up_no_quota(tmp_path: Path) -> None:
    """A worker dies in trajectory 1 while another is in 0, which turns out to be all that is needed."""
    faults = Faults(tmp_path, Fault("kill", trajectory=1), seed=SEED)
    make_env = partial(waits_for, faults, TrajectorySeeds(SEED, 1)[0])
    with MultiprocessingSampler(above_half, faults.env(make_env), n_workers=2, seed=SEED, max_restarts=0) as sampler:
        assert sampler.obtain_samples(2).indices.tolist() == [0]
        assert faults.fired() == 1
        assert len(sampler.obtain_trajectories(4)) == 4


@pytest.mark.slow
def test_a_loss_that_is_needed_ends_the_call_when_those_before_it_are_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(tmp_path, Fault("kill", trajectory=1), seed=SEED)
    make_env = partial(waits_for, faults, TrajectorySeeds(SEED, 1)[0])
    with MultiprocessingSampler(above_half, faults.env(make_env), n_workers=2, seed=SEED, max_restarts=0) as sampler:
        stream = sampler.stream()
        assert next(stream).indices.tolist() == [0]
        with pytest.raises(WorkerDiedError, match="in trajectory 1 of agent version 1"):
            next(stream)
    assert "did not need it" not in caplog.text, "the error says so"


def waits_for(faults: Faults, seed: int) -> gymnasium.Env[Any, Any]:
    return WaitsForFault(faults, seed)


class WaitsForFault(Brittle):
    """Ends its trajectory of one seed only after a worker has died of a fault.

    After its death, which the sampler sees at the same time; before, another worker might run what it had in hand.
    """

    def __init__(self, faults: Faults, seed: int) -> None:
        super().__init__(one_in=0)
        self.faults, self.seed = faults, seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.left = 2
        if seed == self.seed:
            self.faults.wait(1, PATIENCE)
            assert gone(self.faults.pids())
        return result


@pytest.mark.slow
def test_a_rollout_that_cannot_be_sent_is_a_failure_of_its_own_trajectory(tmp_path: Path) -> None:
    """Nobody knows which one it is of a ticket of several; those before it can be handed out."""
    seeds = TrajectorySeeds(SEED, 1)
    for make, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 2)):
        with make(above_half, partial(Locked, seeds[40]), n_workers=n_workers, seed=SEED) as sampler:
            found = streamed(sampler, 60)
        assert len(found) == 41
        assert found[-1][:3] == (RolloutError, 40, "sending the rollouts")


class Locked(Brittle):
    """Tells of a lock in the trajectory with one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(one_in=0)
        self.seed = seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        return observation, {"lock": threading.Lock()} if seed == self.seed else info


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_an_environment_that_raised_is_closed_quietly(make: Any) -> None:
    """What it says to that is no news, whether the batch needed the trajectory or not."""
    with make(above_half, partial(Brittle, one_in=1), n_workers=1, seed=SEED) as sampler:
        with pytest.raises(RolloutError, match="the arm is stuck"):
            sampler.obtain_trajectories(1)
        assert len(sampler.obtain_trajectories(1, env_update=partial(Brittle, one_in=0))) == 1
        with pytest.raises(RolloutError, match="the arm is stuck"):
            sampler.obtain_trajectories(1, env_update=partial(Brittle, one_in=1))


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
    assert [(type(answer).__name__, answer.given_up) for answer in said] == [("Report", True), ("Report", False)]
