"""Run a trajectory again in this process, with its whole block of indices or its recorded actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streamsampler.agents.base import NAMED_AGENTS
from streamsampler.agents.policies import Policies
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import Payload, dumps
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import MultiAgentBatch, assembled
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.taken_actions import TakenActions
from streamsampler.engines.base import Answered, Event
from streamsampler.engines.local import LocalEngine
from streamsampler.environments.filming import Film, FilmedEnvUpdate
from streamsampler.environments.updates import EnvUpdate, for_worker
from streamsampler.protocol.index_queue import IndexQueue
from streamsampler.protocol.messages import Failure, Report, Start, Ticket
from streamsampler.protocol.plans import GatherPlan, Layout
from streamsampler.samplers.failures import failure_error
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.resets import Resets
from streamsampler.workers.threads import fingerprint
from streamsampler.workers.vec.rows import singles_of


def places_of(origin: Origin, index: int, layout: Layout, n_queues: int) -> tuple[int, list[range]]:
    """Return the queue of an index, and the blocks of indices in which it may have run, most likely first."""
    queue, first = _place_of(origin.plan, index, layout, n_queues)
    blocks = [first]
    if origin.first is not None:
        blocks.append(_place_of(origin.plan.starting_at(origin.first), index, layout, n_queues)[1])
    if origin.stop is not None:
        blocks += [each[: len(range(each.start, origin.stop, each.step))] for each in blocks if each[-1] >= origin.stop]
    return queue, list(dict.fromkeys(blocks))


def _place_of(plan: GatherPlan, index: int, layout: Layout, n_queues: int) -> tuple[int, range]:
    for number in range(n_queues):
        queue = plan.queue(number, n_queues)
        if index in queue:
            block = IndexQueue(queue, layout.block, lengthens=layout.lengthens).block_at(queue.index(index))
            return number, queue[block.start : block.stop]
    most = "" if plan.limit is None else f": the call had trajectories {plan.first} to {plan.first + plan.limit - 1}"
    raise UsageError(f"trajectory {index} does not exist{most}")


def cut(block: range, index: int, size: int) -> range:
    first = block.index(index) // size * size
    return block[first : first + size]


def seeds_of(block: range, seeds: Mapping[int, int], index: int) -> list[int]:
    if missing := [other for other in block if other not in seeds]:
        raise UsageError(
            f"trajectory {index} ran together with trajectories {block[0]} to {block[-1]}, but the seeds of {missing} "
            "were not recorded"
        )
    return [seeds[index] for index in block]


@dataclass(frozen=True)
class Rerun:
    """A trajectory to run again, with all of its block of indices."""

    setup: WorkerSetup
    updates: Mapping[str, Payload]
    version: int
    index: int
    block: range
    seeds: Mapping[int, int]
    worker: int = 0
    resets: Resets | None = None

    def run(
        self,
        again: Callable[[TrajectoryBatch[Any, Any]], bool] = lambda _: False,
        take: Callable[[Any, float], None] | None = None,
    ) -> list[TrajectoryBatch[Any, Any]]:
        """Run the trajectory, filmed, and once more in the same environment if `again` returns true for it."""
        engine = LocalEngine(1, partial(self._worker, take), self.setup.seed, threads=self.setup.threads)
        try:
            runs = [self._roll_out(engine, self.version, **self.updates)]
            if again(runs[0]):
                runs.append(self._roll_out(engine, self.version + 1))
        finally:
            last_words = engine.close()
        for event in last_words:
            self._raise_failure(event)
        return runs

    def _worker(self, take: Callable[[Any, float], None] | None, context: WorkerContext) -> Any:
        """Make a worker that runs the trajectory's block with the recorded seeds, whatever its ticket."""
        worker: Any = self.setup.for_replay(self.index).make_worker(replace(context, worker_number=self.worker))
        update_env, rollout = worker.update_env, worker.rollout
        film = None if take is None else Film(0, take)

        def updated(update: EnvUpdate) -> None:
            with for_worker(self.worker):
                update_env(update if film is None else FilmedEnvUpdate(lambda: update, film))

        def rolled_out(*_: Any) -> Any:
            # Alone if no other trajectory influences it.
            size = 1 if worker.runs_lanes else self.setup.factory.layout.block
            size = len(self.block) if worker.runs_longer_blocks else size
            indices = cut(self.block, self.index, size)
            if film is not None:
                film.number = indices.index(self.index)
            ticket = Ticket(self.version, indices, len(indices))
            return rollout(ticket, seeds_of(indices, self.seeds, self.index))

        worker.update_env, worker.rollout = updated, rolled_out
        return worker

    def _roll_out(self, engine: LocalEngine, version: int, **updates: Any) -> TrajectoryBatch[Any, Any]:
        resets = None if self.resets is None else dumps(self.resets, "reset_options")
        ticket = Ticket(version, self.block, len(self.block))
        engine.send(0, Start(version, (ticket,), resets=resets, **updates))
        (event,) = engine.wait(None)
        self._raise_failure(event)
        assert isinstance(event, Answered) and isinstance(event.answer, Report)  # noqa: PT018 - both for mypy
        rollouts, spaces = event.contents
        TakenActions(self.setup.record_taken).put(rollouts)
        n_ran, before = len(rollouts.lengths) + len(event.answer.dropped), self.block.index(self.index)
        if n_ran < len(self.block):
            before = before % self.setup.factory.layout.block if n_ran > 1 else 0
        position = before - sum(each.position < before for each in event.answer.dropped)
        delivery = Delivery(self.worker, rollouts, spaces=spaces, fingerprint=fingerprint().bits)
        return assembled(
            [Segment(delivery, position, position + 1, range(self.index, self.index + 1))],
            observation_space=spaces[0], action_space=spaces[1],
            seeds_of=lambda wanted: [self.seeds[index] for index in wanted.tolist()],
            agent_version=self.version, seed=self.setup.seed,
        )  # fmt: skip

    def _raise_failure(self, event: Event) -> None:
        if isinstance(event, Answered) and isinstance(event.answer, Failure):
            raise failure_error(self.worker, event.answer, event.contents)


_STRANGER = "(not recorded)"


def recorded_agents(recorded: TrajectoryBatch[Any, Any]) -> Any:
    """Return an agent, or `Policies`, repeating a trajectory's actions."""
    if not isinstance(recorded, MultiAgentBatch):
        return _RecordedActions(singles_of(recorded.action_space, recorded.actions))
    agents = {str(it.agent_ids[0]): recorded_agents(it) for each in recorded.policies.values() for it in each}
    known = {agent for each in recorded.policies.values() if each.agents is not None for agent in each.agents.known}
    by_name = {agent: agents.get(agent, NAMED_AGENTS[0]) for agent in sorted(known)}
    # If the environment does not list its possible agents, one without a record may appear.
    return Policies({**by_name, _STRANGER: NAMED_AGENTS[0]}, lambda agent, _: agent if agent in known else _STRANGER)


class _RecordedActions:
    """An agent that returns recorded actions, whatever the observation, then repeats the last action."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions
        self._next = 0

    def reset(self, seed: int) -> None:  # noqa: ARG002 - nothing is drawn
        self._next = 0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002 - the signature is `Agent`'s
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return copy.copy(action), {}


@dataclass(frozen=True)
class Origin:
    """The known facts about the call in which a trajectory was recorded."""

    plan: GatherPlan
    resets: Resets | None = None
    first: int | None = None  # possible first index, where its blocks started; None if certain
    stop: int | None = None  # possible end of its indices, where its last block was cut; None if certain
    derives_seeds: bool = True  # whether missing seeds follow from the sampler's
    fingerprints: Collection[str] = ()  # of its workers
    versions: Mapping[str, str] | None = None  # of its libraries
    notes: tuple[str, ...] = ()  # missing facts
    cut: bool = False  # whether the record may have been cut, so that the trajectory continued
