"""What all samplers obtain: numbers of timesteps and trajectories, and streams of them."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, get_args, overload

import numpy as np

from streamsampler.core.errors import UsageError, missing_attribute, positive, refuse_two_numbers
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import ActionsT, ObservationsT, replaced
from streamsampler.data.kept_infos import InfosArgument, KeptInfos
from streamsampler.protocol.checks import TaskChecks
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, GatherPlan, Layout, Streamed
from streamsampler.samplers.call import Call
from streamsampler.samplers.of_tasks import TaskRun, resets_of, sections_of
from streamsampler.samplers.options import refuse_agents, refuse_items
from streamsampler.samplers.owner import LifeOwner
from streamsampler.samplers.payloads import (
    check_side_by_side,
    facts_in,
    makes_environment,
    on_environments,
    pickled_updates,
    provenance_of,
)
from streamsampler.samplers.per_worker import Envs
from streamsampler.samplers.streaming import Stream
from streamsampler.samplers.task_streaming import TaskStream
from streamsampler.samplers.tasks import TaskFacts, refuse_calls
from streamsampler.samplers.updates import Kind
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.resets import (
    Options,
    ResetOptions,
    Resets,
    common_resets,
    given_resets,
    streamed_resets,
    tasks_in_turn,
)


def by_task(batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
    """Return a batch with the trajectories of each task together, in the order of the tasks, then of the indices."""
    numbers = np.asarray(batch.episode_infos["task_index"])
    if (np.diff(numbers) >= 0).all():
        return batch
    in_order: TrajectoryBatch[Any, Any] = replaced(batch[np.argsort(numbers, kind="stable")], stats=batch.stats)
    return in_order


_OWN_BLOCKS = "where workers have agents or environments of their own and run blocks of trajectories together"


def check_first(first: int, block: int, *, differ: bool) -> None:
    """Refuse a stream that begins in the middle of a block of trajectories that are run together."""
    if block == 1:
        return
    if differ and first:
        raise UsageError(f"first_trajectory must be 0 {_OWN_BLOCKS}")
    if first % block:
        raise UsageError(
            f"first_trajectory must be a multiple of {block}, got {first}: workers run blocks of so many trajectories "
            "together"
        )


StepCount: TypeAlias = Literal["env_steps", "agent_steps"]
"""What timesteps are, in environments of several agents."""

_TODAYS = {
    "obtain_exact_episodes": "`obtain_exact_trajectories(n_traj_per_worker, agent_update)`",
    "obtain_episodes": "`obtain_trajectories(n_trajectories, agent_update)`",
    "start_worker": "left out: workers start when the sampler is made",
}
"""What garage's samplers have, and where it is in these."""


def _with_itr(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let `obtain_samples` be called as garage's, with an iteration number first, which has no effect."""

    @functools.wraps(method)
    def taking(self: Any, *args: Any, **options: Any) -> Any:
        if "itr" in options:
            positive("itr", options.pop("itr"), least=0)
        elif args and ("num_samples" in options or _is_integer(*args[1:2])):
            positive("itr, which may come before num_samples,", args[0], least=0)
            args = args[1:]
        elif _is_integer(*args[:1]) and isinstance((*args, None, None)[1], float):
            raise UsageError(
                f"num_samples must be an integer, got {args[1]!r} (a parameter that is a number goes into a tuple)"
            )
        return method(self, *args, **options)

    return taking


def _is_integer(given: Any = None) -> bool:
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


@suggesting()
class ObtainingSampler(LifeOwner, Generic[ObservationsT, ActionsT]):
    """The calls of all samplers that return trajectories."""

    def _places(self, resets: Resets | None) -> dict[str, Any]:
        """Return which trajectories may take the places of those left out: `fixed` and `n_of_task` of a plan."""
        if resets is None:
            return {}
        n_of_task = resets.n_replaceable if self._setup.policy.drops else None
        return {"fixed": resets.is_fixed and n_of_task is None, "n_of_task": n_of_task}

    @property
    def replaces_trajectories(self) -> bool:
        """Whether trajectories that are left out are replaced by later ones, if each has no seed of its own."""
        return self._setup.policy.drops

    @property
    def layout(self) -> Layout:
        """How the workers run trajectories; see `Worker.layout`."""
        return self._setup.workers.factory.layout

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprints of all known workers; see `TrajectoryBatch`."""
        return self._life.fingerprints.bits

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _TODAYS)

    @overload
    def obtain_samples(
        self, num_samples: int, agent_update: Any = None, env_update: Envs | None = None,
        progress: ProgressArgument = False, *, reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None, count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]: ...  # fmt: skip
    @overload
    def obtain_samples(
        self, itr: int, num_samples: int, agent_update: Any = None, env_update: Envs | None = None,
        progress: ProgressArgument = False, *, reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None, count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]: ...  # fmt: skip
    @_with_itr
    @suggesting()
    def obtain_samples(
        self,
        num_samples: int,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None,
        count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return the shortest prefix of trajectories 0, 1, 2, … with at least `num_samples` timesteps.

        garage's `obtain_samples(itr, num_samples, agent_update, env_update)` runs as well, by position and by keyword:
        the iteration number `itr`, an integer of at least 0, has no effect.

        Args:
            num_samples: Timesteps, at least 1.
            agent_update: None changes nothing; a tuple, dict or array goes to the agent's `set_param_values` (an
                adapter's agent takes its own kind as well: a module, a state dict, a model); an agent or a plain
                function replaces the agent. `PerWorker([...])` has one for each worker (None: nothing changes); so has
                a list in which every item is an agent. Anything else is an error, and changes nothing.
            env_update: None changes nothing; an environment (in any form that `envs` takes) replaces the old one, an
                `EnvUpdate` is applied to it. A list or `PerWorker` has one for each worker.
            progress: True shows a progress bar, on a terminal's stderr or in a notebook; elsewhere, and where the
                variable `CI` is set, it writes a line to stderr every 30 seconds and one at the end. A callable is
                called with a `progress.Snapshot` several times a second.
            reset_options: A dict that `env.reset(options=…)` gets in each trajectory of this call; None for none.
            tasks: Tasks that take turns: the call's first trajectory has the first one, and after the last one comes
                the first one again. See `obtain_trajectories` for what they are.
            count: What `num_samples` counts in environments of several agents: "env_steps" or "agent_steps", those of
                all agents together.

        Raises:
            UsageError: `num_samples` is no positive integer, the agent does not take such an `agent_update`, there
                are more or fewer items than workers, or `reset_options` is no dict (a ValueError).
            TypeError: `env_update` is no environment.
            SerializationError: An update, or the options, cannot be pickled.
            RolloutError: User code raised in a worker.
            WorkerDiedError: A worker ended, and there were too many losses.
            WorkerHungError: A worker made no progress, and there were too many losses.
            ClosedError: The sampler is closed.
            ConcurrentCallError: Another call is under way.
        """
        if agent_update is not None:
            refuse_two_numbers("obtain_samples", "num_samples", num_samples, agent_update)
        if count not in get_args(StepCount):
            raise UsageError(f"count must be one of {', '.join(map(repr, get_args(StepCount)))}, not {count!r}")
        plan = AtLeast(positive("num_samples", num_samples), counts_agents=count == "agent_steps")
        is_plain = reset_options is None and tasks is None
        resets = None if is_plain else tasks_in_turn(tasks, common_resets(reset_options))
        return self._obtain(plan, agent_update, env_update, progress, resets)

    def obtain_trajectories(
        self,
        n_trajectories: int | None = None,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        seeds: Iterable[int] | None = None,
        reset_options: ResetOptions | None = None,
        tasks: Sequence[Any] | None = None,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_trajectories` trajectories.

        Args:
            n_trajectories: How many, at least 1; may be left out where there are `seeds`.
            agent_update: See `obtain_samples`.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.
            seeds: Integers of at least 0: the trajectories begin from these seeds, each from its own, in this order,
                whatever the sampler's own seed and `order`. Samplers with the same seeds see the same trajectories:
                `batch.seeds` has them. Everything else that is random in a trajectory follows from its seed, too.
                None for the sampler's own; see `seeds`. With `on_failure="drop"` a trajectory that raises is left
                out, and none takes its place.
            reset_options: What `env.reset(options=…)` gets: a dict for all trajectories, or a list with a dict or None
                for each; then, too, none takes the place of one that is left out. A native vector environment takes
                one dict only.
            tasks: `n_trajectories` of each of these tasks: the k-th trajectory of task j has the index
                `j * n_trajectories + k`, on any number of workers, and `batch.episode_infos["task_index"]` is j. A task
                is what the environment's `set_task` gets before the reset, or all of them are `SetParameters` of the
                same names, without an environment. They are for this call alone. Where one is left out (see
                `drop_if` and `on_failure`), the next of the same task follows: the tasks go round again, so that its
                index is the number of all trajectories higher. The batch has the trajectories of each task together.

        Raises:
            UsageError: Numbers of trajectories, seeds and options do not agree, or an argument cannot work. For the
                other errors see `obtain_samples`.
        """
        refuse_two_numbers("obtain_trajectories", "n_trajectories", n_trajectories, agent_update)
        n, resets = given_resets(n_trajectories, seeds, reset_options, tasks)
        plan = Exactly(n, **self._places(resets))
        batch = self._obtain(plan, agent_update, env_update, progress, resets)
        return batch if plan.n_of_task is None else by_task(batch)

    def obtain_exact_trajectories(
        self,
        n_traj_per_worker: int,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        reset_options: Options | None = None,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_traj_per_worker` trajectories for each worker, in worker order.

        Worker w's k-th trajectory has index `w * n_traj_per_worker + k`. See `obtain_samples` for the other arguments
        and errors.
        """
        refuse_two_numbers("obtain_exact_trajectories", "n_traj_per_worker", n_traj_per_worker, agent_update)
        plan = ExactlyPerWorker(positive("n_traj_per_worker", n_traj_per_worker), self.n_workers)
        return self._obtain(plan, agent_update, env_update, progress, common_resets(reset_options))

    def warm_up(self, n_timesteps: int, progress: ProgressArgument = False) -> None:
        """Sample at least `n_timesteps` with the agent in force, for the statistics of the filters alone.

        Uses up one agent version, as other calls do.

        Args:
            n_timesteps: Timesteps, at least 1.
            progress: See `obtain_samples`.

        Raises:
            UsageError: The sampler has no filter, or `n_timesteps` is no positive integer. For other errors see
                `obtain_samples`.
        """
        if not self.filters:
            raise UsageError("warm_up is for the statistics of filters: give observation_filter or reward_filter")
        self._obtain(AtLeast(positive("n_timesteps", n_timesteps)), None, None, progress, None)

    def _obtain(
        self, plan: GatherPlan, agent_update: Any, env_update: Any, progress: ProgressArgument, resets: Resets | None
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        changes = agent_update is not None or env_update is not None or resets is not None
        updates = self._updates_of(agent_update, env_update, resets) if changes else {}
        life = self._life
        batch: TrajectoryBatch[ObservationsT, ActionsT] | None = None
        try:
            with (
                life.call(plan, updates, resets) as call,
                display(progress, *plan.goal, note=functools.partial(self._note, call)) as shown,
            ):
                while not call.gathering.result.complete:
                    call.pump(shown.interval)
                    shown.update(call.so_far, complete=call.gathering.result.complete)
                batch = call.complete()
        except BaseException as error:
            if is_interrupt(error):
                life.salvaged = batch or life.salvaged
                if life.salvaged is not None:
                    error.add_note(f"salvage() returns all finished trajectories: {life.salvaged.n_trajectories:,}")
            raise
        return batch

    def _note(self, call: Call) -> str:
        """Return what progress says besides numbers: of environments that wait how many trajectories are in flight."""
        notes = [call.batches.note()]
        if self._setup.workers.factory.worker_class.waits:
            notes.append(f"{call.gathering.n_in_flight:,} in flight")
        return ", ".join(filter(None, notes))

    def _updates_of(self, agent_update: Any, env_update: Any, resets: Resets | None) -> dict[Kind, Any]:
        life, setup = self._life, self._setup
        life.check_usable()
        worker_class = setup.workers.factory.worker_class
        if resets is not None and resets.changes_resets and not worker_class.can_take_options:
            what = "reset_options" if resets.tasks is None else "tasks"
            raise UsageError(f"{worker_class.__name__} takes no {what}")
        if agent_update is None and env_update is None:
            return {}
        refuse_calls(setup.tasks, "an update")
        if setup.holds_agent:
            refuse_items(agent_update, env_update)
        in_force = life.session.store.latest
        env_update = on_environments(env_update, in_force, life.session.engine)
        updates = pickled_updates(agent_update, env_update, in_force, held=setup.holds_agent)
        if "agent" in updates:
            environments = facts_in(updates["env"]) if "env" in updates else in_force.about("env")
            refuse_agents(facts_in(updates["agent"]), environments, worker_class)
        if "env" in updates:
            check_side_by_side(updates["env"], "env_update", setup.workers.factory)
        if makes_environment(env_update):
            life.session.scheduler.renew_checks()
        return updates

    def stream(
        self,
        agent_update: Any = None,
        env_update: Envs | None = None,
        *,
        first_trajectory: int = 0,
        n_trajectories: int | None = None,
        seeds: Iterable[int] | None = None,
        reset_options: ResetOptions | None = None,
        tasks: Sequence[Any] | None = None,
        kept_before: int = 0,
    ) -> Stream[ObservationsT, ActionsT]:
        """Return an iterator over trajectories 0, 1, 2, …, each a batch of one; it has no end unless one is given.

        Workers run ahead of the consumer by a bounded number of trajectories. Leaving the loop stops them; so does
        another obtaining call, after which the iterator raises `SamplerError`.

        Args:
            agent_update: See `obtain_samples`.
            env_update: See `obtain_samples`.
            first_trajectory: Begin with this one; what comes is the same as without, from there on.
            n_trajectories: How many there are, from `first_trajectory` on; None for all that have a seed or options of
                their own, otherwise without end.
            seeds: See `obtain_trajectories`; those of trajectories 0, 1, 2, …, also where another one is the first.
            reset_options: See `obtain_trajectories`; a list begins with trajectory 0, too.
            tasks: See `obtain_trajectories`: the same trajectories come, so `n_trajectories` is how many each task has.
                Those that take the places of others come last.
            kept_before: The number of trajectories of an earlier stream, before `first_trajectory`. With
                `on_failure="drop"` they count where nearly all trajectories raise, which is an error.

        Raises:
            UsageError: `first_trajectory` is no integer of at least 0, or within a block of trajectories that workers
                run together; there are no such trajectories; or numbers do not agree. For the others see
                `obtain_samples`.
        """
        self.refuse_lag("a stream")
        life = self._life
        first = positive("first_trajectory", first_trajectory, least=0)
        check_first(first, self.layout.block, differ=life.session.store.latest.differ)
        n, resets = streamed_resets(first, n_trajectories, seeds, reset_options, tasks)
        kept_before = positive("kept_before", kept_before, least=0)
        plan = Streamed(first, n, **self._places(resets), kept_before=kept_before)
        if plan.n_of_task is not None and first:
            raise UsageError(
                f"with tasks, and trajectories that are left out, first_trajectory must be 0, got {first}: how many of "
                "each task were left out before is not known. Give each trajectory a seed (seeds=[…]): then none is "
                "replaced"
            )
        updates = self._updates_of(agent_update, env_update, resets)

        def begin() -> Call:
            return self._life.begin_stream(plan, updates, resets)  # through `self`: a stream keeps its sampler

        return Stream(begin, life)

    def task_stream(
        self, runs: Sequence[TaskRun], *, seeds: Iterable[int] | None = None, reset_options: ResetOptions | None = None
    ) -> TaskStream:
        """Return an iterator over trajectories of several tasks; for samplers that were made with `OfTasks`.

        It is what evaluations of suites are made of. Workers go on with the next run while the last trajectories of one
        run. Each trajectory is that of a sampler of its task alone with this seed: of its first call, whichever call
        this is.

        Args:
            runs: Which trajectories of which tasks, in this order.
            seeds: See `stream`; those of trajectories 0, 1, 2, … of every task.
            reset_options: See `stream`; likewise.

        Raises:
            UsageError: The sampler has one task; there is no such run, or one that begins within a block of
                trajectories that workers run together, or ends there, where others may take the places of those left
                out; or there are trajectories that have no seed or options.
        """
        life, tasks = self._life, self._setup.tasks
        if not tasks:
            raise UsageError("task_stream is for samplers that are made with envs=OfTasks([…])")
        names = [task.name for task in tasks]
        checks = life.checks
        to_check = {name.number for name in names if isinstance(checks, TaskChecks) and checks.is_due(name.number)}
        is_fixed = seeds is not None or (reset_options is not None and not isinstance(reset_options, Mapping))
        whole = self._setup.policy.drops and not is_fixed
        sections = sections_of(runs, names, self.layout.block, to_check, whole=whole)
        resets = resets_of(sections, seeds, reset_options)
        self._updates_of(None, None, resets)
        plan = Streamed(limit=sections[-1].stop, fixed=True, sections=sections)

        def begin() -> Call:
            return self._life.begin_stream(plan, {}, resets)  # through `self`: a stream keeps its sampler

        return TaskStream(begin, life, sections)

    @property
    def tasks(self) -> tuple[TaskFacts, ...]:
        """The tasks of a sampler that was made with `OfTasks`; none of others."""
        return self._setup.tasks

    def writable_infos(self, infos: InfosArgument = True) -> AbstractContextManager[None]:
        """Return a context in which calls give trajectories whose infos a file can hold.

        In it infos are left out as soon as they arrive, and a call ends with the first trajectory that has an info
        which no file can hold, and not with all of them, when they are written.

        Args:
            infos: True for all infos, False for none, or the names of those that are kept.

        Raises:
            UsageError: `infos` is something else. Calls raise `UnwritableInfoError`.
        """
        return self._life.infos_of_files.entered(KeptInfos.of(infos))

    def salvage(self) -> TrajectoryBatch[ObservationsT, ActionsT] | None:
        """Return, once, the finished prefix of the call that Ctrl-C interrupted; None if there is none."""
        salvaged, self._life.salvaged = self._life.salvaged, None
        return salvaged

    def provenance(self, task: int | None = None) -> dict[str, Any]:
        """Return what decides about the next call's trajectories besides the seed, as JSON can hold it.

        That are the environment's name and arguments, limits, threads, the workers' class and arguments where they are
        not the default, the agent version where it is not the first, `record_taken` where it is given, the number of
        workers where they differ, and versions; filters, with a digest of their statistics, where there are any; and,
        after a call, the fingerprints of the workers (see `TrajectoryBatch`). Agents and code are not described. For
        `batch.save(…, provenance=…)`.

        Args:
            task: The number of a task, where the sampler has several: what decides about its trajectories, as a sampler
                of it alone would say it.

        Raises:
            UsageError: The sampler has several tasks, and no number is given; or there is no such task.
        """
        life, setup = self._life, self._setup
        life.check_usable()
        if task is not None:
            return self._provenance_of_task(positive("task", task, least=0))
        refuse_calls(setup.tasks, "provenance() without a task")
        store, version, of_lag = life.session.store, self.agent_version + 1, {}
        if life.lag is not None:
            (version, first), of_lag = life.lag.next_of(self.agent_version), {"staleness": 1}
            of_lag |= {"first_trajectory": first} if first else {}
        facts = provenance_of(
            setup.workers, setup.policy, setup.order, store.latest, version=version,
            fingerprints=life.fingerprints.bits, need=store.need,
        )  # fmt: skip
        return facts | of_lag | self.filters.facts()

    def _provenance_of_task(self, number: int) -> dict[str, Any]:
        life, setup = self._life, self._setup
        if number >= len(setup.tasks):
            raise UsageError(f"there is no task {number}: there are {len(setup.tasks)} tasks, from 0 on")
        facts = provenance_of(
            setup.workers, setup.policy, setup.order, setup.tasks[number].updates, version=1,
            fingerprints=sorted(life.fingerprints_of_tasks.get(number, ())),
            need=functools.partial(life.session.store.task_needs, number),
        )  # fmt: skip
        return facts | self.filters.facts()
