"""Whatever arrives in whatever order: each task has the first of its trajectories that are not left out."""

from __future__ import annotations

import random
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import Exactly, Streamed


def expected(left_out: set[int], first: int, n_of_task: int, n_tasks: int) -> list[int]:
    found: list[list[int]] = [[] for _ in range(n_tasks)]
    index = first
    while any(len(one) < n_of_task for one in found):
        of_task = found[(index - first) // n_of_task % n_tasks]
        if len(of_task) < n_of_task and index not in left_out:
            of_task.append(index)
        index += 1
    return sorted(chain(*found))


@given(
    left_out=st.sets(st.integers(0, 60)),
    first=st.integers(0, 5),
    n_of_task=st.integers(1, 5),
    n_tasks=st.integers(1, 5),
    n_workers=st.integers(1, 3),
    own_queues=st.booleans(),
    stream=st.booleans(),
    events=st.integers(0, 10**6).map(random.Random),
)
def test_any_course_of_events_gives_as_many_of_each_task(
    left_out: set[int],
    first: int,
    n_of_task: int,
    n_tasks: int,
    n_workers: int,
    own_queues: bool,
    stream: bool,
    events: random.Random,
) -> None:
    n = n_of_task * n_tasks
    plan = Streamed(first, n, n_of_task=n_of_task) if stream else Exactly(n, first=first, n_of_task=n_of_task)
    gathering = Gathering(plan, n_workers=n_workers, own_queues=own_queues, dropping=True)
    held: dict[int, range] = {}
    found: list[int] = []
    while not gathering.result.complete:
        for worker in range(n_workers):
            if worker not in held and (assignment := gathering.take(worker)):
                held[worker] = assignment.indices
        worker = events.choice(sorted(held))
        indices = held.pop(worker)
        if events.random() < 0.1:
            gathering.put_back(worker, indices)
        else:
            dropped = [Dropped(at, "", "") for at, index in enumerate(indices) if index in left_out]
            lengths = [2 for index in indices if index not in left_out]
            gathering.add(worker, indices, lengths, worker, dropped=dropped)
        if stream:
            found += [index for segment in gathering.result.pop_segments() for index in segment.indices]
    found += [index for segment in gathering.result.segments() for index in segment.indices]
    assert found == expected(left_out, first, n_of_task, n_tasks)
