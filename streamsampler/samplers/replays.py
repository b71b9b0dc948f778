"""Run a sampler's trajectories again, compare them with what was recorded, and say why the two may differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from streamsampler.agents.base import NAMED_AGENTS
from streamsampler.agents.policies import Policies
from streamsampler.core.errors import RolloutError, SerializationError, UsageError, positive
from streamsampler.core.fingerprints import agree
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import HeldPayload, Payload, dumps, loads
from streamsampler.core.words import count
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.differences import Difference, first_difference
from streamsampler.data.multi_agent import MultiAgentBatch, assembled
from streamsampler.data.segments import Delivery, Segment
from streamsampler.data.taken import TakenActions, check_chosen
from streamsampler.engines.base import Answered, Event
from streamsampler.engines.local import LocalEngine
from streamsampler.environments.filming import Film, FilmedEnvUpdate, VideoFile, check_renders, check_video
from streamsampler.environments.updates import EnvUpdate, for_worker
from streamsampler.protocol.index_queue import IndexQueue
from streamsampler.protocol.messages import Failure, Report, Start, Ticket
from streamsampler.protocol.plans import Exactly, Fragments, GatherPlan, Layout, Streamed
from streamsampler.samplers.checkpoints import CheckpointedSampler
from streamsampler.samplers.failures import failure_error
from streamsampler.samplers.payloads import on_environments, pickled_updates, put, versions_of
from streamsampler.samplers.per_worker import Updates
from streamsampler.samplers.recorded import episode_of, of_version, recorded_one, resets_as_recorded
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.factory import WorkerFactory, WorkerSetup
from streamsampler.workers.resets import Options, Resets
from streamsampler.workers.threads import fingerprint
from streamsampler.workers.vec.rows import singles_of

# ----------------------------------------------------------------------
# Run one trajectory again, in this process: in the same row of a batch of the same shape, from the same seed.


def _places_of(origin: Origin, index: int, layout: Layout, n_queues: int) -> tuple[int, list[range]]:
    """Return whose trajectory an index is, and the blocks of indices that it may have run in, the likeliest first."""
    queue, first = _place_of(origin.plan, index, layout, n_queues)
    blocks = [first]
    if origin.first is not None:
        blocks.append(_place_of(origin.plan.starting_at(origin.first), index, layout, n_queues)[1])
    if origin.stop is not None:
        blocks += [each[: len(range(each.start, origin.stop, each.step))] for each in blocks if each[-1] >= origin.stop]
    return queue, list(dict.fromkeys(blocks))


def _place_of(plan: GatherPlan, index: int, layout: Layout, n_queues: int) -> tuple[int, range]:
    """Return whose trajectory an index is, the number of a queue, and the block of indices that it ran in."""
    for number in range(n_queues):
        queue = plan.queue(number, n_queues)
        if index in queue:
            block = IndexQueue(queue, layout.block, lengthens=layout.lengthens).block_at(queue.index(index))
            return number, queue[block.start : block.stop]
    most = "" if plan.limit is None else f": trajectories {plan.first} to {plan.first + plan.limit - 1}"
    raise UsageError(f"there is no trajectory {index}{most}")


def _cut(block: range, index: int, size: int) -> range:
    """Cut a block into blocks of a size, and return the one that has an index."""
    first = block.index(index) // size * size
    return block[first : first + size]


def _seeds_of(block: range, seeds: Mapping[int, int], index: int) -> list[int]:
    """Return the seeds of the trajectories of a block.

    Raises:
        UsageError: Some are not known.
    """
    if missing := [other for other in block if other not in seeds]:
        raise UsageError(
            f"trajectory {index} ran together with trajectories {block[0]} to {block[-1]}, and the seeds of {missing} "
            "were not recorded"
        )
    return [seeds[index] for index in block]


@dataclass(frozen=True)
class _Rerun:
    """What it takes to run a trajectory again, with all of the block of indices that it ran in."""

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
        """Run the trajectory, film it, and run it once more in the same environment if the first run calls for it."""
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

    @property
    def _block_size(self) -> int:
        """How many trajectories the worker's blocks have, if they are all of one size."""
        return self.setup.factory.layout.block

    def _worker(self, take: Callable[[Any, float], None] | None, context: WorkerContext) -> Any:
        """Make a worker that runs the trajectory's block whatever its ticket, with the seeds that were recorded."""
        hooks = None if self.setup.hooks is None else self.setup.hooks.sparing(self.index)
        setup = replace(self.setup, check=None, drop_unless=None, hooks=hooks)
        worker: Any = setup.make_worker(replace(context, worker_number=self.worker))
        update_env, rollout = worker.update_env, worker.rollout
        film = None if take is None else Film(0, take)

        def updated(update: EnvUpdate) -> None:
            with for_worker(self.worker):
                update_env(update if film is None else FilmedEnvUpdate(lambda: update, film))

        def rolled_out(*_: Any) -> Any:
            # Alone where no other trajectory influences it.
            size = len(self.block) if worker.runs_longer_blocks else 1 if worker.runs_lanes else self._block_size
            indices = _cut(self.block, self.index, size)
            if film is not None:
                film.number = indices.index(self.index)
            ticket = Ticket(self.version, indices, len(indices))
            return rollout(ticket, _seeds_of(indices, self.seeds, self.index))

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
            before = before % self._block_size if n_ran > 1 else 0
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


def _recorded_agents(recorded: TrajectoryBatch[Any, Any]) -> Any:
    """Return an agent that chooses a trajectory's actions; of several agents, one for each of them."""
    if not isinstance(recorded, MultiAgentBatch):
        return _RecordedActions(singles_of(recorded.action_space, recorded.actions))
    agents = {str(it.agent_ids[0]): _recorded_agents(it) for each in recorded.policies.values() for it in each}
    known = {agent for each in recorded.policies.values() if each.agents is not None for agent in each.agents.known}
    by_name = {agent: agents.get(agent, NAMED_AGENTS[0]) for agent in sorted(known)}
    # One that was not there then may appear where the environment does not say which may.
    return Policies({**by_name, _STRANGER: NAMED_AGENTS[0]}, lambda agent, _: agent if agent in known else _STRANGER)


class _RecordedActions:
    """An agent that chooses recorded actions, whatever it sees, and the last one again after them."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions
        self._next = 0

    def reset(self, seed: int) -> None:  # noqa: ARG002 - nothing is drawn
        self._next = 0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002 - whatever it sees
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return copy.copy(action), {}


# ----------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """What came of running a trajectory again. It can be printed.

    Attributes:
        trajectory: What was run now, a batch of one trajectory.
        recorded: What it was compared with; None for nothing.
        difference: Where the two differ first; None if they do not, or nothing was recorded.
        reasons: Why they may differ, the likeliest first.
        notes: What else is to be known, such as that something was not recorded.
        video: The video file; None where there is none.
    """

    trajectory: TrajectoryBatch[Any, Any]
    recorded: TrajectoryBatch[Any, Any] | None = None
    difference: Difference | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    video: Path | None = None

    @property
    def same(self) -> bool | None:
        """Whether the trajectory is the recorded one, bit for bit; None where nothing was recorded."""
        return None if self.recorded is None else self.difference is None

    def __str__(self) -> str:
        trajectory = self.trajectory
        so_far = "return so far" if self.recorded is not None and self.recorded.cut[0] else "return"
        lines = [
            f"trajectory {trajectory.indices[0]} of agent version {trajectory.agent_versions[0]}, seed "
            f"{trajectory.seeds[0]}: {count(trajectory.n_timesteps, 'timestep')}, {so_far} {trajectory.returns[0]:.6g}"
        ]
        if self.difference is not None:
            lines += [f"differs from what was recorded, first in {self.difference}", "likely reasons:"]
            lines += [f"- {reason}" for reason in self.reasons]
        elif self.recorded is not None:
            lines.append("the same as recorded, bit for bit: observations, actions, rewards and its end")
        lines += [f"note: {note}" for note in self.notes]
        if self.video is not None:
            lines.append(f"video: {self.video}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Origin:
    """What is known of the call that a trajectory was recorded in.

    Attributes:
        plan: What the call was to obtain.
        resets: What it said of its trajectories; None for nothing.
        first: Which trajectory may have been its first, so that blocks began there; None where that is known.
        stop: From which index on it may have had none, so that its last block was cut; None where that is known.
        derives_seeds: Whether the seeds that were not recorded are the sampler's.
        fingerprints: How its workers computed.
        versions: The versions of its libraries.
        notes: What is not known of it.
        cut: Whether what was recorded may have been cut, and the trajectory have gone on.
    """

    plan: GatherPlan
    resets: Resets | None = None
    first: int | None = None
    stop: int | None = None
    derives_seeds: bool = True
    fingerprints: Collection[str] = ()
    versions: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    cut: bool = False


def _replayed(
    ways: Sequence[_Rerun], one: TrajectoryBatch[Any, Any] | None, origin: Origin, video: Path | None, *, actions: bool
) -> Replay:
    """Run a trajectory again, in one of several ways if it is not known which, and compare it with the recorded one."""

    def difference_of(trajectory: TrajectoryBatch[Any, Any]) -> Difference | None:
        return None if one is None else first_difference(one.unfiltered(), trajectory, prefix=origin.cut)

    def is_right(way: _Rerun) -> bool:
        try:
            return not difference_of(way.run()[0])
        except RolloutError:
            return False  # perhaps in a trajectory that was not sampled

    rerun = ways[0]
    if video is not None:
        check_video(video)
        check_renders(loads(rerun.updates["env"]))
    if len(ways) > 1:
        rerun = next(filter(is_right, ways), ways[0])
    with ExitStack() as stack:
        take = None if video is None else stack.enter_context(VideoFile(video)).add
        try:
            runs = rerun.run(lambda first: difference_of(first) is not None, take)
        except RolloutError as error:
            if actions and isinstance(error.original, UsageError):
                what = "recorded actions are replayed in one environment that is not vectorised: pass env="
                raise UsageError(f"{what}. {error.original}") from error
            raise
    found = difference_of(runs[0])
    reasons = () if found is None else tuple(_reasons(found, runs, origin, actions=actions))
    return Replay(runs[0], one, found, reasons, origin.notes, video)


def _reasons(
    found: Difference, runs: Sequence[TrajectoryBatch[Any, Any]], origin: Origin, *, actions: bool
) -> Iterator[str]:
    """Yield why a trajectory may differ, what is known for sure first."""
    agent = "" if actions else "the agent or "
    if (hidden := first_difference(*runs)) is not None:
        yield (
            f"{agent}the environment is no function of its seed: run twice in a row it differs from itself, first in "
            f"the {hidden.what} of timestep {hidden.timestep}. It keeps something from one trajectory to the next, or "
            "draws from a generator that is not seeded"
        )
    elsewhere = [bits for bits in sorted(origin.fingerprints) if not agree(bits, *runs[0].fingerprints)]
    if elsewhere:
        here = " and ".join(sorted(runs[0].fingerprints))
        yield (
            f"other kernels: it was recorded where NumPy or torch compute otherwise ({' and '.join(elsewhere)}; here "
            f'{here}). See streamsampler/docs/guarantees.md, "Other processors"'
        )
    here_now = versions_of(origin.versions or ())
    changed = [
        f"{name} {it} there, {here_now[name]} here"
        for name, it in (origin.versions or {}).items()
        if here_now.get(name, it) != it
    ]
    if changed:
        yield f"other versions: {', '.join(changed)}"
    yield from _usual_reasons(found, actions=actions)
    if found.is_rounding and not elsewhere:
        yield "the two are so close that they may be rounded in two ways: other kernels, another number of threads"


def _usual_reasons(found: Difference, *, actions: bool) -> Iterator[str]:
    """Yield what usually makes such a difference first."""
    if found.what == "action" and not actions:
        yield (
            "another agent, or other parameters: up to this action all was the same, so the environment is not to blame"
        )
        yield "an agent that remembers something from before the trajectory, or a batch of another shape (VecWorker)"
    elif found.timestep == 0 and found.what == "observation":
        yield "another environment, other arguments of it (env_kwargs), or other reset options"
    else:
        yield "another environment, or another version of it: up to here all was the same, the actions too"
        yield "an environment with a hidden state, which carries something from one trajectory to the next"


_OF_FRAGMENTS = (
    "an episode of fragments is replayed from what was recorded of it: pass recorded=batch; and actions=True where it "
    "began in an earlier call"
)
_SIDE_BY_SIDE = "an episode of fragments that stepped side by side with others is replayed without the agent only: "


class ReplayingSampler(CheckpointedSampler):
    """What all samplers have that runs a trajectory again."""

    def replay(
        self,
        version: int,
        index: int,
        *,
        agent: Any = None,
        env: Any = None,
        reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None,
        recorded: TrajectoryBatch[Any, Any] | None = None,
        actions: bool = False,
        video: str | PathLike[str] | None = None,
    ) -> Replay:
        """Run a trajectory again, in this process, and compare it with what was recorded of it.

        It runs from the same seed and, with `VecWorker`, in the same row of a batch of the same shape; where
        trajectories of a block may influence each other, with all of its block. The workers are not disturbed.

        Of fragments, a part that began in its call is run again with the agent (not with `VecWorker`), and one that
        goes on is compared up to where it was cut. With `actions=True`, and a batch `recorded` in which all parts of an
        episode are, `TrajectoryBatch.concatenate(batches)`, it is run again from its reset to the end of that call.

        Args:
            version: The agent version: `batch.agent_versions[i]`.
            index: The trajectory index: `batch.indices[i]`.
            agent: The agent, or parameters for the sampler's agent, as `agent_update` takes them. None for those of the
                last batch, which are right for its agent version only; with `inference="parent"` for a copy of the
                agent as it is now, whatever it has learnt since. Of an earlier version, where the sampler has an
                `observation_filter`: `FilteredAgent(agent, filter)` of `streamsampler.filters`.
            env: As `env_update` takes it. None for the environment that the sampler has.
            reset_options: What `env.reset(options=…)` gets. None for what the call said, if it was the last one; an
                episode of fragments may have begun in another.
            tasks: All tasks of the trajectory's call, in order; which of them it had is taken from `recorded`. None for
                what the call said, if it was the last one.
            recorded: A batch with the trajectory, to compare it with; its seed is taken from there.
            actions: Whether to replay the recorded actions, without the agent.
            video: A `.mp4` file for a video, which needs `pip install av`.

        Returns:
            What came of it: its `trajectory`, and its `difference` if something was `recorded`.

        Raises:
            UsageError: There is no such trajectory, the agent of its version is not known, or an argument cannot work.
            RolloutError: The agent or the environment raised.
            ImportError: The library for videos is missing.
            OSError: The video cannot be written.
        """
        version, index = positive("version", version), positive("index", index, least=0)
        if actions:
            check_chosen(recorded, self._setup.record_taken)
        given = resets_as_recorded(reset_options, tasks, recorded, version)
        last = None if recorded is None else recorded_one(recorded, index, version)
        one = None if recorded is None or last is None else episode_of(recorded, last, actions=actions)
        with self._exclusive():
            session = self._session
            is_current = version == session.sampled_version
            if not (is_current or actions) and agent is None:
                there = session.sampled_version
                what = f"the sampler's agent is that of version {there}" if there else "nothing was sampled yet"
                raise UsageError(f"{what}: pass agent=, the agent of version {version} or its parameters")
            env = on_environments(env, session.updates, session.engine)
            pickled = pickled_updates(agent, env, session.sampled)
            origin = self._origin_of(version, index, recorded, last)
            updates = self._copied(session.sampled, actions or (self._holds_agent and "agent" in pickled))
        if not is_current:
            updates.forget("filters")
        for kind, payloads in pickled.items():
            put(updates, kind, payloads)
        if given is not None:
            origin = replace(origin, resets=given)
        return self.run_again(version, index, origin, updates, recorded=recorded, one=one, actions=actions, video=video)

    def run_again(
        self,
        version: int,
        index: int,
        origin: Origin,
        updates: Updates[Payload] | None = None,
        *,
        recorded: TrajectoryBatch[Any, Any] | None,
        one: TrajectoryBatch[Any, Any] | None,
        actions: bool,
        video: str | PathLike[str] | None,
    ) -> Replay:
        """Run a trajectory of any call again, as `replay` does.

        Args:
            version: See `replay`, as for `index`, `actions` and `video`.
            index: The trajectory index.
            origin: What is known of the call.
            updates: The agent and the environment, pickled; None for those in force.
            recorded: What was recorded of the call, for seeds; None for nothing.
            one: What was recorded of the trajectory, as `episode_of` returns it; None for nothing.
            actions: See `replay`.
            video: See `replay`.

        Raises:
            UsageError: There is no such trajectory, or a seed is missing. For other errors see `replay`.
        """
        setup, session = self._setup, self._session
        if updates is None:
            updates = self._copied(session.updates, actions)
        layout = setup.factory.layout
        if one is not None and one.env_numbers[0] >= 0 and layout.block > 1 and not actions:
            raise UsageError(f"{_SIDE_BY_SIDE}pass actions=True")
        n_queues = self.n_workers if session.sampled.differ else 1
        queue, blocks = _places_of(origin, index, layout, n_queues)
        if one is not None and session.sampled.differ and one.worker_numbers[0] < self.n_workers:
            queue = int(one.worker_numbers[0])  # which does not follow from the index alone; see `ExactlyPerWorker`
        seeds: dict[int, int] = {}
        if origin.derives_seeds:
            derived, there = TrajectorySeeds(self.seed, version), sorted({*chain(*blocks)})
            seeds = dict(zip(there, (origin.resets or Resets()).seeds_of(derived, there), strict=True))
        seeds |= of_version(recorded, version, () if recorded is None else recorded.seeds)
        updates.forget("settings")  # it runs in this process
        contents = {str(kind): payload for kind, payload in updates.missing(queue, {}).items()}
        if one is not None and actions:
            blocks, contents = [range(index, index + 1)], {"env": contents["env"]}
            contents["agent"] = dumps(_recorded_agents(one), "the recorded actions")
        if one is not None and (actions or one.cut[0]):
            origin = replace(origin, cut=origin.cut or bool(one.cut[0]))
            setup = replace(setup, factory=_going_on(setup.factory, len(one.rewards), alone=actions))
        known = [each for each in blocks if seeds.keys() >= {*each}] or blocks[:1]
        # Of a longer block they are needed if the worker runs such.
        _seeds_of(_cut(known[0], index, layout.block), seeds, index)
        rerun = partial(_Rerun, setup, contents, version, index, seeds=seeds, worker=queue, resets=origin.resets)
        film = None if video is None else Path(video)
        return _replayed([rerun(block=each) for each in known], one, origin, film, actions=actions)

    def _origin_of(
        self,
        version: int,
        index: int,
        recorded: TrajectoryBatch[Any, Any] | None,
        last: TrajectoryBatch[Any, Any] | None,
    ) -> Origin:
        """Return what is known of the call of a trajectory, whose last part was recorded as `last`."""
        session, bits = self._session, frozenset() if recorded is None else recorded.fingerprints
        stops = []
        if version == session.sampled_version:
            if session.plan is None or index >= session.plan.first:
                return Origin(*self._said(last), fingerprints=bits)
            stops.append(session.plan.first)  # with a lag, the call before may have had the same version
        if recorded is None:
            return Origin(Streamed(), stop=min(stops, default=None))
        there = recorded.indices[recorded.agent_versions == version]
        stops.append(int(there.max()) + 1)
        return Origin(Streamed(), first=int(there.min()), stop=min(stops), fingerprints=bits)

    def _said(self, last: TrajectoryBatch[Any, Any] | None) -> tuple[GatherPlan, Resets | None]:
        """Return what the last call was to obtain, and what it said of resets, for one of its trajectories."""
        session = self._session
        plan: GatherPlan = session.plan or Streamed()
        if isinstance(plan, Fragments):
            if last is None:
                raise UsageError(_OF_FRAGMENTS)
            if session.resets is None or last.continued[0]:  # an earlier call said it
                return Streamed(), None
            return Streamed(), replace(session.resets, fragments=None)
        if self._policy.on_failure == "drop" and not plan.fixed:
            plan = Streamed(plan.first)  # others took the places of those that raised
        if self._order == "arrival" and isinstance(plan, Exactly):
            plan = Streamed(plan.first)  # those that arrived first may have any index
        return plan, session.resets

    def check_renders(self) -> None:
        """Check that the sampler's environment can be filmed: make one, reset it, and take a picture.

        Raises:
            UsageError: It cannot; says why, and what to do.
        """
        with self._exclusive():
            payload = self._published(next(iter(self._session.updates.payloads(("env",)).values())))
        check_renders(loads(payload))

    def _copied(self, updates: Updates[Any], without_agent: bool) -> Updates[Payload]:
        """Return updates with payloads in memory of their own.

        Args:
            updates: The updates.
            without_agent: Whether another agent acts, so that this one need not be copied.
        """
        copied: Updates[Any] = Updates.of(updates.snapshot(), self.n_workers)
        if without_agent:
            copied.forget("agent")
        if without_agent or self._holds_agent:  # what is in this process has its parameters, and may have learnt since
            copied.forget("parameters")
        return copied.mapped(self._published)

    def _published(self, handle: Any) -> Payload:
        """Return a payload in memory of its own: an engine may use its memory again."""
        payload = self._session.engine.published(handle)
        if isinstance(payload, HeldPayload):
            return _copy_of(payload)
        return Payload(bytes(payload.data), tuple(bytes(buffer) for buffer in payload.buffers), payload.about)


def _copy_of(payload: HeldPayload) -> Payload:
    """Return a payload with a copy of an agent that stays in this process: a replay must not change what it remembers.

    Raises:
        SerializationError: It cannot be copied.
    """
    try:
        return payload.pickled()
    except SerializationError as error:
        what = "a replay asks a copy of the agent: pass agent=, one that can be pickled, or actions=True"
        raise SerializationError(f"{error}. {what}") from error


def _going_on(factory: WorkerFactory, length: int, *, alone: bool) -> WorkerFactory:
    """Return a factory of workers that run one timestep more than was recorded, if the trajectory goes on."""
    limit = min(factory.max_episode_length or length + 1, length + 1)
    factory = WorkerFactory(n_workers=1, seed=factory.seed) if alone else copy.copy(factory)
    factory.max_episode_length = limit
    return factory
