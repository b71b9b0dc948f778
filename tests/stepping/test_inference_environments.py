"""What becomes of environments whose process is lost, told event by event."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler.errors import NotReproducibleError, WorkerDiedError
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.env_messages import EnvReport, EnvsFailed, RequestsDone, Restored
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows

SPACE = spaces.Box(-np.inf, np.inf, (1,), np.float64)
DEATH = WorkerDiedError("worker 0 died", exitcode=-9, worker_number=0, phase=Phase.STEP, trajectory=None)
LOST = EnvsFailed([0, 1], DEATH, 0, is_new=True)
RAISED = [EnvsFailed([0], ValueError("no licence"), 0, is_new=False), Restored(1, 0, "")]


class Script:
    """Stands for processes: tells in each `collect` what it is told to, and notes what it is asked for."""

    def __init__(self) -> None:
        self.rows = Rows(EnvSpaces([(SPACE, SPACE)] * 2), np.zeros)
        self.events: deque[list[EnvReport]] = deque()
        self.asked: list[tuple[str, list[int]]] = []
        self.orders: dict[int, RestoreOrder] = {}

    def collect(self, timeout: float | None) -> Sequence[EnvReport]:
        assert self.events or timeout == 0.0, "this would wait for ever"
        return self.events.popleft() if self.events else []

    def reset(self, env_ids: Sequence[int], orders: Any) -> None:
        self.asked.append(("reset", list(env_ids)))

    def step(self, env_ids: Sequence[int]) -> None:
        self.asked.append(("step", list(env_ids)))

    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        self.orders |= {order.env_id: order for order in orders}
        if orders:
            self.asked.append(("restore", [order.env_id for order in orders]))

    def release(self, env_ids: Sequence[int]) -> None:
        self.asked.append(("release", list(env_ids)))

    def write(self, env_id: int, value: float, reward: float) -> None:
        """Write a result as the environment's process does."""
        slot = self.rows.slots[env_id] = 1 - self.rows.slots[env_id]
        cast("Any", self.rows.observations)[slot, env_id] = value
        self.rows.rewards[env_id] = reward


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def environments(script: Script) -> Environments:
    """Two environments of one process, after their resets and one step of each, which environment 1 has not taken."""
    made = Environments(2, cast("Any", None), 1.0)
    made._processes._transport = cast("Any", script)
    for env_id in (0, 1):
        made.reset(env_id, env_id, seed=7 + env_id, resets=None)
        script.write(env_id, float(env_id), 0.0)
    script.events.append([RequestsDone([0, 1])])
    assert made.receive_arrived(None) == [0, 1]
    made.step([0, 1], [np.array([0.5]), np.array([0.25])])
    return made


def lose(script: Script, environments: Environments) -> None:
    """Lose the process, after environment 0 has written its result, which arrives with the loss."""
    script.write(0, 5.0, 2.0)
    script.events.append([RequestsDone([0]), LOST])
    assert environments.receive_arrived(0.0) == [], "it may turn out to be another one"


def test_a_result_that_arrives_with_the_loss_is_handed_out_when_its_environment_is_what_it_was(script, environments):
    lose(script, environments)
    assert environments.scheduler.restoring == {0, 1}
    assert script.asked[-2:] == [("restore", [0, 1]), ("step", [1])]
    orders = {env_id: (it.seed, it.actions, it.n_timesteps, it.rewards) for env_id, it in script.orders.items()}
    assert orders == {0: (7, [0.5], 1, [2.0]), 1: (8, [], 0, ())}
    script.events.append([Restored(0, 1, ""), Restored(1, 0, "")])
    assert environments.receive_arrived(0.0) == [0]
    assert (environments.observation(0), script.rows.rewards[0], environments.n_repeated) == ([5.0], 2.0, 1)


def test_an_environment_that_does_something_else_is_told_of_when_all_is_taken_in(script, environments):
    lose(script, environments)
    script.events.append(
        [Restored(0, 1, "its reward of timestep 1 is another one"), Restored(1, 0, ""), RequestsDone([1])]
    )
    with pytest.raises(NotReproducibleError, match="environment 0 was lost with its process, and behaved differently"):
        environments.receive_arrived(0.0)
    assert environments.scheduler.restoring == set()
    assert ("release", [0]) not in script.asked, "it was asked for nothing that it ignores"
    assert environments.receive_arrived(0.0) == [0, 1]


def test_a_step_that_an_environment_ignores_is_not_waited_for(script, environments):
    """Its process takes no steps in an environment that is not what it was."""
    lose(script, environments)
    script.events.append([Restored(0, 1, ""), Restored(1, 0, "it raised ValueError: no licence")])
    with pytest.raises(NotReproducibleError, match="environment 1 was lost with its process, and raised when"):
        environments.receive_arrived(0.0)
    assert script.asked[-1] == ("release", [1])
    assert environments.settle([1])


@pytest.mark.parametrize("written", [0.0, 9.0])
def test_an_order_has_the_last_result_that_was_handed_out_while_a_step_is_open(script, environments, written):
    """Of that step, something may have been written already, and the slot may be that of its observation."""
    script.write(0, 5.0, 2.0)
    script.events.append([RequestsDone([0])])
    assert environments.proxies == []
    assert environments.result(0)[:2] == ([5.0], 2.0)
    environments.step([0], [np.array([0.75])])
    if written:
        script.write(0, 7.0, written)
        script.rows.terminated[0] = True
    script.events.append([LOST])
    environments.receive_arrived(0.0)
    order = script.orders[0]
    assert (order.actions, order.rewards, order.n_timesteps) == ([0.5], [2.0], 1)
    assert script.rows.observation_values.parts(order.slot, 0)[0][1] == [5.0]
    assert script.rows.slots[0] == order.slot
    assert script.asked[-2:] == [("step", [0]), ("step", [1])]


def test_an_episode_that_has_ended_is_not_restored(script, environments):
    script.write(0, 5.0, 2.0)
    script.rows.terminated[0] = True
    script.events.append([RequestsDone([0]), LOST])
    assert environments.receive_arrived(0.0) == [0]
    assert (script.asked[-2:], environments.scheduler.restoring) == ([("restore", [1]), ("step", [1])], {1})


@pytest.mark.parametrize(
    ("rewards", "first", "reward"), [(None, 0, 2.0), ((2.0,), 0, 2.0), ((3.0,), 0, 3.0), ((8.0, 7.0), 1, 2.0)]
)
def test_orders_have_what_is_kept_elsewhere(script, environments, rewards, first, reward):
    """The last of the rewards that are kept may be of a later step."""
    script.write(0, 5.0, 2.0)
    script.events.append([RequestsDone([0])])
    assert environments.receive_arrived(None) == [0]
    environments.forget_actions(0)
    kept = History([np.array([0.5])], rewards or (), first)
    environments.history_of = lambda env_id, n: kept._replace(actions=kept.actions[:n]) if env_id == 0 else History([])
    if rewards is not None:
        environments.step([0], [np.array([0.75])])
        script.rows.rewards[0] = 9.0
    script.events.append([LOST])
    environments.receive_arrived(0.0)
    order = script.orders[0]
    assert (order.actions, order.rewards, order.n_timesteps) == ([0.5], [reward], 1)
    assert (script.asked[-2] == ("step", [0])) == (rewards is not None)


def test_actions_are_kept_while_they_are_applied_again(script, environments):
    lose(script, environments)
    environments.forget_actions(0)
    script.events.append([LOST])
    environments.receive_arrived(0.0)
    assert script.orders[0].actions == [0.5]


def test_what_is_not_kept_any_more_is_no_error_before_all_is_taken_in(script, environments):
    environments.history_of = lambda env_id, _: None if env_id == 0 else History([])
    script.events.append([LOST])
    with pytest.raises(NotReproducibleError, match="too long to be restored"):
        environments.receive_arrived(0.0)
    assert script.asked[-2:] == [("restore", [1]), ("step", [1])], "the other one is restored all the same"


def test_what_is_not_kept_any_more_is_no_error_before_other_processes_are_replaced(script, environments):
    environments.history_of = lambda env_id, _: None if env_id == 0 else History([])
    script.events.append([EnvsFailed([0], DEATH, 0, is_new=True), EnvsFailed([1], DEATH, 1, is_new=True)])
    with pytest.raises(NotReproducibleError, match="too long to be restored"):
        environments.receive_arrived(0.0)
    assert script.asked[-2:] == [("restore", [1]), ("step", [1])]


@pytest.mark.parametrize("events", [RAISED, [Restored(0, 1, ""), Restored(1, 0, "")]], ids=["raises", "is restored"])
def test_what_is_not_wanted_any_more_may_raise(script, environments, events):
    """An error would come in the middle of that: it must not take the place of what the caller is told."""
    lose(script, environments)
    environments.scheduler.forget()
    script.events += [list(events), [RequestsDone([1])]]
    environments.settle([0, 1])
    assert environments.scheduler.restoring == set()
    assert environments.n_open_steps == 0


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_raises_when_it_is_restored_is_told_of_if_it_is_wanted(script, environments, is_wanted):
    lose(script, environments)
    script.events += [list(RAISED), [RequestsDone([1])]]
    if is_wanted:
        with pytest.raises(NotReproducibleError, match="raised when its actions were repeated"):
            environments.receive_arrived(0.0)
    else:
        environments.settle([0, 1])  # without its being forgotten before
    assert environments.scheduler.restoring == set()
