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
from streamsampler.stepping.inference.environments import Environments, History
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.transport import Broken, Done, Event

SPACE = spaces.Box(-np.inf, np.inf, (1,), np.float64)
DEATH = WorkerDiedError("worker 0 died", exitcode=-9, worker_number=0, phase=Phase.STEP, trajectory=None)
LOST = Broken([0, 1], DEATH, 0, is_new=True)
RAISED = [Broken([0], ValueError("no licence"), 0, is_new=False), Done([1])]


class Script:
    """Stands for processes: tells in each `collect` what it is told to, and notes what it is asked for."""

    def __init__(self) -> None:
        self.rows = Rows(EnvSpaces([(SPACE, SPACE)] * 2), np.zeros)
        self.events: deque[list[Event]] = deque()
        self.asked: list[tuple[str, list[int]]] = []

    def collect(self, timeout: float | None) -> Sequence[Event]:
        assert self.events or timeout == 0.0, "this would wait for ever"
        return self.events.popleft() if self.events else []

    def reset(self, env_ids: Sequence[int], orders: Any) -> None:
        self.asked.append(("reset", list(env_ids)))

    def step(self, env_ids: Sequence[int]) -> None:
        self.asked.append(("step", list(env_ids)))

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
    script.events.append([Done([0, 1])])
    assert made.take_arrived(None) == [0, 1]
    made.step([0, 1], [np.array([0.5]), np.array([0.25])])
    return made


def lose(script: Script, environments: Environments) -> None:
    """Lose the process, after environment 0 has written its result, which arrives with the loss."""
    script.write(0, 5.0, 2.0)
    script.events.append([Done([0]), LOST])
    assert environments.take_arrived(0.0) == [], "its row is written again"


def restore(script: Script, environments: Environments, value: float = 5.0, done: Sequence[int] = (0,)) -> list[int]:
    """Let both be reset, and environment 0 take its step again; return what arrives."""
    for env_id in (0, 1):
        script.write(env_id, float(env_id), 0.0)
    script.events.append([Done([0, 1])])
    assert environments.take_arrived(0.0) == []
    script.write(0, value, 2.0)
    script.events.append([Done([env_id]) for env_id in done])
    return environments.take_arrived(0.0)


def test_a_result_that_arrives_with_the_loss_is_handed_out_when_its_row_is_what_it_was(script, environments):
    lose(script, environments)
    assert environments.restoring == {0, 1}
    assert restore(script, environments) == [0]
    assert (environments.observation(0), script.rows.rewards[0]) == ([5.0], 2.0)
    assert script.asked[-2:] == [("step", [0]), ("step", [1])]


def test_one_that_does_something_else_is_told_of_when_all_is_taken_in(script, environments):
    lose(script, environments)
    with pytest.raises(NotReproducibleError, match="environment 0 was lost with its process, and did something else"):
        restore(script, environments, value=6.0, done=(0, 1))
    assert environments.restoring == set()
    assert environments.take_arrived(0.0) == [0, 1]


@pytest.mark.parametrize(
    ("rewards", "first", "is_same"), [(None, 0, True), ((2.0,), 0, True), ((3.0,), 0, False), ((8.0, 7.0), 1, True)]
)
def test_what_is_kept_elsewhere_is_asked_for_again(script, environments, rewards, first, is_same):
    """The last reward that was taken is compared while a step is open, of which something may be written already.

    The last of what is given may be of a later step.
    """
    script.write(0, 5.0, 2.0)
    script.events.append([Done([0])])
    assert environments.take_arrived(None) == [0]
    environments.forget_actions(0)
    kept = History([np.array([0.5])], rewards or (), first)
    environments.history_of = lambda env_id, n: kept._replace(actions=kept.actions[:n]) if env_id == 0 else History([])
    if rewards is not None:
        environments.step([0], [np.array([0.75])])
        script.rows.rewards[0] = 9.0
    script.events.append([LOST])
    environments.take_arrived(0.0)
    if not is_same:
        with pytest.raises(NotReproducibleError):
            restore(script, environments)
        return
    assert restore(script, environments) == []
    if rewards is None:
        assert (np.asarray(script.rows.actions)[0], environments.observation(0)) == (0.5, [5.0])
    else:
        assert script.asked[-2:] == [("step", [1]), ("step", [0])]


def test_actions_are_kept_while_they_are_applied_again(script, environments):
    script.events.append([LOST])
    environments.take_arrived(0.0)
    environments.forget_actions(0)
    restore(script, environments)


def test_what_is_not_kept_any_more_is_no_error_before_all_is_taken_in(script, environments):
    environments.history_of = lambda env_id, _: None if env_id == 0 else History([])
    script.events.append([LOST])
    with pytest.raises(NotReproducibleError, match="longer than can be restored"):
        environments.take_arrived(0.0)
    assert script.asked[-1] == ("reset", [1]), "the other one is restored all the same"


@pytest.mark.parametrize("events", [RAISED, [Done([0, 1])]], ids=["raises", "is reset"])
def test_nobody_waits_for_what_is_not_wanted_any_more_which_may_raise(script, environments, events):
    """As an error would in the middle of that: it must not take the place of what the caller is told."""
    lose(script, environments)
    environments.forget()
    script.events.append(list(events))  # of their resets: their steps are not asked for
    environments.settle([0, 1])
    assert environments.restoring == set()
    assert environments.n_open_steps == 0


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_raises_when_it_is_restored_is_told_of_if_it_is_wanted(script, environments, is_wanted):
    lose(script, environments)
    script.events.append(list(RAISED))
    if is_wanted:
        with pytest.raises(NotReproducibleError, match="raised when its actions were applied again"):
            environments.take_arrived(0.0)
    else:
        environments.settle([0, 1])  # without its being forgotten before
