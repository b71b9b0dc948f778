"""A worker's loops of several tasks, told by hand."""

from __future__ import annotations

from typing import Any

import pytest

from streamsampler.agents.base import CallableAgent
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.messages import Continue, Exit, Failure, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.task_sections import Section, Sections, TaskName
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.loop import WorkerLoop
from streamsampler.workers.resets import Resets
from streamsampler.workers.task_loops import TaskTable
from tests.scripted.envs import Counting, Nested, Steps
from tests.workers.contexts import context_of, new_board
from tests.workers.test_loop import Channel

ENVS = (Steps, Counting, Nested)


class Looking(DefaultWorker):
    """Looks for as many later tickets as it can, and whether its own are called off, before it runs one."""

    seen: Any = ()

    def rollout(self, ticket: Any, seeds: list[int]) -> Any:
        later: list[Any] = []
        while (found := self.look_ahead(len(later) + 1)) is not None:
            later.append((found[0].indices, found[1]))
        type(self).seen = (*self.seen, (ticket.indices, seeds, later, self.is_called_off()))
        return super().rollout(ticket, seeds)


class Told:
    """A worker of three tasks: trajectories 0 to 3 are the first one's, from its own 10th on, and so on."""

    def __init__(self, worker: Any = DefaultWorker, open_envs: int = 2, envs: Any = ENVS) -> None:
        Looking.seen = ()
        self.channel, self.board = Channel(), new_board()
        agent = CallableAgent(lambda _: 0)
        environments = [as_env_update(env) for env in envs]
        self.table = TaskTable([agent] * 3, environments, open_envs)
        sections = [Section(TaskName(k, f"t{k}"), 4 * k, 4 * k + 4, 10 * (k == 0)) for k in range(3)]
        self.resets = Resets(version=1, sections=Sections(sections))
        self.loop = WorkerLoop(self.channel, worker, context_of(self.board))

    def start(self, *tickets: range, version: int = 1, **contents: Any) -> Start:
        made = tuple(Ticket(version, indices) for indices in tickets)
        return Start(version, made, **{"tasks": self.table, "resets": self.resets, **contents})

    def live(self, *messages: Any) -> list[tuple[Any, Any]]:
        """Let it live until it has nothing to do; return its answers."""
        self.channel.messages += messages
        for _ in range(30):
            if not self.loop.turn(wait=False):
                break
        answers, self.channel.answers = self.channel.answers, []
        return answers


def test_a_loop_sees_the_tasks_own_indices_and_answers_with_those_of_the_call():
    told = Told(Looking)
    answers = told.live(told.start(range(2), range(2, 4), range(4, 6)))
    assert [answer.ticket.indices for answer, _ in answers] == [range(2), range(2, 4), range(4, 6)]
    seeds = TrajectorySeeds(0, 1)
    first, second, third = Looking.seen
    assert first == (range(10, 12), seeds.of(range(10, 12)), [(range(12, 14), seeds.of(range(12, 14)))], False)
    assert second[2] == [], "the next ticket is another task's"
    assert third[:2] == (range(2), seeds.of(range(2)))


def test_spaces_are_sent_whenever_another_task_has_its_turn():
    told = Told()
    answers = told.live(told.start(range(1), range(1, 2), range(4, 5), range(2, 3)))
    shown = [contents[1] and contents[1][0] for _, contents in answers]
    assert shown == [Steps.observation_space, None, Counting().observation_space, Steps.observation_space]


def test_the_board_shows_the_index_of_the_call():
    shown = []

    class Shows(Steps):
        def step(self, action: Any) -> Any:
            shown.append(told.board.progress(0).trajectory or 0)
            return super().step(action)

    told = Told(envs=(Shows, Shows, Shows))
    told.live(told.start(range(1, 2), range(6, 7)))
    assert sorted(set(shown)) == [1, 6]


def test_the_board_shows_whose_environment_is_closed():
    """With the task's number, for it may have no trajectories in this call."""
    shown = []

    class Shows(Steps):
        def close(self) -> None:
            shown.append(told.board.progress(0))

        def reset(self, **arguments: Any) -> Any:
            shown.append(told.board.progress(0))
            return super().reset(**arguments)

    told = Told(envs=(Shows, Shows, Shows), open_envs=1)
    told.live(told.start(range(1, 2), range(6, 7)))
    told.live(Exit())
    assert [(seen.task, seen.trajectory, seen.phase) for seen in shown] == [
        (None, 1, Phase.RESET), (0, None, Phase.CLOSE), (None, 6, Phase.RESET), (1, None, Phase.CLOSE),
    ]  # fmt: skip


def test_a_stop_calls_off_the_tickets_of_all_tasks():
    told = Told(Looking)

    class Stops(Steps):
        def reset(self, **arguments: Any) -> Any:
            told.channel.messages.append(Stop())
            return super().reset(**arguments)

    told.table = TaskTable(told.table.agents, [as_env_update(Stops)] * 3, 2)
    answers = told.live(told.start(range(1), range(1, 2), range(4, 5), range(8, 9)))
    assert [answer.abandoned for answer, _ in answers] == [False, True, True, True]
    assert sorted(answer.ticket.indices[0] for answer, _ in answers) == [0, 1, 4, 8]
    assert [answer.abandoned for answer, _ in told.live(told.start(range(4, 5), version=2, tasks=None))] == [False]


def test_a_stop_is_seen_behind_a_ticket_of_another_task():
    class Late(Looking):
        def rollout(self, ticket: Any, seeds: list[int]) -> Any:
            told.channel.messages += [Continue((Ticket(1, range(4, 5)),)), Stop()]
            outcome = super().rollout(ticket, seeds)
            Looking.seen = self.seen
            return outcome

    told = Told(Late)
    answers = told.live(told.start(range(1)))
    assert Looking.seen == ((range(10, 11), TrajectorySeeds(0, 1).of(range(10, 11)), [], True),)
    assert [answer.abandoned for answer, _ in answers] == [False, True]


def test_after_a_failure_no_ticket_runs_until_the_next_start():
    class Fails(Steps):
        def reset(self, **arguments: Any) -> Any:
            raise OSError("no")

    told = Told(envs=(Steps, Fails, Steps))
    answers = told.live(told.start(range(4, 6), range(6, 8), range(8, 9)), Continue((Ticket(1, range(1)),)))
    assert [type(answer) for answer, _ in answers] == [Failure, Report, Report, Report]
    failure = answers[0][0]
    assert (failure.trajectory, failure.phase, failure.ticket.indices) == (4, Phase.RESET, range(4, 6))
    assert all(answer.abandoned for answer, _ in answers[1:])
    told.table = TaskTable(told.table.agents, [as_env_update(Steps)] * 3, 2)
    answers = told.live(told.start(range(4, 6), range(8, 9)))
    assert [answer.n_trajectories for answer, _ in answers] == [2, 1]


def test_options_that_cannot_be_loaded_fail_a_ticket():
    told = Told()

    class Unloadable:
        pass

    def load(payload: Any) -> Any:
        if isinstance(payload, Unloadable):
            raise ImportError("no such module here")
        return payload

    told.channel.load = load
    ((failure, error),) = told.live(told.start(range(1), resets=Unloadable()))
    assert (failure.phase, str(error)) == (Phase.RESET, "no such module here")
    assert [answer.n_trajectories for answer, _ in told.live(told.start(range(1)))] == [1]


@pytest.mark.parametrize("begun", [True, False])
def test_an_exit_closes_all_environments(begun):
    closed = []

    class Closes(Steps):
        def close(self) -> None:
            closed.append(self)

    told = Told(envs=(Closes, Closes, Closes))
    told.live(told.start(range(1), range(4, 5)))
    told.live(*[told.start(range(1), version=2)] * begun, Exit())
    assert len(closed) == 2


def test_what_is_abandoned_needs_no_environment():
    told = Told(envs=(Steps, Steps, lambda: 3))
    told.board.abandon_older(2)
    answers = told.live(told.start(range(8, 9)))
    assert [answer.abandoned for answer, _ in answers] == [True]
